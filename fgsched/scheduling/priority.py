"""Compute job priorities: partition, quality of service, fair share, age, size and nice.

Jobs that differ only in age never change their order: the job that has waited longer is ahead. The queue
keeps such jobs together as a class, in order, and compares only the first of each class.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from fgsched.domain.job import WHOLE, Demand
from fgsched.domain.policy import Policy
from fgsched.scheduling.limits import NO_OWNER, Key, LimitedUser


class JobClass(NamedTuple):
    """The properties that make jobs interchangeable for the planner, except for their age."""

    demand: Demand
    time_limit: int = 0  # seconds; 0: none
    partitions: tuple[str, ...] = ("main",)
    who: LimitedUser = NO_OWNER
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


class PriorityBasis(Struct, frozen=True, kw_only=True):
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
        names = [partition.name for partition in self.policy.partitions]
        return 1.0 - names.index(name) / len(names) if name in names else 0.0

    def _quality(self, name: str) -> float:
        quality = self.policy.quality(name)
        highest = max((qos.priority for qos in self.policy.qos), default=0)
        return quality.priority / highest if quality and highest else 0.0

    def _size(self, demand: Demand) -> float:
        """Return the part of the host that the demand requests."""
        if demand.gpus and self.gpus:
            part = demand.gpus * (demand.share or demand.memory_part or WHOLE) / self.gpus
        else:
            part = demand.cpus / self.cpus
        part = min(1.0, part)
        return 1.0 - part if self.policy.weights.favor_small else part


# -- fair share ---------------------------------------------------------------


AccountUser = tuple[str, str]  # account and user


class Usage(Struct, frozen=True, gc=False):
    """Charged GPU seconds, decayed to a given time."""

    seconds: float = 0.0
    at: float = 0.0  # seconds since the epoch

    def now(self, now: float, half_life: float) -> float:
        """Return the GPU seconds decayed to `now` (epoch seconds); `half_life` is in seconds.

        A clock that was set back does not increase the result.
        """
        return self.seconds * _left(now - self.at, half_life)

    def plus(self, more: float, now: float, half_life: float) -> "Usage":
        return Usage(self.now(now, half_life) + more, now)


class ShareStanding(Struct, frozen=True, kw_only=True, gc=False):
    """A line of fgshare: an account, or a user of it."""

    account: str
    user: str = ""  # "": the account itself
    shares: int
    part: float  # of all shares
    seconds: float
    used: float  # part of all usage that is attributed to it
    factor: float = 1.0  # of a priority, 0 … 1


def accrued(gpus: float, start: float, end: float, *, now: float, half_life: float) -> float:
    """Return `gpus` charged from `start` to `end`, decayed to `now`; all times in seconds."""
    end = max(start, min(end, now))
    scale = half_life / math.log(2)
    return gpus * scale * (_left(now - end, half_life) - _left(now - start, half_life))


def _left(age: float, half_life: float) -> float:
    return math.exp2(-max(0.0, age) / half_life)


def standings(
    used: Mapping[AccountUser, float], owners: Iterable[AccountUser], policy: Policy
) -> list[ShareStanding]:
    """Return every account, followed by its users, by name.

    A user's own usage counts fully. If there are several accounts, a part of the usage of the other users of
    the account counts as well, in proportion to the user's shares.
    """
    members: dict[str, set[str]] = {charge_account.name: set() for charge_account in policy.accounts}
    for owner, user in (*used, *owners):
        members.setdefault(owner, set()).add(user)
    total = sum(used.values())
    all_shares = sum(policy.account(name).shares for name in members)
    rows: list[ShareStanding] = []
    for name in sorted(members):
        account = policy.account(name)
        seconds = sum(used.get((name, user), 0.0) for user in members[name])
        part, spent = account.shares / all_shares, seconds / total if total else 0.0
        rows.append(
            ShareStanding(
                account=name,
                shares=account.shares,
                part=part,
                seconds=seconds,
                used=spent,
                factor=_factor(spent, part),
            )
        )
        rows += _users(rows[-1], sorted(members[name]), used, total, policy)
    return rows


def _users(
    account: ShareStanding,
    users: Iterable[str],
    used: Mapping[AccountUser, float],
    total: float,
    policy: Policy,
) -> list[ShareStanding]:
    shares = {user: policy.user(user).shares for user in users}
    among = sum(shares.values())
    rows = []
    for user, own in shares.items():
        seconds = used.get((account.account, user), 0.0)
        spent = seconds / total if total else 0.0
        part = account.part * own / among
        if account.part < 1:
            spent += (account.used - spent) * own / among
        rows.append(
            ShareStanding(
                account=account.account,
                user=user,
                shares=own,
                part=part,
                seconds=seconds,
                used=spent,
                factor=_factor(spent, part),
            )
        )
    return rows


def _factor(used: float, part: float) -> float:
    return math.exp2(-used / part) if part else 0.0


def factors(rows: Iterable[ShareStanding]) -> dict[AccountUser, float]:
    return {(row.account, row.user): row.factor for row in rows if row.user}


def by_scope(used: Mapping[AccountUser, float]) -> dict[Key, float]:
    """Return the charged GPU seconds by scope, for the limits of accounts and users."""
    found: dict[Key, float] = {}
    for (account, user), seconds in used.items():
        for key in (("account", account), ("user", user)):
            found[key] = found.get(key, 0.0) + seconds
    return found
