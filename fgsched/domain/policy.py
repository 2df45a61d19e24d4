"""The site's policy: partitions, qualities of service, accounts, users, and priority weights."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import WHOLE, Hold, HostLimits

MAIN = "main"  # the partition of a site that declares none
NORMAL = "normal"  # the quality of service of a job that names none
UP, DOWN, DRAIN, INACTIVE = "up", "down", "drain", "inactive"
STATES = (UP, DOWN, DRAIN, INACTIVE)
REQUEUE, SUSPEND, CANCEL, OFF = "requeue", "suspend", "cancel", "off"  # how jobs are preempted
MODES = (REQUEUE, SUSPEND, CANCEL, OFF)


class Limits(Struct, frozen=True, kw_only=True, gc=False):
    """Maxima of running and pending jobs and of GPUs; 0 is no limit."""

    running: int = 0  # jobs
    pending: int = 0  # jobs
    share: int = 0  # ten-thousandths of GPUs, held by all its running jobs
    gpu_seconds: int = 0  # of charged GPU time, with the decay of the fair share


NO_LIMITS = Limits()


class Defaults(Struct, frozen=True, kw_only=True, gc=False):
    """Values for jobs that do not request them, in the form of fgsub's options."""

    gpus: str = ""
    gpu_mem: str = ""
    cpus: int = 0
    memory: int = 0  # bytes
    time: int = 0  # seconds


class PerJobLimits(Struct, frozen=True, kw_only=True, gc=False):
    """Maxima of what one job may request; 0 is no limit."""

    share: int = 0  # ten-thousandths of all its GPUs together
    gpu_memory: int = 0  # bytes of each GPU
    cpus: int = 0
    memory: int = 0  # bytes
    time: int = 0  # seconds


class Access(Struct, frozen=True, kw_only=True, gc=False):
    """Users, groups and accounts with access; if all are empty, all users have access."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()

    def admits(self, user: str, groups: Iterable[str], account: str) -> bool:
        is_open = not (self.users or self.groups)
        member = is_open or user in self.users or any(group in self.groups for group in groups)
        return member and (not self.accounts or account in self.accounts)


class PreemptRule(Struct, frozen=True, gc=False):
    """How jobs are preempted."""

    mode: str = ""  # "": as is said elsewhere
    grace: int = 0  # seconds between the warning and the end
    exempt: int = 0  # seconds for which a job runs undisturbed


class Partition(Struct, frozen=True, kw_only=True, gc=False):
    """A named set of defaults and limits over the same GPUs."""

    name: str = MAIN
    is_default: bool = True
    state: str = UP  # down: starts nothing; drain: takes nothing; inactive: neither
    defaults: Defaults = Defaults()
    most: PerJobLimits = PerJobLimits()
    total: Limits = NO_LIMITS
    per_user: Limits = NO_LIMITS
    per_account: Limits = NO_LIMITS
    access: Access = Access()
    gpus: tuple[int, ...] = ()  # indices; empty: all
    placement: str = ""  # "": the site's
    max_jobs_per_gpu: int = 0  # 0: the site's
    share_step: int = 0  # 0: the site's
    gpu_compute: str = ""  # how its jobs share compute; "": the site's
    preempt: tuple[str, ...] = ()  # partitions whose jobs it may preempt
    preempt_rule: PreemptRule = PreemptRule(REQUEUE)

    @property
    def starts(self) -> bool:
        return self.state in (UP, DRAIN)

    @property
    def takes(self) -> bool:
        return self.state in (UP, DOWN)

    def limits(self, site: HostLimits) -> HostLimits:
        """Return the site's limits as changed by this partition."""
        return replace(
            site,
            max_jobs_per_gpu=self.max_jobs_per_gpu or site.max_jobs_per_gpu,
            share_step=self.share_step or site.share_step,
            spread=self.placement == "spread" if self.placement else site.spread,
        )


class Qos(Struct, frozen=True, kw_only=True, gc=False):
    """A quality of service: a priority, and limits across partitions."""

    name: str = NORMAL
    priority: int = 0
    total: Limits = NO_LIMITS
    per_user: Limits = NO_LIMITS
    access: Access = Access()
    preempt: tuple[str, ...] = ()  # QOS whose jobs it may preempt
    preempt_rule: PreemptRule = PreemptRule()


class ChargeAccount(Struct, frozen=True, kw_only=True, gc=False):
    """An account to which jobs are charged."""

    name: str = ""
    shares: int = 1
    limits: Limits = NO_LIMITS
    users: tuple[str, ...] = ()  # users who may charge it; empty: all


class UserPolicy(Struct, frozen=True, kw_only=True, gc=False):
    """Settings of one user."""

    name: str = ""
    shares: int = 1
    account: str = ""  # of jobs that name none
    limits: Limits = NO_LIMITS


class Weights(Struct, frozen=True, kw_only=True, gc=False):
    """The weight of each priority factor; a factor is a number from 0 to 1."""

    partition: int = 1_000_000
    qos: int = 100_000
    fairshare: int = 10_000
    age: int = 1000
    size: int = 0
    favor_small: bool = False
    max_age: int = 7 * 86_400  # seconds after which waiting longer counts no more
    half_life: int = 7 * 86_400  # seconds after which use counts half
    interval: int = 60  # seconds between two updates of the fair share


class Resource(Struct, frozen=True, kw_only=True, gc=False):
    """A countable resource of the site: a licence, or another kind of device."""

    name: str
    count: int
    visible_env: str = ""  # the variable with the indices that are allocated to a job


