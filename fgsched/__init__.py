"""fgsched: a single-host batch scheduler for fractions of GPUs, with Slurm's manners.

Layers, each importing only those before it (a test holds this):

    words      model, states, units, moments, errors, values, policy and two of one word each
    core       jobs: one job; deciding: all of them and the cards. Neither knows the other
    answers    explaining
    edges      site, host, store, gpus, server, client
    conductor  controller, simulate
    cli        one file a command

docs/architecture.md tells the rest.
"""

__version__ = "0.1.0"
PROTOCOL = 1  # of the socket between the commands and the controller
