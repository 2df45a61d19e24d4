"""Start the accountant with the settings of the site."""

import logging

from fgsched.accounting.messages import Keep
from fgsched.accounting.process import AccountantProcess
from fgsched.config.load import Config
from fgsched.system.paths import Paths

log = logging.getLogger("fgsched.controller")


def start_accountant(places: Paths, config: Config) -> AccountantProcess | None:
    """Start the accountant, before the queue is opened; None if the settings disable accounts."""
    if not config.accounting:
        return None
    process = AccountantProcess(places.accounts, keep_of(config))
    try:
        process.start()
    except OSError as error:  # it is tried again later
        log.warning("the accountant cannot be started: %s", error)
    return process


def keep_of(config: Config) -> Keep:
    """Return how long samples are kept."""
    return Keep(minutes=config.keep_minutes, hours=config.keep_hours, days=config.keep_days)
