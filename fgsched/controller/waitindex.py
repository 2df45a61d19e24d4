"""Index what keeps pending jobs from being eligible: time, other jobs, limits of arrays.

An index from each job to its dependants makes the end of a job cost only these. A heap of times tells when
something becomes due.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from fgsched.controller.arrays import Arrays
from fgsched.domain.job import Job, JobState, Reason
from fgsched.jobs.dependencies import parse_dependency

_Key = tuple[int, int | None]  # (job, None), (array, None) or (array, task)


class WaitIndex:
    """Derived entirely from the jobs that it is given."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.now = 0.0
        self.stirred: set[int] = set()  # whose dependency is to be looked at
        self.corresponding: set[tuple[int, int | None]] = set()  # (who depends, on which task; None: all)
        self._timers: list[tuple[float, int]] = []
        self._dependants: dict[_Key, set[int]] = {}
        self._same: dict[tuple[int, str], set[int]] = {}  # (uid, name) -> open jobs
        self._single: dict[tuple[int, str], set[int]] = {}  # (uid, name) -> those that must be alone

    # -- what happens ---------------------------------------------------------------------------

    def put(self, before: Job | None, job: Job) -> None:
        """Store the current state of a job."""
        waits = job.state is JobState.PENDING
        if before is None or before.depends != job.depends or waits != (before.state is JobState.PENDING):
            self._index(before, job)
        if before is None or before.request is not job.request or job.state.is_final:
            self._name(before, job)
        began = job.state.holds and not (before and before.state.holds)
        if began or job.state.is_final:
            self._stir(job)
        if waits:
            for when in self._times(job):
                if when > self.now:
                    heappush(self._timers, (when, job.id))

    def _index(self, before: Job | None, job: Job) -> None:
        if before is not None and before.depends and before.state is JobState.PENDING:
            self._register(before, False)
        if job.depends and job.state is JobState.PENDING:
            self._register(job, True)
            if job.reason is not Reason.DEPENDENCY_NEVER:
                self.stirred.add(job.id)

    def _register(self, job: Job, present: bool) -> None:
        for term in parse_dependency(job.depends).terms:
            if term.kind == "singleton":
                held = self._single.setdefault((job.uid, job.request.name), set())
            else:
                held = self._dependants.setdefault((term.job, term.task), set())
            (held.add if present else held.discard)(job.id)

    def _name(self, before: Job | None, job: Job) -> None:
        """Update the jobs with the same name; the first `singleton` job may be next."""
        key = (job.uid, job.request.name)
        if before is not None and before.request.name != job.request.name:
            self._same.get((job.uid, before.request.name), set()).discard(job.id)
        if not job.state.is_final:
            self._same.setdefault(key, set()).add(job.id)
            return
        others = self._same.get(key, set())
        others.discard(job.id)
        if single := self._single.get(key):
            self.stirred.add(min(single))
        if not others:
            self._same.pop(key, None)

    def _stir(self, job: Job) -> None:
        """Mark the dependants of a job that started or ended; of an array only where it matters."""
        if job.array:
            self.stirred |= (
                self._dependants.get((job.array, job.task), set()) if job.task is not None else set()
            )
            whole = self._dependants.get((job.array, None), set())
            if whole and self._matters(job):
                self.stirred |= whole
            if whole and job.state.is_final:
                self.corresponding |= {(one, job.task) for one in whole}
        if job.id != job.array:
            self.stirred |= self._dependants.get((job.id, None), set())

    def _matters(self, job: Job) -> bool:
        """Tell whether a task was the last to end or to start, or failed."""
        array = self.arrays.get(job.array)
        if job.state.is_final:
            return array is None or job.state is not JobState.COMPLETED
        return array is not None and not array.rest

    def same(self, job: Job) -> Iterable[int]:
        """Return the open jobs with this job's name and user."""
        return self._same.get((job.uid, job.request.name), ())

    # -- time -----------------------------------------------------------------------------------

    def _times(self, job: Job) -> Iterable[float]:
        """Yield the times at which the eligibility of a pending job changes."""
        if opens(job) > 0:
            yield opens(job)
        if job.request.deadline:
            yield last_start(job)

    def ring(self, when: float, job_id: int) -> None:
        """Examine a job at this time (epoch seconds)."""
        heappush(self._timers, (when, job_id))

    def due(self, now: float) -> list[int]:
        """Return the jobs whose time has come at `now` (epoch seconds)."""
        self.now = now
        found = []
        while self._timers and self._timers[0][0] <= now:
            found.append(heappop(self._timers)[1])
        return found

    @property
    def next_due(self) -> float | None:
        """Return when the next job is due (epoch seconds), or None."""
        return self._timers[0][0] if self._timers else None

    # -- what they say --------------------------------------------------------------------------

    def closed(self, job: Job) -> Reason | None:
        """Return why a pending job is not eligible, or None."""
        if job.reason is Reason.DEPENDENCY_NEVER:
            return Reason.DEPENDENCY_NEVER
        if job.depends and not (job.is_rest and self._only_corresponds(job)):
            return Reason.DEPENDENCY
        if opens(job) > self.now:
            return Reason.HOST_SHORTAGE if job.reason is Reason.HOST_SHORTAGE else Reason.BEGIN_TIME
        if job.array and not self.arrays.ready(job):
            array = self.arrays.get(job.array)
            return Reason.ARRAY_TASK_LIMIT if array and array.room <= 0 else Reason.DEPENDENCY
        return None

    def _only_corresponds(self, job: Job) -> bool:
        dependency = parse_dependency(job.depends)
        return not dependency.one_will_do and all(term.kind == "aftercorr" for term in dependency.terms)


def opens(job: Job) -> float:
    """Return the earliest start of a job (epoch seconds), whatever is free."""
    return max(float(job.request.begin), job.not_before)


def eligible(job: Job) -> float | None:
    """Return since when a job is eligible (epoch seconds), or None if it is not."""
    since = max(job.submitted_at, opens(job), job.opened_at)
    is_kept = not job.attempt and bool(job.held or job.depends)
    return None if is_kept or (job.ended_at is not None and since > job.ended_at) else since


def last_start(job: Job) -> float:
    """Return the latest start with which a job can still end before its deadline (epoch seconds)."""
    return float(job.request.deadline - job.request.time_limit)
