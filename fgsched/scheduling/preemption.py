"""Choose the cheapest set of running jobs to preempt for a pending job.

Either partitions or qualities of service define who may preempt whom, in one direction, so no job is
preempted by a job that it could preempt. A choice is tested with the real plan: no job is preempted for a job
that would not start then.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import WHOLE, Demand, Hold, HostLimits
from fgsched.domain.policy import CANCEL, OFF, REQUEUE, SUSPEND, Policy, PreemptRule
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.placement import HostRoom, Room, charged, fits
from fgsched.scheduling.planner import JobStart, Snapshot
from fgsched.scheduling.queue import JobClass, QueuedJob
from fgsched.scheduling.reservations import Running, attempt

_MAX_PAIRED = 12  # jobs on one GPU of which all pairs are tried
_MAX_SETS = 6  # sets of victims that are tried in a plan for one job
_RANK = {SUSPEND: 0, REQUEUE: 1, CANCEL: 2}


def preempt_rule_for(policy: Policy, kind: JobClass, partition: str, job: Running) -> PreemptRule | None:
    """Return the rule by which a running job may be preempted for this job class in a partition, or None."""
    victim_partition, victim_quality = policy.partition(job.partition), policy.quality(job.owner.qos)
    own_partition, own_quality = policy.partition(partition), policy.quality(kind.owner.qos)
    by_partition = (
        victim_partition is not None
        and own_partition is not None
        and victim_partition.name in own_partition.preempt
    )
    by_quality = (
        victim_quality is not None and own_quality is not None and victim_quality.name in own_quality.preempt
    )
    if not (by_partition or by_quality):
        return None
    rules = [source.preempt_rule for source in (victim_quality, victim_partition) if source is not None]
    modes = [rule.mode for rule in rules if rule.mode] or [REQUEUE]
    if OFF in modes:
        return None
    return PreemptRule(modes[0], max(rule.grace for rule in rules), max(rule.exempt for rule in rules))


def may_preempt(policy: Policy, kind: JobClass) -> bool:
    """Tell whether jobs of this class may preempt any other job."""
    quality = policy.quality(kind.owner.qos)
    if quality is not None and quality.preempt:
        return True
    return any(partition.preempt for name in kind.partitions if (partition := policy.partition(name)))


class Occupant(Struct, frozen=True):
    """A running job that may be preempted."""

    job: Running
    since: float  # start of the job, in seconds since the epoch
    may_requeue: bool  # the job may be requeued


class Victim(Struct, frozen=True, gc=False):
    """A running job to preempt, with the preemption mode."""

    job: Running
    mode: str
    grace: int = 0  # seconds
    loss: float = 0.0  # GPU seconds of work that would be lost
    age: float = 0.0  # seconds since its start

    @property
    def cost(self) -> tuple[float, float, int, int]:
        """Sort key: the cheapest victim loses the least GPU time, then ran for the shortest time."""
        return self.loss, self.age, _RANK[self.mode], self.job.id

    @property
    def remainder(self) -> Running | None:
        """Return the job as it is while suspended: without share and CPUs. None for the other modes."""
        if self.mode != SUSPEND:
            return None
        demand = replace(self.job.demand, cpus=0)
        return self.job._replace(
            demand=demand, holds=tuple(replace(hold, share=0) for hold in self.job.holds)
        )


class _FreeCapacity(Struct, frozen=True):
    """Free capacity for the jobs of one partition."""

    rooms: tuple[Room, ...]
    host: HostRoom
    limits: HostLimits

    def fits_now(self, demand: Demand) -> bool:
        return not isinstance(attempt(demand, self.rooms, self.host, self.limits), Shortfall)

    def without(self, victims: Iterable[Victim]) -> "_FreeCapacity":
        rooms, host = freed(self.rooms, self.host, victims)
        return _FreeCapacity(tuple(rooms), host, self.limits)


def freed(rooms: Iterable[Room], host: HostRoom, victims: Iterable[Victim]) -> tuple[list[Room], HostRoom]:
    """Return the free capacity after the preemption of these jobs."""
    free = {room.gpu.index: room for room in rooms}
    for victim in victims:
        host = host.plus(victim.job.demand)
        if (remainder := victim.remainder) is not None:
            host = host.less(remainder.demand)
        for hold in victim.job.holds:
            if hold.gpu in free:
                free[hold.gpu] = _with(free[hold.gpu], hold, remainder=remainder is not None)
    return list(free.values()), host


def _with(room: Room, hold: Hold, *, remainder: bool) -> Room:
    return replace(room, share=room.share + hold.share) if remainder else room.plus(hold)


def without(snapshot: Snapshot, victims: Sequence[Victim]) -> Snapshot:
    """Return the snapshot after these jobs were preempted.

    A suspended job keeps its place among the running jobs: a plan can depend on their order.
    """
    remainders = {victim.job.id: victim.remainder for victim in victims}
    rooms, host = freed(snapshot.free, snapshot.host, victims)
    running = [part for job in snapshot.running if (part := remainders.get(job.id, job)) is not None]
    return replace(snapshot, running=running, free=rooms, host=host)


def candidates(
    snapshot: Snapshot, kind: JobClass, partition: str, occupants: Iterable[Occupant]
) -> list[Victim]:
    """Return the jobs that may be preempted for this class in a partition, cheapest first."""
    policy = snapshot.queue.order.policy
    usable = {room.gpu.index: room.gpu.usable for room in snapshot.free}
    victims = []
    for occupant in occupants:
        rule = preempt_rule_for(policy, kind, partition, occupant.job)
        age = max(0.0, snapshot.now - occupant.since)
        if rule is None or age < rule.exempt or occupant.job.reservation not in ("", kind.reservation):
            continue
        mode = CANCEL if rule.mode == REQUEUE and not occupant.may_requeue else rule.mode
        share = sum(charged(hold, usable.get(hold.gpu, 0)) for hold in occupant.job.holds)
        loss = 0.0 if mode == SUSPEND else age * share / WHOLE
        victims.append(Victim(occupant.job, mode, rule.grace, loss, age))
    return sorted(victims, key=attrgetter("cost"))


def victims(
    snapshot: Snapshot, job: QueuedJob, occupants: Sequence[Occupant], starts: Sequence[JobStart] = ()
) -> tuple[Victim, ...]:
    """Return the jobs to preempt so that this job starts; () if it starts anyway, or would not start.

    `starts` are other jobs that the plan starts; they keep their capacity.
    """
    kind, capacity = job.kind, snapshot.capacity()
    ids = {job.id, *(start.job_id for start in starts)}
    for name in kind.partitions:
        if (
            snapshot.queue.order.policy.partition(name) is None
            or capacity.blocking_rule(kind, name) is not None
        ):
            continue
        ranked_victims = candidates(snapshot, kind, name, occupants)
        free = _free_capacity(snapshot, capacity.rooms_for(kind, name), name, starts)
        if not ranked_victims or free.fits_now(kind.demand):
            continue
        for chosen in islice(victim_sets(kind.demand, ranked_victims, free), _MAX_SETS):
            after = without(snapshot, chosen)
            if ids <= {start.job_id for start in after.plan().starts} and _precedes_all(after, job, chosen):
                return chosen
    return ()


def _precedes_all(after: Snapshot, job: QueuedJob, chosen: Iterable[Victim]) -> bool:
    """Tell whether the job has a higher rank than all of these in the partition where it would start.

    A job with several partitions may start in a different one, in which the others could preempt it.
    """
    policy = after.queue.order.policy
    with after.with_claim(job.kind):
        partition = next((start.partition for start in after.plan().starts if start.job_id == job.id), "")
    return partition != "" and all(
        preempt_rule_for(policy, job.kind, partition, victim.job) is not None for victim in chosen
    )


def _free_capacity(
    snapshot: Snapshot, free: Iterable[Room], partition: str, starts: Iterable[JobStart]
) -> _FreeCapacity:
    host = snapshot.host
    rooms = {room.gpu.index: room for room in free}
    for start in starts:
        kind = snapshot.queue.kind(start.job_id)
        host = host.less(kind.demand) if kind else host
        for hold in start.holds:
            if hold.gpu in rooms:
                rooms[hold.gpu] = rooms[hold.gpu].less(hold)
    return _FreeCapacity(tuple(rooms.values()), host, snapshot.limits_of(partition))


def victim_sets(
    demand: Demand, victims: Sequence[Victim], capacity: _FreeCapacity
) -> list[tuple[Victim, ...]]:
    """Return minimal sets of victims that free enough, cheapest first."""
    if not capacity.without(victims).fits_now(demand):
        return []
    sets = [_minimal_set(demand, chosen, capacity) for chosen in _sufficient_sets(demand, victims, capacity)]
    unique = {frozenset(victim.job.id for victim in chosen): chosen for chosen in sets}
    return sorted(unique.values(), key=_set_cost)


def _set_cost(chosen: Sequence[Victim]) -> tuple[float, int, float, list[int]]:
    loss, age = sum(victim.loss for victim in chosen), sum(victim.age for victim in chosen)
    return loss, len(chosen), age, sorted(victim.job.id for victim in chosen)


def _sufficient_sets(
    demand: Demand, victims: Sequence[Victim], capacity: _FreeCapacity
) -> Iterator[Sequence[Victim]]:
    """Yield sets that free enough: single jobs, pairs, all jobs of a GPU, and jobs added cheapest first."""
    few = victims[:_MAX_PAIRED]
    for chosen in [*((victim,) for victim in victims), *combinations(few, 2)]:
        if capacity.without(chosen).fits_now(demand):
            yield chosen
    yield _completed_set(demand, (), victims, capacity)
    cleared = _by_gpu(demand, victims, capacity)
    for first in range(max(0, len(cleared) - demand.gpus + 1) if demand.gpus else 0):
        together = {victim.job.id: victim for gpu in cleared[first : first + demand.gpus] for victim in gpu}
        yield _completed_set(demand, tuple(together.values()), victims, capacity)


def _by_gpu(demand: Demand, victims: Sequence[Victim], capacity: _FreeCapacity) -> list[tuple[Victim, ...]]:
    """Return for each GPU that can be cleared enough the jobs to remove from it, cheapest GPU first."""
    cleared = []
    for room in capacity.rooms:
        gpu_victims = [
            victim for victim in victims if any(hold.gpu == room.gpu.index for hold in victim.job.holds)
        ]
        removed_victims: list[Victim] = []
        while (enough := _has_room(demand, room, removed_victims, capacity.limits)) is False and gpu_victims:
            removed_victims.append(gpu_victims.pop(0))
        if enough:
            cleared.append(tuple(removed_victims))
    return sorted(cleared, key=_set_cost)


def _has_room(demand: Demand, room: Room, removed_victims: Sequence[Victim], limits: HostLimits) -> bool:
    rooms, _ = freed([room], HostRoom(0, 0), removed_victims)
    return fits(demand, rooms[0], limits) is not None


def _completed_set(
    demand: Demand, chosen: Sequence[Victim], victims: Sequence[Victim], capacity: _FreeCapacity
) -> Sequence[Victim]:
    """Add the cheapest other jobs one by one until the set frees enough."""
    chosen = list(chosen)
    remaining_victims = iter([victim for victim in victims if victim not in chosen])
    while not capacity.without(chosen).fits_now(demand):
        chosen.append(next(remaining_victims))
    return chosen


def _minimal_set(demand: Demand, chosen: Sequence[Victim], capacity: _FreeCapacity) -> tuple[Victim, ...]:
    """Remove jobs that are not needed from the set, the most expensive first."""
    for victim in sorted(chosen, key=attrgetter("cost"), reverse=True):
        smaller_set = [other for other in chosen if other is not victim]
        if capacity.without(smaller_set).fits_now(demand):
            chosen = smaller_set
    return tuple(sorted(chosen, key=attrgetter("cost")))
