"""Decide which pending jobs start.

Jobs are considered in order of priority. In each partition the first job that lacks capacity gets a backfill
reservation: the GPUs on which it fits soonest. Later jobs may start only if they do not delay it, so a job
with a whole GPU does not starve behind a stream of small jobs. A job that a limit prevents reserves nothing
and delays no other job.

Jobs of a class are placed alike, and capacity only shrinks during a plan: once one of them does not fit, none
does. A plan therefore costs what can start plus a constant for each job class, not the length of the queue.
Why a class does not start is computed on request.
"""

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import Demand, Hold, HostLimits
from fgsched.domain.steps import Steps, finish
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.capacity import Capacity
from fgsched.scheduling.placement import HostRoom, Room
from fgsched.scheduling.queue import ClassQueue, JobClass, Queue, QueuedJob
from fgsched.scheduling.reservations import BackfillReservation, Running

__all__ = ["JobClass", "JobStart", "Plan", "Queue", "QueuedJob", "Running", "plan"]

_MAX_TRIES = 256  # of a backfill reservation in one partition; jobs that no empty host could run are skipped
_GROUPS, _LOOKS, _RESERVATIONS = 1000, 64, 16  # in one step: each takes about 2 ms
_MAX_MISSES = 128  # consecutive heads without capacity after which all heads are checked at once
Rest = Iterator[tuple[float, int]]
Head = tuple[float, float, int, ClassQueue, Rest | None]


class JobStart(NamedTuple):
    """The decision that a job starts with these holds."""

    job_id: int
    holds: tuple[Hold, ...]
    partition: str = "main"


class Plan(Struct):
    """The jobs that start, and the remaining capacity, from which the reasons of the others are computed."""

    starts: tuple[JobStart, ...] = ()
    _after: Capacity | None = None
    _settle: Callable[[], None] = lambda: None
    _waits: dict[JobClass, Shortfall | None] = field(default_factory=dict)

    @property
    def reserved(self) -> Mapping[str, BackfillReservation]:
        """The backfill reservation of each partition."""
        self._settle()
        return self._after.backfills if self._after else {}

    def shortfall(self, kind: JobClass) -> Shortfall | None:
        """Return the shortfall that prevents the jobs of a class from starting."""
        if kind not in self._waits:
            self._waits[kind] = self._after.shortfall_of(kind) if self._after else None
        return self._waits[kind]


def plan(
    queue: Queue,
    running: Sequence[Running],
    free: Sequence[Room],
    host: HostRoom,
    *,
    limits: HostLimits,
    now: float,
) -> Plan:
    """Plan every job of `queue`, given running jobs and free capacity, at `now` (epoch seconds).

    `host` is free CPUs and host memory.
    """
    return finish(plan_in_steps(queue, running, free, host, limits=limits, now=now))


def plan_in_steps(
    queue: Queue,
    running: Sequence[Running],
    free: Sequence[Room],
    host: HostRoom,
    *,
    limits: HostLimits,
    now: float,
) -> Steps[Plan]:
    """Plan as `plan` does, in steps of some milliseconds. `queue` must not change between the steps."""
    capacity = Capacity(running, free, host, limits=limits, policy=queue.order.policy, now=now)
    capacity.count(queue.order.used)
    planning = _Planning(queue, capacity, now)
    starts: list[JobStart] = []
    for start in planning.starts():
        if start is None:
            yield
        else:
            starts.append(start)
    return Plan(tuple(starts), capacity, planning.settle)


