"""Mails that a transaction makes due, kept in the queue until they are durable in the queue of mails."""

import sqlite3
from collections.abc import Mapping


class Outbox:
    """The texts by name. All writes require an open transaction."""

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql

    def put(self, name: str, text: str) -> None:
        """Keep a text, or replace it."""
        self._db.execute(self._sql["put_meta"], {"key": f"mail:{name}", "value": text})

    def drop(self, name: str) -> None:
        """Delete a text; a missing one is ignored."""
        self._db.execute(self._sql["drop_meta"], {"key": f"mail:{name}"})

    def all(self) -> list[tuple[str, str]]:
        """Return (name, text) of all."""
        rows = self._db.execute(self._sql["mails"])
        return [(row["key"].removeprefix("mail:"), row["value"]) for row in rows]

    def exits(self, array: int) -> tuple[int, int]:
        """Return the lowest and highest exit code of the tasks of an array."""
        row = self._db.execute(self._sql["exits_of_array"], {"array": array}).fetchone()
        return int(row["lowest"] or 0), int(row["highest"] or 0)
