"""Run the controller process: take the lock, start spawner and helper processes, open the queue, serve."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import NamedTuple, Protocol

from fgsched import gpus
from fgsched.accounting.messages import AccountantProcess
from fgsched.config.load import load
from fgsched.config.schema import Config
from fgsched.controller.bookkeeping import accountant_of
from fgsched.controller.gpustate import with_known_gpus
from fgsched.controller.mailing import MailerProcess
from fgsched.gpus.ownership import Ownership, own
from fgsched.launch.spawner import Spawner
from fgsched.store import Store
from fgsched.system import nice
from fgsched.system.hostusers import HostUsers, of_host, of_sessions, of_user
from fgsched.system.ownhost import (
    QueueOwner,
    claim,
    clear_start,
    hold_jobs_lock,
    refuse_without_locks,
    show_start,
    this_host,
)
from fgsched.system.paths import Paths, taken
from fgsched.system.process import NO_CHILDREN, Children, boot_id, children
from fgsched.system.runplace import close_to_others, keep_from_cleaners, placed
from fgsched.system.sdnotify import ServiceManager
from fgshim import spawner

log = logging.getLogger("fgsched.controller")


class HelperProcesses(NamedTuple):
    """The GPUs and the helper processes. Accountant and mailer are started when requests are accepted."""

    spawner: Spawner
    sampler: gpus.AnySampler
    host_users: HostUsers
    inventory: gpus.Inventory
    accountant: AccountantProcess | None = None  # None: there are no accounts
    mailer: MailerProcess | None = None  # None: there are no mails
    sessions: tuple[HostUsers, ...] = ()  # with PAM sessions, for the start of jobs; none: PAM is not used
    inherited: Children = NO_CHILDREN  # of this process before it executed itself again


class RunningController(Protocol):
    """What serves the requests of clients, with an open queue."""

    def answer_for(self, owned: Ownership) -> None:
        """Close the connections of programs that look up which controller has a GPU."""

    def run(self, ready: Callable[[], None]) -> bool:
        """Run until the stop; return whether the process should execute itself again."""


Build = Callable[[Paths, Config, Store, HelperProcesses, ServiceManager], RunningController]


class ControllerStart(NamedTuple):
    """How the controller was started, and what it has before its queue."""

    paths: Paths
    environ: Mapping[str, str]
    build: Build
    option: str  # the value of --gpus
    is_service: bool  # notify the service manager
    ready: Callable[[], None]  # to be called once requests are accepted
    spawner: Spawner
    inherited: Children  # of this process before it executed itself again
    held: ExitStack  # closes the helper processes, after the queue


def serve(  # noqa: PLR0913  all that it needs
    paths: Paths,
    environ: Mapping[str, str],
    build: Build,
    *,
    option: str = "",
    is_service: bool = False,
    takes_over: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the controller until it is stopped; `ready` is called once requests are accepted.

    `build` makes it, with the open queue and the helper processes.
    `takes_over`: also the queue of another host, of which no sign of life is seen.

    The process executes itself again if the spawner is lost, if SIGUSR1 asks for it, or if a GPU driver that
    was late at the start answers: it must not fork while the queue is open, and a start works from any state.

    Raises:
        AlreadyRunning: this queue has another controller.
        BadUsage: the configuration is wrong.
        Refused: another controller allocates the GPUs.
        StorageError: the queue cannot be used.
    """
    _prepare(paths)
    inherited = Children(children(os.getpid()))
    with taken(paths), ExitStack() as resources:
        paths, locks = _claimed(paths, takes_over=takes_over)
        resources.callback(_close, locks)
        child = Spawner(spawner(), locks)
        arguments = _arguments(paths, option, is_service=is_service)
        _show(paths, child, arguments, environ)
        begun = ControllerStart(paths, environ, build, option, is_service, ready, child, inherited, resources)
        again = _run(begun)
    if again:
        _execute_again(arguments)


