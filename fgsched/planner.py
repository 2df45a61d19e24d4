"""The queue and what is free -> which jobs start, and why the others wait.

Jobs come in order. The first that cannot start gets a reservation: the cards
on which it would fit soonest. Later jobs may overtake it only where that does
not delay it, so a whole-card job does not starve behind a stream of quarters.

Jobs with equal demands are placed alike, and room only shrinks while one plan
is made: once one job of a demand has no room, none of that demand has. A plan
therefore costs what can start plus the number of different demands, not the
length of the queue.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from fgsched.model import Demand, Hold, Limits, Reason
from fgsched.placement import Host, Room, Short, place


@dataclass(frozen=True, slots=True)
class Pending:
    """What the planner needs to know of a waiting job. Sorts in the order of the queue."""

    id: int
    demand: Demand
    time_limit: int = 0  # seconds; 0: none


@dataclass(frozen=True, slots=True)
class Running:
    """What the planner needs to know of a job that holds something."""

    demand: Demand
    holds: tuple[Hold, ...]
    until: float = math.inf  # when its time limit ends it, seconds since the epoch


@dataclass(frozen=True, slots=True)
class Start:
    """A decision: this job starts, with these holds."""

    job_id: int
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for every job of the queue: those not among `starts` wait for what their kind waits for."""

    starts: tuple[Start, ...]
    waits: dict[tuple[Demand, int], Short]


class Queue:
    """The pending jobs that may start, grouped by kind (demand and time limit), in order within each."""

    def __init__(self, jobs: Iterable[Pending] = ()) -> None:
        self._kinds: dict[tuple[Demand, int], list[int]] = {}  # heaps; some of their ids are not waiting
        self._inside: dict[tuple[Demand, int], set[int]] = {}  # the same ids: none is in a heap twice
        self._kind_of: dict[int, tuple[Demand, int]] = {}  # of those that are waiting
        for job in jobs:
            self.add(job)

    def __len__(self) -> int:
        return len(self._kind_of)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._kind_of

    def add(self, job: Pending) -> None:
        """Take a job in, or what it asks for now if that has changed."""
        kind = (job.demand, job.time_limit)
        self._kind_of[job.id] = kind
        inside = self._inside.setdefault(kind, set())
        if job.id not in inside:
            inside.add(job.id)
            heappush(self._kinds.setdefault(kind, []), job.id)

    def remove(self, job_id: int) -> None:
        """Take a job out; its place in the heap is cleared when it comes up."""
        self._kind_of.pop(job_id, None)

    def kinds(self) -> Iterator[tuple[tuple[Demand, int], list[int]]]:
        """Each kind with its ids: a heap whose first entry is the first in order that waits."""
        for kind, ids in list(self._kinds.items()):
            while ids and not self.is_waiting(ids[0], kind):
                self._inside[kind].discard(heappop(ids))
            if ids:
                yield kind, ids
            else:
                del self._kinds[kind], self._inside[kind]

    def is_waiting(self, job_id: int, kind: tuple[Demand, int]) -> bool:
        found = self._kind_of.get(job_id)
        return found is kind or found == kind


@dataclass(slots=True)
class _Shadow:
    """The reservation of the first job that cannot start."""

    at: float  # when it could start by the running jobs' limits
    spare: dict[int, Room]  # on its cards, beside it, at that time
    host: Host  # the same for CPUs and host memory

    def allows(self, demand: Demand, holds: Sequence[Hold], until: float) -> bool:
        """Whether a job that holds `holds` until then leaves the reservation alone."""
        if until <= self.at and until != math.inf:
            return True
        if not self.host.fits(demand):
            return False
        return all(
            hold.share <= self.spare[hold.gpu].share and hold.memory <= self.spare[hold.gpu].memory
            for hold in holds
            if hold.gpu in self.spare
        )

    def take(self, demand: Demand, holds: Sequence[Hold], until: float) -> None:
        """A job was let past: what it still holds at that time is no longer spare."""
        if until <= self.at and until != math.inf:
            return
        self.host = self.host.less(demand)
        for hold in holds:
            if hold.gpu in self.spare:
                self.spare[hold.gpu] = self.spare[hold.gpu].less(hold)


