"""Statements that are executed for each job, with values bound by position for speed."""

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

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
