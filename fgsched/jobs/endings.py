"""Decide whether a job whose processes have ended is requeued, and compute its next state."""

from msgspec.structs import replace

from fgsched.domain.job import Job, JobState, Reason
from fgsched.jobs.lifecycle import UNRUN, Finish

_AT_ONCE = 2  # failures after which a job is tried again without a pause
_LONGEST_PAUSE = 64  # seconds
_SHORTAGE_PAUSE = 10  # seconds


def returns(job: Job, how: Finish) -> bool:
    """Tell whether a job that ended in this way is requeued: on request, or after a failure of the host."""
    if how.state is JobState.COMPLETED:
        return False
    if job.is_to_end:
        return job.condemned is Reason.GPU_LOST and job.request.requeue and job.cancelled_by is None
    if how.state is JobState.PREEMPTED:
        return bool(job.wish) or job.preempt_mode == "requeue"
    return bool(job.wish) or (how.state is JobState.NODE_FAIL and job.request.requeue)


def returned(job: Job, now: float, *, most: int, ran: bool) -> Job:
    """Return the requeued job at `now` (epoch seconds).

    After repeated failures of the host it is delayed, then held.

    A job that was never executed (not `ran`) is retried at once: this costs nothing, and the job did not
    cause the failure of its shepherd.
    """
    was_sent = bool(job.wish) or job.preempt_mode == "requeue"  # nothing has failed
    failures = job.failures + (not was_sent)
    most = most if ran else max(most, UNRUN)
    counts = {"failures": failures, "restarts": job.restarts + ran}
    back = job.advance(JobState.PENDING, **_NOTHING_OF_IT, **counts, wish="", opened_at=now)
    if failures > most:
        return replace(back, held=back.held or "user", reason=Reason.HELD_MAX_REQUEUE)
    pause = min(_LONGEST_PAUSE, 2 ** (failures - _AT_ONCE - 1)) if ran and failures > _AT_ONCE else 0
    return replace(back, not_before=now + pause if pause and not was_sent else 0.0)


def delayed(job: Job, why: str, now: float) -> Job:
    """Return the job requeued because the host lacked resources; `why` names the step.

    It counts as no failure.
    """
    back = job.advance(JobState.PENDING, **_NOTHING_OF_IT, wish="", opened_at=now)
    return replace(back, reason=Reason.HOST_SHORTAGE, warning=why, not_before=now + _SHORTAGE_PAUSE)


def blamed(job: Job, *, is_sick: bool) -> Job:
    """Return a job that failed while one of its GPUs became unhealthy as failed by the host."""
    if not is_sick or job.outcome is not JobState.FAILED or job.is_to_end:
        return job
    outcome = JobState.PENDING if job.request.requeue else JobState.NODE_FAIL
    return replace(job, outcome=outcome, condemned=Reason.GPU_UNHEALTHY)


def over(job: Job, how: Finish, now: float, *, most: int, dirty: bool = False, **more: object) -> Job:
    """Return the job in its next state after its processes ended at `now` (epoch seconds).

    If `dirty`, its GPUs may still list the processes, and it keeps its holds until they do not. `more` are
    changes that are applied first.
    """
    ended_at = how.ended_at or now
    outcome = JobState.PENDING if returns(job, how) else how.state
    changes: dict[str, object] = {
        "reason": how.reason,
        "ended": how.ended,
        "started_at": how.started_at or job.started_at,
        "ended_at": ended_at,
        "supervisor_lost": how.lost,
        "outcome": outcome,
        "held": job.held if job.wish else "",
        "suspended": stood_still(job, ended_at),
        "suspended_at": None,
    }
    changes |= more
    if dirty:
        return job.advance(JobState.COMPLETING, **changes)
    if outcome is JobState.PENDING:
        return returned(job.changed(**changes), now, most=most, ran=True)
    return job.advance(outcome, holds=(), **changes)


def settled(job: Job, now: float, *, most: int) -> Job:
    """Return the job in its final state, or requeued, after its GPUs were released."""
    assert job.outcome is not None
    if job.outcome is JobState.PENDING:
        return returned(job, now, most=most, ran=True)
    return job.advance(job.outcome, holds=())


_NOTHING_OF_IT: dict[str, object] = {
    **{"holds": (), "started_at": None, "ended_at": None, "ended": None, "outcome": None},
    **{"partition": "", "resources": (), "warning": "", "post_mortem": None, "condemned": Reason.NONE},
    **{"reason": Reason.NONE, "supervisor_lost": False, "suspended_at": None, "suspended": 0.0},
    "relimited": False,
}


def stood_still(job: Job, now: float) -> float:
    """Return the seconds for which the job was suspended in total."""
    return job.suspended + (max(0.0, now - job.suspended_at) if job.suspended_at is not None else 0.0)