class _Planning:
    """The state of one plan."""

    def __init__(self, queue: Queue, capacity: Capacity, now: float) -> None:
        self._queue, self._capacity, self._now = queue, capacity, now
        weights = queue.order.policy.weights
        self._max_age_points, self._age_rate = weights.age, weights.age / weights.max_age
        self._without_room: dict[str, list[ClassQueue]] = {}  # classes without capacity, by partition
        self._heaps: dict[str, list[Head]] = {}  # these classes in order, where more than the first is needed
        self._unreservable: set[int] = set()  # ids of classes for which no reservation is possible
        self._tries: dict[str, int] = {}
        self._unreserved: list[tuple[ClassQueue, int]] = []  # (class, job id) without capacity or reservation

    def _head(self, group: ClassQueue, entry: tuple[float, int], later_entries: Rest | None) -> Head:
        age = min(self._max_age_points, max(0.0, (self._now - entry[0]) * self._age_rate))
        return (-group.standing - age, *entry, group, later_entries)

    def starts(self) -> Iterator[JobStart | None]:
        """Yield the jobs that start, in order, and None after some work in between."""
        heads = yield from self._first_look()
        misses = looks = 0
        while heads:
            looks += 1
            if looks % _LOOKS == 0:
                yield None
            head = heappop(heads)
            group = head[3]
            may_fit = self._capacity.may_fit(group)
            if may_fit and self._unreserved:  # the reservations of jobs ahead of it matter from here on
                heappush(heads, head)
                yield from self._settled(heads)
                continue
            place = self._capacity.find(group.kind) if may_fit else None
            if place is None:
                self._unreserved.append((group, head[2]))
                misses += 1
                if misses >= _MAX_MISSES:
                    heads, misses = self._with_room(heads), 0
                continue
            misses = 0
            partition, holds = place
            self._capacity.take(group.kind, partition, holds)
            yield JobStart(head[2], holds, partition)
            self._push_next(heads, head)

    def _settled(self, heads: list[Head]) -> Iterator[None]:
        """Make the pending backfill reservations, because a later job may fit. Yield after some of them."""
        unreserved, self._unreserved = self._unreserved, []
        for number, (group, job_id) in enumerate(unreserved, 1):
            self._reserve_for(group, job_id, heads)
            if number % _RESERVATIONS == 0:
                yield None

    def settle(self) -> None:
        """Make the backfill reservations that no job of this plan had to respect."""
        heads: list[Head] = []
        while self._unreserved:
            for _ in self._settled(heads):
                pass
            self._unreserved = [(head[3], head[2]) for head in heads]
            heads.clear()

    def _first_look(self) -> Generator[None, None, list[Head]]:
        """Return the heads of classes that may fit, and for each partition the first one that does not.

        The other classes are not examined, because there may be very many. Yields None after some of them.
        """
        heads: list[Head] = []
        best: dict[str, tuple[float, float, int, ClassQueue]] = {}
        may_fit, passed, now = self._capacity.may_fit, self._without_room, self._now
        max_age_points, age_rate = self._max_age_points, self._age_rate
        claims = self._queue.claims
        turns = {kind: turn for turn, kind in enumerate(claims)}
        for number, group in enumerate(self._queue.groups, 1):
            if number % _GROUPS == 0:
                yield None
            if claims and group.kind in claims:  # also before the jobs that were preempted for it
                heads.append((-math.inf, turns[group.kind], group.first[1], group, None))
                continue
            if may_fit(group):
                heads.append(self._head(group, group.first, None))
                continue
            name = group.kind.partitions[0]
            if name not in passed:
                passed[name] = []
            passed[name].append(group)
            since = group.first[0]
            key = -group.standing - min(max_age_points, max(0.0, (now - since) * age_rate))
            before = best.get(name)
            if before is None or (key, *group.first) < before[:3]:
                best[name] = (key, *group.first, group)
        heads += [(*first, None) for first in best.values()]
        heapify(heads)
        return heads

    def _with_room(self, heads: list[Head]) -> list[Head]:
        """Return the heads that may fit, and the first other one of each partition without reservation."""
        kept_heads: list[Head] = []
        claims = self._queue.claims
        firsts: dict[str, Head] = {}
        for head in heads:
            name = head[3].kind.partitions[0]
            if self._capacity.may_fit(head[3]) or (claims and head[3].kind in claims):
                kept_heads.append(head)
            elif name not in self._capacity.backfills:
                self._without_room.setdefault(name, []).append(head[3])
                firsts[name] = min(head, firsts.get(name, head))
        kept_heads += firsts.values()
        heapify(kept_heads)
        return kept_heads

    def _push_without_room(self, name: str, heads: list[Head]) -> None:
        """Add the first class that does not fit in a skipped partition; few plans need it."""
        waiting = self._heaps.setdefault(name, [])
        if fresh := self._without_room.pop(name, None):
            waiting += [self._head(group, group.first, None) for group in fresh]
            heapify(waiting)
        while waiting:
            head = heappop(waiting)
            if id(head[3]) not in self._unreservable:
                heappush(heads, head)
                return

    def _push_next(self, heads: list[Head], head: Head) -> None:
        """Add the next job of a class after one has started."""
        group, later_entries = head[3:]
        if later_entries is None:
            later_entries = self._repeated(group)
            next(later_entries)
        following = next(later_entries, None)
        if following is not None:
            heappush(heads, self._head(group, following, later_entries))

    def _repeated(self, group: ClassQueue) -> Rest:
        """Return the jobs of a class in order, each as often as it counts."""
        for entry in group.in_order():
            yield from repeat(entry, self._queue.count(entry[1]))

    def _reserve_for(self, group: ClassQueue, job_id: int, heads: list[Head]) -> None:
        """Reserve for the first job of its partition that lacks only capacity."""
        kind, first = group.kind, group.kind.partitions[0]
        claimed = kind in self._queue.claims
        if claimed:
            self._claim(kind, job_id)
        for name in () if claimed else kind.partitions:
            pool = f"{name}@{kind.reservation}" if kind.reservation else name
            if pool in self._capacity.backfills or self._tries.get(pool, 0) >= _MAX_TRIES:
                continue
            if self._capacity.blocking_rule(kind, name) is not None:
                continue
            self._tries[pool] = self._tries.get(pool, 0) + 1
            backfill = self._capacity.reserve(kind, name)
            if backfill is not None:
                backfill.job = job_id
                self._capacity.backfills[pool] = backfill
                if pool == name:
                    return
                break
        self._unreservable.add(id(group))
        if first not in self._capacity.backfills:
            self._push_without_room(first, heads)

    def _claim(self, kind: JobClass, job_id: int) -> None:
        """Reserve the room claims of preempting jobs, one each, whatever their position in the queue."""
        for number in range(self._queue.claims[kind]):
            for name in kind.partitions:
                backfill = (
                    self._capacity.reserve(kind, name)
                    if self._capacity.blocking_rule(kind, name) is None
                    else None
                )
                if backfill is not None:
                    backfill.job = job_id
                    self._capacity.backfills[f"{name} {job_id} {number}"] = backfill
                    break


