"""Check the dependencies and the times of requests, and write the conditions of a job that are not met."""

from collections.abc import Sequence

from msgspec.structs import replace

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.domain.errors import NotPermitted, Refused
from fgsched.domain.job import Job, Request
from fgsched.domain.states import Reason
from fgsched.lifecycle.arrays import bits_of, lowest
from fgsched.lifecycle.dependencies import LAST, ConditionState, Term, for_task, judge, parse_dependency
from fgsched.store import NewJob
from fgsched.store.store import Unreadable

_CONDITIONS = 20_000  # of the dependencies of all jobs in one request
_ALL_CONDITIONS = 200_000  # of a user's pending jobs: each takes about 100 bytes of memory


class Conditions:
    """Checks of a request that depend on open and ended jobs."""

    def __init__(self, engine: Engine, *, kill_invalid: bool) -> None:
        self._engine = engine
        self._kill_invalid = "yes" if kill_invalid else "no"
        self._targets: dict[int, Job | None] = {}  # jobs that were looked up
        # id of a request of several jobs -> the completed one
        self._settled_requests: dict[int, Request] = {}

    def refuse_too_many(self, jobs: Sequence[NewJob], caller: Caller) -> None:
        """Refuse jobs with too many conditions, which are kept in memory. Raises Refused."""
        more = sum([_conditions(job.request) for job in jobs if job.request.dependency])
        if more > _CONDITIONS:
            raise Refused(
                f"Job dependency problem: {more} conditions in one request", f"{_CONDITIONS} is the limit."
            )
        self._refuse_all(more, caller.uid)

    def _refuse_all(self, more: int, uid: int) -> None:
        here = self._engine.jobtable.wait_index.conditions[uid]
        if more and here + more > _ALL_CONDITIONS:
            raise Refused(
                f"Job dependency problem: your pending jobs have {here} conditions, and this adds {more}",
                f"{_ALL_CONDITIONS} is the limit. Depend on a whole array instead of its tasks.",
            )

    def settled(self, job: NewJob, caller: Caller, now: float) -> NewJob:
        """Complete the job with values that the controller determines. Raises Refused."""
        request = self._settled_requests.get(id(job.request))
        if request is None:
            request = self._settled_requests[id(job.request)] = self._completed(job.request, caller, now)
        return job if request is job.request else replace(job, request=request)

    def _completed(self, request: Request, caller: Caller, now: float) -> Request:
        if request.dependency:
            request = replace(
                request,
                dependency=self.dependency(request, caller),
                kill_invalid=request.kill_invalid or self._kill_invalid,
            )
        check_times(request, now)
        return request

    def changed(self, job: Job, request: Request, caller: Caller, now: float) -> Job:
        """Return the job after its request was changed. Raises Refused."""
        after = replace(job, request=request)
        if request.dependency != job.request.dependency:
            self._refuse_all(_conditions(request), job.uid)
            settled = self.dependency(request, caller)
            self.refuse_cycle(job, settled)
            reason = Reason.NONE if job.reason is Reason.DEPENDENCY_NEVER else job.reason
            depends = for_task(settled, job.task) if job.task is not None else settled
            kill = request.kill_invalid or self._kill_invalid
            request = replace(request, dependency=settled, kill_invalid=kill)
            opened_at = now if job.depends and not depends else job.opened_at
            after = replace(job, request=request, depends=depends, reason=reason, opened_at=opened_at)
        if (request.begin, request.deadline) != (job.request.begin, job.request.deadline):
            check_times(request, now)
        return after

    def dependency(self, request: Request, caller: Caller) -> str:
        """Return the dependency with `last` replaced by its job. Raises Refused for an unknown job."""
        if not request.dependency:
            return ""
        dependency = parse_dependency(request.dependency)
        terms = tuple(self._settled(term, caller, request) for term in dependency.terms)
        return str(replace(dependency, terms=terms))

    def _settled(self, term: Term, caller: Caller, request: Request) -> Term:
        if term.kind == "singleton":
            return term
        if term.job == LAST:
            last = self._engine.store.tasks.last_submission_of(caller.uid)
            if last is None:
                raise Refused(
                    "Job dependency problem: you have submitted no job before", "Name one by its id."
                )
            term = replace(term, job=last)
        target = self._target(term.job)
        if target is None or not caller.may_see(target):
            raise Refused(
                f"Job dependency problem: job {term.job} does not exist", "fgq and fgacct list jobs."
            )
        if not caller.owns(target) and not caller.is_operator:
            raise NotPermitted(
                f"Job dependency problem: job {term.job} belongs to another user",
                "Depend on jobs of your own.",
            )
        _check_tasks(term, target, request)
        # a job without tasks has none that correspond: as in Slurm, each task waits for the job itself
        return replace(term, kind="afterok") if term.kind == "aftercorr" and not target.array else term

    def _target(self, job_id: int) -> Job | None:
        if job_id not in self._targets:
            job = self._engine.jobtable.jobs.get(job_id)
            past = self._engine.store.past(job_id) if job is None else None
            self._targets[job_id] = past.job if past is not None else job
        return self._targets[job_id]

    def refuse_cycle(self, job: Job, dependency: str) -> None:
        """Refuse a dependency that leads back to the job itself. Raises Refused."""
        goal = job.array or job.id
        path = self._path(dependency, goal)
        if path:
            around = " → ".join(map(str, [goal, *path]))
            raise Refused(f"Job dependency problem: cycle: {around}", "Jobs cannot wait for each other.")

    def _path(self, dependency: str, goal: int) -> list[int]:
        """Return the chain of dependencies from a job to job `goal`; empty if there is none."""
        seen: set[int] = set()
        stack: list[tuple[str, list[int]]] = [(dependency, [])]
        while stack:
            text, way = stack.pop()
            for term in parse_dependency(text).terms if text else ():
                job = self._engine.jobtable.jobs.get(term.job)
                target = (job.array or job.id) if job else term.job
                if target == goal:
                    return [*way, goal]
                if job is not None and target not in seen:
                    seen.add(target)
                    stack.append((job.depends, [*way, target]))
        return []


def _conditions(request: Request) -> int:
    return len(parse_dependency(request.dependency).terms) if request.dependency else 0


def _check_tasks(term: Term, target: Job, request: Request) -> None:
    """Refuse a dependency on tasks that are not in the array."""
    tasks = bits_of(target.request.array) if target.array else 0
    if term.task is not None and not tasks >> term.task & 1:
        raise Refused(
            f"Job dependency problem: job {term.job} has no task {term.task}", "fgq -j lists its tasks."
        )
    if term.kind == "aftercorr" and term.task is None and request.array and target.array == target.id:
        missing = bits_of(request.array) & ~tasks
        if missing:
            raise Refused(
                f"Job dependency problem: array {term.job} has no task {lowest(missing)}",
                "With aftercorr each task depends on the task with its index.",
            )


def check_times(request: Request, now: float) -> None:
    """Refuse a job that could not end before its deadline even if it started at `now`. Raises Refused."""
    if request.deadline and max(now, request.begin) + request.time_limit >= request.deadline:
        raise Refused(
            "the job cannot end before its deadline", "Give a later --deadline, or a shorter --time."
        )


# -- unmet conditions, as Slurm writes them: afterok:12(failed) ------------------------------------


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
