"""Clients that wait for jobs to end."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fgsched.controller.answers import standing
from fgsched.controller.book import Book
from fgsched.controller.events import Effect
from fgsched.errors import Refused
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

    def __init__(self, send: Callable[[Connection, Effect], None]) -> None:
        """`send(connection, effect)`: does it, and minds what that did to the connection."""
        self._send = send
        self._waiters: list[_Waiter] = []
        self._looked_at: tuple[int, int] = (0, 0)  # the book, and its revision, that was told of last
        self._next = 0.0  # when it may be told again
        self.delay: float | None = None  # seconds until there is something to tell; None: nothing is

    def add(self, connection: Connection, jobs: Iterable[Job], arguments: dict[str, Any]) -> None:
        """`jobs`: as they stand now."""
        self._waiters = [one for one in self._waiters if not one.connection.is_closed]
        if any(one.connection is connection for one in self._waiters):
            raise Refused("this connection waits already", "Wait for other jobs on another one.")
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
        left = self._next - now
        self.delay = left if 0 < left <= _BETWEEN else 0.0  # more than that: the clock was set back
        if self.delay:
            return
        self.delay, self._looked_at, self._next = None, here, now + _BETWEEN
        for waiter in curious:
            news = _progress(waiter, book.jobs)
            if news != waiter.told:
                waiter.told = news
                self._send(waiter.connection, partial(waiter.connection.tell, news))

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
        answer = {"jobs": list(waiter.over.values())}
        self._send(waiter.connection, partial(waiter.connection.succeed, answer))
        return True


def _progress(waiter: _Waiter, jobs: Mapping[int, Job]) -> dict[str, int]:
    waiting = sum(1 for one in waiter.open if one in jobs and jobs[one].state is JobState.PENDING)
    return {"done": len(waiter.over), "running": len(waiter.open) - waiting, "pending": waiting}
