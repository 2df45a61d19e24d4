"""`python -I -m fgsched.controller [READY_FD] [--gpus X] [--system] [--service]`, as clients start it."""

import getopt
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from fgsched.controller.daemon import serve
from fgsched.controller.decisionlog import handler
from fgsched.controller.service import Controller
from fgsched.domain.errors import AlreadyRunning, FgschedError
from fgsched.system import earlysignals
from fgsched.system.nice import hold_low_descriptors, leave_bounds_of_command, reset_signals
from fgsched.system.paths import Paths, is_of_the_disk, unwritten
from fgsched.system.safeopen import refuse_unless_safe
from fgshim import library, spawner


def run_controller(
    *,
    gpus: str = "",
    system: bool = False,
    is_service: bool = False,
    takes_over: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the controller until it is stopped. `gpus` overrides the environment and the configuration.

    `is_service`: notify the service manager that NOTIFY_SOCKET names. A controller that a command started
    must not do so: it may have inherited that variable from another service.
    """
    hold_low_descriptors()
    earlysignals.keep()
    paths = Paths.find(os.environ, os.geteuid(), system=system)
    logging.basicConfig(level=logging.INFO, handlers=[handler(paths.log, os.environ)])
    if system:
        for program in (sys.executable, __file__, library(), spawner()):
            refuse_unless_safe(Path(program), owner=0, writers=0o002)
    try:
        serve(
            paths,
            os.environ,
            Controller,
            option=gpus,
            is_service=is_service,
            takes_over=takes_over,
            ready=ready,
        )
    except OSError as error:
        if not is_of_the_disk(error):
            raise
        raise unwritten(error, error.filename or paths.state) from error


def main() -> int:
    """Run the controller; write to descriptor READY_FD that it is ready, or why it cannot start."""
    options, arguments = getopt.gnu_getopt(sys.argv[1:], "", ["gpus=", "system", "service", "take-over"])
    option_values = dict(options)
    descriptor = int(arguments[0]) if arguments else -1

    def say(message: dict[str, object]) -> None:
        nonlocal descriptor
        if descriptor >= 0:
            with suppress(
                BrokenPipeError
            ):  # the starting command was interrupted; other commands need the controller
                os.write(descriptor, json.dumps(message).encode() + b"\n")
            os.close(descriptor)
            descriptor = -1

    reset_signals()
    if "--service" not in option_values:  # a unit's CPUAffinity and Nice are meant for the controller
        leave_bounds_of_command()
    # filelock imports hashlib, which loads OpenSSL if it can: 0.4 MiB, and 3 MiB of resident memory.
    if find_spec("_md5"):  # some distributions build Python without digests of its own
        sys.modules["_hashlib"] = None  # type: ignore[assignment]

    try:
        run_controller(
            gpus=option_values.get("--gpus", ""),
            system="--system" in option_values,
            is_service="--service" in option_values,
            takes_over="--take-over" in option_values,
            ready=lambda: say({"ready": os.getpid()}),
        )
    except FgschedError as error:
        is_second = isinstance(error, AlreadyRunning)
        say(
            {"exit": int(error.exit_code), "cause": error.cause, "remedy": error.remedy, "already": is_second}
        )
        logging.error("%s %s", error.cause, error.remedy)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
