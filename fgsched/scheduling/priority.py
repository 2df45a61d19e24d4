"""Compute job priorities: partition, quality of service, fair share, age, size and nice.

Jobs that differ only in age never change their order: the job that has waited longer is ahead. The queue
keeps such jobs together as a class, in order, and compares only the first of each class.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from fgsched.domain.job import WHOLE, Demand
from fgsched.domain.policy import Policy
from fgsched.scheduling.limits import NOBODY, Key, Owner


class JobClass(NamedTuple):
    """The properties that make jobs interchangeable for the planner, except for their age."""

    demand: Demand
    time_limit: int = 0  # seconds; 0: none
    partitions: tuple[str, ...] = ("main",)
    who: Owner = NOBODY
    nice: int = 0
    reservation: str = ""  # of an operator, that they belong to


class Factors(Struct, frozen=True, kw_only=True, gc=False):
    """The weighted factors of a priority; their sum is the priority."""

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
    """The data that decide the order, until fair shares are recomputed or the policy changes."""

    policy: Policy = field(default_factory=Policy)
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (account, user) -> 0 … 1
    used: Mapping[Key, float] = field(default_factory=dict)  # charged GPU seconds of accounts and users
    gpus: int = 0  # of the host, in ten-thousandths
    cpus: int = 1  # of the host

    def factors(self, kind: JobClass, since: float, now: float) -> Factors:
        """Return the factors of a job that is eligible since `since`, at `now` (epoch seconds)."""
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
        """Return the priority of a new job of this class: everything except age."""
        return self.factors(kind, 0.0, 0.0).priority

    def _place(self, name: str) -> float:
        """Return 1 for the first partition, and less for each later one."""
        names = [one.name for one in self.policy.partitions]
        return 1.0 - names.index(name) / len(names) if name in names else 0.0

    def _quality(self, name: str) -> float:
        quality = self.policy.quality(name)
        highest = max((one.priority for one in self.policy.qos), default=0)
        return quality.priority / highest if quality and highest else 0.0

    def _size(self, demand: Demand) -> float:
        """Return the part of the host that the demand requests."""
        if demand.gpus and self.gpus:
            part = demand.gpus * (demand.share or demand.memory_part or WHOLE) / self.gpus
        else:
            part = demand.cpus / self.cpus
        part = min(1.0, part)
        return 1.0 - part if self.policy.weights.favor_small else part
