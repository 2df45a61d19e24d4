"""The host in virtual time: jobs come, start when the planner says so, and end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from fgsched.controller.book import Book
from fgsched.model import Gpu, Job, JobState, Limits, Reason
from fgsched.planner import Start
from fgsched.simulate.workload import Task

# A job of a kind that waits for one of these waits too, until something ends.
_LASTING = {Reason.RESOURCES, Reason.GPU_MEMORY, Reason.GPU_FRAGMENTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one task."""

    task: Task
    started: float
    ended: float
    share: int  # ten-thousandths of a card that it held, on all its cards together

    @property
    def wait(self) -> float:
        return self.started - self.task.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What became of a workload."""

    outcomes: tuple[Outcome, ...]  # in the order of submission
    cards: int
    unstarted: int = 0  # tasks that waited for ever


Decide = Callable[[Book, float], Iterable[Start]]


class _Clock:
    """A host and its jobs at one moment."""

    def __init__(self, tasks: Sequence[Task], book: Book, decide: Decide) -> None:
        self._tasks = tasks
        self._book = book
        self._decide = decide
        self._next = 0  # task to be submitted
        self._ends: list[tuple[float, int]] = []  # of running jobs
        self.started: dict[int, tuple[float, float, int]] = {}  # task -> start, end, share

    @property
    def is_over(self) -> bool:
        return self._next == len(self._tasks) and not self._ends

    @property
    def done(self) -> int:
        return len(self.started)

    def step(self) -> None:
        """Go to the next moment at which something happens, and let it."""
        moments = [self._tasks[self._next].submitted] if self._next < len(self._tasks) else []
        now = min([*moments, *(end for end, _ in self._ends[:1])])
        ended = self._end(now)
        may_start = self._submit(now)
        if ended or may_start:
            for start in self._decide(self._book, now):
                self._start(start, now)

    def _end(self, now: float) -> bool:
        ended = False
        while self._ends and self._ends[0][0] <= now:
            _, number = heappop(self._ends)
            running = self._book.jobs[number].advance(JobState.RUNNING)
            self._book.put(running.advance(JobState.COMPLETED, ended_at=now, holds=()))
            ended = True
        return ended

    def _submit(self, now: float) -> bool:
        """Take in the jobs that come; whether one of them is of a kind that may start."""
        may_start = False
        while self._next < len(self._tasks) and self._tasks[self._next].submitted <= now:
            self._next += 1
            job = self._tasks[self._next - 1].job(self._next)
            self._book.put(job)
            may_start |= self._may_start(job)
        return may_start

    def _may_start(self, job: Job) -> bool:
        """False if one just like it waits for room that cannot have come since."""
        short = self._book.short(job)
        return short is None or short.reason not in _LASTING

    def _start(self, start: Start, now: float) -> None:
        job = self._book.jobs[start.job_id]
        task = self._tasks[start.job_id - 1]
        self._book.put(
            job.advance(
                JobState.STARTING, holds=start.holds, started_at=now, slot=self._book.free_slot(), attempt=1
            )
        )
        end = now + task.lasts
        heappush(self._ends, (end, start.job_id))
        share = sum(hold.share for hold in start.holds)
        self.started[start.job_id - 1] = (now, end, share)


def replay(
    tasks: Sequence[Task],
    gpus: Sequence[Gpu],
    limits: Limits,
    *,
    book: Book | None = None,
    decide: Decide | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> Simulated:
    """Run the tasks, in the order of their submission, on this host. `told` hears how many have started."""

    def by_the_planner(book: Book, now: float) -> Iterable[Start]:
        return book.plan(gpus, {}, limits=limits, now=now).starts

    clock = _Clock(tasks, book or Book(), decide or by_the_planner)
    while not clock.is_over:
        clock.step()
        told(clock.done)
    outcomes = tuple(
        Outcome(task=tasks[number], started=start, ended=end, share=share)
        for number, (start, end, share) in sorted(clock.started.items())
    )
    return Simulated(outcomes=outcomes, cards=len(gpus), unstarted=len(tasks) - len(outcomes))
