"""Slurm's commands with its options, output and messages, for scripts and programs written for Slurm."""
