"""Why a job waits: each blocker with its figures and its end, and the changes that would start it."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.domain.units import format_indices
from fgsched.domain.waiting import Advice, Blocker, Explanation
from fgsched.protocol import JobInfo
from fgsched.views import choices, wording
from fgsched.views import job as view
from fgsched.web.pages import words
from fgsched.web.reading import HostLook

_MOST_AHEAD = 5  # rows


class BlockerRow(Struct, frozen=True):
    """A blocker, and the event that removes it."""

    reason: str
    text: str
    lifted: str  # such as "when job 7 ends, by 15:15 at the latest"; "": unknown


class ChangeRow(Struct, frozen=True):
    """A change with which the job would start now, and the field of its form."""

    text: str  # such as "--gpus=0.5 instead of 0.75"
    where: str
    label: str  # of the button
    key: str
    value: str
    line: str  # the command that is equivalent


class AheadRow(Struct, frozen=True, kw_only=True):
    """A pending job that is considered before this one."""

    id: str
    ref: str  # in paths
    name: str
    user: str
    gpus: str
    by: str  # expected start


class PendingPart(Struct, frozen=True, kw_only=True):
    """The part of the page of a job that waits."""

    blockers: Sequence[BlockerRow]
    notes: Sequence[str]  # about preemption
    starts: Sequence[str]
    changes: Sequence[ChangeRow]
    ahead: Sequence[AheadRow]
    more_ahead: int
    may_act: bool


def part(explanation: Explanation, job: JobInfo, look: HostLook, *, may_act: bool) -> PendingPart:
    """Return the part of an explanation; `may_act`: the reader may change the job."""
    starts = wording.starts(explanation.start)
    if explanation.start is None and wording.is_in_queue(explanation.reason):
        unknown = wording.unknown_start(
            explanation.blockers, is_behind_too_many=explanation.is_behind_too_many
        )
        starts = [unknown]
    before = ahead(job, look.frame.jobs) if wording.is_in_queue(job.reason) else []
    return PendingPart(
        ahead=[_ahead(other, look) for other in before[:_MOST_AHEAD]],
        more_ahead=max(0, len(before) - _MOST_AHEAD),
        blockers=[_blocker(blocker, explanation) for blocker in explanation.blockers],
        notes=[wording.note(note) for note in explanation.notes],
        starts=starts,
        changes=[_change(advice, explanation) for advice in explanation.advice],
        may_act=may_act,
    )


def ahead(job: JobInfo, jobs: Iterable[JobInfo]) -> list[JobInfo]:
    """Return the pending jobs of the same partition that the scheduler considers before a job."""
    others = [
        other for other in jobs if other.state is JobState.PENDING and wording.is_in_queue(other.reason)
    ]
    same = [other for other in others if other.partition == job.partition and other.id != job.id]
    return sorted((other for other in same if _rank(other) < _rank(job)), key=_rank)


def _rank(job: JobInfo) -> tuple[float, int]:
    return -(job.priority or 0.0), job.id


def _ahead(job: JobInfo, look: HostLook) -> AheadRow:
    return AheadRow(
        id=view.label(job),
        ref=str(choices.exactly(job)),
        name=job.name,
        user=job.user,
        gpus=words.gpus(job),
        by=words.by(look.of(job.id), look.frame.at),
    )


def _blocker(blocker: Blocker, explanation: Explanation) -> BlockerRow:
    reason = blocker.cause.reason.word
    return BlockerRow(
        reason, wording.why(blocker.cause) or reason, wording.remedy(blocker, explanation.called)
    )


def _change(advice: Advice, explanation: Explanation) -> ChangeRow:
    after, before = wording.requested(advice)
    word = wording.update_word(advice)
    key, _, value = word.partition("=")
    is_type = advice.option == "gpu-type"
    where = f"on GPU {format_indices(advice.gpus)}; starts at once" if advice.gpus else "starts at once"
    return ChangeRow(
        "any GPU type" if is_type else f"--{advice.option}={after} instead of {before}",
        where,
        "Use any type" if is_type else f"Use {after}",
        key,
        value,
        f"fgctl update job={explanation.called} {word}",
    )
