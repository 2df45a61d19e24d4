"""Start a command as a program: Ctrl-C while its modules are imported ends it without a traceback."""

import os
import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module


def __getattr__(command: str) -> Callable[[], None]:
    """Return the function that imports and runs a command; `[project.scripts]` names it."""
    if command.startswith("_"):
        raise AttributeError(command)
    return partial(_start, command)


def _start(command: str) -> None:
    try:
        main = import_module(f"fgsched.cli.{command}").main
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    main()
