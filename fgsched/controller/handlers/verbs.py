"""What is done to several jobs by name: the rows that each name means, and one outcome for each of them."""

from collections.abc import Callable, Sequence

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.faults import told
from fgsched.controller.handlers.references import References, name_of
from fgsched.domain.errors import FgschedError, OurFault
from fgsched.domain.job import Job
from fgsched.protocol import Outcome, Outcomes, Problem, Reference

Act = Callable[[Caller, Job, float], Outcome]


class Verbs:
    """`verbs.each(caller, names, act, now)`: an error of one does not touch the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._references = References(engine)

    def each(
        self,
        caller: Caller,
        names: Sequence[Reference],
        act: Act,
        now: float,
        *,
        meant: Callable[[Job], bool] = lambda job: True,
    ) -> Outcomes:
        """Act on every row of `names`; of an array named as a whole, on the rows that are `meant`, if any."""
        found: list[Outcome] = []
        for name in dict.fromkeys(names):
            try:
                rows = self._references.own_rows(name, caller.must_own)
            except FgschedError as error:
                found.append(_failed(name, error))
                continue
            chosen = [row for row in rows if meant(row)] if type(name) is int else rows
            found += [self._one(caller, row, act, now) for row in chosen or rows[:1]]
        return Outcomes(jobs=found)

    def _one(self, caller: Caller, row: Job, act: Act, now: float) -> Outcome:
        """What fails unexpectedly for one job is its answer; the turn is repeated without that job."""
        containment = self._engine.containment
        if row.id in containment.blamed:  # nothing of what failed is carried out
            return _failed(name_of(row), OurFault(containment.blamed[row.id]))
        try:
            return act(caller, row, now)
        except FgschedError as error:
            return _failed(name_of(row), error)
        except Exception as error:
            containment.let_pass(error)
            containment.blame(row.id, error)
            return _failed(name_of(row), OurFault(told(error)))


def _failed(name: Reference, error: FgschedError) -> Outcome:
    return Outcome(id=name, error=Problem.of(error))
