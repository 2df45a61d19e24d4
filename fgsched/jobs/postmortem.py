"""Explain why a job ran out of GPU memory: request, usage, limit, and other users of the GPU."""

from collections.abc import Iterable, Sequence
from typing import Any

from fgsched.domain.job import Job, PostMortem, Readings, Reason, Refusal
from fgsched.jobs.watchdog import Fault


def examine(job: Job, refusal: Refusal, others: Iterable[Job], readings: Readings) -> PostMortem:
    """Return the post-mortem of `job`. `others` are all jobs with holds; the job itself is ignored."""
    reading = readings.get(refusal.gpu)
    return PostMortem(
        gpu=refusal.gpu,
        asked=refusal.asked,
        held=refusal.held,
        limit=sum(hold.memory for hold in job.holds if hold.gpu == refusal.gpu),
        jobs=tuple(
            (other.id, hold.memory)
            for other in others
            for hold in other.holds
            if hold.gpu == refusal.gpu and other.id != job.id
        ),
        strangers=reading.external if reading else 0,
    )


def noticed(
    job: Job, warn: Sequence[Fault], end: Fault | None, others: Iterable[Job], *, readings: Readings
) -> dict[str, Any]:
    """Return the changes of a job after findings of the watchdog."""
    said = [str(fault) for fault in warn]
    if end is None:
        reason = next((fault.reason for fault in warn), job.reason)
        return {"warning": "; ".join(said) or job.warning, "reason": reason}
    changes: dict[str, Any] = {"warning": f"ended by the watchdog: {end}", "condemned": end.reason}
    changes["reason"] = end.reason
    if end.reason is Reason.GPU_OVER_LIMIT:
        refusal = Refusal(gpu=end.gpu, asked=0, held=end.held)
        changes["post_mortem"] = examine(job, refusal, others, readings)
    return changes
