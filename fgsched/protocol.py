"""The types of all requests to the controller and of their answers, for commands and controller.

A request is one line of JSON: `{"v":2,"op":"cancel","ids":[7]}`; `op` selects the type of `Call`, and the
other members are its fields. The answer is one line: `{"v":2,"ok":{…}}` or `{"v":2,"error":{…}}`. A call with
`progress` gets lines `{"v":2,"progress":{…}}` before its answer.
`codec.py` encodes and decodes the lines.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from fgsched.domain.errors import BY_EXIT_CODE, FgschedError, OurFault
from fgsched.domain.job import (
    WHOLE,
    AdoptedProcess,
    Demand,
    Gpu,
    GpuState,
    JobUsage,
    Label,
    MpsUse,
    Name,
    OomReport,
    Preemption,
    Reading,
    Request,
    Time,
)
from fgsched.domain.jobsteps import JobStep
from fgsched.domain.policy import ChargeAccount, Partition, Qos, Reservation, UserPolicy, Weights
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import restore_bytes
from fgsched.domain.units import SubmitContext
from fgsched.domain.waiting import Cause, ExpectedStart, Explanation, Trial

Answer = TypeVar("Answer")
MAX_IDS = 100_000  # in one request: other requests wait while it is served
MAX_LINE_SCRIPT = 65_536  # characters of a script that the controller reads for its headers

Reference = int | str  # names a job: 12, the array 12, its task "12_3", its tasks "12_[1-5,8]"
Ids = Annotated[Sequence[Reference], Meta(max_length=MAX_IDS)]
Note = Annotated[str, Meta(max_length=1024)]
FilePath = Annotated[str, Meta(max_length=4095, pattern="^/[^\\x00]*$")]  # absolute


# -- parts of answers ----------------------------------------------------------------------------


class Problem(Struct, frozen=True, kw_only=True):
    """An error as it is sent: exit code, cause and remedy."""

    exit: int
    cause: str
    remedy: str = ""
    job: int | None = None  # index in a submission of the job that it is about

    @classmethod
    def of(cls, error: FgschedError) -> "Problem":
        """Return the description of `error`."""
        return cls(exit=int(error.exit_code), cause=error.cause, remedy=error.remedy, job=error.job)

    def error(self) -> FgschedError:
        """Return the exception for this error."""
        error = BY_EXIT_CODE.get(self.exit, OurFault)(restore_bytes(self.cause), restore_bytes(self.remedy))
        error.job = self.job
        return error


class Retry(Struct, frozen=True, kw_only=True):
    """The time after which a client refused by a busy controller may repeat its request."""

    after: float  # seconds


class Progress(Struct, frozen=True, kw_only=True):
    """The numbers of ended, running and pending jobs that a client waits for."""

    done: int = 0
    running: int = 0
    pending: int = 0


class Outcome(Struct, kw_only=True, omit_defaults=True):
    """The result of a request for one job. Mutable: an order that cannot be delivered gets an error later."""

    id: Reference
    outcome: str = ""  # such as "cancelled"; "over": the job had already ended
    state: str = ""  # of a job that had already ended
    error: Problem | None = None
    warnings: tuple[str, ...] = ()  # about a change with which the job can never start


class Outcomes(Struct, frozen=True, kw_only=True):
    """The outcomes of a request, one for each job or array."""

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
    """A request. `class Cancel(Call[Outcomes], tag="cancel")` has an answer of type `Outcomes`."""

    only_reads: ClassVar[bool] = False  # True: it changes nothing
    repeats: ClassVar[bool] = True  # True: a second identical request changes nothing more
    stores: ClassVar[bool] = True  # False: nothing of it is stored, so that it is carried out on a full disk

    v: int = 0  # version of the protocol; `encode` writes it


class Question(Call[Answer], frozen=True):
    """A request that changes nothing."""

    only_reads: ClassVar[bool] = True


class JobOfEarlierQueue(Struct, frozen=True, kw_only=True):
    """A job of an earlier queue that is still running on this host."""

    queue: str
    job: int
    pid: int
    gpus: list[str] | None = None  # UUIDs; None: not known


class InternalErrors(Struct, frozen=True, kw_only=True):
    """The number of unexpected exceptions in the controller, and the last one."""

    count: int = 0
    last: str = ""
    at: float | None = None  # seconds since the epoch


class About(Struct, frozen=True, kw_only=True):
    """Information about the controller, its host and its configuration."""

    version: str
    protocol: int
    pid: int
    mode: str
    state: str  # directory
    run_dir: str
    source: str  # of the GPUs: that of a vendor, or none
    note: str
    enforce: str  # default enforcement level of jobs
    fence: str  # why the enforcement check failed; "": it passed
    unresolved_pids: list[int]
    earlier_jobs: list[JobOfEarlierQueue]
    visible: str | None  # the words that select GPUs, in the environment of the controller
    started_at: float  # seconds since the epoch
    host: str
    gpus: int  # number
    host_memory_held_by: str
    host_memory_note: str
    pids_held: bool
    pids_note: str
    run_space_note: str
    preload: str
    preload_note: str
    other_gpus: str
    internal_errors: InternalErrors
    operator: bool  # True: the caller is an operator
    watchdog: str  # action on a job with a process that lacks the hook
    interval: float  # seconds between two samples of the GPUs
    run_space: int  # bytes of each user in the run directory
    site: SubmitContext
    config: dict[str, Any]  # setting -> value
    selection: str = ""  # variable with the words that select GPUs
    queue_size: int = 0  # bytes of the file
    accounts_size: int = 0  # bytes of the file
    accounts_note: str = ""  # why nothing can be stored in the accounts; "": it can
    queue_note: str = ""  # why the queue cannot be written; "": it can


class Ping(Question[About], frozen=True, tag="ping"):
    """Get the state of the controller, and the settings with which commands parse amounts."""


class Cancel(Call[Outcomes], frozen=True, tag="cancel"):
    """Cancel jobs."""

    ids: Ids
    reason: Note = ""


class Signal(Call[Outcomes], frozen=True, tag="signal"):
    """Send a signal to running jobs."""

    repeats: ClassVar[bool] = False
    stores: ClassVar[bool] = False

    ids: Ids
    signal: Annotated[int, Meta(ge=1, le=64)]
    target: Literal["all", "shell", "children"] = "all"


class Join(Call[Outcomes], frozen=True, tag="join"):
    """Start an agent in a running job of the caller, which connects to a socket of the caller."""

    stores: ClassVar[bool] = False

    ids: Ids
    caller: Annotated[int, Meta(ge=0, lt=1 << 24)]  # in the name of that socket


class HoldJobs(Call[Outcomes], frozen=True, tag="hold"):
    """Hold pending jobs. A hold by an operator can be released by operators only."""

    ids: Ids


class UserHold(Call[Outcomes], frozen=True, tag="uhold"):
    """Hold pending jobs; their owner can release them."""

    ids: Ids


class Release(Call[Outcomes], frozen=True, tag="release"):
    """Release held jobs."""

    ids: Ids


class Requeue(Call[Outcomes], frozen=True, tag="requeue"):
    """Requeue running jobs."""

    ids: Ids
    hold: bool = False  # hold the requeued jobs


class Suspend(Call[Outcomes], frozen=True, tag="suspend"):
    """Suspend running jobs; they keep their allocations."""

    ids: Ids


class ResumeJobs(Call[Outcomes], frozen=True, tag="resume_jobs"):
    """Resume suspended jobs."""

    ids: Ids


class LogLine(Struct, frozen=True, kw_only=True):
    """A line of the controller's log."""

    at: float  # seconds since the epoch
    level: str  # info, warning or error
    text: str  # key=value, separated by blanks


