"""The commands of Slurm, in its dialect, for scripts and programs that were written for it."""
