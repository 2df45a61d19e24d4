"""Being the controller in this process: where, and obeying what, the environment and two options say."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from fgsched.config.load import load
from fgsched.controller.daemon import serve
from fgsched.controller.logfile import handler
from fgsched.system.nice import hold_low_descriptors
from fgsched.system.paths import Paths, is_of_the_disk, unwritten
from fgsched.system.trust import refuse_unless_safe
from fgshim import library, spawner


def attend(
    *,
    gpus: str = "",
    system: bool = False,
    is_service: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until told to stop. `gpus` prevails over what environment and configuration say.

    `is_service`: notify the service manager that NOTIFY_SOCKET names. A controller that a command started has
    that variable from another service, and must notify nobody.
    """
    hold_low_descriptors()
    places = Paths.find(os.environ, os.geteuid(), system=system)
    logging.basicConfig(level=logging.INFO, handlers=[handler(places.log, os.environ)])
    if system:
        for program in (sys.executable, __file__, library(), spawner()):
            refuse_unless_safe(Path(program), owner=0, writers=0o002)
    try:
        serve(places, load(places), os.environ, option=gpus, is_service=is_service, ready=ready)
    except OSError as error:
        if not is_of_the_disk(error):
            raise
        raise unwritten(error, error.filename or places.state) from error
