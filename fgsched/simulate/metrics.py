"""Measure a simulation: wait times by job size, overtaking, preemption costs and GPU utilisation."""

from bisect import bisect, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from statistics import fmean

from fgsched.domain.job import WHOLE, Demand
from fgsched.domain.states import JobState
from fgsched.domain.times import HOUR
from fgsched.simulate.workload import Task

# -- the outcome of each task -------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskRun:
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
class TaskOutcome:
    """The outcome of one ended task. Times are in seconds."""

    task: Task
    runs: tuple[TaskRun, ...]  # more than one if it was preempted
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
    def attempts(self) -> list[tuple[TaskRun, ...]]:
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
    def lost_runs(self) -> list[TaskRun]:
        """Return the runs whose work was lost by a requeue or a cancellation."""
        last = self.runs[-1].attempt
        return [run for run in self.runs if run.attempt < last or self.is_cancelled]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The outcome of a workload."""

    outcomes: tuple[TaskOutcome, ...]  # in the order of submission
    gpus: int  # number of GPUs
    unstarted: int = 0  # tasks that never started


# -- the metrics --------------------------------------------------------------


_SHORTEST = 10.0  # seconds: shorter jobs count as this long in the slowdown
_POINTS = 500  # of a curve
CLASSES: dict[str, Callable[[Demand], bool]] = {
    "none": lambda demand: demand.gpus == 0,
    "to 1/4": lambda demand: demand.gpus == 1 and 0 < demand.share <= WHOLE // 4,
    "to 1/2": lambda demand: demand.gpus == 1 and WHOLE // 4 < demand.share <= WHOLE // 2,
    "below 1": lambda demand: demand.gpus == 1 and demand.share < WHOLE,
    "1": lambda demand: demand.gpus == 1,
    "2 or more": lambda demand: True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Wait times of the jobs of one size, in seconds, and their slowdown."""

    name: str
    jobs: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float
    slowdown: float  # mean of (wait + run) / run; lost and suspended time counts as wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """A job, and the number of later jobs that started before it."""

    job: int  # id in the trace, or number in the order of submission
    by: int
    wait: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCost:
    """The number of preempted jobs and preemptions, and the work that they lost."""

    jobs: int
    requeued: int  # times, as the next two
    cancelled: int
    suspended: int
    gpu_hours: float  # of lost work


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A point of the curves: means since the previous point."""

    at: float  # seconds after the first submission
    allocated: float  # part of all GPUs, from 0 to 1
    waiting: float  # jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of one simulation. The fields are the keys of `fgsched simulate --json`."""

    waits: tuple[Waits, ...]  # by size, and of all jobs
    was: Waits | None  # of all jobs, as the trace recorded them
    longest: Overtaken | None  # the job with the longest wait
    most: Overtaken | None  # the job that was overtaken most often
    made_room: PreemptionCost | None  # None: no job was preempted
    unstarted: int
    gpu_hours: float
    allocated: float  # part of all GPUs until the last submission, from 0 to 1
    overall: float  # part of all GPUs until the last end, from 0 to 1
    hours: float  # from the first submission to the last end
    curve: tuple[CurvePoint, ...]


def measure(simulated: Simulated) -> Metrics:
    """Compute the metrics of a simulation."""
    outcomes = simulated.outcomes
    by_class: dict[str, list[TaskOutcome]] = {name: [] for name in CLASSES}
    for outcome in outcomes:
        by_class[_class(outcome.task.demand)].append(outcome)
    rows = [_waits(name, some) for name, some in by_class.items() if some]
    if outcomes:
        rows.append(_waits("all", outcomes))
    first = min((task_outcome.task.submitted for task_outcome in outcomes), default=0.0)
    last_submission = max((task_outcome.task.submitted for task_outcome in outcomes), default=0.0)
    last = max((task_outcome.ended for task_outcome in outcomes), default=0.0)
    overtaken = _overtaken(outcomes)
    return Metrics(
        waits=tuple(rows),
        was=_recorded_waits(outcomes),
        longest=max(overtaken, key=lambda overtaken: overtaken.wait, default=None),
        most=max(overtaken, key=lambda overtaken: (overtaken.by, overtaken.wait), default=None),
        made_room=_preemption_cost(outcomes),
        unstarted=simulated.unstarted,
        gpu_hours=_hours(run for task_outcome in outcomes for run in task_outcome.runs),
        allocated=_allocated(outcomes, simulated.gpus, first, last_submission),
        overall=_allocated(outcomes, simulated.gpus, first, last),
        hours=(last - first) / HOUR,
        curve=tuple(_curve(outcomes, simulated.gpus, first, last)),
    )


