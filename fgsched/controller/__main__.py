"""`python -I -m fgsched.controller [READY_FD] [--gpus X] [--system] [--service]`: the controller as clients start it."""

import getopt
import json
import logging
import os
import sys
from contextlib import suppress

from fgsched.controller.foreground import attend
from fgsched.domain.errors import FgschedError, Unreachable
from fgsched.system.nice import reset_signals


def main() -> int:
    """Serve; says on the descriptor READY_FD, in one line, that it is ready or why it cannot be."""
    options, rest = getopt.gnu_getopt(sys.argv[1:], "", ["gpus=", "system", "service"])
    given = dict(options)
    descriptor = int(rest[0]) if rest else -1

    def say(message: dict[str, object]) -> None:
        nonlocal descriptor
        if descriptor >= 0:
            with suppress(BrokenPipeError):  # whoever started us was interrupted; others need us all the same
                os.write(descriptor, json.dumps(message).encode() + b"\n")
            os.close(descriptor)
            descriptor = -1

    reset_signals()

    try:
        attend(
            gpus=given.get("--gpus", ""),
            system="--system" in given,
            is_service="--service" in given,
            ready=lambda: say({"ready": os.getpid()}),
        )
    except FgschedError as error:
        already = isinstance(error, Unreachable)
        say({"exit": int(error.exit_code), "cause": error.cause, "remedy": error.remedy, "already": already})
        logging.error("%s %s", error.cause, error.remedy)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
