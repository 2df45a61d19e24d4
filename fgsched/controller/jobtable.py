"""Keep all open jobs in memory, equal to their rows in the store and indexed for the planner."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import Demand, Gpu, Hold, HostLimits, Job, Preemption, Readings
from fgsched.domain.policy import MAIN
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Shortfall
from fgsched.lifecycle.arrays import bits_from, bits_of, lowest
from fgsched.lifecycle.dependencies import parse_dependency
from fgsched.scheduling.limits import Key, LimitedUser, counts_in
from fgsched.scheduling.placement import HostRoom, Recent, Room, rooms
from fgsched.scheduling.planner import Plan, Queue, QueuedJob, Snapshot
from fgsched.scheduling.queue import JobClass, PriorityBasis
from fgsched.scheduling.reservations import Running
from fgsched.store import GpuAllocation

_NOTHING = Demand(cpus=0)


class Slots:
    """Assign slot numbers to running jobs: each job gets the lowest free number."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._returned: list[
            int
        ] = []  # heap of numbers below `_next` that were returned; some are taken again
        self._next = 0

    def take(self, number: int) -> None:
        self._taken.add(number)
        for skipped in range(self._next, number):
            heappush(self._returned, skipped)
        self._next = max(self._next, number + 1)

    def release(self, number: int) -> None:
        if number in self._taken:
            self._taken.discard(number)
            heappush(self._returned, number)

    def lowest(self) -> int:
        while self._returned and self._returned[0] in self._taken:
            heappop(self._returned)
        return self._returned[0] if self._returned else self._next


def partitions_of(job: Job) -> tuple[str, ...]:
    """Return the partitions in which a pending job may start."""
    return tuple(job.request.partition.split(",")) if job.request.partition else (MAIN,)


def class_of(job: Job) -> JobClass:
    """Return the class of a pending job; the planner treats the jobs of one class alike."""
    request = job.request
    limited_user, nice = owner_of(job), request.nice
    return JobClass(
        request.demand, request.time_limit, partitions_of(job), limited_user, nice, request.reservation
    )


def pending(job: Job, count: int = 1) -> QueuedJob:
    """Convert a pending job for the planner; the row of an array represents `count` jobs."""
    request = job.request
    since = max(job.submitted_at, request.begin)  # the time before --begin is no age
    return QueuedJob(
        job.id,
        request.demand,
        request.time_limit,
        count,
        partitions=partitions_of(job),
        owner=owner_of(job),
        nice=request.nice,
        # A task with a separate row is ahead of the rest of its array.
        since=since if job.task is None else math.nextafter(since, 0),
        reservation=request.reservation,
    )


def owner_of(job: Job) -> LimitedUser:
    """Return the owner whose limits and fair share apply to a job."""
    return LimitedUser(job.user, job.request.account, job.request.qos)


def demand_of(job: Job) -> Demand:
    """Return the host resources of a running job; a job suspended by preemption uses no CPUs."""
    return replace(job.request.demand, cpus=0) if job.is_suspended_by_preemption else job.request.demand


class RowOwner(NamedTuple):
    """Whose pending rows are counted, and in which partitions they wait."""

    partitions: str  # joined by commas
    uid: int
    user: str


class RunningJobs:
    """Convert the jobs with allocations for the planner, once for each change of a job."""

    def __init__(self) -> None:
        self._known: dict[int, Running] = {}

    def changed(self, job_id: int) -> None:
        """Convert a changed job again."""
        self._known.pop(job_id, None)

    def of(self, jobs: Iterable[Job], now: float) -> list[Running]:
        """Return jobs in the planner's form. `now`: seconds since the epoch."""
        return [self._of(job, now) for job in jobs]

    def _of(self, job: Job, now: float) -> Running:
        earlier_run = self._known.get(job.id)
        if earlier_run is not None and earlier_run.until > now:
            return earlier_run
        run = _running(job, now)
        if run.until > now:  # the end of a late job, or of one being cleaned up, is always now
            self._known[job.id] = run
        return run

    def next_end(self, after: float) -> float | None:
        """Return the next expected end of a job behind `after` (both epoch seconds), or None."""
        ends = (job.until for job in self._known.values() if after < job.until < math.inf)
        return min(ends, default=None)


