"""Index the conditions of eligibility of pending jobs: begin times, dependencies, array limits.

At the end of a job only its dependants are examined. A heap of times has the jobs that become eligible
without an event.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from msgspec import Struct, field

from fgsched.domain.job import Job
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.arrays import bits_from, bits_of, lowest
from fgsched.lifecycle.dependencies import parse_dependency

_Key = tuple[int, int | None]  # (job, None), (array, None) or (array, task)


class Array(Struct):
    """An open array. Its rest is the row of all tasks that have no separate row yet."""

    rest: int = 0  # its tasks without a row of their own, as bits
    open: int = -1  # tasks of the rest whose counterpart in another array has completed, as bits
    throttle: int = 0  # maximum of running tasks; 0: no limit
    rows: set[int] = field(default_factory=set)  # ids of its open rows
    waiting: set[int] = field(default_factory=set)  # ids of its pending rows
    holding: int = 0  # number of its rows with allocations

    @property
    def room(self) -> int:
        """How many more tasks may run."""
        return self.throttle - self.holding if self.throttle else 1 << 30


class Arrays:
    """The index of open arrays. `made(array)` returns the indices of the tasks that have rows."""

    def __init__(self, made: Callable[[int], Iterable[int]] = lambda array: ()) -> None:
        self._made = made
        self._arrays: dict[int, Array] = {}

    def get(self, array: int) -> Array | None:
        return self._arrays.get(array)

    def room(self, array: int) -> int:
        """Return how many more tasks of an array may run; 0 if it is not open."""
        it = self._arrays.get(array)
        return it.room if it is not None else 0

    @property
    def pending(self) -> int:
        """Return the number of pending tasks of all arrays."""
        return sum(array.rest.bit_count() for array in self._arrays.values())

    def put(self, before: Job | None, job: Job) -> None:
        """Take in the state of a row."""
        it = self._arrays.get(job.array)
        if it is None:
            if job.state.is_final:
                return
            it = self._arrays[job.array] = Array()
        if job.is_rest and before is None:
            it.rest = bits_of(job.request.array) & ~bits_from(self._made(job.array))
        if "aftercorr" not in job.depends:
            it.open = it.open if not job.is_rest else -1
        elif job.is_rest and (before is None or "aftercorr" not in before.depends):
            it.open = 0
        it.throttle = job.request.throttle
        it.holding += job.state.holds - (before is not None and before.state.holds)
        (it.waiting.add if job.state is JobState.PENDING else it.waiting.discard)(job.id)
        if not job.state.is_final:
            it.rows.add(job.id)
            return
        it.rows.discard(job.id)
        if job.is_rest:
            it.rest = 0
        if not it.rows:
            del self._arrays[job.array]

    def take(self, array: int, task: int) -> bool:
        """Remove a task from the rest, since it gets its own row; return whether the rest is empty then."""
        it = self._arrays[array]
        it.rest &= ~(1 << task)
        return not it.rest

    def next_task(self, array: int) -> int | None:
        """Return the lowest task of the rest that may start; None if there is none."""
        it = self._arrays[array]
        return lowest(it.rest & it.open) if it.rest & it.open else None

    def ready(self, job: Job) -> int:
        """Return the number of tasks of a pending row that may start now."""
        it = self._arrays[job.array]
        return max(0, min(it.room, (it.rest & it.open).bit_count() if job.is_rest else 1))


class WaitIndex:
    """The index of pending jobs. It is derived from the jobs that were passed to `put`."""

    def __init__(self, arrays: Arrays, jobs: Callable[[], Iterable[Job]] = lambda: ()) -> None:
        """`jobs` returns all open jobs."""
        self.arrays = arrays
        self._jobs = jobs
        self.now = 0.0
        self.stirred: set[int] = set()  # jobs whose dependency is to be evaluated
        self.conditions: Counter[int] = Counter()  # uid -> conditions of the user's pending jobs
        self.corresponding: set[tuple[int, int | None]] = set()  # (dependent job, task; None: all tasks)
        self._timers: list[tuple[float, int]] = []
        self._rung: set[tuple[float, int]] = set()  # the timers that `ring` set
        self._dependants: dict[_Key, set[int]] = {}
        self._same: dict[tuple[int, str], set[int]] | None = (
            None  # (uid, name) -> open jobs; None: not needed yet
        )
        self._single: dict[
            tuple[int, str], set[int]
        ] = {}  # (uid, name) -> pending jobs with the dependency singleton

    # -- changes --------------------------------------------------------------------------------

    def put(self, before: Job | None, job: Job) -> None:
        """Take in the state of a job."""
        waits = job.state is JobState.PENDING
        if before is None or before.depends != job.depends or waits != (before.state is JobState.PENDING):
            self._index(before, job)
        if before is None or before.request is not job.request or job.state.is_final:
            self._name(before, job)
        began = job.state.holds and not (before and before.state.holds)
        if began or job.state.is_final:
            self._stir(job)
        if waits:
            for when in (opens(job), last_start(job) if job.request.deadline else 0.0):
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
        terms = parse_dependency(job.depends).terms
        self.conditions[job.uid] += len(terms) if present else -len(terms)
        for term in terms:
            if term.kind == "singleton":
                held = self._single.setdefault((job.uid, job.request.name), set())
            else:
                held = self._dependants.setdefault((term.job, term.task), set())
            (held.add if present else held.discard)(job.id)

    def _name(self, before: Job | None, job: Job) -> None:
        """Index a job by name. At its end the first singleton job of that name is evaluated."""
        key = (job.uid, job.request.name)
        if job.state.is_final and (single := self._single.get(key)):
            self.stirred.add(min(single))
        if self._same is None:
            return
        if before is not None and before.request.name != job.request.name:
            self._same.get((job.uid, before.request.name), set()).discard(job.id)
        if not job.state.is_final:
            self._same.setdefault(key, set()).add(job.id)
            return
        others = self._same.get(key, set())
        others.discard(job.id)
        if not others:
            self._same.pop(key, None)

    def _stir(self, job: Job) -> None:
        """Mark the dependants of a job that has started or ended for evaluation."""
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
        """Return whether a task can decide a dependency on its array: it failed, or it was the last one."""
        array = self.arrays.get(job.array)
        if job.state.is_final:
            return array is None or job.state is not JobState.COMPLETED
        return array is not None and not array.rest

    def is_awaited(self, job_id: int, array: int, task: int | None) -> bool:
        """Tell whether a pending job depends on a job, on its array or on this task of it."""
        if self._dependants.get((job_id, None)):
            return True
        return bool(array and (self._dependants.get((array, None)) or self._dependants.get((array, task))))

    def same(self, job: Job) -> Iterable[int]:
        """Return the ids of the open jobs with the name and the user of a job.

        The index of names is made at the first call: few queues have a dependency of this kind.
        """
        if self._same is None:
            self._same = {}
            for one in self._jobs():
                self._same.setdefault((one.uid, one.request.name), set()).add(one.id)
        return self._same.get((job.uid, job.request.name), ())

    # -- time -----------------------------------------------------------------------------------

    def ring(self, when: float, job_id: int) -> None:
        """Schedule the next examination of a job (seconds since the epoch); once, if it is repeated."""
        if (when, job_id) not in self._rung:
            self._rung.add((when, job_id))
            heappush(self._timers, (when, job_id))

    def due(self, now: float) -> list[int]:
        """Return and remove the jobs that are due for examination. `now`: seconds since the epoch."""
        self.now = now
        found = []
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)
            self._rung.discard(timer)
            found.append(timer[1])
        return found

    @property
    def next_due(self) -> float | None:
        """The time of the next examination of a job (seconds since the epoch), or None."""
        return self._timers[0][0] if self._timers else None

    # -- answers --------------------------------------------------------------------------------

    def closed(self, job: Job) -> Reason | None:
        """Return why a pending job is not considered; None if it is."""
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
    """Return before when a job must not start (seconds since the epoch)."""
    return max(float(job.request.begin), job.not_before)


def eligible(job: Job) -> float | None:
    """Return the time since which a job is neither held nor dependent (seconds since the epoch), or None."""
    since = max(job.submitted_at, opens(job), job.opened_at)
    is_kept = not job.attempt and bool(job.held or job.depends)
    return None if is_kept or (job.ended_at is not None and since > job.ended_at) else since


def last_start(job: Job) -> float:
    """Return the latest start with which a job can end before its deadline (seconds since the epoch)."""
    return float(job.request.deadline - job.request.time_limit)
