"""Run the controller process: take the lock, start the helper processes, open the queue, serve."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol

from fgsched import gpus
from fgsched.accounting.process import AccountantProcess
from fgsched.config.load import Config
from fgsched.controller.accountant import accountant_of
from fgsched.gpus.ownership import Ownership, own
from fgsched.launch.spawner import Spawner
from fgsched.mail.process import MailerProcess
from fgsched.store import Store
from fgsched.system import nice
from fgsched.system.accounts import Accounts, of_host, of_sessions, of_user
from fgsched.system.paths import Paths, taken
from fgsched.system.private import close_to_others
from fgsched.system.process import Children, boot_id, children
from fgsched.system.runplace import placed
from fgsched.system.sdnotify import ServiceManager
from fgsched.system.startmark import clear_start, show_start
from fgshim import spawner

log = logging.getLogger("fgsched.controller")


class _Closes(Protocol):
    def close(self) -> None: ...


def serve(
    places: Paths,
    config: Config,
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
        Unreachable: this queue has another controller.
        Refused: another controller allocates the GPUs.
        StorageError: the queue cannot be used.
    """
    _prepare(places)
    inherited = Children(children(os.getpid()))
    with taken(places), ExitStack() as held:
        places, child = placed(places, environ, os.geteuid(), boot_id()), Spawner(spawner())
        arguments = _arguments(places, option, is_service=is_service)
        _show(places, child, arguments, environ)
        inventory, sampler = gpus.attach(config, environ, option=option)
        accounts, sessions = _lookups(places, config)
        helpers = _accountant(places, config, held), _mailer(places, config, held), sessions
        store = _opened(places, held, accounts, *sessions, sampler, child)
        with store.reading_ahead():  # half of the modules are imported meanwhile
            from fgsched.controller.beside import Beside
            from fgsched.controller.gpustate import with_known_gpus
            from fgsched.controller.service import Controller
        inventory = with_known_gpus(inventory, store, sampler)
        held.callback(_own(inventory, config, places).close)
        beside = Beside(child, sampler, accounts, inventory, *helpers, inherited)
        controller = Controller(places, config, store, beside, _manager(environ, is_service))
        again = _run(controller.run, places, ready)
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


def _opened(places: Paths, held: ExitStack, *others: _Closes) -> Store:
    """Open the queue, which is closed before the others."""
    store = Store(places.queue)
    for one in (*others, store):
        held.callback(one.close)
    return store


def _run(run: Callable[[Callable[[], None]], bool], places: Paths, ready: Callable[[], None]) -> bool:
    """Run the controller; return whether to execute it again, shown before its lock is released."""

    def announce() -> None:
        clear_start(places.socket)
        ready()

    with nice.before_jobs():
        again = run(announce)
    if again:
        show_start(places.socket)
    return again


def _lookups(places: Paths, config: Config) -> tuple[Accounts, tuple[Accounts, ...]]:
    """Return the accounts of users and, if root's controller uses PAM, those with PAM sessions."""
    if places.mode == "user":
        return of_user(os.geteuid()), ()
    return of_host(), (of_sessions(config.pam_service),) if config.pam_service else ()


def _manager(environ: Mapping[str, str], is_service: bool) -> ServiceManager:
    return ServiceManager(environ if is_service else {})


def _accountant(places: Paths, config: Config, held: ExitStack) -> AccountantProcess | None:
    accountant = accountant_of(places, config)
    if accountant is not None:
        held.callback(accountant.close)
    return accountant


def _mailer(places: Paths, config: Config, held: ExitStack) -> MailerProcess | None:
    """Return the mailer, which `MailRoom` starts in the first round; None if its queue cannot be made."""
    try:
        mailer = MailerProcess(places.mail, config.mails)
    except OSError as error:
        log.warning("no mails are sent: %s", error)
        return None
    held.callback(mailer.close)
    return mailer


def _own(inventory: gpus.Inventory, config: Config, places: Paths) -> Ownership:
    """Take the real GPUs of the inventory. Raises Refused if another controller gives them out."""
    real = inventory.gpus if inventory.source == "nvml" else ()
    return own(real, exclusive=config.exclusive, is_root=places.mode == "system")


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
