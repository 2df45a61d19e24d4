"""What the store keeps besides jobs and cards: who used how much, and texts by name."""

import sqlite3
from collections.abc import Mapping

from fgsched.deciding.fairshare import Owner, Usage


class Kept:
    """Written inside the transaction that is open."""

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql

    def recall(self, key: str) -> str:
        """A text that was kept under this name; "" if there is none."""
        row = self._db.execute(self._sql["get_meta"], {"key": key}).fetchone()
        return str(row["value"]) if row else ""

    def remember(self, key: str, value: str) -> None:
        self._db.execute(self._sql["put_meta"], {"key": key, "value": value})

    def usage(self) -> dict[Owner, Usage]:
        """Charged GPU seconds by account and user."""
        rows = self._db.execute(self._sql["all_usage"])
        return {(row["account"], row["user"]): Usage(row["seconds"], row["at"]) for row in rows}

    def put_usage(self, owner: Owner, usage: Usage) -> None:
        account, user = owner
        row = {"account": account, "user": user, "seconds": usage.seconds, "at": usage.at}
        self._db.execute(self._sql["put_usage"], row)
