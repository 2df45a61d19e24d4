"""In which order jobs are considered: partition, quality of service, fair share, age, size, and nice.

Of jobs that are alike in all but their age, the order never changes as time passes: whoever waits longer
is ahead. So the queue keeps those together, in order, and only compares the first of each.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from fgsched.domain.job import WHOLE, Demand
from fgsched.domain.policy import Policy
from fgsched.scheduling.limits import NOBODY, Key, Owner


class JobClass(NamedTuple):
    """What jobs have to have in common in order to be alike to the planner, but for their age."""

    demand: Demand
    time_limit: int = 0  # seconds; 0: none
    partitions: tuple[str, ...] = ("main",)
    who: Owner = NOBODY
    nice: int = 0
    reservation: str = ""  # of an operator, that they belong to


class Factors(Struct, frozen=True, kw_only=True, gc=False):
    """The parts of a priority, each weighted; their sum is the priority."""

    age: float = 0.0
    fairshare: float = 0.0
    size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    nice: int = 0  # taken off

    @property
    def priority(self) -> float:
        return self.age + self.fairshare + self.size + self.partition + self.qos - self.nice


class Order(Struct, frozen=True, kw_only=True):
    """What decides the order for a while: until fair shares are worked out anew, or the site changes."""

    policy: Policy = field(default_factory=Policy)
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (account, user) -> 0 … 1
    used: Mapping[Key, float] = field(default_factory=dict)  # charged GPU seconds of accounts and users
    gpus: int = 0  # of the host, in ten-thousandths
    cpus: int = 1  # of the host

    def factors(self, kind: JobClass, since: float, now: float) -> Factors:
        """All that counts for a job that waits since then."""
        weights = self.policy.weights
        return Factors(
            age=weights.age * min(1.0, max(0.0, now - since) / weights.max_age),
            fairshare=weights.fairshare * self.shares.get((kind.who.account, kind.who.user), 1.0),
            size=weights.size * self._size(kind.demand),
            partition=weights.partition * max(map(self._place, kind.partitions), default=0.0),
            qos=weights.qos * self._quality(kind.who.qos),
            nice=kind.nice,
        )

    def standing(self, kind: JobClass) -> float:
        """The priority of such a job that has just come: all but its age."""
        return self.factors(kind, 0.0, 0.0).priority

    def _place(self, name: str) -> float:
        """1 for the first partition, less for each after it."""
        names = [one.name for one in self.policy.partitions]
        return 1.0 - names.index(name) / len(names) if name in names else 0.0

    def _quality(self, name: str) -> float:
        quality = self.policy.quality(name)
        highest = max((one.priority for one in self.policy.qos), default=0)
        return quality.priority / highest if quality and highest else 0.0

    def _size(self, demand: Demand) -> float:
        """The part of the host that it asks for."""
        if demand.gpus and self.gpus:
            part = demand.gpus * (demand.share or demand.memory_part or WHOLE) / self.gpus
        else:
            part = demand.cpus / self.cpus
        part = min(1.0, part)
        return 1.0 - part if self.policy.weights.favor_small else part
