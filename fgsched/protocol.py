"""Every request to the controller and every answer, as a type. Both ends of the socket use these.

A request is one line of JSON: `{"v":2,"op":"cancel","ids":[7]}`; `op` selects the `Call`, whose other fields
follow. The answer is one line too: `{"v":2,"ok":{…}}` or `{"v":2,"error":{…}}`, and before it, if the call
asks for news, any number of lines `{"v":2,"progress":{…}}`.
`codec.py` encodes and decodes the lines.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from fgsched.domain.errors import BY_EXIT_CODE, FgschedError, OurFault
from fgsched.domain.job import (
    WHOLE,
    Gpu,
    JobState,
    OomReport,
    Preemption,
    Reading,
    Reason,
    Request,
    Time,
)
from fgsched.domain.policy import Partition, Reservation, Weights
from fgsched.domain.text import restore_bytes
from fgsched.domain.units import SubmitContext
from fgsched.domain.waiting import Cause, ExpectedStart, Explanation, Trial

Answer = TypeVar("Answer")
MAX_IDS = 100_000  # in one request: all others wait for it

Reference = int | str  # names a job: 12, the array 12, its task "12_3", its tasks "12_[1-5,8]"
Ids = Annotated[Sequence[Reference], Meta(max_length=MAX_IDS)]
Note = Annotated[str, Meta(max_length=1024)]


# -- parts of answers ----------------------------------------------------------------------------


class Problem(Struct, frozen=True, kw_only=True):
    """Describe an error: its exit code, its cause and what helps."""

    exit: int
    cause: str
    remedy: str = ""

    @classmethod
    def of(cls, error: FgschedError) -> "Problem":
        """Return the description of `error`."""
        return cls(exit=int(error.exit_code), cause=error.cause, remedy=error.remedy)

    def error(self) -> FgschedError:
        """Return the error that this describes."""
        return BY_EXIT_CODE.get(self.exit, OurFault)(restore_bytes(self.cause), restore_bytes(self.remedy))


class Retry(Struct, frozen=True, kw_only=True):
    """Tell a client that was refused because the controller is busy when to ask again."""

    after: float  # seconds


class Progress(Struct, frozen=True, kw_only=True):
    """Count the jobs that a client waits for."""

    done: int = 0
    running: int = 0
    pending: int = 0


class Outcome(Struct, kw_only=True, omit_defaults=True):
    """Tell what a request did to one job. Mutable: an order that is not delivered becomes an error."""

    id: Reference
    outcome: str = ""  # such as "cancelled"; "over": nothing was done, the job had ended
    state: str = ""  # of a job that is over
    error: Problem | None = None


class Outcomes(Struct, frozen=True, kw_only=True):
    """List one outcome for each row that a request acted on."""

    jobs: list[Outcome]


# -- requests ------------------------------------------------------------------------------------


class Call(
    Struct,
    Generic[Answer],
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="op",
):
    """One request. `class Cancel(Call[Outcomes], tag="cancel")` is answered with `Outcomes`."""

    only_reads: ClassVar[bool] = False  # whether it changes nothing
    repeats: ClassVar[bool] = True  # whether sending it twice does no more than sending it once

    v: int = 0  # version of the protocol; `encode` writes it


class Question(Call[Answer], frozen=True):
    """A request that changes nothing."""

    only_reads: ClassVar[bool] = True


class EarlierJob(Struct, frozen=True, kw_only=True):
    """Describe a job of an earlier queue that still runs on this host."""

    queue: str
    job: int
    pid: int
    gpus: list[str] | None = None  # UUIDs; None: not known


class InternalErrors(Struct, frozen=True, kw_only=True):
    """Count the unexpected exceptions that the controller contained."""

    count: int = 0
    last: str = ""
    at: float | None = None  # seconds since the epoch


class About(Struct, frozen=True, kw_only=True):
    """Describe the controller, its host and its configuration."""

    version: str
    protocol: int
    pid: int
    mode: str
    state: str  # directory
    run: str  # directory
    source: str  # where the GPUs come from: nvml, sim or none
    note: str
    enforce: str  # how jobs are held to their share, unless they ask for another way
    fence: str  # why enforcement failed its proof; "": it did not
    unresolved_pids: list[int]
    earlier_jobs: list[EarlierJob]
    visible: str | None  # CUDA_VISIBLE_DEVICES of the controller
    started_at: float  # seconds since the epoch
    host: str
    gpus: int  # how many
    host_memory_held_by: str
    host_memory_note: str
    pids_held: bool
    pids_note: str
    run_space_note: str
    preload: str
    preload_note: str
    other_gpus: str
    internal_errors: InternalErrors
    operator: bool  # whether the caller is one
    watchdog: str  # what happens to a job with a process without the hook
    interval: float  # seconds between two readings of the GPUs
    run_space: int  # bytes of each user in the run directory
    site: SubmitContext
    config: dict[str, Any]  # setting -> value


class Ping(Question[About], frozen=True, tag="ping"):
    """Ask for the controller itself, and for what reading amounts needs."""


class Cancel(Call[Outcomes], frozen=True, tag="cancel"):
    """Cancel jobs."""

    ids: Ids
    reason: Note = ""


class Signal(Call[Outcomes], frozen=True, tag="signal"):
    """Send running jobs a signal."""

    repeats: ClassVar[bool] = False

    ids: Ids
    signal: Annotated[int, Meta(ge=1, le=64)]
    target: Literal["all", "shell", "children"] = "all"


class Hold(Call[Outcomes], frozen=True, tag="hold"):
    """Keep pending jobs from starting."""

    ids: Ids


class UserHold(Call[Outcomes], frozen=True, tag="uhold"):
    """Keep pending jobs from starting; their owner can release them."""

    ids: Ids


class Release(Call[Outcomes], frozen=True, tag="release"):
    """Let held jobs start."""

    ids: Ids


class Requeue(Call[Outcomes], frozen=True, tag="requeue"):
    """End running jobs and put them back in the queue."""

    ids: Ids
    hold: bool = False  # and hold them there


class Suspend(Call[Outcomes], frozen=True, tag="suspend"):
    """Stop running jobs; they keep what they hold."""

    ids: Ids


class ResumeJobs(Call[Outcomes], frozen=True, tag="resume_jobs"):
    """Let suspended jobs go on."""

    ids: Ids


class LogLine(Struct, frozen=True, kw_only=True):
    """Hold one line of the controller's log."""

    at: float  # seconds since the epoch
    level: str  # info, warning or error
    text: str  # key=value, separated by blanks