def _running(job: Job, now: float) -> Running:
    """Convert a job with its allocations; a completing job holds only its GPUs, for a short time."""
    if job.state is JobState.COMPLETING:
        return Running(_NOTHING, job.holds, now, *_whose(job))
    until = math.inf if job.deadline is None or job.state is JobState.SUSPENDED else max(now, job.deadline)
    if (order := job.ending_preemption) is not None:
        until = min(until, max(now, order.until))
    return Running(demand_of(job), job.holds, until, *_whose(job))


def _whose(job: Job) -> tuple[str, LimitedUser, int, str]:
    return job.partition, owner_of(job), job.id, job.request.reservation


def claims(queue: Queue, preemptions: Iterable[Preemption]) -> Counter[JobClass]:
    """Return how many pending jobs of each class have a room claim, the oldest claim first.

    `preemptions`: those whose claim is not used, in the order in which they were made. A job that has a claim
    is pending since it made that claim. So if it was preempted before, for a job that still has its own
    claim, that claim is older: the order of the claims is also the order in which these jobs have to start.
    """
    waiting = dict.fromkeys(
        preemption.by for preemption in sorted(preemptions, key=lambda preemption: preemption.at)
    )
    return Counter(kind for job_id in waiting if (kind := queue.kind(job_id)) is not None)


