"""Evaluate a dependency such as 'afterok:12:13_4,singleton', given the states of the jobs that it names.

Conditions are joined by ',' (all must be met) or by '?' (one must be met). A condition that was met is never
evaluated again. A condition that can no longer be met stays unmet, even if its job is requeued.
"""

from enum import Enum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.errors import Refused
from fgsched.domain.job import Job
from fgsched.domain.states import JobState
from fgsched.domain.text import BadValue, lazy_regex, quoted, shown

LAST = 0  # the previous submission of the user
_KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr")
_TARGET = lazy_regex(r"(last|[0-9]{1,18})(?:_([0-9]{1,6}))?(?:\+([0-9]{1,7}))?")
_TOO_LARGE = lazy_regex(r"[0-9]{19,}(?:[_+][0-9]+)*")  # an id that no job can have


class Term(Struct, frozen=True, gc=False):
    """One condition: on a job, an array or a task; or `singleton`."""

    kind: str  # one of _KINDS, or "singleton"
    job: int = 0
    task: int | None = None
    minutes: int = 0  # of `after`: since its start

    def __str__(self) -> str:
        if self.kind == "singleton":
            return self.kind
        task = "" if self.task is None else f"_{self.task}"
        return f"{self.kind}:{self.job or 'last'}{task}" + (f"+{self.minutes}" if self.minutes else "")


class Dependency(Struct, frozen=True, gc=False):
    terms: tuple[Term, ...]
    one_will_do: bool = False

    def __str__(self) -> str:
        return ("?" if self.one_will_do else ",").join(map(str, self.terms))


class ConditionState(Enum):
    """Whether a condition is met, not yet met, or impossible."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


class TargetState(Struct, frozen=True, gc=False):
    """The state of a job, or the combined state of all tasks of an array."""

    is_over: bool
    has_failed: bool = False  # it, or a task of it, ended otherwise than COMPLETED
    started_at: float | None = None  # when it was started, or the last of the tasks


def target_state(job: Job) -> TargetState:
    """Return the facts about one job that the conditions of a dependency examine."""
    failed = job.state.is_final and job.state is not JobState.COMPLETED
    return TargetState(job.state.is_final, failed, job.started_at)


@lru_cache(maxsize=4096)
def parse_dependency(text: str) -> Dependency:
    """Parse a dependency list. Raises BadValue for the first invalid part, Refused for an impossible id."""
    if "," in text and "?" in text:
        raise BadValue(text, ": ',' (all of them) and '?' (one of them) exclude each other")
    one_will_do = "?" in text
    terms: list[Term] = []
    for part in text.split("?" if one_will_do else ","):
        terms += _terms(part.strip(), text)
    return Dependency(tuple(dict.fromkeys(terms)), one_will_do)


def _terms(part: str, text: str) -> list[Term]:
    kind, *targets = part.split(":")
    if kind == "singleton" and not targets:
        return [Term(kind)]
    if kind not in _KINDS:
        kind, targets = "afterany", [kind, *targets]
    if not targets:
        raise BadValue(text, f": {quoted(part)} names no job")
    return [_term(kind, target, text) for target in targets]


def _term(kind: str, target: str, text: str) -> Term:
    match = _TARGET.fullmatch(target)
    if not match and _TOO_LARGE.fullmatch(target):
        raise Refused(f"Job dependency problem: job {shown(target)} does not exist")
    if not match or match[1].strip("0") == "":
        kinds = ", ".join((*_KINDS, "singleton"))
        raise BadValue(text, f": {quoted(target)} is neither a job id nor a kind of dependency ({kinds})")
    if match[3] and kind != "after":
        raise BadValue(text, f": a time such as +{match[3]} is for after: only")
    job = LAST if match[1] == "last" else int(match[1])
    return Term(kind, job, int(match[2]) if match[2] else None, int(match[3] or 0))


def judge(term: Term, fact: TargetState, now: float) -> ConditionState:
    """Evaluate a condition at `now` (epoch seconds), which matters only for `after` with a delay."""
    match term.kind:
        case "after":
            is_met = fact.is_over or due(term, fact) <= now
        case "afterany":
            is_met = fact.is_over
        case "afternotok":
            if fact.is_over and not fact.has_failed:
                return ConditionState.NEVER
            is_met = fact.is_over
        case _:
            if fact.has_failed:
                return ConditionState.NEVER
            is_met = fact.is_over
    return ConditionState.MET if is_met else ConditionState.OPEN


def due(term: Term, fact: TargetState) -> float:
    """Return the epoch seconds at which `after` with a delay is met; infinity before the job's start."""
    return float("inf") if fact.started_at is None else fact.started_at + term.minutes * 60


def for_task(text: str, task: int) -> str:
    """Return the dependency of one task of an array; aftercorr names only the corresponding task."""
    if not text:
        return ""
    dependency = parse_dependency(text)
    terms = tuple(
        replace(term, task=task) if term.kind == "aftercorr" and term.task is None else term
        for term in dependency.terms
    )
    return str(replace(dependency, terms=terms))


def unmet_part(dependency: Dependency, standings: dict[Term, ConditionState]) -> Dependency | None:
    """Return the unmet part of a dependency: without terms if it is met, None if it is impossible."""
    condition_states = [standings[term] for term in dependency.terms]
    still = tuple(term for term in dependency.terms if standings[term] is ConditionState.OPEN)
    if dependency.one_will_do:
        if ConditionState.MET in condition_states:
            return Dependency(())
        return Dependency(still, one_will_do=True) if still else None
    return None if ConditionState.NEVER in condition_states else Dependency(still)