class LogLines(Struct, frozen=True, kw_only=True):
    """List lines of the controller's log, the oldest first."""

    lines: list[LogLine]


class ShowLog(Question[LogLines], frozen=True, tag="log"):
    """Ask for the latest decisions of the controller; only those about own jobs, unless an operator asks."""

    job: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0  # id of a job or an array; 0: all


# -- submissions ---------------------------------------------------------------------------------

Place = Annotated[int, Meta(ge=0)]  # in a list


class Batch(Call[Answer], frozen=True):
    """Jobs to be queued. Equal parts are sent once; a job names its parts by their places in the lists."""

    # a repeated request with the same key is answered with the jobs that it made before
    key: Annotated[str, Meta(min_length=16, max_length=128, pattern="^[\\x01-\\x7f]*$")]
    requests: Sequence[Request]
    scripts: Sequence[str]
    environments: Sequence[dict[str, str]]
    jobs: Sequence[tuple[Place, Place, Place, bool]]  # request, script, environment; whether it is held


class Submitted(Struct, frozen=True, kw_only=True):
    """Name the jobs that a submission made: `count` ids from `first` on."""

    first: int
    count: int


class Submit(Batch[Submitted], frozen=True, tag="submit"):
    """Queue jobs: all of them or, if one cannot be taken, none."""


class Trials(Struct, frozen=True, kw_only=True):
    """Tell what would become of the first jobs of a submission."""

    jobs: list[Trial]
    left_out: int = 0  # jobs beyond the most of one answer


class Test(Batch[Trials], frozen=True, tag="test"):
    """Ask what would become of jobs if they were submitted."""

    only_reads: ClassVar[bool] = True


# -- changes of a job ----------------------------------------------------------------------------


class DemandChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Other values for fields of a job's `Demand`."""

    gpus: int | UnsetType = UNSET
    share: int | UnsetType = UNSET
    memory: int | UnsetType = UNSET
    memory_part: int | UnsetType = UNSET
    gpu_type: str | UnsetType = UNSET
    cpus: int | UnsetType = UNSET
    host_memory: int | UnsetType = UNSET


class JobChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Other values for fields of a job's `Request`, which has their meaning and their ranges."""

    name: str | UnsetType = UNSET
    comment: str | UnsetType = UNSET
    requeue: bool | UnsetType = UNSET
    demand: DemandChanges | UnsetType = UNSET
    time_limit: int | UnsetType = UNSET
    output: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    account: str | UnsetType = UNSET
    qos: str | UnsetType = UNSET
    nice: int | UnsetType = UNSET
    dependency: str | UnsetType = UNSET
    begin: int | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    gpu_compute: str | UnsetType = UNSET
    reservation: str | UnsetType = UNSET
    throttle: int | UnsetType = UNSET


class Update(Call[Outcome], frozen=True, tag="update"):
    """Change what a job asks for, as far as its state allows."""

    id: Reference
    changes: JobChanges


class Lowered(Struct, frozen=True, kw_only=True):
    """Tell how many jobs were put behind another one."""

    id: int
    lowered: int


class PutFirst(Call[Lowered], frozen=True, tag="top"):
    """Put a pending job before its owner's other jobs of the same partition, account and QOS."""

    id: int


# -- waiting -------------------------------------------------------------------------------------


class JobEnd(Struct, frozen=True, kw_only=True):
    """Tell how a job stands that was waited for."""

    id: int
    array: int | None = None  # the array that it belongs to
    task: int | None = None  # its index in the array
    state: str
    final: bool
    exit_code: int = 0
    signal: int = 0


class JobEnds(Struct, frozen=True, kw_only=True):
    """List the jobs that have ended, of those that were waited for."""

    jobs: list[JobEnd]


class Wait(Question[JobEnds], frozen=True, tag="wait"):
    """Wait until jobs have ended."""

    ids: Ids
    any: bool = False  # wait for the first of them only
    progress: bool = False  # send `Progress` in the meantime


# -- the host ------------------------------------------------------------------------------------


class GpuIndex(Struct, frozen=True, kw_only=True):
    """Name a GPU."""

    gpu: int  # index


class DrainGpu(Call[GpuIndex], frozen=True, tag="drain"):
    """Start no new jobs on a GPU."""

    gpu: int  # index
    reason: str = ""


class ResumeGpu(Call[GpuIndex], frozen=True, tag="resume"):
    """Start jobs on a drained GPU again."""

    gpu: int  # index


class Reconfigured(Struct, frozen=True, kw_only=True):
    """List the settings that differ from before."""

    changed: list[str]  # in force now
    later: list[str]  # in force once the controller is restarted


class Reconfigure(Call[Reconfigured], frozen=True, tag="reconfigure"):
    """Read the configuration file again."""


class Stopped(Struct, frozen=True, kw_only=True):
    """Tell which controller stops, and how many jobs go on."""

    pid: int
    running: int


class Stop(Call[Stopped], frozen=True, tag="stop"):
    """Stop the controller; jobs go on."""

    repeats: ClassVar[bool] = False


# -- partitions and reservations -----------------------------------------------------------------


class PartitionName(Struct, frozen=True, kw_only=True):
    """Name a partition."""

    partition: str


class CreatePartition(Call[PartitionName], frozen=True, tag="create_partition"):
    """Add a partition after those of the configuration file."""

    name: str
    values: dict[str, str]  # setting -> text, as in the configuration file


class UpdatePartition(Call[PartitionName], frozen=True, tag="update_partition"):
    """Change settings of a partition; an empty text restores the value of the configuration file."""

    name: str
    values: dict[str, str]  # setting -> text, as in the configuration file


class DeletePartition(Call[PartitionName], frozen=True, tag="delete_partition"):
    """Remove a partition that an operator created."""

    name: str


class ReservationName(Struct, frozen=True, kw_only=True):
    """Name a reservation."""

    reservation: str


ReservedName = Annotated[str, Meta(min_length=1, max_length=64)]
Names = Annotated[Sequence[str], Meta(max_length=1024)]


