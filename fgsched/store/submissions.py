"""Find earlier submissions by their keys, mostly without a query."""

from collections.abc import Mapping

from fgsched.store.connection import Connection, Insert, Statement

_RECENT = 1024  # keys of one user that are in memory
_USERS = 64  # whose keys are in memory


class _Newest:
    """The submissions of one user with the last keys in their order."""

    __slots__ = ("ids", "last_other")

    def __init__(self, last_other: str) -> None:
        self.last_other = last_other  # the last key that is not in `ids`
        self.ids: dict[str, range] = {}  # of the jobs

    def add(self, key: str, ids: range) -> None:
        """Take in a new key, and leave out the first half if there are too many."""
        if key <= self.last_other:
            return
        self.ids[key] = ids
        if len(self.ids) > _RECENT:
            keys = sorted(self.ids)
            self.last_other = keys[_RECENT // 2]
            self.ids = {one: self.ids[one] for one in keys[_RECENT // 2 + 1 :]}


class Submissions:
    """The submissions by user and key. All writes require an open transaction.

    A key that sorts behind all stored keys is new. Commands make keys that begin with the time.
    """

    def __init__(self, db: Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql
        self._find, self._add = Statement(sql["find_submission"]), Insert(sql["add_submission"])
        self._newest: dict[int, _Newest] = {}

    def find(self, uid: int, key: str) -> range | None:
        """Return the ids of an earlier submission with this key, or None."""
        newest = self._of(uid)
        if key > newest.last_other:
            return newest.ids.get(key)
        row = self._find.do(self._db, {"uid": uid, "key": key}).fetchone()
        return range(row["first"], row["first"] + row["count"]) if row else None

    def _of(self, uid: int) -> _Newest:
        found = self._newest.get(uid)
        if found is None:
            if len(self._newest) >= _USERS:
                self._newest.clear()
            row = self._db.execute(self._sql["last_submission"], {"uid": uid}).fetchone()
            # A damaged key is bytes that are not UTF-8; a key of a request is ASCII and sorts before them.
            found = self._newest[uid] = _Newest(row["key"].decode(errors="surrogateescape"))
        return found

    def add(self, uid: int, key: str, ids: range, now: float) -> None:
        """Store a submission."""
        newest = self._of(uid)
        self._db.defer(self._add, [(uid, key, ids.start, len(ids), now)])
        newest.add(key, ids)

    def forget_old(self, after: tuple[int, str], before: float, most: int) -> tuple[int, str] | None:
        """Delete submissions older than `before` (epoch seconds), from (uid, key) `after` on.

        Return the last place, or None at the end.
        """
        place = {"uid": after[0], "key": after[1], "most": most}
        rows = self._db.execute(self._sql["old_submissions"], place).fetchall()
        self.forget()
        for row in rows:
            if row["at"] < before:
                self._db.execute(self._sql["drop_submission"], {"uid": row["uid"], "key": row["key"]})
        return (rows[-1]["uid"], rows[-1]["key"]) if len(rows) == most else None

    def forget(self) -> None:
        """Drop the cache, after a rollback too."""
        self._newest.clear()
