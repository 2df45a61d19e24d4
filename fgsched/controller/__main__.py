"""`python -I -m fgsched.controller [READY_FD]`: the controller as a client of user mode starts it."""

import json
import logging
import os
import sys

from fgsched.config import load
from fgsched.controller.serve import serve
from fgsched.errors import FgschedError, Unreachable
from fgsched.places import Places


def main() -> int:
    """Serve; says on the descriptor READY_FD, in one line, that it is ready or why it cannot be."""
    descriptor = int(sys.argv[1]) if len(sys.argv) > 1 else -1
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)

    def say(message: dict[str, object]) -> None:
        nonlocal descriptor
        if descriptor >= 0:
            os.write(descriptor, json.dumps(message).encode() + b"\n")
            os.close(descriptor)
            descriptor = -1

    try:
        places = Places.find(os.environ, os.geteuid())
        serve(places, load(places), os.environ, ready=lambda: say({"ready": os.getpid()}))
    except FgschedError as error:
        already = isinstance(error, Unreachable)
        say({"exit": int(error.exit_code), "cause": error.cause, "remedy": error.remedy, "already": already})
        logging.error("%s %s", error.cause, error.remedy)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
