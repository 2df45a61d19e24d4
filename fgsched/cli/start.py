"""Start a command as a program: Ctrl-C while its modules are imported ends it without a traceback."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module

from fgsched.cli.shells import COMMANDS
from fgsched.system import preloading


def main() -> None:
    """Run the command that a native program leaves to Python with `fgsched-python NAME KEY ARGUMENT…`."""
    gc.disable()  # imports leave no cycles, and a look for them is a tenth of the time of a command
    try:
        preloading.restore(os.environ)
        run = _function(_named_command())
        gc.enable()
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    run()


def _named_command() -> str:
    """Return the name, after the arguments are put where the command expects them."""
    name, key, *words = sys.argv[1:]
    sys.argv = [name, *words] if name in COMMANDS else ["", name, *words]
    if name in ("fgsub", "sbatch"):
        from fgsched.cli import fgsub

        fgsub.sent_key = key
    return name


def _function(command: str) -> Callable[[], None]:
    module = f"fgsched.cli.{command}" if command in COMMANDS else "fgsched.slurm.names"
    function: Callable[[], None] = import_module(module).main
    return function
