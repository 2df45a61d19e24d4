"""Open the queue, build the controller with its GPUs and helper processes, and run it."""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import NamedTuple

from fgsched import gpus
from fgsched.accounting.process import AccountantProcess
from fgsched.config.load import Config, load
from fgsched.controller.accountant import accountant_of
from fgsched.controller.beside import Beside
from fgsched.controller.gpustate import with_known_gpus
from fgsched.controller.service import Controller
from fgsched.gpus.ownership import Ownership, own
from fgsched.launch.spawner import Spawner
from fgsched.mail.process import MailerProcess
from fgsched.store import Store
from fgsched.store.ahead import Ahead
from fgsched.store.opening import examine
from fgsched.store.store import converted
from fgsched.system import nice
from fgsched.system.hostusers import HostUsers, of_host, of_sessions, of_user
from fgsched.system.paths import Paths
from fgsched.system.process import Children
from fgsched.system.sdnotify import ServiceManager
from fgsched.system.startmark import clear_start, show_start

log = logging.getLogger("fgsched.controller")


class Begun(NamedTuple):
    """How the controller was started, and what it has before its queue."""

    places: Paths
    environ: Mapping[str, str]
    option: str  # the value of --gpus
    is_service: bool  # notify the service manager
    ready: Callable[[], None]  # to be called once requests are accepted
    spawner: Spawner
    inherited: Children  # of this process before it executed itself again
    held: ExitStack  # closes the helper processes, after the queue


def run(begun: Begun, ahead: Ahead | None) -> bool:
    """Run the controller until it is stopped; return whether to execute the process again.

    Args:
        ahead: reads the queue already.

    Raises:
        BadUsage: the configuration is wrong.
        Refused: another controller allocates the GPUs.
        StorageError: the queue cannot be used.
    """
    places, held = begun.places, begun.held
    config = load(places)
    inventory, sampler = gpus.attach(config, begun.environ, option=begun.option)
    host_users, sessions = _lookups(places, config)
    helpers = _accountant(places, config, held), _mailer(places, config, held), sessions
    for one in (host_users, *sessions, sampler, begun.spawner):
        held.callback(one.close)
    with closing(_opened(places, ahead)) as store:
        inventory = with_known_gpus(inventory, store, sampler)
        with closing(_own(inventory, config, places)) as owned:
            beside = Beside(begun.spawner, sampler, host_users, inventory, *helpers, begun.inherited)
            manager = ServiceManager(begun.environ if begun.is_service else {})
            controller = Controller(places, config, store, beside, manager)
            controller.answer_for(owned)
            return _run(controller.run, places, begun.ready)


def _opened(places: Paths, ahead: Ahead | None) -> Store:
    """Check and open the queue. Raises StorageError."""
    examined = examine(places.queue, is_log_written=ahead is not None)
    rows = converted(ahead) if ahead is not None else None
    store = Store(places.queue, examined.open())
    if ahead is not None and rows is not None:
        store.use_ahead(rows, ahead.counts)
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


def _lookups(places: Paths, config: Config) -> tuple[HostUsers, tuple[HostUsers, ...]]:
    """Return the users of the host and, if root's controller uses PAM, those with PAM sessions."""
    if places.mode == "user":
        return of_user(os.geteuid()), ()
    return of_host(), (of_sessions(config.pam_service),) if config.pam_service else ()


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
    real = inventory.gpus if inventory.is_real else ()
    return own(real, exclusive=config.exclusive, is_root=places.mode == "system")
