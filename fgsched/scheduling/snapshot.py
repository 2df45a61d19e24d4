"""What a plan is made of, kept together, so that one can ask: and if it were otherwise?"""

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

_GLANCES = 100_000  # at a kind of job, in all plans of one answer


class Snapshot(Struct, frozen=True):
    """The queue, what runs and what is free at one moment. The queue is as it was after every question."""

    queue: Queue
    running: Sequence[Running]
    free: Sequence[Room]
    host: Host
    limits: HostLimits
    now: float

    def plan(self) -> Plan:
        return plan(self.queue, self.running, self.free, self.host, limits=self.limits, now=self.now)

    def plans(self, most: int) -> int:
        """How many plans one answer may make: fewer where many kinds wait, for the loop stands still."""
        return max(1, min(most, _GLANCES // max(1, self.queue.kinds)))

    def capacity(self) -> Capacity:
        """What is free, with nothing reserved."""
        policy = self.queue.order.policy
        capacity = Capacity(
            self.running, self.free, self.host, limits=self.limits, policy=policy, now=self.now
        )
        capacity.count(self.queue.order.used)
        return capacity

    @contextmanager
    def instead(self, job: QueuedJob) -> Iterator[None]:
        """With this job in the place of the one with its id, or as one more."""
        before = self.queue.entry(job.id)
        self.queue.add(job)
        try:
            yield
        finally:
            self.queue.remove(job.id)
            if before is not None:
                self.queue.add(before)

    @contextmanager
    def claimed(self, kind: JobClass) -> Iterator[None]:
        """With others making room for one more job of this kind."""
        before = self.queue.claims
        self.queue.claims = before + Counter({kind: 1})
        try:
            yield
        finally:
            self.queue.claims = before

    def rooms_of(self, partition: str) -> list[Room]:
        """What is left of the cards that a partition may use."""
        found = self.queue.order.policy.partition(partition)
        cards = found.cards if found else ()
        return [room for room in self.free if not cards or room.gpu.index in cards]

    def limits_of(self, partition: str) -> HostLimits:
        found = self.queue.order.policy.partition(partition)
        return found.limits(self.limits) if found else self.limits


def parts_of(demand: Demand) -> list[Demand]:
    """A demand taken apart: each thing that may be short by itself."""
    nothing = Demand(cpus=0)
    found = [replace(nothing, cpus=demand.cpus)]
    if demand.host_memory:
        found.append(replace(nothing, host_memory=demand.host_memory))
    found += [replace(nothing, resources=((name, count),)) for name, count in demand.resources]
    if demand.gpus:
        found.append(replace(demand, cpus=0, host_memory=0, resources=()))
    return found


def ends_by(job: Running, moment: float) -> bool:
    """Whether it will surely have ended then; one without a limit never surely does."""
    return job.until <= moment and job.until < math.inf
