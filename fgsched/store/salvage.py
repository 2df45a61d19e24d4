"""Read a damaged queue row by row, skipping pages that SQLite cannot read."""

import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fgsched.store.files import PAGE
from fgsched.store.opening import open_queue
from fgsched.store.sql import SQL as QUERIES
from fgsched.store.sql import named, source

SQL = named(source("recover.sql"))
_NUMBERED = ("blob", "job", "card", "event")  # tables whose rows have numbers
_FAILURES = 1_000_000  # ranges that cannot be read, after which the rest of a table is given up
_DEADLINE = 600  # seconds for the program of SQLite's own
Row = dict[str, Any]


class Salvage:
    """A copy of a damaged queue whose tables are read as far as possible."""

    def __init__(self, copy: Path) -> None:
        self._db = _opened(copy)
        self.given_up: list[str] = []  # tables of which a part was not looked for any more

    def close(self) -> None:
        self._db.close()

    def rows(self, table: str, most: int = 0) -> Iterator[Row]:
        """Yield every readable row of a table; `most` is the highest valid row number, 0 for no limit."""
        if not any(name == table for name, _ in self._db.execute(QUERIES["columns"])):
            return
        if table in _NUMBERED:
            yield from self._numbered(table, max(most, self._last(table)))
        else:
            yield from self._keyed(table)

    def commits(self) -> int | None:
        """Return the number of the last commit, or None if it is unreadable or not counted."""
        with suppress(sqlite3.DatabaseError):
            return int(self._db.execute(QUERIES["get_commits"]).fetchone()["count"])
        return None

    def _last(self, table: str) -> int:
        name = {"job": "last_of_jobs", "blob": "last_blob", "event": "last_event"}.get(table, "")
        with suppress(sqlite3.DatabaseError):
            return int(self._db.execute(SQL[name]).fetchone()[0] or 0) if name else 1024
        return 1 << 22

    def _numbered(self, table: str, last: int) -> Iterator[Row]:
        """Read rows by number: a range that cannot be read is divided in halves."""
        ranges, failures = [(0, last)], 0
        while ranges:
            low, high = ranges.pop()
            try:
                for row in self._db.execute(SQL[f"read_{table}"], {"low": low, "high": high}):
                    yield dict(row)
                    low = row[0] + 1
            except sqlite3.DatabaseError:
                failures += 1
                if failures > _FAILURES:
                    self.given_up.append(table)
                    return
                middle = (low + high) // 2
                if low < high:
                    ranges += [(middle + 1, high), (low, middle)]

    def _keyed(self, table: str) -> Iterator[Row]:
        """Read rows by key, from both ends as far as possible."""
        seen: set[tuple[Any, ...]] = set()
        for name in (f"read_{table}", f"read_{table}_backwards"):
            try:
                for row in self._db.execute(SQL[name]):
                    if tuple(row) not in seen:
                        seen.add(tuple(row))
                        yield dict(row)
                return
            except sqlite3.DatabaseError:
                continue
        self.given_up.append(table)


def _opened(copy: Path) -> sqlite3.Connection:
    """Open the copy; if its schema is unreadable, use that of a new queue or sqlite3's .recover."""
    try:
        return _connected(copy)
    except sqlite3.DatabaseError:
        for attempt in (_with_new_schema, _looked_through):
            with suppress(sqlite3.DatabaseError, OSError):
                return _connected(attempt(copy))
        raise


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.text_factory = lambda data: data.decode(errors="backslashreplace")
    try:
        db.execute(QUERIES["columns"]).fetchall()
    except sqlite3.DatabaseError:
        db.close()
        raise
    return db


def _with_new_schema(copy: Path) -> Path:
    """Replace the first page, which lists the tables and is equal in all queues of this version."""
    new, again = copy.with_name("template") / "queue.db", copy.with_name("again.db")
    open_queue(new).close()
    shutil.copyfile(copy, again)
    with suppress(FileNotFoundError):
        shutil.copyfile(f"{copy}-wal", f"{again}-wal")
    with again.open("r+b") as file:
        file.write(new.read_bytes()[:PAGE])
        size = file.seek(0, 2) // PAGE
        file.seek(28)
        file.write(struct.pack(">3I", size, 0, 0))  # pages, and no list of free ones
    return again


def _looked_through(copy: Path) -> Path:
    again = copy.with_name("looked-through.db")
    if not _recovered(copy, again):
        raise sqlite3.DatabaseError("nothing was found")
    return again


def _recovered(copy: Path, again: Path) -> bool:
    """Run sqlite3's .recover on all pages; return whether it succeeded."""
    program = shutil.which("sqlite3", path="/usr/local/bin:/usr/bin:/bin")
    if program is None:
        return False
    with (
        subprocess.Popen(
            [program, copy, ".recover"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as reads,
        subprocess.Popen([program, again], stdin=reads.stdout, stderr=subprocess.DEVNULL) as writes,
    ):
        writes.wait(_DEADLINE)
    return again.exists() and again.stat().st_size > 0
