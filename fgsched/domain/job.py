"""The words of fgsched: a request, a job and where it stands, a card and what is held of it.

Amounts are integers: shares in ten-thousandths of one GPU, memory in bytes, time in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from fgsched.domain.copies import copier
from fgsched.domain.eviction import Preemption as Preemption
from fgsched.domain.shortage import PostMortem
from fgsched.domain.states import JobState as JobState
from fgsched.domain.states import Reason as Reason
from fgsched.domain.states import may_become

WHOLE = 10_000  # ten-thousandths in one GPU
NO_LIMIT = -1  # of time, where a submission says so; what is queued has 0, or the longest of its partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job needs in order to start. Equal demands are placed alike."""

    gpus: int = 0  # cards; 0: the job sees none
    share: int = 0  # of each card, in ten-thousandths; 0: follows from the memory
    memory: int = 0  # bytes of each card; 0: follows from the share
    memory_part: int = 0  # the same as a part of the card, in ten-thousandths; 0: not asked so
    gpu_type: str = ""  # part of the model's name; "": any
    cpus: int = 1
    host_memory: int = 0  # bytes; 0: not counted
    resources: tuple[tuple[str, int], ...] = ()  # (name, how many) of the site's own, by name

    @property
    def is_whole(self) -> bool:
        """Whether cards are asked for alone."""
        return self.share == WHOLE or self.memory_part == WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlySignal:
    """The early signal before the time limit."""

    signal: int
    before: int = 60  # seconds before the limit
    target: str = "all"  # "all" processes, the "shell" only, or its "children"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for. Immutable once queued; an update writes a new one."""

    name: str
    demand: Demand = Demand()
    partition: str = ""  # or several, with commas: whichever starts it first; "": the site's default
    account: str = ""  # on whose behalf it is charged
    qos: str = ""
    nice: int = 0  # taken off its priority
    time_limit: int = 0  # seconds; 0: none
    early_signal: EarlySignal | None = None
    chdir: str = "/"
    submit_dir: str = "/"  # where fgsub was called
    output: str = "fg-%j.out"  # a pattern; relative to chdir
    error: str = ""  # "": with the output
    input: str = "/dev/null"
    append: bool = False
    umask: int = 0o022
    rlimits: tuple[tuple[int, int, int], ...] = ()  # (resource, soft, hard); -1: unlimited
    args: tuple[str, ...] = ()  # of the script
    comment: str = ""
    submit_line: str = ""
    tier: str = ""  # how it is to be held to its share; "": the best that the host has
    gpu_compute: str = ""  # how it shares a card's time: hard, fair or none; "": as its partition does
    slurm_env: bool = False  # give SLURM_ twins of the FG_ variables
    array: str = ""  # the indices of its tasks, such as "0-15:4"; "": it is no array
    throttle: int = 0  # tasks that may run at a time; 0: no limit
    begin: int = 0  # not before, in seconds since the epoch; 0: any time
    deadline: int = 0  # to be over by then; 0: any time
    dependency: str = ""  # as dependencies.py writes it
    kill_invalid: str = ""  # "yes" or "no": cancel it when that can never be met; "": as the site has it
    reservation: str = ""  # of an operator, that it is to run in
    requeue: bool = True  # whether it may run again after the host failed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Part of one card, reserved for one job."""

    gpu: int  # index
    share: int
    memory: int  # bytes


