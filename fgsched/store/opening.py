"""Opening the queue file: made when it is new, migrated when it is old, refused when it cannot be trusted."""

import os
import re
import sqlite3
import stat
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from fgsched.errors import StorageError

VERSION = 1  # of the schema; migrations/N.sql leads from N - 1 to N
_CHECKED = 8 * 2**20  # bytes up to which a file is checked whole at each start, at 5 ms a MiB
_MARKER = "queue.initialised"  # says that there was a queue here once


def named(text: str) -> dict[str, str]:
    """{name: statement} of a file whose statements each begin with '-- name: x'."""
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def source(name: str) -> str:
    return files("fgsched.store").joinpath(name).read_text()


SQL = named(source("queries.sql"))


def open_queue(path: Path | str) -> sqlite3.Connection:
    """The one connection to the queue at `path` (":memory:" for tests); StorageError with the way out."""
    if path == ":memory:":
        return _connect(":memory:")
    path = Path(path)
    is_new = _expect(path)
    try:
        db = _connect(str(path))
        if not is_new:
            _check(db, path)
            _compare(db, path)
        path.with_name(_MARKER).touch()
    except sqlite3.DatabaseError as error:
        raise _refusal(path, error) from error
    return db


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    db.row_factory = sqlite3.Row
    for pragma in (
        "locking_mode = EXCLUSIVE",  # before WAL: others are locked out and no -shm file exists
        "journal_mode = WAL",
        "synchronous = FULL",  # an acknowledged commit survives a power cut
        "foreign_keys = ON",
        "journal_size_limit = 67108864",
        "temp_store = MEMORY",
    ):
        db.execute(f"PRAGMA {pragma}")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StorageError(
            f"{path} was written by a newer fgsched (its version is {version}, this one knows {VERSION})",
            "Upgrade fgsched; an older one would lose what it does not know.",
        )
    for number in range(version + 1, VERSION + 1):
        _migrate(db, path, number)
    return db


def _migrate(db: sqlite3.Connection, path: str, number: int) -> None:
    """One step up, in one transaction with its version, after a backup of what was there."""
    if number > 1:
        db.execute("VACUUM INTO ?", (f"{path}.before-{number}",))
    script = source("schema.sql" if number == 1 else f"migrations/{number}.sql")
    db.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")


def _expect(path: Path) -> bool:
    """Whether the file is to be made; StorageError if it should be there, or is not what it should be."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        found = path.lstat()
    except FileNotFoundError:
        if path.with_name(_MARKER).exists():
            raise StorageError(
                f"{path} is missing, and there was a queue here before",
                f"Bring it back (is the disk mounted?), or remove {path.with_name(_MARKER)} to start with an"
                " empty queue.",
            ) from None
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return True
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{path} is not a regular file", "Move it away; the queue is kept in a file.")
    if found.st_uid != os.geteuid():
        raise StorageError(f"{path} belongs to uid {found.st_uid}", "Only its owner may open it.")
    if found.st_mode & 0o022:
        raise StorageError(f"{path} is writable by others", f"Look who changed it, then: chmod 600 {path}")
    if found.st_size == 0 and path.with_name(_MARKER).exists():
        raise StorageError(
            f"{path} is empty, and there was a queue here before",
            f"Bring a copy back, or remove it and {path.with_name(_MARKER)} to start with an empty queue.",
        )
    return found.st_size == 0


def _check(db: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size > _CHECKED:
        return
    answer = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if answer != "ok":
        raise sqlite3.DatabaseError(str(answer).splitlines()[-1])


def _compare(db: sqlite3.Connection, path: Path) -> None:
    """StorageError if something is not there: before a release the form changes, and its number does not."""
    found = _columns(db)
    with closing(_connect(":memory:")) as expected:
        lacks = sorted(_columns(expected) - found)
    tables = {table for table, _ in found}
    missing = [f"{table}.{column}" for table, column in lacks if table in tables]
    missing += sorted({f"table {table}" for table, _ in lacks if table not in tables})
    if missing:
        raise StorageError(
            f"{path} was made by an unreleased fgsched: its version is {VERSION},"
            f" and it lacks {', '.join(missing)}",
            "It is left as it is. Let the fgsched that made it finish its jobs; or move it and"
            f" {path.with_name(_MARKER).name} away to start with an empty queue.",
        )


def _columns(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """(table, column) of all that there are."""
    return {(table, column) for table, column in db.execute(SQL["columns"])}


def _refusal(path: Path, error: sqlite3.DatabaseError) -> StorageError:
    if "locked" in str(error):
        return StorageError(f"{path} is in use by another program", "Close what has it open (a shell?).")
    if "disk" in str(error) and "full" in str(error):
        return StorageError(f"{path} cannot be written: {error}", "Free some space on its disk.")
    return StorageError(
        f"{path} is damaged: {error}",
        f"It is left as it is. Bring a backup back; or save what can be read with: sqlite3 {path} .recover;"
        f" or move it and {path.with_name(_MARKER).name} away to start with an empty queue.",
    )
