"""Find the ended jobs that can leave the queue, and delete them after they have been stored elsewhere."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple


class SettledRow(NamedTuple):
    """An ended job."""

    id: int
    ended_at: float  # epoch seconds
    array: int  # 0: none
    task: int | None


class Settled:
    """Ended rows. All writes require an open transaction of the store."""

    def __init__(
        self, db: sqlite3.Connection, statements: Mapping[str, str], many_pages: Callable[[], None]
    ) -> None:
        """`many_pages()` is called before deletions, which change many pages with few rows."""
        self._db, self._sql, self._many_pages = db, statements, many_pages

    def after(self, place: tuple[float, int], before: float, most: int) -> list[SettledRow]:
        """Return up to `most` jobs that ended until `before` (epoch seconds), in the order of (end, id).

        The first one follows `place`, an (end, id).
        """
        values = {"at": place[0], "id": place[1], "before": before, "most": most}
        rows = self._db.execute(self._sql["settled"], values)
        return [SettledRow(row[0], row[1], row[2] or 0, row[3]) for row in rows]

    def first_end(self) -> float | None:
        """Return the first end of a job in the queue (epoch seconds); None if no job has ended."""
        found = self._db.execute(self._sql["first_end"]).fetchone()["ended_at"]
        return None if found is None else float(found)

    def is_referred_to(self, job_id: int) -> bool:
        """Tell whether other rows refer to this one as the row of their array."""
        return self._db.execute(self._sql["other_row"], {"id": job_id}).fetchone() is not None

    def material(self, job_id: int) -> tuple[str, str]:
        """Return references to the script and the environment of a job; "": it is no longer kept."""
        row = self._db.execute(self._sql["references"], {"id": job_id}).fetchone()
        return row["script"] or "", row["environment"] or ""

    def remove(self, ids: Iterable[int]) -> None:
        """Delete ended jobs with their events. The row of an array follows those of its tasks."""
        self._many_pages()
        for job_id in sorted(ids, reverse=True):
            self._db.execute(self._sql["remove_events"], {"id": job_id})
            self._db.execute(self._sql["remove_job"], {"id": job_id})
