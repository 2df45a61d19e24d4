"""The open jobs in memory, as stored, indexed for the planner."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from fgsched.controller.arrays import Arrays
from fgsched.controller.debts import claims, made_for
from fgsched.controller.runs import Runs, demand_of, who_of
from fgsched.controller.waitindex import WaitIndex
from fgsched.domain.job import Demand, Gpu, Hold, HostLimits, Job, JobState, Readings, Reason
from fgsched.domain.policy import MAIN
from fgsched.scheduling.fragmentation import Recent
from fgsched.scheduling.limits import Key, Owner, falls_under
from fgsched.scheduling.placement import Host, Room, Shortfall, rooms
from fgsched.scheduling.planner import Plan, Queue, QueuedJob
from fgsched.scheduling.priority import Order
from fgsched.scheduling.snapshot import Snapshot
from fgsched.store import Allocation


class Slots:
    """Numbers of running jobs, lowest first, reused after the end of a job."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._given: list[int] = []  # a heap of numbers below `_next`, some of them taken meanwhile
        self._next = 0

    def take(self, number: int) -> None:
        self._taken.add(number)
        for skipped in range(self._next, number):
            heappush(self._given, skipped)
        self._next = max(self._next, number + 1)

    def give(self, number: int) -> None:
        if number in self._taken:
            self._taken.discard(number)
            heappush(self._given, number)

    def lowest(self) -> int:
        while self._given and self._given[0] in self._taken:
            heappop(self._given)
        return self._given[0] if self._given else self._next


def pending(job: Job, count: int = 1) -> QueuedJob:
    """Return a pending job as the planner sees it; a row of an array represents `count` jobs."""
    request = job.request
    since = max(job.submitted_at, request.begin)  # time that it did not want to start in is no age
    return QueuedJob(
        job.id,
        request.demand,
        request.time_limit,
        count,
        partitions=tuple(request.partition.split(",")) if request.partition else (MAIN,),
        who=who_of(job),
        nice=request.nice,
        # A task that has a row of its own goes before the rest of its array.
        since=since if job.task is None else math.nextafter(since, 0),
        reservation=request.reservation,
    )


