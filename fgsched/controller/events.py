"""Events that the engine receives, and its interface to processes."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Job
from fgsched.jobs.lifecycle import Seen, Shepherd
from fgsched.jobs.watchdog import Fault
from fgsched.store import Allocation


class Launcher(Protocol):
    """The engine's interface to processes. Every call may be repeated after a crash.

    An order to a job returns whether it was delivered to the job's supervisor: its shepherd, or the spawner
    that inherited the job from a killed shepherd.
    """

    boot: str

    def start(self, job: Job, given: Sequence[Allocation]) -> None:
        """Begin an attempt, leaving a trace that `seize` finds. JobStarted or Failed follows."""

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        """Watch a shepherd. JobEnded follows, immediately if the shepherd has already ended."""

    def has_supervisor(self, job: Job) -> bool:
        """Tell whether the job has a supervisor that accepts orders."""

    def cancel(self, job: Job) -> bool:
        """Make the supervisor end the job."""

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        """Make the supervisor send the job a signal."""

    def suspend(self, job: Job) -> bool:
        """Make the supervisor suspend the job and its time limit."""

    def resume(self, job: Job) -> bool:
        """Make the supervisor resume the job."""

    def relimit(self, job: Job) -> bool:
        """Make the supervisor use the job's current time limit."""

    def requeue(self, job: Job) -> bool:
        """Make the supervisor end the job, with a line about the requeue in its standard error."""

    def preempt(self, job: Job) -> bool:
        """Make the supervisor warn the job and end it after its grace time. Repetition has no effect."""

    def seize(self, job: Job) -> Seen:
        """Return the outcome of the attempt; an unclaimed one can no longer be claimed after this call."""

    def kill_remaining(self, job: Job) -> bool:
        """Kill the remaining processes of a job without shepherd; return whether none is left."""

    def forget(self, job: Job) -> None:
        """Remove the files of an attempt whose end is committed."""

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        """Remove the traces of all attempts except `keep` (job, attempt)."""


class JobStarted(NamedTuple):
    """The spawner has forked the shepherd of an attempt."""

    job: int
    attempt: int
    shepherd: Shepherd


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt could not be started; nothing was executed."""

    job: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class HostShort:
    """An attempt could not be started because the host lacked resources; nothing was executed."""

    job: int
    attempt: int
    why: str


class JobEnded(NamedTuple):
    """The end of a job or of its shepherd."""

    job: int
    attempt: int = 0  # of which this was told; 0: of the one under way


@dataclass(frozen=True, slots=True)
class Faulted:
    """An effect for an attempt raised an unexpected exception; it is unknown what was done."""

    job: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class WatchdogFinding:
    """A finding of the watchdog about an attempt."""

    job: int
    attempt: int
    warn: tuple[Fault, ...]
    end: Fault | None


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that writes.

    `act` is called within the transaction and returns the reply, an effect; `refuse` is called if the
    transaction fails.
    """

    act: Callable[[float], Any]
    refuse: Callable[[FgschedError], None]
    by: str = ""  # the user who sent it


Event = JobStarted | Failed | HostShort | JobEnded | Faulted | WatchdogFinding | ClientRequest


def due_now(begun: Sequence[JobStarted], fresh: Sequence[Event]) -> tuple[list[Event], list[JobStarted]]:
    """Return (events for this turn, starts deferred to the next turn). `begun` are starts deferred before.

    Short jobs usually start and end within two or three turns, and the result of a job tells both at once.
    When jobs end in a turn, new starts are therefore deferred by one turn; otherwise deferring gains nothing.
    """
    over = {(event.job, event.attempt) for event in fresh if type(event) is JobEnded}
    if not over:
        return [*begun, *fresh], []
    new = [event for event in fresh if type(event) is JobStarted and not _is_over(event, over)]
    others = [event for event in fresh if type(event) is not JobStarted]
    return [*(event for event in begun if not _is_over(event, over)), *others], new


def _is_over(begun: JobStarted, over: Container[tuple[int, int]]) -> bool:
    return (begun.job, 0) in over or (begun.job, begun.attempt) in over
