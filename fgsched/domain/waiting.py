"""The causes for which a job is pending or suspended, as data, and their derivation from the job's state.

The controller determines the facts, the protocol transfers them, and `views/wording.py` formats them as
sentences.
"""

from msgspec import Struct

from fgsched.domain.job import Hold, Job
from fgsched.domain.states import JobState, Reason

_DOCUMENT_KEYS = {"remaining": "left", "scope": "who"}  # the names in JSON documents; never rename one


class Shortfall(
    Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="shortfall", rename=_DOCUMENT_KEYS
):
    """The binding reason why a demand cannot be placed, with its figures.

    The unit of `need`, `remaining` and `total` follows from `reason` and `what`: ten-thousandths of a GPU,
    bytes, seconds, seconds since the epoch, or a number of things.
    """

    reason: Reason
    what: str = ""  # the short resource: "share", "memory", "cards", "jobs", "cpus", "host memory" …
    gpu: int | None = None  # index of the GPU that comes closest
    need: int = 0
    remaining: int = 0  # of that, on `gpu` or within the limit
    total: int = 0  # on all GPUs together; the limit; or bytes that processes outside fgsched hold
    scope: str = ""  # of the limit: user, account, partition or reservation
    capacity: int = 0  # ten-thousandths of `gpu` that jobs may hold, if the site oversubscribes it


class Gate(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="gate"):
    """A condition that makes a job ineligible, such as a hold or its begin time."""

    reason: Reason
    dependency: str = ""  # without met conditions, such as "afterok:3"
    not_before: float = 0.0  # seconds since the epoch; 0: no such time
    failures: int = 0  # how often the host failed the job
    repeats: int = 0  # how often it was requeued on order after a run shorter than a minute, in succession
    links: int = 0  # length of the chain of jobs that submitted it, each within a minute
    limit: int = 0  # tasks of its array that may run at once
    error: str = ""  # the failure after which the job is left alone
    broken: str = ""  # what made the dependency impossible, such as "8_2 is FAILED"


class KeptMemory(Struct, frozen=True):
    """Device memory that a suspended job keeps."""

    gpu: int  # index
    memory: int  # bytes


class Suspended(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="suspended"):
    """The suspension of a job, as a cause."""

    by: int | None = None  # the job that preempted it; None: an operator suspended it
    kept: tuple[KeptMemory, ...] = ()


class Preempted(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="preempted"):
    """A job is being preempted, or its last run was preempted."""

    by: int  # the preempting job
    mode: str  # "requeue", "cancel" or "suspend"
    at: float  # when preemption began, in seconds since the epoch
    until: float | None = None  # seconds since the epoch: the latest end of its preemption


class Preempting(Struct, frozen=True, kw_only=True, tag_field="kind", tag="preempting"):
    """Other jobs are being preempted for a pending job."""

    jobs: tuple[int, ...]
    until: float  # seconds since the epoch; all of them have surely ended by then


class Outlook(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="outlook"):
    """The effect that preemption could have for a pending job."""

    victims: tuple[int, ...] = ()  # running jobs that it would preempt
    not_before: float | None = None  # until then, in seconds since the epoch, they are exempt
    no_candidates: bool = False  # no running job may be preempted for it


Cause = Shortfall | Gate | Suspended | Preempted  # why a job does not run
Note = Suspended | Preempted | Preempting | Outlook  # the part that preemption has in it


class Unblock(Struct, frozen=True, omit_defaults=True):
    """The jobs whose end or start removes a blocker."""

    jobs: tuple[int, ...] = ()  # jobs whose end removes the cause
    at: float | None = None  # at the latest, in seconds since the epoch; None: not known
    is_start: bool = False  # the start of the job is awaited, not its end
    called: tuple[str, ...] = ()  # their names, such as 7_1, if one is a task of an array


UNKNOWN = Unblock()


class Blocker(Struct, frozen=True):
    """One cause that keeps a job pending, with the event that removes it."""

    cause: Shortfall | Gate
    lift: Unblock = UNKNOWN
    partition: str = ""


