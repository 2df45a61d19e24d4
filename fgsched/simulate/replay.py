"""The host in virtual time: jobs come, start when the planner says so, make room for others, and end."""

from collections.abc import Callable, Iterable, Sequence

from fgsched.controller.jobtable import JobTable
from fgsched.controller.preemption import Preempter
from fgsched.domain.job import Job, JobState, Reason
from fgsched.scheduling.planner import Plan, Start
from fgsched.simulate.host import SimHost, VirtualHost
from fgsched.simulate.outcome import Simulated
from fgsched.simulate.workload import Task

# Whoever waits for one of these does so until something ends.
_LASTING = {Reason.RESOURCES, Reason.GPU_MEMORY, Reason.GPU_FRAGMENTED}

Decide = Callable[[JobTable, float], Iterable[Start]]


class _Clock:
    """A host and its jobs at one moment."""

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
        return self._next == len(self._tasks) and self.host.next_end is None

    def step(self) -> None:
        """Go to the next moment at which something happens, and let it."""
        coming = self._tasks[self._next].submitted if self._next < len(self._tasks) else None
        dated = (coming, self.host.next_end, self.host.jobtable.wait_index.next_due)
        now = min(moment for moment in dated if moment is not None)
        ended = self.host.end(now)
        may_start = self._submit(now)
        self._look_again(now)
        if self._preempter is not None:
            self._turns(self._preempter, now)
        elif ended or may_start:
            self._start_planned(now)
            self.host.fork(now)

    def _turns(self, preempter: Preempter, now: float) -> None:
        """As the controller's: another one where it would hear of something, of a start or of an end."""
        host, is_told = self.host, True
        while is_told:
            preempter.resume(host, now)
            if host.jobtable.waiting:
                preempter.decide(host, self._start_planned, now)
            has_forked, has_ended = host.fork(now), host.end(now)
            is_told = has_forked or has_ended

    def _start_planned(self, now: float) -> Plan:
        plan = Plan(tuple(self._decide(self.host.jobtable, now))) if self._decide else self.host.plan(now)
        for start in plan.starts:
            self.host.start(start, now)
        return plan

    def _look_again(self, now: float) -> None:
        jobtable = self.host.jobtable
        for number in jobtable.wait_index.due(now):
            if (job := jobtable.jobs.get(number)) is not None and job.state is JobState.PENDING:
                jobtable.offer(job)

    def _submit(self, now: float) -> bool:
        """Take in the jobs that come; whether one of them is of a kind that may start."""
        may_start = False
        while self._next < len(self._tasks) and self._tasks[self._next].submitted <= now:
            self._next += 1
            job = self._tasks[self._next - 1].job(self._next)
            self.host.jobtable.put(job)
            may_start |= self._may_start(job)
        return may_start

    def _may_start(self, job: Job) -> bool:
        """False if it waits for room that cannot have come since the last plan."""
        short = self.host.jobtable.short(job)
        return short is None or short.reason not in _LASTING


def replay(
    tasks: Sequence[Task],
    site: SimHost,
    *,
    jobtable: JobTable | None = None,
    decide: Decide | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> Simulated:
    """Run the tasks, in the order of their submission, on this host.

    `told` hears how many have started. Another `jobtable` or another way to `decide` is for comparing:
    with the latter nobody makes room for anybody.
    """
    clock = _Clock(tasks, site, jobtable or JobTable(), decide)
    while not clock.is_over:
        clock.step()
        told(len(clock.host.started))
    outcomes = tuple(outcome for _, outcome in sorted(clock.host.outcomes.items()))
    return Simulated(outcomes=outcomes, cards=len(site.gpus), unstarted=len(tasks) - len(outcomes))
