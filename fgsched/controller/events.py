"""What the conductor is told, what it asks of the world of processes, and what it leaves to be done."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Job
from fgsched.jobs.lifecycle import Seen, Shepherd
from fgsched.jobs.watchdog import Fault
from fgsched.store import Allocation


class Launcher(Protocol):
    """What the conductor needs of the world of processes. Every call may be made again after a crash.

    An order to a job returns whether it was delivered to the job's supervisor: its shepherd, or the
    spawner that inherited the job from a killed one.
    """

    boot: str

    def start(self, job: Job, given: Sequence[Allocation]) -> None:
        """Begin an attempt; leaves a trace that `seize` finds. Forked or Failed follows."""

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        """Watch a shepherd; Died follows, at once if it is gone."""

    def has_supervisor(self, job: Job) -> bool:
        """Whether the job has a supervisor that can be given an order."""

    def cancel(self, job: Job) -> bool:
        """Have its shepherd end the job."""

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        """Have its shepherd send the job a signal."""

    def suspend(self, job: Job) -> bool:
        """Have its shepherd stop the job, and its clock."""

    def resume(self, job: Job) -> bool:
        """Have its shepherd let it go on."""

    def relimit(self, job: Job) -> bool:
        """Have its shepherd keep to the time limit that the job has now."""

    def requeue(self, job: Job) -> bool:
        """The same as cancel, with another word in the job's errors."""

    def preempt(self, job: Job) -> bool:
        """Have its shepherd warn the job, and end it after its grace. A second order changes nothing."""

    def seize(self, job: Job) -> Seen:
        """What became of the attempt; if nobody claimed it yet, nobody can after this call."""

    def kill_remaining(self, job: Job) -> bool:
        """End what is left of a job whose shepherd is gone; True once nothing is."""

    def forget(self, job: Job) -> None:
        """Remove the traces of an attempt whose end is committed."""

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        """Remove the traces of all attempts but these (job, attempt): their ends are committed."""


class JobStarted(NamedTuple):
    """The spawner has forked the shepherd of an attempt."""

    job: int
    attempt: int
    shepherd: Shepherd


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt could not be begun: nothing ran."""

    job: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class HostShort:
    """An attempt could not be begun, since the host was short of something: nothing ran."""

    job: int
    attempt: int
    why: str


class JobEnded(NamedTuple):
    """A job is over, or its shepherd has ended."""

    job: int
    attempt: int = 0  # of which this was told; 0: of the one under way


@dataclass(frozen=True, slots=True)
class Faulted:
    """An effect for an attempt failed with an unexpected exception: nobody knows what of it was done."""

    job: int
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class WatchdogFinding:
    """The watchdog has seen something wrong with an attempt."""

    job: int
    attempt: int
    warn: tuple[Fault, ...]
    end: Fault | None


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that writes. `act` is called inside the transaction and returns the reply, an effect;
    `refuse` is called if the transaction fails."""

    act: Callable[[float], Any]
    refuse: Callable[[FgschedError], None]
    by: str = ""  # the user who sent it


Event = JobStarted | Failed | HostShort | JobEnded | Faulted | WatchdogFinding | ClientRequest


def due_now(begun: Sequence[JobStarted], fresh: Sequence[Event]) -> tuple[list[Event], list[JobStarted]]:
    """(what the turn has to take in, beginnings that wait for the next one). `begun`: those that waited.

    Short jobs mostly begin and end between two turns or three, and what is left of an attempt tells both
    at once. So where jobs end, those that begin have one more turn for it; where none does, it gains nothing.
    """
    over = {(event.job, event.attempt) for event in fresh if type(event) is JobEnded}
    if not over:
        return [*begun, *fresh], []
    new = [event for event in fresh if type(event) is JobStarted and not _is_over(event, over)]
    others = [event for event in fresh if type(event) is not JobStarted]
    return [*(event for event in begun if not _is_over(event, over)), *others], new


def _is_over(begun: JobStarted, over: Container[tuple[int, int]]) -> bool:
    return (begun.job, 0) in over or (begun.job, begun.attempt) in over