class JobTable:
    """The table of all open jobs. After a failed commit it is rebuilt from the store."""

    def __init__(
        self, jobs: Iterable[Job] = (), made_tasks: Callable[[int], Iterable[int]] = lambda array: ()
    ) -> None:
        """`made(array)` returns the indices of an array that have rows of their own."""
        self.jobs: dict[int, Job] = {}
        self.holding: dict[int, Job] = {}
        self.allocations: dict[int, tuple[GpuAllocation, ...]] = {}  # allocations of jobs
        self.aside: dict[int, Job] = {}  # jobs excluded after an error; they keep their allocations
        self.unreadable: set[int] = set()  # jobs with damaged rows, which are not started
        self.is_torn = False  # a `put` failed half-way: the indexes may contradict each other
        self.revision = 0  # changes with every change
        self._decided = Plan()
        self.arrays = Arrays(made_tasks)
        self.wait_index = WaitIndex(self.arrays, self.jobs.values)
        self._queue = Queue()
        self._slots = Slots()
        self._runs = RunningJobs()
        self._claims: dict[int, Preemption] = {}  # preempted job -> its preemption, whose claim is not used
        self._recent = Recent()
        self._queued: Counter[tuple[str, LimitedUser]] = Counter()  # pending jobs by partitions and owner
        self.pending_rows: Counter[RowOwner] = Counter()  # as fgq lists them: an array has one for its rest
        for job in jobs:
            self.put(job)

    def put(self, job: Job) -> None:
        """Take in the state of a job; a final state removes it."""
        self.revision, self.is_torn = self.revision + 1, True
        before, room = self.jobs.get(job.id), self.arrays.room(job.array) if job.array else 0
        waits = before is None or JobState.PENDING in (before.state, job.state)
        if before is None:
            self._recent.add(job.request.demand)
        else:
            self._runs.changed(job.id)
            self._count(before, -1)
        if job.state.is_final:
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
        if job.preemption is not None:
            self._note_claim(job, job.preemption)
        if job.state.holds:
            self.holding[job.id] = job
            self._slots.take(job.slot)
        elif was := self.holding.pop(job.id, None):
            self.allocations.pop(job.id, None)
            self._slots.release(was.slot)
        if job.array:
            self.arrays.put(before, job)
        self.wait_index.put(before, job)
        if waits:
            self._count(job, 1)
            self.offer(job)
        if job.array:
            self._offer_rest(job, room, is_new=before is None)
        self.is_torn = False

    def in_order(self) -> list[Job]:
        """Return the open jobs at this time, by id."""
        return sorted(self.jobs.values(), key=lambda job: job.id)

    def set_aside(self, job: Job) -> None:
        """Count the allocation of a job, and exclude the job from all other processing."""
        self.aside[job.id] = job
        if job.state.holds:
            self._slots.take(job.slot)

    def _note_claim(self, job: Job, preemption: Preemption) -> None:
        """Note the claim on the room of a job that is being preempted, or is pending again since."""
        waits_again = job.state is JobState.PENDING and bool(job.preempt_mode)
        if not preemption.used and (job.is_being_preempted or waits_again):
            self._claims[job.id] = preemption
        else:
            self._claims.pop(job.id, None)

    def claimed_by(self, job_id: int) -> list[tuple[Job, Preemption]]:
        """Return the jobs preempted for a job that still has its room claim, with their preemptions."""
        return [
            (self.jobs[preempted_id], preemption)
            for preempted_id, preemption in self._claims.items()
            if preemption.by == job_id
        ]

    def remove_task(self, array_row: Job, task: int) -> bool:
        """Remove a task, which gets its own row, from its array's row; return whether it was the last."""
        self._queued[array_row.request.partition, owner_of(array_row)] -= 1
        return self.arrays.remove_task(array_row.array, task)

    def named(self, number: int) -> Job | None:
        """Return an open job, or an open row of the array of this number, whose first row may have ended."""
        array = self.arrays.get(number)
        return self.jobs.get(number) or (self.jobs.get(min(array.rows)) if array else None)

    def tasks(self, job: Job) -> int:
        """Return the number of jobs that a row represents."""
        array = self.arrays.get(job.array) if job.is_rest else None
        return array.pending_bits.bit_count() if array else 1

    def offer(self, job: Job) -> None:
        """Add a pending job to the planner's queue if it is eligible."""
        is_ready = job.state is JobState.PENDING and not job.held and job.id not in self.unreadable
        if is_ready and self.wait_index.closed(job) is None:
            self._queue.add(pending(job, self.arrays.ready(job) if job.array else 1))
            return
        self._queue.remove(job.id)
        if is_ready and opens(job) > self.wait_index.now:  # again, if the clock was set back since
            self.wait_index.schedule(opens(job), job.id)

    def _offer_rest(self, job: Job, room: int, *, is_new: bool) -> None:
        """Update the other pending rows of an array in the planner's queue, if a changed row affects them.

        A new row takes a task from the array's row. What may run of the array's row depends on the room; of
        the others, whether there is room. `room`: before the change.
        """
        array = self.arrays.get(job.array)
        if array is None or (array.room == room and not is_new):
            return
        other_rows = array.waiting if (array.room > 0) != (room > 0) else array.waiting & {job.array}
        for other in other_rows - {job.id}:
            self.offer(self.jobs[other])

    def _count(self, job: Job, change: int) -> None:
        if job.state is JobState.PENDING:
            self._queued[job.request.partition, owner_of(job)] += change * self.tasks(job)
            self.pending_rows[RowOwner(job.partition or job.request.partition, job.uid, job.user)] += change

    def waiting_in(self, key: Key) -> int:
        """Return the number of pending jobs in one scope of limits."""
        return sum(
            count
            for (names, limited_user), count in self._queued.items()
            if counts_in(key, names, limited_user)
        )

    def owners(self) -> set[LimitedUser]:
        """Return the owners of the open jobs, without examining the whole queue."""
        waiting = {limited_user for (_, limited_user), count in self._queued.items() if count > 0}
        return waiting | {owner_of(job) for job in self.holding.values()}

    def open_of(self, user: str) -> int:
        """Return the number of open jobs of a user, without examining the whole queue."""
        waiting = sum(
            [count for (_, limited_user), count in self._queued.items() if limited_user.user == user]
        )
        return waiting + sum([job.user == user for job in self.holding.values()])

    def plan(self, gpus: Iterable[Gpu], readings: Readings, *, limits: HostLimits, now: float) -> Plan:
        """Plan which jobs start now."""
        self._decided = decided = self.snapshot(gpus, readings, limits=limits, now=now).plan()
        return decided

    def snapshot(
        self, gpus: Iterable[Gpu], readings: Readings, *, limits: HostLimits, now: float
    ) -> Snapshot:
        """Return the input of a plan. It shares the queue of this table."""
        running = self._runs.of(self.holding.values(), now)
        self._queue.claims = claims(self._queue, self._claims.values())
        return Snapshot(self._queue, running, self.rooms(gpus, readings), self.host(limits), limits, now)

    @property
    def is_contended(self) -> bool:
        """Whether eligible jobs of several classes wait, so that one may be waiting for another."""
        return self._queue.kinds > 1

    def next_end(self, after: float) -> float | None:
        """Return when a running job is next late (seconds since the epoch), or None.

        A job that has not ended by then moves the backfill reservations that count on its end.
        """
        return self._runs.next_end(after) if self.is_contended else None

    def running(self, job: Job, now: float) -> object:
        """Return a job that holds something, for the planner."""
        return self._runs.of([job], now)

    @property
    def order(self) -> PriorityBasis:
        """The order of the pending jobs."""
        return self._queue.order

    def reorder(self, order: PriorityBasis) -> None:
        self._queue.reorder(order)

    def count_again(self, order: PriorityBasis) -> None:
        """Use new usage figures that do not change the order of the queue."""
        self._queue.order = order

    def pick(self, demand: Demand) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the lowest free indices of the site's own resources for a job."""
        resources = []
        for name, count in demand.resources:
            resource = self.order.policy.resource(name)
            index_tuples = (dict(job.resources).get(name, ()) for job in self._busy())
            used = {index for indices in index_tuples for index in indices}
            free = [index for index in range(resource.count if resource else 0) if index not in used]
            resources.append((name, tuple(free[:count])))
        return tuple(resources)

    def _busy(self) -> list[Job]:
        """Return the running jobs; a job that is only being cleaned up uses nothing but its GPUs."""
        busy = [job for job in self.holding.values() if job.state is not JobState.COMPLETING]
        return [*busy, *(job for job in self.aside.values() if job.state.holds)] if self.aside else busy

    def bound(self) -> Iterator[tuple[str, int]]:
        """Yield (CPUs that it is bound to, number of CPUs requested) of each running job with a binding."""
        for job in self._busy():
            if job.cpus:
                yield job.cpus, demand_of(job).cpus

    def under_way(self, job_id: int) -> Job | None:
        """Return a job that was started and has not ended; None for any other."""
        job = self.holding.get(job_id)
        return None if job is None or job.state is JobState.COMPLETING else job

    def free_slot(self) -> int:
        """Return the lowest number that no running job has."""
        return self._slots.lowest()

    def rooms(self, gpus: Iterable[Gpu], readings: Readings) -> list[Room]:
        """Return the free capacity of each GPU."""
        return rooms(gpus, self._holds(), readings)

    def host(self, limits: HostLimits) -> HostRoom:
        """Return the free CPUs, host memory and resources of the site."""
        busy = [demand_of(job) for job in self._busy()]
        host = {resource.name: resource.count for resource in self.order.policy.resources}
        for name, count in (resource for demand in busy for resource in demand.resources):
            host[name] = host.get(name, 0) - count
        return HostRoom(
            limits.cpus - sum(demand.cpus for demand in busy),
            limits.host_memory - sum(demand.host_memory for demand in busy),
            self._recent.measure(limits.share_step),
            host,
        )

    def _holds(self) -> Iterator[tuple[Hold, bool]]:
        for job in self.holding.values():
            for hold in job.holds:
                yield hold, job.state is JobState.COMPLETING
        for job in self.aside.values():
            for hold in job.holds:
                yield hold, False

    def shortfall(self, job: Job) -> Shortfall | None:
        """Return the shortfall of a pending job in the last plan; None if it was not considered."""
        if job.state is not JobState.PENDING or job.held or self.wait_index.closed(job) is not None:
            return None
        return self._decided.shortfall(class_of(job))

    def reason(self, job: Job) -> Reason:
        """Return the reason that the queue shows."""
        if job.state is not JobState.PENDING:
            return job.reason
        if job.held:
            if job.reason in (Reason.HELD_MAX_REQUEUE, Reason.INTERNAL_ERROR, Reason.PROLOG_FAILED):
                return job.reason
            return Reason.HELD_ADMIN if job.held == "admin" else Reason.HELD_USER
        if (closed := self.wait_index.closed(job)) is not None:
            return closed
        shortfall = self._decided.shortfall(class_of(job))
        return shortfall.reason if shortfall else Reason.NONE

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def waiting_kinds(self, most: int) -> Iterator[tuple[Demand, int, Shortfall]]:
        """Yield (demand, number of jobs, shortfall) of at most `most` classes of eligible pending jobs."""
        for kind, count in self._queue.counts(most):
            if (short := self._decided.shortfall(kind)) is not None:
                yield kind.demand, count, short


