"""Decide which jobs start where, and in which order: pure functions of queue, GPUs and policy."""
