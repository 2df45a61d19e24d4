"""Replay a workload in virtual time on a simulated host."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from msgspec import structs

from fgsched.accounting.records import GpuRecord
from fgsched.controller.jobtable import JobTable
from fgsched.controller.starting import Preempter, use_claims
from fgsched.controller.turn import Effect, PreemptOrder, ResumeOrder, SuspendOrder
from fgsched.controller.usage import UsageCharges
from fgsched.domain.job import Demand, Gpu, Hold, HostLimits, Job, Readings
from fgsched.domain.policy import Policy
from fgsched.domain.states import JobState, Reason
from fgsched.lifecycle.transitions import Result, complete, finish, settle
from fgsched.reports.facts import Facts, PastRun
from fgsched.reports.registry import Replayed
from fgsched.reports.wording import model_name, quantile
from fgsched.scheduling.placement import charged
from fgsched.scheduling.planner import JobStart, Plan
from fgsched.scheduling.queue import AccountUser, Usage
from fgsched.simulate.metrics import Simulated, TaskOutcome, TaskRun
from fgsched.simulate.workload import Task, runnable
from fgsched.store import GpuAllocation

_MOST = 2_000  # jobs that are replayed: the latest; a replay of more of them would take minutes
_UNLIMITED = 1 << 62


# -- the simulated host ----------------------------------------------------------------------------


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
class _UsableGpus:
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
        self.gpu_states = _UsableGpus(site.gpus)
        self.started: set[int] = set()  # jobs that have started
        self.outcomes: dict[int, TaskOutcome] = {}
        self._tasks = tasks
        self._charges = UsageCharges(_NoStore())
        self._gpus = {gpu.index: gpu for gpu in site.gpus}
        self._due: dict[int, float] = {}  # job -> its end, if nothing changes
        self._ends: list[tuple[float, int]] = []  # heap of (end, job), including outdated ends
        self._starting: list[int] = []
        self._runs: dict[int, list[TaskRun]] = {}  # of jobs that have not ended; the last run may continue

    # -- for the preempter ----------------------------------------------------------------------

    def step(self, before: Job, after: Job, now: float, *, over: Job | None = None) -> bool:
        """Replace a job by its next state, and charge a run that ended; `over` is its record."""
        if before.holds and not after.holds:
            gpu_allocations = self.jobtable.allocations.get(before.id, ())
            self._charges.charge(over or before, gpu_allocations, now, self.policy)
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
            case PreemptOrder(job=job) | ResumeOrder(job=job):
                self._schedule_end(job)
            case SuspendOrder(job=job):
                del self._due[job.id]

    # -- jobs start -----------------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """Return the jobs that the planner starts now."""
        self._charges.bring_up_to_date(self.jobtable, self.policy, self.gpu_states.gpus, self.limits, now)
        return self.jobtable.plan(self.gpu_states.gpus, {}, limits=self.limits, now=now)

    def start(self, start: JobStart, now: float) -> None:
        """Allocate GPUs to a job, which runs after the next `fork`."""
        job = self.jobtable.jobs[start.job_id]
        begun = {"holds": start.holds, "partition": start.partition, "started_at": now}
        after = job.advance(
            JobState.STARTING, attempt=job.attempt + 1, slot=self.jobtable.free_slot(), **begun
        )
        self.step(job, after, now)
        self.jobtable.allocations[job.id] = tuple(self._allocation(hold) for hold in start.holds)
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

    def _allocation(self, hold: Hold) -> GpuAllocation:
        gpu = self._gpus[hold.gpu]
        return GpuAllocation(
            gpu.index, gpu.uuid, gpu.model, hold.share, hold.memory, charged(hold, gpu.usable)
        )

    # -- jobs end -------------------------------------------------------------------------------

    def _schedule_end(self, job: Job) -> None:
        """Schedule the end of a job; a preempted job runs until its grace period ends."""
        ends = [self._own_end(job)]
        if (preemption := job.ending_preemption) is not None:
            ends.append(preemption.at + preemption.grace)
        self._due[job.id] = min(ends)
        heappush(self._ends, (min(ends), job.id))

    def _own_end(self, job: Job) -> float:
        """Return the time at which the job completes or reaches its time limit."""
        return job.start_time + self._tasks[job.id - 1].lasts + job.suspended

    @property
    def next_end(self) -> float | None:
        """Return the time at which the next job ends; None if no job runs."""
        while self._ends and self._due.get(self._ends[0][1]) != self._ends[0][0]:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def end(self, now: float) -> bool:
        """End the jobs that are due; return whether there were any."""
        has_ended = False
        while (due := self.next_end) is not None and due <= now:
            _, number = heappop(self._ends)
            del self._due[number]
            job = self.jobtable.jobs[number]
            how = finish(job, self._result(job, now))
            over = complete(job, how, now)
            self.step(job, settle(over, now, max_requeue=self.limits.max_requeue), now, over=over)
            has_ended = True
        return has_ended

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
            started_at=job.start_time,
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
            self._runs[after.id][-1] = TaskRun(last.attempt, last.began, now, last.share)
        elif runs and not ran:
            self.started.add(after.id)
            share = sum(hold.share for hold in after.holds)
            self._runs.setdefault(after.id, []).append(TaskRun(after.attempt, now, now, share))
        if after.state.is_final:
            task, task_runs = self._tasks[after.id - 1], tuple(self._runs.pop(after.id))
            self.outcomes[after.id] = TaskOutcome(task=task, runs=task_runs, state=after.state)


def _is_running(job: Job) -> bool:
    return job.state in (JobState.STARTING, JobState.RUNNING)


# -- virtual time ----------------------------------------------------------------------------------


# A job that waits for one of these reasons can start only after another job has ended.
_UNTIL_AN_END = {Reason.RESOURCES, Reason.GPU_MEMORY, Reason.GPU_FRAGMENTED}

Decide = Callable[[JobTable, float], Iterable[JobStart]]


class _SimulatedRun:
    """The run of the tasks on a simulated host, up to the current virtual time."""

    def __init__(
        self, tasks: Sequence[Task], site: SimHost, jobtable: JobTable, decide: Decide | None
    ) -> None:
        self._tasks = tasks
        self._decide = decide
        self.host = VirtualHost(tasks, site, jobtable)
        self._preempter = Preempter() if site.policy.preempts and not decide else None
        self._next = 0  # task to be submitted

    @property
    def is_over(self) -> bool:
        """Return whether all tasks were submitted and no job runs."""
        return self._next == len(self._tasks) and self.host.next_end is None

    def step(self) -> None:
        """Advance to the next event and process it."""
        submission = self._tasks[self._next].submitted if self._next < len(self._tasks) else None
        times = (submission, self.host.next_end, self.host.jobtable.wait_index.next_due)
        now = min(time for time in times if time is not None)
        has_ended = self.host.end(now)
        may_start = self._submit(now)
        self._offer_due(now)
        if self._preempter is not None:
            self._run_turns(self._preempter, now)
        elif has_ended or may_start:
            self._start_planned(now)
            self.host.fork(now)

    def _run_turns(self, preempter: Preempter, now: float) -> None:
        """Run turns as the controller does: another one after each turn in which a job started or ended."""
        host, has_changed = self.host, True
        while has_changed:
            preempter.resume(host, now)
            if host.jobtable.waiting:
                self._start_and_preempt(preempter, now)
            has_forked, has_ended = host.fork(now), host.end(now)
            has_changed = has_forked or has_ended

    def _start_and_preempt(self, preempter: Preempter, now: float) -> None:
        self._start_planned(now)
        if preempter.preempt(self.host, now):
            self._start_planned(now)

    def _start_planned(self, now: float) -> None:
        plan = Plan(tuple(self._decide(self.host.jobtable, now))) if self._decide else self.host.plan(now)
        for start in plan.starts:
            self.host.start(start, now)
            use_claims(self.host, start.job_id, now)

    def _offer_due(self, now: float) -> None:
        jobtable = self.host.jobtable
        for number in jobtable.wait_index.due(now):
            if (job := jobtable.jobs.get(number)) is not None and job.state is JobState.PENDING:
                jobtable.offer(job)

    def _submit(self, now: float) -> bool:
        """Submit the tasks that are due; return whether one of them may start."""
        may_start = False
        while self._next < len(self._tasks) and self._tasks[self._next].submitted <= now:
            self._next += 1
            job = self._tasks[self._next - 1].job(self._next)
            self.host.jobtable.put(job)
            may_start |= self._may_start(job)
        return may_start

    def _may_start(self, job: Job) -> bool:
        """Return False if the job waits for capacity that was not freed since the last plan."""
        shortfall = self.host.jobtable.shortfall(job)
        return shortfall is None or shortfall.reason not in _UNTIL_AN_END


def replay(
    tasks: Sequence[Task],
    site: SimHost,
    *,
    jobtable: JobTable | None = None,
    decide: Decide | None = None,
    progress: Callable[[int], None] = lambda started: None,
) -> Simulated:
    """Run the tasks, in the order of their submission, on a simulated host.

    Args:
        jobtable: another job table, for comparisons.
        decide: another planner, for comparisons; there is no preemption with it.
        progress: called with the number of started tasks.
    """
    simulated_run = _SimulatedRun(tasks, site, jobtable or JobTable(), decide)
    while not simulated_run.is_over:
        simulated_run.step()
        progress(len(simulated_run.host.started))
    outcomes = tuple(outcome for _, outcome in sorted(simulated_run.host.outcomes.items()))
    return Simulated(outcomes=outcomes, gpus=len(site.gpus), unstarted=len(tasks) - len(outcomes))


def one_more_gpu(facts: Facts, limits: HostLimits, most: int = _MOST) -> tuple[Replayed, ...]:
    """Return what one more GPU of each model would have changed for the jobs of a period.

    `most` jobs are replayed, the latest. CPUs and host memory of `limits` do not restrict the replay: the
    accounts lack the requests for them.
    """
    gpus = tuple(_gpu(index, gpu) for index, gpu in enumerate(facts.gpus))
    latest = facts.runs(most)
    if not gpus or not latest:
        return ()
    limits = structs.replace(limits, cpus=_UNLIMITED, host_memory=_UNLIMITED)
    host = SimHost(gpus=gpus, limits=limits, policy=Policy())
    tasks, _ = runnable([_task(run) for run in latest], gpus, limits)
    now = _waits(tasks, host)
    replayeds = []
    for model in dict.fromkeys(gpu.model for gpu in facts.gpus):
        gpu = next(gpu for gpu in facts.gpus if gpu.model == model)
        added = structs.replace(_gpu(len(gpus), gpu), uuid="one-more")
        then = _waits(tasks, SimHost(gpus=(*gpus, added), limits=limits, policy=Policy()))
        replayeds.append(
            Replayed(
                model=model_name(model),
                jobs=len(tasks),
                left_out=max(0, facts.ran - len(tasks)),
                since=min(run.eligible_at for run in latest),
                until=max(run.ended_at for run in latest),
                median_now=quantile(now, 50) or 0.0,
                median=quantile(then, 50) or 0.0,
                ninety_now=quantile(now, 90) or 0.0,
                ninety=quantile(then, 90) or 0.0,
            )
        )
    return tuple(replayeds)


def _waits(tasks: Sequence[Task], host: SimHost) -> list[float]:
    """Return the waits in a replay, in seconds, ascending."""
    return sorted(outcome.wait for outcome in replay(tasks, host).outcomes)


def _gpu(index: int, gpu: GpuRecord) -> Gpu:
    return Gpu(index=index, uuid=gpu.uuid, model=gpu.model, total=gpu.total)


def _task(run: PastRun) -> Task:
    demand = Demand(gpus=run.gpus, share=run.share, memory=run.memory, gpu_type=run.gpu_type)
    return Task(
        demand=demand,
        submitted=run.eligible_at,
        run=max(1.0, run.ended_at - run.started_at),
        time_limit=run.time_limit,
        id=run.id,
        user=run.user,
    )
