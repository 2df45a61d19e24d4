"""Decide the next step of one job from its state and the observed processes. Never looks at other jobs."""

from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Ended, Job, Refusal
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import storable
from fgsched.domain.units import format_mebibytes

MAX_UNRUN = 20  # attempts at a job whose script was never executed
_NO_PAUSE = 2  # failures after which a job is started again without a pause
_LONGEST_PAUSE = 64  # seconds
_SHORTAGE_PAUSE = 10  # seconds
_SHORT_RUN = 60  # seconds: a shorter run that is requeued on order counts as a repeat
_REPEAT_PAUSE = 10  # seconds after the second repeat; it doubles with each further one
_DOUBLINGS = 6  # of that pause at most
_FREE_LINKS = 10  # jobs of a chain of submissions that start without a pause


class Result(NamedTuple):
    """The end of a job as recorded by its shepherd."""

    status: int  # as wait(2) gives it
    cause: str  # "exit", "cancel", "timeout", "launch" or "shortage"
    started_at: float  # seconds since the epoch
    ended_at: float
    cpu_seconds: float
    max_rss: int  # bytes
    gpu_peak: int  # bytes
    refusals: int
    oom_kills: int
    lost: bool  # the shepherd was killed; the spawner saw the job to its end
    errno: int
    detail: str
    refusal: Refusal | None = None  # the last one, on the GPU that refused most often
    survivor: int = 0  # a process that could not be ended; 0: none
    disk_read: int = 0  # bytes
    disk_written: int = 0  # bytes
    srun_steps: str = ""  # text of `jobsteps.stored`; not part of what the shepherd writes


class Shepherd(Struct, frozen=True, gc=False):
    """The process that claimed an attempt, identified by pid, start time and boot id."""

    pid: int
    start: int  # clock ticks since boot
    boot: str


class Unclaimed(Struct, frozen=True, gc=False):
    """The attempt was not started, and the tombstone prevents a later start."""


class Alive(Struct, frozen=True, gc=False):
    """The shepherd of the attempt is running."""

    shepherd: Shepherd


class ShepherdGone(Struct, frozen=True, gc=False):
    """The shepherd has ended and left no readable result."""

    why: str = "the job's supervisor was killed"
    srun_steps: str = ""  # text of `jobsteps.stored`


Seen = Unclaimed | Alive | ShepherdGone | Result


class RequeueUnstarted(Struct, frozen=True, gc=False):
    """Nothing was executed: requeue the job with a new attempt."""


class Delay(Struct, frozen=True, gc=False):
    """Nothing was executed because the host lacked resources: requeue the job after a delay."""

    why: str


class WatchShepherd(Struct, frozen=True, gc=False):
    """The job is running: watch its shepherd."""

    shepherd: Shepherd


class KillRemaining(Struct, frozen=True, gc=False):
    """End the remaining processes of the job, then mark it as failed."""


class Finish(NamedTuple):
    """The job has ended."""

    state: JobState
    reason: Reason
    ended: Ended
    started_at: float | None = None
    ended_at: float | None = None
    lost: bool = False
    refusal: Refusal | None = None  # the last one; set for GpuOutOfMemory
    survivor: int = 0  # a process of it that lives on, since no KILL ends it


def recover(
    job: Job, finding: Seen, *, boot: str, max_requeue: int = 5
) -> RequeueUnstarted | Delay | WatchShepherd | KillRemaining | Finish:
    """Decide what a starting controller does with a job that was STARTING or RUNNING.

    A job of an earlier boot cannot be running and may have run. It is never requeued without permission.
    `max_requeue` is the maximum number of requeues after failures of the host.
    """
    match finding:
        case Result():
            return due(job, finding, max_requeue=max_requeue)
        case _ if job.boot != boot:
            ended = Ended(status=0, detail="the host restarted while the job ran")
            return Finish(JobState.NODE_FAIL, Reason.SYSTEM_FAILURE, ended, lost=True)
        case Unclaimed() if job.state is JobState.STARTING:
            return _start_again(job, max_requeue)
        case Alive(shepherd=shepherd):
            return WatchShepherd(shepherd)
        case _:
            return KillRemaining()


def _start_again(job: Job, max_requeue: int) -> RequeueUnstarted | Finish:
    """Requeue a job that was never executed; end it after too many attempts if it may not be requeued."""
    limit = max(max_requeue, MAX_UNRUN)
    if job.failures < limit or job.request.requeue:
        return RequeueUnstarted()
    ended = Ended(status=0, detail=f"given up after {limit + 1} attempts: each was killed before it ran")
    return Finish(JobState.FAILED, Reason.LAUNCH_FAILURE, ended, lost=True)


