"""The columns of the table `job`, derived from the fields of `Job` and `Ended`.

Each field of either record is stored. A queue that lacks the column of a new field gets it when it is opened,
with the field's default; schema.sql declares the columns of the first version.
"""

import json
from collections.abc import Callable
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any, get_args

import msgspec
from msgspec import Struct

from fgsched.domain.job import Ended, Job
from fgsched.domain.states import JobState

_NAMES = {"supervisor_lost": "lost", "array": "array_job", "task": "array_task", "preemption": "eviction"}
_ELSEWHERE = {"request", "holds", "ended"}  # fields that are not one column each
_FROM_SUBMISSION = {"id", "uid", "gid", "user", "submitted_at", "array", "task"}
_FROM_START = {"partition", "resources", "slot", "mounts", "cpus"}
OTHERS = ("name", "request", "gpus", "script", "environment", "allocated")  # columns that no field of Job has

Codec = Callable[[Any], Any]


class Column(Struct, frozen=True):
    """One column, and how a value of the field is converted to and from it."""

    name: str
    field: str
    type: str  # of SQL
    default: int | float | str | None  # in the table; None: NULL
    path: str  # of the attribute that is stored: the field, or the word of its enum
    read: Codec | None = None  # stored value -> value of the field; None: they are equal
    write: Codec | None = None  # value at the path -> stored value; None: they are equal


def _columns(record: type[Struct], without: set[str]) -> tuple[Column, ...]:
    return tuple(_column(one) for one in msgspec.structs.fields(record) if one.name not in without)


def _column(field: msgspec.structs.FieldInfo) -> Column:
    kinds = get_args(field.type) if type(field.type).__name__ == "UnionType" else (field.type,)
    kind = next(one for one in kinds if one is not NoneType)
    column_type, read, write = _codec(kind)
    default = None if field.default is msgspec.NODEFAULT else field.default
    path = field.name
    if NoneType in kinds and read is not None:
        empty = "" if issubclass(kind, Struct) else None
        read, write = partial(_read_optional, read), partial(_write_optional, write or _word, empty)
    elif isinstance(default, Enum):
        path, default = f"{path}.word", _word(default)
    if write is not None:
        default = write(default)
    default = int(default) if default is False else default
    return Column(_NAMES.get(field.name, field.name), field.name, column_type, default, path, read, write)


def _codec(kind: Any) -> tuple[str, Codec | None, Codec | None]:
    """Return (type of the column, reader, writer). The readers raise ValueError or TypeError."""
    if kind is int or kind is float or kind is str:
        return {int: "INTEGER", float: "REAL", str: "TEXT"}[kind], None, None
    if kind is bool:
        return "INTEGER", bool, None  # SQLite takes a bool for a number
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "TEXT", kind, None
    if isinstance(kind, type) and issubclass(kind, Struct):
        return "TEXT", partial(_read_record, kind), _write_record
    return "TEXT", partial(_read_tuple, kind), _write_tuple


def _read_optional(read: Codec, value: Any) -> Any:
    return read(value) if value else None


def _write_optional(write: Codec, empty: Any, value: Any) -> Any:
    return empty if value is None else write(value)


def _word(value: Any) -> str:
    return str(value.word)


def _read_record(kind: type[Struct], text: str) -> Struct:
    """Return the record whose fields are a JSON array; the last fields may be missing."""
    values = json.loads(text)
    return msgspec.convert(dict(zip(kind.__struct_fields__, values, strict=False)), kind)


def _write_record(record: Struct) -> str:
    return json.dumps([getattr(record, name) for name in record.__struct_fields__])


def _read_tuple(kind: Any, text: str) -> Any:
    return msgspec.convert(json.loads(text), kind) if text else ()


def _write_tuple(value: tuple[object, ...]) -> str:
    return json.dumps(value) if value else ""


def _or_null(column: Column) -> Column:
    """Return the column of a number that is stored as NULL if it is 0."""
    return msgspec.structs.replace(column, default=None, read=lambda v: v or 0, write=lambda v: v or None)


def _adjusted(column: Column) -> Column:
    if column.field == "array":  # refers to a row
        return _or_null(column)
    if column.field == "status":  # NULL: the job has no end
        return msgspec.structs.replace(column, default=None, read=lambda v: v or 0)
    return column


OF_JOB = tuple(map(_adjusted, _columns(Job, _ELSEWHERE)))
OF_END = tuple(map(_adjusted, _columns(Ended, set())))
SAVED = tuple(one for one in OF_JOB if one.field not in _FROM_SUBMISSION | _FROM_START)  # by each step
COLUMNS = (*OF_JOB, *OF_END)
DEFAULTS: dict[str, int | float | str | None] = {one.name: one.default for one in COLUMNS}


# -- parts of statements -----------------------------------------------------------------------------


def _literal(value: int | float | str | None) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _is_default(column: Column) -> str:
    return (
        f"{column.name} IS NULL" if column.default is None else f"{column.name} = {_literal(column.default)}"
    )


def _cases(states: list[JobState], result: int) -> str:
    return " ".join(f"WHEN '{state.value}' THEN {result}" for state in states)


_ALL = (*(one.name for one in COLUMNS), *OTHERS)
_SUBMITTED = {"id", "uid", "gid", "user", "submitted_at", "partition"}  # differ between new jobs
PARTS = {  # what stands in braces in the *.sql files
    "columns": ", ".join(_ALL),
    "values": ", ".join(f":{name}" for name in _ALL),
    "changes": ", ".join(f"{one.name} = :{one.name}" for one in (*SAVED, *OF_END)),
    "as_submitted": " AND ".join(
        ["allocated = ''", *(_is_default(one) for one in COLUMNS if one.field not in _SUBMITTED)]
    ),
    "any_state": _cases(list(JobState), 1),
    "open_state": _cases([state for state in JobState if not state.is_final], 0),
    "holding_state": _cases([state for state in JobState if state.holds], 0),
}


def definition(column: Column) -> dict[str, str]:
    """Return the parts of the statement that adds a column to an older queue."""
    default = "" if column.default is None else f"NOT NULL DEFAULT {_literal(column.default)}"
    return {"name": column.name, "type": column.type, "default": default}
