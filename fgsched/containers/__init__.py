"""Containers of jobs: the hook, the GPUs and the directories of a job inside the user's image."""
