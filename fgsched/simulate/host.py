"""Simulate a host: the states of its jobs, their runs, and the time at which each of them ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fgsched.controller.effects import Effect, Preempt, Resume, Suspend
from fgsched.controller.jobtable import JobTable
from fgsched.controller.usage import UsageCharges
from fgsched.domain.job import Gpu, Hold, HostLimits, Job, JobState, Readings
from fgsched.domain.policy import Policy
from fgsched.jobs.lifecycle import Result, complete, finish
from fgsched.scheduling.placement import charged
from fgsched.scheduling.planner import Plan, Start
from fgsched.scheduling.priority import AccountUser, Usage
from fgsched.simulate.metrics import Outcome, Run
from fgsched.simulate.workload import Task
from fgsched.store import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SimHost:
    """The simulated GPUs, limits and policy."""

    gpus: tuple[Gpu, ...]
    limits: HostLimits
    policy: Policy = field(default_factory=Policy)


class _NoStore:
    """Replaces the store, in which the controller keeps usage."""

    def usage(self) -> dict[AccountUser, Usage]:
        """Return no usage: a simulation starts without."""
        return {}

    def put_usage(self, owner: AccountUser, usage: Usage) -> None:
        """Do nothing: usage is not kept after the simulation."""


@dataclass(frozen=True, slots=True)
class _Cards:
    """The state of the GPUs: usable, and without processes outside of jobs."""

    gpus: tuple[Gpu, ...]
    readings: Readings = field(default_factory=dict)

    def gpus_for_planning(self, now: float) -> tuple[Gpu, ...]:
        """Return all GPUs."""
        return self.gpus


class VirtualHost:
    """A host in virtual time, with the interface that the controller's preempter needs (PreemptionHost).

    All times are seconds of the virtual clock.
    """

    def __init__(self, tasks: Sequence[Task], site: SimHost, jobtable: JobTable) -> None:
        """Create a host without jobs; `tasks` has the task of job 1 first."""
        self.jobtable, self.policy, self.limits = jobtable, site.policy, site.limits
        self.cards = _Cards(site.gpus)
        self.started: set[int] = set()  # jobs that have run at all
        self.outcomes: dict[int, Outcome] = {}
        self._tasks = tasks
        self._charges = UsageCharges(_NoStore())
        self._gpus = {gpu.index: gpu for gpu in site.gpus}
        self._due: dict[int, float] = {}  # job -> its end, if nothing changes
        self._ends: list[tuple[float, int]] = []  # heap of (end, job), including outdated ends
        self._starting: list[int] = []
        self._runs: dict[int, list[Run]] = {}  # of jobs that have not ended; the last run may go on

    # -- for the preempter ----------------------------------------------------------------------

    def step(self, before: Job, after: Job, now: float) -> bool:
        """Replace a job by its next state, and charge the usage of a run that ended."""
        if before.holds and not after.holds:
            given = self.jobtable.given.get(before.id, ())
            self._charges.charge(before, given, after.ended_at or now, self.policy)
        self._record(before, after, now)
        self.jobtable.put(after)
        return True

    def change(self, before: Job, now: float, **changes: object) -> Job:
        """Change fields of a job without a change of its state."""
        after = before.changed(**changes)
        self.step(before, after, now)
        return after

    def then(self, effect: Effect) -> None:
        """Execute an effect at once, since a simulation has no transactions."""
        match effect:
            case Preempt(job=job) | Resume(job=job):
                self._schedule_end(job)
            case Suspend(job=job):
                del self._due[job.id]

    # -- jobs start -----------------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """Return the jobs that the planner starts now."""
        self._charges.bring_up_to_date(self.jobtable, self.policy, self.cards.gpus, self.limits, now)
        return self.jobtable.plan(self.cards.gpus, {}, limits=self.limits, now=now)

    def start(self, start: Start, now: float) -> None:
        """Allocate GPUs to a job, which runs after the next `fork`."""
        job = self.jobtable.jobs[start.job_id]
        begun = {"holds": start.holds, "partition": start.partition, "started_at": now}
        after = job.advance(
            JobState.STARTING, attempt=job.attempt + 1, slot=self.jobtable.free_slot(), **begun
        )
        self.step(job, after, now)
        self.jobtable.given[job.id] = tuple(self._allocation(hold) for hold in start.holds)
        self._starting.append(job.id)

    def fork(self, now: float) -> bool:
        """Run the started jobs; return whether there were any."""
        starting, self._starting = self._starting, []
        for number in starting:
            before = self.jobtable.jobs[number]
            after = before.advance(JobState.RUNNING)
            self.step(before, after, now)
            self._schedule_end(after)
        return bool(starting)

    def _allocation(self, hold: Hold) -> Allocation:
        gpu = self._gpus[hold.gpu]
        return Allocation(gpu.index, gpu.uuid, gpu.model, hold.share, hold.memory, charged(hold, gpu.usable))

    # -- jobs end -------------------------------------------------------------------------------

    def _schedule_end(self, job: Job) -> None:
        """Schedule the end of a job; a preempted job runs until its grace period is over."""
        ends = [self._own_end(job)]
        if job.is_being_preempted and job.preemption is not None:
            ends.append(job.preemption.at + job.preemption.grace)
        self._due[job.id] = min(ends)
        heappush(self._ends, (min(ends), job.id))

    def _own_end(self, job: Job) -> float:
        """Return the time at which the job completes or reaches its time limit."""
        assert job.started_at is not None
        return job.started_at + self._tasks[job.id - 1].lasts + job.suspended

    @property
    def next_end(self) -> float | None:
        """Return the time at which the next job ends; None if no job runs."""
        while self._ends and self._due.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def end(self, now: float) -> bool:
        """End the jobs that are due; return whether there were any."""
        ended = False
        while (due := self.next_end) is not None and due <= now:
            _, number = heappop(self._ends)
            del self._due[number]
            job = self.jobtable.jobs[number]
            how = finish(job, self._result(job, now))
            self.step(job, complete(job, how, now, max_requeue=self.limits.max_requeue), now)
            ended = True
        return ended

    def _result(self, job: Job, now: float) -> Result:
        """Return the result that a shepherd would have written."""
        task, cause = self._tasks[job.id - 1], "exit"
        if now < self._own_end(job):
            cause = "cancel"
        elif 0 < task.time_limit <= task.run:
            cause = "timeout"
        return Result(
            status=0,
            cause=cause,
            started_at=now if job.started_at is None else job.started_at,
            ended_at=now,
            cpu_seconds=0.0,
            max_rss=0,
            gpu_peak=0,
            refusals=0,
            oom_kills=0,
            lost=False,
            errno=0,
            detail="",
        )

    # -- outcomes -------------------------------------------------------------------------------

    def _record(self, before: Job, after: Job, now: float) -> None:
        ran, runs = _is_running(before), _is_running(after)
        if ran and not runs:
            last = self._runs[after.id][-1]
            self._runs[after.id][-1] = Run(last.attempt, last.began, now, last.share)
        elif runs and not ran:
            self.started.add(after.id)
            share = sum(hold.share for hold in after.holds)
            self._runs.setdefault(after.id, []).append(Run(after.attempt, now, now, share))
        if after.state.is_final:
            task, found = self._tasks[after.id - 1], tuple(self._runs.pop(after.id))
            self.outcomes[after.id] = Outcome(task=task, runs=found, state=after.state)


def _is_running(job: Job) -> bool:
    return job.state in (JobState.STARTING, JobState.RUNNING)
