"""Rows of an array: one for its pending tasks, and one for each started task, here and in the accounts."""

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from fgsched.domain.job import Job
from fgsched.domain.states import JobState
from fgsched.lifecycle.arrays import bits_from, bits_of
from fgsched.store.moved import MovedJobs, NothingMoved
from fgsched.store.rows import ArraySum, JobRecord, past_of

_PAGE = 100  # rows that are read at a time


class Tasks:
    """Rows of arrays. All writes use the open transaction of the store."""

    def __init__(
        self, db: sqlite3.Connection, statements: Mapping[str, str], assigned: Callable[[int], None]
    ) -> None:
        """`assigned(id)` is called when a row has been given a new job id."""
        self._db = db
        self._sql = statements
        self._assigned = assigned
        self.moved: MovedJobs = NothingMoved()

    def make(
        self, array: Job, task: int, *, is_last: bool, depends: str = "", opened_at: float = 0.0
    ) -> Job | None:
        """Give a pending task its own row; the last task takes the row of the array.

        None if the array is not pending.
        """
        opened_at = max(array.opened_at, opened_at)
        place = {"array": array.id, "task": task, "depends": depends, "opened_at": opened_at}
        cursor = self._db.execute(self._sql["keep_task" if is_last else "make_task"], place)
        if not cursor.rowcount:
            return None
        number = array.id if is_last else int(cursor.lastrowid or 0)
        if not is_last:
            self._assigned(number)
        return replace(array, id=number, task=task, depends=depends, opened_at=opened_at)

    def made(self, array: int) -> list[int]:
        """Return the indices of the tasks of an open array that have their own rows."""
        return [row["array_task"] for row in self._db.execute(self._sql["tasks_made"], {"array": array})]

    def rest(self, array: Job) -> int:
        """Return the tasks that the row of the array represents, as a bit set."""
        own = {*self.made(array.id), *self.moved.ended(array.id)}
        return bits_of(array.request.array) & ~bits_from(own)

    def ended(self, array: int) -> dict[int, bool]:
        """Return {index: completed} of ended tasks."""
        rows = self._db.execute(self._sql["ends_of_array"], {"array": array})
        here = {row["array_task"]: row["state"] == JobState.COMPLETED.value for row in rows}
        return self.moved.ended(array) | here

    def get(self, array: int, task: int) -> JobRecord | None:
        row = self._db.execute(self._sql["get_task"], {"array": array, "task": task}).fetchone()
        return past_of(row) if row else self.moved.task(array, task)

    def of(self, array: int) -> list[JobRecord]:
        """Return every row of an array; empty if there is no such array."""
        return [record for part in self.parts(array) for record in part]

    def parts(self, array: int) -> Iterator[list[JobRecord]]:
        """Yield the rows of an array by index, the row of its waiting tasks last: there may be 100,001."""
        after: float = -1
        while after < math.inf:
            place = {"array": array, "after": after, "page": _PAGE}
            rows = self._db.execute(self._sql["tasks_of_array"], place)
            here = {int(row["array_task"]): past_of(row) for row in rows}
            moved = {record.job.task or 0: record for record in self.moved.of_array(array, int(after), _PAGE)}
            after = min((max(page) for page in (here, moved) if len(page) == _PAGE), default=math.inf)
            both = moved | here if moved else here
            yield [record for task, record in sorted(both.items()) if task <= after]
        rest = self._db.execute(self._sql["rest_of_array"], {"array": array}).fetchone()
        yield [past_of(rest)] if rest is not None else self.moved.rest_of(array)

    def sum(self, array: int) -> ArraySum:
        """Return the totals of an array. Raises Unreadable."""
        here, moved = self.sum_of_queue(array), self.moved.sum(array)
        return _added(here, moved) if moved.rows else here

    def sum_of_queue(self, array: int) -> ArraySum:
        """Return the totals of the rows of an array that have not moved."""
        row = self._db.execute(self._sql["sum_of_array"], {"array": array}).fetchone()
        return ArraySum(row["count"], int(row["over"]), int(row["completed"]), row["started_at"])

    def last_of(self, uid: int) -> int | None:
        """Return the id of a user's last submission, a job or an array, or None."""
        row = self._db.execute(self._sql["last_of_user"], {"uid": uid}).fetchone()
        found = [self.moved.last_of(uid), int(row["id"]) if row else None]
        return max((one for one in found if one is not None), default=None)


def _added(here: ArraySum, moved: ArraySum) -> ArraySum:
    """Return the totals of an array of which a part has moved."""
    has_waiting = here.started_at is None and here.over < here.rows
    times = [array_sum.started_at for array_sum in (here, moved) if array_sum.started_at is not None]
    started_at = None if has_waiting else max(times, default=None)
    return ArraySum(
        here.rows + moved.rows, here.over + moved.over, here.completed + moved.completed, started_at
    )
