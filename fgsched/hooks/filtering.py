"""Decide about submissions with the answers of the site's submit filter: JSON in, JSON or a refusal out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from fgsched.domain.errors import BadUsage, FgschedError, Refused
from fgsched.domain.job import Request, read_request
from fgsched.domain.text import clean, read_json, storable
from fgsched.hooks.programs import Ran
from fgsched.protocol import Submit

MOST_OUTPUT = 1 << 20  # bytes of an answer
_LONGEST_TEXT = 1000  # characters of a refusal
_SHOWN = 60  # characters of an answer in the log
_REFUSED = 1  # exit status
_FAILED = "The administrator finds the reason in the log of the controller."
Pair = tuple[int, int]  # places of a request and of a script in a submission


class Unusable(Refused):
    """An answer of the filter that cannot be used; `why` is for the administrator."""

    def __init__(self, fault: str, why: str) -> None:
        super().__init__(f"the submit filter of this site gave an answer that {fault}", _FAILED)
        self.why = why


class Who(Struct, frozen=True, kw_only=True):
    """The submitter, in the question to the filter."""

    user: str
    uid: int
    gid: int
    operator: bool


def pairs_of(call: Submit) -> list[Pair]:
    """Return the different pairs of request and script in a submission. The filter is asked about each."""
    lengths = len(call.requests), len(call.scripts)
    pairs = dict.fromkeys((request, script) for request, script, *_ in call.jobs)
    return [pair for pair in pairs if pair[0] < lengths[0] and pair[1] < lengths[1]]


def question(call: Submit, pair: Pair, caller: Who) -> str:
    """Return the JSON object for the filter's standard input."""
    request: Any = to_builtins(call.requests[pair[0]])
    return json.dumps(
        {"version": 1, **to_builtins(caller), "request": request, "script": call.scripts[pair[1]]}
    )


def judged(request: Request, ran: Ran) -> Request:
    """Return the request as the filter changed it.

    Raises:
        Refused: the filter refuses it, or it failed.
        Unusable: its answer cannot be used.
    """
    if is_refusal(ran):
        raise _refusal(ran.output)
    if ran.problem:
        raise Refused(f"the submit filter of this site {ran.problem}", _FAILED)
    answer = _answer(ran.output)
    if "refuse" in answer:
        raise _refusal(str(answer["refuse"]))
    changes = answer.get("request", {})
    if not isinstance(changes, dict):
        raise Unusable("cannot be used", "request is no JSON object")
    if unknown := answer.keys() - {"request", "version"}:
        raise Unusable("cannot be used", f"{storable(min(unknown))!r} is none of request, refuse, version")
    try:
        return read_request(_merged(to_builtins(request), changes)) if changes else request
    except BadUsage as error:
        raise Unusable("cannot be used", error.cause) from None


def is_refusal(ran: Ran) -> bool:
    """Tell whether the filter refused a request: exit status 1, and a text for the user."""
    return ran.status == _REFUSED and bool(ran.output.strip())


def _answer(text: str) -> Mapping[str, Any]:
    try:
        answer = read_json(text) if text.strip() else {}
    except ValueError as error:
        raise Unusable("is no JSON object", f"{error}; it begins with {text[:_SHOWN]!r}") from None
    if not isinstance(answer, dict):
        raise Unusable("is no JSON object", f"it begins with {text[:_SHOWN]!r}")
    return answer


def _merged(request: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    demand = changes.get("demand")
    whole = {"demand": request.get("demand", {}) | demand} if isinstance(demand, dict) else {}
    return request | changes | whole


def _refusal(text: str) -> Refused:
    shown = clean(" ".join(storable(text[:_LONGEST_TEXT]).split()))
    return Refused(shown or "the submit filter of this site refuses the job", "Change the request.")


def rebuilt(call: Submit, filtered: Sequence[tuple[Pair, Request]]) -> Submit:
    """Return the submission with the changed requests."""
    places = {pair: at for at, (pair, _) in enumerate(filtered)}
    outside = len(filtered)  # refused by the controller as an index outside the list
    jobs = [(places.get((job[0], job[1]), outside), *job[1:]) for job in call.jobs]
    return replace(call, requests=[request for _, request in filtered], jobs=jobs)


def changed_fields(call: Submit, filtered: Sequence[tuple[Pair, Request]]) -> list[str]:
    """Return the names of the fields that the filter changed, in order."""
    fields = set[str]()
    for (place, _), after in filtered:
        before = call.requests[place]
        fields |= {name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    return sorted(fields)


def blamed(call: Submit, pair: Pair, error: FgschedError) -> FgschedError:
    """Return the error with the first job that has the refused pair."""
    error.job = next((at for at, job in enumerate(call.jobs) if (job[0], job[1]) == pair), None)
    return error
