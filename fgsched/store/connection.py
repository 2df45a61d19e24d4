"""Connect to the queue file, and escape text that UTF-8 cannot represent."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from fgsched.domain.text import storable


class Connection(sqlite3.Connection):
    """An SQLite connection that stores text outside UTF-8 in the form of `text.storable`.

    Python refuses to bind such text before anything is executed. The statement is then repeated with escaped
    values, so ordinary text costs nothing.
    """

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().execute(sql, parameters)
        except UnicodeEncodeError:
            return super().execute(sql, _clean(parameters))


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


_execute = sqlite3.Connection.execute  # past our own: these are executed for each job
_NAME = re.compile(r":(\w+)")


class Statement:
    """A statement with values bound by position.

    Binding by name costs sqlite3 more than the rest of the call.
    """

    def __init__(self, text: str) -> None:
        names = tuple(dict.fromkeys(_NAME.findall(text)))
        self.text = _NAME.sub(lambda found: f"?{names.index(found[1]) + 1}", text)
        self._values: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*names)

    def do(self, db: sqlite3.Connection, row: Mapping[str, Any]) -> sqlite3.Cursor:
        values = self._values(row)
        try:
            return _execute(db, self.text, values)
        except UnicodeEncodeError:
            return db.execute(self.text, values)  # which writes escapes

    def do_all(self, db: sqlite3.Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        db.executemany(self.text, map(self._values, rows))

    def do_rows(self, db: sqlite3.Connection, rows: Iterable[Sequence[object]]) -> None:
        """Execute the statement for rows whose values are already in positional order."""
        db.executemany(self.text, rows)