class Reservation(Struct, frozen=True, kw_only=True, gc=False):
    """A reservation of an operator: GPUs or fractions of them, for users or maintenance."""

    name: str
    start: int  # seconds since the epoch
    end: int
    holds: tuple[Hold, ...]  # the reserved part of each GPU
    access: Access = Access()
    is_maintenance: bool = False  # for operators only
    by: str = ""  # its creator

    def admits(self, user: str, groups: Iterable[str], account: str) -> bool:
        return not self.is_maintenance and self.access.admits(user, groups, account)


class Policy(Struct, frozen=True, kw_only=True, dict=True):
    """The policy of the site. Partitions are in their order of priority."""

    partitions: tuple[Partition, ...] = (Partition(),)
    qos: tuple[Qos, ...] = ()  # none: a job's is a mere label
    accounts: tuple[ChargeAccount, ...] = ()
    users: tuple[UserPolicy, ...] = ()
    resources: tuple[Resource, ...] = ()
    weights: Weights = Weights()
    gpu_compute: str = "fair"  # how jobs share a GPU's time where their partition does not say
    reservations: tuple[Reservation, ...] = ()  # active and future ones

    @cached_property
    def is_capped(self) -> bool:
        """Whether any limit is configured."""
        return any(limits != NO_LIMITS for limits in self._all_limits())

    @cached_property
    def has_quotas(self) -> bool:
        """Whether any quota of GPU time is configured."""
        return any(limits.gpu_seconds for limits in self._all_limits())

    @cached_property
    def uses_groups(self) -> bool:
        """Whether access depends on the user's groups anywhere."""
        access = [partition.access for partition in self.partitions] + [qos.access for qos in self.qos]
        return any(
            rule.groups for rule in (*access, *(reservation.access for reservation in self.reservations))
        )

    @cached_property
    def preempts(self) -> bool:
        """Whether any job can preempt another."""
        return any(partition.preempt for partition in self.partitions) or any(qos.preempt for qos in self.qos)

    def _all_limits(self) -> Iterator[Limits]:
        for partition in self.partitions:
            yield from (partition.total, partition.per_user, partition.per_account)
        for quality in self.qos:
            yield from (quality.total, quality.per_user)
        yield from (account.limits for account in self.accounts)
        yield from (user.limits for user in self.users)

    @cached_property
    def _partitions(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in self.partitions}

    def partition(self, name: str) -> Partition | None:
        return self._partitions.get(name)

    @cached_property
    def default(self) -> Partition:
        """The partition of jobs that name none."""
        return next((partition for partition in self.partitions if partition.is_default), self.partitions[0])

    def quality(self, name: str) -> Qos | None:
        name = name or NORMAL
        if not self.qos:
            return Qos(name=name)
        return next((qos for qos in self.qos if qos.name == name), None)

    def account(self, name: str) -> ChargeAccount:
        return next((account for account in self.accounts if account.name == name), ChargeAccount(name=name))

    def user(self, name: str) -> UserPolicy:
        return next((user for user in self.users if user.name == name), UserPolicy(name=name))

    def reservation(self, name: str) -> Reservation | None:
        return next((reservation for reservation in self.reservations if reservation.name == name), None)

    def kept_as(self, gpu: int, now: float) -> str:
        """Return sinfo's word for a GPU that is wholly reserved at `now` (epoch seconds), or ""."""
        for reservation in self.reservations:
            if reservation.start <= now < reservation.end and any(
                hold.gpu == gpu and hold.share == WHOLE for hold in reservation.holds
            ):
                return "maint" if reservation.is_maintenance else "resv"
        return ""

    def resource(self, name: str) -> Resource | None:
        return next((resource for resource in self.resources if resource.name == name), None)


# -- errors of the settings of preemption -----------------------------------------------------------


class RuleError(Struct, frozen=True, gc=False):
    """An error in [table.name]: a preemption that the order does not permit."""

    table: str
    name: str
    why: str
    remedy: str


def find_rule_error(policy: Policy) -> RuleError | None:
    """Return the first error in the preemption settings, or None."""
    rule_errors = [*_partition_errors(policy), *_qos_errors(policy)]
    both = [qos for qos in policy.qos if qos.preempt]
    if both and any(partition.preempt for partition in policy.partitions):
        why = f"quality of service {both[0].name} preempts, and partitions do too"
        rule_errors.append(RuleError("qos", both[0].name, why, "Leave preempt at the ones or at the others."))
    return rule_errors[0] if rule_errors else None


def _partition_errors(policy: Policy) -> Iterator[RuleError]:
    names = [partition.name for partition in policy.partitions]
    for position, entry in enumerate(policy.partitions):
        for name in entry.preempt:
            later = names[position + 1 :]
            if name not in names:
                yield _unknown_name("partitions", entry.name, name, later)
            elif name not in later:
                why = f"partition {entry.name} cannot preempt {name}, which does not come after it"
                yield RuleError(
                    "partitions", entry.name, why, "Their order in the file is that of their priority."
                )


def _qos_errors(policy: Policy) -> Iterator[RuleError]:
    qoses = {qos.name: qos for qos in policy.qos}
    for entry in policy.qos:
        lower = [other.name for other in policy.qos if other.priority < entry.priority]
        for name in entry.preempt:
            if name not in qoses:
                yield _unknown_name("qos", entry.name, name, lower)
            elif name not in lower:
                why = f"quality of service {entry.name} cannot preempt {name}, whose priority is not lower"
                yield RuleError(
                    "qos", entry.name, why, f"priority of [qos.{entry.name}] has to be the higher."
                )


def _unknown_name(table: str, name: str, unknown: str, legal: Sequence[str]) -> RuleError:
    remedy = f"It may name {', '.join(legal)}." if legal else "There is none that it may name."
    return RuleError(table, name, f"{table}.{name}.preempt names {unknown}, which there is not", remedy)
