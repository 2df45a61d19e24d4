"""Statements that are executed for each job; the others take their values by name, as the file has them."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

_execute = sqlite3.Connection.execute  # past our own: these are executed for each job
_NAME = re.compile(r":(\w+)")


class Statement:
    """One whose values are bound by place: by name, sqlite3 pays more for the names than for the rest."""

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
        """The same, of values that are in the order of their places already."""
        db.executemany(self.text, rows)