class ReservationChanges(Call[ReservationName], frozen=True):
    """What may be said of a reservation."""

    name: ReservedName
    start: Time | UnsetType = UNSET
    end: Time | UnsetType = UNSET
    users: Names | UnsetType = UNSET
    groups: Names | UnsetType = UNSET
    accounts: Names | UnsetType = UNSET
    flags: Annotated[Sequence[Literal["maint", "ignore_jobs"]], Meta(max_length=16)] | UnsetType = UNSET
    cards: Annotated[Sequence[int], Meta(max_length=1024)] | UnsetType = UNSET  # indices of GPUs
    count: Annotated[int, Meta(ge=0, le=1024)] | UnsetType = UNSET  # of GPUs that the controller chooses
    share: Annotated[int, Meta(gt=0, le=WHOLE)] | UnsetType = UNSET  # of each GPU, in ten-thousandths


class CreateReservation(ReservationChanges, frozen=True, tag="create_reservation"):
    """Reserve GPUs for some users for a while."""


class UpdateReservation(ReservationChanges, frozen=True, tag="update_reservation"):
    """Change a reservation."""


class DeleteReservation(Call[ReservationName], frozen=True, tag="delete_reservation"):
    """Delete a reservation."""

    name: ReservedName


# -- jobs ----------------------------------------------------------------------------------------


class Allocation(Struct, frozen=True, kw_only=True, gc=False):
    """The part of one GPU that a job was given."""

    gpu: int  # index
    uuid: str
    model: str
    share: int  # ten-thousandths of the GPU
    memory: int  # bytes
    charged: int  # ten-thousandths: the larger of the share and the share of the bytes


class Step(Struct, frozen=True, array_like=True, gc=False):
    """One change of a job's state."""

    attempt: int
    at: float  # seconds since the epoch
    before: str
    after: str
    reason: str


class JobInfo(Struct, kw_only=True, omit_defaults=True, gc=False):
    """The attributes of one job. `fields` of a request selects attributes; the others have defaults.

    `controller/handlers/fields.py` has the value of each attribute. Mutable: fgq adds the expected starts.
    """

    # its name
    id: int = 0
    array: int | None = None  # the array that it belongs to
    task: int | None = None  # its index in the array
    tasks: str | None = None  # of the row that stands for an array's waiting tasks: "3-15:4%2"
    name: str = ""
    user: str = ""
    uid: int = 0
    gid: int = 0
    partition: str = ""  # or several, with commas
    partition_place: int = 0  # the position of the partition in their order
    account: str = ""
    qos: str = ""
    reservation: str = ""
    nice: int = 0
    priority: float | None = None  # of a pending job
    # its state
    state: JobState = JobState.PENDING
    reason: Reason = Reason.NONE
    cause: Cause | None = None  # why it does not run
    held: str = ""  # "", "user" or "admin": who holds it
    dependency: str = ""  # what is left of it
    attempt: int = 0
    restarts: int = 0
    exit_code: int = 0
    signal: int = 0
    cancelled_by: int | None = None  # uid
    note: str = ""  # reason of the cancellation; shown to its owner
    detail: str = ""  # what went wrong when it could not be started; told to its owner
    refused: str = ""  # the last allocation of device memory that was refused
    warning: str = ""  # what the watchdog saw of it last
    lost: bool = False  # its shepherd was killed
    preemption: Preemption | None = None  # the last time that it was preempted
    post_mortem: OomReport | None = None  # why it ran out of device memory
    # times, in seconds since the epoch; durations in seconds
    submitted_at: float = 0.0
    eligible_at: float | None = None  # could have started from then on
    started_at: float | None = None
    ended_at: float | None = None
    deadline: int | None = None  # seconds since the epoch
    elapsed: float = 0.0  # seconds of run time, without suspensions
    suspended: float = 0.0  # seconds
    time_limit: int = 0  # seconds; 0: none
    likely: float | None = None  # expected start by earlier runs; filled in by fgq
    known: str = "-"  # of how many jobs ahead there are earlier runs; filled in by fgq
    # its demand
    gpus: int = 0  # number
    share: int | None = None  # ten-thousandths of all its GPUs together; None: differs from GPU to GPU
    memory: int | None = None  # bytes of each GPU; None: differs from GPU to GPU
    memory_part: int = 0  # memory as ten-thousandths of each GPU; 0: not asked for in this form
    gpu_type: str = ""
    cpus: int = 1
    host_memory: int = 0  # bytes; 0: not counted
    gpu_compute: str = ""  # how it shares the compute time of a GPU
    # what it holds or held
    indices: list[int] = []  # of the GPUs that it holds now
    allocated: list[Allocation] = []  # in the last attempt
    bound_cpus: str = ""  # such as "0-3,8"
    resources: list[tuple[str, list[int]]] = []  # (name, indices) of the site's resources
    tier: str = ""  # how it is held to its share
    pacing: str = ""  # how its compute share is enforced
    preload: str = ""  # how the hook is preloaded
    other_gpus: str = ""  # what it sees of other GPUs
    # what it used
    cpu_seconds: float = 0.0
    max_rss: int = 0  # bytes
    gpu_peak: int = 0  # bytes, the most on one GPU
    refusals: int = 0  # allocations that the hook refused
    # told to its owner and to operators
    is_private: bool = False  # to this caller
    comment: str | None = None
    chdir: str | None = None
    command: str | None = None
    request: Request = Request(name="")
    steps: list[Step] = []  # in order


