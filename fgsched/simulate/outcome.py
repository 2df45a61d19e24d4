"""What became of the tasks of a workload."""

from dataclasses import dataclass
from itertools import groupby, pairwise

from fgsched.domain.job import JobState
from fgsched.simulate.workload import Task


@dataclass(frozen=True, slots=True)
class Run:
    """A time for which a task ran without a break."""

    attempt: int
    began: float
    ended: float
    share: int  # ten-thousandths of a card that it held, on all its cards together

    @property
    def work(self) -> float:
        """Ten-thousandths of GPU seconds."""
        return (self.ended - self.began) * self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one task that is over."""

    task: Task
    runs: tuple[Run, ...]  # more than one if it had to make room for others
    state: JobState = JobState.COMPLETED

    @property
    def started(self) -> float:
        return self.runs[0].began

    @property
    def ended(self) -> float:
        return self.runs[-1].ended

    @property
    def share(self) -> int:
        return self.runs[0].share

    @property
    def attempts(self) -> list[tuple[Run, ...]]:
        """Its runs by attempt: within one it stood still in between."""
        return [tuple(runs) for _, runs in groupby(self.runs, lambda run: run.attempt)]

    @property
    def waits(self) -> list[tuple[float, float]]:
        """From when to when it was in the queue."""
        ends = [self.task.submitted, *(runs[-1].ended for runs in self.attempts)]
        return [(since, runs[0].began) for since, runs in zip(ends, self.attempts, strict=False)]

    @property
    def wait(self) -> float:
        """Seconds in the queue, in all."""
        return sum(until - since for since, until in self.waits)

    @property
    def ran(self) -> float:
        """Seconds that its last attempt ran."""
        return sum(run.ended - run.began for run in self.attempts[-1])

    @property
    def stood(self) -> float:
        """Seconds that it stood still, once it had started for the last time."""
        return sum(after.began - before.ended for before, after in pairwise(self.attempts[-1]))

    @property
    def lost(self) -> float:
        """Seconds from the start to the end of each attempt but the last."""
        return sum(runs[-1].ended - runs[0].began for runs in self.attempts[:-1])

    @property
    def suspended(self) -> int:
        """How often it stood still for others."""
        return sum(len(runs) - 1 for runs in self.attempts)

    @property
    def requeued(self) -> int:
        """How often it was sent back to the queue for others."""
        return len(self.attempts) - 1

    @property
    def is_cancelled(self) -> bool:
        """Whether it ended because others needed its room."""
        return self.state is JobState.PREEMPTED

    @property
    def vain(self) -> list[Run]:
        """The runs that were for nothing: the next attempt began anew, or there was none."""
        last = self.runs[-1].attempt
        return [run for run in self.runs if run.attempt < last or self.is_cancelled]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What became of a workload."""

    outcomes: tuple[Outcome, ...]  # in the order of submission
    cards: int
    unstarted: int = 0  # tasks that waited for ever
