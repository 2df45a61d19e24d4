"""Read the rows of pending jobs in parts: another thread reads while this one converts, or imports modules.

SQLite aggregates a part into one row. Until the row is there, it does not need the lock of the interpreter.
"""

import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

import msgspec

from fgsched.store.schema import SQL

_MOST = 4096  # rows of a part
SEPARATOR = b"\x1e"  # char(30) of the statement, which no valid request contains
_TICK = 2.0**-22  # seconds: the unit of times in the statement, and the resolution of the clock as a float
Owner = tuple[int, int, str]  # uid, gid, user
FreshRow = tuple[int, Owner, bytes, float]  # id, owner, request as JSON or b"", submitted_at

_numbers = msgspec.json.Decoder(list[int]).decode


class Part(NamedTuple):
    """The row of the statement `fresh_jobs`: columns of some rows. Texts are separated by `SEPARATOR`."""

    last: int
    size: int
    id_list: bytes  # without rows, None as all others
    uids: bytes
    gids: bytes
    users: bytes
    requests: bytes  # empty ones for rows that were changed since the submission or are damaged
    ticks: bytes

    @property
    def ids(self) -> list[int]:
        return _listed(self.id_list) if self.size else []

    @property
    def times(self) -> list[float]:
        """Return the times of submission, in seconds since the epoch."""
        return [one * _TICK for one in _listed(self.ticks)]

    @property
    def owner(self) -> Owner | None:
        """Return the owner of all rows; None if there are several, or no rows."""
        if not self.size:
            return None
        columns = ((self.uids, b","), (self.gids, b","), (self.users, SEPARATOR))
        uid, gid, user = (_only(column, separator, self.size) for column, separator in columns)
        return (int(uid), int(gid), _text(user)) if uid and gid and user is not None else None

    def rows(self) -> Iterable[FreshRow]:
        """Return the rows; without requests if a damaged text contains the separator."""
        if not self.size:
            return []
        ids, uids, gids, times = self.ids, _listed(self.uids), _listed(self.gids), self.times
        users, requests = [*map(_text, self.users.split(SEPARATOR))], self.requests.split(SEPARATOR)
        if any(len(column) != self.size for column in (uids, gids, users, requests, times)):
            return [(one, (0, 0, ""), b"", 0.0) for one in ids]
        return zip(ids, zip(uids, gids, users, strict=True), requests, times, strict=True)


class FreshRows:
    """Reads the rows of the jobs without an end, in order.

    No other thread may use the connection until all parts are taken, or `close` was called.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._parts: SimpleQueue[Part | Exception] = SimpleQueue()
        self._thread: Thread | None = None
        if self._is_long():  # else no thread: its memory would remain
            self._thread = Thread(target=self._read)
            self._thread.start()
        else:
            self._parts.put(self._part(0))

    def _is_long(self) -> bool:
        """Return whether there is more than one part."""
        return bool(self._db.execute(SQL["has_open_jobs"], {"beyond": _MOST - 1}).fetchone())

    def parts(self) -> Iterator[Part]:
        """Yield the parts. Raises sqlite3.Error."""
        try:
            size = _MOST
            while size == _MOST:
                part = self._parts.get()
                if isinstance(part, Exception):
                    raise part
                size = part.size
                yield part
        finally:
            self.close()

    def close(self) -> None:
        """Wait until the other thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _read(self) -> None:
        """Read the parts until one is not full or an error occurs."""
        try:
            with _prompt_switches():
                after, size = 0, _MOST
                while size == _MOST:
                    part = self._part(after)
                    after, size = part.last, part.size
                    self._parts.put(part)
        except Exception as error:
            self._parts.put(error)

    def _part(self, after: int) -> Part:
        cursor = self._db.cursor()
        cursor.row_factory = None
        return Part(*cursor.execute(SQL["fresh_jobs"], {"after": after, "most": _MOST}).fetchone())


@contextmanager
def reading(db: sqlite3.Connection) -> Iterator[FreshRows]:
    """Read the pending jobs, of a long queue in another thread, which has ended at the end of the block."""
    rows = FreshRows(db)
    try:
        yield rows
    finally:
        rows.close()


@contextmanager
def _prompt_switches() -> Iterator[None]:
    """Let a thread wait for the interpreter's lock for 0.2 ms instead of 5 ms, in which a part is read."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _listed(column: bytes) -> list[int]:
    return _numbers(b"[%b]" % column)


@lru_cache(maxsize=8)  # most parts have equal columns of owners
def _only(column: bytes, separator: bytes, size: int) -> bytes | None:
    """Return the only value of a column; None if its values differ."""
    first = column.partition(separator)[0]
    return first if column == separator.join([first] * size) else None


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
