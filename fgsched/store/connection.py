"""Connect to the queue file, and escape text that UTF-8 cannot represent."""

import sqlite3
from collections.abc import Mapping, Sequence
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
