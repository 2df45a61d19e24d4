"""Start a command as a program: Ctrl-C while its modules are imported ends it without a traceback."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

FRONT_END = "front-end"  # the word with which the native fgsub and fgq call the Python command
_OF_SLURM = {"sbatch", "squeue", "scancel"}  # names by which the native programs are called


def __getattr__(command: str) -> Callable[[], None]:
    """Return the function that imports and runs a command; `[project.scripts]` names it."""
    if command.startswith("_"):
        raise AttributeError(command)
    return partial(_start, command)


def _start(command: str) -> None:
    try:
        if command == "fgsched" and sys.argv[1:2] == [FRONT_END]:
            command = _instead_of_front()
        main = _main(command)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    main()


def _main(command: str) -> Callable[[], None]:
    module = "fgsched.slurm.names" if command in _OF_SLURM else f"fgsched.cli.{command}"
    found: Callable[[], None] = import_module(module).main
    return found


def _instead_of_front() -> str:
    """Return the command that a native program leaves to Python with `fgsched front-end NAME KEY …`."""
    name, key, *words = sys.argv[2:]
    sys.argv = [name, *words] if name not in _OF_SLURM else ["", name, *words]
    if name in ("fgsub", "sbatch"):
        from fgsched.cli import sentline

        sentline.keep(key, [name, *words])
    return name
