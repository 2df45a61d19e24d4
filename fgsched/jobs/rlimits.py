"""The resource limits of a job: as they were submitted, within those of the user's login."""

from collections.abc import Iterable

UNLIMITED = -1
Limits = dict[int, tuple[int, int]]  # resource -> (soft, hard)


def lower(one: int, other: int) -> int:
    """The lower of two limits."""
    return max(one, other) if UNLIMITED in (one, other) else min(one, other)


def merged(login: Limits, wanted: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """The limits of a job: what the request names as it was submitted, none above those of the login."""
    asked = {number: (soft, hard) for number, soft, hard in wanted}
    found = []
    for number, (soft, hard) in sorted(login.items()):
        own_soft, own_hard = asked.get(number, (soft, hard))
        most = lower(own_hard, hard)
        found.append((number, lower(own_soft, most), most))
    return tuple(found)
