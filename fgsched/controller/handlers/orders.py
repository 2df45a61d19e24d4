"""What is done to jobs under way: run again, stopped, let go on. An order is durable before it is given."""

from typing import Any

from fgsched.controller import effects
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.verbs import Verbs, named
from fgsched.controller.preemption import go_on, has_room
from fgsched.domain.errors import Refused
from fgsched.domain.job import Job, JobState

_UNDER_WAY = {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED}


class Orders:
    """`answer = orders.operations[name](caller, arguments, now)`, inside the turn's transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._verbs = Verbs(engine)
        self.operations = {
            "requeue": self.requeue,
            "suspend": self.suspend,
            "resume_jobs": self.resume,
        }

    def requeue(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """End jobs that run, and put them back in the queue; held if `hold` says so."""
        hold = bool(arguments.get("hold"))

        def act(caller: Caller, job: Job, now: float) -> dict[str, Any]:
            _must_be_under_way(job)
            held = "" if not hold else "user" if caller.uid == job.uid else "admin"
            asked = self._engine.change(job, now, wish="requeue", held=held)
            self._engine.then(effects.Requeue(asked))
            return {"outcome": "requeued"}

        return self._verbs.each(caller, named(arguments), act, now, meant=_is_under_way)

    def suspend(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Stop jobs, and their clocks; they keep what they hold."""
        caller.must_operate("suspend jobs: what they hold stays taken")

        def act(caller: Caller, job: Job, now: float) -> dict[str, Any]:
            if job.state is not JobState.RUNNING:
                raise Refused(f"job {job.id} is {job.state.value}", "Only running jobs can be suspended.")
            effects.require_supervisor(self._engine, job)
            after = job.advance(JobState.SUSPENDED, suspended_at=now)
            self._engine.step(job, after, now)
            said = {"outcome": "suspended"}
            self._engine.then(effects.Suspend(after, said))
            return said

        return self._verbs.each(
            caller, named(arguments), act, now, meant=lambda job: job.state is JobState.RUNNING
        )

    def resume(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Let suspended jobs go on."""
        caller.must_operate("resume jobs")

        def act(caller: Caller, job: Job, now: float) -> dict[str, Any]:
            if job.state is not JobState.SUSPENDED:
                raise Refused(f"job {job.id} is {job.state.value}", "Only suspended jobs can be resumed.")
            if job.is_suspended_by_preemption and not has_room(self._engine, job, now):
                by = job.preemption.by if job.preemption else 0
                raise Refused(
                    f"job {job.id} made room for job {by}: its part of the GPU is not free",
                    "It goes on by itself once there is room.",
                )
            effects.require_supervisor(self._engine, job)
            said = {"outcome": "resumed"}
            go_on(self._engine, job, now, said)
            return said

        return self._verbs.each(
            caller, named(arguments), act, now, meant=lambda job: job.state is JobState.SUSPENDED
        )


def _is_under_way(job: Job) -> bool:
    return job.state in _UNDER_WAY


def _must_be_under_way(job: Job) -> None:
    if job.state is JobState.PENDING:
        raise Refused(f"job {job.id} is pending already", "fgctl hold keeps it there.")
    if not _is_under_way(job):
        raise Refused(f"job {job.id} is already completing or completed", "Submit it again with fgsub.")
