"""What the store keeps besides jobs and cards: who used how much, and texts by name."""

import json
import logging
import sqlite3
from collections.abc import Mapping
from typing import Any

from fgsched.scheduling.fairshare import Owner, Usage

log = logging.getLogger(__name__)


class Metadata:
    """Written inside the transaction that is open."""

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql

    def recall(self, key: str) -> str:
        """A text that was kept under this name; "" if there is none."""
        row = self._db.execute(self._sql["get_meta"], {"key": key}).fetchone()
        return str(row["value"]) if row else ""

    def recall_json(self, key: str, default: Any) -> Any:
        """Return what was kept under this name as JSON; `default` if there is none or it is damaged."""
        text = self.recall(key)
        try:
            value = json.loads(text) if text else default
        except ValueError:
            value = None
        if type(value) is type(default):
            return value
        log.error("%r in the queue cannot be read and is left out: %.200r", key, text)
        return default

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
