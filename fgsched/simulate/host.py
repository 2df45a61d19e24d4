"""The simulated host: how its jobs stand, what their ends come to, and when each of them ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fgsched.controller.effects import Effect, Preempt, Resume, Suspend
from fgsched.controller.jobtable import JobTable
from fgsched.controller.usage import UsageCharges
from fgsched.domain.job import Gpu, Hold, HostLimits, Job, JobState, Readings
from fgsched.domain.policy import Policy
from fgsched.jobs.lifecycle import Result, complete, finish
from fgsched.scheduling.fairshare import Owner, Usage
from fgsched.scheduling.placement import charged
from fgsched.scheduling.planner import Plan, Start
from fgsched.simulate.outcome import Outcome, Run
from fgsched.simulate.workload import Task
from fgsched.store import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class SimHost:
    """The host that is simulated, and its rules."""

    gpus: tuple[Gpu, ...]
    limits: HostLimits
    policy: Policy = field(default_factory=Policy)


class _Paper:
    """What of the store charges need."""

    def usage(self) -> dict[Owner, Usage]:
        return {}

    def put_usage(self, owner: Owner, usage: Usage) -> None:
        """Charges remember it themselves; nothing has to outlive the simulation."""


@dataclass(frozen=True, slots=True)
class _Cards:
    """All of them as they are, with nobody else on them."""

    gpus: tuple[Gpu, ...]
    readings: Readings = field(default_factory=dict)

    def gpus_for_planning(self, now: float) -> tuple[Gpu, ...]:
        return self.gpus


class VirtualHost:
    """A host on which the controller's preempter works (controller/context.PreemptionHost)."""

    def __init__(self, tasks: Sequence[Task], site: SimHost, jobtable: JobTable) -> None:
        self.jobtable, self.policy, self.limits = jobtable, site.policy, site.limits
        self.cards = _Cards(site.gpus)
        self.started: set[int] = set()  # jobs that have run at all
        self.outcomes: dict[int, Outcome] = {}
        self._tasks = tasks  # that of job 1 first
        self._charges = UsageCharges(_Paper())
        self._gpus = {gpu.index: gpu for gpu in site.gpus}
        self._due: dict[int, float] = {}  # when each job that runs ends, as things stand
        self._ends: list[tuple[float, int]] = []  # the same as a heap, with some that do not hold any more
        self._starting: list[int] = []
        self._runs: dict[int, list[Run]] = {}  # of jobs that are not over; the last may not have ended

    # -- what those need who have jobs make room ------------------------------------------------

    def step(self, before: Job, after: Job, now: float) -> bool:
        if before.holds and not after.holds:
            given = self.jobtable.given.get(before.id, ())
            self._charges.charge(before, given, after.ended_at or now, self.policy)
        self._record(before, after, now)
        self.jobtable.put(after)
        return True

    def change(self, before: Job, now: float, **changes: object) -> Job:
        after = before.changed(**changes)
        self.step(before, after, now)
        return after

    def then(self, effect: Effect) -> None:
        """Carry an effect out at once: a simulation commits nothing."""
        match effect:
            case Preempt(job=job) | Resume(job=job):
                self._date(job)
            case Suspend(job=job):
                del self._due[job.id]

    # -- jobs start -----------------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """What the planner would have start now."""
        self._charges.bring_up_to_date(self.jobtable, self.policy, self.cards.gpus, self.limits, now)
        return self.jobtable.plan(self.cards.gpus, {}, limits=self.limits, now=now)

    def start(self, start: Start, now: float) -> None:
        job = self.jobtable.jobs[start.job_id]
        begun = {"holds": start.holds, "partition": start.partition, "started_at": now}
        after = job.advance(
            JobState.STARTING, attempt=job.attempt + 1, slot=self.jobtable.free_slot(), **begun
        )
        self.step(job, after, now)
        self.jobtable.given[job.id] = tuple(self._allocation(hold) for hold in start.holds)
        self._starting.append(job.id)

    def fork(self, now: float) -> bool:
        """Those that were started run, which takes no time; whether there are any."""
        begun, self._starting = self._starting, []
        for number in begun:
            before = self.jobtable.jobs[number]
            after = before.advance(JobState.RUNNING)
            self.step(before, after, now)
            self._date(after)
        return bool(begun)

    def _allocation(self, hold: Hold) -> Allocation:
        gpu = self._gpus[hold.gpu]
        return Allocation(gpu.index, gpu.uuid, gpu.model, hold.share, hold.memory, charged(hold, gpu.usable))

    # -- jobs end -------------------------------------------------------------------------------

    def _date(self, job: Job) -> None:
        """Its end follows from how it stands: who is told to make room goes on until its grace is over."""
        ends = [self._own_end(job)]
        if job.is_being_preempted and job.preemption is not None:
            ends.append(job.preemption.at + job.preemption.grace)
        self._due[job.id] = min(ends)
        heappush(self._ends, (min(ends), job.id))

    def _own_end(self, job: Job) -> float:
        """When its work is done, or its time is up."""
        assert job.started_at is not None
        return job.started_at + self._tasks[job.id - 1].lasts + job.suspended

    @property
    def next_end(self) -> float | None:
        """When the next job ends, if any runs."""
        while self._ends and self._due.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def end(self, now: float) -> bool:
        """Those end whose time has come; whether there are any."""
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
        """What its shepherd would have written."""
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

    # -- what is told of them -------------------------------------------------------------------

    def _record(self, before: Job, after: Job, now: float) -> None:
        ran, runs = _runs(before), _runs(after)
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


def _runs(job: Job) -> bool:
    return job.state in (JobState.STARTING, JobState.RUNNING)
