"""Limit the bytes of scripts and environments of each user's open jobs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fgsched.domain.errors import Refused
from fgsched.domain.units import format_mebibytes
from fgsched.store import NewJob, Store

_REST = 20  # times as long as counting took is waited before it is counted again: 5 % of the time at most


@dataclass(slots=True)
class _Count:
    """The bytes of one user, as an upper bound: recently ended jobs are still counted."""

    size: int
    again_at: float = 0.0


class MaterialQuota:
    """Counts submitted bytes. Ended jobs are subtracted only when the quota seems to be exceeded."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._counts: dict[int, _Count] = {}

    def check(self, uid: int, jobs: Sequence[NewJob], most: int) -> int:
        """Return the bytes that these jobs add. Raises Refused above `most` bytes (0 is no limit)."""
        texts = {id(text): text for job in jobs for text in (job.script, job.environment)}.values()
        size = sum(map(len, texts))
        if not most:
            return size
        count = self._counts.get(uid) or self._counted(uid)
        if count.size + size > most:
            size = sum(len(text) for text in texts if not self._store.idle.has(uid, text))
        if count.size + size > most and self._clock() >= count.again_at:
            count = self._counted(uid)
        if count.size + size > most:
            raise Refused(
                f"scripts and environments of your jobs have {format_mebibytes(count.size)},"
                f" this submission adds {format_mebibytes(size)}, and {format_mebibytes(most)} is the limit",
                "Wait until some jobs are over, cancel some, or keep data in files instead of scripts.",
            )
        return size

    def add(self, uid: int, size: int) -> None:
        """Count `size` bytes as submitted."""
        if count := self._counts.get(uid):
            count.size += size

    def _counted(self, uid: int) -> _Count:
        begun = self._clock()
        size = sum(self._store.idle.open_material(uid).values())
        ended = self._clock()
        count = self._counts[uid] = _Count(size, ended + _REST * (ended - begun))
        return count
