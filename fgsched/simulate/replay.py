"""The host in virtual time: jobs come, start when the planner says so, and end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fgsched.controller.book import Book
from fgsched.controller.charges import Charges
from fgsched.deciding.fairshare import Owner, Usage
from fgsched.deciding.placement import charged
from fgsched.deciding.planner import Start
from fgsched.model import Gpu, Hold, Job, JobState, Limits, Reason
from fgsched.policy import Policy
from fgsched.simulate.workload import Task
from fgsched.store import Allocation

# Whoever waits for one of these does so until something ends.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The host that is simulated, and its rules."""

    gpus: tuple[Gpu, ...]
    limits: Limits
    policy: Policy = field(default_factory=Policy)


Decide = Callable[[Book, float], Iterable[Start]]


class _Paper:
    """What of the store charges need."""

    def usage(self) -> dict[Owner, Usage]:
        return {}

    def put_usage(self, owner: Owner, usage: Usage) -> None:
        """Charges remember it themselves; nothing has to outlive the simulation."""


class _Clock:
    """A host and its jobs at one moment."""

    def __init__(self, tasks: Sequence[Task], site: Site, book: Book, decide: Decide | None) -> None:
        self._tasks, self._site, self._book = tasks, site, book
        self._decide = decide or self._plan
        self._charges = Charges(_Paper())
        self._gpus = {gpu.index: gpu for gpu in site.gpus}
        self._next = 0  # task to be submitted
        self._ends: list[tuple[float, int]] = []  # of running jobs
        self.started: dict[int, tuple[float, float, int]] = {}  # task -> start, end, share

    @property
    def is_over(self) -> bool:
        return self._next == len(self._tasks) and not self._ends

    def step(self) -> None:
        """Go to the next moment at which something happens, and let it."""
        moments = [self._tasks[self._next].submitted] if self._next < len(self._tasks) else []
        now = min([*moments, *(end for end, _ in self._ends[:1])])
        ended = self._end(now)
        may_start = self._submit(now)
        if ended or may_start:
            for start in self._decide(self._book, now):
                self._start(start, now)

    def _plan(self, book: Book, now: float) -> Iterable[Start]:
        site = self._site
        self._charges.bring_up_to_date(book, site.policy, site.gpus, site.limits, now)
        return book.plan(site.gpus, {}, limits=site.limits, now=now).starts

    def _end(self, now: float) -> bool:
        ended = False
        while self._ends and self._ends[0][0] <= now:
            _, number = heappop(self._ends)
            job = self._book.jobs[number]
            self._charges.charge(job, self._book.given.get(number, ()), now, self._site.policy)
            running = job.advance(JobState.RUNNING)
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
        """False if it waits for room that cannot have come since the last plan."""
        short = self._book.short(job)
        return short is None or short.reason not in _LASTING

    def _start(self, start: Start, now: float) -> None:
        number, task = start.job_id, self._tasks[start.job_id - 1]
        begun = {"holds": start.holds, "partition": start.partition, "started_at": now, "attempt": 1}
        job = self._book.jobs[number].advance(JobState.STARTING, slot=self._book.free_slot(), **begun)
        self._book.put(job)
        self._book.given[number] = tuple(self._allocation(hold) for hold in start.holds)
        heappush(self._ends, (now + task.lasts, number))
        share = sum(hold.share for hold in start.holds)
        self.started[number - 1] = (now, now + task.lasts, share)

    def _allocation(self, hold: Hold) -> Allocation:
        gpu = self._gpus[hold.gpu]
        return Allocation(gpu.index, gpu.uuid, gpu.model, hold.share, hold.memory, charged(hold, gpu.usable))


def replay(
    tasks: Sequence[Task],
    site: Site,
    *,
    book: Book | None = None,
    decide: Decide | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> Simulated:
    """Run the tasks, in the order of their submission, on this host.

    `told` hears how many have started. Another `book` or another way to `decide` is for comparing.
    """
    clock = _Clock(tasks, site, book or Book(), decide)
    while not clock.is_over:
        clock.step()
        told(len(clock.started))
    outcomes = tuple(
        Outcome(task=tasks[number], started=start, ended=end, share=share)
        for number, (start, end, share) in sorted(clock.started.items())
    )
    return Simulated(outcomes=outcomes, cards=len(site.gpus), unstarted=len(tasks) - len(outcomes))
