"""Schedule batch jobs on fractions of the GPUs of one host, with Slurm's commands.

A module imports only from its own layer and the layers below (tests/test_layers.py):

    domain      jobs, GPUs, policy, units and errors
    core        jobs: one job; scheduling: all jobs and all GPUs. Neither imports the other
    edges       config, system, launch, store, gpus, server, client
    controller  the daemon; simulate: its decisions in virtual time
    cli         one module a command

See docs/design/architecture.md.
"""

__version__ = "0.1.0"
PROTOCOL = 2  # of the socket between the commands and the controller
