"""Clients that wait for jobs to end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fgsched.controller.answers import standing
from fgsched.model import Job
from fgsched.server import Connection


@dataclass(slots=True)
class _Waiter:
    connection: Connection
    open: set[int]
    any_will_do: bool
    wants_progress: bool
    over: dict[int, dict[str, Any]] = field(default_factory=dict)


class Waiters:
    """Each is answered once, when the last of its jobs is over; or, if it asked so, the first."""

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []

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

    def moved(self, counts: dict[int, str]) -> None:
        """Tell those who asked for it how far their jobs have come. `counts`: state by open job."""
        for waiter in self._waiters:
            if waiter.wants_progress:
                waiter.connection.tell(_progress(waiter, counts))

    @property
    def wants_progress(self) -> bool:
        return any(waiter.wants_progress for waiter in self._waiters)

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


def _progress(waiter: _Waiter, states: dict[int, str]) -> dict[str, int]:
    found = {"done": len(waiter.over), "running": 0, "pending": 0}
    for job_id in waiter.open:
        found["pending" if states.get(job_id) == "PENDING" else "running"] += 1
    return found
