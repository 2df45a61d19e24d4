"""What is done to several jobs by name: the rows that each name means, and one outcome for each of them."""

from collections.abc import Callable
from typing import Any

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.faults import told
from fgsched.controller.handlers.references import References, name_of
from fgsched.domain.errors import BadUsage, FgschedError, OurFault
from fgsched.domain.job import Job

MAX_IDS = 100_000  # in one request: all others wait for it
Act = Callable[[Caller, Job, float], dict[str, Any]]


def named(arguments: dict[str, Any]) -> list[Any]:
    """The names that a request lists, each once."""
    ids = arguments.get("ids")
    if not isinstance(ids, list) or len(ids) > MAX_IDS:
        raise BadUsage(f"ids is not a list of at most {MAX_IDS}")
    try:
        return list(dict.fromkeys(ids))
    except TypeError:
        return ids  # each that cannot be a name is answered so


class Verbs:
    """`verbs.each(caller, names, act, now)`: an error of one does not touch the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._references = References(engine)

    def each(
        self,
        caller: Caller,
        names: list[Any],
        act: Act,
        now: float,
        *,
        meant: Callable[[Job], bool] = lambda job: True,
    ) -> dict[str, Any]:
        """Of an array that is named as a whole only the rows that are `meant` count, if any is."""
        found: list[dict[str, Any]] = []
        for name in names:
            try:
                rows = self._references.own_rows(name, caller.must_own)
            except FgschedError as error:
                found.append(_failed(name, error))
                continue
            chosen = [row for row in rows if meant(row)] if type(name) is int else rows
            found += [self._one(caller, row, act, now) for row in chosen or rows[:1]]
        return {"jobs": found}

    def _one(self, caller: Caller, row: Job, act: Act, now: float) -> dict[str, Any]:
        """What fails unexpectedly for one job is its answer; the turn is repeated without that job."""
        containment = self._engine.containment
        if row.id in containment.blamed:  # nothing of what failed is carried out
            return _failed(name_of(row), OurFault(containment.blamed[row.id]))
        try:
            said = act(caller, row, now)  # what is said may change until it is sent: an order may not arrive
            said["id"] = name_of(row)
            return said
        except FgschedError as error:
            return _failed(name_of(row), error)
        except Exception as error:
            containment.let_pass(error)
            containment.blame(row.id, error)
            return _failed(name_of(row), OurFault(told(error)))


def _failed(name: Any, error: FgschedError) -> dict[str, Any]:
    body = {"exit": int(error.exit_code), "cause": error.cause, "remedy": error.remedy}
    return {"id": name, "error": body}
