"""Explain pending jobs with the planner: blockers, advice and forecasts, as data."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import WHOLE, Demand, Hold
from fgsched.domain.states import Reason
from fgsched.domain.steps import Steps
from fgsched.domain.waiting import UNKNOWN, Blocker, Shortfall, Unblock
from fgsched.scheduling.capacity import Capacity
from fgsched.scheduling.limits import Scope, scopes
from fgsched.scheduling.placement import HostRoom, Room, is_of_type
from fgsched.scheduling.planner import JobStart, Plan, Snapshot, demand_parts, ends_by, plan_in_steps
from fgsched.scheduling.queue import JobClass, QueuedJob
from fgsched.scheduling.reservations import Running, attempt, boundaries, reserve

# -- blockers -----------------------------------------------------------------


def blockers(snapshot: Snapshot, job: QueuedJob, decided: Plan | None = None) -> list[Blocker]:
    """Return every blocker of a queued job, the binding one first; none if it starts now.

    `decided` is the plan of `snapshot`, if the caller already has it.
    """
    decided = decided or snapshot.plan()
    if any(start.job_id == job.id for start in decided.starts):
        return []
    kind, capacity = job.kind, snapshot.capacity()
    all_blockers = [
        blocker for name in kind.partitions for blocker in _in_partition(snapshot, capacity, kind, name)
    ]
    if not any(blocker.cause.reason is not Reason.RESERVED_FOR_TOP for blocker in all_blockers):
        all_blockers += _reservations(snapshot, kind, decided)
    shown = decided.shortfall(kind)
    if shown is not None and all(blocker.cause != shown for blocker in all_blockers):
        all_blockers.append(Blocker(shown, partition=kind.partitions[0]))
    return sorted(dict.fromkeys(all_blockers), key=lambda fromkey: fromkey.cause != shown)


def _in_partition(snapshot: Snapshot, capacity: Capacity, kind: JobClass, name: str) -> Iterator[Blocker]:
    if (rule := capacity.rule(kind, name)) is not None:
        begins = rule.reason is Reason.RESERVATION and rule.what == "begin"
        yield Blocker(rule, Unblock(at=float(rule.remaining)) if begins else UNKNOWN, name)
        return
    for scope, shortfall in capacity.limits_reached(kind, name):
        yield Blocker(shortfall, _end_within(snapshot, scope, shortfall), name)
    rooms, limits = snapshot.rooms_of(name), snapshot.limits_of(name)
    if kind.reservation:
        rooms = list(capacity.rooms_for(kind, name))
    for part in demand_parts(kind.demand):
        tried = attempt(part, rooms, snapshot.host, limits)
        if isinstance(tried, Shortfall):
            yield Blocker(tried, _room_for(snapshot, part, name), name)
        elif part.gpus and (booked := capacity.reserved_for_others(kind, name, part)) is not None:
            yield Blocker(booked, Unblock(at=float(booked.total)), name)


def _end_within(snapshot: Snapshot, scope: Scope, shortfall: Shortfall) -> Unblock:
    """Return the first end among the running jobs that count towards a limit."""
    if shortfall.what == "minutes":
        return UNKNOWN
    policy = snapshot.queue.order.policy
    inside = [
        job
        for job in snapshot.running
        if any(limit_scope.key == scope.key for limit_scope in scopes(job.partition, job.owner, policy))
    ]
    first = min(inside, key=lambda job: (job.until, job.id), default=None)
    return Unblock((first.id,), _known(first.until)) if first else UNKNOWN


def _room_for(snapshot: Snapshot, part: Demand, name: str) -> Unblock:
    """Return the ends that free enough for a part of a demand, at the latest by the time limits."""
    rooms, limits = snapshot.rooms_of(name), snapshot.limits_of(name)
    backfill = reserve(part, snapshot.running, rooms, snapshot.host, limits=limits)
    if backfill is None:
        return UNKNOWN
    gpus = {hold.gpu for hold in backfill.holds}

    def matters(job: Running) -> bool:
        if not (ends_by(job, backfill.at) or (backfill.at == math.inf and job.until == math.inf)):
            return False
        return bool(gpus & {hold.gpu for hold in job.holds}) if gpus else _gives_back(job.demand, part)

    named = sorted(filter(matters, snapshot.running), key=lambda job: (job.until, job.id))
    return Unblock(tuple(job.id for job in named if job.id), _known(backfill.at))


def _gives_back(demand: Demand, part: Demand) -> bool:
    """Tell whether a job with this demand holds a resource that `part` needs."""
    names = {name for name, _ in part.resources}
    if names:
        return any(name in names for name, _ in demand.resources)
    return demand.host_memory > 0 if part.host_memory else demand.cpus > 0


def _reservations(snapshot: Snapshot, kind: JobClass, decided: Plan) -> Iterator[Blocker]:
    """Yield the backfill reservations of jobs ahead of it that its start would delay."""
    until = snapshot.now + kind.time_limit if kind.time_limit else math.inf
    for name, backfill in decided.reserved.items():
        if backfill.is_over(until):
            continue
        for partition in kind.partitions:
            limits = snapshot.limits_of(partition)
            holds = attempt(
                kind.demand, snapshot.capacity().rooms_for(kind, partition), snapshot.host, limits
            )
            if isinstance(holds, Shortfall):
                continue
            if not backfill.allows(kind.demand, holds, until, kind.reservation):
                gpu = min((hold.gpu for hold in holds if hold.gpu in backfill.spare), default=None)
                shortfall = Shortfall(Reason.RESERVED_FOR_TOP, gpu=gpu)
                lift = Unblock((backfill.job,), _known(backfill.at), is_start=True)
                yield Blocker(shortfall, lift, name.split(" ")[0])


def _known(at: float) -> float | None:
    """Return a time, or None for an infinite one."""
    return at if at < math.inf else None


# -- advice -------------------------------------------------------------------


_MIB = 2**20
_STEP = 500  # ten-thousandths: rather 0.5 than 0.5417
_MEMORY_STEPS = (1024 * _MIB, 256 * _MIB, _MIB)
_SHORTEST = 60  # seconds: a limit below it is no advice
TRIES = 64  # plans for one question, where they are cheap


class OptionChange(Struct, frozen=True):
    """One change of one option. `option` is the name in fgsub, without dashes."""

    option: str
    job: QueuedJob  # with the change made
    before: int  # ten-thousandths, bytes, seconds or a number
    after: int  # the same; of a type: 0, any

    @property
    def size(self) -> float:
        """The fraction by which the request is reduced, from 0 to 1."""
        return 1 - self.after / self.before if self.before else 1.0


class StartAdvice(Struct, frozen=True):
    """A change with which the job starts now, and its start."""

    change: OptionChange
    start: JobStart


def advice(
    snapshot: Snapshot, job: QueuedJob, decided: Plan | None = None, *, most: int = TRIES
) -> Steps[list[StartAdvice]]:
    """Return the smallest sufficient change of each option, the smallest first. At most `most` are tried.

    Between the steps the queue of `snapshot` may have a changed job.
    """
    decided = decided or (yield from snapshot.plan_in_steps())
    start_advices: list[StartAdvice] = []
    tries = 0
    for changes in _changes(snapshot, job, decided):
        for change in changes:  # the smallest change first: the first that is sufficient is taken
            if not _may_fit(snapshot, change.job):
                continue
            tries += 1
            start = (yield from _start_with(snapshot, change.job)) if tries <= most else None
            yield
            if start is not None:
                start_advices.append(StartAdvice(change, start))
                break
    return sorted(start_advices, key=lambda start_advice: start_advice.change.size)


def _may_fit(snapshot: Snapshot, job: QueuedJob) -> bool:
    """Check quickly whether a change can help, before the whole queue is planned again."""
    return any(
        not isinstance(
            attempt(job.demand, snapshot.rooms_of(name), snapshot.host, snapshot.limits_of(name)), Shortfall
        )
        for name in job.partitions
    )


def _start_with(snapshot: Snapshot, job: QueuedJob) -> Steps[JobStart | None]:
    with snapshot.with_job(job):
        decided = yield from snapshot.plan_in_steps()
    return next((start for start in decided.starts if start.job_id == job.id), None)


def _changes(snapshot: Snapshot, job: QueuedJob, decided: Plan) -> Iterator[Iterable[OptionChange]]:
    demand = job.demand
    rooms = [room for name in job.partitions for room in snapshot.rooms_of(name)]
    if demand.gpus:
        yield _smaller_shares(job, rooms)
        yield _smaller_memories(job, rooms)
        yield _fewer_gpus(job)
        if demand.gpu_type and any(not is_of_type(room.gpu, demand.gpu_type) for room in rooms):
            other = replace(demand, gpu_type="")
            yield [OptionChange("gpu-type", replace(job, demand=other), 0, 0)]
    yield _shorter_limits(snapshot, job, decided)
    yield _smaller_amount(
        job, "cpus-per-task", demand.cpus, snapshot.host.cpus, lambda n: replace(demand, cpus=n)
    )
    if demand.host_memory:
        free_memory = snapshot.host.memory // _MIB * _MIB
        yield _smaller_amount(
            job, "mem", demand.host_memory, free_memory, lambda n: replace(demand, host_memory=n)
        )


def _smaller_shares(job: QueuedJob, rooms: Iterable[Room]) -> Iterator[OptionChange]:
    """Yield smaller shares, the largest first; memory that is requested in bytes stays."""
    demand = job.demand
    if not demand.share:
        return
    if demand.memory_part:
        return
    exact = {room.share // 100 * 100 for room in rooms}
    for share in sorted(exact | set(range(_STEP, WHOLE, _STEP)), reverse=True):
        if 0 < share < demand.share:
            yield OptionChange("gpus", _with(job, replace(demand, share=share)), demand.share, share)


def _smaller_memories(job: QueuedJob, rooms: Iterable[Room]) -> Iterator[OptionChange]:
    demand = job.demand
    if not demand.memory:
        return
    frees = {max(0, room.memory) for room in rooms if room.memory < demand.memory}
    for memory in sorted({free // step * step for free in frees for step in _MEMORY_STEPS}, reverse=True):
        if memory:
            yield OptionChange("gpu-mem", _with(job, replace(demand, memory=memory)), demand.memory, memory)


def _fewer_gpus(job: QueuedJob) -> Iterator[OptionChange]:
    demand = job.demand
    for gpus in range(demand.gpus - 1, 0, -1):
        changed = _with(job, replace(demand, gpus=gpus))
        yield OptionChange("gpus", changed, demand.gpus * WHOLE, gpus * WHOLE)


def _shorter_limits(snapshot: Snapshot, job: QueuedJob, decided: Plan) -> Iterator[OptionChange]:
    """Yield shorter time limits: the job would end before a reservation, or a partition allows them."""
    most = [
        int(backfill.at - snapshot.now)
        for backfill in decided.reserved.values()
        if snapshot.now < backfill.at < math.inf and backfill.job != job.id
    ]
    policy = snapshot.queue.order.policy
    most += [
        int(reservation.start - snapshot.now)
        for reservation in policy.reservations
        if reservation.start > snapshot.now
    ]
    if reservation := policy.reservation(job.reservation):
        most.append(int(reservation.end - snapshot.now))
    for name in job.partitions:
        partition = policy.partition(name)
        if partition is not None and partition.most.time:
            most.append(partition.most.time)
    for limit in sorted({seconds // 60 * 60 for seconds in most}, reverse=True):
        if limit >= _SHORTEST and (not job.time_limit or limit < job.time_limit):
            yield OptionChange("time", replace(job, time_limit=limit), job.time_limit, limit)


def _smaller_amount(
    job: QueuedJob, option: str, requested_amount: int, free_amount: int, changed: Callable[[int], Demand]
) -> Iterator[OptionChange]:
    """Yield the free amount of an option, if the request exceeds it."""
    if 0 < free_amount < requested_amount:
        yield OptionChange(option, _with(job, changed(free_amount)), requested_amount, free_amount)


def _with(job: QueuedJob, demand: Demand) -> QueuedJob:
    return replace(job, demand=demand)


# -- forecast -----------------------------------------------------------------


LOOKED_AHEAD = 400  # plans of one forecast: a job that starts later has an unknown start
Length = Callable[[QueuedJob], float]  # seconds that a waiting job is assumed to run; infinite: unknown


class Expected(Struct, frozen=True):
    """A start that is forecast."""

    at: float  # seconds since the epoch
    holds: tuple[Hold, ...]
    partition: str
    before: int  # number of jobs that end before it: the first ones of `Forecast.over`


class Forecast(Struct, frozen=True):
    """The forecast starts."""

    starts: dict[int, Expected]  # by job id
    over: Sequence[int]  # ids of the jobs that end, in order
    is_cut_off: bool = False  # too many jobs are ahead of the wanted jobs that have no start here


class _Later(Struct):
    """The host at a later time."""

    running: dict[int, Running]
    rooms: dict[int, Room]
    host: HostRoom
    ends: list[tuple[float, int, int]]  # a heap of (end time, number of the start, job id)
    unstarted: dict[int, int]  # queue entry -> number of its jobs that have not started
    boundaries: list[float]  # starts and ends of reservations, in order
    over: list[int] = field(default_factory=list)  # ids of the jobs that have ended
    count: int = 0

    def begin(self, job: Running, end: float) -> int:
        """Add a running job that ends at `end`; return its number here."""
        self.count += 1
        self.running[self.count] = job
        heappush(self.ends, (end, self.count, job.id))
        return self.count

    def start(self, start: JobStart, entry: QueuedJob, until: float, end: float) -> None:
        job = Running(
            entry.demand, start.holds, until, start.partition, entry.owner, start.job_id, entry.reservation
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
    """Return the room after the ended jobs have left the GPU."""
    return replace(room, cleaning=False)


def forecast(
    snapshot: Snapshot, length: Length, ends: Callable[[Running], float], entry_ids: Collection[int]
) -> Steps[Forecast]:
    """Forecast the starts of the wanted queue entries; of an array, the start of its first task.

    `ends` returns when a running job is assumed to end, in seconds since the epoch. The
    queue of `snapshot` is changed by the steps, and restored at the end.
    """
    later = _begun(snapshot, ends)
    expecteds: dict[int, Expected] = {}
    entries: list[QueuedJob] = []
    missing, at = set(entry_ids), snapshot.now
    try:
        for _ in range(snapshot.plans(LOOKED_AHEAD)):
            decided = yield from plan_in_steps(
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
                    expecteds[start.job_id] = Expected(at, start.holds, start.partition, len(later.over))
                _start_job(snapshot, later, start, entries, length=length, at=at)
            if not missing or (at := later.end_next()) == math.inf:
                return Forecast(expecteds, later.over)
            yield
    finally:
        _put_back(snapshot, entries)
    return Forecast(expecteds, later.over, is_cut_off=True)


def _begun(snapshot: Snapshot, ends: Callable[[Running], float]) -> _Later:
    bounds = boundaries(snapshot.queue.order.policy.reservations, snapshot.now)
    later = _Later({}, {room.gpu.index: room for room in snapshot.free}, snapshot.host, [], {}, bounds)
    for job in snapshot.running:
        later.begin(job, max(snapshot.now, ends(job)))
    heapify(later.ends)
    return later


def _start_job(
    snapshot: Snapshot, later: _Later, start: JobStart, entries: list[QueuedJob], *, length: Length, at: float
) -> None:
    """Start one job of a queue entry at `at`."""
    entry = snapshot.queue.entry(start.job_id)
    assert entry is not None, "it was planned from this queue"
    if entry.id not in later.unstarted:
        entries.append(entry)
        later.unstarted[entry.id] = entry.count
    later.unstarted[entry.id] -= 1
    until = at + entry.time_limit if entry.time_limit else math.inf
    later.start(start, entry, until, at + max(1.0, length(entry)))
    if later.unstarted[entry.id] > 0:
        snapshot.queue.add(replace(entry, count=later.unstarted[entry.id]))
    else:
        snapshot.queue.remove(entry.id)


def _put_back(snapshot: Snapshot, entries: Iterable[QueuedJob]) -> None:
    for entry in entries:
        snapshot.queue.add(entry)
