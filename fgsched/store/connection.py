"""The connection to the queue file, its prepared statements and its checkpoints."""

import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from fgsched.crash import point
from fgsched.domain.errors import StorageError
from fgsched.domain.text import storable
from fgsched.store import files, wal
from fgsched.store.files import Record, State, Sums
from fgsched.store.schema import SQL


class Connection(sqlite3.Connection):
    """An SQLite connection that stores text outside UTF-8 in the form of `text.storable`.

    Python refuses to bind such text before anything is executed. The statement is then repeated with escaped
    values, so ordinary text costs nothing.

    New rows can be deferred. They are written together before the next statement, so every statement sees
    them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deferred: dict[Insert, list[Sequence[object]]] = {}

    def defer(self, insert: "Insert", rows: Iterable[Sequence[object]]) -> None:
        """Insert these rows before the next statement of the open transaction."""
        self._deferred.setdefault(insert, []).extend(rows)

    def write_deferred(self) -> None:
        """Insert the deferred rows. After an error they remain: the transaction cannot be committed."""
        for insert, rows in self._deferred.items():
            for sql, values in insert.grouped(rows):
                super().execute(sql, values)
        self._deferred.clear()

    def drop_deferred(self) -> None:
        """Forget the deferred rows, before a rollback."""
        self._deferred.clear()

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self._deferred:
            self.write_deferred()
        try:
            return super().execute(sql, parameters)
        except UnicodeEncodeError:
            return super().execute(sql, _clean(parameters))

    def execute_beside(self, sql: str, parameters: Sequence[object], /) -> sqlite3.Cursor:
        """Execute a statement for which deferred rows do not matter; they remain deferred."""
        return super().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        if self._deferred:
            self.write_deferred()
        return super().executemany(sql, rows)


def _clean(parameters: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
    if isinstance(parameters, Mapping):
        return {name: _stored(value) for name, value in parameters.items()}
    return [_stored(value) for value in parameters]


def _stored(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


_FIRST, _MENDED = (3, 7, 0), (3, 51, 3)
_BACKPORTS = {(3, 44): 6, (3, 50): 7}  # (major, minor) -> the first patch that is mended too


def version() -> tuple[int, int, int]:
    return sqlite3.sqlite_version_info


def may_lose_commits(version: tuple[int, int, int]) -> bool:
    """Tell whether this SQLite version can reset the write-ahead log while another connection writes."""
    mended = _BACKPORTS.get(version[:2])
    return _FIRST <= version < _MENDED and (mended is None or version[2] < mended)


_NAME = re.compile(r":(\w+)")


class Statement:
    """A statement with values bound by position.

    Binding by name costs sqlite3 more than the rest of the call. The placeholders have no numbers: early
    releases of Python 3.12 take ?1 for a name and warn, which costs five times the call.
    """

    def __init__(self, text: str) -> None:
        self.text = _NAME.sub("?", text)
        self._values: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*_NAME.findall(text))

    def do(self, db: sqlite3.Connection, row: Mapping[str, Any]) -> sqlite3.Cursor:
        return db.execute(self.text, self._values(row))


_TOGETHER = (16, 4, 1)  # rows of one statement


class Insert:
    """A statement that inserts rows, several at a time: a row alone costs half as much again."""

    def __init__(self, text: str) -> None:
        """`text`: the statement for one row. It ends with the values, which have the order of the columns."""
        self.values: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*_NAME.findall(text))
        head, values, row = _NAME.sub("?", text).rstrip("; \n").partition("VALUES ")
        self._texts = {size: head + values + ", ".join([row] * size) for size in _TOGETHER}

    def grouped(self, rows: Sequence[Sequence[object]]) -> Iterator[tuple[str, Sequence[object]]]:
        """Yield the statements that insert the rows, each with its values."""
        at = 0
        for size, text in self._texts.items():
            while len(rows) - at >= size:
                yield text, [*chain.from_iterable(rows[at : at + size])]
                at += size


# -- the open queue -----------------------------------------------------------


log = logging.getLogger(__name__)
AT_ONCE = 2**14  # pages (64 MiB) that are checked before the queue is opened; the others are checked later
_SLICE = 128  # pages that are checked in one step later
_LONG = 1000  # frames of the write-ahead log at which a checkpoint is made
_TRIES = 3  # checkpoints at a close: if the log was removed, nothing else has its pages afterwards
_CHANGES = 250  # changed rows after which the size of the log is checked


class Opened:
    """One open queue. The controller makes all checkpoints; SQLite makes none before the queue is closed."""

    def __init__(
        self,
        db: Connection,
        record: Record,
        *,
        path: Path | None = None,
        sums: Sums | None = None,
        remedy: str = files.RECOVER,
    ) -> None:
        """`path` and `sums` are None for a queue in memory."""
        self.db, self.record, self._remedy = db, record, remedy
        self._path, self._sums = path, sums
        self._log = path.with_name(f"{path.name}-wal") if path else Path()
        self._looked_at = db.total_changes
        self._is_held = False  # the file is being copied
        self._unchecked = 0  # the first page that is to be checked later; 0: none

    def begin(self, *, holds: bool) -> None:
        """Compute the checksums of the whole file, unless `holds`: the stored checksums are valid."""
        if self._sums is None:
            return
        if not holds:
            self._sum_all()
        elif self._sums.pages > AT_ONCE:
            self.checkpoint()  # the pages in the log were not checked and have old checksums
            self._unchecked = AT_ONCE + 1

    def _sum_all(self) -> None:
        assert self._sums is not None
        try:
            self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._sums.rebuild(self._state(self._sums))
        except (OSError, sqlite3.DatabaseError) as error:
            self._do_without(error)

    def _state(self, sums: Sums) -> State:
        row = self.db.execute(SQL["get_commits"]).fetchone()
        return State(self.record.last.queue, row["count"], row["rows"], sums.changes)

    def committed(self) -> None:
        """Make a checkpoint if the log is long."""
        if self._sums is not None and self.db.total_changes - self._looked_at >= _CHANGES:
            self._looked_at = self.db.total_changes
            if wal.frames(self._log) > _LONG:
                self.checkpoint()

    def look_soon(self) -> None:
        """Check the length of the log after this transaction, which changes many pages."""
        self._looked_at = self.db.total_changes - _CHANGES

    def discard_sums(self) -> None:
        """Discard the checksums, because the log that has pages without checksums was removed."""
        if self._sums is not None:
            self._sums.discard()

    def hold(self, *, hold: bool) -> None:
        """Make a checkpoint, and no further one until the file is released again.

        Raises:
            StorageError: the log cannot be written into the file.
        """
        self._is_held = False
        if hold:
            self._empty_log()
        self._is_held = hold
        self.look_soon()

    def _empty_log(self) -> None:
        try:
            self.checkpoint()
            is_busy, size, written = self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the log of the queue cannot be written into its file: {error}", "Check the disk."
            ) from error
        if is_busy or written != size:
            raise StorageError("the log of the queue cannot be written into its file", "Repeat the command.")

    def checkpoint(self) -> bool:
        """Write all pages of the log into the file; make their checksums durable before the log restarts.

        Return whether the file has them now. Otherwise the log stays as it is, and grows.
        """
        if self._sums is None or self._is_held:
            return True
        pages = wal.pages(self._log)
        point("checkpoint_before")
        try:
            is_busy, size, written = self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.DatabaseError as error:
            log.warning("no checkpoint could be made: %s", error)
            return False
        if is_busy or written != size:
            return False
        if not self._sums.is_there:
            return True
        point("checkpoint_without_sums")
        try:
            self._sums.refresh(pages, self._state(self._sums))
        except (OSError, sqlite3.DatabaseError) as error:
            self._do_without(error)
        point("checkpoint_with_sums")
        return True

    def _do_without(self, error: Exception) -> None:
        """Discard the checksums: wrong ones would refuse an intact queue."""
        assert self._sums is not None
        log.warning("%s cannot be written: %s", self._sums.path, error)
        try:
            self._sums.discard()
        except OSError as again:
            raise StorageError(
                f"{self._sums.path} cannot be removed: {again}", "Check the disk that contains this file."
            ) from again

    # -- the pages that were not checked at the start -----------------------------------------------

    @property
    def is_checking(self) -> bool:
        """Whether pages remain to be checked."""
        return self._unchecked > 0

    def check_some(self) -> None:
        """Check some pages, for a few milliseconds.

        Raises:
            StorageError: a page is damaged.
        """
        sums, first = self._sums, self._unchecked
        if sums is None or not first or not sums.is_there:
            self._unchecked = 0
            return
        last = min(first + _SLICE - 1, sums.pages)
        bad = sums.damaged(first, last, wal.pages(self._log))  # of a checkpoint that failed half-way
        sums.ahead(last + 1, _SLICE)
        self._unchecked = last + 1 if last < sums.pages else 0
        if bad:
            assert self._path is not None
            files.remember_damage(self._path, bad)
            raise files.damage_error(self._path, bad, self._remedy)

    def close(self) -> None:
        with suppress(StorageError):
            any(self.checkpoint() for _ in range(_TRIES))
        self.db.close()
        self.record.close()
        if self._sums is not None:
            self._sums.close()
