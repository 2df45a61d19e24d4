"""Enforcement of GPU memory: the levels, and the level of a job."""

from collections.abc import Container

from fgsched.domain.errors import Refused
from fgsched.domain.states import Tier

HOOKED = frozenset({Tier.DRIVER.value, Tier.SHIM.value})
WORDS = tuple(tier.value for tier in Tier)


def check_tier(asked: str, allowed: Container[str], best: str) -> None:
    """Check a requested enforcement level; "" is the strongest level of the host.

    Raises:
        Refused: the site does not permit the level, or the host does not support it.
    """
    if not asked:
        return
    if asked not in allowed:
        raise Refused(
            f"--tier={asked}: this site does not allow it",
            "Its administrator can: tiers in [fence] of the settings.",
        )
    if asked == Tier.DRIVER.value and best != asked:
        raise Refused(
            "--tier=driver: the driver of this host does not limit device memory by cgroup",
            "fgsched doctor --enforcement tells what holds here; leave --tier out to get the best of it.",
        )


def tier_of(asked: str, best: str) -> str:
    """Return the enforcement level of a job with GPUs."""
    return asked or best


def is_hooked(tier: str, *, has_cards: bool) -> bool:
    """Tell whether the hook is preloaded. It is also used for jobs without GPUs, to refuse all GPU memory."""
    return tier in HOOKED or not has_cards
