"""Rows of an array: one for its pending tasks, and one for each started task."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fgsched.domain.job import Job, JobState
from fgsched.jobs.arrays import bits_from, bits_of
from fgsched.store.rows import JobRecord, past_of


@dataclass(frozen=True, slots=True)
class ArraySum:
    """Totals of the rows of an array."""

    rows: int
    over: int
    completed: int
    started_at: float | None  # when the last of them was, once all were


class Tasks:
    """Rows of arrays. All writes use the open transaction of the store."""

    def __init__(self, db: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._db = db
        self._sql = statements

    def make(
        self, array: Job, task: int, *, is_last: bool, depends: str = "", opened_at: float = 0.0
    ) -> Job | None:
        """Give a pending task its own row; the last task takes the row of the array.

        None if the array is not pending.
        """
        opened_at = max(array.opened_at, opened_at)
        place = {"array": array.id, "task": task, "depends": depends, "opened_at": opened_at}
        made = self._db.execute(self._sql["keep_task" if is_last else "make_task"], place)
        if not made.rowcount:
            return None
        number = array.id if is_last else int(made.lastrowid or 0)
        return replace(array, id=number, task=task, depends=depends, opened_at=opened_at)

    def made(self, array: int) -> list[int]:
        """Return the indices of tasks that have their own rows."""
        return [row["array_task"] for row in self._db.execute(self._sql["tasks_made"], {"array": array})]

    def rest(self, array: Job) -> int:
        """Return the tasks that the row of the array represents, as a bit set."""
        return bits_of(array.request.array) & ~bits_from(self.made(array.id))

    def ended(self, array: int) -> dict[int, bool]:
        """Return {index: completed} of ended tasks."""
        rows = self._db.execute(self._sql["ends_of_array"], {"array": array})
        return {row["array_task"]: row["state"] == JobState.COMPLETED.value for row in rows}

    def get(self, array: int, task: int) -> JobRecord | None:
        row = self._db.execute(self._sql["get_task"], {"array": array, "task": task}).fetchone()
        return past_of(row) if row else None

    def of(self, array: int) -> list[JobRecord]:
        """Return every row of an array; empty if there is no such array."""
        rows = self._db.execute(self._sql["jobs_of_array"], {"array": array})
        return [past_of(row) for row in rows]

    def sum(self, array: int) -> ArraySum:
        row = self._db.execute(self._sql["sum_of_array"], {"array": array}).fetchone()
        return ArraySum(row["count"], int(row["over"]), int(row["completed"]), row["started_at"])

    def last_of(self, uid: int) -> int | None:
        """Return the id of a user's last submission, a job or an array, or None."""
        row = self._db.execute(self._sql["last_of_user"], {"uid": uid}).fetchone()
        return int(row["id"]) if row else None
