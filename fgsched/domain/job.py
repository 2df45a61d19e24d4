"""The records of jobs and GPUs: a user's request, the state of a job, and the part of a GPU that a job holds.

Shares are integers in ten-thousandths of one GPU, memory is in bytes, and durations and times are in seconds.
A `Request` from outside is read with `msgspec.convert` or `msgspec.json.decode`: the types of its fields hold
the accepted ranges and lengths.
"""

from collections.abc import Callable, Collection, Mapping
from enum import Enum, IntEnum
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import force_setattr, replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState, Reason, Tier, may_become

WHOLE = 10_000  # ten-thousandths of one GPU
NO_LIMIT = -1  # a submitted time limit: none asked for. A queued job has 0, or the maximum of its partition
NICEST = 2**31 - 3  # the largest nice value that Slurm takes
COMPUTE_HARD, COMPUTE_FAIR, COMPUTE_NONE = "hard", "fair", "none"
GPU_COMPUTE = (COMPUTE_HARD, COMPUTE_FAIR, COMPUTE_NONE)  # how jobs may share the compute time of a GPU
SIGNAL_TARGETS = ("all", "shell", "children")
_LONGEST_PATH = 4095  # bytes
_MOST_TEXT = 2 * 2**20  # characters of all arguments: the kernel's limit for arguments and environment
_YEAR = 366 * 86400  # seconds
_NO_NUL = "^[^\\x00]*$"

Share = Annotated[int, Meta(ge=0, le=WHOLE)]  # ten-thousandths of one GPU
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Time = Annotated[int, Meta(ge=0, le=2**40)]  # seconds since the epoch
Name = Annotated[str, Meta(max_length=64, pattern=_NO_NUL)]
Label = Annotated[str, Meta(max_length=255, pattern=_NO_NUL)]
Path = Annotated[str, Meta(max_length=_LONGEST_PATH, pattern=_NO_NUL)]
Expression = Annotated[str, Meta(max_length=8192, pattern=_NO_NUL)]  # indices of an array, a dependency
Word = Annotated[str, Meta(pattern=_NO_NUL)]
MOST_CPUS = 65_536  # of a job; and units of a resource, and tasks
_Count = Annotated[int, Meta(ge=1, le=MOST_CPUS)]
_Rlimit = Annotated[int, Meta(ge=-1, le=2**63 - 1)]  # -1: unlimited
FENCE_DIR = "FG_FENCE_DIR"  # variable of the programs in a fence


