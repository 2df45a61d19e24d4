"""The usage of Slurm's names: the line of --usage, the list of --help, and the completions of a shell."""

from importlib import import_module
from typing import NamedTuple

from fgsched.cli.command import Command, Operand, OwnCommand
from fgsched.cli.install.slurmnames import NAMES

_WORDS = {  # what follows a name
    "sacct": "[OPTION]...",
    "sacctmgr": "[OPTION]... show ENTITY [CONDITION]...",
    "salloc": "[OPTION]... [PROGRAM [ARGUMENT]...]",
    "sattach": "[OPTION]... JOB.STEP",
    "sbatch": "[OPTION]... [SCRIPT [ARGUMENT]...]",
    "scancel": "[OPTION]... [JOB]...",
    "scontrol": "[OPTION]... COMMAND [ARGUMENT]...",
    "seff": "[OPTION]... JOB",
    "sinfo": "[OPTION]...",
    "sprio": "[OPTION]...",
    "squeue": "[OPTION]...",
    "sreport": "[OPTION]... REPORT [CONDITION]...",
    "srun": "[OPTION]... PROGRAM [ARGUMENT]...",
    "sshare": "[OPTION]...",
    "sstat": "[OPTION]... JOB[.STEP]...",
}


class _Own(NamedTuple):
    """A name that does not have the options of a command of fgsched."""

    about: str
    page: str  # of the manual
    operands: tuple[Operand, ...] = ()


_ENTITIES = ("account", "user", "association", "qos", "cluster")
_REPORTS = ("Utilization", "AccountUtilizationByUser", "UserUtilizationByAccount", "TopUsage")
_OWN = {
    "sacctmgr": _Own(
        "Show accounts, users, associations and qualities of service.",
        "fgsched.toml",
        operands=(("show", "list"), _ENTITIES),
    ),
    "salloc": _Own("Allocate resources, and run a program or a shell with them.", "fgrun"),
    "sattach": _Own("Follow a running job: its terminal, or its output files.", "fgctl", operands=("JOB",)),
    "seff": _Own("Show how much of its request a job used.", "fgeff", operands=("JOB",)),
    "sinfo": _Own("Show partitions and the host.", "fginfo"),
    "sreport": _Own("Sum the accounts of a period.", "fgreport", operands=(("cluster", "user"), _REPORTS)),
    "srun": _Own("Run a program as the tasks of a step; outside a job, as a job.", "fgrun"),
    "sshare": _Own("Show shares and usage of accounts and users.", "fgshare"),
    "sstat": _Own("Show the use of running jobs and steps.", "fgstat", operands=("JOB",)),
}


def line(name: str) -> str:
    """Return the line that a name prints for --usage."""
    return f"Usage: {name} {_WORDS[name]}\n"


def command_of(name: str) -> Command:
    """Return the command that lists the options of a name, and completes them."""
    if name not in _OWN:
        command: Command = getattr(import_module(f"fgsched.cli.{NAMES[name]}"), NAMES[name])
        return command
    own = _OWN[name]
    return OwnCommand(name, about=own.about, usage=_WORDS[name], page=own.page, operands=own.operands)