def due(job: Job, result: Result, *, max_requeue: int = 5) -> RequeueUnstarted | Delay | Finish:
    """Decide what a result requires: the end of the job, or a new attempt if nothing was executed."""
    if result.cause == "shortage":
        return Delay(f"could not be started: {result.detail}")
    if result.cause == "launch" and result.lost:
        return _start_again(job, max_requeue)
    return finish(job, result)


def finish(job: Job, result: Result) -> Finish:
    """Return the end of a job, from its result and the recorded orders (cancel, preemption, watchdog)."""
    state, reason = _end(job, result)
    ended = Ended(**{name: getattr(result, name) for name in Ended.__struct_fields__})
    if reason is Reason.OUT_OF_MEMORY and not result.status:
        ended = replace(ended, status=_OOM_STATUS)
    refused = result.refusal if reason is Reason.GPU_OUT_OF_MEMORY else None
    times = (result.started_at, result.ended_at)
    return Finish(state, reason, ended, *times, result.lost, refused, result.survivor)


_GONE = ShepherdGone()
_INSTANT = 0.001  # seconds: a suspension that was resumed in the same turn, or by a clock that was set back
_OOM_STATUS = 125  # Slurm shows 0:125 for a job of which a process was killed for its memory
_HELD = "H"  # the mark of a claim of a spawner


def lost(job: Job, trace: ShepherdGone = _GONE) -> Finish:
    """Return the end of a job without a result and without processes. It is never COMPLETED."""
    ended = Ended(status=0, detail=f"status unknown: {trace.why}", srun_steps=trace.srun_steps)
    if job.cancelled_by is None and job.condemned in _CONDEMNED:
        return Finish(*_CONDEMNED[job.condemned], ended, lost=True)
    if job.cancelled_by is None and job.is_being_preempted:
        return Finish(JobState.PREEMPTED, Reason.PREEMPTED, ended, lost=True)
    state = JobState.FAILED if job.cancelled_by is None else JobState.CANCELLED
    return Finish(state, Reason.SYSTEM_FAILURE, ended, lost=True)


def _end(job: Job, result: Result) -> tuple[JobState, Reason]:
    if result.cause == "launch":
        return JobState.FAILED, Reason.LAUNCH_FAILURE
    if result.cause == "timeout":
        if 0 < job.request.deadline <= result.ended_at:
            return JobState.DEADLINE, Reason.DEADLINE
        return JobState.TIMEOUT, Reason.TIME_LIMIT
    was_killed = result.lost and result.status and (job.is_to_end or job.is_being_preempted)
    if result.cause == "cancel" or was_killed or _ended_in_grace(job, result):
        return _ordered_end(job)
    if result.oom_kills:  # whichever process was killed, and whatever the script made of it, as in Slurm
        return JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY
    if result.status == 0:
        return JobState.COMPLETED, Reason.NONE
    if result.refusals:
        return JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY
    return JobState.FAILED, Reason.SIGNALED if result.status & 0x7F else Reason.EXIT_CODE


def _ended_in_grace(job: Job, result: Result) -> bool:
    """Tell whether a job ended by itself in the grace time of its preemption."""
    preemption = job.ending_preemption
    return preemption is not None and preemption.grace > 0 and result.ended_at >= preemption.at


_CONDEMNED = {
    Reason.GPU_OVER_LIMIT: (JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY),
    Reason.GPU_NOT_GIVEN: (JobState.FAILED, Reason.GPU_NOT_GIVEN),
    Reason.GPU_UNHOOKED: (JobState.FAILED, Reason.GPU_UNHOOKED),
    Reason.GPU_LOST: (JobState.NODE_FAIL, Reason.GPU_LOST),
    Reason.GPU_UNHEALTHY: (JobState.NODE_FAIL, Reason.GPU_UNHEALTHY),
    Reason.INTERNAL_ERROR: (JobState.FAILED, Reason.INTERNAL_ERROR),
}


def _ordered_end(job: Job) -> tuple[JobState, Reason]:
    """Return the final state of a job that was ended on order. Orders of users precede the watchdog."""
    if job.cancelled_by is not None:
        return JobState.CANCELLED, Reason.NONE
    if job.condemned in _CONDEMNED:
        return _CONDEMNED[job.condemned]
    return (
        (JobState.PREEMPTED, Reason.PREEMPTED)
        if job.is_being_preempted
        else (JobState.CANCELLED, Reason.NONE)
    )


