"""Store data other than jobs and GPUs: charged usage, and named texts."""

import json
import logging
import sqlite3
from collections.abc import Mapping
from typing import Any

from fgsched.scheduling.fairshare import Owner, Usage

log = logging.getLogger(__name__)


class Metadata:
    """Named texts and charged usage. All writes require an open transaction."""

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql

    def recall(self, key: str) -> str:
        """Return the text stored under this name, or "" if there is none."""
        row = self._db.execute(self._sql["get_meta"], {"key": key}).fetchone()
        return str(row["value"]) if row else ""

    def recall_json(self, key: str, default: Any) -> Any:
        """Return the JSON value stored under this name, or `default` if it is missing or damaged."""
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
        """Return the charged GPU seconds by account and user."""
        rows = self._db.execute(self._sql["all_usage"])
        return {(row["account"], row["user"]): Usage(row["seconds"], row["at"]) for row in rows}

    def put_usage(self, owner: Owner, usage: Usage) -> None:
        account, user = owner
        row = {"account": account, "user": user, "seconds": usage.seconds, "at": usage.at}
        self._db.execute(self._sql["put_usage"], row)
