"""Clients that wait for jobs to end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fgsched.controller.answers import standing
from fgsched.controller.book import Book
from fgsched.model import Job, JobState
from fgsched.server import Connection

_BETWEEN = 0.5  # seconds between two lines of progress


@dataclass(slots=True)
class _Waiter:
    connection: Connection
    open: set[int]
    any_will_do: bool
    wants_progress: bool
    over: dict[int, dict[str, Any]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)  # the last news it got


class Waiters:
    """Each is answered once, when the last of its jobs is over; or, if it asked so, the first."""

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []
        self._looked_at: tuple[int, int] = (0, 0)  # the book, and its revision, that was told of last
        self._next = 0.0  # when it may be told again
        self.delay: float | None = None  # seconds until there is something to tell; None: nothing is

    def add(self, connection: Connection, jobs: Iterable[Job], arguments: dict[str, Any]) -> None:
        """`jobs`: as they stand now."""
        known = list(jobs)
        waiter = _Waiter(
            connection,
            {job.id for job in known if not job.state.is_final},
            bool(arguments.get("any")),
            bool(arguments.get("progress")),
            {job.id: standing(job) for job in known if job.state.is_final},
        )
        if not self._answered(waiter):
            self._waiters.append(waiter)

    def over(self, jobs: Iterable[Job]) -> None:
        """These jobs have ended."""
        ended = {job.id: job for job in jobs}
        if ended and self._waiters:
            self._waiters = [one for one in self._waiters if not self._advance(one, ended)]

    def tell(self, book: Book, now: float) -> None:
        """Tell those who asked for it how far their jobs have come: only news, and seldom."""
        curious = [waiter for waiter in self._waiters if waiter.wants_progress]
        here = (id(book), book.revision)
        if not curious or (here == self._looked_at and all(waiter.told for waiter in curious)):
            self.delay = None
            return
        self.delay = max(0.0, self._next - now)
        if self.delay:
            return
        self.delay, self._looked_at, self._next = None, here, now + _BETWEEN
        for waiter in curious:
            news = _progress(waiter, book.jobs)
            if news != waiter.told:
                waiter.told = news
                waiter.connection.tell(news)

    def _advance(self, waiter: _Waiter, ended: dict[int, Job]) -> bool:
        """True once the waiter needs nothing more."""
        if waiter.connection.is_closed:
            return True
        for job_id in waiter.open & ended.keys():
            waiter.open.discard(job_id)
            waiter.over[job_id] = standing(ended[job_id])
        return self._answered(waiter)

    def _answered(self, waiter: _Waiter) -> bool:
        if waiter.open and not (waiter.any_will_do and waiter.over):
            return False
        waiter.connection.succeed({"jobs": list(waiter.over.values())})
        return True


def _progress(waiter: _Waiter, jobs: Mapping[int, Job]) -> dict[str, int]:
    waiting = sum(1 for one in waiter.open if one in jobs and jobs[one].state is JobState.PENDING)
    return {"done": len(waiter.over), "running": len(waiter.open) - waiting, "pending": waiting}
