"""Check the conditions of a submission or update: dependencies, begin time, deadline."""

from msgspec.structs import replace

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.domain.errors import NotPermitted, Refused
from fgsched.domain.job import Job, Reason, Request
from fgsched.jobs.arrays import bits_of, lowest
from fgsched.jobs.dependencies import LAST, Term, for_task, parse_dependency
from fgsched.store import NewJob

_LONGEST = 8192  # characters of a dependency


class Conditions:
    """Checks against open and ended jobs."""

    def __init__(self, engine: Engine, *, kill_invalid: bool) -> None:
        self._engine = engine
        self._kill_invalid = "yes" if kill_invalid else "no"

    def settled(self, job: NewJob, caller: Caller, now: float) -> NewJob:
        """Return the job with the values that only the controller knows. Raises Refused."""
        request = job.request
        if request.dependency:
            request = replace(
                request,
                dependency=self.dependency(request, caller),
                kill_invalid=request.kill_invalid or self._kill_invalid,
            )
        check_times(request, now)
        return job if request is job.request else replace(job, request=request)

    def changed(self, job: Job, request: Request, caller: Caller, now: float) -> Job:
        """Return the job after its request was changed. Raises Refused."""
        after = replace(job, request=request)
        if request.dependency != job.request.dependency:
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
            last = self._engine.store.tasks.last_of(caller.uid)
            if last is None:
                raise Refused(
                    "Job dependency problem: you have submitted no job before", "Name one by its id."
                )
            term = replace(term, job=last)
        past = self._engine.store.past(term.job)
        if past is None:
            raise Refused(
                f"Job dependency problem: job {term.job} does not exist", "fgq and fgacct list jobs."
            )
        if past.job.uid != caller.uid and not caller.is_operator:
            raise NotPermitted(
                f"Job dependency problem: job {term.job} belongs to another user",
                "Depend on jobs of your own.",
            )
        _check_tasks(term, past.job, request)
        return term

    def refuse_cycle(self, job: Job, dependency: str) -> None:
        """Refuse a dependency that leads back to the job itself. Raises Refused."""
        goal = job.array or job.id
        path = self._path(dependency, goal)
        if path:
            around = " → ".join(map(str, [goal, *path]))
            raise Refused(f"Job dependency problem: cycle: {around}", "Jobs cannot wait for each other.")

    def _path(self, dependency: str, goal: int) -> list[int]:
        """Return the jobs on the way from a dependency to job `goal`; empty if there is no way."""
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


def _check_tasks(term: Term, target: Job, request: Request) -> None:
    """Refuse a dependency on tasks that are not in the array."""
    there = bits_of(target.request.array) if target.array else 0
    if term.task is not None and not there >> term.task & 1:
        raise Refused(
            f"Job dependency problem: job {term.job} has no task {term.task}", "fgq -j lists its tasks."
        )
    if term.kind == "aftercorr" and term.task is None and request.array and target.array == target.id:
        missing = bits_of(request.array) & ~there
        if missing:
            raise Refused(
                f"Job dependency problem: array {term.job} has no task {lowest(missing)}",
                "With aftercorr each task waits for the one of its own index.",
            )


def check_times(request: Request, now: float) -> None:
    """Refuse a job that could not end before its deadline even if it started at `now`. Raises Refused."""
    if request.deadline and max(now, request.begin) + request.time_limit >= request.deadline:
        raise Refused(
            "the job cannot end before its deadline", "Give a later --deadline, or a shorter --time."
        )
