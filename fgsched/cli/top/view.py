"""The choices of the user of fgtop, and the meaning of each key, as pure functions."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fgsched.cli.top.snapshot import Frame
from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from fgsched.views.job import time_left

INTERVALS = (1, 2, 5, 10, 30, 60)  # seconds
SORTS = ("queue", "id", "user", "name", "share", "sm", "memory", "time", "left")
_BIG = float("inf")


class TopUser(Struct, frozen=True):
    """The user of fgtop, and the actions that this user may take."""

    uid: int
    user: str
    is_operator: bool = False
    may_change: bool = True  # False: --read-only


class View(Struct, frozen=True, kw_only=True):
    """The choices of the user: page, filter, order and selected job."""

    width: int = 80
    height: int = 24
    interval: int = 2  # seconds
    ascii: bool = False
    has_detail: bool = True  # on a large screen, lines about the selected job
    selected: int = 0  # job id; 0: the first
    top: int = 0  # index of the first job shown
    gpu_top: int = 0  # index of the first line of GPUs shown
    focus: str = "jobs"  # or "gpus"
    sort: str = "queue"
    reverse: bool = False
    filter: str = ""
    is_typing: bool = False  # a filter
    is_mine: bool = False
    is_paused: bool = False
    panel: str = ""  # "", "help", "job" or "why", shown over the list of jobs
    panel_top: int = 0
    why: tuple[str, ...] = ()
    asking: int = 0  # job whose cancellation is to be confirmed
    message: str = ""


class Action(Struct, frozen=True):
    """An action for the program: "quit", "cancel", "why", "tail", or "" for none."""

    name: str = ""
    job: int = 0


NOTHING = Action()


# -- which jobs, in which order ------------------------------------------------------------------------


def chosen(frame: Frame, view: View, reader: TopUser) -> list[JobInfo]:
    """Return the jobs that pass the filter, in the order of the view."""
    shown = [job for job in frame.jobs if _is_chosen(job, view, reader)]
    shown.sort(key=_queue_order)
    if view.sort != "queue":
        shown.sort(key=_ORDERS[view.sort](frame))
    return shown[::-1] if view.reverse else shown


def _is_chosen(job: JobInfo, view: View, reader: TopUser) -> bool:
    if view.is_mine and job.uid != reader.uid:
        return False
    words = (job.user, job.name, job.state.word, job.state.code, str(job.array or job.id))
    return all(any(part in word.lower() for word in words) for part in view.filter.lower().split())


def _queue_order(job: JobInfo) -> tuple[bool, float, float]:
    is_pending = job.state is JobState.PENDING
    return (is_pending, -(job.priority or 0.0) if is_pending else 0.0, job.id)


def _known(value: float | None) -> float:
    return _BIG if value is None else -value


def _left(job: JobInfo) -> float:
    seconds = time_left(job)
    return _BIG if seconds is None else seconds


_ORDERS: dict[str, Callable[[Frame], Callable[[JobInfo], Any]]] = {
    "id": lambda frame: lambda job: job.id,
    "user": lambda frame: lambda job: job.user,
    "name": lambda frame: lambda job: job.name,
    "share": lambda frame: lambda job: _known(job.share),
    "sm": lambda frame: lambda job: _known(frame.of(job).sm),
    "memory": lambda frame: lambda job: _known(frame.of(job).memory),
    "time": lambda frame: lambda job: -job.elapsed,
    "left": lambda frame: _left,
}


def selected(jobs: Sequence[JobInfo], view: View) -> int:
    """Return the index of the selected job; the first one if it is not shown."""
    return next((at for at, job in enumerate(jobs) if job.id == view.selected), 0)


def scrolled(view: View, jobs: Sequence[JobInfo], rows: int) -> View:
    """Return the view with the selected job in sight, in a list of `rows` rows."""
    at, last = selected(jobs, view), max(0, len(jobs) - rows)
    top = min(max(view.top, at - rows + 1), at, last)
    return replace(view, top=max(0, top), selected=jobs[at].id if jobs else 0)


# -- keys ----------------------------------------------------------------------------------------------


def press(view: View, key: str, jobs: Sequence[JobInfo], reader: TopUser, rows: int) -> tuple[View, Action]:
    """Return the view after a key, and the action that the key calls for.

    `key` is a character, or a name such as "enter", "up" or "page_down". `jobs` are the shown jobs, of which
    `rows` are in sight.
    """
    view = replace(view, message="")
    if view.is_typing:
        return _typed(view, key), NOTHING
    if view.asking:
        return _answered(view, key)
    if view.panel and key in ("escape", "enter", "q", "?", "w"):
        return replace(view, panel="", panel_top=0), NOTHING
    if key in _MOVES:
        return _moved(view, _MOVES[key](rows), jobs), NOTHING
    if key in _CHANGES:
        return _CHANGES[key](view), NOTHING
    return _acted(view, key, jobs, reader)


def _typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, is_typing=False)
    if key == "escape":
        return replace(view, is_typing=False, filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    text = " " if key == "space" else key
    return replace(view, filter=(view.filter + text)[:40]) if len(text) == 1 else view


def _answered(view: View, key: str) -> tuple[View, Action]:
    job, view = view.asking, replace(view, asking=0)
    return (
        (view, Action("cancel", job))
        if key in ("y", "Y")
        else (replace(view, message="not cancelled"), NOTHING)
    )


_MOVES: dict[str, Callable[[int], int]] = {
    "up": lambda rows: -1,
    "down": lambda rows: 1,
    "pageup": lambda rows: -rows,
    "pagedown": lambda rows: rows,
    "home": lambda rows: -(10**9),
    "end": lambda rows: 10**9,
}


def _moved(view: View, step: int, jobs: Sequence[JobInfo]) -> View:
    if view.panel:
        return replace(view, panel_top=max(0, view.panel_top + step))
    if view.focus == "gpus":
        return replace(view, gpu_top=max(0, view.gpu_top + step))
    if not jobs:
        return view
    at = min(max(0, selected(jobs, view) + step), len(jobs) - 1)
    return replace(view, selected=jobs[at].id)


def _interval(view: View, step: int) -> View:
    at = min(range(len(INTERVALS)), key=lambda at_interval: abs(INTERVALS[at_interval] - view.interval))
    return replace(view, interval=INTERVALS[min(max(0, at + step), len(INTERVALS) - 1)])


def _sorted(view: View) -> View:
    sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
    return replace(view, sort=sort, message=f"sorted by {sort}")


_CHANGES: dict[str, Callable[[View], View]] = {
    "?": lambda view: replace(view, panel="help", panel_top=0),
    "/": lambda view: replace(view, is_typing=True, filter=""),
    "escape": lambda view: replace(view, filter="", is_mine=False),
    "u": lambda view: replace(view, is_mine=not view.is_mine),
    "s": _sorted,
    "r": lambda view: replace(view, reverse=not view.reverse),
    "g": lambda view: replace(view, focus="jobs" if view.focus == "gpus" else "gpus"),
    "tab": lambda view: replace(view, focus="jobs" if view.focus == "gpus" else "gpus"),
    "+": lambda view: _interval(view, 1),
    "-": lambda view: _interval(view, -1),
    "space": lambda view: replace(view, is_paused=not view.is_paused),
}


def _acted(view: View, key: str, jobs: Sequence[JobInfo], reader: TopUser) -> tuple[View, Action]:
    if key == "q":
        return view, Action("quit")
    if key not in ("enter", "w", "t", "k") or not jobs:
        return view, NOTHING
    job = jobs[selected(jobs, view)]
    if key == "enter":
        return replace(view, panel="job", panel_top=0), NOTHING
    if key == "w":
        return view, Action("why", job.id)
    if job.uid != reader.uid and not reader.is_operator:
        return replace(view, message=f"job {job.id} belongs to {job.user}"), NOTHING
    if key == "t":
        return view, Action("tail", job.id)
    if not reader.may_change:
        return replace(view, message="read only: jobs cannot be cancelled here"), NOTHING
    return replace(view, asking=job.id), NOTHING
