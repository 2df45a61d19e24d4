"""Limits of running and pending jobs, and the usage that is compared with them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from fgsched.domain.errors import Refused
from fgsched.domain.policy import INACTIVE, NO_LIMITS, NORMAL, Limits, Partition, Policy
from fgsched.domain.states import Reason
from fgsched.domain.waiting import Shortfall


class LimitedUser(NamedTuple):
    """The account and the user of a job."""

    user: str = ""
    account: str = ""
    qos: str = ""


NO_OWNER = LimitedUser()
Key = tuple[str, ...]


class Scope(Struct, frozen=True, gc=False):
    """One set of limits that applies to a job."""

    key: Key
    limits: Limits
    label: str  # the scope of the limit, for messages
    jobs: Reason
    gpus: Reason


def scopes(partition: str, limited_user: LimitedUser, policy: Policy) -> tuple[Scope, ...]:
    """Return every limit scope that applies to a user in `partition`; scopes without limits are omitted."""
    all_scopes: list[Scope] = []
    user, account, _ = limited_user
    named_partition, quality = policy.partition(partition), policy.quality(limited_user.qos)
    if named_partition is not None:
        name = named_partition.name
        user_reasons = (Reason.MAX_JOBS_PER_USER, Reason.MAX_GPUS_PER_USER)
        account_reasons = (Reason.MAX_JOBS_PER_ACCOUNT, Reason.MAX_GPUS_PER_ACCOUNT)
        label = f"partition {name}"
        all_scopes += [
            Scope(("partition", name), named_partition.total, label, Reason.MAX_JOBS, Reason.MAX_GPUS),
            Scope(
                ("partition", name, "user", user),
                named_partition.per_user,
                f"{user} in {label}",
                *user_reasons,
            ),
            Scope(
                ("partition", name, "account", account),
                named_partition.per_account if account else NO_LIMITS,
                f"account {account} in {label}",
                *account_reasons,
            ),
        ]
    if quality is not None:
        user_reasons = (Reason.MAX_JOBS_PER_USER, Reason.MAX_GPUS_PER_USER)
        label = f"quality of service {quality.name}"
        all_scopes += [
            Scope(("qos", quality.name), quality.total, label, Reason.MAX_JOBS, Reason.MAX_GPUS),
            Scope(("qos", quality.name, "user", user), quality.per_user, f"{user} in {label}", *user_reasons),
        ]
    reasons = (Reason.ACCOUNT_MAX_JOBS, Reason.ACCOUNT_MAX_GPUS)
    all_scopes += [
        Scope(("account", account), policy.account(account).limits, f"account {account}", *reasons),
        Scope(("user", user), policy.user(user).limits, user, *reasons),
    ]
    return tuple(scope for scope in all_scopes if scope.limits != NO_LIMITS)


def counts_in(key: Key, partitions: str, limited_user: LimitedUser) -> bool:
    """Tell whether a pending job counts in the scope of this key."""
    kind, name, *of = key
    if kind == "partition":
        return name in partitions.split(",") and _is_of(of, limited_user)
    if kind == "qos":
        return name == (limited_user.qos or NORMAL) and _is_of(of, limited_user)
    return name == (limited_user.account if kind == "account" else limited_user.user)


def _is_of(of: list[str], limited_user: LimitedUser) -> bool:
    return not of or of[1] == (limited_user.user if of[0] == "user" else limited_user.account)


class _ScopeUsage(Struct):
    """The running jobs of one scope."""

    jobs: int = 0
    share: int = 0
    seconds: float = 0.0  # charged GPU seconds that running jobs may still use


class LimitUsage(NamedTuple):
    """The usage of limits by one job."""

    partition: str
    owner: LimitedUser
    share: int  # ten-thousandths, on all its GPUs together
    seconds: float  # charged GPU seconds that it may use


class UsageCount:
    """The running jobs, counted in each scope that has a limit.

    `used` is charged GPU seconds of accounts and users.
    """

    def __init__(self, policy: Policy, used: Mapping[Key, float] | None = None) -> None:
        self._policy = policy
        self._used = used or {}
        self._used_in: dict[Key, _ScopeUsage] = {}
        self._scopes: dict[tuple[str, LimitedUser], tuple[Scope, ...]] = {}

    @property
    def has_limits(self) -> bool:
        """Whether any limit is configured."""
        return self._policy.is_capped

    def _of(self, partition: str, limited_user: LimitedUser) -> tuple[Scope, ...]:
        key = (partition, limited_user)
        if key not in self._scopes:
            self._scopes[key] = scopes(partition, limited_user, self._policy)
        return self._scopes[key]

    def take(self, partition: str, limited_user: LimitedUser, share: int, seconds: float) -> None:
        """Count a running job with `share` ten-thousandths that may still use `seconds` GPU seconds."""
        for scope in self._of(partition, limited_user):
            scope_usage = self._used_in.setdefault(scope.key, _ScopeUsage())
            scope_usage.jobs += 1
            scope_usage.share += share
            scope_usage.seconds += seconds

    def blocking_limit(
        self, partition: str, limited_user: LimitedUser, share: int, seconds: float
    ) -> Shortfall | None:
        """Return the limit that one more job with `share` ten-thousandths would exceed, or None."""
        blocking_limits = self.blocking_limits(partition, limited_user, share, seconds)
        return next((shortfall for _, shortfall in blocking_limits), None)

    def blocking_limits(
        self, partition: str, limited_user: LimitedUser, share: int, seconds: float
    ) -> Iterator[tuple[Scope, Shortfall]]:
        """Yield every limit that one more job with `share` ten-thousandths would exceed."""
        for scope in self._of(partition, limited_user):
            limits, scope_usage = scope.limits, self._used_in.get(scope.key, _UNUSED)
            if limits.running and scope_usage.jobs >= limits.running:
                yield (
                    scope,
                    Shortfall(
                        scope.jobs,
                        "running",
                        need=1,
                        remaining=limits.running - scope_usage.jobs,
                        total=limits.running,
                        scope=scope.label,
                    ),
                )
            if limits.share and scope_usage.share + share > limits.share:
                remaining = limits.share - scope_usage.share
                label, most = scope.label, limits.share
                yield (
                    scope,
                    Shortfall(scope.gpus, "gpus", need=share, remaining=remaining, total=most, scope=label),
                )
            if limits.gpu_seconds:
                left_s = limits.gpu_seconds - self._used.get(scope.key, 0.0) - scope_usage.seconds
                if seconds > left_s or left_s <= 0:
                    need, remaining, total = (
                        -(-int(seconds) // 60),
                        int(left_s) // 60,
                        limits.gpu_seconds // 60,
                    )
                    reason = Reason.ACCOUNT_GPU_MINUTES
                    yield (
                        scope,
                        Shortfall(
                            reason, "minutes", need=need, remaining=remaining, total=total, scope=scope.label
                        ),
                    )

    def has_room_beside(self, part: LimitUsage, other: LimitUsage) -> bool:
        """Tell whether a job with usage `part` stays within all limits beside usage `other`."""
        shared = {scope.key for scope in self._of(other.partition, other.owner)}
        for scope in self._of(part.partition, part.owner):
            if scope.key not in shared:
                continue
            limits, scope_usage = scope.limits, self._used_in.get(scope.key, _UNUSED)
            share, seconds = (scope_usage.share, scope_usage.seconds + self._used.get(scope.key, 0.0))
            if limits.running and scope_usage.jobs + 2 > limits.running:
                return False
            if limits.share and share + part.share + other.share > limits.share:
                return False
            if limits.gpu_seconds and seconds + part.seconds + other.seconds > limits.gpu_seconds:
                return False
        return True


_UNUSED = _ScopeUsage()


def check_pending(
    partitions: Iterable[str],
    limited_user: LimitedUser,
    more: int,
    policy: Policy,
    waiting: Callable[[Key], int],
) -> None:
    """Check that `more` jobs may be pending; `waiting` returns the present number in a scope.

    Raises Refused.
    """
    for partition in partitions:
        for scope in scopes(partition, limited_user, policy):
            most = scope.limits.pending
            if most and waiting(scope.key) + more > most:
                raise Refused(
                    f"job violates a policy limit: {scope.label} has {waiting(scope.key)} jobs that wait",
                    f"{most} is the limit, and {more} more were submitted. An array counts its tasks.",
                )


def partition_rule(partition: Partition | None, name: str, time_limit: int) -> Shortfall | None:
    """Return the rule of a partition that prevents a job with this time limit (seconds), or None."""
    if partition is None:
        return Shortfall(Reason.PARTITION_DOWN, "gone", scope=name)
    if not partition.starts:
        is_inactive = partition.state == INACTIVE
        return Shortfall(
            Reason.PARTITION_INACTIVE if is_inactive else Reason.PARTITION_DOWN, "state", scope=name
        )
    most = partition.most.time
    if most and (not time_limit or time_limit > most):
        return Shortfall(Reason.PARTITION_TIME_LIMIT, "time", need=time_limit, total=most, scope=name)
    return None