def plan(
    queue: Queue, running: Sequence[Running], free: Sequence[Room], host: Host, *, limits: Limits, now: float
) -> Plan:
    """Decide for every job of `queue`, given what runs and what is free (`host`: CPUs and memory left)."""
    free = list(free)
    at = {room.gpu.index: position for position, room in enumerate(free)}
    heads = [(ids[0], kind, _in_order(ids, kind, queue)) for kind, ids in queue.kinds()]
    heapify(heads)
    starts: list[Start] = []
    waits: dict[tuple[Demand, int], Short] = {}
    short_of: dict[Demand, Short] = {}  # room only shrinks: what does not fit once does not fit later
    shadow: _Shadow | None = None
    while heads:
        job_id, kind, rest = heappop(heads)
        demand, until = kind[0], now + kind[1] if kind[1] else math.inf
        found = short_of.get(demand) or _try(demand, free, host, limits)
        if isinstance(found, Short):
            if shadow is None and demand not in short_of:
                shadow = _reserve(demand, running, free, host, limits=limits)
            short_of[demand] = found
        elif shadow and not shadow.allows(demand, found, until):
            found = _beside(demand, free, host, shadow, until=until, limits=limits)
        if isinstance(found, Short):
            waits[kind] = found
            continue
        if shadow:
            shadow.take(demand, found, until)
        starts.append(Start(job_id, found))
        host = host.less(demand)
        for hold in found:
            free[at[hold.gpu]] = free[at[hold.gpu]].less(hold)
        running = [*running, Running(demand, found, until)] if shadow is None else running
        if (following := next(rest, None)) is not None:
            heappush(heads, (following, kind, rest))
    return Plan(tuple(starts), waits)


def _in_order(ids: list[int], kind: tuple[Demand, int], queue: Queue) -> Iterator[int]:
    """The ids after the first, in order. Works on a copy: the queue is the controller's."""
    heap = ids.copy()
    heappop(heap)
    while heap:
        job_id = heappop(heap)
        if queue.is_waiting(job_id, kind):
            yield job_id


def _try(demand: Demand, free: Sequence[Room], host: Host, limits: Limits) -> tuple[Hold, ...] | Short:
    if not host.fits(demand):
        if demand.cpus > host.cpus:
            return Short(Reason.RESOURCES, "cpus", need=demand.cpus, left=host.cpus, total=limits.cpus)
        return Short(
            Reason.RESOURCES,
            "host memory",
            need=demand.host_memory,
            left=host.memory,
            total=limits.host_memory,
        )
    return place(demand, free, limits, host)


def _beside(
    demand: Demand, free: Sequence[Room], host: Host, shadow: _Shadow, *, until: float, limits: Limits
) -> tuple[Hold, ...] | Short:
    """A place that leaves the reservation alone: first off its cards, else none."""
    away = [room for room in free if room.gpu.index not in shadow.spare]
    found = place(demand, away, limits, host) if demand.gpus else Short(Reason.RESERVED_FOR_TOP)
    if isinstance(found, Short) or not shadow.allows(demand, found, until):
        return Short(Reason.RESERVED_FOR_TOP, gpu=min(shadow.spare, default=None))
    return found


def _reserve(
    demand: Demand, running: Sequence[Running], free: Sequence[Room], host: Host, *, limits: Limits
) -> _Shadow | None:
    """Where and when `demand` fits soonest if running jobs end at their limits; None if it never does."""
    later = {room.gpu.index: room for room in free}
    ends = sorted(running, key=lambda job: job.until)
    if isinstance(_try(demand, *_once_over(ends, dict(later), host), limits), Short):
        return None  # not even on an empty host: a card is drained, or fewer than when it was submitted
    for position, job in enumerate(ends):
        _, host = _once_over([job], later, host)
        if position + 1 < len(ends) and ends[position + 1].until == job.until < math.inf:
            continue
        found = _try(demand, list(later.values()), host, limits)
        if not isinstance(found, Short):
            spare = {hold.gpu: later[hold.gpu].less(hold) for hold in found}
            return _Shadow(job.until, spare, host.less(demand))
    return None


def _once_over(jobs: Iterable[Running], later: dict[int, Room], host: Host) -> tuple[list[Room], Host]:
    """What is free once `jobs` are over; `later` is brought up to that."""
    for job in jobs:
        host = host.plus(job.demand)
        for hold in job.holds:
            if hold.gpu in later:
                later[hold.gpu] = later[hold.gpu].plus(hold)
    return list(later.values()), host
