"""Find single changes of a waiting job's request with which it would start now, by trying them."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from fgsched.domain.job import WHOLE, Demand
from fgsched.scheduling.backfill import attempt
from fgsched.scheduling.placement import Room, Shortfall, is_of_type
from fgsched.scheduling.planner import Plan, Start
from fgsched.scheduling.queue import QueuedJob
from fgsched.scheduling.snapshot import Snapshot

_MIB = 2**20
_STEP = 500  # ten-thousandths: rather 0.5 than 0.5417
_MEMORY_STEPS = (1024 * _MIB, 256 * _MIB, _MIB)
_SHORTEST = 60  # seconds: a limit below it is no advice
TRIES = 64  # plans for one question, where they are cheap


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one option. `option` is the name in fgsub, without dashes."""

    option: str
    job: QueuedJob  # with the change made
    before: int  # ten-thousandths, bytes, seconds or a number
    after: int  # the same; of a type: 0, any

    @property
    def size(self) -> float:
        """The part of the request that is given up, from 0 to 1."""
        return 1 - self.after / self.before if self.before else 1.0


@dataclass(frozen=True, slots=True)
class Advice:
    """A change with which the job starts now, and its start."""

    change: Change
    start: Start


def advice(
    snapshot: Snapshot, job: QueuedJob, decided: Plan | None = None, *, most: int = TRIES
) -> list[Advice]:
    """Return the smallest sufficient change of each option, the smallest first. At most `most` are tried."""
    decided = decided or snapshot.plan()
    found: list[Advice] = []
    tries = 0
    for changes in _changes(snapshot, job, decided):
        for change in changes:  # the smallest change first: the first that is sufficient is taken
            if not _may_fit(snapshot, change.job):
                continue
            tries += 1
            start = _start_with(snapshot, change.job) if tries <= most else None
            if start is not None:
                found.append(Advice(change, start))
                break
    return sorted(found, key=lambda each: each.change.size)


def _may_fit(snapshot: Snapshot, job: QueuedJob) -> bool:
    """Check quickly whether a change can help, before the whole queue is planned again."""
    return any(
        not isinstance(
            attempt(job.demand, snapshot.rooms_of(name), snapshot.host, snapshot.limits_of(name)), Shortfall
        )
        for name in job.partitions
    )


def _start_with(snapshot: Snapshot, job: QueuedJob) -> Start | None:
    with snapshot.with_job(job):
        return next((start for start in snapshot.plan().starts if start.job_id == job.id), None)


def _changes(snapshot: Snapshot, job: QueuedJob, decided: Plan) -> Iterator[Iterable[Change]]:
    demand = job.demand
    rooms = [room for name in job.partitions for room in snapshot.rooms_of(name)]
    if demand.gpus:
        yield _smaller_shares(job, rooms)
        yield _smaller_memories(job, rooms)
        yield _fewer_gpus(job)
        if demand.gpu_type and any(not is_of_type(room.gpu, demand.gpu_type) for room in rooms):
            other = replace(demand, gpu_type="")
            yield [Change("gpu-type", replace(job, demand=other), 0, 0)]
    yield _shorter_limits(snapshot, job, decided)
    yield _smaller_amount(
        job, "cpus-per-task", demand.cpus, snapshot.host.cpus, lambda n: replace(demand, cpus=n)
    )
    if demand.host_memory:
        left = snapshot.host.memory // _MIB * _MIB
        yield _smaller_amount(job, "mem", demand.host_memory, left, lambda n: replace(demand, host_memory=n))


def _smaller_shares(job: QueuedJob, rooms: Iterable[Room]) -> Iterator[Change]:
    """Yield smaller shares, the largest first; memory that is requested in bytes stays."""
    demand = job.demand
    if not demand.share:
        return
    if demand.memory_part:
        return
    exact = {room.share // 100 * 100 for room in rooms}
    for share in sorted(exact | set(range(_STEP, WHOLE, _STEP)), reverse=True):
        if 0 < share < demand.share:
            yield Change("gpus", _with(job, replace(demand, share=share)), demand.share, share)


def _smaller_memories(job: QueuedJob, rooms: Iterable[Room]) -> Iterator[Change]:
    demand = job.demand
    if not demand.memory:
        return
    frees = {max(0, room.memory) for room in rooms if room.memory < demand.memory}
    for memory in sorted({free // step * step for free in frees for step in _MEMORY_STEPS}, reverse=True):
        if memory:
            yield Change("gpu-mem", _with(job, replace(demand, memory=memory)), demand.memory, memory)


def _fewer_gpus(job: QueuedJob) -> Iterator[Change]:
    demand = job.demand
    for gpus in range(demand.gpus - 1, 0, -1):
        changed = _with(job, replace(demand, gpus=gpus))
        yield Change("gpus", changed, demand.gpus * WHOLE, gpus * WHOLE)


def _shorter_limits(snapshot: Snapshot, job: QueuedJob, decided: Plan) -> Iterator[Change]:
    """Yield time limits with which it ends before a reservation, or that a partition allows."""
    most = [
        int(backfill.at - snapshot.now)
        for backfill in decided.reserved.values()
        if snapshot.now < backfill.at < math.inf and backfill.job != job.id
    ]
    policy = snapshot.queue.order.policy
    most += [int(one.start - snapshot.now) for one in policy.reservations if one.start > snapshot.now]
    if reservation := policy.reservation(job.reservation):
        most.append(int(reservation.end - snapshot.now))
    for name in job.partitions:
        partition = policy.partition(name)
        if partition is not None and partition.most.time:
            most.append(partition.most.time)
    for limit in sorted({seconds // 60 * 60 for seconds in most}, reverse=True):
        if limit >= _SHORTEST and (not job.time_limit or limit < job.time_limit):
            yield Change("time", replace(job, time_limit=limit), job.time_limit, limit)


def _smaller_amount(
    job: QueuedJob, option: str, asked: int, left: int, changed: Callable[[int], Demand]
) -> Iterator[Change]:
    """Yield the one smaller amount of an option: what is left."""
    if 0 < left < asked:
        yield Change(option, _with(job, changed(left)), asked, left)


def _with(job: QueuedJob, demand: Demand) -> QueuedJob:
    return replace(job, demand=demand)
