"""What a site allows: partitions, qualities of service, accounts, users, and what decides the order."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fgsched.domain.job import WHOLE, Hold, HostLimits
from fgsched.domain.times import format_limit
from fgsched.domain.units import SubmitContext, format_mebibytes

MAIN = "main"  # the partition of a site that declares none
NORMAL = "normal"  # the quality of service of a job that names none
UP, DOWN, DRAIN, INACTIVE = "up", "down", "drain", "inactive"
STATES = (UP, DOWN, DRAIN, INACTIVE)
REQUEUE, SUSPEND, CANCEL, OFF = "requeue", "suspend", "cancel", "off"  # how jobs make room for others
MODES = (REQUEUE, SUSPEND, CANCEL, OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most of something at a time; 0 is no limit."""

    running: int = 0  # jobs
    pending: int = 0  # jobs
    share: int = 0  # ten-thousandths of GPUs, held by all its running jobs
    gpu_seconds: int = 0  # of charged GPU time, with the decay of the fair share


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a job gets that does not ask, as fgsub would be told."""

    gpus: str = ""
    gpu_mem: str = ""
    cpus: int = 0
    memory: int = 0  # bytes
    time: int = 0  # seconds

    def options(self) -> dict[str, str]:
        """The same as options of fgsub."""
        texts = {
            "gpus": self.gpus,
            "gpu-mem": self.gpu_mem,
            "cpus-per-task": str(self.cpus or ""),
            "mem": format_mebibytes(self.memory) if self.memory else "",
            "time": format_limit(self.time) if self.time else "",
        }
        return {option: text for option, text in texts.items() if text}


@dataclass(frozen=True, slots=True, kw_only=True)
class PerJobLimits:
    """What one job may ask for; 0 is no limit."""

    share: int = 0  # ten-thousandths of all its cards together
    gpu_memory: int = 0  # bytes of each card
    cpus: int = 0
    memory: int = 0  # bytes
    time: int = 0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use it; empty is everybody."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()

    def admits(self, user: str, groups: Iterable[str], account: str) -> bool:
        is_open = not (self.users or self.groups)
        member = is_open or user in self.users or any(group in self.groups for group in groups)
        return member and (not self.accounts or account in self.accounts)


@dataclass(frozen=True, slots=True)
class PreemptRule:
    """How jobs make room for others."""

    mode: str = ""  # "": as is said elsewhere
    grace: int = 0  # seconds between the warning and the end
    exempt: int = 0  # seconds for which a job runs undisturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A named set of defaults and limits over the same cards."""

    name: str = MAIN
    is_default: bool = True
    state: str = UP  # down: starts nothing; drain: takes nothing; inactive: neither
    defaults: Defaults = Defaults()
    most: PerJobLimits = PerJobLimits()
    total: Limits = NO_LIMITS
    per_user: Limits = NO_LIMITS
    per_account: Limits = NO_LIMITS
    access: Access = Access()
    cards: tuple[int, ...] = ()  # indices; empty: all
    placement: str = ""  # "": the site's
    max_jobs_per_gpu: int = 0  # 0: the site's
    share_step: int = 0  # 0: the site's
    gpu_compute: str = ""  # how its jobs share compute; "": the site's
    preempt: tuple[str, ...] = ()  # partitions whose jobs make room for its own
    preempt_rule: PreemptRule = PreemptRule(REQUEUE)

    @property
    def starts(self) -> bool:
        return self.state in (UP, DRAIN)

    @property
    def takes(self) -> bool:
        return self.state in (UP, DOWN)

    def limits(self, site: HostLimits) -> HostLimits:
        """The site's rules with those of this partition."""
        return replace(
            site,
            max_jobs_per_gpu=self.max_jobs_per_gpu or site.max_jobs_per_gpu,
            share_step=self.share_step or site.share_step,
            spread=self.placement == "spread" if self.placement else site.spread,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service: a priority, and limits across partitions."""

    name: str = NORMAL
    priority: int = 0
    total: Limits = NO_LIMITS
    per_user: Limits = NO_LIMITS
    access: Access = Access()
    preempt: tuple[str, ...] = ()  # those whose jobs make room for its own
    preempt_rule: PreemptRule = PreemptRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Whoever jobs are charged to."""

    name: str = ""
    shares: int = 1
    caps: Limits = NO_LIMITS
    users: tuple[str, ...] = ()  # who may charge it; empty: everybody


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """What the site says of one user."""

    name: str = ""
    shares: int = 1
    account: str = ""  # of jobs that name none
    caps: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What each factor, from 0 to 1, counts in a priority."""

    partition: int = 1_000_000
    qos: int = 100_000
    fairshare: int = 10_000
    age: int = 1000
    size: int = 0
    favor_small: bool = False
    max_age: int = 7 * 86_400  # seconds after which waiting longer counts no more
    half_life: int = 7 * 86_400  # seconds after which use counts half
    interval: int = 60  # seconds between two looks at who used how much


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A countable thing of the site's: a licence, another kind of card."""

    name: str
    count: int
    visible_env: str = ""  # the variable in which a job finds the indices that it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation that an operator made: parts of cards, kept for some for a while."""

    name: str
    start: int  # seconds since the epoch
    end: int
    holds: tuple[Hold, ...]  # what it keeps of each card
    access: Access = Access()
    is_maintenance: bool = False  # kept for nobody
    by: str = ""  # who made it

    def admits(self, user: str, groups: Iterable[str], account: str) -> bool:
        return not self.is_maintenance and self.access.admits(user, groups, account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All of it. Partitions stand in their order of priority."""

    partitions: tuple[Partition, ...] = (Partition(),)
    qos: tuple[Qos, ...] = ()  # none: a job's is a mere label
    accounts: tuple[Account, ...] = ()
    users: tuple[User, ...] = ()
    resources: tuple[Resource, ...] = ()
    weights: Weights = Weights()
    gpu_compute: str = "fair"  # how jobs share a card's time where their partition does not say
    reservations: tuple[Reservation, ...] = ()  # that are not over
    is_capped: bool = field(init=False, repr=False, compare=False)  # whether any number of jobs is limited
    has_quotas: bool = field(init=False, repr=False, compare=False)  # whether GPU time is
    goes_by_groups: bool = field(init=False, repr=False, compare=False)
    preempts: bool = field(init=False, repr=False, compare=False)  # whether any job makes room for another
    _partitions: dict[str, Partition] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_partitions", {one.name: one for one in self.partitions})
        found = [caps for one in self.partitions for caps in (one.total, one.per_user, one.per_account)]
        found += [caps for quality in self.qos for caps in (quality.total, quality.per_user)]
        found += [account.caps for account in self.accounts] + [user.caps for user in self.users]
        access = [one.access for one in self.partitions] + [quality.access for quality in self.qos]
        access += [reservation.access for reservation in self.reservations]
        preempts = any(p.preempt for p in self.partitions) or any(q.preempt for q in self.qos)
        object.__setattr__(self, "preempts", preempts)
        object.__setattr__(self, "goes_by_groups", any(one.groups for one in access))
        object.__setattr__(self, "is_capped", any(caps != NO_LIMITS for caps in found))
        object.__setattr__(self, "has_quotas", any(caps.gpu_seconds for caps in found))

    def partition(self, name: str) -> Partition | None:
        return self._partitions.get(name)

    @property
    def default(self) -> Partition:
        return next((one for one in self.partitions if one.is_default), self.partitions[0])

    def told(self, site: SubmitContext) -> SubmitContext:
        """What clients need of it in order to read requests."""
        return replace(
            site,
            resources=tuple(one.name for one in self.resources),
            partition=self.default.name,
            defaults={one.name: one.defaults.options() for one in self.partitions},
        )

    def quality(self, name: str) -> Qos | None:
        name = name or NORMAL
        if not self.qos:
            return Qos(name=name)
        return next((one for one in self.qos if one.name == name), None)

    def account(self, name: str) -> Account:
        return next((one for one in self.accounts if one.name == name), Account(name=name))

    def user(self, name: str) -> User:
        return next((one for one in self.users if one.name == name), User(name=name))

    def reservation(self, name: str) -> Reservation | None:
        return next((one for one in self.reservations if one.name == name), None)

    def kept_as(self, gpu: int, now: float) -> str:
        """sinfo's word for a card that a reservation keeps as a whole just now: maint or resv; else ""."""
        for one in self.reservations:
            if one.start <= now < one.end and any(
                hold.gpu == gpu and hold.share == WHOLE for hold in one.holds
            ):
                return "maint" if one.is_maintenance else "resv"
        return ""

    def resource(self, name: str) -> Resource | None:
        return next((one for one in self.resources if one.name == name), None)