def _claimed(paths: Paths, *, takes_over: bool) -> tuple[Paths, tuple[int, ...]]:
    """Record that the queue belongs to this host, and place its run directory.

    Returns:
        The paths, and descriptors of locks, which the spawner holds as long as jobs run: one shows the queue
        to be in use, and one keeps cleaners of /tmp from the run directory.

    Raises:
        Unreachable: the queue belongs to another host.
        StorageError: the file system has no locks, or there is no place for the run directory.
    """
    owner = QueueOwner(host=this_host(), pid=os.getpid(), since=time.time())
    claim(paths.state, owner, takes_over=takes_over)
    in_use = hold_jobs_lock(paths.state)
    paths = placed(paths, os.geteuid(), boot_id())
    from_cleaners = keep_from_cleaners(paths.run)
    return paths, tuple(lock for lock in (in_use, from_cleaners) if lock >= 0)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _execute_again(arguments: list[str]) -> None:
    log.warning("executing the program of the controller again")
    os.execv(sys.executable, arguments)


def _show(paths: Paths, child: Spawner, arguments: list[str], environ: Mapping[str, str]) -> None:
    """Show clients that the controller is starting, and the user's spawner how it is started again."""
    show_start(paths.socket)
    if paths.mode == "user":
        child.keep(paths.log, arguments, environ)


def _prepare(paths: Paths) -> None:
    paths.prepare(os.geteuid())
    refuse_without_locks(paths.state)
    os.umask(0o077)
    closed = close_to_others(paths)
    if closed:
        log.warning("could be read by other users, and is private now: %s", ", ".join(map(str, closed)))
    nice.raise_limits()
    if paths.mode == "system":
        nice.lower_oom_score()


def _arguments(paths: Paths, option: str, *, is_service: bool) -> list[str]:
    """Return the command that starts this controller again."""
    arguments = [*(("--gpus", option) if option else ()), *(["--system"] if paths.mode == "system" else [])]
    arguments += ["--service"] if is_service else []
    return [sys.executable, "-I", "-m", "fgsched.controller", *arguments]


def _run(begun: ControllerStart) -> bool:
    """Run the controller until it is stopped; return whether to execute the process again."""
    paths, resources = begun.paths, begun.held
    config = load(paths)
    inventory, sampler = gpus.attach(config, begun.environ, option=begun.option)
    host_users, sessions = _lookups(paths, config)
    writers = _accountant(paths, config, resources), _mailer(paths, config, resources)
    for session in (host_users, *sessions, sampler, begun.spawner):
        resources.callback(session.close)
    with closing(Store(paths.queue)) as store:
        inventory = with_known_gpus(inventory, store, sampler)
        with closing(_own(inventory, config, paths)) as owned:
            helpers = HelperProcesses(
                begun.spawner, sampler, host_users, inventory, *writers, sessions, begun.inherited
            )
            manager = ServiceManager(begun.environ if begun.is_service else {})
            controller = begun.build(paths, config, store, helpers, manager)
            controller.answer_for(owned)
            return _served(controller.run, paths, begun.ready)


def _served(run: Callable[[Callable[[], None]], bool], paths: Paths, ready: Callable[[], None]) -> bool:
    """Run the controller; return whether to execute it again, shown before its lock is released."""

    def announce() -> None:
        clear_start(paths.socket)
        ready()

    with nice.before_jobs():
        again = run(announce)
    if again:
        show_start(paths.socket)
    return again


def _lookups(paths: Paths, config: Config) -> tuple[HostUsers, tuple[HostUsers, ...]]:
    """Return the users of the host and, if root's controller uses PAM, those with PAM sessions."""
    if paths.mode == "user":
        return of_user(os.geteuid()), ()
    return of_host(), (of_sessions(config.pam_service),) if config.pam_service else ()


def _accountant(paths: Paths, config: Config, resources: ExitStack) -> AccountantProcess | None:
    accountant = accountant_of(paths, config)
    if accountant is not None:
        resources.callback(accountant.close)
    return accountant


def _mailer(paths: Paths, config: Config, resources: ExitStack) -> MailerProcess | None:
    """Return the mailer, which the first round starts; None if its queue cannot be made."""
    try:
        mailer = MailerProcess(paths.mail, config.mails)
    except OSError as error:
        log.warning("no mails are sent: %s", error)
        return None
    resources.callback(mailer.close)
    return mailer


def _own(inventory: gpus.Inventory, config: Config, paths: Paths) -> Ownership:
    """Take the real GPUs of the inventory. Raises Refused if another controller gives them out."""
    real = inventory.gpus if inventory.is_real else ()
    return own(real, exclusive=config.exclusive, is_root=paths.mode == "system")
