"""Compute the resource limits of a job: as submitted, within the limits of the user's login."""

from collections.abc import Iterable

UNLIMITED = -1
Limits = dict[int, tuple[int, int]]  # resource -> (soft, hard)


def lower(one: int, other: int) -> int:
    """Return the lower of two limits, where a negative number is unlimited."""
    return max(one, other) if UNLIMITED in (one, other) else min(one, other)


def merge_limits(login: Limits, wanted: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return the limits of a job: those of the request, none above those of the login."""
    asked = {number: (soft, hard) for number, soft, hard in wanted}
    found = []
    for number, (soft, hard) in sorted(login.items()):
        own_soft, own_hard = asked.get(number, (soft, hard))
        most = lower(own_hard, hard)
        found.append((number, lower(own_soft, most), most))
    return tuple(found)
