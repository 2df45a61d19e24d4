"""Read the rows of pending jobs in parts, which SQLite aggregates into one row each.

Until that row is there, a thread does not need the lock of the interpreter.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from fgsched.store.schema import SQL

MOST = 4096  # rows of a part
SEPARATOR = b"\x1e"  # char(30) of the statement, which no valid request contains
_TICK = 2.0**-22  # seconds: the unit of times in the statement, and the resolution of the clock as a float
Owner = tuple[int, int, str]  # uid, gid, user
FreshRow = tuple[int, Owner, bytes, float]  # id, owner, request as JSON or b"", submitted_at

_numbers = msgspec.json.Decoder(list[int]).decode


class Part(NamedTuple):
    """The row of the statement `fresh_jobs`: columns of some rows. Texts are separated by `SEPARATOR`."""

    height: int  # number of rows
    id_list: bytes
    uids: bytes
    gids: bytes
    users: bytes
    requests: bytes  # empty ones for rows that were changed since the submission or are damaged
    ticks: bytes

    @property
    def ids(self) -> list[int]:
        return _listed(self.id_list)

    @property
    def times(self) -> list[float]:
        """Return the times of submission, in seconds since the epoch."""
        return [one * _TICK for one in _listed(self.ticks)]

    @property
    def owner(self) -> Owner | None:
        """Return the owner of all rows; None if there are several."""
        columns = ((self.uids, b","), (self.gids, b","), (self.users, SEPARATOR))
        uid, gid, user = (_only(column, separator, self.height) for column, separator in columns)
        return (int(uid), int(gid), _text(user)) if uid and gid and user is not None else None

    def rows(self) -> Iterable[FreshRow]:
        """Return the rows; without requests if a damaged text contains the separator."""
        ids, uids, gids, times = self.ids, _listed(self.uids), _listed(self.gids), self.times
        users, requests = [*map(_text, self.users.split(SEPARATOR))], self.requests.split(SEPARATOR)
        if any(len(column) != self.height for column in (uids, gids, users, requests, times)):
            return [(one, (0, 0, ""), b"", 0.0) for one in ids]
        return zip(ids, zip(uids, gids, users, strict=True), requests, times, strict=True)


class IdRange(NamedTuple):
    """The ids of the rows of a part."""

    after: int
    last: int


def next_span(db: sqlite3.Connection, after: int) -> IdRange | None:
    """Return the ids of the next part; None if no job without an end follows. Raises sqlite3.Error."""
    (last,) = _row(db, "end_of_part", {"after": after, "most": MOST})
    return None if last is None else IdRange(after, last)


def read_part(db: sqlite3.Connection, span: IdRange) -> Part:
    """Return a part. Raises sqlite3.Error."""
    return Part(*_row(db, "fresh_jobs", span._asdict()))


def read_parts(db: sqlite3.Connection) -> Iterator[Part]:
    """Yield all parts. Raises sqlite3.Error."""
    after = 0
    while span := next_span(db, after):
        yield read_part(db, span)
        after = span.last


def _row(db: sqlite3.Connection, statement: str, values: dict[str, int]) -> tuple[Any, ...]:
    cursor = db.cursor()
    cursor.row_factory = None
    found: tuple[Any, ...] = cursor.execute(SQL[statement], values).fetchone()
    return found


def _listed(column: bytes) -> list[int]:
    return _numbers(b"[%b]" % column)


@lru_cache(maxsize=8)  # most parts have equal columns of owners
def _only(column: bytes, separator: bytes, size: int) -> bytes | None:
    """Return the only value of a column; None if its values differ."""
    first = column.partition(separator)[0]
    return first if column == separator.join([first] * size) else None


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
