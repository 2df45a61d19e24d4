"""Handle orders to running jobs: requeue, suspend, resume. An order is durable before it is sent."""

from collections.abc import Callable
from typing import Any

from fgsched.controller import effects
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.references import name_of
from fgsched.controller.handlers.verbs import Verbs
from fgsched.controller.preemption import go_on, has_room
from fgsched.domain.errors import Refused
from fgsched.domain.job import Job, JobState
from fgsched.protocol import Call, Outcome, Outcomes, Requeue, ResumeJobs, Suspend

_UNDER_WAY = {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED}


class Orders:
    """The handlers by operation; each is called as handler(caller, call, now) within the transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._verbs = Verbs(engine)
        self.calls: dict[type[Call[Any]], Callable[[Caller, Any, float], Any]] = {
            Requeue: self.requeue,
            Suspend: self.suspend,
            ResumeJobs: self.resume,
        }

    def requeue(self, caller: Caller, call: Requeue, now: float) -> Outcomes:
        """End running jobs and requeue them, held if `hold` is set. Raises Refused."""

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            _must_be_under_way(job)
            held = "" if not call.hold else "user" if caller.uid == job.uid else "admin"
            asked = self._engine.change(job, now, wish="requeue", held=held)
            self._engine.then(effects.Requeue(asked))
            return Outcome(id=name_of(job), outcome="requeued")

        return self._verbs.each(caller, call.ids, act, now, meant=_is_under_way)

    def suspend(self, caller: Caller, call: Suspend, now: float) -> Outcomes:
        """Suspend running jobs and their time limits; they keep their allocations. Raises Refused."""
        caller.must_operate("suspend jobs: what they hold stays taken")

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            if job.state is not JobState.RUNNING:
                raise Refused(f"job {job.id} is {job.state.value}", "Only running jobs can be suspended.")
            effects.require_supervisor(self._engine, job)
            after = job.advance(JobState.SUSPENDED, suspended_at=now)
            self._engine.step(job, after, now)
            said = Outcome(id=name_of(job), outcome="suspended")
            self._engine.then(effects.Suspend(after, said))
            return said

        return self._verbs.each(caller, call.ids, act, now, meant=lambda job: job.state is JobState.RUNNING)

    def resume(self, caller: Caller, call: ResumeJobs, now: float) -> Outcomes:
        """Resume suspended jobs. Raises Refused."""
        caller.must_operate("resume jobs")

        def act(caller: Caller, job: Job, now: float) -> Outcome:
            if job.state is not JobState.SUSPENDED:
                raise Refused(f"job {job.id} is {job.state.value}", "Only suspended jobs can be resumed.")
            if job.is_suspended_by_preemption and not has_room(self._engine, job, now):
                by = job.preemption.by if job.preemption else 0
                raise Refused(
                    f"job {job.id} made room for job {by}: its part of the GPU is not free",
                    "It goes on by itself once there is room.",
                )
            effects.require_supervisor(self._engine, job)
            said = Outcome(id=name_of(job), outcome="resumed")
            go_on(self._engine, job, now, said)
            return said

        return self._verbs.each(caller, call.ids, act, now, meant=lambda job: job.state is JobState.SUSPENDED)


def _is_under_way(job: Job) -> bool:
    return job.state in _UNDER_WAY


def _must_be_under_way(job: Job) -> None:
    if job.state is JobState.PENDING:
        raise Refused(f"job {job.id} is pending already", "fgctl hold keeps it there.")
    if not _is_under_way(job):
        raise Refused(f"job {job.id} is already completing or completed", "Submit it again with fgsub.")
