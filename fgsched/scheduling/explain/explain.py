"""Why a job waits, in words with figures."""

from fgsched.domain.job import WHOLE, Job, JobState, Reason
from fgsched.domain.times import format_limit, format_time
from fgsched.domain.units import format_mebibytes, format_share
from fgsched.scheduling.placement import Shortfall

_SENTENCES: dict[Reason, str] = {
    Reason.GPU_MEMORY: "needs {need_bytes}, {left_bytes} left on GPU {gpu}",
    Reason.GPU_EXTERNAL_USE: (
        "needs {need_bytes}, {left_bytes} left on GPU {gpu}, where processes of no job hold {total_bytes}"
    ),
    Reason.GPU_FRAGMENTED: (
        "needs {need_share} of one GPU; {total_share} is free in total, at most {left_share} on one card"
    ),
    Reason.GPU_DRAINED: "needs {need} GPU, {left} of {total} take jobs (fginfo -R tells why)",
    Reason.GPU_MAX_JOBS: "GPU {gpu} has room, and its {total} jobs are the most it may have",
    Reason.GPU_CLEANING: "GPU {gpu} still lists processes of a job that has ended",
    Reason.LICENSES: "needs {need} {what}, {left} left",
    Reason.PARTITION_DOWN: "partition {who} starts no jobs, or is no more",
    Reason.PARTITION_INACTIVE: "partition {who} neither takes nor starts jobs",
    Reason.PARTITION_TIME_LIMIT: (
        "its time limit is {need_time}, and {total_time} is the most in partition {who}"
    ),
    **dict.fromkeys(
        (
            *(Reason.MAX_JOBS_PER_USER, Reason.MAX_JOBS_PER_ACCOUNT, Reason.MAX_JOBS),
            Reason.ACCOUNT_MAX_JOBS,
        ),
        "{total} jobs of {who} run, which is the most",
    ),
    **dict.fromkeys(
        (
            *(Reason.MAX_GPUS_PER_USER, Reason.MAX_GPUS_PER_ACCOUNT, Reason.MAX_GPUS),
            Reason.ACCOUNT_MAX_GPUS,
        ),
        "needs {need_share} of a GPU; of the {total_share} that {who} may hold, {left_share} is left",
    ),
    Reason.ACCOUNT_GPU_MINUTES: (
        "may use {need} GPU minutes; of the {total} that {who} may use, {left} are left"
    ),
    Reason.RESERVED_FOR_TOP: "would fit, and would delay the first job that does not",
}
_RESOURCES = {
    "share": "needs {need_share} of one GPU, {left_share} left on GPU {gpu}",
    "card": "needs one whole GPU, {left_share} left on GPU {gpu}",
    "cards": "needs {need} whole GPUs, {left} of {total} free",
    "cpus": "needs {need} CPU, {left} of {total} free",
    "host memory": "needs {need_bytes} of host memory, {left_bytes} of {total_bytes} is free",
}
_HELD = {
    Reason.HELD_USER: "is held; fgctl release lets it start",
    Reason.HELD_ADMIN: "is held by an operator, who alone can release it",
}
_RESERVATIONS = {
    "room": "would run into reservation {who}, from {start} to {end}",
    "begin": "its reservation {who} begins at {start}",
    "end": "its time limit is {need_time}, and its reservation {who} ends at {end}",
    "gone": "its reservation {who} is over or was deleted",
}


def gate(job: Job, reason: Reason) -> str:
    """What keeps a job from being considered at all."""
    match reason:
        case Reason.DEPENDENCY:
            return f"waits for {job.depends}"
        case Reason.DEPENDENCY_NEVER:
            return f"{job.depends} can come true no more; fgctl update dependency= gives it another one"
        case Reason.HOST_SHORTAGE | Reason.INTERNAL_ERROR:
            again = f"tried again at {format_time(job.not_before)}"
            then = again if reason is Reason.HOST_SHORTAGE else "an operator may release or cancel it"
            return f"{job.warning}; {then}"
        case Reason.BEGIN_TIME if job.not_before > job.request.begin:
            return f"the host failed it {_times(job.failures)}; not before {format_time(job.not_before)}"
        case Reason.BEGIN_TIME:
            return f"not before {format_time(float(job.request.begin))}"
        case Reason.ARRAY_TASK_LIMIT:
            return f"{job.request.throttle} tasks of its array run, which is as many as may"
        case Reason.HELD_MAX_REQUEUE:
            return f"the host failed it {_times(job.failures)}; fgctl release lets it try again"
    return _HELD.get(reason, "")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def standing_still(job: Job) -> str:
    """What a suspended job keeps."""
    kept = ", ".join(f"{format_mebibytes(hold.memory)} on GPU {hold.gpu}" for hold in job.holds)
    why = (
        f"made room for job {job.preemption.by}"
        if job.is_suspended_by_preemption and job.preemption
        else "suspended"
    )
    return f"{why}; keeps {kept}" if kept else why


def leaving(job: Job) -> str:
    """What becomes of a job that makes room for another, or did the last time."""
    found = job.preemption
    if found is None:
        return ""
    if job.is_being_preempted:
        then = "runs again later" if found.mode == "requeue" else "is over then"
        return f"makes room for job {found.by}: gone by {format_time(found.until)}, and {then}"
    if job.state is JobState.PREEMPTED or (job.state is JobState.PENDING and found.attempt == job.attempt):
        return f"made room for job {found.by} at {format_time(found.at)}"
    return ""


def sentence(short: Shortfall) -> str:
    """One sentence that tells the binding blocker of a waiting job."""
    what = "card" if short.what == "share" and short.need == WHOLE else short.what
    if short.reason is Reason.RESERVATION:
        return _RESERVATIONS[what].format(
            who=short.who,
            need_time=format_limit(short.need),
            start=format_time(short.left),
            end=format_time(short.total),
        )
    text = _RESOURCES[what] if short.reason is Reason.RESOURCES else _SENTENCES[short.reason]
    amounts = {"need": short.need, "left": max(0, short.left), "total": short.total}
    return text.format(
        gpu=short.gpu,
        what=short.what,
        who=short.who,
        need_time=format_limit(short.need),
        total_time=format_limit(short.total),
        **amounts,
        **{f"{name}_bytes": format_mebibytes(amount) for name, amount in amounts.items()},
        **{f"{name}_share": format_share(amount) for name, amount in amounts.items()},
    )
