"""Launching of jobs: the launch message, the spawner, shepherds, the run directory and regions.

adopted    the program of the job of an adopted process: wait for it, pass signals on to it
arbiter    the arbiter, which gives the jobs of each shared GPU their turns
fence      fences: the hook and a region for programs that are no jobs
launcher   launch attempts of jobs, send commands to their shepherds, and clean up after them
hostwait   what a job waits for at its start or its end: a file system that does not answer
regions    the regions of running jobs, in which the hook accounts GPU memory
rundir     the run directory: claims and results of attempts, which outlive every process
shepherds  follow the shepherds of running jobs, and send them commands as signals with a value
spawner    the launch message that the spawner reads, and the connection to it
"""
