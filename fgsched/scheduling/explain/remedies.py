"""What would let a waiting job start, in words: what lifts each blocker, and what to ask for instead."""

import math
from collections.abc import Callable, Sequence

from fgsched.domain.job import Reason
from fgsched.domain.times import format_limit, format_time
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.scheduling.explain.advice import Advice, Change
from fgsched.scheduling.explain.blockers import Blocker

_MOST_NAMED = 4  # jobs in one sentence
_BY_ITSELF: dict[Reason, str] = {
    Reason.GPU_DRAINED: "when a card takes jobs again: fgctl resume gpu=N",
    Reason.GPU_EXTERNAL_USE: "when those processes leave the card",
    Reason.GPU_CLEANING: "as soon as they are gone from it",
    Reason.PARTITION_DOWN: "when an operator opens it, or in another partition",
    Reason.PARTITION_INACTIVE: "when an operator opens it, or in another partition",
    Reason.PARTITION_TIME_LIMIT: "with a shorter time limit, or in another partition",
    Reason.ACCOUNT_GPU_MINUTES: "as what was used is forgotten with time, or with a shorter time limit",
    Reason.GPU_MAX_JOBS: "when a job on it ends",
}
_OF_RESERVATIONS = {  # by what is short
    "room": "when that is over, at {}, or with a time limit that ends before it",
    "begin": "at {}",
    "end": "with a time limit that ends before it",
    "gone": "without it: fgctl update job=ID reservation=",
}
_AMOUNTS: dict[str, Callable[[int], str]] = {
    "gpus": format_share,
    "gpu-mem": format_mebibytes,
    "mem": format_mebibytes,
    "time": format_limit,
    "cpus-per-task": str,
}
_KEYS = {"gpu-mem": "gpumem", "time": "timelimit", "cpus-per-task": "cpus"}  # of fgctl update


def _jobs(ids: Sequence[int]) -> str:
    named = format_indices(ids[:_MOST_NAMED]) + (" and others" if len(ids) > _MOST_NAMED else "")
    return f"{'job' if len(ids) == 1 else 'jobs'} {named}"


def lifted(blocker: Blocker) -> str:
    """What lifts a blocker, and when; "" if nobody can say."""
    lift = blocker.lift
    if blocker.short.reason is Reason.RESERVATION:
        when = format_time(lift.at) if lift.at < math.inf else ""
        return _OF_RESERVATIONS[blocker.short.what].format(when)
    if not lift.jobs:
        return _BY_ITSELF.get(blocker.short.reason, "")
    one = len(lift.jobs) == 1
    when = f", by {format_time(lift.at)} at the latest" if lift.at < math.inf else ""
    if lift.is_start:
        return f"once job {lift.jobs[0]} has started there{when}"
    if not when:
        when = f", which {'has' if one else 'have'} no time limit"
    return f"when {_jobs(lift.jobs)} {'ends' if one else 'end'}{when}"


def shown(change: Change) -> tuple[str, str]:
    """(what to ask for, what was asked for)."""
    if change.option == "gpu-type":
        return "any", "one type"
    form = _AMOUNTS[change.option]
    return form(change.after), form(change.before)


def update_word(change: Change) -> str:
    """The change as fgctl update takes it: 'gpus=0.5'."""
    if change.option == "gpu-type":
        return "gputype="
    return f"{_KEYS.get(change.option, change.option)}={shown(change)[0]}"


def advised(advice: Advice) -> str:
    """'--gpus=0.5 instead of 0.75 starts now on GPU 1'."""
    after, before = shown(advice.change)
    cards = [hold.gpu for hold in advice.start.holds]
    where = f" on GPU {format_indices(cards)}" if cards else ""
    if advice.change.option == "gpu-type":
        return f"without a GPU type it starts now{where}"
    return f"--{advice.change.option}={after} instead of {before} starts now{where}"
