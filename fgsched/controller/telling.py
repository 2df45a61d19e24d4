"""Orders to jobs under way, and what is said of one that was not delivered."""

import logging
from collections.abc import Callable
from typing import Any

from fgsched.controller.events import Effect
from fgsched.controller.turning import EngineContext, Telling
from fgsched.domain.errors import Refused
from fgsched.domain.job import Job, JobState

log = logging.getLogger(__name__)
_RUNS = {JobState.RUNNING, JobState.SUSPENDED}  # before that there is no supervisor yet
RETRY = 1.0  # seconds until an order is given again


def must_hear(engine: EngineContext, job: Job) -> None:
    """Refuse an order that nobody can carry out, before anything is written down."""
    if job.state in _RUNS and not engine.launcher.hears(job):
        raise Refused(
            f"job {job.id}: not delivered: the job's supervisor is gone",
            f"What is left of the job is being ended. See: fgctl show job {job.id}",
        )


def tell(host: Telling, job: Job, order: Callable[[], bool], said: dict[str, Any] | None = None) -> Effect:
    """Give an order that is durable. Not delivered, it is given again; `said`, the answer, then tells so."""

    def effect() -> None:
        if (
            is_given(order) or job.state is JobState.STARTING
        ):  # one that starts is told once it has a shepherd
            return
        host.unheard[job.id] = 0.0
        if said is not None:
            _amend(said, job, "The order is kept and given again until the job has heard of it.")

    return effect


def tell_once(job: Job, order: Callable[[], bool], said: dict[str, Any]) -> Effect:
    """Give an order of which nothing is written down, such as a signal."""

    def effect() -> None:
        if not is_given(order):
            _amend(said, job, "Repeat the command.")

    return effect


def is_given(order: Callable[[], bool]) -> bool:
    """Whether an order was delivered. One that fails, for want of descriptors for example, was not."""
    try:
        return order()
    except OSError:
        log.exception("an order to a job could not be given")
        return False


def _amend(said: dict[str, Any], job: Job, remedy: str) -> None:
    """The answer, which is sent after the orders of its turn, becomes an error."""
    error = Refused(f"job {job.id}: not delivered: the job's supervisor cannot be reached", remedy)
    said.pop("outcome", None)
    said["error"] = {"exit": int(error.exit_code), "cause": error.cause, "remedy": error.remedy}