# -- conditions of eligibility: begin times, dependencies, array limits ----------------------------
#
# At the end of a job only its dependants are examined. A heap of times has the jobs that become eligible
# without an event.


_Key = tuple[int, int | None]  # (job, None), (array, None) or (array, task)


class Array(Struct):
    """An open array. Its rest is the row of all tasks that have no separate row yet."""

    pending_bits: int = 0  # its tasks without a row of their own, as bits
    open: int = -1  # tasks of the rest whose counterpart in another array has completed, as bits
    is_examined: bool = False  # the ends of corresponding tasks so far are in `open`
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

    def __init__(self, made_tasks: Callable[[int], Iterable[int]] = lambda array: ()) -> None:
        self._made_tasks = made_tasks
        self._arrays: dict[int, Array] = {}

    def get(self, array: int) -> Array | None:
        return self._arrays.get(array)

    def room(self, array: int) -> int:
        """Return how many more tasks of an array may run; 0 if it is not open."""
        entry = self._arrays.get(array)
        return entry.room if entry is not None else 0

    @property
    def pending(self) -> int:
        """Return the number of pending tasks of all arrays."""
        return sum(array.pending_bits.bit_count() for array in self._arrays.values())

    def put(self, before: Job | None, job: Job) -> None:
        """Take in the state of a row."""
        entry = self._arrays.get(job.array)
        if entry is None:
            if job.state.is_final:
                return
            entry = self._arrays[job.array] = Array()
        if job.is_rest and before is None:
            entry.pending_bits = bits_of(job.request.array) & ~bits_from(self._made_tasks(job.array))
        if job.is_rest and (before is None or before.depends != job.depends):
            entry.is_examined = False
        if "aftercorr" not in job.depends:
            entry.open = entry.open if not job.is_rest else -1
        elif job.is_rest and (before is None or "aftercorr" not in before.depends):
            entry.open = 0
        entry.throttle = job.request.throttle
        entry.holding += job.state.holds - (before is not None and before.state.holds)
        (entry.waiting.add if job.state is JobState.PENDING else entry.waiting.discard)(job.id)
        if not job.state.is_final:
            entry.rows.add(job.id)
            return
        entry.rows.discard(job.id)
        if job.is_rest:
            entry.pending_bits = 0
        if not entry.rows:
            del self._arrays[job.array]

    def remove_task(self, array: int, task: int) -> bool:
        """Remove a task from the rest, since it gets its own row; return whether the rest is empty then."""
        entry = self._arrays[array]
        entry.pending_bits &= ~(1 << task)
        return not entry.pending_bits

    def next_task(self, array: int) -> int | None:
        """Return the lowest task of the rest that may start; None if there is none."""
        entry = self._arrays[array]
        return lowest(entry.pending_bits & entry.open) if entry.pending_bits & entry.open else None

    def ready(self, job: Job) -> int:
        """Return the number of tasks of a pending row that may start now."""
        entry = self._arrays[job.array]
        return max(0, min(entry.room, (entry.pending_bits & entry.open).bit_count() if job.is_rest else 1))