def _hours(runs: Iterable[TaskRun]) -> float:
    """Return the GPU-hours of runs."""
    return sum(run.work for run in runs) / WHOLE / HOUR


def _preemption_cost(outcomes: Iterable[TaskOutcome]) -> PreemptionCost | None:
    preempted = [
        outcome for outcome in outcomes if outcome.requeued or outcome.suspended or outcome.is_cancelled
    ]
    if not preempted:
        return None
    return PreemptionCost(
        jobs=len(preempted),
        requeued=sum(task_outcome.requeued for task_outcome in preempted),
        cancelled=sum(task_outcome.is_cancelled for task_outcome in preempted),
        suspended=sum(task_outcome.suspended for task_outcome in preempted),
        gpu_hours=_hours(run for task_outcome in preempted for run in task_outcome.lost_runs),
    )


def _class(demand: Demand) -> str:
    return next(name for name, holds in CLASSES.items() if holds(demand))


def _waits(name: str, outcomes: Sequence[TaskOutcome]) -> Waits:
    waits = sorted(outcome.wait for outcome in outcomes)
    runs = (
        (outcome.wait + outcome.suspended_time + outcome.lost, max(_SHORTEST, outcome.ran))
        for outcome in outcomes
    )
    return Waits(
        name=name,
        jobs=len(waits),
        mean=fmean(waits),
        p50=percentile(waits, 50),
        p90=percentile(waits, 90),
        p99=percentile(waits, 99),
        longest=waits[-1],
        slowdown=fmean((idle + run) / run for idle, run in runs),
    )


def _recorded_waits(outcomes: Iterable[TaskOutcome]) -> Waits | None:
    """Return the wait times that the trace recorded."""
    real = [_recorded(outcome, waited) for outcome in outcomes if (waited := outcome.task.waited) is not None]
    return _waits("as it was", real) if real else None


def _recorded(outcome: TaskOutcome, waited: float) -> TaskOutcome:
    started = outcome.task.submitted + waited
    return TaskOutcome(
        task=outcome.task, runs=(TaskRun(1, started, started + outcome.task.run, outcome.share),)
    )


