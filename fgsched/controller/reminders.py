"""What is due to a shepherd that began or is taken up: to be watched, and told what it may not have heard."""

from fgsched.controller.events import Launcher
from fgsched.controller.turning import Turning
from fgsched.jobs.lifecycle import Shepherd
from fgsched.model import Job, JobState


def attend(conductor: Turning, job: Job, shepherd: Shepherd) -> None:
    """Follow it, unless its end was taken in together with its beginning: nobody waits for it then."""
    now = conductor.book.under_way(job.id)
    if now is not None and now.attempt == job.attempt:
        conductor.launcher.follow(job, shepherd)
        remind(conductor.launcher, job)


def remind(launcher: Launcher, job: Job) -> None:
    """What its shepherd was to be told, as the store has it. None of it does harm twice."""
    if job.relimited:
        launcher.relimit(job)
    if job.is_to_end:
        launcher.cancel(job)
    elif job.leaves and not job.wish:
        launcher.preempt(job)
    elif job.wish:
        launcher.requeue(job)
    elif job.state is JobState.SUSPENDED:
        launcher.suspend(job)
    elif job.suspended:
        launcher.resume(job)
