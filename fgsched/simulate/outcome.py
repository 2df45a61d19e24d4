"""Outcomes of simulated tasks: their runs, wait times and preemptions."""

from dataclasses import dataclass
from itertools import groupby, pairwise

from fgsched.domain.job import JobState
from fgsched.simulate.workload import Task


@dataclass(frozen=True, slots=True)
class Run:
    """An uninterrupted run of a task."""

    attempt: int
    began: float  # seconds
    ended: float  # seconds
    share: int  # ten-thousandths of a GPU, on all its GPUs together

    @property
    def work(self) -> float:
        """Return the work in ten-thousandths of GPU seconds."""
        return (self.ended - self.began) * self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one ended task. Times are in seconds."""

    task: Task
    runs: tuple[Run, ...]  # more than one if it was preempted
    state: JobState = JobState.COMPLETED

    @property
    def started(self) -> float:
        """Return the time of the first start."""
        return self.runs[0].began

    @property
    def ended(self) -> float:
        """Return the time of the last end."""
        return self.runs[-1].ended

    @property
    def share(self) -> int:
        """Return the allocated ten-thousandths of a GPU, on all its GPUs together."""
        return self.runs[0].share

    @property
    def attempts(self) -> list[tuple[Run, ...]]:
        """Return the runs by attempt; between the runs of an attempt the task was suspended."""
        return [tuple(runs) for _, runs in groupby(self.runs, lambda run: run.attempt)]

    @property
    def waits(self) -> list[tuple[float, float]]:
        """Return the start and the end of each wait in the queue."""
        ends = [self.task.submitted, *(runs[-1].ended for runs in self.attempts)]
        return [(since, runs[0].began) for since, runs in zip(ends, self.attempts, strict=False)]

    @property
    def wait(self) -> float:
        """Return the total time in the queue."""
        return sum(until - since for since, until in self.waits)

    @property
    def ran(self) -> float:
        """Return the run time of the last attempt."""
        return sum(run.ended - run.began for run in self.attempts[-1])

    @property
    def suspended_time(self) -> float:
        """Return the time for which the last attempt was suspended."""
        return sum(after.began - before.ended for before, after in pairwise(self.attempts[-1]))

    @property
    def lost(self) -> float:
        """Return the time from start to end of all attempts but the last."""
        return sum(runs[-1].ended - runs[0].began for runs in self.attempts[:-1])

    @property
    def suspended(self) -> int:
        """Return how often the task was suspended by preemption."""
        return sum(len(runs) - 1 for runs in self.attempts)

    @property
    def requeued(self) -> int:
        """Return how often the task was requeued by preemption."""
        return len(self.attempts) - 1

    @property
    def is_cancelled(self) -> bool:
        """Return whether the task was cancelled by preemption."""
        return self.state is JobState.PREEMPTED

    @property
    def lost_runs(self) -> list[Run]:
        """Return the runs whose work was lost by a requeue or a cancellation."""
        last = self.runs[-1].attempt
        return [run for run in self.runs if run.attempt < last or self.is_cancelled]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The outcome of a workload."""

    outcomes: tuple[Outcome, ...]  # in the order of submission
    cards: int  # number of GPUs
    unstarted: int = 0  # tasks that never started