class JobInfos(Struct, frozen=True, kw_only=True):
    """List jobs."""

    jobs: list[JobInfo]


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Choose jobs: each list allows some values; without it any value will do."""

    id: Ids | None = None
    user: Sequence[str] | None = None
    state: Sequence[JobState] | None = None
    partition: Sequence[str] | None = None
    name: Sequence[str] | None = None
    account: Sequence[str] | None = None
    qos: Sequence[str] | None = None


Fields = Annotated[Sequence[str], Meta(max_length=256)]  # names of attributes of JobInfo
PAGE = 500  # jobs of one page of history
Number = Annotated[int, Meta(ge=-(10**15), le=10**15)]
Moment = Annotated[float, Meta(ge=-1e15, le=1e15)]  # seconds since the epoch


class ListQueue(Question[JobInfos], frozen=True, tag="queue"):
    """Ask for some attributes of the open jobs."""

    fields: Fields
    where: Where = Where()
    recent: bool = False  # also jobs that ended in the last 5 minutes


class ShowJob(Question[JobInfo], frozen=True, tag="job"):
    """Ask for everything about one job."""

    id: Reference


class ShowJobs(Question[JobInfos], frozen=True, tag="jobs"):
    """Ask for everything about the jobs that a name means: an array has many."""

    id: Reference


class HistoryPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """List a page of past and open jobs, by id."""

    jobs: list[JobInfo]
    next: int | None = None  # asks for the next page, as `after`
    missing: list[Reference] = []  # names that no job has


class ListHistory(Question[HistoryPage], frozen=True, tag="history"):
    """Ask for some attributes of the jobs that existed in a window of time, or of named jobs."""

    fields: Fields
    ids: Annotated[Sequence[Reference], Meta(max_length=PAGE)] | None = None
    since: Moment = 0.0
    until: Moment = 1e15
    uid: Number | None = None
    after: Number = 0


class Script(Struct, frozen=True, kw_only=True):
    """The script of a job, as it was submitted."""

    script: str


class ShowScript(Question[Script], frozen=True, tag="script"):
    """Ask for the script of one job, which only its owner may see."""

    id: Reference


class Pids(Struct, frozen=True, kw_only=True):
    """The processes of a job."""

    pids: list[int]


class ListPids(Question[Pids], frozen=True, tag="pids"):
    """Ask for the processes of one job."""

    id: Reference


class QueueCheck(Struct, frozen=True, kw_only=True):
    """What a check of the queue file found."""

    queue: str


class CheckQueue(Question[QueueCheck], frozen=True, tag="check"):
    """Ask whether the queue file is whole."""


# -- waiting jobs --------------------------------------------------------------------------------


class Explanations(Struct, frozen=True, kw_only=True):
    """Explain why jobs wait."""

    jobs: list[Explanation]
    left_out: int = 0  # jobs beyond the most of one answer


class ExplainJobs(Question[Explanations], frozen=True, tag="why"):
    """Ask why jobs wait."""

    ids: Ids | None = None  # None: the caller's pending jobs


class Starts(Struct, frozen=True, kw_only=True):
    """List when pending jobs will start, by id."""

    starts: list[tuple[int, ExpectedStart]]


class ListStarts(Question[Starts], frozen=True, tag="starts"):
    """Ask when the pending jobs will start."""


# -- GPUs and partitions -------------------------------------------------------------------------


class Amount(Struct, frozen=True, kw_only=True):
    """How much of something there is."""

    free: int
    total: int


class GpuInfo(Struct, frozen=True, kw_only=True):
    """One GPU, what is left of it, and what the last reading showed."""

    gpu: Gpu
    usable: int  # bytes for jobs
    free_share: int  # ten-thousandths
    free_memory: int  # bytes
    external: int  # bytes held by processes outside fgsched
    jobs: list[int]  # ids of the jobs that hold a part of it
    seen: Reading | None
    kept_as: str  # the state that a reservation gives an idle GPU; "": none


class Gpus(Struct, frozen=True, kw_only=True):
    """List the GPUs, and what is left of the host."""

    gpus: list[GpuInfo]
    enforce: str  # how jobs are held to their share
    preload: str
    preload_note: str
    other_gpus: str
    cpus: Amount
    memory: Amount  # bytes
    jobs: dict[str, int]  # state -> number of jobs


class ListGpus(Question[Gpus], frozen=True, tag="gpus"):
    """Ask for the GPUs."""


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """One partition, with the GPUs of this host that it may use and its jobs."""

    partition: Partition
    cards: list[int]  # indices
    jobs: dict[str, int]  # state -> number of jobs


class Partitions(Struct, frozen=True, kw_only=True):
    """List the partitions in their order."""

    partitions: list[PartitionInfo]


class ListPartitions(Question[Partitions], frozen=True, tag="partitions"):
    """Ask for the partitions."""


class ReservationInfo(Struct, frozen=True, kw_only=True):
    """One reservation, and the jobs in it."""

    reservation: Reservation
    is_active: bool
    running: list[int]  # job ids
    pending: list[int]


class Reservations(Struct, frozen=True, kw_only=True):
    """List the reservations."""

    reservations: list[ReservationInfo]


class ListReservations(Question[Reservations], frozen=True, tag="reservations"):
    """Ask for the reservations."""


class PriorityInfo(Struct, frozen=True, kw_only=True, gc=False):
    """The priority of a pending job and its weighted factors."""

    id: int
    user: str
    account: str
    partitions: str
    qos_name: str
    priority: float
    age: float
    fairshare: float
    size: float
    partition: float
    qos: float
    nice: int


class Priorities(Struct, frozen=True, kw_only=True):
    """List the priorities of the pending jobs."""

    weights: Weights
    jobs: list[PriorityInfo]


class ListPriorities(Question[Priorities], frozen=True, tag="priorities"):
    """Ask for the priorities of the pending jobs."""


class ShareInfo(Struct, frozen=True, kw_only=True):
    """The share of an account, or of a user in it, and what of it was used."""

    account: str
    user: str  # "": the account itself
    shares: int
    part: float  # of all shares
    seconds: float  # GPU time that counts, in seconds
    used: float  # part of all use
    factor: float  # of a priority, 0 to 1


class Shares(Struct, frozen=True, kw_only=True):
    """List the shares of accounts and users."""

    shares: list[ShareInfo]
    half_life: int  # seconds after which use counts half


class ListShares(Question[Shares], frozen=True, tag="shares"):
    """Ask for the shares."""


def _leaves(kind: type[Call[Any]]) -> Iterator[type[Call[Any]]]:
    """The calls that derive from `kind` and that no other derives from."""
    below = kind.__subclasses__()
    for one in below:
        yield from _leaves(one)
    if not below:
        yield kind


CALLS = tuple(_leaves(Call))  # every request


def name_of(kind: type[Call[Any]]) -> str:
    """Return the word that selects `kind` on the wire."""
    return str(kind.__struct_config__.tag)


@cache
def answer_of(kind: type[Call[Answer]]) -> type[Answer]:
    """Return the type that a call of `kind` is answered with."""
    bases = (base for one in kind.__mro__ for base in getattr(one, "__orig_bases__", ()))
    found: type[Answer] = next(args[0] for base in bases if (args := get_args(base)))
    return found