class Advice(Struct, frozen=True, kw_only=True):
    """One change of a job's request with which it would start now.

    The unit of `before` and `after` is that of the option: ten-thousandths of a GPU (gpus), bytes (gpu-mem
    and mem), seconds (time) or a number of CPUs. For gpu-type both are 0: the job should accept any type.
    """

    option: str  # of fgsub, without dashes
    before: int
    after: int
    gpus: tuple[int, ...]  # where the job would start


class ExpectedStart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The expected start of a pending job. Times are in seconds since the epoch; None: unknown."""

    latest: float | None = None  # if every job ahead of it uses its whole time limit
    likely: float | None = None  # if they run as long as half of their earlier runs did
    late: float | None = None  # if they run as long as nine tenths of their earlier runs did
    gpus: tuple[int, ...] = ()  # indices
    partition: str = ""
    before: int = 0  # jobs that end before it starts
    known: int = 0  # of these, the jobs that have earlier runs
    not_before: float | None = None  # of a job that is not considered before then

    @property
    def at(self) -> float | None:
        """The one time that is shown as the expected start, wherever a job's start is shown."""
        return self.not_before if self.latest is None else self.latest


class Explanation(Struct, frozen=True, kw_only=True):
    """The explanation of one job for `fgq --why`."""

    id: int
    called: int | str  # 12, or "12_3" for a task of an array
    name: str
    user: str
    state: JobState
    reason: Reason
    blockers: list[Blocker] = []  # the binding one first
    advice: list[Advice] = []  # the smallest change first
    notes: list[Note] = []
    start: ExpectedStart | None = None  # None: not known
    is_behind_too_many: bool = False  # the start is not known because too many jobs are ahead


class Trial(Struct, frozen=True, kw_only=True):
    """The outcome of `fgsub --test-only` for one job."""

    id: int  # that it would get
    partition: str  # or several, with commas
    blockers: list[Blocker] = []
    advice: list[Advice] = []
    notes: list[Note] = []
    start: ExpectedStart | None = None
    holds: tuple[Hold, ...] = ()  # its holds if it starts now; empty if it would be pending or needs no GPU


# -- causes that follow from the state of one job -----------------------------


_FAILED = (Reason.HOST_SHORTAGE, Reason.INTERNAL_ERROR, Reason.PROLOG_FAILED)


def gate_of(job: Job, reason: Reason) -> Gate:
    """Return the gate that keeps a pending job out of the queue, with the figures of this job."""
    is_paused = reason is Reason.BEGIN_TIME and job.not_before > job.request.begin
    is_requeued = is_paused or reason is Reason.HELD_MAX_REQUEUE
    is_repeated = job.repeats > job.failures
    is_chained = is_requeued and not job.attempt
    return Gate(
        reason=reason,
        dependency=job.depends if reason in (Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER) else "",
        not_before=_not_before(job, reason),
        failures=job.failures if is_requeued and not is_repeated else 0,
        repeats=job.repeats if is_requeued and is_repeated else 0,
        links=job.links if is_chained else 0,
        limit=job.request.throttle if reason is Reason.ARRAY_TASK_LIMIT else 0,
        error=job.warning if reason in _FAILED else "",
    )


def _not_before(job: Job, reason: Reason) -> float:
    if reason is Reason.BEGIN_TIME:
        return max(job.not_before, float(job.request.begin))
    return job.not_before if reason is Reason.HOST_SHORTAGE else 0.0


def suspension_of(job: Job) -> Suspended:
    """Return the cause of a suspension, and the memory that the job keeps."""
    preemption = job.suspending_preemption
    return Suspended(
        by=preemption.by if preemption else None,
        kept=tuple(KeptMemory(hold.gpu, hold.memory) for hold in job.holds),
    )


def preemption_of(job: Job) -> Preempted | None:
    """Return the present preemption of a job, or the one that ended its last run, or None."""
    preemption = job.preemption
    if preemption is None:
        return None
    if job.is_being_preempted:
        return Preempted(by=preemption.by, mode=preemption.mode, at=preemption.at, until=preemption.until)
    if job.state is JobState.PREEMPTED or (
        job.state is JobState.PENDING and preemption.attempt == job.attempt
    ):
        return Preempted(by=preemption.by, mode=preemption.mode, at=preemption.at)
    return None
