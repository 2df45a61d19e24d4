"""Forecast when waiting jobs start: run the planner in virtual time with assumed run times."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from fgsched.domain.job import Hold
from fgsched.scheduling.backfill import Running
from fgsched.scheduling.placement import Host, Room
from fgsched.scheduling.planner import Start, plan
from fgsched.scheduling.queue import QueuedJob
from fgsched.scheduling.reservations import boundaries
from fgsched.scheduling.snapshot import Snapshot

LOOKED_AHEAD = 400  # plans of one forecast: a job that starts later has an unknown start
Length = Callable[[QueuedJob], float]  # seconds that a waiting job is assumed to run; infinite: unknown


@dataclass(frozen=True, slots=True)
class Expected:
    """A start that is forecast."""

    at: float  # seconds since the epoch
    holds: tuple[Hold, ...]
    partition: str
    before: tuple[int, ...]  # jobs that end before it


@dataclass(frozen=True, slots=True)
class Forecast:
    """The starts that could be forecast."""

    starts: dict[int, Expected]  # by job id
    is_cut_off: bool = False  # too many jobs are ahead of the wanted jobs that have no start here


@dataclass(slots=True)
class _Later:
    """The host at a later time."""

    running: dict[int, Running]
    rooms: dict[int, Room]
    host: Host
    ends: list[tuple[float, int, int]]  # a heap of (end time, number of the start, job id)
    left: dict[int, int]  # queue entry -> how many of its jobs have not started
    boundaries: list[float]  # starts and ends of reservations, in order
    over: list[int] = field(default_factory=list)  # ids of the jobs that have ended
    count: int = 0

    def begin(self, job: Running, end: float) -> int:
        """Add a running job that ends at `end`; return its number here."""
        self.count += 1
        self.running[self.count] = job
        heappush(self.ends, (end, self.count, job.id))
        return self.count

    def start(self, start: Start, entry: QueuedJob, until: float, end: float) -> None:
        job = Running(
            entry.demand, start.holds, until, start.partition, entry.who, start.job_id, entry.reservation
        )
        self.begin(job, end)
        self.host = self.host.less(entry.demand)
        for hold in start.holds:
            self.rooms[hold.gpu] = self.rooms[hold.gpu].less(hold)

    def end_next(self) -> float:
        """Advance to the next end of a job, or to the next boundary of a reservation if that is earlier.

        Return that time in seconds since the epoch; infinity if nothing happens any more.
        """
        at = self.ends[0][0] if self.ends else math.inf
        if self.boundaries and self.boundaries[0] < at:
            return self.boundaries.pop(0)
        while at < math.inf and self.ends and self.ends[0][0] == at:
            _, place, job_id = heappop(self.ends)
            job = self.running.pop(place)
            self.over.append(job_id)
            self.host = self.host.plus(job.demand)
            for hold in job.holds:
                if hold.gpu in self.rooms:
                    self.rooms[hold.gpu] = _cleaned(self.rooms[hold.gpu].plus(hold))
        return at


def _cleaned(room: Room) -> Room:
    """Return a room whose ended jobs have left the GPU by then."""
    return replace(room, cleaning=False)


def forecast(
    snapshot: Snapshot, length: Length, ends: Callable[[Running], float], wanted: Collection[int]
) -> Forecast:
    """Forecast the starts of the wanted queue entries; of an array, the start of its first task.

    `ends` returns when a running job is assumed to end, in seconds since the epoch. The queue of `snapshot`
    is changed meanwhile, and restored.
    """
    later = _begun(snapshot, ends)
    found: dict[int, Expected] = {}
    taken: list[QueuedJob] = []
    missing, at = set(wanted), snapshot.now
    try:
        for _ in range(snapshot.plans(LOOKED_AHEAD)):
            decided = plan(
                snapshot.queue,
                list(later.running.values()),
                list(later.rooms.values()),
                later.host,
                limits=snapshot.limits,
                now=at,
            )
            for start in decided.starts:
                if start.job_id in missing:
                    missing.discard(start.job_id)
                    found[start.job_id] = Expected(at, start.holds, start.partition, tuple(later.over))
                _take(snapshot, later, start, taken, length=length, at=at)
            if not missing or (at := later.end_next()) == math.inf:
                return Forecast(found)
    finally:
        _put_back(snapshot, taken)
    return Forecast(found, is_cut_off=True)


def _begun(snapshot: Snapshot, ends: Callable[[Running], float]) -> _Later:
    bounds = boundaries(snapshot.queue.order.policy.reservations, snapshot.now)
    later = _Later({}, {room.gpu.index: room for room in snapshot.free}, snapshot.host, [], {}, bounds)
    for job in snapshot.running:
        later.begin(job, max(snapshot.now, ends(job)))
    heapify(later.ends)
    return later


def _take(
    snapshot: Snapshot, later: _Later, start: Start, taken: list[QueuedJob], *, length: Length, at: float
) -> None:
    """Start one job of a queue entry at `at`."""
    entry = snapshot.queue.entry(start.job_id)
    assert entry is not None, "it was planned from this queue"
    if entry.id not in later.left:
        taken.append(entry)
        later.left[entry.id] = entry.count
    later.left[entry.id] -= 1
    until = at + entry.time_limit if entry.time_limit else math.inf
    later.start(start, entry, until, at + max(1.0, length(entry)))
    if later.left[entry.id] > 0:
        snapshot.queue.add(replace(entry, count=later.left[entry.id]))
    else:
        snapshot.queue.remove(entry.id)


def _put_back(snapshot: Snapshot, taken: Iterable[QueuedJob]) -> None:
    for entry in taken:
        snapshot.queue.add(entry)
