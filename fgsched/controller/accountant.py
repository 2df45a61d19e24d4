"""The accountant with the settings of the site."""

from fgsched.accounting.messages import Keep
from fgsched.accounting.process import AccountantProcess
from fgsched.config.load import Config
from fgsched.system.paths import Paths


def accountant_of(places: Paths, config: Config) -> AccountantProcess | None:
    """Return the accountant, which `Bookkeeper` starts in the first round; None without accounts.

    On two processors its imports would delay the first answer.
    """
    return AccountantProcess(places.accounts, keep_of(config)) if config.accounting else None


def keep_of(config: Config) -> Keep:
    """Return how long samples are kept."""
    return Keep(minutes=config.keep_minutes, hours=config.keep_hours, days=config.keep_days)
