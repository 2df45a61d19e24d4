"""Collect the facts about a job that does not run: a closed gate, a suspension, a preemption."""

from fgsched.domain.job import Job, JobState, Reason
from fgsched.domain.waiting import Gate, Kept, Preempted, Suspended

_FAILED = (Reason.HOST_SHORTAGE, Reason.INTERNAL_ERROR)


def gate(job: Job, reason: Reason) -> Gate:
    """Return the gate that keeps a pending job out of the queue, with the figures of this job."""
    host_failed = reason is Reason.BEGIN_TIME and job.not_before > job.request.begin
    return Gate(
        reason=reason,
        dependency=job.depends if reason in (Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER) else "",
        not_before=_not_before(job, reason),
        failures=job.failures if host_failed or reason is Reason.HELD_MAX_REQUEUE else 0,
        limit=job.request.throttle if reason is Reason.ARRAY_TASK_LIMIT else 0,
        error=job.warning if reason in _FAILED else "",
    )


def _not_before(job: Job, reason: Reason) -> float:
    if reason is Reason.BEGIN_TIME:
        return max(job.not_before, float(job.request.begin))
    return job.not_before if reason is Reason.HOST_SHORTAGE else 0.0


def suspension(job: Job) -> Suspended:
    """Return who suspended a job and what it keeps."""
    by = job.preemption.by if job.is_suspended_by_preemption and job.preemption else None
    return Suspended(by=by, kept=tuple(Kept(hold.gpu, hold.memory) for hold in job.holds))


def preemption(job: Job) -> Preempted | None:
    """Return the preemption of a job that is under way, or that ended its last run; None if there is none."""
    found = job.preemption
    if found is None:
        return None
    if job.is_being_preempted:
        return Preempted(by=found.by, mode=found.mode, at=found.at, until=found.until)
    if job.state is JobState.PREEMPTED or (job.state is JobState.PENDING and found.attempt == job.attempt):
        return Preempted(by=found.by, mode=found.mode, at=found.at)
    return None
