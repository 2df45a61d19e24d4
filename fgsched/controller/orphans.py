"""Jobs whose shepherd was killed, or whose result cannot be read.

Their spawner may still bring the result; else what is left is ended.
"""

import math
from functools import partial

from fgsched.controller.turning import EngineContext
from fgsched.domain.job import Job, JobState
from fgsched.jobs.lifecycle import Alive, Gone, Result, lost

_GRACE = 1.0  # seconds that a spawner has to write the result of a job it inherited


def look_after_orphans(engine: EngineContext, now: float) -> None:
    """What is due for each of them."""
    orphans = engine.orphans
    for job_id, empty_since in list(orphans.items()):
        job = engine.jobtable.jobs.get(job_id)
        if job is None:
            del orphans[job_id]
            continue
        engine.containment.run(job_id, partial(_look_after, engine, job, empty_since, now))


def _look_after(engine: EngineContext, job: Job, empty_since: float, now: float) -> None:
    orphans = engine.orphans
    seen = engine.launcher.seize(job)
    if isinstance(seen, Alive):  # something failed for it, and may not any more
        del orphans[job.id]
        engine.take_up(job, seen, now)
    elif isinstance(seen, Result):
        engine.take_up(job, seen, now)
    elif not engine.launcher.hunt(job):
        orphans[job.id] = math.inf
        if job.state is JobState.STARTING and engine.launcher.hears(job):
            engine.step(job, job.advance(JobState.RUNNING), now)  # nobody told of its beginning
    elif now - empty_since >= _GRACE:
        engine.end(job, lost(job, seen if isinstance(seen, Gone) else Gone()), now)
    else:
        orphans[job.id] = min(now, empty_since)