# -- the input of a plan as one value, which questions change and plan again --


_MAX_GROUP_CHECKS = 100_000  # at a kind of job, in all plans of one answer


class Snapshot(Struct, frozen=True):
    """Queue, running jobs and free capacity at one time. Each question restores the queue."""

    queue: Queue
    running: Sequence[Running]
    free: Sequence[Room]
    host: HostRoom
    limits: HostLimits
    now: float

    def plan(self) -> Plan:
        return plan(self.queue, self.running, self.free, self.host, limits=self.limits, now=self.now)

    def plan_in_steps(self) -> Steps[Plan]:
        """Plan as `plan` does. The queue must not change between the steps."""
        return plan_in_steps(self.queue, self.running, self.free, self.host, limits=self.limits, now=self.now)

    def plans(self, limit: int) -> int:
        """Return the maximum number of plans for one answer: fewer with many classes, to limit their time."""
        return max(1, min(limit, _MAX_GROUP_CHECKS // max(1, self.queue.kinds)))

    def capacity(self) -> Capacity:
        """Return the free capacity, ignoring reservations."""
        policy = self.queue.order.policy
        capacity = Capacity(
            self.running, self.free, self.host, limits=self.limits, policy=policy, now=self.now
        )
        capacity.count(self.queue.order.used)
        return capacity

    @contextmanager
    def with_job(self, job: QueuedJob) -> Iterator[None]:
        """Replace the job with the same id by this one, or add it, within the context."""
        before = self.queue.entry(job.id)
        self.queue.add(job)
        try:
            yield
        finally:
            self.queue.remove(job.id)
            if before is not None:
                self.queue.add(before)

    @contextmanager
    def with_claim(self, kind: JobClass) -> Iterator[None]:
        """Add a room claim for one more job of this class, within the context."""
        before = self.queue.claims
        self.queue.claims = before + Counter({kind: 1})
        try:
            yield
        finally:
            self.queue.claims = before

    def rooms_of(self, name: str) -> list[Room]:
        """Return the free capacity of the GPUs that a partition may use."""
        partition = self.queue.order.policy.partition(name)
        gpus = partition.gpus if partition else ()
        return [room for room in self.free if not gpus or room.gpu.index in gpus]

    def limits_of(self, name: str) -> HostLimits:
        partition = self.queue.order.policy.partition(name)
        return partition.limits(self.limits) if partition else self.limits


def demand_parts(demand: Demand) -> list[Demand]:
    """Return the parts of a demand that can be short independently."""
    nothing = Demand(cpus=0)
    demands = [replace(nothing, cpus=demand.cpus)]
    if demand.host_memory:
        demands.append(replace(nothing, host_memory=demand.host_memory))
    demands += [replace(nothing, resources=((name, count),)) for name, count in demand.resources]
    if demand.gpus:
        demands.append(replace(demand, cpus=0, host_memory=0, resources=()))
    return demands


def ends_by(job: Running, time: float) -> bool:
    """Tell whether the job certainly ends by `moment`; a job without a limit never does."""
    return job.until <= time and job.until < math.inf
