"""The schema of the queue: columns derived from the fields of a job, statements, migrations and checks.

Each field of `Job` and `Ended` is stored. A queue that lacks the column of a field gets it when it is opened,
with the field's default; schema.sql declares the columns that have rules.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import msgspec
from msgspec import Struct

from fgsched.domain.errors import StorageError
from fgsched.domain.job import Ended, Job
from fgsched.domain.states import JobState
from fgsched.system import disk

# -- columns ------------------------------------------------------------------


_NAMES = {"supervisor_lost": "lost", "array": "array_job", "task": "array_task", "preemption": "eviction"}
_ELSEWHERE = {"request", "holds", "ended"}  # fields that are not one column each
_OF_EACH = {"id", "array", "task"}  # differ between the jobs of a submission
_FROM_SUBMISSION = _OF_EACH | {"uid", "gid", "user", "submitted_at"}
_FROM_START = {"partition", "resources", "slot", "mounts", "cpus"}
_AT_SUBMISSION = _FROM_SUBMISSION - _OF_EACH | {"state", "reason", "held", "depends", "not_before", "links"}
_AT_START = _FROM_START | {"state", "reason", "warning", "attempt", "boot", "tier", "started_at"}
OTHERS = ("name", "request", "gpus", "script", "environment", "allocated")  # columns that no field of Job has
# Columns of a new job that are not in SUBMITTED.
OF_NEW = ("id", "array_job", "name", "partition", "request", "gpus", "script", "environment")

Codec = Callable[[Any], Any]


class StoredColumn(Struct, frozen=True):
    """One column, and how a value of the field is converted to and from it."""

    name: str
    field: str
    type: str  # of SQL
    default: int | float | str | None  # in the table; None: NULL
    path: str  # of the attribute that is stored: the field, or the word of its enum
    read: Codec | None = None  # stored value -> value of the field; None: they are equal
    write: Codec | None = None  # value at the path -> stored value; None: they are equal


def _columns(record: type[Struct], without: set[str]) -> tuple[StoredColumn, ...]:
    return tuple(_column(field) for field in msgspec.structs.fields(record) if field.name not in without)


def _column(field: msgspec.structs.FieldInfo) -> StoredColumn:
    kinds = get_args(field.type) if type(field.type).__name__ == "UnionType" else (field.type,)
    kind = next(member for member in kinds if member is not NoneType)
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
    return StoredColumn(
        _NAMES.get(field.name, field.name), field.name, column_type, default, path, read, write
    )


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


def _or_null(column: StoredColumn) -> StoredColumn:
    """Return the column of a number that is stored as NULL if it is 0."""
    return msgspec.structs.replace(column, default=None, read=lambda v: v or 0, write=lambda v: v or None)


def _adjusted(column: StoredColumn) -> StoredColumn:
    if column.field == "array":  # refers to a row
        return _or_null(column)
    if column.field == "status":  # NULL: the job has no end
        return msgspec.structs.replace(column, default=None, read=lambda v: v or 0)
    return column


OF_JOB = tuple(map(_adjusted, _columns(Job, _ELSEWHERE)))
OF_END = tuple(map(_adjusted, _columns(Ended, set())))
SAVED = tuple(
    stored_column for stored_column in OF_JOB if stored_column.field not in _FROM_SUBMISSION | _FROM_START
)  # by each step
SUBMITTED = tuple(stored_column for stored_column in OF_JOB if stored_column.field in _AT_SUBMISSION)
STARTED = tuple(stored_column for stored_column in OF_JOB if stored_column.field in _AT_START)
# While a job is COMPLETING, its end has this column: `ended_at` is of jobs in a final state.
CLEANING = StoredColumn("cleaning_since", "ended_at", "REAL", None, "ended_at")
COLUMNS = (*OF_JOB, *OF_END, CLEANING)
DEFAULTS: dict[str, int | float | str | None] = {
    stored_column.name: stored_column.default for stored_column in COLUMNS
}
EMPTY_ROW = DEFAULTS | {"partition": "", "gpus": 0, "allocated": ""}


# -- parts of statements -----------------------------------------------------------------------------


def _literal(value: int | float | str | None) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _is_default(column: StoredColumn) -> str:
    return (
        f"{column.name} IS NULL" if column.default is None else f"{column.name} = {_literal(column.default)}"
    )


def _cases(states: list[JobState], result: int) -> str:
    return " ".join(f"WHEN '{state.value}' THEN {result}" for state in states)


def _changes(columns: Iterable[StoredColumn]) -> str:
    return ", ".join(f"{column.name} = :{column.name}" for column in columns)


def _values(names: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in names)


_NEW = (*(stored_column.name for stored_column in SUBMITTED), *OF_NEW)
_ALL = (*(stored_column.name for stored_column in COLUMNS), *OTHERS)
_SUBMITTED = {"id", "uid", "gid", "user", "submitted_at", "partition"}  # differ between new jobs
# Columns that are not read for a job that was not started and has no status of an end.
_UNREAD = {
    "resources",
    "ended_at",
    *(stored_column.field for stored_column in OF_END if stored_column.field != "status"),
}
PARTS = {  # replacements for the names in braces in the *.sql files
    "columns": ", ".join(_ALL),
    "values": _values(_ALL),
    "submitted": ", ".join(_NEW),
    "submitted_values": _values(_NEW),
    "started": _changes(STARTED),
    "changes": _changes((*SAVED, *OF_END, CLEANING)),
    "as_submitted": " AND ".join(
        [
            "allocated = ''",
            *(
                _is_default(stored_column)
                for stored_column in COLUMNS
                if stored_column.field not in _SUBMITTED | _UNREAD
            ),
        ]
    ),
    "any_state": _cases(list(JobState), 1),
    "open_state": _cases([state for state in JobState if not state.is_final], 0),
    "holding_state": _cases([state for state in JobState if state.holds], 0),
}


def definition(column: StoredColumn) -> dict[str, str]:
    """Return the parts of the statement that adds a column to an older queue."""
    default = "" if column.default is None else f"NOT NULL DEFAULT {_literal(column.default)}"
    return {"name": column.name, "type": column.type, "default": default}


# -- statements by name; parts in braces are derived from the columns ---------


_PART = re.compile(r"\{(\w+)\}")


def named(text: str) -> dict[str, str]:
    """Return {name: statement} of a file whose statements each begin with '-- name: x'."""
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def source(name: str) -> str:
    """Return the text of a file of statements, with its parts filled in."""
    text = (Path(__file__).parent / name).read_text()
    return _PART.sub(lambda match: PARTS.get(match[1], match[0]), text)


SQL = named(source("queries.sql"))


# -- versions, migrations and checks of the tables ----------------------------


VERSION = 1  # of the schema; migrations/N.sql leads from N - 1 to N
_UNRELEASED = 5  # the number that version 1 had before a release; no later version gets it
_SQL = named(source("adapt.sql"))
_UPGRADE = "Upgrade fgsched, or restore an older backup: this one would lose what it does not know."
# The lists of states in the rules of the table job, and the last value of each.
_LISTS = {
    "any_state": (r"CASE state\s+WHEN 'PENDING' THEN 1.*?ELSE [01] END", 0),
    "holding_state": (r"CASE state\s+WHEN 'CONFIGURING' THEN 0.*?ELSE [01] END", 1),
    "open_state": (r"CASE state\s+WHEN 'PENDING' THEN 0.*?ELSE [01] END", 1),
}


def version_of(db: sqlite3.Connection, path: str) -> int:
    """Return the version of a queue's schema; 0: it is empty. Raises StorageError if it is a newer one."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    refuse_newer(version, path)
    return 1 if version == _UNRELEASED else version