class WaitIndex:
    """The index of pending jobs. It is derived from the jobs that were passed to `put`."""

    def __init__(self, arrays: Arrays, jobs: Callable[[], Iterable[Job]] = lambda: ()) -> None:
        """`jobs` returns all open jobs."""
        self.arrays = arrays
        self._jobs = jobs
        self.now = 0.0
        self.to_evaluate: set[int] = set()  # jobs whose dependency is to be evaluated
        self.conditions: Counter[int] = Counter()  # uid -> conditions of the user's pending jobs
        self.corresponding: set[tuple[int, int | None]] = set()  # (dependent job, task; None: all tasks)
        self._timers: list[tuple[float, int]] = []
        self._scheduled: set[tuple[float, int]] = set()  # the timers that `ring` set
        self._dependants: dict[_Key, set[int]] = {}
        self._by_name: dict[tuple[int, str], set[int]] | None = (
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
            self._mark_dependants(job)
        if waits:
            for opening in (opens(job), last_start(job) if job.request.deadline else 0.0):
                if opening > self.now:
                    self.schedule(opening, job.id)

    def _index(self, before: Job | None, job: Job) -> None:
        if before is not None and before.depends and before.state is JobState.PENDING:
            self._register(before, present=False)
        if job.depends and job.state is JobState.PENDING:
            self._register(job, present=True)
            if job.reason is not Reason.DEPENDENCY_NEVER:
                self.to_evaluate.add(job.id)

    def _register(self, job: Job, *, present: bool) -> None:
        terms = parse_dependency(job.depends).terms
        self.conditions[job.uid] += len(terms) if present else -len(terms)
        for term in terms:
            if term.kind == "singleton":
                job_ids = self._single.setdefault((job.uid, job.request.name), set())
            else:
                job_ids = self._dependants.setdefault((term.job, term.task), set())
            (job_ids.add if present else job_ids.discard)(job.id)

    def _name(self, before: Job | None, job: Job) -> None:
        """Index a job by name. At its end the first singleton job of that name is evaluated."""
        key = (job.uid, job.request.name)
        if job.state.is_final and (single := self._single.get(key)):
            self.to_evaluate.add(min(single))
        if self._by_name is None:
            return
        if before is not None and before.request.name != job.request.name:
            self._by_name.get((job.uid, before.request.name), set()).discard(job.id)
        if not job.state.is_final:
            self._by_name.setdefault(key, set()).add(job.id)
            return
        namesakes = self._by_name.get(key, set())
        namesakes.discard(job.id)
        if not namesakes:
            self._by_name.pop(key, None)

    def _mark_dependants(self, job: Job) -> None:
        """Mark the dependants of a job that has started or ended for evaluation."""
        if job.array:
            self.to_evaluate |= (
                self._dependants.get((job.array, job.task), set()) if job.task is not None else set()
            )
            whole = self._dependants.get((job.array, None))
            if whole and self._matters(job):
                self.to_evaluate |= whole
            if whole and job.state.is_final:
                self.corresponding |= {(job_id, job.task) for job_id in whole}
        if job.id != job.array:
            self.to_evaluate |= self._dependants.get((job.id, None), set())

    def _matters(self, job: Job) -> bool:
        """Return whether a task can decide a dependency on its array: it failed, or it was the last one."""
        array = self.arrays.get(job.array)
        if job.state.is_final:
            return array is None or job.state is not JobState.COMPLETED
        return array is not None and not array.pending_bits

    def is_awaited(self, job_id: int, array: int, task: int | None) -> bool:
        """Tell whether a pending job depends on a job, on its array or on this task of it."""
        if self._dependants.get((job_id, None)):
            return True
        return bool(array and (self._dependants.get((array, None)) or self._dependants.get((array, task))))

    def with_same_name(self, job: Job) -> Iterable[int]:
        """Return the ids of the open jobs with the name and the user of a job.

        The index of names is made at the first call: few queues have a dependency of this kind.
        """
        if self._by_name is None:
            self._by_name = {}
            for open_job in self._jobs():
                self._by_name.setdefault((open_job.uid, open_job.request.name), set()).add(open_job.id)
        return self._by_name.get((job.uid, job.request.name), ())

    # -- time -----------------------------------------------------------------------------------

    def schedule(self, at: float, job_id: int) -> None:
        """Schedule the next examination of a job (seconds since the epoch); once, if it is repeated."""
        if (at, job_id) not in self._scheduled:
            self._scheduled.add((at, job_id))
            heappush(self._timers, (at, job_id))

    def due(self, now: float) -> list[int]:
        """Return and remove the jobs that are due for examination. `now`: seconds since the epoch."""
        self.now = now
        job_ids = []
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)
            self._scheduled.discard(timer)
            job_ids.append(timer[1])
        return job_ids

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
