"""Orders that may not have reached a shepherd, given again when it is taken up. None does harm twice."""

from fgsched.controller.events import Launcher
from fgsched.model import Job, JobState


def remind(launcher: Launcher, job: Job) -> None:
    """What its shepherd was to be told, as the store has it."""
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
