"""The input of a plan, as one value, so that questions can change it and plan again."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Demand, HostLimits
from fgsched.scheduling.backfill import Running
from fgsched.scheduling.capacity import Capacity
from fgsched.scheduling.placement import Host, Room
from fgsched.scheduling.planner import Plan, plan
from fgsched.scheduling.priority import JobClass
from fgsched.scheduling.queue import Queue, QueuedJob

_MAX_GROUP_CHECKS = 100_000  # at a kind of job, in all plans of one answer


class Snapshot(Struct, frozen=True):
    """Queue, running jobs and free capacity at one time. Each question restores the queue."""

    queue: Queue
    running: Sequence[Running]
    free: Sequence[Room]
    host: Host
    limits: HostLimits
    now: float

    def plan(self) -> Plan:
        return plan(self.queue, self.running, self.free, self.host, limits=self.limits, now=self.now)

    def plans(self, limit: int) -> int:
        """Return how many plans one answer may make: fewer with many classes, as the loop waits."""
        return max(1, min(limit, _MAX_GROUP_CHECKS // max(1, self.queue.kinds)))

    def capacity(self) -> Capacity:
        """Return what is free, without reservations."""
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

    def rooms_of(self, partition: str) -> list[Room]:
        """Return the free capacity of the GPUs that a partition may use."""
        found = self.queue.order.policy.partition(partition)
        cards = found.cards if found else ()
        return [room for room in self.free if not cards or room.gpu.index in cards]

    def limits_of(self, partition: str) -> HostLimits:
        found = self.queue.order.policy.partition(partition)
        return found.limits(self.limits) if found else self.limits


def demand_parts(demand: Demand) -> list[Demand]:
    """Return the parts of a demand that can be short independently."""
    nothing = Demand(cpus=0)
    found = [replace(nothing, cpus=demand.cpus)]
    if demand.host_memory:
        found.append(replace(nothing, host_memory=demand.host_memory))
    found += [replace(nothing, resources=((name, count),)) for name, count in demand.resources]
    if demand.gpus:
        found.append(replace(demand, cpus=0, host_memory=0, resources=()))
    return found


def ends_by(job: Running, time: float) -> bool:
    """Tell whether the job certainly ends by `moment`; a job without a limit never does."""
    return job.until <= time and job.until < math.inf
