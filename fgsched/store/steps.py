"""Record the state changes of each job: collected in a transaction, written at its end."""

import sqlite3
from collections.abc import Mapping

from fgsched.domain.job import Job, JobState, Reason
from fgsched.store.statements import Statement

Row = tuple[int, int, float, str, str, str]  # job, attempt, when, from, to, reason


class EventLog:
    """The state changes of the open transaction and of the file."""

    def __init__(self, db: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._db = db
        self._add, self._get = Statement(statements["add_event"]), statements["events_of_job"]
        self._new: list[Row] = []

    def note(self, before: Job, after: Job, now: float) -> None:
        """Record one state change at `now` (epoch seconds).

        If start and end arrive together, the start time is that of the result.
        """
        old = before.state
        if _ran_meanwhile(before, after):
            began = after.started_at or now
            self._new.append((after.id, after.attempt, began, old.word, "RUNNING", Reason.NONE.word))
            old = JobState.RUNNING
        self._new.append((after.id, after.attempt, now, old.word, after.state.word, after.reason.word))

    def write(self) -> None:
        if self._new:
            self._add.do_rows(self._db, self._new)
            self._new.clear()

    def forget(self) -> None:
        """Drop the collected changes after a rollback."""
        self._new.clear()

    def of(self, job_id: int) -> list[tuple[int, float, str, str, str]]:
        """Return (attempt, epoch seconds, from, to, reason) of each state change of a job, in order."""
        return [tuple(row) for row in self._db.execute(self._get, {"job": job_id})]


def _ran_meanwhile(before: Job, after: Job) -> bool:
    is_end = before.state is JobState.STARTING and after.ended is not None
    return is_end and after.started_at != before.started_at and after.reason is not Reason.LAUNCH_FAILURE
