"""What a dependency such as 'afterok:12:13_4,singleton' says, given how the jobs it names stand.

Terms are joined by ',' (all of them) or by '?' (one of them). A term that has come true is never looked at
again, and one that can come true no more stays so, even if its job should run another time.
"""

import re
from enum import Enum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Job, JobState
from fgsched.domain.text import BadValue, quoted

LAST = 0  # stands for the previous submission of the user
_KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr")
_TARGET = re.compile(r"(last|[0-9]{1,18})(?:_([0-9]{1,6}))?(?:\+([0-9]{1,7}))?")


class Term(Struct, frozen=True, gc=False):
    """One condition: on a job, an array or one task of it; or to be the only one of its name and user."""

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


class Standing(Enum):
    """How far one condition is."""

    MET = "met"
    OPEN = "open"
    NEVER = "never"


class Fact(Struct, frozen=True, gc=False):
    """How a job stands, or all the tasks of an array together."""

    is_over: bool
    has_failed: bool = False  # it, or a task of it, ended otherwise than COMPLETED
    started_at: float | None = None  # when it was started, or the last of the tasks


def fact_of(job: Job) -> Fact:
    """How one job stands."""
    failed = job.state.is_final and job.state is not JobState.COMPLETED
    return Fact(job.state.is_final, failed, job.started_at)


@lru_cache(maxsize=4096)
def parse_dependency(text: str) -> Dependency:
    """What a user typed; BadValue names the part that is not right."""
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
    if not match or match[1].strip("0") == "":
        known = ", ".join((*_KINDS, "singleton"))
        raise BadValue(text, f": {quoted(target)} is neither a job id nor a kind of dependency ({known})")
    if match[3] and kind != "after":
        raise BadValue(text, f": a time such as +{match[3]} is for after: only")
    job = LAST if match[1] == "last" else int(match[1])
    return Term(kind, job, int(match[2]) if match[2] else None, int(match[3] or 0))


def judge(term: Term, fact: Fact, now: float) -> Standing:
    """How far a condition on a job is; the clock matters only to `after` with a time."""
    match term.kind:
        case "after":
            is_met = fact.is_over or due(term, fact) <= now
        case "afterany":
            is_met = fact.is_over
        case "afternotok":
            if fact.is_over and not fact.has_failed:
                return Standing.NEVER
            is_met = fact.is_over
        case _:
            if fact.has_failed:
                return Standing.NEVER
            is_met = fact.is_over
    return Standing.MET if is_met else Standing.OPEN


def due(term: Term, fact: Fact) -> float:
    """When `after` comes true by itself; infinity while its job has not been started."""
    return float("inf") if fact.started_at is None else fact.started_at + term.minutes * 60


def for_task(text: str, task: int) -> str:
    """What is left of an array's dependency for one of its tasks: it corresponds to one task only."""
    if not text:
        return ""
    dependency = parse_dependency(text)
    terms = tuple(
        replace(term, task=task) if term.kind == "aftercorr" and term.task is None else term
        for term in dependency.terms
    )
    return str(replace(dependency, terms=terms))


def left(dependency: Dependency, standings: dict[Term, Standing]) -> Dependency | None:
    """What is left of a dependency; no terms: it is met; None: it never can be."""
    found = [standings[term] for term in dependency.terms]
    still = tuple(term for term in dependency.terms if standings[term] is Standing.OPEN)
    if dependency.one_will_do:
        if Standing.MET in found:
            return Dependency(())
        return Dependency(still, one_will_do=True) if still else None
    return None if Standing.NEVER in found else Dependency(still)
