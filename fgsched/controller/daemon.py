"""Run the controller process: take the lock, start the spawner, read the queue, serve.

The modules that are needed to read the queue are few. The others are imported while other threads read it.
"""

import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from fgsched.launch.spawner import Spawner
from fgsched.store.ahead import read_ahead
from fgsched.system import nice
from fgsched.system.ownhost import QueueOwner, claim, hold_jobs_lock, refuse_without_locks, this_host
from fgsched.system.paths import Paths, taken
from fgsched.system.private import close_to_others
from fgsched.system.process import Children, boot_id, children
from fgsched.system.runplace import keep_from_cleaners, placed
from fgsched.system.startmark import show_start
from fgshim import spawner

log = logging.getLogger("fgsched.controller")


def serve(
    places: Paths,
    environ: Mapping[str, str],
    *,
    option: str = "",
    is_service: bool = False,
    takes_over: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the controller until it is stopped; `ready` is called once requests are accepted.

    `takes_over`: also the queue of another host, of which no sign of life is seen.

    The process executes itself again if the spawner is lost, if SIGUSR1 asks for it, or if a GPU driver that
    was late at the start answers: it must not fork while the queue is open, and a start works from any state.

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
        places, locks = _claimed(places, takes_over=takes_over)
        held.callback(_close, locks)
        child = Spawner(spawner(), locks)
        arguments = _arguments(places, option, is_service=is_service)
        _show(places, child, arguments, environ)
        ahead = read_ahead(places.queue)
        if ahead is not None:
            held.callback(ahead.close)
        from fgsched.controller.serving import Begun, run  # meanwhile

        again = run(Begun(places, environ, option, is_service, ready, child, inherited, held), ahead)
    if again:
        _execute_again(arguments)


def _claimed(places: Paths, *, takes_over: bool) -> tuple[Paths, tuple[int, ...]]:
    """Record that the queue belongs to this host, and place its run directory.

    Returns:
        The paths, and descriptors of locks, which the spawner holds as long as jobs run: one shows the queue
        to be in use, and one keeps cleaners of /tmp from the run directory.

    Raises:
        Unreachable: the queue belongs to another host.
        StorageError: the file system has no locks, or there is no place for the run directory.
    """
    owner = QueueOwner(host=this_host(), pid=os.getpid(), since=time.time())
    claim(places.state, owner, takes_over=takes_over)
    in_use = hold_jobs_lock(places.state)
    places = placed(places, os.geteuid(), boot_id())
    from_cleaners = keep_from_cleaners(places.run)
    return places, tuple(lock for lock in (in_use, from_cleaners) if lock >= 0)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


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
    refuse_without_locks(places.state)
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
