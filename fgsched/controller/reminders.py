"""What is due to a shepherd that began or is taken up: to be watched, and told what it may not have heard."""

from functools import partial

from fgsched.controller.events import Launcher
from fgsched.controller.telling import RETRY, is_given
from fgsched.controller.turning import EngineContext
from fgsched.domain.job import Job, JobState
from fgsched.jobs.lifecycle import Shepherd


def attend(engine: EngineContext, job: Job, shepherd: Shepherd) -> None:
    """Follow it, unless its end was taken in together with its beginning: nobody waits for it then."""
    now = engine.jobtable.under_way(job.id)
    if now is not None and now.attempt == job.attempt:
        engine.launcher.follow(job, shepherd)
        remind(engine, job)


def remind(engine: EngineContext, job: Job) -> None:
    """Give the orders that the store has for it. What is not delivered is given again later."""
    if not is_given(partial(_remind, engine.launcher, job)):
        engine.unheard.setdefault(job.id, 0.0)


def remind_again(engine: EngineContext, now: float) -> None:
    """Orders that were not delivered, once a second each."""
    for job_id, due in list(engine.unheard.items()):
        job = engine.jobtable.under_way(job_id)
        if job is None:
            del engine.unheard[job_id]
        elif not 0 < now - due < RETRY:  # the clock may be set back
            engine.unheard[job_id] = now
            engine.then(partial(_remind_again, engine, job), job)


def _remind_again(engine: EngineContext, job: Job) -> None:
    if is_given(partial(_remind, engine.launcher, job)):
        engine.unheard.pop(job.id, None)


def _remind(launcher: Launcher, job: Job) -> bool:
    """What its supervisor was to be told, as the store has it. None of it does harm twice."""
    is_heard = launcher.relimit(job) if job.relimited else True
    if job.is_to_end:
        is_heard &= launcher.cancel(job)
    elif job.is_being_preempted and not job.wish:
        is_heard &= launcher.preempt(job)
    elif job.wish:
        is_heard &= launcher.requeue(job)
    elif job.state is JobState.SUSPENDED:
        is_heard &= launcher.suspend(job)
    elif job.suspended:
        is_heard &= launcher.resume(job)
    return is_heard
