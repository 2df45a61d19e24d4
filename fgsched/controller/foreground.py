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


def attend(*, gpus: str = "", system: bool = False, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until told to stop. `gpus` prevails over what environment and configuration say."""
    hold_low_descriptors()
    places = Paths.find(os.environ, os.geteuid(), system=system)
    output = handler(places.log)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=[output])
    if system:
        for program in (sys.executable, __file__, library(), spawner()):
            refuse_unless_safe(Path(program), owner=0, writers=0o002)
    try:
        serve(places, load(places), os.environ, option=gpus, ready=ready)
    except OSError as error:
        if not is_of_the_disk(error):
            raise
        raise unwritten(error, error.filename or places.state) from error
