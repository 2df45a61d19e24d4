"""What is true of a site at a moment, found the long way: what is left of it, and which limits are passed."""

import math
from collections.abc import Iterator

from fgsched.domain.job import Demand, GpuState, Hold, Job
from fgsched.domain.policy import Partition, Reservation
from fgsched.domain.states import JobState
from fgsched.scheduling.limits import Scope, scopes
from fgsched.scheduling.placement import charged, cost, is_of_type
from site_fixture import Site

Left = dict[int, tuple[int, int]]  # card -> share, bytes


class Truth:
    """Everything is counted anew from the rows of the store and the cards."""

    def __init__(self, site: Site) -> None:
        self.site, self.now = site, site.world.now
        engine = site.world.engine
        self.policy, self.limits = engine.policy, engine.limits
        self.gpus = {gpu.index: gpu for gpu in engine.gpu_states.gpus}
        self.readings = engine.gpu_states.readings
        self.jobs = site.world.store.open_jobs()
        self.holding = [job for job in self.jobs if job.state.holds]
        self.busy = [job for job in self.holding if job.state is not JobState.COMPLETING]

    # -- what is left ---------------------------------------------------------------------------

    def until(self, job: Job) -> float:
        """When it surely holds nothing any more, by its limit."""
        if job.state is JobState.COMPLETING:
            return self.now
        if job.state is JobState.SUSPENDED or job.deadline is None:
            by_limit = math.inf
        else:
            by_limit = max(self.now, job.deadline)
        is_being_preempted = (
            max(self.now, job.preemption.until) if job.is_being_preempted and job.preemption else math.inf
        )
        return min(by_limit, is_being_preempted)

    def on(self, index: int) -> list[Hold]:
        return [hold for job in self.holding for hold in job.holds if hold.gpu == index]

    def strangers(self, index: int) -> int:
        reading = self.readings.get(index)
        return reading.external if reading else 0

    def left(self, at: float) -> Left:
        """What no job holds then, of those that run now."""
        stay = self.holding if at <= self.now else [job for job in self.holding if self.until(job) > at]
        found = {index: (10_000, gpu.usable - self.strangers(index)) for index, gpu in self.gpus.items()}
        for hold in (hold for job in stay for hold in job.holds if hold.gpu in found):
            share, memory = found[hold.gpu]
            found[hold.gpu] = share - hold.share, memory - hold.memory
        return found

    def kept(self, reservation: Reservation, at: float) -> Left:
        """What a reservation of operators still keeps then, beside its own jobs."""
        found = {hold.gpu: (hold.share, hold.memory) for hold in reservation.holds}
        for job in self.holding:
            if job.request.reservation == reservation.name and (at <= self.now or self.until(job) > at):
                for hold in (hold for hold in job.holds if hold.gpu in found):
                    share, memory = found[hold.gpu]
                    found[hold.gpu] = share - hold.share, memory - hold.memory
        return {gpu: (max(0, share), max(0, memory)) for gpu, (share, memory) in found.items()}

    def rooms_for(self, job: Job, partition: Partition) -> Left:
        """What the reservations leave a job of the cards of a partition."""
        found = self._of_member(job) if job.request.reservation else self._of_none(job)
        return {gpu: room for gpu, room in found.items() if not partition.gpus or gpu in partition.gpus}

    def _of_member(self, job: Job) -> Left:
        reservation = self.policy.reservation(job.request.reservation)
        if reservation is None or not reservation.start <= self.now < reservation.end:
            return {}
        left = self.left(self.now)
        return {
            gpu: (min(share, left[gpu][0]), min(memory, left[gpu][1]))
            for gpu, (share, memory) in self.kept(reservation, self.now).items()
            if gpu in left
        }

    def _of_none(self, job: Job) -> Left:
        until = self.ends(job)
        begin = {float(one.start) for one in self.policy.reservations if self.now < one.start < until}
        rooms = [self._unkept(at) for at in [self.now, *sorted(begin)]]
        return {
            gpu: (min(room[gpu][0] for room in rooms), min(room[gpu][1] for room in rooms))
            for gpu in self.gpus
        }

    def _unkept(self, at: float) -> Left:
        found = self.left(at)
        for reservation in self.policy.reservations:
            if reservation.start <= at < reservation.end:
                for gpu, (share, memory) in self.kept(reservation, at).items():
                    found[gpu] = found[gpu][0] - share, found[gpu][1] - memory
        return found

    def ends(self, job: Job) -> float:
        """When a job that starts now is over, by its limit."""
        return self.now + job.request.time_limit if job.request.time_limit else math.inf

    # -- whether a job fits ---------------------------------------------------------------------

    def fitting(self, demand: Demand, partition: Partition, rooms: Left) -> list[Hold]:
        """What it would have of each card that has room for it."""
        limits = partition.limits(self.limits)
        found = []
        for index, (share, memory) in rooms.items():
            gpu = self.gpus[index]
            hold = cost(demand, gpu, limits.share_step)
            is_full = limits.max_jobs_per_gpu and len(self.on(index)) >= limits.max_jobs_per_gpu
            if (
                gpu.state is GpuState.OK
                and not is_full
                and hold.share <= share
                and hold.memory <= memory
                and is_of_type(gpu, demand.gpu_type)
            ):
                found.append(hold)
        return found

    def cpus(self) -> int:
        return self.limits.cpus - sum(
            job.request.demand.cpus for job in self.busy if not job.is_suspended_by_preemption
        )

    def fits(self, job: Job, partition: Partition, rooms: Left | None = None) -> bool:
        demand = job.request.demand
        rooms = self.rooms_for(job, partition) if rooms is None else rooms
        enough = not demand.gpus or len(self.fitting(demand, partition, rooms)) >= demand.gpus
        return enough and demand.cpus <= self.cpus()

    # -- limits ---------------------------------------------------------------------------------

    def sums(self, scope: Scope) -> tuple[int, int, float]:
        """(jobs, share, GPU seconds used and still to come) of all that runs within a scope of limits."""
        within = [job for job in self.holding if scope.key in {one.key for one in self.scopes(job)}]
        seconds = sum(
            (self.until(job) - self.now) * charged(hold, self.gpus[hold.gpu].usable) / 10_000
            for job in within
            for hold in job.holds
            if self.until(job) < math.inf
        )
        share = sum(hold.share for job in within for hold in job.holds)
        return len(within), share, seconds + self.used(scope)

    def used(self, scope: Scope) -> float:
        used = self.site.world.engine.charges.used(self.site.world.engine.jobtable, self.policy, self.now)
        kind, *of = scope.key
        place = {"account": 0, "user": 1}.get(kind)
        return 0.0 if place is None else sum(each for owner, each in used.items() if owner[place] == of[0])

    def scopes(self, job: Job, partition: str = "") -> tuple[Scope, ...]:
        from fgsched.controller.jobtable import owner_of

        return scopes(partition or job.partition, owner_of(job), self.policy)

    def passed(self, job: Job) -> Iterator[str]:
        """The limits that this job, which has just been started, passes."""
        for scope in self.scopes(job):
            jobs, share, seconds = self.sums(scope)
            if scope.limits.running and jobs > scope.limits.running:
                yield f"{jobs} jobs of {scope.label}"
            if scope.limits.share and share > scope.limits.share:
                yield f"{share} held by {scope.label}"
            if scope.limits.gpu_seconds and seconds > scope.limits.gpu_seconds + 1e-6:
                yield f"{seconds} GPU seconds of {scope.label}"
