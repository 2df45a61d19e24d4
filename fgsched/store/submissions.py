"""Find earlier submissions by their keys."""

from collections.abc import Mapping

from fgsched.store.connection import Connection, Insert, Statement


class Submissions:
    """The submissions by user and key. All writes require an open transaction."""

    def __init__(self, db: Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql
        self._find, self._add = Statement(sql["find_submission"]), Insert(sql["add_submission"])

    def find(self, uid: int, key: str) -> range | None:
        """Return the ids of an earlier submission with this key, or None."""
        row = self._find.do(self._db, {"uid": uid, "key": key}).fetchone()
        return range(row["first"], row["first"] + row["count"]) if row else None

    def add(self, uid: int, key: str, ids: range, now: float) -> None:
        """Store a submission."""
        self._db.defer(self._add, [(uid, key, ids.start, len(ids), now)])

    def forget_old(self, after: tuple[int, str], before: float, most: int) -> tuple[int, str] | None:
        """Delete submissions older than `before` (epoch seconds), from (uid, key) `after` on.

        Return the last place, or None at the end.
        """
        place = {"uid": after[0], "key": after[1], "most": most}
        rows = self._db.execute(self._sql["old_submissions"], place).fetchall()
        for row in rows:
            if row["at"] < before:
                self._db.execute(self._sql["drop_submission"], {"uid": row["uid"], "key": row["key"]})
        return (rows[-1]["uid"], rows[-1]["key"]) if len(rows) == most else None