class LogLines(Struct, frozen=True, kw_only=True):
    """Lines of the controller's log, the oldest first."""

    lines: list[LogLine]


class ShowLog(Question[LogLines], frozen=True, tag="log"):
    """Get the latest decisions from the log: operators get all, users only those about their own jobs."""

    job: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0  # id of a job or an array; 0: all


class StreamedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a job, of a GPU or of the site. Fields and names of events are added, never renamed."""

    event: str  # submitted, started, held, released, cancelling, suspended, resumed, preempted, …
    seq: int  # rises by one with each event of this controller, of all users
    at: float  # seconds since the epoch
    job: int = 0  # id; 0: the event is about no job
    count: int = 0  # number of submitted jobs with consecutive ids; 0: one
    array: int = 0
    task: int | None = None
    attempt: int = 0
    user: str = ""
    uid: int | None = None
    state: str = ""  # of the job or of the GPU
    reason: str = ""
    partition: str = ""
    gpus: tuple[int, ...] = ()  # indices
    share: int = 0  # of each GPU, in ten-thousandths
    exit_code: int | None = None
    signal: int | None = None
    by: str = ""  # user whose request caused the event
    note: str = ""


class EventBatch(Struct, frozen=True, kw_only=True):
    """Events, the oldest first, and where the next request continues."""

    events: list[StreamedEvent]
    cursor: str
    lost: int | None = 0  # events that were dropped since the cursor; None: unknown, the controller restarted


class Events(Question[EventBatch], frozen=True, tag="events"):
    """Get the events after a cursor; wait for one if there is none. Without a cursor: those from now on."""

    after: Annotated[str, Meta(max_length=64)] = ""


# -- submissions ---------------------------------------------------------------------------------

Place = Annotated[int, Meta(ge=0)]  # index in a list


# of a submission: a second request with the same key queues nothing; its answer names the jobs of the first.
# Keys that begin with the time cost the queue least: see `new_key` of system/unanswered.py
Key = Annotated[str, Meta(min_length=16, max_length=128, pattern="^[\\x01-\\x7f]*$")]


class Batch(Call[Answer], frozen=True):
    """Jobs to be queued. They refer to their requests, scripts and environments by index into the lists."""

    key: Key
    requests: Sequence[Request]
    scripts: Sequence[str]
    environments: Sequence[dict[str, str]]
    jobs: Sequence[tuple[Place, Place, Place, bool]]  # request, script, environment; True: submitted on hold
    inside: Annotated[int, Meta(ge=0, le=2**53)] = 0  # id of the job in which the client runs; 0: none


class Submitted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ids of the submitted jobs: `count` consecutive ids that begin with `first`."""

    first: int
    count: int
    warnings: tuple[str, ...] = ()  # about jobs that can never start


