"""Explain with the planner why a job waits, what would start it, and when it starts. Facts, no sentences."""
