"""Contain unexpected exceptions: record them, and repeat the turn without the job that caused them."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field

from fgsched.domain.errors import FgschedError, OurFault, StorageError
from fgsched.domain.job import Ended, Job
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import storable
from fgsched.protocol import InternalErrors
from fgsched.store import is_fatal

# -- faults: logged, counted, and reported by `fgsched doctor` -------------------------------------


log = logging.getLogger("fgsched.controller")
_LONGEST_TEXT = 300  # characters of an error's text
_QUIET = 1.0  # seconds within which the same fault of the same part is counted and not logged again


class Faults(Struct):
    """The number of contained exceptions, and the last one."""

    count: int = 0
    text: str = ""
    at: float = 0.0  # seconds since the epoch
    logged_at: float = 0.0

    @contextmanager
    def contained(self, part: str) -> Iterator[None]:
        """Contain an exception of the block: log and count it. Errors of the queue file are raised."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            self.note(part, error)

    def run(self, part: str, act: Callable[[], Any]) -> bool:
        """Call `act`; return False if it raised an unexpected exception."""
        before = self.count
        try:  # without `contained`, whose generator costs more than most of the parts
            act()
        except StorageError:
            raise
        except Exception as error:
            self.note(part, error)
        return self.count == before

    def note(self, part: str, error: Exception) -> str:
        """Count the exception being handled, log its traceback, and return it as one line."""
        text, now = f"{part}: {line_of_error(error)}", time.time()
        if text != self.text or not 0 <= now - self.logged_at < _QUIET:
            self.logged_at = now
            log.error("internal error in %s", part, exc_info=error)
        self.count, self.text, self.at = self.count + 1, text, now
        return line_of_error(error)

    def summary(self) -> InternalErrors:
        """Return the count as `ping` shows it."""
        return InternalErrors(count=self.count, last=self.text[:500], at=self.at or None)


def line_of_error(error: BaseException) -> str:
    """Return an exception as one line that can be stored and shown."""
    text = " ".join(str(error).split())
    return storable(f"{type(error).__name__}: {text}" if text else type(error).__name__)[:_LONGEST_TEXT]


# -- turns without the jobs that fail --------------------------------------------------------------
#
# An unexpected exception while data of one job is processed dooms the turn: the transaction is rolled back,
# the job is blamed, and the turn is repeated without it. The repeated turn first marks the blamed job (see
# `marked`). A job that cannot be marked is set aside: its row is unchanged, its holds stay counted, and the
# next controller tries again. So each repetition settles at least one job, and no job blocks the turn of
# others.


PAUSE = 5.0  # seconds until planning is tried again after it failed for no single job


class Doomed(Exception):
    """Raised to roll back the turn and repeat it without the blamed jobs."""


class Unattributed(Exception):
    """Raised if a turn fails without planning and no single job is the cause; `error` is the exception."""

    def __init__(self, error: Exception) -> None:
        super().__init__(line_of_error(error))
        self.error = error


class Stuck(Exception):
    """Raised if a repeated turn fails although no further job can be excluded."""


class AlreadyMarked(Exception):
    """Raised if a marked job fails again, or its row cannot be changed."""


class Containment(Struct):
    """The jobs that the current turn excludes."""

    faults: Faults
    damaged: dict[int, str] = field(default_factory=dict)  # job -> the columns of its row that cannot be read
    aside: dict[int, str] = field(default_factory=dict)  # job -> why it is left alone until the next start
    blamed: dict[int, str] = field(default_factory=dict)  # job -> what failed, in this turn
    unmarked: dict[int, str] = field(default_factory=dict)  # of these, the jobs that are not marked yet
    refused: dict[int, FgschedError] = field(default_factory=dict)  # id() of a request -> why
    is_doomed: bool = False
    pauses: int = 0  # how often planning was left out for a while

    def begin(self) -> None:
        """Start a new turn."""
        self.blamed.clear()
        self.is_doomed = False

    def begin_round(self, settled: int) -> int:
        """Start a round of the turn; return the number of settled jobs, to pass to the next call.

        Raises:
            Stuck: nothing was settled since the last round, so the turn would never end.
        """
        now_settled = len(self.blamed) + len(self.aside) + len(self.refused) + self.pauses
        if now_settled == settled:
            raise Stuck
        self.unmarked = dict(self.blamed)
        self.is_doomed = False
        return now_settled

    def run(self, job_id: int, act: Callable[[], object]) -> None:
        """Process data of one job. An unexpected exception blames the job and dooms the turn."""
        if job_id in self.blamed:
            return
        try:
            act()
        except Exception as error:
            self.raise_if_of_store(error)
            self.blame(job_id, error)

    def blame(self, job_id: int, error: Exception) -> None:
        self.accuse(job_id, f"internal error: {self.faults.note(f'job {job_id}', error)}")

    def accuse(self, job_id: int, why: str) -> None:
        self.blamed[job_id] = why
        self.is_doomed = True

    def refuse(self, request: object, error: Exception) -> None:
        """Refuse a request that failed because of an internal error, and repeat the turn without it."""
        fault = error if isinstance(error, OurFault) else OurFault(self.faults.note("a request", error))
        self.refused[id(request)] = fault
        self.is_doomed = True

    def damage(self, job: Job, damage: str) -> None:
        """Record unreadable columns of a row. The job is marked in this turn unless it was before.

        Marking repairs some columns only, so the text may differ at the next start.
        """
        why = f"internal error: its row in the queue cannot be read: {damage}"[:_LONGEST_TEXT]
        is_new = self.damaged.get(job.id) != why and job.warning != why
        if is_new and not is_held_for_an_error(job):
            self.blamed[job.id] = why
            log.error("job %d: %s", job.id, why)
        self.damaged[job.id] = why

    def set_aside(self, job_id: int, error: Exception) -> None:
        """Leave out a job that cannot be marked."""
        self.aside[job_id] = self.faults.note(f"job {job_id} is left alone until the next start", error)

    def check(self) -> None:
        """End the round if something failed. Raises Doomed."""
        if self.is_doomed:
            raise Doomed

    @staticmethod
    def raise_if_of_store(error: Exception) -> None:
        """Raise an error again if it concerns the whole store, not one job."""
        if isinstance(error, StorageError) or is_fatal(error):
            raise error


def is_held_for_an_error(job: Job) -> bool:
    """Tell whether a pending job is held because of an internal error."""
    return job.state is JobState.PENDING and bool(job.held) and job.reason is Reason.INTERNAL_ERROR


def marked(job: Job, why: str, now: float, *, lives: bool, status: int, is_dirty: bool) -> Job:
    """Return the job as marked at `now` (epoch seconds) after an error; `status` is in the form of wait(2).

    A pending job is held by the administrator. A job that `lives`, or is completing, continues with a
    warning; if its completion fails again, it ends with its exit code. A job that has ended is FAILED; if it
    `is_dirty`, it keeps its holds until its GPUs list no process of it and its epilog has run.
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
    if is_dirty:
        return failed.changed(state=JobState.COMPLETING, outcome=JobState.FAILED)
    return failed.changed(state=JobState.FAILED, outcome=None, holds=())


def _cleaned_up(job: Job, why: str, now: float) -> Job:
    if job.warning != why:
        return job.changed(warning=why)
    outcome = job.outcome if job.outcome and job.outcome.is_final else JobState.FAILED
    over = {"holds": (), "outcome": None, "ended_at": job.ended_at or now, "reason": Reason.INTERNAL_ERROR}
    return job.changed(state=outcome, **over)
