"""What fails for one job fails for that job alone.

An exception that nobody expected, while something of one job is taken in, dooms the turn: the transaction is
undone, the job is blamed, and the turn is repeated without it. The repeated turn first marks the blamed job
(`containment.marked` says how). A job that cannot even be marked is set aside: its row stays as it is, its
holds stay counted, and the next controller tries it again. So each repetition settles at least one job, and
no job keeps the others from their turn.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fgsched.controller.faults import Faults, told
from fgsched.domain.errors import FgschedError, OurFault, StorageError
from fgsched.domain.job import Ended, Job, JobState, Reason
from fgsched.store import is_fatal

log = logging.getLogger("fgsched.controller")
_LONGEST = 300  # characters of an error's text
PAUSE = 5.0  # seconds until planning is tried again after it failed for no single job


class Doomed(Exception):
    """The turn is to be undone and repeated without the jobs that are blamed."""


class Unattributed(Exception):
    """A turn fails for no single job, planning left out; `error` is what it fails with."""

    def __init__(self, error: Exception) -> None:
        super().__init__(told(error))
        self.error = error


class Stuck(Exception):
    """A turn was repeated, and nothing was found that it can do without."""


class AlreadyMarked(Exception):
    """Something failed again for a job that is marked already, or its row cannot be changed."""


@dataclass(slots=True)
class Containment:
    """Which jobs the turn that is being made has to do without."""

    faults: Faults
    damaged: dict[int, str] = field(default_factory=dict)  # job -> the columns of its row that cannot be read
    aside: dict[int, str] = field(default_factory=dict)  # job -> why it is left alone until the next start
    blamed: dict[int, str] = field(default_factory=dict)  # job -> what failed, in this turn
    unmarked: dict[int, str] = field(default_factory=dict)  # of these, those that are still to be marked
    refused: dict[int, FgschedError] = field(default_factory=dict)  # id() of a request -> why
    is_doomed: bool = False
    pauses: int = 0  # how often planning was left out for a while

    def begin(self) -> None:
        """A new turn."""
        self.blamed.clear()
        self.is_doomed = False

    def begin_round(self, settled: int) -> int:
        """The turn is made, or repeated; returns how much is settled, to be passed the next time.

        Raises Stuck if nothing was settled since the last round: then the turn would never end.
        """
        now_settled = len(self.blamed) + len(self.aside) + len(self.refused) + self.pauses
        if now_settled == settled:
            raise Stuck
        self.unmarked = dict(self.blamed)
        self.is_doomed = False
        return now_settled

    def run(self, job_id: int, act: Callable[[], object]) -> None:
        """Do something for one job. An unexpected exception blames the job and dooms the turn."""
        if job_id in self.blamed:
            return
        try:
            act()
        except Exception as error:
            self.let_pass(error)
            self.blame(job_id, error)

    def blame(self, job_id: int, error: Exception) -> None:
        self.accuse(job_id, f"internal error: {self.faults.note(f'job {job_id}', error)}")

    def accuse(self, job_id: int, why: str) -> None:
        self.blamed[job_id] = why
        self.is_doomed = True

    def refuse(self, request: object, error: Exception) -> None:
        """A request failed for a bug of ours: it is refused, and the turn repeated without it."""
        fault = error if isinstance(error, OurFault) else OurFault(self.faults.note("a request", error))
        self.refused[id(request)] = fault
        self.is_doomed = True

    def damage(self, job: Job, what: str) -> None:
        """Record that columns of a row cannot be read. The job is marked in this turn, unless it is already.

        Marking repairs some columns and not all, so the text may differ at the next start.
        """
        why = f"internal error: its row in the queue cannot be read: {what}"[:_LONGEST]
        is_new = self.damaged.get(job.id) != why and job.warning != why
        if is_new and not is_held_for_an_error(job):
            self.blamed[job.id] = why
            log.error("job %d: %s", job.id, why)
        self.damaged[job.id] = why

    def set_aside(self, job_id: int, error: Exception) -> None:
        """Leave a job alone that cannot even be marked."""
        self.aside[job_id] = self.faults.note(f"job {job_id} is left alone until the next start", error)

    def check(self) -> None:
        """Raise Doomed if something failed."""
        if self.is_doomed:
            raise Doomed

    @staticmethod
    def let_pass(error: Exception) -> None:
        """Raise again what concerns the whole store, not one job."""
        if isinstance(error, StorageError) or is_fatal(error):
            raise error


def is_held_for_an_error(job: Job) -> bool:
    """Return whether a pending job is held because something failed for it."""
    return job.state is JobState.PENDING and bool(job.held) and job.reason is Reason.INTERNAL_ERROR


def marked(job: Job, why: str, now: float, *, lives: bool, status: int, is_sampled: bool) -> Job:
    """Return the job as it stands after something failed for it; `status`: as wait(2) gives it.

    A pending job is held by the administrator. A job that `lives`, or is being cleaned up, goes on with a
    warning; if the cleaning fails again, it is over with the exit code that it had. One that has ended is
    FAILED; it keeps its holds until its cards are clean where cards are sampled.
    """
    if job.state is JobState.PENDING:
        return job.changed(held="admin", reason=Reason.INTERNAL_ERROR, warning=why)
    if lives:
        state = JobState.RUNNING if job.state is JobState.STARTING else job.state
        return job.changed(state=state, warning=why)
    if job.state is JobState.COMPLETING:
        return _cleaned_up(job, why, now)
    failed = job.changed(
        reason=Reason.INTERNAL_ERROR,
        condemned=Reason.INTERNAL_ERROR,
        ended=Ended(status=status, detail=why),
        ended_at=now,
        suspended_at=None,
    )
    if job.holds and is_sampled:
        return failed.changed(state=JobState.COMPLETING, outcome=JobState.FAILED)
    return failed.changed(state=JobState.FAILED, outcome=None, holds=())


def _cleaned_up(job: Job, why: str, now: float) -> Job:
    if job.warning != why:
        return job.changed(warning=why)
    outcome = job.outcome if job.outcome and job.outcome.is_final else JobState.FAILED
    over = {"holds": (), "outcome": None, "ended_at": job.ended_at or now, "reason": Reason.INTERNAL_ERROR}
    return job.changed(state=outcome, **over)
