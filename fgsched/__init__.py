"""fgsched: a single-host batch scheduler for fractions of GPUs, with Slurm's manners.

Layers, each importing only those before it (a test holds this):

    words      model, units, errors
    core       jobscript, patterns, placement, planner, lifecycle, isolation, explain
    edges      config, store, gpus, process, launch, server, client
    conductor  controller
    cli        one file a command

docs/architecture.md tells the rest.
"""

__version__ = "0.1.0"
PROTOCOL = 1  # of the socket between the commands and the controller
