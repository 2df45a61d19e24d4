"""Follow up on running jobs: undelivered orders, lost shepherds, findings of the watchdog."""

import math
from functools import partial

from msgspec.structs import replace

from fgsched.controller.turn import RETRY, CancelOrder, EngineContext, Remind, WatchdogFinding
from fgsched.domain.job import Job, OomReport, Refusal
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.transitions import Alive, Result, ShepherdGone, blame_gpu, lost, reason_of
from fgsched.lifecycle.watchdog import oom_report, watchdog_changes

_GRACE = 1.0  # seconds that a spawner has to write the result of a job it inherited


def resend_orders(engine: EngineContext, now: float) -> None:
    """Repeat each undelivered order once in `RETRY` seconds."""
    for job_id, tried_at in list(engine.undelivered.items()):
        job = engine.jobtable.under_way(job_id)
        if job is None:
            del engine.undelivered[job_id]
        elif not 0 < now - tried_at < RETRY:  # the clock may be set back
            engine.undelivered[job_id] = now
            engine.then(Remind(job, is_again=True))


def follow_up_orphans(engine: EngineContext, now: float) -> None:
    """Read the result of each job without a shepherd, or end its remaining processes."""
    orphans = engine.orphans
    for job_id, empty_since in list(orphans.items()):
        job = engine.jobtable.jobs.get(job_id)
        if job is None:
            del orphans[job_id]
            continue
        engine.containment.run(job_id, partial(_follow_up, engine, job, empty_since, now))


def _follow_up(engine: EngineContext, job: Job, empty_since: float, now: float) -> None:
    """Wait for the result from the spawner that inherited the job, or end the remaining processes."""
    orphans = engine.orphans
    seen = engine.launcher.seize(job)
    if isinstance(seen, Alive):  # something failed for the job earlier, and may not fail any more
        del orphans[job.id]
        engine.take_up(job, seen, now)
    elif isinstance(seen, Result):
        engine.take_up(job, seen, now)
    elif not engine.launcher.kill_remaining(job):
        orphans[job.id] = math.inf
        if job.state is JobState.STARTING and engine.launcher.has_supervisor(job):
            engine.step(job, job.advance(JobState.RUNNING), now)  # its JobStarted never came
    elif now - empty_since >= _GRACE:
        engine.end(job, lost(job, seen if isinstance(seen, ShepherdGone) else ShepherdGone()), now)
    else:
        orphans[job.id] = min(now, empty_since)


def take_finding(engine: EngineContext, job: Job, finding: WatchdogFinding, now: float) -> None:
    """Record a finding of the watchdog, and end the job if the finding requires it."""
    if job.is_to_end:
        return
    others = engine.jobtable.holding.values()
    changes = watchdog_changes(job, finding.warn, finding.end, others, readings=engine.gpu_states.readings)
    after = engine.change(job, now, **changes)
    if after.is_to_end:
        engine.then(CancelOrder(after))


def with_gpu_fault(engine: EngineContext, job: Job, now: float) -> Job:
    """Return an ended job as failed by its GPU, if the GPU failed while the job was running."""
    gpus = [hold.gpu for hold in job.holds]
    over = blame_gpu(job, has_failed=engine.gpu_states.failed_since(gpus, job.start_time))
    is_known = over is job and job.reason is not Reason.GPU_CLEANING
    return replace(over, reason=job.reason if is_known else reason_of(over), ended_at=over.ended_at or now)


def post_mortem(engine: EngineContext, job: Job, refusal: Refusal) -> OomReport:
    """Report the memory of all jobs and processes on the GPU on which a job ran out of memory."""
    return oom_report(job, refusal, engine.jobtable.holding.values(), engine.gpu_states.readings)
