"""Which user is served next: fair queueing by measured service time.

Each user has a tag: the service, in seconds, that the user has received. The user with work and the smallest
tag is served next. A user who becomes active again starts at the present virtual time, so idle time is not
saved up; a user who received more than a share waits until the others have caught up.
"""

from collections.abc import Iterable


class Share:
    """One user's position in the queueing."""

    __slots__ = ("served",)

    def __init__(self) -> None:
        self.served = 0.0  # virtual seconds


class Turns:
    """The virtual clock of the queueing: the tag of the user who was served last."""

    def __init__(self) -> None:
        self.now = 0.0

    def enter(self, share: Share) -> None:
        """A user without work has work again."""
        share.served = max(share.served, self.now)

    def next(self, shares: Iterable[Share]) -> Share | None:
        """The one of these to serve next; None if there is none."""
        first = min(shares, key=_served, default=None)
        if first is not None:
            self.now = max(self.now, first.served)
        return first

    def is_settled(self, share: Share) -> bool:
        """Whether forgetting this user would lose nothing: no service beyond the others' is recorded."""
        return share.served <= self.now


def _served(share: Share) -> float:
    return share.served
