"""What is due to a shepherd that began or is taken up: to be watched, and told what it may not have heard."""

from functools import partial

from fgsched.controller.events import Launcher
from fgsched.controller.telling import RETRY, is_given
from fgsched.controller.turning import Turning
from fgsched.domain.job import Job, JobState
from fgsched.jobs.lifecycle import Shepherd


def attend(conductor: Turning, job: Job, shepherd: Shepherd) -> None:
    """Follow it, unless its end was taken in together with its beginning: nobody waits for it then."""
    now = conductor.book.under_way(job.id)
    if now is not None and now.attempt == job.attempt:
        conductor.launcher.follow(job, shepherd)
        remind(conductor, job)


def remind(conductor: Turning, job: Job) -> None:
    """Give the orders that the store has for it. What is not delivered is given again later."""
    if not is_given(partial(_remind, conductor.launcher, job)):
        conductor.unheard.setdefault(job.id, 0.0)


def remind_again(conductor: Turning, now: float) -> None:
    """Orders that were not delivered, once a second each."""
    for job_id, due in list(conductor.unheard.items()):
        job = conductor.book.under_way(job_id)
        if job is None:
            del conductor.unheard[job_id]
        elif not 0 < now - due < RETRY:  # the clock may be set back
            conductor.unheard[job_id] = now
            conductor.then(partial(_remind_again, conductor, job), job)


def _remind_again(conductor: Turning, job: Job) -> None:
    if is_given(partial(_remind, conductor.launcher, job)):
        conductor.unheard.pop(job.id, None)


def _remind(launcher: Launcher, job: Job) -> bool:
    """What its supervisor was to be told, as the store has it. None of it does harm twice."""
    is_heard = launcher.relimit(job) if job.relimited else True
    if job.is_to_end:
        is_heard &= launcher.cancel(job)
    elif job.leaves and not job.wish:
        is_heard &= launcher.preempt(job)
    elif job.wish:
        is_heard &= launcher.requeue(job)
    elif job.state is JobState.SUSPENDED:
        is_heard &= launcher.suspend(job)
    elif job.suspended:
        is_heard &= launcher.resume(job)
    return is_heard
