"""Store scripts and environments once, however many jobs share them."""

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

_LATELY = 20_000  # jobs of which it is remembered what they are to be launched with
_SEEN = 1024  # of which it is remembered that the file has them


class Blobs:
    """Scripts and environments by content, with a cache of the ids of recent ones."""

    def __init__(self, db: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._db = db
        self._find, self._add = statements["find_blob"], statements["add_blob"]
        self._get, self._of_job = statements["get_blob"], statements["get_material"]
        self._seen: dict[bytes, int] = {}  # digest -> id
        self._lately: dict[int, tuple[int, int]] = {}  # job -> its script, its environment
        self._read = lru_cache(maxsize=64)(self._read_anew)

    def put(self, data: bytes) -> int:
        """Store `data` if it is new, and return its id. Requires an open transaction."""
        digest = hashlib.blake2b(data, digest_size=32).digest()
        if digest not in self._seen:
            if len(self._seen) > _SEEN:
                self._seen.clear()
            self._seen[digest] = self._id_of(digest, data)
        return self._seen[digest]

    def _id_of(self, digest: bytes, data: bytes) -> int:
        row = self._db.execute(self._find, {"digest": digest}).fetchone()
        if row is None:
            row = self._db.execute(self._add, {"digest": digest, "data": data}).fetchone()
        return int(row["id"])

    def forget(self) -> None:
        """Drop cached ids after a rollback."""
        self._seen.clear()
        self._lately.clear()

    def pruned(self) -> None:
        """Drop cached ids after blobs were deleted."""
        self._seen.clear()
        self._read.cache_clear()

    def id_of(self, data: bytes) -> int | None:
        """Return the id of `data`, or None if it is not stored."""
        digest = hashlib.blake2b(data, digest_size=32).digest()
        row = self._db.execute(self._find, {"digest": digest}).fetchone()
        return None if row is None else int(row["id"])

    def submitted(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Cache the blobs of new jobs, which are usually launched soon."""
        if len(self._lately) > _LATELY:
            self._lately.clear()
        self._lately.update((row["id"], (row["script"], row["environment"])) for row in rows)

    def of_job(self, job_id: int) -> tuple[bytes, bytes]:
        """Return (script, environment) of a job."""
        found = self._lately.pop(job_id, None)
        script, environment = found or self._db.execute(self._of_job, {"id": job_id}).fetchone()
        return self._read(script), self._read(environment)

    def _read_anew(self, blob: int) -> bytes:
        return bytes(self._db.execute(self._get, {"id": blob}).fetchone()["data"])
