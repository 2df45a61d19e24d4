"""Jobs in the foreground: the caller's streams, signals and terminal reach the job's first process."""