def reason_of(job: Job) -> Reason:
    """Return the reason of an end that was delayed by GpuCleaning."""
    if job.outcome is None:
        return Reason.NONE
    if job.condemned in _CONDEMNED and _CONDEMNED[job.condemned][0] is job.outcome:
        return _CONDEMNED[job.condemned][1]
    if job.outcome is JobState.FAILED and job.ended is not None:
        if job.supervisor_lost and not job.ended.status:
            return Reason.SYSTEM_FAILURE
        return Reason.SIGNALED if job.ended.signal else Reason.EXIT_CODE
    if job.outcome is JobState.OUT_OF_MEMORY:
        is_of_host = job.ended is not None and (job.ended.oom_kills or not job.ended.refusals)
        return Reason.OUT_OF_MEMORY if is_of_host else Reason.GPU_OUT_OF_MEMORY
    reasons = {
        JobState.TIMEOUT: Reason.TIME_LIMIT,
        JobState.NODE_FAIL: Reason.SYSTEM_FAILURE,
        JobState.DEADLINE: Reason.DEADLINE,
        JobState.PREEMPTED: Reason.PREEMPTED,
    }
    return reasons.get(job.outcome, Reason.NONE)


_FIELDS = 19  # of a result, before the detail


def parse_result(text: str) -> Result:
    """Parse the text of a result (docs/design/native.md). Raises ValueError."""
    fields = text.split(" ", _FIELDS)
    if (
        len(fields) < _FIELDS
        or fields[0] != "R4"
        or fields[2] not in {"exit", "cancel", "timeout", "launch", "shortage"}
    ):
        raise ValueError(f"not a result: {text[:80]!r}")
    numbers = [int(field) for field in (fields[1], *fields[3:19])]
    status, start, end, user, system, rss, peak, refusals, gpu, requested, held = numbers[:11]
    oom_kills, was_lost, survivor, errno, disk_read, disk_written = numbers[11:]
    return Result(
        status=status,
        cause=fields[2],
        started_at=start / 1e9,
        ended_at=end / 1e9,
        cpu_seconds=(user + system) / 1e6,
        max_rss=rss * 1024,
        gpu_peak=peak,
        refusals=refusals,
        oom_kills=oom_kills,
        lost=bool(was_lost),
        survivor=survivor,
        errno=errno,
        detail=storable(fields[19]) if len(fields) > 19 else "",
        disk_read=disk_read,
        disk_written=disk_written,
        refusal=Refusal(gpu=gpu, asked=requested, held=held) if gpu >= 0 else None,
    )


def is_held(text: str) -> bool:
    """Return whether a claim names the spawner that inherited a job from its killed shepherd."""
    return text.startswith(f"{_HELD}:")


def parse_claim(text: str) -> Shepherd | None:
    """Return the process that a claim names: a shepherd, or a spawner that holds its job; None: a tombstone.

    Raises:
        ValueError: the text is no claim.
    """
    if text == "T":
        return None
    mark, pid, start, boot = text.split(":")
    if mark not in ("P", _HELD):
        raise ValueError(f"not a claim: {text[:80]!r}")
    return Shepherd(int(pid), int(start), boot)


# -- the end of a job, applied to its record -----------------------------------------------------------


def is_requeued(job: Job, end: Finish) -> bool:
    """Return whether a job is requeued after this end: that was ordered, or the host failed it.

    An adopted process cannot be started again.
    """
    if end.state is JobState.COMPLETED or job.adopted is not None:
        return False
    if job.is_to_end:
        return job.condemned is Reason.GPU_LOST and job.request.requeue and job.cancelled_by is None
    if end.state is JobState.PREEMPTED:
        return bool(job.wish) or job.preempt_mode == "requeue"
    return bool(job.wish) or (end.state is JobState.NODE_FAIL and job.request.requeue)