def percentile(ordered: Sequence[float], part: int) -> float:
    """Return the smallest value that at least `part` percent of the sorted values do not exceed."""
    return ordered[max(0, -(-len(ordered) * part // 100) - 1)]


def _overtaken(outcomes: Iterable[TaskOutcome]) -> list[Overtaken]:
    """Count for each job the jobs that were submitted later and started earlier."""
    later: list[float] = []  # sorted starts of the jobs that were submitted later
    overtakens = []
    for number, task_outcome in reversed(list(enumerate(outcomes, 1))):
        overtakens.append(
            Overtaken(
                job=task_outcome.task.id or number,
                by=bisect(later, task_outcome.started - 1e-9),
                wait=task_outcome.wait,
            )
        )
        insort(later, task_outcome.started)
    return overtakens


def _allocated(outcomes: Iterable[TaskOutcome], gpus: int, begin: float, end: float) -> float:
    """Return the part of the GPUs that was allocated between two times in seconds, from 0 to 1."""
    if end <= begin or not gpus:
        return 0.0
    runs = (run for outcome in outcomes for run in outcome.runs)
    held = sum(max(0.0, min(run.ended, end) - max(run.began, begin)) * run.share for run in runs)
    return held / (gpus * WHOLE * (end - begin))


def _curve(outcomes: Sequence[TaskOutcome], gpus: int, begin: float, end: float) -> Iterable[CurvePoint]:
    """Yield the means over equal intervals."""
    if end <= begin:
        return
    interval = (end - begin) / _POINTS
    runs = (run for outcome in outcomes for run in outcome.runs)
    held = _areas([(run.began - begin, run.ended - begin, run.share) for run in runs], interval)
    waits = (wait for outcome in outcomes for wait in outcome.waits)
    waiting = _areas([(since - begin, until - begin, 1) for since, until in waits], interval)
    for number, (share, jobs) in enumerate(zip(held, waiting, strict=True), 1):
        of_all = share / interval / (gpus * WHOLE) if gpus else 0.0
        yield CurvePoint(at=number * interval, allocated=of_all, waiting=jobs / interval)


def _areas(spans: Iterable[tuple[float, float, int]], interval: float) -> list[float]:
    """Return the area that the spans (begin, end, height) have in each interval."""
    steps: dict[float, int] = {}
    for begin, end, height in spans:
        steps[begin] = steps.get(begin, 0) + height
        steps[end] = steps.get(end, 0) - height
    times = sorted({*steps, *(number * interval for number in range(_POINTS + 1))})
    areas, level = [0.0] * _POINTS, 0
    for here, following in pairwise(times):
        level += steps.get(here, 0)
        middle = int((here + following) / 2 / interval)
        if 0 <= middle < _POINTS:
            areas[middle] += level * (following - here)
    return areas


_WIDTH, _HEIGHT = 960, 200  # pixels of each of the two panels
_LEFT, _TOP, _GAP = 60, 60, 60
_STYLE = (
    "text{font:13px sans-serif;fill:#333}.grid{stroke:#ddd}.line{fill:none;stroke-width:1.5}"
    ".share{stroke:#2563a8}.fill{fill:#2563a8;opacity:.15}.jobs{stroke:#b3541e}"
)


def svg(metrics: Metrics, title: str) -> str:
    """Return a self-contained SVG document."""
    highest = max((point.waiting for point in metrics.curve), default=0.0)
    height = _TOP + 2 * _HEIGHT + _GAP + 40
    low = _TOP + _HEIGHT + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="20">{escape(title)}</text>',
            *_frame(_TOP, "allocated", ["0 %", "50 %", "100 %"], metrics.hours),
            *_shares(metrics.curve),
            *_frame(low, "waiting jobs", ["0", f"{highest / 2:.0f}", f"{highest:.0f}"], metrics.hours),
            f'<polyline class="line jobs" points="{_waiting(metrics.curve, low, highest)}"/>',
            "</svg>\n",
        ]
    )


def _frame(top: float, name: str, marks: Sequence[str], hours: float) -> list[str]:
    """Draw the grid of a panel, with a mark at each line and the hours below."""
    lines = [f'<text x="{_LEFT}" y="{top - 8}">{name}</text>']
    for number, mark in enumerate(marks):
        y = top + _HEIGHT * (1 - number / (len(marks) - 1))
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:g}" y2="{y:g}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{mark}</text>')
    for quarter in range(5):
        x, hour = _LEFT + _WIDTH * quarter / 4, hours * quarter / 4
        lines.append(f'<text x="{x:g}" y="{top + _HEIGHT + 18:g}" text-anchor="middle">{hour:.3g} h</text>')
    return lines


def _shares(curve: Sequence[CurvePoint]) -> list[str]:
    points = _points([point.allocated for point in curve], _TOP, 1.0)
    corners = f"{_LEFT},{_TOP + _HEIGHT} {points} {_LEFT + _WIDTH},{_TOP + _HEIGHT}"
    return [
        f'<polygon class="fill" points="{corners}"/>',
        f'<polyline class="line share" points="{points}"/>',
    ]


def _waiting(curve: Sequence[CurvePoint], top: float, highest: float) -> str:
    return _points([point.waiting for point in curve], top, highest)


def _points(values: Sequence[float], top: float, highest: float) -> str:
    """Return the points of a curve in its panel."""
    step = _WIDTH / max(1, len(values))
    return " ".join(
        f"{_LEFT + step * (number + 0.5):.1f},{top + _HEIGHT * (1 - (value / highest if highest else 0)):.1f}"
        for number, value in enumerate(values)
    )
