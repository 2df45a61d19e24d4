"""Replay a workload in virtual time: tasks are submitted, started by the planner, preempted, and end."""

from collections.abc import Callable, Iterable, Sequence

from fgsched.controller.jobtable import JobTable
from fgsched.controller.preemption import Preempter, use_claims
from fgsched.domain.job import Job, JobState, Reason
from fgsched.scheduling.planner import Plan, Start
from fgsched.simulate.host import SimHost, VirtualHost
from fgsched.simulate.metrics import Simulated
from fgsched.simulate.workload import Task

# A job that waits for one of these reasons can start only after another job has ended.
_UNTIL_AN_END = {Reason.RESOURCES, Reason.GPU_MEMORY, Reason.GPU_FRAGMENTED}

Decide = Callable[[JobTable, float], Iterable[Start]]


class _Clock:
    """A simulated host at the current virtual time."""

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
        ended = self.host.end(now)
        may_start = self._submit(now)
        self._offer_due(now)
        if self._preempter is not None:
            self._run_turns(self._preempter, now)
        elif ended or may_start:
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
    clock = _Clock(tasks, site, jobtable or JobTable(), decide)
    while not clock.is_over:
        clock.step()
        progress(len(clock.host.started))
    outcomes = tuple(outcome for _, outcome in sorted(clock.host.outcomes.items()))
    return Simulated(outcomes=outcomes, cards=len(site.gpus), unstarted=len(tasks) - len(outcomes))