def requeue(job: Job, now: float, *, max_requeue: int, has_run: bool) -> Job:
    """Requeue the job.

    After repeated failures of the host the job waits before the next start, and after more than `max_requeue`
    of them it is held. A job whose script never ran is restarted at once, up to `MAX_UNRUN` times.

    A job that is requeued on order (its own, for example) after one run shorter than a minute after another
    waits longer each time, and is held after more than `max_requeue` of them. A longer run ends that count:
    a job that saves its state and requeues itself can do so any number of times. No preemption holds a job.
    """
    is_ordered = bool(job.wish) or job.preempt_mode == "requeue"
    failures = job.failures + (not is_ordered)
    limit = max_requeue if has_run else max(max_requeue, MAX_UNRUN)
    repeats = _repeats(job, now) if has_run and is_ordered else job.repeats
    counts = {"failures": failures, "restarts": job.restarts + has_run, "repeats": repeats}
    queued = job.advance(JobState.PENDING, **_CLEARED, **counts, wish="", opened_at=now)
    if failures > limit or (job.wish and repeats > max_requeue):
        return replace(queued, held=queued.held or "user", reason=Reason.HELD_MAX_REQUEUE)
    if has_run and is_ordered and repeats > 1:
        return replace(queued, not_before=now + _repeat_pause(repeats - 1))
    is_paused = has_run and failures > _NO_PAUSE and not is_ordered
    pause = min(_LONGEST_PAUSE, 2 ** (failures - _NO_PAUSE - 1)) if is_paused else 0
    return replace(queued, not_before=now + pause if pause else 0.0)


def _repeat_pause(count: int) -> float:
    return _REPEAT_PAUSE * 2.0 ** min(count - 1, _DOUBLINGS)


def follow(parent: Job, now: float, *, max_requeue: int) -> dict[str, Any]:
    """Return the fields that a job gets because it is submitted now inside the job `parent`.

    Jobs of which each submits the next one within a minute are a fast chain. Its first jobs start at once,
    each further one waits twice as long as the one before, and the job after `max_requeue` pauses is held.
    The minute begins at the submission of a job, or at the end of its pause. A longer time ends the count: a
    job that saves its state and submits its successor can do so any number of times, also if it does so at
    its beginning, with a dependency on itself.
    """
    if now - max(parent.submitted_at, parent.not_before) >= _SHORT_RUN:
        return {}
    links = parent.links + 1
    pauses = links - _FREE_LINKS
    if pauses > max_requeue:
        return {"links": links, "held": "user", "reason": Reason.HELD_MAX_REQUEUE}
    return {"links": links, "not_before": now + _repeat_pause(pauses) if pauses > 0 else 0.0}


def _repeats(job: Job, now: float) -> int:
    """Return how many runs shorter than a minute were requeued on order, one after another."""
    begin, end = charged_period(job, now) or (now, now)
    return job.repeats + 1 if end - begin < _SHORT_RUN else 0


def delay(job: Job, why: str, now: float) -> Job:
    """Return the job back in the queue because the host lacked a resource. It does not count as a failure."""
    queued = job.advance(JobState.PENDING, **_CLEARED, wish="", opened_at=now)
    return replace(queued, reason=Reason.HOST_SHORTAGE, warning=why, not_before=now + _SHORTAGE_PAUSE)


def hold_after_prolog(job: Job, why: str, now: float) -> Job:
    """Return the job held in the queue, because the site's prolog failed. Its owner can release it."""
    queued = job.advance(JobState.PENDING, **_CLEARED, wish="", opened_at=now)
    return replace(queued, held=queued.held or "user", reason=Reason.PROLOG_FAILED, warning=why)


def withdraw(job: Job, reason: Reason, why: str, now: float) -> Job:
    """Return a job whose script was not executed as COMPLETING: the epilog runs before it is requeued."""
    over = {"outcome": JobState.PENDING, "ended_at": now, "ended": None, "suspended_at": None}
    return job.advance(JobState.COMPLETING, reason=reason, warning=why, **over)


def return_unrun(job: Job, now: float, *, max_requeue: int) -> Job:
    """Return a job whose script was not executed to the queue, as its reason requires."""
    if job.reason is Reason.HOST_SHORTAGE:
        return delay(job, job.warning, now)
    if job.reason is Reason.PROLOG_FAILED:
        return hold_after_prolog(job, job.warning, now)
    return requeue(job, now, max_requeue=max_requeue, has_run=False)


def blame_gpu(job: Job, *, has_failed: bool) -> Job:
    """Count the failure of a job as a failure of the host, if one of its GPUs failed during the run."""
    if not has_failed or job.outcome is not JobState.FAILED or job.is_to_end:
        return job
    outcome = JobState.PENDING if job.request.requeue else JobState.NODE_FAIL
    return replace(job, outcome=outcome, condemned=Reason.GPU_UNHEALTHY)