class Submit(Batch[Submitted], frozen=True, tag="submit"):
    """Queue jobs: all of them, or none if one is refused."""


QuestionKind = Literal[
    "account",
    "container",
    "enter",
    "file",
    "input",
    "interpreter",
    "make",
    "moment",
    "output",
    "script",
    "writable",
]


class LineQuestion(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What only the process that sends a command line can tell: `submission/questions.py` has both ends."""

    kind: QuestionKind
    words: tuple[str, ...] = ()
    option: str = ""  # whose value it is about; "": none
    text: str = ""  # this value
    source: str = ""  # where the option stands, as a `Setting` has it
    line: int = 0


class LineFact(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A question of the controller about a command line, and its answer."""

    question: LineQuestion
    words: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_LINE_SCRIPT)], ...], Meta(max_length=4)
    ] = ()  # of a check: empty if it is right


class Flags(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to do with a submission, and what to print."""

    parsable: bool = False
    quiet: bool = False
    json: bool = False
    wait: bool = False
    explain: bool = False
    test: bool = False


class ParsedLine(Struct, frozen=True, kw_only=True):
    """The fields of a `Batch` that was read from a command line."""

    requests: Sequence[Request]
    scripts: Sequence[str]
    environments: Sequence[dict[str, str]]
    jobs: Sequence[tuple[int, int, int, bool]]
    inside: int


class LineSubmitted(Struct, frozen=True, kw_only=True):
    """The answer to a command line: submitted, to be sent again with answers, or not for this client."""

    first: int = 0  # id of the first job; 0: nothing was submitted
    out: str = ""  # text for standard output
    err: str = ""  # text for standard error
    questions: list[LineQuestion] = []  # to be answered when the line is sent again
    parsed: ParsedLine | None = None  # to be sent by the client: as a trial, or to the filter of the site
    refusal: Problem | None = None  # why the job was not submitted, after `err`
    flags: Flags = Flags()
    hint: str = ""  # name of the job, if a person should learn about its last runs
    # "d/PATH": a directory; "x/PATH": can be entered; "f/PATH": not a directory; "w/PATH": a writable file
    checks: list[str] = []
    elsewhere: bool = False  # True: only the Python command can send this line


class SubmitLine(Call[LineSubmitted], frozen=True, tag="submit_line"):
    """Queue the job of a command line of fgsub, which the controller reads."""

    key: Key
    words: Annotated[Sequence[Annotated[str, Meta(max_length=4096)]], Meta(max_length=1024)]
    cwd: FilePath
    environ: Annotated[Sequence[str], Meta(max_length=16_384)]  # NAME=value
    umask: Annotated[int, Meta(ge=0, le=0o777)]
    rlimits: Annotated[Sequence[tuple[int, int, int]], Meta(max_length=64)]  # resource, soft, hard
    files: Annotated[
        Mapping[str, Annotated[str, Meta(max_length=MAX_LINE_SCRIPT)]], Meta(max_length=8)
    ]  # texts of scripts, by word
    terminal: bool = False  # standard error is a terminal
    checked: bool = False  # the submitter has checked the paths that the first answer named
    asks: bool = False  # the client answers questions, and carries out flags; else it checks paths only
    facts: Annotated[Sequence[LineFact], Meta(max_length=64)] = ()  # its answers
    name: Literal["fgsub", "sbatch"] = "fgsub"  # of the command, in warnings


class Trials(Struct, frozen=True, kw_only=True):
    """The expected start of the first jobs of a submission, or why they would be refused."""

    jobs: list[Trial]
    left_out: int = 0  # number of further jobs


class Test(Batch[Trials], frozen=True, tag="test"):
    """Check a submission, and estimate when and where its jobs would start, without queueing them."""

    only_reads: ClassVar[bool] = True


# -- changes of a job ----------------------------------------------------------------------------


class DemandChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """New values of fields of a job's `Demand`, in the units of `Demand`; UNSET leaves a field unchanged."""

    gpus: int | UnsetType = UNSET
    share: int | UnsetType = UNSET
    memory: int | UnsetType = UNSET
    memory_part: int | UnsetType = UNSET
    gpu_type: str | UnsetType = UNSET
    cpus: int | UnsetType = UNSET
    host_memory: int | UnsetType = UNSET


class JobChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """New values of fields of a job's `Request`, which documents them; UNSET leaves a field unchanged."""

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
    mail_type: str | UnsetType = UNSET
    mail_user: str | UnsetType = UNSET


class Update(Call[Outcome], frozen=True, tag="update"):
    """Change the request of a job, as far as its state permits."""

    id: Reference
    changes: JobChanges


class Lowered(Struct, frozen=True, kw_only=True):
    """The number of jobs whose priority was lowered in favour of job `id`."""

    id: int
    lowered: int


class PutFirst(Call[Lowered], frozen=True, tag="top"):
    """Move a pending job ahead of its owner's other jobs of the same partition, account and QOS."""

    id: int


# -- waiting -------------------------------------------------------------------------------------


class JobEnd(Struct, frozen=True, kw_only=True):
    """The state of a job that a client waits for."""

    id: int
    array: int | None = None  # the array that it belongs to
    task: int | None = None  # its index in the array
    state: str
    final: bool
    exit_code: int = 0
    signal: int = 0


class JobEnds(Struct, frozen=True, kw_only=True):
    """The jobs that a client waited for and that have ended."""

    jobs: list[JobEnd]


class Wait(Question[JobEnds], frozen=True, tag="wait"):
    """Wait for the end of jobs."""

    ids: Ids
    any: bool = False  # wait for the first end only
    progress: bool = False  # send `Progress` in the meantime


# -- the host ------------------------------------------------------------------------------------


class GpuIndex(Struct, frozen=True, kw_only=True):
    """A GPU, by index."""

    gpu: int  # index


class DrainGpu(Call[GpuIndex], frozen=True, tag="drain"):
    """Drain a GPU: its running jobs continue, no new ones start."""

    gpu: int  # index
    reason: Note = ""


class ResumeGpu(Call[GpuIndex], frozen=True, tag="resume"):
    """Return a drained GPU to service."""

    gpu: int  # index


class Reconfigured(Struct, frozen=True, kw_only=True):
    """The settings that a reconfiguration changed."""

    changed: list[str]  # in effect now
    later: list[str]  # in effect after a restart of the controller
    warnings: list[str] = []  # settings that name more than the host has


class Reconfigure(Call[Reconfigured], frozen=True, tag="reconfigure"):
    """Reread the configuration file."""


class ArchiveContents(Struct, frozen=True, kw_only=True):
    """The contents of a backup or an archive."""

    bytes: int = 0  # of the backup
    jobs: int = 0  # that moved to the archive


class BackUp(Call[ArchiveContents], frozen=True, tag="back_up"):
    """Copy the queue and the accounts into a new file."""

    repeats: ClassVar[bool] = False

    file: FilePath


class NoteWarning(Call[ArchiveContents], frozen=True, tag="note_warning"):
    """Record in the accounts a warning or an action of a policy about a job or a process outside of jobs."""

    repeats: ClassVar[bool] = False

    job: Annotated[int, Meta(ge=0, le=2**62)]  # 0: a process of no job
    policy: Name
    finding: Label
    action: Name


class ReportMade(Struct, frozen=True, kw_only=True):
    """A report of fgreport, as JSON of its model."""

    report: str
    is_empty: bool = False  # nothing was accounted in the period
    begin: float | None = None  # epoch seconds of the first record in the accounts; None: there is none


_Text = Annotated[str, Meta(max_length=64)]


class MakeReport(Question[ReportMade], frozen=True, tag="report"):
    """Make a report for a user who may not read the accounts."""

    report: Name
    since: _Text = ""
    until: _Text = ""
    yesterday: bool = False
    week: _Text = ""
    month: _Text = ""
    by: _Text = "user"
    rows: Annotated[int, Meta(ge=1, le=10_000)] = 10
    user: Name = ""  # of the report "me"; "": the caller


class ArchiveJobs(Call[ArchiveContents], frozen=True, tag="archive"):
    """Move old jobs and samples from the accounts to another file."""

    file: FilePath
    before: Annotated[int, Meta(ge=0, le=2**40)]  # seconds since the epoch


class Stopped(Struct, frozen=True, kw_only=True):
    """The process id of the stopping controller, and the number of jobs that keep running."""

    pid: int
    running: int


class Stop(Call[Stopped], frozen=True, tag="stop"):
    """Stop the controller; jobs keep running."""

    repeats: ClassVar[bool] = False


# -- partitions and reservations -----------------------------------------------------------------


class PartitionName(Struct, frozen=True, kw_only=True):
    """The name of a partition that was changed."""

    partition: str
    warnings: list[str] = []  # about settings that contradict each other or the host


class CreatePartition(Call[PartitionName], frozen=True, tag="create_partition"):
    """Create a partition; it is ordered after the partitions of the configuration file."""

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
    """The name of a reservation."""

    reservation: str


ReservedName = Annotated[str, Meta(min_length=1, max_length=64)]
Names = Annotated[Sequence[Annotated[str, Meta(max_length=255)]], Meta(max_length=1024)]


class ReservationChanges(Call[ReservationName], frozen=True):
    """The attributes of a reservation that a request can set."""

    name: ReservedName
    start: Time | UnsetType = UNSET
    end: Time | UnsetType = UNSET
    users: Names | UnsetType = UNSET
    groups: Names | UnsetType = UNSET
    accounts: Names | UnsetType = UNSET
    flags: Annotated[Sequence[Literal["maint", "ignore_jobs"]], Meta(max_length=16)] | UnsetType = UNSET
    gpus: Annotated[Sequence[int], Meta(max_length=1024)] | UnsetType = UNSET  # indices of GPUs
    count: Annotated[int, Meta(ge=0, le=1024)] | UnsetType = UNSET  # of GPUs that the controller chooses
    share: Annotated[int, Meta(gt=0, le=WHOLE)] | UnsetType = UNSET  # of each GPU, in ten-thousandths


class CreateReservation(ReservationChanges, frozen=True, tag="create_reservation"):
    """Reserve GPUs for users, groups or accounts, or for maintenance, in a period."""


class UpdateReservation(ReservationChanges, frozen=True, tag="update_reservation"):
    """Change a reservation."""


class DeleteReservation(Call[ReservationName], frozen=True, tag="delete_reservation"):
    """Delete a reservation."""

    name: ReservedName


# -- jobs ----------------------------------------------------------------------------------------


class Allocation(Struct, frozen=True, kw_only=True, gc=False):
    """The part of one GPU that is allocated to a job."""

    gpu: int  # index
    uuid: str
    model: str
    share: int  # ten-thousandths of the GPU
    memory: int  # bytes
    charged: int  # ten-thousandths: the larger of the fractions of time and of memory


class StateChange(Struct, frozen=True, array_like=True, gc=False):
    """One change of a job's state."""

    attempt: int
    at: float  # seconds since the epoch
    before: str
    after: str
    reason: str


class OnGpu(Struct, frozen=True, kw_only=True, gc=False):
    """The use of a GPU by a job in the last look."""

    gpu: int  # index
    memory: int  # bytes
    busy: int | None  # ten-thousandths of the GPU's compute time; None: not measured


class JobInfo(Struct, kw_only=True, omit_defaults=True, gc=False):
    """The attributes of one job. An attribute that the request did not select has its default.

    `controller/handlers/fields.py` computes each attribute. Mutable: fgq adds the expected starts.
    """

    # its name
    id: int = 0
    array: int | None = None  # the array that it belongs to
    task: int | None = None  # its index in the array
    tasks: str | None = None  # of an array's row: its pending tasks, such as "3-15:4%2"
    name: str = ""
    user: str = ""
    uid: int = 0
    gid: int = 0
    partition: str = ""  # or several, separated by commas
    partition_place: int = 0  # index in the order of partitions
    account: str = ""
    wckey: str = ""
    qos: str = ""
    reservation: str = ""
    nice: int = 0
    priority: float | None = None  # of a pending job
    # its state
    state: JobState = JobState.PENDING
    reason: Reason = Reason.NONE
    cause: Cause | None = None  # why it is pending
    held: str = ""  # "user", "admin", or "" if it is not held
    dependency: str = ""  # without the conditions that are met
    unmet: str = ""  # its dependency with the state of each condition, such as "afterok:7(failed)"
    attempt: int = 0
    restarts: int = 0
    exit_code: int = 0
    signal: int = 0
    cancelled_by: int | None = None  # uid
    note: str = ""  # reason of the cancellation; shown to its owner
    detail: str = ""  # why its launch failed; shown to its owner
    refused: str = ""  # the last allocation of device memory that was refused
    unhooked: str = ""  # its processes without the hook, and why
    warning: str = ""  # the last warning of the watchdog or of a launch
    lost: bool = False  # its shepherd was killed
    preemption: Preemption | None = None  # its last preemption
    post_mortem: OomReport | None = None  # why it ran out of device memory
    # times, in seconds since the epoch; durations in seconds
    submitted_at: float = 0.0
    eligible_at: float | None = None  # earliest time at which it could have started
    started_at: float | None = None
    ended_at: float | None = None
    deadline: int | None = None  # seconds since the epoch
    elapsed: float = 0.0  # seconds of run time, without suspensions
    suspended: float = 0.0  # seconds
    time_limit: int = 0  # seconds; 0: none
    starts_at: float | None = None  # start, or expected start of a pending job; filled in by the client
    likely: float | None = None  # expected start according to earlier runs; filled in by fgq
    step: str = ""  # "batch", "extern" or a number; filled in by fgacct for a row of a step
    known: str = "-"  # number of jobs ahead that have earlier runs; filled in by fgq
    # its demand
    gpus: int = 0  # number
    share: int | None = None  # ten-thousandths of a GPU, on all GPUs in total; None: not equal on all GPUs
    memory: int | None = None  # bytes on each GPU; None: not equal on all GPUs
    memory_part: int = 0  # requested memory in ten-thousandths of each GPU; 0: requested in bytes
    gpu_type: str = ""
    cpus: int = 1
    ntasks: int = 1  # that srun starts
    task_cpus: int = 0  # CPUs of each task of an exclusive job, if it requested some
    requeue: bool = True  # after a failure of the host
    host_memory: int = 0  # bytes; 0: not counted
    gpu_compute: str = ""  # mode of sharing GPU time: hard, fair or none
    # its allocation
    indices: list[int] = []  # of its present GPUs
    allocated: list[Allocation] = []  # in the last attempt
    bound_cpus: str = ""  # such as "0-3,8"
    resources: list[tuple[str, list[int]]] = []  # (name, indices) of the site's resources
    tier: str = ""  # enforcement level
    pacing: str = ""  # how its compute share is enforced
    mps: MpsUse | None = None  # how it uses MPS; None: its GPU has no MPS
    oversubscribed: int = 0  # ten-thousandths of its GPU that jobs may hold; 0: not more than it has
    preload: str = ""  # how the hook is preloaded
    other_gpus: str = ""  # whether it can open other GPUs
    # its usage
    cpu_seconds: float = 0.0
    max_rss: int = 0  # bytes
    gpu_peak: int = 0  # bytes, the most on one GPU
    refusals: int = 0  # allocations that the hook refused
    disk_read: int = 0  # bytes
    disk_written: int = 0  # bytes
    oom_kills: int = 0  # processes that the kernel killed because of the limit of host memory
    charged_before: float = 0.0  # GPU seconds of earlier attempts
    adopted: AdoptedProcess | None = None  # a process that was started outside of fgsched
    usage: JobUsage | None = None  # sums of samples of all attempts; None: there are none
    now: list[OnGpu] = []  # the last look at the GPUs of a running job
    # shown to its owner and to operators
    is_private: bool = False  # True: hidden from this caller
    comment: str | None = None
    chdir: str | None = None
    command: str | None = None
    request: Request = Request(name="")
    steps: list[StateChange] = []  # in order
    srun_steps: list[JobStep] = []  # that srun started in the last attempt, by number; not all of many


class JobInfos(Struct, frozen=True, kw_only=True):
    """Jobs with their selected attributes."""

    jobs: list[JobInfo]


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A filter of jobs: each list contains the accepted values; None accepts every value."""

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
    """Get the selected attributes of the jobs that have not ended."""

    fields: Fields
    where: Where = Where()
    recent: bool = False  # also jobs that ended in the last 5 minutes


class QueueLines(Struct, frozen=True, kw_only=True):
    """The queue as text, in pieces."""

    lines: list[str]
    elsewhere: bool = False  # True: only the Python command can read the line


class QueueLine(Question[QueueLines], frozen=True, tag="queue_line"):
    """Get the queue as the text that a command line of fgq prints; for programs without a parser."""

    name: Literal["fgq", "squeue"]
    words: Annotated[Sequence[Annotated[str, Meta(max_length=4096)]], Meta(max_length=1024)]
    usual: Annotated[str, Meta(max_length=4096)] = ""  # value of SQUEUE_FORMAT


class ShowJob(Question[JobInfo], frozen=True, tag="job"):
    """Get all attributes of one job."""

    id: Reference


class ShowJobs(Question[JobInfos], frozen=True, tag="jobs"):
    """Get all attributes of one job, or of all tasks of an array."""

    id: Reference


class HistoryPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of past and open jobs, ordered by id."""

    jobs: list[JobInfo]
    next: int | None = None  # value of `after` for the next page; None: the last page
    missing: list[Reference] = []  # names of jobs that do not exist


class ListHistory(Question[HistoryPage], frozen=True, tag="history"):
    """Get the selected attributes of the jobs that existed in a period, or of named jobs."""

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
    """Get the script of one job. Only its owner and operators may see it."""

    id: Reference


class Pids(Struct, frozen=True, kw_only=True):
    """The process ids of a job."""

    pids: list[int]


class ListPids(Question[Pids], frozen=True, tag="pids"):
    """Get the process ids of one job."""

    id: Reference


class GpuProcessInfo(Struct, frozen=True, kw_only=True):
    """A process on a GPU, as the last query of the GPUs showed it."""

    pid: int
    gpu: int
    memory: int  # bytes; 0: the driver does not say
    busy: int | None = None  # ten-thousandths of the GPU's compute time; None: unknown
    since: float  # epoch seconds of the first query that showed it
    job: int | None = None  # None: it belongs to no running job
    user: str = ""  # of a process that belongs to no job; "": unknown
    command: str = ""  # of a process that belongs to no job, without arguments


class GpuProcesses(Struct, frozen=True, kw_only=True):
    """The processes on the GPUs."""

    processes: list[GpuProcessInfo]
    seen_at: float | None = None  # epoch seconds of the query; None: there was none


class ListGpuProcesses(Question[GpuProcesses], frozen=True, tag="gpu_processes"):
    """Get the processes on the GPUs, of jobs and of others."""


class ProcessInfo(Struct, frozen=True, kw_only=True):
    """The job of a process, and its use of the GPUs."""

    job: int | None = None  # None: it belongs to no running job
    step: str = ""  # number of the step of srun; "": none
    on_gpus: list[GpuProcessInfo] = []
    seen_at: float | None = None  # epoch seconds of the last query of the GPUs; None: there was none


class ShowProcess(Question[ProcessInfo], frozen=True, tag="process"):
    """Get the job of a process, and its use of the GPUs."""

    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Adopted(Struct, frozen=True, kw_only=True):
    """The job that a process became, and what it holds of each of its GPUs."""

    job: int
    gpus: list[int]  # indices
    share: int  # ten-thousandths of each GPU
    memory: int  # bytes of each GPU; of the first, if they differ


class Adopt(Call[Adopted], frozen=True, tag="adopt"):
    """Make a process that was started outside of fgsched, and uses GPUs, a job of its owner."""

    key: Key  # with the key of an earlier request, its job is returned
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    name: Label = "adopted"  # of the job
    demand: Demand = Demand()  # number of GPUs, share and memory of each; 0: as the process uses now
    gpus: Annotated[Sequence[int], Meta(max_length=1024)] = ()  # indices; (): all that the process uses
    time_limit: Annotated[int, Meta(ge=-1, le=366 * 86400)] = 0  # seconds from now; 0: the default


class QueueCheck(Struct, frozen=True, kw_only=True):
    """The result of a check of the queue file: "ok" or the damage."""

    queue: str


class CheckQueue(Question[QueueCheck], frozen=True, tag="check"):
    """Check the queue file for damage."""


# -- pending jobs --------------------------------------------------------------------------------


class Explanations(Struct, frozen=True, kw_only=True):
    """The reasons why jobs are pending."""

    jobs: list[Explanation]
    left_out: int = 0  # number of further jobs


class ExplainJobs(Question[Explanations], frozen=True, tag="why"):
    """Explain why jobs are pending."""

    ids: Ids | None = None  # None: the caller's pending jobs


class Starts(Struct, frozen=True, kw_only=True):
    """The expected starts of pending jobs, by job id."""

    starts: list[tuple[int, ExpectedStart]]


class ListStarts(Question[Starts], frozen=True, tag="starts"):
    """Estimate the starts of all pending jobs."""


# -- GPUs and partitions -------------------------------------------------------------------------


class ResourceAmount(Struct, frozen=True, kw_only=True):
    """The free and the total amount of a resource."""

    free: int
    total: int


class GpuInfo(Struct, frozen=True, kw_only=True):
    """A GPU with its free resources and its last sample."""

    gpu: Gpu
    usable: int  # bytes for jobs
    free_share: int  # ten-thousandths
    free_memory: int  # bytes
    external: int  # bytes held by processes outside fgsched
    jobs: list[int]  # ids of the jobs that hold a part of it
    seen: Reading | None  # the last sample
    kept_as: str  # state of an idle GPU in a reservation, "" without one
    hidden: int = 0  # ten-thousandths that jobs hold which the site hides from the caller
    allocated_memory: int = 0  # bytes that jobs hold

    @property
    def is_down(self) -> bool:
        """Whether the GPU takes no jobs, or did not answer."""
        return self.gpu.state is not GpuState.OK or bool(self.seen and self.seen.error)


class Gpus(Struct, frozen=True, kw_only=True):
    """All GPUs, and the free resources of the host."""

    gpus: list[GpuInfo]
    enforce: str  # default enforcement level
    preload: str
    preload_note: str
    other_gpus: str
    cpus: ResourceAmount
    memory: ResourceAmount  # bytes
    jobs: dict[str, int]  # state -> number of rows of fgq


class ListGpus(Question[Gpus], frozen=True, tag="gpus"):
    """Get all GPUs."""


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """A partition, its GPUs on this host and the number of its jobs."""

    partition: Partition
    gpus: list[int]  # indices
    jobs: dict[str, int]  # state -> number of rows of fgq


class Partitions(Struct, frozen=True, kw_only=True):
    """All partitions, in their order."""

    partitions: list[PartitionInfo]


class ListPartitions(Question[Partitions], frozen=True, tag="partitions"):
    """Get all partitions."""


class ReservationInfo(Struct, frozen=True, kw_only=True):
    """A reservation and its jobs."""

    reservation: Reservation
    is_active: bool
    running: list[int]  # job ids
    pending: list[int]


class Reservations(Struct, frozen=True, kw_only=True):
    """All reservations."""

    reservations: list[ReservationInfo]


class ListReservations(Question[Reservations], frozen=True, tag="reservations"):
    """Get all reservations."""


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
    """The weights of the factors, and the priorities of all pending jobs."""

    weights: Weights
    jobs: list[PriorityInfo]


class ListPriorities(Question[Priorities], frozen=True, tag="priorities"):
    """Get the priorities of all pending jobs."""


class ShareInfo(Struct, frozen=True, kw_only=True):
    """The fair-share shares and the usage of an account, or of a user in it."""

    account: str
    user: str  # "": the account itself
    shares: int
    part: float  # fraction of all shares
    seconds: float  # GPU time, decayed by the half-life
    used: float  # fraction of all usage
    factor: float  # fair-share factor of the priority, 0 to 1


class Shares(Struct, frozen=True, kw_only=True):
    """The fair-share shares of all accounts and users."""

    shares: list[ShareInfo]
    half_life: int  # seconds after which usage counts half


class ListShares(Question[Shares], frozen=True, tag="shares"):
    """Get the fair-share shares of all accounts and users."""


class Associations(Struct, frozen=True, kw_only=True):
    """The accounts and the qualities of service that the site declares, and its settings of users."""

    accounts: list[ChargeAccount]  # empty: jobs can name any account
    qos: list[Qos]  # empty: jobs can name any
    users: list[UserPolicy]


class ListAssociations(Question[Associations], frozen=True, tag="associations"):
    """Get the declared accounts, qualities of service and users."""


def _leaves(kind: type[Call[Any]]) -> Iterator[type[Call[Any]]]:
    """Yield the subclasses of `kind` that have no subclasses."""
    below = kind.__subclasses__()
    for subclass in below:
        yield from _leaves(subclass)
    if not below:
        yield kind


CALLS = tuple(_leaves(Call))  # every request


def name_of(kind: type[Call[Any]]) -> str:
    """Return the value of `op` that selects `kind`."""
    return str(kind.__struct_config__.tag)


@cache
def answer_of(kind: type[Call[Answer]]) -> type[Answer]:
    """Return the type of the answer to a call of `kind`."""
    bases = (base for base_type in kind.__mro__ for base in getattr(base_type, "__orig_bases__", ()))
    answer: type[Answer] = next(args[0] for base in bases if (args := get_args(base)))
    return answer
