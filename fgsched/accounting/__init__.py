"""Keep what ended jobs, GPUs and foreign processes used, for years, in a file that reports read."""