def complete(job: Job, end: Finish, now: float, **changes: object) -> Job:
    """Return the job as COMPLETING, with the end of its processes. `settle` returns its next state.

    `changes` take precedence over the fields that follow from the end.
    """
    ended_at = end.ended_at or now
    note = memory_note(end.state, end.ended, job.request.demand.host_memory)
    fields: dict[str, object] = {
        "reason": end.reason,
        "warning": "; ".join(filter(None, (job.warning, note))),
        "ended": end.ended,
        "started_at": end.started_at or job.started_at,
        "ended_at": ended_at,
        "supervisor_lost": end.lost,
        "outcome": JobState.PENDING if is_requeued(job, end) else end.state,
        "held": job.held if job.wish else "",
        "suspended": suspended_seconds(job, ended_at),
        "suspended_at": None,
        **changes,
    }
    return job.advance(JobState.COMPLETING, **fields)


def settle(job: Job, now: float, *, max_requeue: int) -> Job:
    """Return a COMPLETING job in the state of its outcome: no GPU lists its processes, its epilog has run."""
    assert job.outcome is not None
    if job.outcome is JobState.PENDING and job.ended is None:
        return return_unrun(job, now, max_requeue=max_requeue)
    if job.outcome is JobState.PENDING:
        return requeue(job, now, max_requeue=max_requeue, has_run=True)
    return job.advance(job.outcome, holds=())


def charged_period(job: Job, now: float) -> tuple[float, float] | None:
    """Return the start and the end of the time that the current attempt is charged for, in epoch seconds.

    It lasts from the launch to the end of the processes, or to `now`: not while a GPU is cleaned or the
    epilog runs. None: no script was executed.
    """
    was_returned_unrun = job.outcome is JobState.PENDING and job.ended is None
    if job.started_at is None or was_returned_unrun:
        return None
    return job.started_at, max(job.started_at, now if job.ended_at is None else job.ended_at)


_CLEARED: dict[str, object] = {  # fields of the attempt that has ended
    **{"holds": (), "started_at": None, "ended_at": None, "ended": None, "outcome": None},
    **{"partition": "", "resources": (), "warning": "", "post_mortem": None, "condemned": Reason.NONE},
    **{"reason": Reason.NONE, "supervisor_lost": False, "suspended_at": None, "suspended": 0.0},
    "relimited": False,
}


def suspended_seconds(job: Job, now: float) -> float:
    """Return the total time that a job was suspended, in seconds; never 0 if it was.

    A job that was suspended needs the order to resume again from the next controller, however short that was.
    """
    return job.suspended + (max(_INSTANT, now - job.suspended_at) if job.suspended_at is not None else 0.0)


# -- host memory in the end of a job -------------------------------------------------------------------


_KILL = 9
_NEAR = 0.9  # of the requested memory: from here on, a SIGKILL of unknown origin may be for memory


def kills_note(kills: int, requested: int) -> str:
    """Return what the kernel did to a job for host memory; "" if it killed none of it. `requested`: bytes."""
    if not kills:
        return ""
    number = "1 process" if kills == 1 else f"{kills} processes"
    of = (
        f"the job requested {format_mebibytes(requested)} (--mem)"
        if requested
        else "the job requested no amount (--mem)"
    )
    return f"the kernel killed {number} of this job for host memory: {of}"


def memory_note(state: JobState, ended: Ended, requested: int) -> str:
    """Return the part of host memory in the end of a job, known or probable; "" if it had none.

    Where jobs have no memory cgroup, kills are not counted. Then the largest process and the signal answer.

    Args:
        requested: bytes of host memory; 0: none were requested.
    """
    used, limit = format_mebibytes(ended.max_rss), format_mebibytes(requested)
    largest = f"its largest process had {used}" if ended.max_rss else "its processes were not measured"
    if ended.oom_kills:
        return f"{kills_note(ended.oom_kills, requested)}, {largest}"
    if not requested or not ended.max_rss:
        return ""
    was_killed = ended.signal == _KILL or ended.exit_code == 128 + _KILL
    if was_killed and state is JobState.FAILED and ended.max_rss >= _NEAR * requested:
        return (
            f"ended by SIGKILL, probably for host memory: {largest} of the {limit} that it requested (--mem),"
            " and no kill was counted"
        )
    if ended.max_rss > requested:
        return f"{largest} of host memory, more than the {limit} that it requested (--mem)"
    return ""
