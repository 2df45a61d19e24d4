"""Order the eligible pending jobs: priorities, fair share, and the queue of job classes.

Priorities are computed from partition, quality of service, fair share, age, size and nice. Jobs that differ
only in age never change their order: the job that has waited longer is ahead. The queue keeps such jobs
together as a class, in order, and compares only the first of each class.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice
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
    owner: LimitedUser = NO_OWNER
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
            fairshare=weights.fairshare * self.shares.get((kind.owner.account, kind.owner.user), 1.0),
            size=weights.size * self._size(kind.demand),
            partition=weights.partition * max(map(self._place, kind.partitions), default=0.0),
            qos=weights.qos * self._quality(kind.owner.qos),
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
    for user, user_shares in shares.items():
        seconds = used.get((account.account, user), 0.0)
        spent = seconds / total if total else 0.0
        part = account.part * user_shares / among
        if account.part < 1:
            spent += (account.used - spent) * user_shares / among
        rows.append(
            ShareStanding(
                account=account.account,
                user=user,
                shares=user_shares,
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
    seconds_of: dict[Key, float] = {}
    for (account, user), seconds in used.items():
        for key in (("account", account), ("user", user)):
            seconds_of[key] = seconds_of.get(key, 0.0) + seconds
    return seconds_of


# -- the queue ----------------------------------------------------------------


class QueuedJob(Struct, frozen=True, gc=False):
    """A pending job as the planner sees it."""

    id: int
    demand: Demand
    time_limit: int = 0  # seconds; 0: none
    count: int = 1  # tasks of an array that may start; each is a Start with this id
    partitions: tuple[str, ...] = ("main",)
    owner: LimitedUser = NO_OWNER
    nice: int = 0
    since: float = 0.0  # begin of the wait, in seconds since the epoch
    reservation: str = ""  # the operator's reservation of the job

    @property
    def kind(self) -> JobClass:
        return JobClass(
            self.demand, self.time_limit, self.partitions, self.owner, self.nice, self.reservation
        )


class ClassQueue:
    """The jobs of one class. Its first job is kept up to date, so that a plan only examines that."""

    __slots__ = (
        "_heap",
        "_since",
        "cpus",
        "first",
        "gpus",
        "host_memory",
        "kind",
        "memory",
        "share",
        "standing",
    )

    def __init__(self, kind: JobClass, standing: float) -> None:
        self.kind = kind
        self.standing = standing  # priority without the part of the age
        self.first: tuple[float, int] = (0.0, 0)  # (begin of the wait, id) of the first job in order
        self._heap: list[tuple[float, int]] = []  # may contain jobs that are no longer pending
        self._since: dict[int, float] = {}  # of the pending entries
        demand = kind.demand
        self.gpus = demand.gpus
        self.share = demand.share or 1  # ten-thousandths of each GPU; at least 1
        self.memory = demand.memory
        self.cpus, self.host_memory = demand.cpus, demand.host_memory

    def __len__(self) -> int:
        return len(self._since)

    def copy(self) -> "ClassQueue":
        copied = ClassQueue.__new__(ClassQueue)  # a queue may have thousands, which are copied at once
        copied.kind, copied.standing, copied.first = self.kind, self.standing, self.first
        copied.gpus, copied.share, copied.memory = self.gpus, self.share, self.memory
        copied.cpus, copied.host_memory = self.cpus, self.host_memory
        copied._heap, copied._since = self._heap.copy(), self._since.copy()
        return copied

    @property
    def ids(self) -> Iterable[int]:
        return self._since.keys()

    def add(self, job_id: int, since: float) -> None:
        """Add a job that waits since `since`, in seconds since the epoch."""
        if self._since.get(job_id) != since:
            self._since[job_id] = since
            heappush(self._heap, (since, job_id))
            self._tidy()  # the job may have another entry

    def remove(self, job_id: int) -> None:
        del self._since[job_id]
        self._tidy()

    def _tidy(self) -> None:
        """Ensure that the first entries are pending, and most entries of the heap too."""
        heap = self._heap
        while heap and not self._has(heap[0]):
            heappop(heap)
        if len(heap) > 2 * len(self._since) + 16:
            self._heap = heap = sorted((since, job_id) for job_id, since in self._since.items())
        if heap:
            self.first = heap[0]

    def _has(self, entry: tuple[float, int]) -> bool:
        since, job_id = entry
        return self._since.get(job_id) == since

    def since(self, job_id: int) -> float:
        return self._since[job_id]

    def in_order(self) -> Iterator[tuple[float, int]]:
        """Yield (eligible since, id) of each job in order. Works on a copy."""
        last: tuple[float, int] | None = None
        for entry in _popped(self._heap.copy()):
            if entry != last and self._has(entry):
                yield entry
            last = entry


def _popped(heap: list[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Yield the entries of a heap in order, and remove them."""
    while heap:
        yield heappop(heap)


