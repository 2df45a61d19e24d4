"""fgsched: a single-host batch scheduler for fractions of GPUs, with Slurm's manners.

Layers, each importing only its own and lower ones (tests/test_layers.py):

    domain      jobs, GPUs, policy, units and errors
    core        jobs: one job; scheduling: all jobs and all GPUs. Neither imports the other
    edges       config, system, launch, store, gpus, server, client
    controller  the daemon; simulate: its decisions in virtual time
    cli         one module a command

See docs/architecture.md.
"""

__version__ = "0.1.0"
PROTOCOL = 1  # of the socket between the commands and the controller
