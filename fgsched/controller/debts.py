"""Who comes after whom, because the one made room for the other."""

from collections import Counter
from collections.abc import Iterable, Mapping

from fgsched.domain.job import Job
from fgsched.scheduling.priority import JobClass
from fgsched.scheduling.queue import Queue


def made_for(job: Job) -> int:
    """For whom a job made room the last time; 0: for nobody."""
    return job.preemption.by if job.preemption is not None else 0


def claims(queue: Queue, debtors: Iterable[Job]) -> Counter[JobClass]:
    """For how many of each kind others make room, in order: whoever made room comes after the one it was for.

    `debtors`: those that make room, and those that wait again since they did.
    """
    after = {job.id: made_for(job) for job in debtors}
    waiting = {one: entry for one in after.values() if (entry := queue.entry(one)) is not None}
    turns = sorted(waiting, key=lambda one: (_behind(one, after), waiting[one].since, one))
    return Counter(waiting[one].kind for one in turns)


def _behind(one: int, after: Mapping[int, int]) -> int:
    """How many have to start before this one does."""
    passed: set[int] = set()
    while one in after and one not in passed:
        passed.add(one)
        one = after[one]
    return len(passed)
