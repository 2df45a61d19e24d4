"""Jobs whose shepherd was killed, or whose result cannot be read.

Their spawner may still bring the result; else what is left is ended.
"""

import math
from functools import partial

from fgsched.controller.turning import Turning
from fgsched.domain.job import Job, JobState
from fgsched.jobs.lifecycle import Alive, Gone, Result, lost

_GRACE = 1.0  # seconds that a spawner has to write the result of a job it inherited


def look_after_orphans(conductor: Turning, now: float) -> None:
    """What is due for each of them."""
    orphans = conductor.orphans
    for job_id, empty_since in list(orphans.items()):
        job = conductor.book.jobs.get(job_id)
        if job is None:
            del orphans[job_id]
            continue
        conductor.containment.run(job_id, partial(_look_after, conductor, job, empty_since, now))


def _look_after(conductor: Turning, job: Job, empty_since: float, now: float) -> None:
    orphans = conductor.orphans
    seen = conductor.launcher.seize(job)
    if isinstance(seen, Alive):  # something failed for it, and may not any more
        del orphans[job.id]
        conductor.take_up(job, seen, now)
    elif isinstance(seen, Result):
        conductor.take_up(job, seen, now)
    elif not conductor.launcher.hunt(job):
        orphans[job.id] = math.inf
        if job.state is JobState.STARTING and conductor.launcher.hears(job):
            conductor.step(job, job.advance(JobState.RUNNING), now)  # nobody told of its beginning
    elif now - empty_since >= _GRACE:
        conductor.end(job, lost(job, seen if isinstance(seen, Gone) else Gone()), now)
    else:
        orphans[job.id] = min(now, empty_since)
