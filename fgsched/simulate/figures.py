"""What came of a simulated workload, in numbers."""

from bisect import bisect, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from fgsched.domain.job import WHOLE, Demand
from fgsched.simulate.outcome import Outcome, Run, Simulated

_SHORTEST = 10.0  # seconds: the slowdown of shorter jobs is that of jobs so long
_POINTS = 500  # of a curve
_HOUR = 3600.0
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
    """How long jobs of one size waited, in seconds, and their slowdown."""

    name: str
    jobs: int
    mean: float
    p50: float
    p90: float
    p99: float
    longest: float
    slowdown: float  # mean of (wait + run) / run, where what was in vain, and standing still, is waiting too


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """A job and how many that came after it started before it."""

    job: int  # its id in the log, or its number in the order of submission
    by: int
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRoom:
    """How often jobs had to make room for others, and what that cost."""

    jobs: int
    requeued: int
    cancelled: int
    suspended: int
    gpu_hours: float  # of work that was for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of the curves."""

    at: float  # seconds after the first submission
    allocated: float  # of all cards, 0 to 1: the mean since the point before
    waiting: float  # jobs, the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All there is to say of one simulation."""

    waits: tuple[Waits, ...]  # of each size, and of all
    was: Waits | None  # of all, as the log says that it really was
    longest: Overtaken | None  # the job that waited longest
    most: Overtaken | None  # the one that was overtaken most
    made_room: MadeRoom | None  # None: no job had to
    unstarted: int
    gpu_hours: float
    allocated: float  # of all cards, while jobs came: 0 to 1
    overall: float  # the same, until the last one ended
    hours: float  # from the first submission to the last end
    curve: tuple[Moment, ...]


def figures(simulated: Simulated) -> Figures:
    """The numbers of a simulation."""
    outcomes = simulated.outcomes
    by_class: dict[str, list[Outcome]] = {name: [] for name in CLASSES}
    for outcome in outcomes:
        by_class[_class(outcome.task.demand)].append(outcome)
    rows = [_waits(name, some) for name, some in by_class.items() if some]
    if outcomes:
        rows.append(_waits("all", outcomes))
    first = min((one.task.submitted for one in outcomes), default=0.0)
    came = max((one.task.submitted for one in outcomes), default=0.0)
    last = max((one.ended for one in outcomes), default=0.0)
    overtaken = _overtaken(outcomes)
    return Figures(
        waits=tuple(rows),
        was=_as_it_was(outcomes),
        longest=max(overtaken, key=lambda one: one.wait, default=None),
        most=max(overtaken, key=lambda one: (one.by, one.wait), default=None),
        made_room=_made_room(outcomes),
        unstarted=simulated.unstarted,
        gpu_hours=_hours(run for one in outcomes for run in one.runs),
        allocated=_allocated(outcomes, simulated.cards, first, came),
        overall=_allocated(outcomes, simulated.cards, first, last),
        hours=(last - first) / _HOUR,
        curve=tuple(_curve(outcomes, simulated.cards, first, last)),
    )


def _hours(runs: Iterable[Run]) -> float:
    """GPU-hours of these."""
    return sum(run.work for run in runs) / WHOLE / _HOUR


def _made_room(outcomes: Iterable[Outcome]) -> MadeRoom | None:
    those = [one for one in outcomes if one.requeued or one.suspended or one.is_cancelled]
    if not those:
        return None
    return MadeRoom(
        jobs=len(those),
        requeued=sum(one.requeued for one in those),
        cancelled=sum(one.is_cancelled for one in those),
        suspended=sum(one.suspended for one in those),
        gpu_hours=_hours(run for one in those for run in one.vain),
    )


def _class(demand: Demand) -> str:
    return next(name for name, holds in CLASSES.items() if holds(demand))


def _waits(name: str, outcomes: Sequence[Outcome]) -> Waits:
    waits = sorted(one.wait for one in outcomes)
    runs = ((one.wait + one.stood + one.lost, max(_SHORTEST, one.ran)) for one in outcomes)
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


def _as_it_was(outcomes: Iterable[Outcome]) -> Waits | None:
    """The waits that the log tells of."""
    real = [_real(one, waited) for one in outcomes if (waited := one.task.waited) is not None]
    return _waits("as it was", real) if real else None


def _real(one: Outcome, waited: float) -> Outcome:
    began = one.task.submitted + waited
    return Outcome(task=one.task, runs=(Run(1, began, began + one.task.run, one.share),))


def percentile(ordered: Sequence[float], part: int) -> float:
    """The smallest value that at least `part` percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * part // 100) - 1)]


def _overtaken(outcomes: Iterable[Outcome]) -> list[Overtaken]:
    """Of each job, how many that were submitted after it started before it."""
    later: list[float] = []  # starts of those that were submitted later, in order
    found = []
    for number, one in reversed(list(enumerate(outcomes, 1))):
        found.append(
            Overtaken(job=one.task.id or number, by=bisect(later, one.started - 1e-9), wait=one.wait)
        )
        insort(later, one.started)
    return found


def _allocated(outcomes: Iterable[Outcome], cards: int, begin: float, end: float) -> float:
    """The part of the cards that was held between two moments."""
    if end <= begin or not cards:
        return 0.0
    runs = (run for one in outcomes for run in one.runs)
    held = sum(max(0.0, min(run.ended, end) - max(run.began, begin)) * run.share for run in runs)
    return held / (cards * WHOLE * (end - begin))


def _curve(outcomes: Sequence[Outcome], cards: int, begin: float, end: float) -> Iterable[Moment]:
    """Means over equal pieces of time."""
    if end <= begin:
        return
    piece = (end - begin) / _POINTS
    runs = (run for one in outcomes for run in one.runs)
    held = _areas([(run.began - begin, run.ended - begin, run.share) for run in runs], piece)
    waits = (wait for one in outcomes for wait in one.waits)
    waiting = _areas([(since - begin, until - begin, 1) for since, until in waits], piece)
    for number, (share, jobs) in enumerate(zip(held, waiting, strict=True), 1):
        of_all = share / piece / (cards * WHOLE) if cards else 0.0
        yield Moment(at=number * piece, allocated=of_all, waiting=jobs / piece)


def _areas(spans: Iterable[tuple[float, float, int]], piece: float) -> list[float]:
    """What the spans (begin, end, height) cover of each piece of time."""
    steps: dict[float, int] = {}
    for begin, end, height in spans:
        steps[begin] = steps.get(begin, 0) + height
        steps[end] = steps.get(end, 0) - height
    moments = sorted({*steps, *(number * piece for number in range(_POINTS + 1))})
    areas, level = [0.0] * _POINTS, 0
    for here, following in pairwise(moments):
        level += steps.get(here, 0)
        middle = int((here + following) / 2 / piece)
        if 0 <= middle < _POINTS:
            areas[middle] += level * (following - here)
    return areas
