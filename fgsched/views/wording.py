"""Format the facts about pending jobs as sentences, in the reader's time zone and time format."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from fgsched.domain.job import WHOLE
from fgsched.domain.states import Reason
from fgsched.domain.times import format_limit
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.domain.waiting import (
    Advice,
    Blocker,
    Cause,
    ExpectedStart,
    Gate,
    Note,
    Outlook,
    Preempted,
    Preempting,
    Shortfall,
    Suspended,
    Unblock,
)
from fgsched.views.display import TIME_FORMAT, shown_time

_MOST_NAMED = 4  # jobs in one sentence
_RUNNING = (
    Reason.MAX_JOBS_PER_USER,
    Reason.MAX_JOBS_PER_ACCOUNT,
    Reason.MAX_JOBS,
    Reason.ACCOUNT_MAX_JOBS,
)
_GPUS = (
    Reason.MAX_GPUS_PER_USER,
    Reason.MAX_GPUS_PER_ACCOUNT,
    Reason.MAX_GPUS,
    Reason.ACCOUNT_MAX_GPUS,
)
_SHORTFALLS: dict[Reason, str] = {
    Reason.GPU_MEMORY: "needs {need_bytes} of GPU memory; GPU {gpu} has {left_bytes} left",
    Reason.GPU_EXTERNAL_USE: (
        "needs {need_bytes} of GPU memory; GPU {gpu} has {left_bytes} left,"
        " because processes outside fgsched hold {total_bytes}"
    ),
    Reason.GPU_FRAGMENTED: (
        "needs {need_share} of one GPU; {total_share} is free in total, at most {left_share} on one GPU"
    ),
    Reason.GPU_DRAINED: "needs {need} GPU; {left} of {total} accept jobs (see fginfo -R)",
    Reason.GPU_MAX_JOBS: "limit reached: GPU {gpu} already has {total} jobs (limit {total})",
    Reason.GPU_CLEANING: "GPU {gpu} still lists processes of a job that has ended",
    Reason.LICENSES: "needs {need} {what}, {left} left",
    Reason.PARTITION_DOWN: "partition {who} starts no jobs, or no longer exists",
    Reason.PARTITION_INACTIVE: "partition {who} neither accepts nor starts jobs",
    Reason.PARTITION_TIME_LIMIT: (
        "limit exceeded: its time limit is {need_time}, and partition {who} allows {total_time}"
    ),
    **dict.fromkeys(_RUNNING, "limit reached: {who} already has {used} running {jobs} (limit {total})"),
    **dict.fromkeys(
        _GPUS,
        "limit reached: needs {need_share} of a GPU; {who} may use {left_share} more (limit {total_share})",
    ),
    Reason.ACCOUNT_GPU_MINUTES: (
        "limit reached: may use {need} GPU minutes; {who} has {left} GPU minutes left (limit {total})"
    ),
    Reason.RESERVED_FOR_TOP: "fits now, but would delay a job with higher priority",
}
_BEYOND = "limit exceeded: needs {need_share} of a GPU; {who} may use at most {total_share}"
_NO_GPU = "needs {need} GPU; the driver shows no such GPU, or has not answered yet (see fgsched status)"
_RESOURCES = {
    "share": "needs {need_share} of one GPU; GPU {gpu} has {left_share} left",
    "card": "needs one whole GPU; GPU {gpu} has {left_share} left",
    "cards": "needs {need} whole GPUs; {left} of {total} are free",
    "cpus": "needs {need} {cpus}; {left} of {total} are free",
    "host memory": "needs {need_bytes} of host memory; {left_bytes} of {total_bytes} is free",
}
_RESERVATIONS = {
    "room": "would overlap reservation {who}, from {start} to {end}",
    "begin": "its reservation {who} begins at {start}",
    "end": "its time limit is {need_time}, and its reservation {who} ends at {end}",
    "gone": "its reservation {who} has ended or was deleted",
}
_GATES = {
    Reason.HELD_USER: "held; its owner can release it",
    Reason.HELD_ADMIN: "held by an operator, who alone can release it",
    Reason.HELD_MAX_REQUEUE: "held: the host failed it {times}; its owner can release it",
    Reason.DEPENDENCY: "waits for {dependency}",
    Reason.DEPENDENCY_NEVER: "dependency {dependency} can never be met",
    Reason.HOST_SHORTAGE: "{error}; next attempt at {when}",
    Reason.INTERNAL_ERROR: "held: {error}; an operator can release or cancel it",
    Reason.PROLOG_FAILED: "held: {error}; its owner can release it",
    Reason.BEGIN_TIME: "not before {when}",
    Reason.ARRAY_TASK_LIMIT: "limit reached: {limit} tasks of its array are running (limit {limit})",
}
_REPEATED = "requeued {times} in succession after runs shorter than a minute"
_CHAINED = "submitted in a chain of {links} jobs, each within a minute of the job that submitted it"
_HOST_FAILED = "the host failed it {times}; not before {when}"
_REMEDIES: dict[Reason, str] = {
    Reason.GPU_DRAINED: "when a GPU accepts jobs again (fgctl resume gpu=N)",
    Reason.GPU_EXTERNAL_USE: "when these processes end",
    Reason.GPU_CLEANING: "when these processes are gone",
    Reason.PARTITION_DOWN: "when an operator opens the partition, or in another partition",
    Reason.PARTITION_INACTIVE: "when an operator opens the partition, or in another partition",
    Reason.PARTITION_TIME_LIMIT: "with a shorter time limit, or in another partition",
    Reason.ACCOUNT_GPU_MINUTES: "when past usage has decayed, or with a shorter time limit",
    Reason.GPU_MAX_JOBS: "when a job on it ends",
}
_RESERVATION_REMEDIES = {
    "room": "when the reservation ends, at {}, or with a time limit that ends before it begins",
    "begin": "at {}",
    "end": "with a time limit that ends before the reservation does",
    "gone": "without the reservation: fgctl update job={} reservation=",
}
_RELEASES = {
    **dict.fromkeys(
        (Reason.HELD_USER, Reason.HELD_MAX_REQUEUE, Reason.PROLOG_FAILED), "with fgctl release {}"
    ),
    **dict.fromkeys((Reason.HELD_ADMIN, Reason.INTERNAL_ERROR), "by an operator, with fgctl release {}"),
    Reason.DEPENDENCY_NEVER: "with fgctl update job={} dependency=",
}
_AMOUNTS: dict[str, Callable[[int], str]] = {
    "gpus": format_share,
    "gpu-mem": format_mebibytes,
    "mem": format_mebibytes,
    "time": format_limit,
    "cpus-per-task": str,
}
_UPDATE_KEYS = {"gpu-mem": "gpumem", "time": "timelimit", "cpus-per-task": "cpus"}


# -- why a job does not run -----------------------------------------------------------------------


def why(cause: Cause | None) -> str:
    """Return one sentence on why a job does not run; "" without a cause."""
    # Many jobs share a cause, so sentences are cached. Times relative to now are formatted for each call.
    return _why(cause) if TIME_FORMAT == "relative" else _known_why(cause)


def _why(cause: Cause | None) -> str:
    match cause:
        case None:
            return ""
        case Shortfall():
            return _shortfall(cause)
        case Gate():
            return _gate(cause)
        case _:
            return note(cause)


_known_why = lru_cache(maxsize=4096)(_why)


def _shortfall(short: Shortfall) -> str:
    if short.reason is Reason.RESERVATION:
        return _RESERVATIONS[short.what].format(
            who=short.scope,
            need_time=format_limit(short.need),
            start=shown_time(short.remaining),
            end=shown_time(short.total),
        )
    what = "card" if short.what == "share" and short.need == WHOLE else short.what
    text = _RESOURCES[what] if short.reason is Reason.RESOURCES else _SHORTFALLS[short.reason]
    if _is_beyond(short):
        text = _BEYOND
    if _is_without_gpu(short):
        text = _NO_GPU
    amounts = {"need": short.need, "left": max(0, short.remaining), "total": short.total}
    used = short.total - short.remaining
    if short.capacity:
        text += f" (oversubscribed: jobs may hold {format_share(short.capacity)} of it)"
    return text.format(
        gpu=short.gpu,
        what=short.what,
        who=short.scope,
        used=used,
        jobs="job" if used == 1 else "jobs",
        cpus="CPU" if short.need == 1 else "CPUs",
        need_time=format_limit(short.need),
        total_time=format_limit(short.total),
        **amounts,
        **{f"{name}_bytes": format_mebibytes(amount) for name, amount in amounts.items()},
        **{f"{name}_share": format_share(amount) for name, amount in amounts.items()},
    )


def _is_beyond(cause: Shortfall | Gate) -> bool:
    """Tell whether a job requests more GPUs than a limit allows in total: no end of another job helps."""
    return isinstance(cause, Shortfall) and cause.reason in _GPUS and cause.need > cause.total


def _is_without_gpu(short: Shortfall) -> bool:
    """Tell whether the host shows no GPU that the job could use, of whatever state."""
    return short.reason is Reason.GPU_DRAINED and not short.total


def _gate(gate: Gate) -> str:
    """Return the sentence for a condition of eligibility; "" for any other reason."""
    host_failed = gate.reason is Reason.BEGIN_TIME and gate.failures
    text = _HOST_FAILED if host_failed else _GATES.get(gate.reason, "")
    if gate.repeats or gate.links:
        end = "not before {when}" if gate.not_before else "held, its owner can release it"
        text = f"{_REPEATED if gate.repeats else _CHAINED}; {end}"
    if gate.broken:
        text += ": {broken}"
    return text.format(
        broken=gate.broken,
        dependency=gate.dependency,
        error=gate.error,
        limit=gate.limit,
        links=gate.links,
        times=_times(gate.repeats or gate.failures),
        when=shown_time(gate.not_before),
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def note(cause_note: Note) -> str:
    """Return one sentence on the part that preemption has in a job."""
    match cause_note:
        case Suspended():
            kept_text = ", ".join(
                f"{format_mebibytes(kept_memory.memory)} on GPU {kept_memory.gpu}"
                for kept_memory in cause_note.kept
            )
            by = "suspended" if cause_note.by is None else f"suspended: preempted by job {cause_note.by}"
            return f"{by}; keeps {kept_text}" if kept_text else by
        case Preempted(until=None):
            return f"preempted by job {cause_note.by} at {shown_time(cause_note.at)}"
        case Preempted():
            then = "and is requeued" if cause_note.mode == "requeue" else "and is not requeued"
            return f"being preempted by job {cause_note.by}: ends by {shown_time(cause_note.until)} {then}"
        case Preempting():
            verb = "is" if len(cause_note.jobs) == 1 else "are"
            until = f"will have ended by {shown_time(cause_note.until)}"
            return f"{_jobs(Unblock(cause_note.jobs))} {verb} being preempted for it and {until}"
        case Outlook():
            return _outlook(cause_note)


def _outlook(outlook: Outlook) -> str:
    if outlook.victims:
        return f"would preempt {_jobs(Unblock(outlook.victims))}"
    if outlook.no_candidates:
        return "preemption would not help: it may not preempt any running job"
    if outlook.not_before is not None:
        return f"may not preempt other jobs before {shown_time(outlook.not_before)}"
    return "preemption would not help: even preempting all lower-priority jobs would not free enough for it"


def _jobs(lift: Unblock) -> str:
    ids = lift.jobs
    listed = ",".join(lift.called[:_MOST_NAMED]) or format_indices(ids[:_MOST_NAMED])
    return f"{'job' if len(ids) == 1 else 'jobs'} {listed}{' and others' if len(ids) > _MOST_NAMED else ''}"


# -- remedies ---------------------------------------------------------------------------------------


def remedy(blocker: Blocker, called: int | str) -> str:
    """Return the event that removes a blocker of the named job, with its time; "" if unknown."""
    cause, lift = blocker.cause, blocker.lift
    if isinstance(cause, Gate):
        return _RELEASES.get(cause.reason, "").format(called)
    if cause.reason is Reason.RESERVATION:
        about = str(called) if cause.what == "gone" else shown_time(lift.at)
        return _RESERVATION_REMEDIES[cause.what].format(about)
    if _is_beyond(cause):
        return "with fewer GPUs, or in another partition"
    if _is_without_gpu(cause):
        return "when the driver shows such a GPU"
    if not lift.jobs:
        return _REMEDIES.get(cause.reason, "")
    when = "" if lift.at is None else f", by {shown_time(lift.at)} at the latest"
    if lift.is_start:
        return f"when {_jobs(lift)} has started{when}"
    is_single = len(lift.jobs) == 1
    if lift.at is None:
        when = f" ({'it has' if is_single else 'they have'} no time limit)"
    return f"when {_jobs(lift)} {'ends' if is_single else 'end'}{when}"


def requested(advice: Advice) -> tuple[str, str]:
    """Return the suggested and the present value of a change."""
    if advice.option == "gpu-type":
        return "any", "one type"
    form = _AMOUNTS[advice.option]
    return form(advice.after), form(advice.before)


def update_word(advice: Advice) -> str:
    """Return the change as an argument of fgctl update, such as 'gpus=0.5'."""
    if advice.option == "gpu-type":
        return "gputype="
    return f"{_UPDATE_KEYS.get(advice.option, advice.option)}={requested(advice)[0]}"


def advised(advice: Advice) -> str:
    """Return the advice as a sentence: '--gpus=0.5 instead of 0.75 starts now on GPU 1'."""
    after, before = requested(advice)
    where = f" on GPU {format_indices(advice.gpus)}" if advice.gpus else ""
    if advice.option == "gpu-type":
        return f"without a GPU type it starts now{where}"
    return f"--{advice.option}={after} instead of {before} starts now{where}"


# -- when it starts ---------------------------------------------------------------------------------


def starts(start: ExpectedStart | None) -> list[str]:
    """Return sentences on when a job starts: at the latest, and likely, with how sure that is."""
    if start is None:
        return []
    lines = []
    if start.latest is not None:
        lines.append(f"starts by {shown_time(start.latest)} at the latest")
    if start.known:
        late = f", and hardly after {shown_time(start.late)}" if start.late else ""
        sure = f"earlier runs are known of {start.known} of the {start.before} jobs that end before it"
        lines.append(f"likely at {shown_time(start.likely)}{late} ({sure})")
    return lines


def unknown_start(blockers: Sequence[Blocker], *, is_behind_too_many: bool) -> str:
    """Return a sentence that explains why the start time of a job is unknown."""
    if is_behind_too_many:
        return "start time unknown: too many jobs are ahead of it"
    if any(_is_beyond(blocker.cause) for blocker in blockers):
        return "start time unknown: it requests more than a limit allows"
    if any(blocker.lift.jobs for blocker in blockers):
        return "start time unknown: a job ahead of it has no time limit"
    return "start time unknown"


def is_in_queue(reason: Reason) -> bool:
    """Tell whether the planner considers a pending job with this reason, so that it has a forecast."""
    return reason not in _NOT_IN_QUEUE


_NOT_IN_QUEUE = {
    Reason.HELD_USER,
    Reason.HELD_ADMIN,
    Reason.HELD_MAX_REQUEUE,
    Reason.INTERNAL_ERROR,
    Reason.PROLOG_FAILED,
    Reason.DEPENDENCY,
    Reason.DEPENDENCY_NEVER,
    Reason.ARRAY_TASK_LIMIT,
    Reason.BEGIN_TIME,
    Reason.HOST_SHORTAGE,
}
