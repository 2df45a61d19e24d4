"""Delete data of ended jobs that is no longer needed: scripts, environments, submission keys, free pages.

It runs in small transactions while the controller is idle, and completely after some time on a host that is
never idle.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from fgsched.domain.errors import StorageError
from fgsched.store import StorageBroken, Store
from fgsched.store.blobs import Unused

log = logging.getLogger("fgsched.controller")
FOREVER = -1  # as a setting: nothing is removed for its age
_NOTED = 100  # ended jobs of a step
_PRUNED = 50  # scripts and environments of a step
_BYTES = 4 << 20  # of a step
_PAGES = 128  # that a step gives back
_SUBMISSIONS = 500  # keys that a step looks at
_KEYS = 86_400.0  # seconds that the key of a submission is known: longer than any command repeats it
_STEP = 0.05  # seconds between two steps
_ROUND = 60.0  # seconds between two rounds
_SOON = 1.0  # seconds from an end to the next round
_LONGEST = 86_400.0  # seconds until the next look where nothing is due: clocks are set


class Keep(NamedTuple):
    """What is kept of ended jobs."""

    seconds: int  # since the end; FOREVER
    size: int  # bytes of each user


class Pruner:
    """`revision()` changes with each change of the queue; other work then has priority."""

    def __init__(self, store: Store, keep: Keep, revision: Callable[[], int]) -> None:
        self.keep = keep
        self._store, self._revision = store, revision
        self._seen = -1
        self._due: float | None = 0.0
        self._since = 0.0  # when the round began
        self._whole_at = 0.0  # when the next round looks at quotas and keys as well: that takes longer
        self._place: tuple[int, str] | None = (-1, "")  # in the keys of submissions; None: at their end
        self._removed: list[Unused] = []

    def due(self, now: float) -> float | None:
        """Return the seconds until the next step."""
        return None if self._due is None else max(0.0, self._due - now)

    def ended(self, now: float) -> None:
        """Note that a job has ended."""
        soon = now + _SOON
        if self._due is None or self._due > soon:
            self._due = soon

    def obey(self, keep: Keep, now: float) -> None:
        """Use changed settings."""
        self.keep = keep
        self.ended(now)

    def step(self, now: float, wall: float) -> None:
        """Do a part if it is due. `now` is in monotonic seconds, `wall` in epoch seconds."""
        if self._due is None or now < self._due:
            return
        self._since = self._since or now
        if self._is_busy() and now - self._since < _ROUND:
            self._due = now + _SOON
            return
        self._due = now + _ROUND  # where this fails
        try:
            with self._store.write():
                has_more = self._work(wall, is_whole=now >= self._whole_at)
        except StorageBroken:
            raise
        except StorageError as error:  # a full disk is reported to jobs and requests
            log.warning("nothing can be removed from the queue now: %s", error.cause)
            return
        if has_more:
            self._due = now + _STEP
            return
        self._round_over(now, wall)

    def _is_busy(self) -> bool:
        before, self._seen = self._seen, self._revision()
        return before != self._seen

    def _work(self, wall: float, *, is_whole: bool) -> bool:
        """Do one step; return whether more remains."""
        idle = self._store.idle
        if idle.note(_NOTED):
            return True
        unused = idle.since(wall - self.keep.seconds, _PRUNED) if self.keep.seconds != FOREVER else []
        if is_whole and not unused:
            unused = idle.beyond(self.keep.size, _PRUNED)
        if unused:
            self._removed += idle.prune(unused, _BYTES)
            return True
        if is_whole and self._place is not None:
            self._place = idle.forget_submissions(self._place, wall - _KEYS, _SUBMISSIONS)
            return True
        return idle.shrink(_PAGES)

    def _round_over(self, now: float, wall: float) -> None:
        if self._removed:
            size = sum(one.size for one in self._removed) / (1 << 20)
            log.info("removed scripts and environments of ended jobs: %d, %.1f MiB", len(self._removed), size)
        self._removed, self._place, self._since = [], (-1, ""), 0.0
        if now < self._whole_at:
            self._due = self._whole_at
            return
        self._whole_at = now + _ROUND
        first = None if self.keep.seconds == FOREVER else self._store.idle.first()
        due = _LONGEST if first is None else first + self.keep.seconds - wall
        self._due = now + min(_LONGEST, max(_ROUND, due))
