"""Apply an action to several jobs by reference, with one outcome for each."""

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
    """Applies actions; an error of one job does not affect the others."""

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
        """Apply `act` to every row of `names`.

        Of a whole array to the rows for which `meant` is true, if any.
        """
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
        """Apply the action to one row.

        An internal error is its outcome; the turn is repeated without the job.
        """
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
