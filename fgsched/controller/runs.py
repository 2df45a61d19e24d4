"""The jobs that hold something, as the planner sees them: made when one changes, not for each plan."""

import math
from collections.abc import Iterable

from msgspec.structs import replace

from fgsched.domain.job import Demand, Job, JobState
from fgsched.scheduling.backfill import Running
from fgsched.scheduling.limits import Owner

_NOTHING = Demand(cpus=0)


def who_of(job: Job) -> Owner:
    """On whose account a job runs."""
    return Owner(job.user, job.request.account, job.request.qos)


def demand_of(job: Job) -> Demand:
    """What a running job has of the host: the CPUs of one that stands still for another are free."""
    return replace(job.request.demand, cpus=0) if job.is_suspended_by_preemption else job.request.demand


class Runs:
    """Remembers what was made of each job until that has changed, or should be over."""

    def __init__(self) -> None:
        self._known: dict[int, Running] = {}

    def changed(self, job_id: int) -> None:
        """The job is another now, or holds nothing any more."""
        self._known.pop(job_id, None)

    def of(self, jobs: Iterable[Job], now: float) -> list[Running]:
        return [self._of(job, now) for job in jobs]

    def _of(self, job: Job, now: float) -> Running:
        known = self._known.get(job.id)
        if known is not None and known.until > now:
            return known
        made = _running(job, now)
        if made.until > now:  # what is late, or being cleaned up, ends at each moment anew
            self._known[job.id] = made
        return made


def _running(job: Job, now: float) -> Running:
    """A job that is only being cleaned up needs its cards a moment longer, and nothing else."""
    if job.state is JobState.COMPLETING:
        return Running(_NOTHING, job.holds, now, *_whose(job))
    until = math.inf if job.deadline is None or job.state is JobState.SUSPENDED else max(now, job.deadline)
    if job.is_being_preempted and job.preemption is not None:
        until = min(until, max(now, job.preemption.until))
    return Running(demand_of(job), job.holds, until, *_whose(job))


def _whose(job: Job) -> tuple[str, Owner, int, str]:
    return job.partition, who_of(job), job.id, job.request.reservation
