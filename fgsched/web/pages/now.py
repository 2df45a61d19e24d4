"""The first page: the user's jobs, the GPUs to scale, and who starts next."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from fgsched.cli.top.snapshot import Frame
from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from fgsched.reports import numbers
from fgsched.reports.status import Status, next_jobs
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.web.pages import words
from fgsched.web.pages.gpubars import bars, keys, status_of
from fgsched.web.pages.words import StateWord
from fgsched.web.reading import HostLook
from fgsched.web.visit import Visit

_MOST_OWN = 20  # rows of own jobs
_MOST_NEXT = 3


class OwnRow(Struct, frozen=True, kw_only=True):
    """A job of the reader."""

    id: str  # as it is shown
    ref: str  # in paths
    name: str
    state: StateWord
    gpus: str
    memory: str
    time: str
    label: str  # of the time, in a block on a phone
    next: str  # what comes next


class NextRow(Struct, frozen=True, kw_only=True):
    """A pending job that starts next."""

    id: str
    ref: str
    name: str
    user: str
    gpus: str
    by: str
    why: str


class NowPage(Struct, frozen=True, kw_only=True):
    """The context of the page."""

    state: Status
    lede: str
    first: OwnRow | None  # the own job that starts next
    starts: str  # when, as a clause
    title: str  # the states of own jobs, such as "1 R 2 PD"
    counts: str  # sentence about own jobs
    own: Sequence[OwnRow]
    more_own: int
    bars: Sequence[Any]
    keys: Sequence[Any]
    next: Sequence[NextRow]
    more_next: int


def context(look: HostLook, visit: Visit) -> NowPage:
    """Return the context of the page."""
    frame, state = look.frame, status_of(look)
    own = sorted((job for job in frame.jobs if job.uid == visit.viewer.uid), key=_order)
    following = next_jobs(frame.jobs, look.starts)
    first = next((job for job in following if job.uid == visit.viewer.uid), None)
    return NowPage(
        state=state,
        lede=_lede(state),
        first=None if first is None else _own(frame, first, look, visit),
        starts="" if first is None else words.starts(look.of(first.id), visit.now),
        title=_title(own),
        counts=_counts(own),
        own=[_own(frame, job, look, visit) for job in own[:_MOST_OWN]],
        more_own=max(0, len(own) - _MOST_OWN),
        bars=bars(state),
        keys=keys(state),
        next=[_next(job, look, visit) for job in following[:_MOST_NEXT]],
        more_next=max(0, len(following) - _MOST_NEXT),
    )


def _lede(state: Status) -> str:
    running = numbers.counted(state.running, "job runs", "jobs run")
    waiting = numbers.counted(state.waiting, "waits", "wait")
    are = "GPU is" if len(state.gpus) == 1 else "GPUs are"
    return f"{state.charged:.1f} of {len(state.gpus)} {are} charged; {running} and {waiting}."


def _order(job: JobInfo) -> tuple[bool, bool, float, int]:
    """Sort running jobs first, then pending jobs by priority, then ended jobs."""
    return job.state.is_final, job.state is JobState.PENDING, -(job.priority or 0.0), job.id


def _title(own: Sequence[JobInfo]) -> str:
    codes = Counter(job.state.code for job in own if not job.state.is_final)
    return " ".join(f"{count} {code}" for code, count in codes.items())


def _counts(own: Sequence[JobInfo]) -> str:
    running = sum(job.state.holds for job in own)
    waiting = sum(job.state is JobState.PENDING for job in own)
    ended = sum(job.state.is_final for job in own)
    if not own:
        return "You have no job here."
    return (
        f"{numbers.counted(running, 'runs', 'run')}, {numbers.counted(waiting, 'waits', 'wait')}, "
        f"{ended} ended in the last minutes."
    )


def _own(frame: Frame, job: JobInfo, look: HostLook, visit: Visit) -> OwnRow:
    is_pending = job.state is JobState.PENDING
    used = frame.of(job).memory if job.state.holds else None
    return OwnRow(
        id=view.label(job),
        ref=str(choices.exactly(job)),
        name=job.name,
        state=words.state(job),
        gpus=words.gpus(job),
        memory=words.used_of(used, job.memory) if job.state.holds else words.gib(job.memory or None),
        time=words.waits(job, visit.now) if is_pending else words.time_of(job),
        label="waits" if is_pending else "ran" if job.state.is_final else "time",
        next=_comes(job, look, visit.now),
    )


def _comes(job: JobInfo, look: HostLook, now: float) -> str:
    """Return what comes next for a job."""
    if job.state.is_final:
        return words.where(job, look.of(job.id), now)
    if job.state in (JobState.PENDING, JobState.SUSPENDED):
        when = words.starts(look.of(job.id), now)
        return f"{words.why(job)}; starts {when}" if when else words.why(job)
    left = view.time_left(job)
    if left is None:
        return "has no time limit"
    return f"ends by {words.moment(now + left, now)}"


def _next(job: JobInfo, look: HostLook, visit: Visit) -> NextRow:
    return NextRow(
        id=view.label(job),
        ref=str(choices.exactly(job)),
        name=job.name,
        user=job.user,
        gpus=words.gpus(job),
        by=words.by(look.of(job.id), visit.now),
        why=words.why(job),
    )
