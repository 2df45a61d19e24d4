"""Run the controller process: take the lock, start the spawner, read the queue, serve.

The modules that are needed to read the queue are few. The others are imported while other threads read it.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from fgsched.launch.spawner import Spawner
from fgsched.store.ahead import read_ahead
from fgsched.system import nice
from fgsched.system.paths import Paths, taken
from fgsched.system.private import close_to_others
from fgsched.system.process import Children, boot_id, children
from fgsched.system.runplace import placed
from fgsched.system.startmark import show_start
from fgshim import spawner

log = logging.getLogger("fgsched.controller")


def serve(
    places: Paths,
    environ: Mapping[str, str],
    *,
    option: str = "",
    is_service: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the controller until it is stopped; `ready` is called once requests are accepted.

    The process executes itself again if the spawner is lost or SIGUSR1 asks for it: it must not fork while
    the queue is open, and a start works from any state.

    Raises:
        AlreadyRunning: this queue has another controller.
        BadUsage: the configuration is wrong.
        Refused: another controller allocates the GPUs.
        StorageError: the queue cannot be used.
    """
    gc.disable()  # until the queue is loaded: modules and jobs are many objects without cycles
    _prepare(places)
    inherited = Children(children(os.getpid()))
    with taken(places), ExitStack() as held:
        places, child = placed(places, os.geteuid(), boot_id()), Spawner(spawner())
        arguments = _arguments(places, option, is_service=is_service)
        _show(places, child, arguments, environ)
        ahead = read_ahead(places.queue)
        if ahead is not None:
            held.callback(ahead.close)
        from fgsched.controller.serving import Begun, run  # meanwhile

        again = run(Begun(places, environ, option, is_service, ready, child, inherited, held), ahead)
    if again:
        _execute_again(arguments)


def _execute_again(arguments: list[str]) -> None:
    log.warning("executing the program of the controller again")
    os.execv(sys.executable, arguments)


def _show(places: Paths, child: Spawner, arguments: list[str], environ: Mapping[str, str]) -> None:
    """Show clients that the controller is starting, and the user's spawner how it is started again."""
    show_start(places.socket)
    if places.mode == "user":
        child.keep(places.log, arguments, environ)


def _prepare(places: Paths) -> None:
    places.prepare(os.geteuid())
    os.umask(0o077)
    closed = close_to_others(places)
    if closed:
        log.warning("could be read by other users, and is private now: %s", ", ".join(map(str, closed)))
    nice.raise_limits()
    if places.mode == "system":
        nice.lower_oom_score()


def _arguments(places: Paths, option: str, *, is_service: bool) -> list[str]:
    """Return the command that starts this controller again."""
    kept = [*(("--gpus", option) if option else ()), *(["--system"] if places.mode == "system" else [])]
    kept += ["--service"] if is_service else []
    return [sys.executable, "-I", "-m", "fgsched.controller", *kept]