class Queue:
    """Every eligible pending job, by class."""

    def __init__(self, jobs: Iterable[QueuedJob] = (), order: PriorityBasis | None = None) -> None:
        self.order = order or PriorityBasis()
        self._groups: dict[JobClass, ClassQueue] = {}
        self._group_of: dict[int, ClassQueue] = {}
        self.claims: Counter[JobClass] = Counter()  # room claims of each class, in order
        self._counts: dict[int, int] = {}  # of entries that represent several jobs
        for job in jobs:
            self.add(job)

    def copy(self) -> "Queue":
        """Return an independent queue with the present jobs."""
        copied = Queue(order=self.order)
        copied._groups = {kind: group.copy() for kind, group in self._groups.items()}
        for group in copied._groups.values():
            copied._group_of.update(dict.fromkeys(group.ids, group))
        copied.claims, copied._counts = self.claims.copy(), self._counts.copy()
        return copied

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._group_of

    @property
    def kinds(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> Iterable[ClassQueue]:
        return self._groups.values()

    def counts(self, most: int) -> list[tuple[JobClass, int]]:
        """Return at most `most` classes with the number of their jobs."""
        more: Counter[JobClass] = Counter()
        for job_id, count in self._counts.items():
            more[self._group_of[job_id].kind] += count - 1
        return [(kind, len(group) + more[kind]) for kind, group in islice(self._groups.items(), most)]

    def reorder(self, order: PriorityBasis) -> None:
        """Use another order from now on."""
        self.order = order
        for group in self._groups.values():
            group.standing = order.standing(group.kind)

    def add(self, job: QueuedJob) -> None:
        """Add a job, or update its request."""
        kind = job.kind
        before = self._group_of.get(job.id)
        if before is not None and before.kind != kind:
            self._take_out(job.id, before)
        group = self._group(kind)
        group.add(job.id, job.since)
        self._group_of[job.id] = group
        if job.count > 1:
            self._counts[job.id] = job.count
        else:
            self._counts.pop(job.id, None)

    def _group(self, kind: JobClass) -> ClassQueue:
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = ClassQueue(kind, self.order.standing(kind))
        return group

    def remove(self, job_id: int) -> None:
        group = self._group_of.pop(job_id, None)
        if group is not None:
            self._take_out(job_id, group)
        self._counts.pop(job_id, None)

    def _take_out(self, job_id: int, group: ClassQueue) -> None:
        group.remove(job_id)
        if not group:
            del self._groups[group.kind]

    def count(self, job_id: int) -> int:
        """Return how many jobs an entry represents."""
        return self._counts.get(job_id, 1)

    def entry(self, job_id: int) -> QueuedJob | None:
        """Return a pending job as it was added, or None."""
        group = self._group_of.get(job_id)
        if group is None:
            return None
        demand, time_limit, partitions, limited_user, nice, reservation = group.kind
        return QueuedJob(
            job_id,
            demand,
            time_limit,
            self.count(job_id),
            partitions=partitions,
            owner=limited_user,
            nice=nice,
            since=group.since(job_id),
            reservation=reservation,
        )

    def kind(self, job_id: int) -> JobClass | None:
        group = self._group_of.get(job_id)
        return group.kind if group else None
