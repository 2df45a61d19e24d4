"""The steps that each job went, with their times: gathered in a transaction, written at its end."""

import sqlite3
from collections.abc import Mapping

from fgsched.domain.job import Job, JobState, Reason
from fgsched.store.statements import Statement

Row = tuple[int, int, float, str, str, str]  # job, attempt, when, from, to, reason


class EventLog:
    """Those of the open transaction, and what the file has of those before."""

    def __init__(self, db: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._db = db
        self._add, self._get = Statement(statements["add_event"]), statements["events_of_job"]
        self._new: list[Row] = []

    def note(self, before: Job, after: Job, now: float) -> None:
        """One step. A job whose beginning and end were told together ran from when its result says."""
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
        """The transaction is undone."""
        self._new.clear()

    def of(self, job_id: int) -> list[tuple[int, float, str, str, str]]:
        """(attempt, when, from, to, reason) of a job, in order."""
        return [tuple(row) for row in self._db.execute(self._get, {"job": job_id})]


def _ran_meanwhile(before: Job, after: Job) -> bool:
    is_end = before.state is JobState.STARTING and after.ended is not None
    return is_end and after.started_at != before.started_at and after.reason is not Reason.LAUNCH_FAILURE
