"""Store each script and environment once, even if jobs share it, and delete the data of ended jobs."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL: 0.6 MiB of memory in the controller
except ImportError:
    from hashlib import blake2b

from fgsched.domain.errors import Refused

_LATELY = 20_000  # jobs whose script and environment are cached
_SEEN = 1024  # of which it is remembered that the file has them


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


class Blobs:
    """Scripts and environments by content, with a cache of the ids of recent ones."""

    def __init__(self, db: sqlite3.Connection, statements: Mapping[str, str]) -> None:
        self._db = db
        self._find, self._add = statements["find_blob"], statements["add_blob"]
        self._get, self._of_job = statements["get_blob"], statements["get_material"]
        self._by_reference = statements["find_reference"]
        self._ids: dict[bytes, int] = {}  # digest -> id
        self._lately: dict[int, tuple[int, int]] = {}  # job -> its script, its environment
        self._read = lru_cache(maxsize=64)(self._read_anew)

    def put(self, data: bytes) -> int:
        """Store `data` if it is new, and return its id. Requires an open transaction."""
        digest = _digest(data)
        if digest not in self._ids:
            if len(self._ids) > _SEEN:
                self._ids.clear()
            self._ids[digest] = self._id_of(digest, data)
        return self._ids[digest]

    def _id_of(self, digest: bytes, data: bytes) -> int:
        row = self._db.execute(self._find, {"digest": digest}).fetchone()
        if row is None:
            row = self._db.execute(self._add, {"digest": digest, "data": data}).fetchone()
        return int(row["id"])

    def forget(self) -> None:
        """Drop cached ids after a rollback."""
        self._ids.clear()
        self._lately.clear()

    def pruned(self) -> None:
        """Drop cached ids after blobs were deleted."""
        self._ids.clear()
        self._read.cache_clear()

    def id_of(self, data: bytes) -> int | None:
        """Return the id of `data`, or None if it is not stored."""
        row = self._db.execute(self._find, {"digest": _digest(data)}).fetchone()
        return None if row is None else int(row["id"])

    def submitted(self, materials: Mapping[int, tuple[int, int]]) -> None:
        """Cache the blobs of new jobs, which are usually launched soon."""
        if len(self._lately) > _LATELY:
            self._lately.clear()
        self._lately.update(materials)

    def of_job(self, job_id: int) -> tuple[bytes, bytes] | None:
        """Return (script, environment) of a job; None if the job is not in the queue.

        Raises:
            Refused: the queue lacks one of them.
        """
        references = (
            self._lately.pop(job_id, None) or self._db.execute(self._of_job, {"id": job_id}).fetchone()
        )
        if references is None:
            return None
        script, environment = references
        return self._read(script), self._read(environment)

    def of_reference(self, reference: str) -> bytes:
        """Return the data of a reference that `Settled.material` made; empty if it is no longer kept."""
        number, _, digest = reference.partition(":")
        row = self._db.execute(self._by_reference, {"id": number, "digest": digest}).fetchone()
        return bytes(row["data"]) if row else b""

    def _read_anew(self, blob: int) -> bytes:
        row = self._db.execute(self._get, {"id": blob}).fetchone()
        if row is None or not isinstance(row["data"], bytes):
            raise Refused(
                "its script or environment is missing from the queue, which was damaged or changed",
                "Submit the job again; fgsched doctor examines the queue.",
            )
        return row["data"]


# -- scripts and environments that only ended jobs use ------------------------


_SLACK = 1_024  # free pages that a file keeps for later use


class Unused(NamedTuple):
    """A script or an environment that only ended jobs use."""

    blob: int
    size: int  # bytes
    ended_at: float  # of the last of these jobs


class Idle:
    """Bookkeeping of unused scripts and environments. All writes require an open transaction of the store."""

    def __init__(
        self,
        db: sqlite3.Connection,
        statements: Mapping[str, str],
        blobs: Blobs,
        many_pages: Callable[[], None],
    ) -> None:
        """`many_pages()` is called before a deletion that changes many pages with few rows."""
        self._db, self._sql, self._blobs, self._many_pages = db, statements, blobs, many_pages
        self.noted = 0  # bytes that were recorded since `beyond` looked

    def note(self, most: int) -> bool:
        """Record the blobs of up to `most` recently ended jobs; return whether more are left."""
        rows = self._db.execute(self._sql["ended_lately"], {"most": most}).fetchall()
        last_uses: dict[int, sqlite3.Row] = {}  # jobs of an array have the same blobs
        for row in rows:
            for blob in (row["script"], row["environment"]):
                if blob not in last_uses or last_uses[blob]["ended_at"] < row["ended_at"]:
                    last_uses[blob] = row
        for blob, row in last_uses.items():
            about = {"blob": blob, "uid": row["uid"], "ended_at": row["ended_at"]}
            self.noted += sum(noted["size"] for noted in self._db.execute(self._sql["note_idle"], about))
        if rows:
            self._db.execute(self._sql["forget_ended"], {"job": rows[-1]["job"]})
        return len(rows) == most

    def since(self, before: float, most: int) -> list[Unused]:
        """Return up to `most` blobs whose last job ended before `before` (epoch seconds), oldest first."""
        rows = self._db.execute(self._sql["idle_since"], {"before": before, "most": most})
        return [Unused(*row) for row in rows]

    def first(self) -> float | None:
        """Return the end of the last job of the oldest blob (epoch seconds), or None if there is none."""
        ended_at = self._db.execute(self._sql["first_idle"]).fetchone()["ended_at"]
        return None if ended_at is None else float(ended_at)

    def beyond(self, size: int, most: int) -> list[Unused]:
        """Return up to `most` oldest blobs of users whose ended jobs use more than `size` bytes."""
        unuseds: list[Unused] = []
        self.noted = 0
        for row in self._db.execute(self._sql["idle_beyond"], {"most": size}).fetchall():
            excess = row["excess"]
            cursor = self._db.execute(self._sql["idle_of_user"], {"uid": row["uid"], "most": most})
            for blob in (Unused(*columns) for columns in cursor):
                if excess <= 0:
                    break
                unuseds.append(blob)
                excess -= blob.size
        return unuseds[:most]

    def prune(self, unused: Iterable[Unused], most: int) -> list[Unused]:
        """Delete blobs until `most` bytes are deleted, and return them. Blobs of open jobs are kept."""
        removed, size = [], 0
        for blob in unused:
            if size >= most:
                break
            if not self._db.execute(self._sql["is_open"], {"blob": blob.blob}).fetchone()["is_open"]:
                self._remove(blob)
                removed.append(blob)
                size += blob.size
            self._db.execute(self._sql["drop_idle"], {"blob": blob.blob})
        if removed:
            self._blobs.pruned()
            self._many_pages()
        return removed

    def _remove(self, blob: Unused) -> None:
        """Delete a blob, and also its row if all jobs that referred to it have left the queue.

        The references are not enforced here: see Store.unenforced.
        """
        first = self._db.execute(self._sql["first_end"]).fetchone()["ended_at"]
        has_left = first is None or first > blob.ended_at
        if not has_left or not self._db.execute(self._sql["remove_blob"], {"blob": blob.blob}).rowcount:
            self._db.execute(self._sql["prune_blob"], {"blob": blob.blob})

    def shrink(self, pages: int) -> bool:
        """Return up to `pages` free pages to the file system; return whether more are left.

        A file created before version 3 of the schema keeps its free pages for reuse.
        """
        free = self._free()
        if free <= _SLACK or self._pragma("auto_vacuum") != 2:
            return False
        self._many_pages()
        for _ in range(min(pages, free - _SLACK)):
            self._db.execute("PRAGMA incremental_vacuum(1)")  # of more, sqlite3 does the first only
        return self._free() > _SLACK

    def _free(self) -> int:
        return self._pragma("freelist_count")

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def has(self, uid: int, data: bytes) -> bool:
        """Tell whether an open job of this user has this script or environment."""
        blob = self._blobs.id_of(data)
        about = {"blob": blob, "uid": uid}
        return blob is not None and bool(
            self._db.execute(self._sql["is_open_of"], about).fetchone()["is_open"]
        )

    def ended_material(self, uid: int) -> int:
        """Return the bytes of the scripts and environments of a user's ended jobs, until they are deleted."""
        return int(self._db.execute(self._sql["ended_material"], {"uid": uid}).fetchone()["size"])

    def open_material(self, uid: int) -> dict[int, int]:
        """Return {blob id: bytes} of the scripts and environments of a user's open jobs."""
        return {
            row["blob"]: row["size"] for row in self._db.execute(self._sql["open_material"], {"uid": uid})
        }
