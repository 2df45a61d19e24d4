"""The words that several pages share: states, times, amounts."""

import time

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.domain.times import format_time
from fgsched.domain.units import GIBIBYTE, format_indices, format_share
from fgsched.domain.waiting import ExpectedStart
from fgsched.protocol import JobInfo
from fgsched.reports.model import DASH
from fgsched.reports.numbers import duration_text, plain_gibibytes
from fgsched.reports.wording import short_time
from fgsched.views import job as view
from fgsched.views import wording

_MARKS = {  # state -> class of its mark; a failure is F
    JobState.PENDING: "PD",
    JobState.STARTING: "R",
    JobState.RUNNING: "R",
    JobState.SUSPENDED: "S",
    JobState.COMPLETING: "R",
    JobState.COMPLETED: "CD",
    JobState.CANCELLED: "CD",
}
_OOM = {"gpu": "GPU out of memory", "host": "out of memory"}


class StateWord(Struct, frozen=True):
    """A state as a word with a mark."""

    word: str  # in small letters
    mark: str  # class of the mark


def state(job: JobInfo) -> StateWord:
    """Return the state of a job as a word."""
    word = _OOM.get(view.oom_kind(job) or "") or job.state.word.lower().replace("_", " ")
    return StateWord(word, _MARKS.get(job.state, "F"))


def capital(text: str) -> str:
    """Return a text with a capital at its begin."""
    return text[:1].upper() + text[1:]


def title_code(job: JobInfo) -> str:
    """Return the state in a title: Slurm's short form."""
    return job.state.code


def gpus(job: JobInfo) -> str:
    """Return the share of GPUs of a job, as typed: 0.5."""
    return format_share(job.share or 0) if job.gpus and job.share is not None else DASH


def gpus_phrase(job: JobInfo) -> str:
    """Return where a job runs: "half of GPU 6", "GPUs 0-3", "0.25 of GPU 1"; "" without a GPU."""
    indices = job.indices or [part.gpu for part in job.allocated]
    if not indices:
        return ""
    where = f"{'GPU' if len(indices) == 1 else 'GPUs'} {format_indices(indices)}"
    share = view.gpu_share(job)
    if share in (0, 10_000):
        return where
    part = "half" if share == 5000 else format_share(share)
    return f"{part} of {where}"


def gib(size: float | None) -> str:
    """Return bytes as "24 GiB"."""
    return DASH if size is None else f"{plain_gibibytes(size)} GiB"


def used_of(used: float | None, asked: float | None) -> str:
    """Return bytes used of bytes asked: "9.0 of 24 GiB"."""
    if not asked:
        return DASH if used is None else f"{used / GIBIBYTE:.1f} GiB"
    return f"{DASH if used is None else f'{used / GIBIBYTE:.1f}'} of {plain_gibibytes(asked)} GiB"


def span(seconds: float) -> str:
    """Return a duration in at most two units; whole hours have one."""
    return duration_text(seconds).removesuffix(" 00 min").removesuffix(" 0 h")


def waits(job: JobInfo, now: float) -> str:
    """Return how long a pending job has waited since it could have started."""
    return span(max(0.0, now - (job.eligible_at or job.submitted_at)))


def time_of(job: JobInfo) -> str:
    """Return the run time, of the time limit: "1 h 19 min of 2 h"."""
    ran = span(job.elapsed)
    return f"{ran} of {span(job.time_limit)}" if job.time_limit > 0 else ran


def moment(at: float | None, now: float) -> str:
    """Return a time in epoch seconds: "14:23", on another day "Wed 14:23", in another week with its date."""
    if at is None:
        return DASH
    if _day(at) == _day(now):
        return format_time(at, "%H:%M")
    return short_time(at) if abs(at - now) < 6 * 86_400 else format_time(at, "%Y-%m-%d %H:%M")


def _day(at: float) -> tuple[int, int]:
    local = time.localtime(at)
    return local.tm_year, local.tm_yday


def clock(at: float) -> str:
    """Return a time in epoch seconds as "14:23:07"."""
    return format_time(at, "%H:%M:%S")


def by(start: ExpectedStart, now: float) -> str:
    """Return the expected start in a table: "15:15", "not before Wed 14:10"."""
    if start.at is None:
        return DASH
    return moment(start.at, now) if start.latest is not None else f"not before {moment(start.at, now)}"


def starts(start: ExpectedStart, now: float) -> str:
    """Return the expected start in a sentence: "by 15:15, likely 14:40"; "" if it is unknown."""
    if start.at is None:
        return ""
    if start.latest is None:
        return f"not before {moment(start.at, now)}"
    likely = f", likely {moment(start.likely, now)}" if start.likely is not None else ""
    return f"by {moment(start.latest, now)}{likely}"


def why(job: JobInfo) -> str:
    """Return why a job does not run, or the word of its reason."""
    return wording.why(job.cause) or job.reason.word


def where(job: JobInfo, start: ExpectedStart, now: float) -> str:
    """Return where a job runs, why it waits, or how it ended."""
    if job.state is JobState.PENDING:
        when = starts(start, now)
        return f"{why(job)} ({when})" if when else why(job)
    if job.state is JobState.SUSPENDED:
        return why(job)
    if job.state.is_final:
        return f"ended {moment(job.ended_at, now)}"
    return capital(gpus_phrase(job)) or "no GPU"


def is_mine(job: JobInfo, uid: int) -> bool:
    """Tell whether a job is the reader's."""
    return job.uid == uid
