"""The tables of the queue: make, migrate and check them, and adapt them to the fields and states of a job."""

import os
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from fgsched.domain.errors import StorageError
from fgsched.domain.states import JobState
from fgsched.store.columns import COLUMNS, PARTS, definition
from fgsched.store.files import sync_directory
from fgsched.store.sql import SQL, named, source

VERSION = 4  # of the schema; migrations/N.sql leads from N - 1 to N
_SQL = named(source("adapt.sql"))
_UPGRADE = "Upgrade fgsched; an older one would lose what it does not know."
# The lists of states in the rules of the table job: the forms that each has in a file, and its last value.
_LISTS = {
    "any_state": (r"state IN \('PENDING'[^)]*\)|CASE state\s+WHEN 'PENDING' THEN 1.*?ELSE [01] END", 0),
    "holding_state": (r"state NOT IN \([^)]*\)|CASE state\s+WHEN 'CONFIGURING' THEN 0.*?ELSE [01] END", 1),
    "open_state": (r"state IN \('COMPLETED'[^)]*\)|CASE state\s+WHEN 'PENDING' THEN 0.*?ELSE [01] END", 1),
}


def version_of(db: sqlite3.Connection, path: str) -> int:
    """Return the version of a queue's schema; 0: it is empty. Raises StorageError if it is a newer one."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        cause = f"{path} was written by a newer fgsched (its version is {version}, this one knows {VERSION})"
        raise StorageError(cause, _UPGRADE)
    return version


def migrate(db: sqlite3.Connection, path: str) -> None:
    """Make the tables of an empty queue, or migrate an older one after a backup. Raises sqlite3.Error."""
    version = version_of(db, path)
    if 0 < version < VERSION and path != ":memory:":
        _back_up(db, Path(path), version)
    for number in range(version + 1, VERSION + 1):
        _migrate(db, number)


def _back_up(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Keep a copy of the queue in its older form beside it."""
    kept, fresh = (path.with_name(f"{path.name}.version-{version}{end}") for end in ("", ".new"))
    fresh.unlink(missing_ok=True)
    db.execute("VACUUM INTO ?", (str(fresh),))
    fresh.chmod(0o600)
    fd = os.open(fresh, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.rename(kept)
    sync_directory(path.parent)


def _migrate(db: sqlite3.Connection, number: int) -> None:
    """Migrate by one version, in one transaction."""
    script = source("schema.sql" if number == 1 else f"migrations/{number}.sql")
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def compare(db: sqlite3.Connection, path: Path) -> None:
    """Check that a queue has all tables and columns of its version. Raises StorageError with a list.

    A queue of an unreleased fgsched can lack some: before a release the schema changes without a new version.
    """
    found = _columns(db)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as expected:
        migrate(expected, ":memory:")
        lacks = sorted(_columns(expected) - found)
    tables = {table for table, _ in found}
    missing = [f"{table}.{column}" for table, column in lacks if table in tables]
    missing += sorted({f"table {table}" for table, _ in lacks if table not in tables})
    if missing:
        raise StorageError(
            f"{path} was made by an unreleased fgsched: its version is {VERSION},"
            f" and it lacks {', '.join(missing)}",
            "It is left as it is. Let the fgsched that made it finish its jobs; or save what can be read"
            " with: fgsched doctor --recover.",
        )


def _columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return (table, column) of every column."""
    return {(table, column) for table, column in db.execute(SQL["columns"])}


def adapt(db: sqlite3.Connection, path: Path | str) -> None:
    """Add the columns of new fields of a job, and have the rules of its table accept all states.

    No row is written. Raises StorageError if the queue knows a state that this program does not know.
    """
    columns = _columns(db)
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
    known = {state.value for state in JobState}
    unknown = sorted(set(re.findall(r"'(\w+)'", listed[0])) - known) if listed else []
    if unknown:
        cause = f"{path} was written by a newer fgsched: it knows the state {', '.join(unknown)}"
        raise StorageError(cause, _UPGRADE)
