"""How a job is held to its share of device memory: the tiers there are, and which one a job gets."""

from collections.abc import Container

from fgsched.domain.errors import Refused
from fgsched.domain.states import Tier

HOOKED = frozenset({Tier.DRIVER.value, Tier.SHIM.value})
WORDS = tuple(tier.value for tier in Tier)


def check_tier(asked: str, allowed: Container[str], best: str) -> None:
    """Refuse a tier that the site does not allow, or that this host does not have. "": the best there is."""
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
    """The tier of a job that was given cards."""
    return asked or best


def is_hooked(tier: str, *, has_cards: bool) -> bool:
    """Whether the hook is preloaded. A job without cards has it too: it refuses whatever is taken."""
    return tier in HOOKED or not has_cards