class Demand(
    Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    cache_hash=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """The resources that a placement needs. Jobs with equal demands fit on the same GPUs."""

    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0  # number of GPUs; 0: the job sees none
    share: Share = 0  # of each GPU; 0: follows from the memory
    memory: Bytes = 0  # of each GPU; 0: follows from the share
    memory_part: Share = 0  # memory as a part of each GPU; 0: not requested in this form
    gpu_type: Label = ""  # part of the model's name, or such terms with & and |, as of --constraint; "": any
    cpus: _Count = 1
    host_memory: Bytes = 0  # 0: not counted
    resources: tuple[tuple[Name, _Count], ...] = ()  # (name, count) of the site's resources, sorted by name

    def __post_init__(self) -> None:
        """Sort the resources by name. Raises BadUsage if one is named twice."""
        if self.resources:
            if len({name for name, _ in self.resources}) < len(self.resources):
                raise BadUsage("request: resources names a resource twice")
            force_setattr(self, "resources", tuple(sorted(self.resources)))

    @property
    def is_whole(self) -> bool:
        """Whether the job requests whole GPUs."""
        return self.share == WHOLE or self.memory_part == WHOLE


class EarlySignal(Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A signal that is sent before the time limit."""

    signal: Annotated[int, Meta(ge=1, le=64)]
    before: Annotated[int, Meta(ge=0, le=65_535)] = 60  # seconds before the time limit
    target: Name = "all"  # one of SIGNAL_TARGETS

    def __post_init__(self) -> None:
        """Check the target. Raises BadUsage."""
        _check_word("target", self.target, SIGNAL_TARGETS)


class Request(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The request of a user. It is immutable; `fgctl update` replaces it by a new one."""

    name: Label
    demand: Demand = Demand()
    tasks: _Count = 1  # that srun starts; the demand is that of all together
    # CPUs of each task, if requested in a job that has all CPUs; 0: the CPUs of the job divided by its tasks
    task_cpus: Annotated[int, Meta(ge=0, le=MOST_CPUS)] = 0
    # one partition, or several with commas of which the first that can starts the job; "": the site's default
    partition: Annotated[str, Meta(max_length=1024, pattern=_NO_NUL)] = ""
    account: Name = ""  # that is charged
    qos: Name = ""
    nice: Annotated[int, Meta(ge=-NICEST, le=NICEST)] = 0  # is subtracted from the priority
    time_limit: Annotated[int, Meta(ge=NO_LIMIT, le=_YEAR)] = 0  # seconds; 0: none
    early_signal: EarlySignal | None = None
    chdir: Path = "/"  # absolute
    submit_dir: Path = "/"  # working directory of fgsub
    output: Path = "fg-%j.out"  # a pattern, relative to chdir
    error: Path = ""  # "": the same file as output
    input: Path = "/dev/null"
    append: bool = False
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    # (resource, soft, hard); -1: unlimited
    rlimits: Annotated[
        tuple[tuple[Annotated[int, Meta(ge=0, le=15)], _Rlimit, _Rlimit], ...], Meta(max_length=16)
    ] = ()
    args: Annotated[tuple[Word, ...], Meta(max_length=32_768)] = ()  # arguments of the script
    comment: Annotated[str, Meta(max_length=4096, pattern=_NO_NUL)] = ""
    submit_line: Annotated[str, Meta(max_length=65_536, pattern=_NO_NUL)] = ""
    tier: Name = ""  # enforcement tier, the value of a Tier; "": the best of the host
    gpu_compute: Name = ""  # one of GPU_COMPUTE; "": as the partition has it
    slurm_env: bool = False  # also set SLURM_ variables
    array: Expression = ""  # indices of the tasks, such as "0-15:4"; "": no array
    throttle: Annotated[int, Meta(ge=0, le=10**6)] = 0  # tasks that may run at the same time; 0: no limit
    begin: Time = 0  # earliest start; 0: any time
    deadline: Time = 0  # latest end; 0: any time
    dependency: Expression = ""  # in the form of lifecycle/dependencies.py
    # "yes" or "no": cancel the job if the dependency can never be met; "": as the site's setting
    kill_invalid: Annotated[str, Meta(max_length=3)] = ""
    reservation: Name = ""  # of an operator, in which the job is to run
    requeue: bool = True  # whether the job may run again after a failure of the host
    mail_type: Label = ""  # events of which mails are sent, as lifecycle/mail.py writes them; "": none
    mail_user: Annotated[str, Meta(max_length=2600, pattern=_NO_NUL)] = ""  # addresses; "": the user's
    wckey: Name = ""  # tag of the use in the accounts
    container: Path = ""  # image in which the script runs: a path, or a reference to a registry; "": none
    container_mounts: Annotated[str, Meta(max_length=16_384, pattern=_NO_NUL)] = (
        ""  # as lifecycle/containers.py has it
    )
    container_workdir: Path = ""  # "": chdir
    # of its submission, if sbatch did not print them: that tells a program nothing but the id
    warnings: Annotated[str, Meta(max_length=4096, pattern=_NO_NUL)] = ""

    def __post_init__(self) -> None:
        """Check the rules that types cannot express. Raises BadUsage, which names the field."""
        if self.chdir[:1] != "/":
            raise BadUsage(f"request: chdir={self.chdir!r} is not absolute")
        if len(self.chdir) + len(self.output) + len(self.error) + len(self.input) > _LONGEST_PATH // 4:
            _check_paths(self)
        if self.args and sum(map(len, self.args)) > _MOST_TEXT:
            raise BadUsage(f"request: args have more than {_MOST_TEXT} characters")
        if self.tier:
            _check_word("tier", self.tier, tuple(tier.value for tier in Tier))
        if self.gpu_compute:
            _check_word("gpu_compute", self.gpu_compute, GPU_COMPUTE)


def with_defaults(request: Request, **defaults: object) -> Request:
    """Return a request with values of the site, which are checked where they are configured.

    `replace` would check the whole request again.
    """
    from copy import copy  # only the controller needs it

    completed = copy(request)
    for name, value in defaults.items():
        force_setattr(completed, name, value)
    return completed


# the fields of a request that all users may see
PUBLIC = (
    "name",
    "partition",
    "account",
    "wckey",
    "qos",
    "reservation",
    "nice",
    "demand",
    "time_limit",
    "tasks",
    "requeue",
)


def read_request(values: object) -> Request:
    """Create a request from plain values. Raises BadUsage, which names the invalid field."""
    try:
        return convert(values, Request)
    except ValidationError as error:
        raise BadUsage(f"request: {error}") from None


def _check_paths(request: Request) -> None:
    for name in ("chdir", "output", "error", "input"):
        if len(getattr(request, name).encode(errors="surrogateescape")) > _LONGEST_PATH:
            raise BadUsage(f"request: {name} is longer than {_LONGEST_PATH} bytes")


def _check_word(field: str, word: str, allowed: tuple[str, ...]) -> None:
    if word not in allowed:
        raise BadUsage(f"request: {field}={word!r} is not one of {', '.join(allowed)}")


class Hold(Struct, frozen=True, kw_only=True, gc=False):
    """The part of one GPU that is reserved for one job."""

    gpu: int  # index
    share: int  # ten-thousandths
    memory: int  # bytes


class IllegalStep(AssertionError):
    """A state change that the table of states does not permit: a bug of fgsched."""


class NotStarted(AssertionError):
    """Raised if code reads the start time of a job that was not started: a bug of fgsched."""


class Ended(Struct, frozen=True, kw_only=True, gc=False):
    """The end of a job's processes, and their usage."""

    status: int  # as wait(2) returns it
    cpu_seconds: float = 0.0
    max_rss: int = 0  # bytes
    gpu_peak: int = 0  # bytes; the maximum on one GPU
    refusals: int = 0  # allocations that the hook refused
    detail: str = ""  # for a person: why the job could not be started
    disk_read: int = 0  # bytes that its processes read from disks
    disk_written: int = 0  # bytes that its processes wrote to disks
    srun_steps: str = ""  # text of `jobsteps.stored`: the steps that srun started
    oom_kills: int = 0  # processes that the kernel killed because of the job's limit of host memory

    @property
    def exit_code(self) -> int:
        return (self.status >> 8) & 0xFF

    @property
    def signal(self) -> int:
        return self.status & 0x7F


NOT_ENDED = Ended(status=0)  # in place of the end of a job that has none


class Preemption(Struct, frozen=True, kw_only=True, gc=False):
    """The preemption of a job for another job. It is committed before the first signal is sent."""

    by: int  # id of the other job
    at: float  # seconds since the epoch
    mode: str  # "requeue", "cancel" or "suspend"
    attempt: int  # the attempt that is preempted; 0: the order was withdrawn
    grace: int = 0  # seconds between the warning and the end
    until: float = 0.0  # seconds since the epoch by which the job has certainly ended
    used: bool = False  # the other job has started, so its room claim has ended


class AdoptedProcess(Struct, frozen=True, kw_only=True, gc=False):
    """A process that was started outside of fgsched and is accounted as a job, since `boot` of the job."""

    pid: int
    start: int  # clock ticks since boot


class MpsUse(Struct, frozen=True, kw_only=True, gc=False):
    """How a job uses the Multi-Process Service (MPS) on its GPU."""

    server: int  # number of its daemon among those of the user and GPU; 0: none
    percent: int  # of the threads of the GPU
    state: str = "asked"  # asked: before the launch; used; refused: launched without; lost: the daemon failed
    why: str = ""  # it was refused or lost

    @property
    def word(self) -> str:
        """The form in which users see it; "": the job does not use MPS."""
        return f"mps:{self.percent}" if self.state == "used" else ""


class Refusal(Struct, frozen=True, kw_only=True, gc=False):
    """The last refused allocation of device memory of a job."""

    gpu: int  # index
    asked: int  # bytes
    held: int  # bytes that the job already held on that GPU


class OomReport(Struct, frozen=True, kw_only=True, gc=False):
    """The cause for which a job ran out of device memory, with the other memory on the GPU."""

    gpu: int  # index
    asked: int  # bytes; 0: no allocation was refused; the watchdog found the violation
    held: int  # bytes
    limit: int  # bytes
    jobs: tuple[tuple[int, int], ...] = ()  # (job id, allocated bytes)
    strangers: int = 0  # bytes of processes that belong to no job


class Job(Struct, frozen=True, kw_only=True, gc=False):
    """The current state of one job. `advance` and `changed` return a copy."""

    id: int
    uid: int
    gid: int
    user: str
    request: Request
    submitted_at: float  # seconds since the epoch, as all times here
    state: JobState = JobState.PENDING
    reason: Reason = Reason.NONE
    held: str = ""  # "user", "admin", or "" if the job is not held
    attempt: int = 0  # number of times that a start was decided
    holds: tuple[Hold, ...] = ()
    partition: str = ""  # in which the job was started
    resources: tuple[tuple[str, tuple[int, ...]], ...] = ()  # (name, allocated indices)
    slot: int = 0  # number among the running jobs; reused after the job's end
    started_at: float | None = None
    ended_at: float | None = None
    boot: str = ""  # boot id of the host at the start
    cancelled_by: int | None = None  # uid; committed before the first signal is sent
    ended: Ended | None = None
    outcome: JobState | None = None  # state after COMPLETING
    tier: str = "none"  # enforcement tier, the value of a Tier
    mounts: str = ""  # private mounts of the job: preload, devices
    cpus: str = ""  # CPUs that the job is bound to, such as "0-3,8"; "": not bound
    supervisor_lost: bool = False  # the job's shepherd was killed
    warning: str = ""  # the last finding of the watchdog, for a person
    post_mortem: OomReport | None = None  # set if the job ran out of device memory
    condemned: Reason = Reason.NONE  # why the watchdog ends the job; committed before the first signal
    array: int = 0  # id of the row that represents the waiting tasks of the job's array; 0: no array
    task: int | None = None  # index in the array; None: the row of the waiting tasks, or no array
    restarts: int = 0  # number of times that the job was requeued after it had run
    failures: int = 0  # failures of the host since the job was last released
    not_before: float = 0.0  # earliest start after a failure
    opened_at: float = 0.0  # when the last dependency or hold that kept the job back was removed
    note: str = ""  # reason of the cancellation
    wish: str = ""  # "requeue": requeue the job after its end
    depends: str = ""  # the part of the dependency that is not yet met
    suspended_at: float | None = None  # start of the current suspension
    suspended: float = 0.0  # seconds of earlier suspensions
    relimited: bool = False  # the time limit was changed after the start
    preemption: Preemption | None = None  # the last preemption
    charged_before: float = 0.0  # GPU seconds of earlier attempts
    adopted: AdoptedProcess | None = None  # the process that was adopted; None: fgsched started the job
    mps: MpsUse | None = None  # of the last attempt; None: its GPU has no MPS
    repeats: int = 0  # successive requeues on order, each after a run shorter than a minute
    links: int = 0  # length of the chain of jobs that submitted it, each within a minute

    @property
    def is_to_end(self) -> bool:
        """Whether the job was cancelled, or is being ended by the watchdog."""
        return self.cancelled_by is not None or self.condemned is not Reason.NONE

    @property
    def preempt_mode(self) -> str:
        """The mode in which the current attempt is preempted: requeue, cancel or suspend; "": it is not."""
        preemption = self.preemption
        return (
            preemption.mode
            if preemption is not None and preemption.attempt == self.attempt and self.attempt
            else ""
        )

    @property
    def is_being_preempted(self) -> bool:
        """Whether the job is ending because of a preemption."""
        return self.ending_preemption is not None

    @property
    def ending_preemption(self) -> Preemption | None:
        """The preemption that ends the current attempt; None: the job is not to end for another job."""
        if self.preemption is None or not self.state.holds:
            return None
        return self.preemption if self.preempt_mode in ("requeue", "cancel") else None

    @property
    def is_suspended_by_preemption(self) -> bool:
        """Whether the job is suspended in favour of another job, which uses its part of the compute time."""
        return self.suspending_preemption is not None

    @property
    def suspending_preemption(self) -> Preemption | None:
        """The preemption that suspended the job; None: the job runs, or a user suspended it."""
        return (
            self.preemption if self.state is JobState.SUSPENDED and self.preempt_mode == "suspend" else None
        )

    @property
    def start_time(self) -> float:
        """Start of a job that was started, in seconds since the epoch. Raises NotStarted for another job."""
        if self.started_at is None:
            raise NotStarted(f"job {self.id} is {self.state.name} and has no start time")
        return self.started_at

    @property
    def deadline(self) -> float | None:
        """Time limit of the current attempt, in seconds since the epoch; None: no limit, or not started."""
        if self.started_at is None or not (self.request.time_limit or self.request.deadline):
            return None
        limit, by = self.request.time_limit, self.request.deadline
        ends = [self.started_at + limit] * bool(limit) + [float(by)] * bool(by)
        return min(ends) + self.suspended

    @property
    def is_rest(self) -> bool:
        """Whether this is the row that represents the waiting tasks of an array."""
        return bool(self.array) and self.task is None

    def advance(self, to: JobState, **changes: object) -> "Job":
        """Return the job in state `to`, with other changes. Raises IllegalStep if there is no such step."""
        if not may_become(self.state, to):
            raise IllegalStep(f"job {self.id}: {self.state.name} cannot become {to.name}")
        return replace(self, state=to, **changes)

    def changed(self, **changes: object) -> "Job":
        """Return a copy with other fields. The state change is not checked."""
        return replace(self, **changes)


def getter_of(name: str, of_request: Collection[str] = Request.__struct_fields__) -> Callable[[Job], Any]:
    """Return the getter of an attribute that a job, its end or its request has under this name.

    Args:
        of_request: the names that the request may be asked for.
    """
    if name in Job.__struct_fields__:
        return attrgetter(name)
    if hasattr(Ended, name):
        return lambda job: getattr(job.ended or NOT_ENDED, name)
    if name in Demand.__struct_fields__:
        return attrgetter(f"request.demand.{name}")
    assert name in of_request, f"{name} is no attribute of a job, or one of its owner only"
    return attrgetter(f"request.{name}")


class GpuState(Enum):
    """Whether a GPU takes new jobs."""

    OK = "ok"
    DRAINED = "drained"  # by an operator
    SUSPECT = "suspect"  # processes of an ended job did not leave it, or the driver stopped answering
    DOWN = "down"


class Near(IntEnum):
    """The kind of link between two GPUs, the closest last."""

    SOCKET = 1  # through one processor
    SWITCH = 2  # through a PCIe switch
    NVLINK = 3


class MigInstance(Struct, frozen=True, kw_only=True, gc=False):
    """The place of a MIG instance: a part of a GPU with its own memory, made by an administrator."""

    profile: str  # such as "3g.20gb"
    gpu: int = -1  # index of the partitioned GPU; -1: unknown
    parent: str = ""  # UUID of the partitioned GPU
    gpu_instance: int = -1  # the driver's id on that GPU; -1: unknown
    compute_instance: int = -1  # the driver's id in the GPU instance; -1: unknown
    is_alone: bool = True  # no other compute instance shares its memory


class Gpu(Struct, frozen=True, kw_only=True, gc=False):
    """One GPU of the host, or one MIG instance."""

    index: int  # in the order of the driver; see gpus/mig.py for that of a MIG instance
    uuid: str
    model: str
    total: int  # bytes
    reserved: int = 0  # bytes that the driver keeps
    headroom: int = 0  # bytes that the configuration keeps
    capacity: int = WHOLE  # ten-thousandths that jobs may hold; above WHOLE, the site oversubscribes the GPU
    pci: str = ""
    links: tuple[tuple[int, int], ...] = ()  # (index of another GPU, a Near); GPUs without a link are omitted
    cpus: tuple[int, ...] = ()  # CPUs near the GPU; (): unknown
    features: tuple[str, ...] = ()  # of the site's configuration
    state: GpuState = GpuState.OK
    note: str = ""  # why the state is not OK
    noted_at: float = 0.0  # seconds since the epoch
    mig: MigInstance | None = None  # None: a whole GPU
    is_unit: bool = False  # no part of it is allocated
    is_named: bool = False  # it is allocated only to requests that name it, or ask for memory alone
    usable: int = 0  # bytes for jobs, of which shares are shares; computed from the other fields

    def __post_init__(self) -> None:
        force_setattr(self, "usable", max(0, self.total - self.reserved - self.headroom))

    @property
    def is_oversubscribed(self) -> bool:
        """Whether its jobs may hold more than it has, so that their memory is not guaranteed."""
        return self.capacity > WHOLE

    @property
    def logical_memory(self) -> int:
        """Bytes that its jobs may hold in total."""
        return self.usable * self.capacity // WHOLE

    @property
    def profile(self) -> str:
        """Return the profile of a MIG instance; "" for a whole GPU."""
        return self.mig.profile if self.mig else ""


def is_instance(uuid: str) -> bool:
    """Tell whether a UUID is that of a MIG instance."""
    return uuid.startswith("MIG-")


class GpuProcess(Struct, frozen=True, kw_only=True, gc=False):
    """A process that uses a GPU."""

    pid: int
    memory: int  # bytes; 0: the driver does not say
    # compute time and memory traffic since the last sample, in ten-thousandths of the GPU's; None: unknown
    busy: int | None = None
    traffic: int | None = None


class Reading(Struct, frozen=True, kw_only=True, gc=False):
    """One sample of one GPU."""

    gpu: int  # index
    used: int  # bytes, by all processes
    processes: tuple[GpuProcess, ...] = ()
    utilisation: int | None = None  # percent
    temperature: int | None = None  # degrees Celsius
    external: int = 0  # bytes of processes that belong to no job
    error: str = ""  # why the GPU did not answer
    obstacle: str = ""  # why no job may start there, although the GPU answered
    is_lost: bool = False  # the GPU fell off the bus
    ecc: int | None = None  # uncorrectable memory errors since the driver was loaded
    xids: tuple[int, ...] = ()  # errors that the driver reported since the last sample
    remap: str = ""  # replacement of memory rows: "", "pending" or "failed"
    past: tuple[GpuProcess, ...] = ()  # processes that computed since the last sample and have ended
    traffic: int | None = None  # percent of the time in which its memory was read or written
    power: int | None = None  # milliwatts
    energy: int | None = None  # millijoules since the driver was loaded
    clock: int | None = None  # MHz, of the multiprocessors
    memory_clock: int | None = None  # MHz
    throttled: tuple[str, ...] | None = None  # what limits its clock: "power", "heat"; None: unknown


Readings = Mapping[int, Reading]  # by GPU index


class HostLimits(Struct, frozen=True, kw_only=True, gc=False):
    """The CPUs and memory of the host, and the site's rules for sharing a GPU."""

    cpus: int
    host_memory: int  # bytes
    max_jobs_per_gpu: int = 0  # 0: no limit
    share_step: int = 1  # ten-thousandths; shares are multiples of it
    max_requeue: int = 5  # failures of the host after which a job is held
    spread: bool = False  # placement prefers the emptier GPU
    kill_wait: float = 30  # seconds between SIGTERM and SIGKILL


class FenceRequest(Struct, frozen=True, kw_only=True):
    """What fgfence asks for."""

    demand: Demand
    pid: int  # the fence lasts at least as long as this process
    follows: bool  # the descendants of this process are in the fence
    run: str  # the user's run directory
    gpus: str = ""  # GPUs to choose from, as a list of indices; "": as the environment says
    compute: str = "none"  # how launches are paced: none or hard


class FenceReply(Struct, frozen=True, kw_only=True):
    """The variables of the programs in a fence, or why there is no fence."""

    environment: Mapping[str, str] = {}
    cause: str = ""
    remedy: str = ""


class JobUsage(Struct, frozen=True, kw_only=True):
    """What the samples of a job's GPUs showed, summed over its GPUs and attempts."""

    sampled: float  # seconds in which the job was running and was sampled
    charged: float  # GPU seconds in these: active + held + empty
    active: float
    held: float
    empty: float
    used: float | None  # GPU seconds: SM share x time; None: the driver measures none, as on MIG
    memory: float  # byte-seconds
    peak: int  # bytes, the maximum on one GPU
    with_process: float  # seconds with a process on a GPU
    busy: float  # seconds with an SM share above 1 %
    longest_idle: float  # seconds without
    first_process: float | None = None  # seconds from the start to the first GPU process
    energy: float | None = None  # joules
    read: int = 0  # bytes of input
    written: int = 0  # bytes of output
    neighbours: tuple[tuple[int, float], ...] = ()  # (job, seconds on the same GPU)


def memory_peak(counted: int, usage: JobUsage | None) -> int | None:
    """Return the most bytes of a job on one GPU: as the hook counted them, or as they were sampled.

    None: neither is known. The hook counts 0 on a simulated GPU, too, so its 0 says nothing.
    """
    sampled = usage.peak if usage is not None and usage.sampled else None
    return max(counted, sampled or 0) if counted or sampled is not None else None