def refuse_newer(version: int, path: str) -> None:
    """Refuse a version of the schema that this program does not know. Raises StorageError."""
    if version > VERSION and version != _UNRELEASED:
        cause = f"{path} was written by a newer fgsched (its version is {version}, this one knows {VERSION})"
        raise StorageError(cause, _UPGRADE)


def migrate(db: sqlite3.Connection, path: str) -> None:
    """Make the tables of an empty queue, or migrate an older one after a backup. Raises sqlite3.Error."""
    version = version_of(db, path)
    if 0 < version < VERSION and path != ":memory:":
        _back_up(db, Path(path), version)
    for number in range(version + 1, VERSION + 1):
        _migrate(db, number)
    if db.execute("PRAGMA user_version").fetchone()[0] == _UNRELEASED:
        db.execute(f"PRAGMA user_version = {VERSION}")


def _back_up(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Keep a copy of the queue in its older form beside it."""
    copy, fresh = (path.with_name(f"{path.name}.version-{version}{end}") for end in ("", ".new"))
    disk.remove(fresh, missing_ok=True)
    db.execute("VACUUM INTO ?", (str(fresh),))
    fresh.chmod(0o600)
    disk.sync_file(fresh)
    disk.rename(fresh, copy)
    disk.sync_directory(path.parent)


def _migrate(db: sqlite3.Connection, number: int) -> None:
    """Migrate by one version, in one transaction."""
    script = source("schema.sql" if number == 1 else f"migrations/{number}.sql")
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _table_columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return (table, column) of every column."""
    return {(table, column) for table, column in db.execute(SQL["columns"])}


def adapt(db: sqlite3.Connection, path: Path | str) -> None:
    """Add the columns of new fields of a job, and update the rules of its table to accept all states.

    No row is written. Raises StorageError if the queue knows a state that this program does not know.
    """
    columns = _table_columns(db)
    missing = [column for column in COLUMNS if ("job", column.name) not in columns]
    rules = _rules(db)
    _check_states(rules, path)
    if not missing and _with_states(rules) == rules:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for column in missing:
            db.execute(_SQL["add_column"].format(**definition(column)))
        db.execute("PRAGMA writable_schema = ON")
        db.execute(_SQL["change_rules"], {"sql": _with_states(_rules(db))})
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has ended the transaction
            db.execute("ROLLBACK")
        raise
    finally:
        db.execute("PRAGMA writable_schema = RESET")


def _rules(db: sqlite3.Connection) -> str:
    return str(db.execute(_SQL["rules"]).fetchone()[0])


def _with_states(rules: str) -> str:
    for part, (pattern, other) in _LISTS.items():
        text = f"CASE state {PARTS[part]} ELSE {other} END"
        rules = re.sub(pattern, text, rules, count=1, flags=re.DOTALL)
    return rules


def _check_states(rules: str, path: Path | str) -> None:
    """Refuse a queue with an unknown state. Raises StorageError."""
    pattern, _ = _LISTS["any_state"]
    listed = re.search(pattern, rules, re.DOTALL)
    states = {state.value for state in JobState}
    unknown = sorted(set(re.findall(r"'(\w+)'", listed[0])) - states) if listed else []
    if unknown:
        cause = f"{path} was written by a newer fgsched: it knows the state {', '.join(unknown)}"
        raise StorageError(cause, _UPGRADE)
