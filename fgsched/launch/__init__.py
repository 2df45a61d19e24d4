"""Launching of jobs: the launch message, the spawner, shepherds, the run directory and regions."""
