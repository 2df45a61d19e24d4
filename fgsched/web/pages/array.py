"""One array: its tasks as a grid of states, how many are in each, and the slowest."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.lifecycle.arrays import parse_tasks
from fgsched.protocol import JobInfo
from fgsched.reports import numbers
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.web.pages import words
from fgsched.web.pages.job import JobAction
from fgsched.web.pages.words import StateWord
from fgsched.web.reading import ArrayData
from fgsched.web.visit import Visit

_MOST_TASKS = 1000  # in the grid
_MOST_SLOW = 5


class TaskCell(Struct, frozen=True, kw_only=True):
    """A task, or the tasks that wait."""

    label: str  # indices
    ref: str  # in paths
    state: StateWord
    time: str


class ArrayPage(Struct, frozen=True, kw_only=True):
    """The context of the page."""

    id: int
    name: str
    lede: str
    counts: Sequence[tuple[StateWord, int]]
    tasks: Sequence[TaskCell]
    more: int
    slowest: Sequence[TaskCell]
    actions: Sequence[JobAction]


def context(data: ArrayData, visit: Visit) -> ArrayPage:
    """Return the context of the page."""
    jobs = sorted(data.jobs, key=lambda job: (job.task is None, job.task or 0))
    first = jobs[0]
    number = first.array or first.id
    counts = Counter(words.state(job) for job in jobs for _ in range(_tasks(job)))
    slowest = sorted((job for job in jobs if job.started_at), key=lambda job: -job.elapsed)
    may_act = not visit.viewer.read_only and (first.uid == visit.viewer.uid or data.look.about.operator)
    is_over = all(job.state.is_final for job in jobs)
    asks = f"Cancel all tasks of array {number} that have not ended?"
    cancel = JobAction(verb="cancel", label="Cancel the rest", style="stop", asks=asks)
    return ArrayPage(
        id=number,
        name=first.name,
        lede=_lede(jobs),
        counts=sorted(counts.items(), key=lambda entry: -entry[1]),
        tasks=[_cell(job) for job in jobs[:_MOST_TASKS]],
        more=max(0, len(jobs) - _MOST_TASKS),
        slowest=[_cell(job) for job in slowest[:_MOST_SLOW]],
        actions=[cancel] if may_act and not is_over else [],
    )


def _tasks(job: JobInfo) -> int:
    """Return the number of tasks of a row: one, or the tasks that wait."""
    if job.task is not None or job.tasks is None:
        return 1
    return parse_tasks(job.tasks.partition("%")[0]).bit_count()


def _lede(jobs: Sequence[JobInfo]) -> str:
    count = sum(map(_tasks, jobs))
    running = sum(job.state.holds for job in jobs)
    ended = sum(job.state.is_final for job in jobs)
    waiting = sum(_tasks(job) for job in jobs if job.state is JobState.PENDING)
    failed = sum(job.state.is_failure for job in jobs)
    failures = f", of which {failed} failed" if failed else ""
    return f"{numbers.counted(count, 'task')}: {running} run, {waiting} wait, {ended} have ended{failures}."


def _cell(job: JobInfo) -> TaskCell:
    return TaskCell(
        label=view.array_tasks(job) or str(job.id),
        ref=str(choices.exactly(job)),
        state=words.state(job),
        time=words.time_of(job),
    )
