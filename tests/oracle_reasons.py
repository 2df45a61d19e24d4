"""Whether a job waits for what it says that it waits for: each reason, looked at the long way."""

import math
from collections.abc import Callable

from fgsched.domain.job import Demand, GpuState, Hold, Job
from fgsched.domain.policy import Partition
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Shortfall
from fgsched.lifecycle.dependencies import parse_dependency
from fgsched.scheduling.placement import charged, cost
from oracle import Left, Truth


class Reasons(Truth):
    """`reasons.is_true(job, reason, short)`, for each job that waits."""

    def is_true(self, job: Job, reason: Reason, shortfall: Shortfall | None) -> bool:
        """Whether a job waits for what it says it waits for."""
        if reason in _GATES:
            return _GATES[reason](self, job)
        if shortfall is None or shortfall.reason is not reason:
            return False
        found = [self.policy.partition(name) for name in job.request.partition.split(",")]
        if any(one is None for one in found) and reason is Reason.PARTITION_DOWN:
            return True
        return any(self.is_true_in(job, shortfall, one) for one in found if one is not None)

    def is_true_in(self, job: Job, shortfall: Shortfall, partition: Partition) -> bool:
        match shortfall.reason:
            case Reason.PARTITION_DOWN:
                return partition.state == "down"
            case Reason.PARTITION_INACTIVE:
                return partition.state == "inactive"
            case Reason.PARTITION_TIME_LIMIT:
                return bool(partition.most.time) and not 0 < job.request.time_limit <= partition.most.time
            case Reason.RESERVATION:
                return self._is_booked(job, shortfall, partition)
            case Reason.RESERVED_FOR_TOP:
                return self._would_delay(job, partition)
        if shortfall.scope:
            return self._is_at_limit(job, shortfall, partition)
        return not self.fits(job, partition) and self._is_short(job, shortfall, partition)

    def _is_at_limit(self, job: Job, shortfall: Shortfall, partition: Partition) -> bool:
        """One more such job would pass the limit that is named."""
        for scope in self.scopes(job, partition.name):
            if scope.label != shortfall.scope:
                continue
            jobs, share, seconds = self.sums(scope)
            demand = job.request.demand
            if shortfall.what == "running":
                return jobs >= scope.limits.running > 0
            if shortfall.what == "gpus":
                asked = [cost(demand, gpu).share for gpu in self.gpus.values()]
                return share + max(asked) * demand.gpus > scope.limits.share
            most = max((charged(cost(demand, gpu), gpu.usable) for gpu in self.gpus.values()), default=0)
            more = job.request.time_limit * demand.gpus * most / 10_000
            return seconds + more > scope.limits.gpu_seconds or seconds >= scope.limits.gpu_seconds
        return False

    def _is_booked(self, job: Job, shortfall: Shortfall, partition: Partition) -> bool:
        reservation = self.policy.reservation(shortfall.scope)
        if shortfall.what == "gone":
            return reservation is None or reservation.end <= self.now
        if reservation is None or reservation.end <= self.now:
            return False
        if shortfall.what == "room":
            reaches = reservation.start < self.ends(job) and not job.request.reservation
            return (
                reaches
                and not self.fits(job, partition)
                and self.fits(job, partition, self._gpus_of(partition))
            )
        if shortfall.what == "begin":
            return self.now < reservation.start
        return not job.request.time_limit or self.ends(job) > reservation.end

    def _gpus_of(self, partition: Partition) -> Left:
        left = self.left(self.now)
        return {gpu: room for gpu, room in left.items() if not partition.gpus or gpu in partition.gpus}

    def _would_delay(self, job: Job, partition: Partition) -> bool:
        """It fits, and wherever it went it would take something that is promised to another job."""
        demand, pool = job.request.demand, job.request.reservation
        relevant = [
            backfill
            for backfill in self.site.world.engine.jobtable._decided.reserved.values()
            if backfill.job != job.id and not (self.ends(job) <= backfill.at < math.inf)
        ]
        if not self.fits(job, partition):
            return False
        if not all(backfill.host.fits(demand) for backfill in relevant):
            return True
        places = self.fitting(demand, partition, self.rooms_for(job, partition))
        free = [hold for hold in places if all(one.has_room(hold) for one in relevant if one.pool == pool)]
        return len(free) < demand.gpus or self._takes_last_place(job, partition, places)

    def _takes_last_place(self, job: Job, partition: Partition, places: list[Hold]) -> bool:
        """Who has a reservation could not start beside it, because of a limit of both."""
        for backfill in self.site.world.engine.jobtable._decided.reserved.values():
            if backfill.usage is None or backfill.at == math.inf or backfill.job == job.id:
                continue
            first = self.site.world.job(backfill.job)
            of_first = {scope.key for scope in self.scopes(first, backfill.usage.partition)}
            for scope in self.scopes(job, partition.name):
                if scope.key not in of_first:
                    continue
                jobs, share, seconds = self.sums(scope)
                mine = places[: job.request.demand.gpus]
                share += sum(hold.share for hold in mine) + backfill.usage.share
                charge = sum(charged(hold, self.gpus[hold.gpu].usable) for hold in mine) / 10_000
                seconds += charge * job.request.time_limit + backfill.usage.seconds
                limits = scope.limits
                if (
                    (limits.running and jobs + 2 > limits.running)
                    or (limits.share and share > limits.share)
                    or (limits.gpu_seconds and seconds > limits.gpu_seconds)
                ):
                    return True
        return False

    def _is_short(self, job: Job, shortfall: Shortfall, partition: Partition) -> bool:
        """What is said to be lacking is lacking."""
        demand, rooms = job.request.demand, self.rooms_for(job, partition)
        up = {gpu: room for gpu, room in rooms.items() if self.gpus[gpu].state is GpuState.OK}
        shares = [left for left, _ in up.values()]
        share, memory = up.get(-1 if shortfall.gpu is None else shortfall.gpu, (0, 0))
        most = partition.limits(self.limits).max_jobs_per_gpu
        cleaning = {hold.gpu for one in self.holding for hold in one.holds if one not in self.busy}
        lacking: dict[tuple[Reason, str], Callable[[], bool]] = {
            (Reason.RESOURCES, "cpus"): lambda: demand.cpus > self.cpus(),
            (Reason.RESOURCES, "cards"): lambda: (
                len(self.fitting(demand, partition, rooms)) == shortfall.remaining
            ),
            (Reason.RESOURCES, "share"): lambda: (
                share < shortfall.need and (not demand.share or max(shares) < shortfall.need)
            ),
            (Reason.GPU_FRAGMENTED, "share"): lambda: sum(shares) >= shortfall.need > max(shares),
            (Reason.GPU_MEMORY, "memory"): lambda: not any(self._is_wide(demand, gpu, up[gpu]) for gpu in up),
            (Reason.GPU_EXTERNAL_USE, "memory"): lambda: (
                memory < shortfall.need <= memory + self.strangers(shortfall.gpu or 0)
            ),
            (Reason.GPU_DRAINED, "cards"): lambda: len(up) < demand.gpus,
            (Reason.GPU_MAX_JOBS, "jobs"): lambda: 0 < most <= len(self.on(shortfall.gpu or 0)),
            (Reason.GPU_CLEANING, "share"): lambda: shortfall.gpu in cleaning,
        }
        return lacking[shortfall.reason, shortfall.what]()

    def _is_wide(self, demand: Demand, gpu: int, room: tuple[int, int]) -> bool:
        hold = cost(demand, self.gpus[gpu])
        return room[0] >= hold.share and room[1] >= hold.memory

    # -- what keeps a job from being considered at all --------------------------------------------

    def has_open_dependency(self, job: Job) -> bool:
        terms = parse_dependency(job.depends).terms if job.depends else ()
        for term in terms:
            if term.kind == "singleton":
                return any(
                    other.id != job.id
                    and (other.uid, other.request.name) == (job.uid, job.request.name)
                    and (other.state.holds or other.id < job.id)
                    for other in self.jobs
                )
            rows = [past.job for past in self.site.world.store.tasks.of(term.job)] or [
                self.site.world.job(term.job)
            ]
            if term.kind == "after":
                return any(row.started_at is None for row in rows)
            if any(not row.state.is_final for row in rows):
                return True
        return False

    def is_dependency_lost(self, job: Job) -> bool:
        for term in parse_dependency(job.depends).terms:
            rows = [past.job for past in self.site.world.store.tasks.of(term.job)] or [
                self.site.world.job(term.job)
            ]
            wants = {"afterok": JobState.COMPLETED}.get(term.kind)
            if wants and any(row.state.is_final and row.state is not wants for row in rows):
                return True
            if term.kind == "afternotok" and all(row.state is JobState.COMPLETED for row in rows):
                return True
            if term.kind == "after" and all(row.state.is_final for row in rows):
                return True
        return False


_GATES: dict[Reason, Callable[[Reasons, Job], bool]] = {
    Reason.HELD_USER: lambda truth, job: job.held == "user",
    Reason.HELD_ADMIN: lambda truth, job: job.held == "admin",
    Reason.HELD_MAX_REQUEUE: lambda truth, job: bool(job.held) and job.failures > 0,
    Reason.DEPENDENCY: Reasons.has_open_dependency,
    Reason.DEPENDENCY_NEVER: Reasons.is_dependency_lost,
    Reason.BEGIN_TIME: lambda truth, job: truth.now < max(job.request.begin, job.not_before),
    Reason.HOST_SHORTAGE: lambda truth, job: truth.now < job.not_before and bool(job.warning),
    Reason.ARRAY_TASK_LIMIT: lambda truth, job: (
        sum(other.array == job.array for other in truth.holding) >= job.request.throttle > 0
    ),
}