class JobTable:
    """Every open job in its committed state. After a failed commit the table is built again."""

    def __init__(
        self, jobs: Iterable[Job] = (), made: Callable[[int], Iterable[int]] = lambda array: ()
    ) -> None:
        """`made(array)` returns the indices of an array that have their own rows."""
        self.jobs: dict[int, Job] = {}
        self.holding: dict[int, Job] = {}
        self.given: dict[int, tuple[Allocation, ...]] = {}  # of the jobs that hold something
        self.aside: dict[int, Job] = {}  # jobs that are left alone; what they hold stays taken
        self.unreadable: set[int] = set()  # jobs whose rows are damaged: they are not started as they stand
        self.is_torn = False  # a `put` failed half-way: the indexes may contradict each other
        self.revision = 0  # another one after every change
        self._decided = Plan()
        self.arrays = Arrays(made)
        self.wait_index = WaitIndex(self.arrays)
        self._queue = Queue()
        self._slots = Slots()
        self._runs = Runs()
        self._leaving: set[int] = set()  # jobs that make room
        self._sent: set[int] = set()  # jobs that made room and wait again
        self._recent = Recent()
        self._queued: Counter[tuple[str, Owner]] = Counter()  # jobs that wait, by partitions and owner
        for job in jobs:
            self.put(job)

    def put(self, job: Job) -> None:
        """Store the current state of a job; a job that has ended is removed."""
        self.revision, self.is_torn = self.revision + 1, True
        self._runs.changed(job.id)
        before = self.jobs.get(job.id)
        waits = before is None or JobState.PENDING in (before.state, job.state)
        if before is None:
            self._recent.add(job.request.demand)
        if waits:
            self._count(before, -1)
        if job.state.is_final:
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
        if job.preemption is not None:
            self._note_preemption(job)
        if job.state.holds:
            self.holding[job.id] = job
            self._slots.take(job.slot)
        elif was := self.holding.pop(job.id, None):
            self.given.pop(job.id, None)
            self._slots.give(was.slot)
        if job.array:
            self.arrays.put(before, job)
        self.wait_index.put(before, job)
        if waits:
            self._count(job, 1)
            self.offer(job)
        if job.array and (before is None or job.request.throttle):
            self._offer_rest(job)
        self.is_torn = False

    def set_aside(self, job: Job) -> None:
        """Count the holds of a job, and nothing else."""
        self.aside[job.id] = job
        if job.state.holds:
            self._slots.take(job.slot)

    def _note_preemption(self, job: Job) -> None:
        """A preempted job that is pending again comes after the job that it was preempted for."""
        waits_again = job.state is JobState.PENDING and bool(job.preempt_mode)
        (self._leaving.add if job.is_being_preempted else self._leaving.discard)(job.id)
        (self._sent.add if waits_again else self._sent.discard)(job.id)

    def made_room_for(self, job_id: int) -> list[Job]:
        """Return the jobs that were preempted for this job and are pending again."""
        return [job for one in self._sent if made_for(job := self.jobs[one]) == job_id]

    def makes_room_for(self, job_id: int) -> list[Job]:
        """Return the jobs that are being preempted for this job."""
        return [job for one in self._leaving if made_for(job := self.jobs[one]) == job_id]

    def _debtors(self) -> list[Job]:
        """Return the jobs that are being preempted, and those that are pending again after it."""
        return [self.jobs[one] for one in (*self._leaving, *self._sent)]

    def take(self, rest: Job, task: int) -> bool:
        """Prepare a task for its own row, which is put next; return whether it is the last."""
        self._queued[rest.request.partition, who_of(rest)] -= 1
        return self.arrays.take(rest.array, task)

    def tasks(self, job: Job) -> int:
        """Return how many jobs a row represents."""
        array = self.arrays.get(job.array) if job.is_rest else None
        return array.rest.bit_count() if array else 1

    def offer(self, job: Job) -> None:
        """Offer a job to the planner, if it is eligible."""
        is_ready = job.state is JobState.PENDING and not job.held and job.id not in self.unreadable
        if is_ready and self.wait_index.closed(job) is None:
            self._queue.add(pending(job, self.arrays.ready(job) if job.array else 1))
        else:
            self._queue.remove(job.id)

    def _offer_rest(self, job: Job) -> None:
        """Offer the other pending rows of an array, because the number that may start has changed."""
        array = self.arrays.get(job.array)
        if array is not None:
            others = array.waiting if array.throttle else array.waiting & {job.array}
            for other in others - {job.id}:
                self.offer(self.jobs[other])

    def _count(self, job: Job | None, change: int) -> None:
        if job is not None and job.state is JobState.PENDING:
            self._queued[job.request.partition, who_of(job)] += change * self.tasks(job)

    def waiting_in(self, key: Key) -> int:
        """Return the number of pending jobs in one limit scope."""
        return sum(count for (names, who), count in self._queued.items() if falls_under(key, names, who))

    def open_of(self, user: str) -> int:
        """Return the number of open jobs of a user, without a scan of the queue."""
        waiting = sum(count for (_, who), count in self._queued.items() if who.user == user)
        return waiting + sum(job.user == user for job in self.holding.values())

    def plan(self, gpus: Iterable[Gpu], readings: Readings, *, limits: HostLimits, now: float) -> Plan:
        """Return what starts now, and what every other job lacks."""
        self._decided = decided = self.snapshot(gpus, readings, limits=limits, now=now).plan()
        return decided

    def snapshot(
        self, gpus: Iterable[Gpu], readings: Readings, *, limits: HostLimits, now: float
    ) -> Snapshot:
        """Return the input of a plan. Its queue is that of this table."""
        running = self._runs.of(self.holding.values(), now)
        self._queue.claims = claims(self._queue, self._debtors())
        return Snapshot(self._queue, running, self.rooms(gpus, readings), self.host(limits), limits, now)

    def running(self, job: Job, now: float) -> object:
        """Return a job with holds as the planner sees it."""
        return self._runs.of([job], now)

    @property
    def order(self) -> Order:
        """The order in which jobs are considered."""
        return self._queue.order

    def reorder(self, order: Order) -> None:
        self._queue.reorder(order)

    def count_again(self, order: Order) -> None:
        """Use changed usage; the order is otherwise the same."""
        self._queue.order = order

    def pick(self, demand: Demand) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the indices of site resources for a job, the lowest free ones."""
        found = []
        for name, count in demand.resources:
            there = self.order.policy.resource(name)
            held = (dict(job.resources).get(name, ()) for job in self._busy())
            taken = {index for indices in held for index in indices}
            free = [index for index in range(there.count if there else 0) if index not in taken]
            found.append((name, tuple(free[:count])))
        return tuple(found)

    def _busy(self) -> list[Job]:
        """Return the running jobs, without completing ones, which need only their GPUs."""
        busy = [job for job in self.holding.values() if job.state is not JobState.COMPLETING]
        return [*busy, *(job for job in self.aside.values() if job.state.holds)] if self.aside else busy

    def bound(self) -> Iterator[tuple[str, int]]:
        """Yield (bound CPUs, requested number) of each running job that is bound."""
        for job in self._busy():
            if job.cpus:
                yield job.cpus, demand_of(job).cpus

    def under_way(self, job_id: int) -> Job | None:
        """Return a job that was started and has not ended, otherwise None."""
        job = self.holding.get(job_id)
        return None if job is None or job.state is JobState.COMPLETING else job

    def free_slot(self) -> int:
        """Return the lowest slot number that is free."""
        return self._slots.lowest()

    def rooms(self, gpus: Iterable[Gpu], readings: Readings) -> list[Room]:
        """Return the free capacity of each GPU."""
        return rooms(gpus, self._holds(), readings)

    def host(self, limits: HostLimits) -> Host:
        """Return free CPUs and host memory; completing jobs need neither."""
        busy = [demand_of(job) for job in self._busy()]
        left = {one.name: one.count for one in self.order.policy.resources}
        for name, count in (each for demand in busy for each in demand.resources):
            left[name] = left.get(name, 0) - count
        return Host(
            limits.cpus - sum(demand.cpus for demand in busy),
            limits.host_memory - sum(demand.host_memory for demand in busy),
            self._recent.measure(limits.share_step),
            left,
        )

    def _holds(self) -> Iterator[tuple[Hold, bool]]:
        for job in self.holding.values():
            for hold in job.holds:
                yield hold, job.state is JobState.COMPLETING
        for job in self.aside.values():
            for hold in job.holds:
                yield hold, False

    def short(self, job: Job) -> Shortfall | None:
        """Return what a pending job lacks, according to the last plan."""
        if job.state is not JobState.PENDING or job.held or self.wait_index.closed(job) is not None:
            return None
        return self._decided.short(pending(job).kind)

    def reason(self, job: Job) -> Reason:
        """Return the reason that the queue shows."""
        if job.state is not JobState.PENDING:
            return job.reason
        if job.held:
            if job.reason in (Reason.HELD_MAX_REQUEUE, Reason.INTERNAL_ERROR):
                return job.reason
            return Reason.HELD_ADMIN if job.held == "admin" else Reason.HELD_USER
        if (closed := self.wait_index.closed(job)) is not None:
            return closed
        short = self.short(job)
        return short.reason if short else Reason.NONE

    @property
    def waiting(self) -> int:
        return len(self._queue)
