"""Find everything that keeps a waiting job from starting, and what would remove each blocker."""

import math
from collections.abc import Iterator

from fgsched.domain.job import Demand, Reason
from fgsched.domain.waiting import UNKNOWN, Blocker, Shortfall, Unblock
from fgsched.scheduling.backfill import Running, attempt, reserve
from fgsched.scheduling.capacity import Capacity
from fgsched.scheduling.limits import Scope, scopes
from fgsched.scheduling.planner import Plan
from fgsched.scheduling.priority import JobClass
from fgsched.scheduling.queue import QueuedJob
from fgsched.scheduling.snapshot import Snapshot, demand_parts, ends_by


def blockers(snapshot: Snapshot, job: QueuedJob, decided: Plan | None = None) -> list[Blocker]:
    """Return every blocker of a queued job, the binding one first; none if it starts now.

    `decided` is the plan of `snapshot`, if the caller already has it.
    """
    decided = decided or snapshot.plan()
    if any(start.job_id == job.id for start in decided.starts):
        return []
    kind, capacity = job.kind, snapshot.capacity()
    found = [each for name in kind.partitions for each in _in_partition(snapshot, capacity, kind, name)]
    if not any(each.cause.reason is not Reason.RESERVED_FOR_TOP for each in found):
        found += _reservations(snapshot, kind, decided)
    shown = decided.shortfall(kind)
    if shown is not None and all(each.cause != shown for each in found):
        found.append(Blocker(shown, partition=kind.partitions[0]))
    return sorted(dict.fromkeys(found), key=lambda each: each.cause != shown)


def _in_partition(snapshot: Snapshot, capacity: Capacity, kind: JobClass, name: str) -> Iterator[Blocker]:
    if (rule := capacity.rule(kind, name)) is not None:
        begins = rule.reason is Reason.RESERVATION and rule.what == "begin"
        yield Blocker(rule, Unblock(at=float(rule.left)) if begins else UNKNOWN, name)
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
        if any(each.key == scope.key for each in scopes(job.partition, job.who, policy))
    ]
    first = min(inside, key=lambda job: (job.until, job.id), default=None)
    return Unblock((first.id,), _known(first.until)) if first else UNKNOWN


def _room_for(snapshot: Snapshot, part: Demand, name: str) -> Unblock:
    """Return the ends that free enough for a part of a demand, at the latest by the time limits."""
    rooms, limits = snapshot.rooms_of(name), snapshot.limits_of(name)
    backfill = reserve(part, snapshot.running, rooms, snapshot.host, limits=limits)
    if backfill is None:
        return UNKNOWN
    cards = {hold.gpu for hold in backfill.holds}

    def matters(job: Running) -> bool:
        if not (ends_by(job, backfill.at) or (backfill.at == math.inf and job.until == math.inf)):
            return False
        return bool(cards & {hold.gpu for hold in job.holds}) if cards else _gives_back(job.demand, part)

    named = sorted(filter(matters, snapshot.running), key=lambda job: (job.until, job.id))
    return Unblock(tuple(job.id for job in named if job.id), _known(backfill.at))


def _gives_back(demand: Demand, part: Demand) -> bool:
    """Tell whether a job with this demand holds some of what `part` asks for."""
    wanted = {name for name, _ in part.resources}
    if wanted:
        return any(name in wanted for name, _ in demand.resources)
    return demand.host_memory > 0 if part.host_memory else demand.cpus > 0


def _reservations(snapshot: Snapshot, kind: JobClass, decided: Plan) -> Iterator[Blocker]:
    """Yield the backfill reservations of jobs ahead of it that its start would delay."""
    until = snapshot.now + kind.time_limit if kind.time_limit else math.inf
    for name, backfill in decided.reserved.items():
        if backfill.is_over(until):
            continue
        for partition in kind.partitions:
            limits = snapshot.limits_of(partition)
            found = attempt(
                kind.demand, snapshot.capacity().rooms_for(kind, partition), snapshot.host, limits
            )
            if isinstance(found, Shortfall):
                continue
            if not backfill.allows(kind.demand, found, until, kind.reservation):
                gpu = min((hold.gpu for hold in found if hold.gpu in backfill.spare), default=None)
                shortfall = Shortfall(Reason.RESERVED_FOR_TOP, gpu=gpu)
                lift = Unblock((backfill.job,), _known(backfill.at), is_start=True)
                yield Blocker(shortfall, lift, name.split(" ")[0])


def _known(at: float) -> float | None:
    """Return a time, or None for one that is never reached."""
    return at if at < math.inf else None
