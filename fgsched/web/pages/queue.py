"""The open jobs and the jobs of today that have ended: chosen, ordered, and in pages of 100 rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.web.pages import words
from fgsched.web.pages.job import may_change
from fgsched.web.pages.words import StateWord
from fgsched.web.reading import HostLook, QueueData
from fgsched.web.visit import Visit

ROWS = 100  # of a page
_LONGEST = 100  # characters of a search
_ACTIVE = (JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


class QueueRow(Struct, frozen=True, kw_only=True):
    """A job in the list."""

    id: str
    ref: str  # in paths and forms
    name: str
    user: str
    state: StateWord
    gpus: str
    memory: str
    time: str
    label: str
    where: str
    may_change: bool


class FilterLink(Struct, frozen=True):
    """A choice of jobs, as a link."""

    label: str
    count: int
    href: str
    is_current: bool


class Heading(Struct, frozen=True):
    """A heading that sorts."""

    label: str
    href: str
    sorted: str  # value of aria-sort; "": not by this
    style: str = ""


class QueuePage(Struct, frozen=True, kw_only=True):
    """The context of the page."""

    filter_links: Sequence[FilterLink]
    headings: Sequence[Heading]
    rows: Sequence[QueueRow]
    search: str
    hidden: Sequence[tuple[str, str]]  # fields of the search that keep the choice
    count: int
    first: int
    earlier: str  # link; "": this is the first page
    later: str
    has_changes: bool  # some row can be changed


_Choice = Callable[[JobInfo, int], bool]
_CHOICES: dict[str, tuple[str, _Choice]] = {
    "all": ("all", lambda job, uid: not job.state.is_final),
    "mine": ("mine", lambda job, uid: not job.state.is_final and job.uid == uid),
    "running": ("running", lambda job, uid: job.state in _ACTIVE),
    "pending": ("pending", lambda job, uid: job.state is JobState.PENDING),
    "ended": ("ended today", lambda job, uid: job.state.is_final),
    "failed": ("failed today", lambda job, uid: job.state.is_failure),
}
_SORTS: dict[str, tuple[str, str, Callable[[JobInfo], Any]]] = {
    "job": ("Job", "", lambda job: job.id),
    "user": ("User", "", lambda job: job.user),
    "state": ("State", "", lambda job: job.state.word),
    "gpus": ("GPUs", "n", lambda job: job.share or 0),
    "memory": ("GPU memory", "n p2", lambda job: job.memory or 0),
    "time": ("Time", "n", lambda job: job.elapsed),
}


def context(data: QueueData, visit: Visit) -> QueuePage:
    """Return the context of the page."""
    uid, query = visit.viewer.uid, visit.query
    chosen = query.get("show", "all")
    chosen = chosen if chosen in _CHOICES else "all"
    jobs = [*data.look.frame.jobs, *_others(data)]
    search = query.get("q", "")[:_LONGEST]
    matching = [job for job in jobs if _matches(job, search)] if search.strip() else jobs
    picked = [job for job in matching if _CHOICES[chosen][1](job, uid)]
    ordered, sort = _ordered(picked, query.get("sort", ""))
    page = _page(query.get("page", ""), len(ordered))
    shown = ordered[page * ROWS : (page + 1) * ROWS]
    kept = {"show": chosen, "q": search, "sort": sort}
    operator = data.look.about.operator
    rows = [_row(job, data.look, visit, operator) for job in shown]
    return QueuePage(
        filter_links=[
            FilterLink(label, sum(choice(job, uid) for job in matching), _link(kept, show=key), key == chosen)
            for key, (label, choice) in _CHOICES.items()
        ],
        headings=[_heading(key, kept) for key in _SORTS],
        rows=rows,
        search=search,
        hidden=[(name, value) for name, value in kept.items() if name != "q" and value],
        count=len(ordered),
        first=page * ROWS + 1,
        earlier=_link(kept, page=str(page)) if page else "",
        later=_link(kept, page=str(page + 2)) if (page + 1) * ROWS < len(ordered) else "",
        has_changes=any(row.may_change for row in rows),
    )


def _others(data: QueueData) -> list[JobInfo]:
    """Return the jobs that ended today and are no longer in the queue."""
    here = {job.id for job in data.look.frame.jobs}
    return [job for job in data.ended if job.id not in here]


def _matches(job: JobInfo, search: str) -> bool:
    """Tell whether user, name, id, state or reason of a job contain each word of a search."""
    text = " ".join((view.label(job), job.user, job.name, words.state(job).word, job.reason.word)).lower()
    return all(word in text for word in search.lower().split())


def _ordered(jobs: Sequence[JobInfo], sort: str) -> tuple[Sequence[JobInfo], str]:
    """Return jobs in the order that is asked for, and its name; "": the order of the scheduler."""
    name = sort.removeprefix("-")
    if name not in _SORTS:
        return sorted(jobs, key=_scheduler), ""
    return sorted(jobs, key=lambda job: (_SORTS[name][2](job), job.id), reverse=sort.startswith("-")), sort


def _scheduler(job: JobInfo) -> tuple[int, int, float, float, int]:
    """Sort as the scheduler: running jobs, then pending ones by partition and priority, then ended ones."""
    group = 2 if job.state.is_final else 1 if job.state is JobState.PENDING else 0
    ended = -(job.ended_at or 0.0) if group == 2 else 0.0
    place, priority = (job.partition_place, -(job.priority or 0.0)) if group == 1 else (0, 0.0)
    return group, place, priority, ended, job.id


def _page(text: str, count: int) -> int:
    """Return the index of the page that is asked for, not beyond the last one."""
    index = int(text) - 1 if text.isascii() and text.isdecimal() and len(text) < 7 else 0
    return max(0, min(index, (count - 1) // ROWS))


def _link(kept: Mapping[str, str], **changed: str) -> str:
    fields = {name: value for name, value in {**kept, **changed}.items() if value and value != "all"}
    return f"/queue?{urlencode(fields, errors='replace')}" if fields else "/queue"


def _heading(key: str, kept: Mapping[str, str]) -> Heading:
    label, style, _ = _SORTS[key]
    now = kept["sort"]
    following = {key: f"-{key}", f"-{key}": ""}.get(now, key)
    order = {key: "ascending", f"-{key}": "descending"}.get(now, "")
    return Heading(label, _link(kept, sort=following), order, style)


def _row(job: JobInfo, look: HostLook, visit: Visit, is_operator: bool) -> QueueRow:
    is_pending = job.state is JobState.PENDING
    return QueueRow(
        id=view.label(job),
        ref=str(choices.exactly(job)),
        name=job.name,
        user=job.user,
        state=words.state(job),
        gpus=words.gpus(job),
        memory=words.gib(job.memory or None),
        time=words.waits(job, visit.now) if is_pending else words.time_of(job),
        label="waits" if is_pending else "ran" if job.state.is_final else "time",
        where=words.where(job, look.of(job.id), visit.now),
        may_change=may_change(job, visit.viewer, is_operator),
    )
