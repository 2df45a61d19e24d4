"""Read a submission: its options from command line, script and environment, and what they ask for."""
