"""Write the unmet conditions of a dependency with their states, as Slurm does: afterok:12(failed)."""

from fgsched.controller.engine import Engine
from fgsched.domain.job import Job, Request
from fgsched.domain.states import Reason
from fgsched.lifecycle.dependencies import ConditionState, Term, judge, parse_dependency
from fgsched.store.store import Unreadable


class UnmetConditions:
    """Writes the dependencies of jobs at one time. A condition of several jobs is examined once."""

    def __init__(self, engine: Engine, now: float) -> None:
        """`now` is in epoch seconds."""
        self._engine, self._now = engine, now
        self._impossible: dict[Term, bool] = {}

    def text(self, job: Job) -> str:
        """Return the unmet conditions of a job, each with its state; "" if there are none."""
        if not job.depends:
            return ""
        dependency = parse_dependency(job.depends)
        may_have_failed = job.reason is Reason.DEPENDENCY_NEVER
        parts = [self._part(term, may_have_failed=may_have_failed) for term in dependency.terms]
        return ("?" if dependency.one_will_do else ",").join(parts)

    def warning(self, request: Request, *, kill_invalid: bool, option: str = "--dependency") -> str:
        """Return a warning about a dependency that can never be met; "" if there is none.

        `kill_invalid`: the site cancels such jobs, unless the request says otherwise. `option`: as typed.
        """
        dependency = parse_dependency(request.dependency)
        impossible = [term for term in dependency.terms if self._is_impossible(term)]
        if not impossible or (dependency.one_will_do and len(impossible) < len(dependency.terms)):
            return ""
        is_cancelled = request.kill_invalid == "yes" or (kill_invalid and not request.kill_invalid)
        warning = "is cancelled" if is_cancelled else "waits until you change it or cancel it"
        terms = ("?" if dependency.one_will_do else ",").join(map(str, impossible))
        return f"{option}={terms} can never be met, because that job has ended otherwise; this job {warning}"

    def _part(self, term: Term, *, may_have_failed: bool) -> str:
        has_failed = may_have_failed and self._is_impossible(term)
        return f"{self._name(term)}({'failed' if has_failed else 'unfulfilled'})"

    def _name(self, term: Term) -> str:
        """Return a condition; one on all tasks of an array is on 12_*."""
        is_array = term.task is None and self._engine.jobtable.arrays.get(term.job) is not None
        return str(term).replace(str(term.job), f"{term.job}_*", 1) if is_array else str(term)

    def _is_impossible(self, term: Term) -> bool:
        if term not in self._impossible:
            self._impossible[term] = self._examined(term)
        return self._impossible[term]

    def _examined(self, term: Term) -> bool:
        if term.kind == "singleton":
            return False
        try:
            fact = self._engine.eligibility.fact(term)
        except Unreadable:  # it has moved to accounts that cannot be read
            return False
        return fact is None or judge(term, fact, self._now) is ConditionState.NEVER
