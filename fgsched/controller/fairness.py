"""Fair queueing: choose the user who is served next, by measured service time.

Each user has a tag: the service time that the user has received, in seconds. The user with pending requests
and the smallest tag is served next. A user who becomes active again starts at the current virtual time, so
idle time is not saved. A user who received more than a fair share waits until the others have caught up.
"""

from collections.abc import Iterable


class Share:
    """The position of one user in the fair queue."""

    __slots__ = ("served",)

    def __init__(self) -> None:
        self.served = 0.0  # virtual seconds


class Turns:
    """The virtual clock of the fair queue: the tag of the user who was served last."""

    def __init__(self) -> None:
        self.now = 0.0

    def enter(self, share: Share) -> None:
        """Add a user who has become active again."""
        share.served = max(share.served, self.now)

    def next(self, shares: Iterable[Share]) -> Share | None:
        """Return the share to serve next, or None if there is none."""
        first = min(shares, key=_served, default=None)
        if first is not None:
            self.now = max(self.now, first.served)
        return first

    def is_settled(self, share: Share) -> bool:
        """Tell whether a user's record can be deleted: it shows no more service than the others'."""
        return share.served <= self.now


def _served(share: Share) -> float:
    return share.served