class IllegalStep(AssertionError):
    """Our own bug: a step that the table of states does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job's processes ended, and what they used."""

    status: int  # as wait(2) gives it
    cpu_seconds: float = 0.0
    max_rss: int = 0  # bytes
    gpu_peak: int = 0  # bytes, the most on one card
    refusals: int = 0  # allocations that the hook refused
    detail: str = ""  # for a person: what went wrong when it could not be started

    @property
    def exit_code(self) -> int:
        return (self.status >> 8) & 0xFF

    @property
    def signal(self) -> int:
        return self.status & 0x7F


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as it stands. `advance` gives the same job one step on."""

    id: int
    uid: int
    gid: int
    user: str
    request: Request
    submitted_at: float  # seconds since the epoch
    state: JobState = JobState.PENDING
    reason: Reason = Reason.NONE
    held: str = ""  # "", "user" or "admin": who holds it back
    attempt: int = 0
    holds: tuple[Hold, ...] = ()
    partition: str = ""  # the one that started it, of those it asked for
    resources: tuple[tuple[str, tuple[int, ...]], ...] = ()  # (name, indices) that it was given
    slot: int = 0  # its number among the running jobs; another gets it once this one is over
    started_at: float | None = None
    ended_at: float | None = None
    boot: str = ""  # boot id of the host when it was started
    cancelled_by: int | None = None  # uid; set before the first signal is sent
    ended: Ended | None = None
    outcome: JobState | None = None  # the end it comes to once the cards are clean
    tier: str = "none"  # how it is held to its share of device memory
    mounts: str = ""  # what it has of the file system for itself: preload, devices
    cpus: str = ""  # those that it is bound to, such as "0-3,8"; "": none
    supervisor_lost: bool = False  # its shepherd was killed
    warning: str = ""  # what the watchdog saw of it last, for a person
    post_mortem: PostMortem | None = None  # it ran out of device memory
    condemned: Reason = Reason.NONE  # why the watchdog ends it; set before the first signal is sent
    array: int = 0  # the array that it is of: the id of the row that stands for its waiting tasks
    task: int | None = None  # its index; None: the tasks that still wait, or no array
    restarts: int = 0  # how often it was to run again
    failures: int = 0  # how often the host failed it since somebody last let it go
    not_before: float = 0.0  # it is left alone until then, after a failure
    opened_at: float = 0.0  # when the last dependency or hold that kept it back fell away
    note: str = ""  # why somebody cancelled it, in their words
    wish: str = ""  # "requeue": it is to run again once it has ended
    depends: str = ""  # what is left of its dependency
    suspended_at: float | None = None  # since when it stands still
    suspended: float = 0.0  # seconds that it stood still before that
    relimited: bool = False  # its time limit was changed after it was started
    preemption: Preemption | None = None  # the last time that it had to make room

    @property
    def is_to_end(self) -> bool:
        """Whether somebody or the watchdog wants it to end."""
        return self.cancelled_by is not None or self.condemned is not Reason.NONE

    @property
    def preempt_mode(self) -> str:
        """How this attempt has to make room for another job: requeue, cancel or suspend; "" if it has not."""
        found = self.preemption
        return found.mode if found is not None and found.attempt == self.attempt and self.attempt else ""

    @property
    def is_being_preempted(self) -> bool:
        """Whether it is to end because another job needs its room."""
        return self.preemption is not None and self.state.holds and self.preempt_mode in ("requeue", "cancel")

    @property
    def is_suspended_by_preemption(self) -> bool:
        """Whether it stands still for another job, which has its part of the compute."""
        return self.state is JobState.SUSPENDED and self.preempt_mode == "suspend"

    def advance(self, to: JobState, **changes: object) -> "Job":
        """The same job in state `to`, or IllegalStep."""
        if not may_become(self.state, to):
            raise IllegalStep(f"job {self.id}: {self.state.name} cannot become {to.name}")
        return self.changed(state=to, **changes)

    def changed(self, **changes: object) -> "Job":
        """The same job with other fields; nothing is asked."""
        return _changed(self, changes)

    @property
    def deadline(self) -> float | None:
        """When its time is up, in seconds since the epoch, if it goes on from now."""
        if self.started_at is None or not (self.request.time_limit or self.request.deadline):
            return None
        limit, by = self.request.time_limit, self.request.deadline
        ends = [self.started_at + limit] * bool(limit) + [float(by)] * bool(by)
        return min(ends) + self.suspended

    @property
    def is_rest(self) -> bool:
        """Whether it stands for the tasks of an array that have not been started."""
        return bool(self.array) and self.task is None


_changed = copier(Job)


class GpuState(Enum):
    """Whether a card takes new jobs."""

    OK = "ok"
    DRAINED = "drained"  # by an operator
    SUSPECT = "suspect"  # an ended job's processes did not leave it, or the driver stopped answering
    DOWN = "down"


class Near(IntEnum):
    """How near two cards are to each other."""

    SOCKET = 1  # by way of one processor
    SWITCH = 2  # by way of a PCIe switch
    NVLINK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card of the host."""

    index: int  # as NVML and nvidia-smi count
    uuid: str
    model: str
    total: int  # bytes
    reserved: int = 0  # bytes that the driver keeps
    headroom: int = 0  # bytes that the configuration keeps
    pci: str = ""
    links: tuple[tuple[int, int], ...] = ()  # (index of another card, how near it is), the far ones left out
    cpus: tuple[int, ...] = ()  # near it; (): not known
    state: GpuState = GpuState.OK
    note: str = ""  # why it is not ok
    noted_at: float = 0.0
    usable: int = field(init=False, repr=False)  # bytes for jobs; fractions are fractions of this

    def __post_init__(self) -> None:
        object.__setattr__(self, "usable", max(0, self.total - self.reserved - self.headroom))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that a card lists."""

    pid: int
    memory: int  # bytes; 0 where the driver does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one card showed at one moment."""

    gpu: int
    used: int  # bytes, by everybody
    processes: tuple[GpuProcess, ...] = ()
    utilisation: int | None = None  # percent
    temperature: int | None = None  # degrees Celsius
    external: int = 0  # bytes held by processes that belong to no job
    error: str = ""  # why the card did not answer
    is_lost: bool = False  # it fell off the bus
    ecc: int | None = None  # errors in its memory that could not be corrected, since the driver was loaded
    xids: tuple[int, ...] = ()  # errors that the driver told of since the last look
    remap: str = ""  # rows of its memory that are to be replaced: "", "pending" or "failed"


Readings = Mapping[int, Reading]  # by the card's index


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """The host besides its cards, and the site's rules for sharing one."""

    cpus: int
    host_memory: int  # bytes
    max_jobs_per_gpu: int = 0  # 0: no limit
    share_step: int = 1  # ten-thousandths; shares are multiples of this
    max_requeue: int = 5  # failures of the host after which a job is held
    spread: bool = False  # placement: an emptier card first
    kill_wait: float = 30  # seconds from SIGTERM to SIGKILL
    defragment: int = 0  # GPU seconds of work that may be lost to make room for one job; 0: none
