"""Open the queue file: create a new one, migrate an old one, refuse one that cannot be trusted."""

import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fgsched.domain.errors import StorageError
from fgsched.store import files, wal
from fgsched.store.connection import AT_ONCE, Connection, Opened
from fgsched.store.files import PAGE, RECOVER, UNREADABLE, Commit, Marker, Record, State, Sums
from fgsched.store.schema import SQL, adapt, migrate, refuse_newer, version_of
from fgsched.system import disk

log = logging.getLogger(__name__)
_VERSION_IN_HEADER = slice(60, 64)  # of the file, where SQLite keeps user_version
_WITHOUT_SHM = {"SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMOPEN", "SQLITE_IOERR_SHMMAP", "SQLITE_CANTOPEN"}
_WITHOUT_LOG = "immutable=1"
_CHECKED = 8 * 2**20  # bytes up to which a file is checked whole at each start, at 5 ms a MiB


def open_queue(path: Path | str) -> Opened:
    """Open the queue at `path` (":memory:" for tests). Raises StorageError, with the remedy."""
    if path == ":memory:":
        db, name = _connect(":memory:"), os.urandom(4).hex()
        adapt(db, path)
        _named(db, name)
        return Opened(db, Record(None, Commit(name, 0)))
    return examine(Path(path)).open()


class Kind(NamedTuple):
    """The differences between the files that have a commit file and checksums: the queue and the accounts."""

    told: Callable[[sqlite3.Connection, Path], tuple[Commit, int]]  # its last commit, and its changed rows
    name: Callable[[Path], str | None]  # in the marker beside it; None: there is no marker
    other: Callable[[Path, str, str], str]  # the error for a file with another name
    missing: Callable[[Path, Commit, Commit], str]  # the error for lost commits
    remedy: str
    is_shared: bool = False  # other processes may have it open


class Examined(NamedTuple):
    """A queue that was checked and not changed, except that a new one is an empty file."""

    path: Path
    sums: Sums
    beside: Commit | None
    is_new: bool
    holds: bool  # the checksums are those of the file

    def open(self) -> Opened:
        """Open the queue. Raises StorageError, with the remedy."""
        with refusing(self.path, self.sums):
            return _opened(self)


def examine(path: Path) -> Examined:
    """Check a queue, or begin a new one.

    Raises:
        StorageError: with the remedy.
    """
    with refusing(path, None):
        is_new = _expect(path)
    sums = Sums(path)
    with refusing(path, sums):
        wal.write_again(path.with_name(f"{path.name}-wal"))  # durable before anything relies on it
        beside = _of_new(path) if is_new else beside_of(path, RECOVER)
        if is_new:
            sums.discard()
        return Examined(path, sums, beside, is_new, holds=not is_new and verify(path, beside, sums, QUEUE))


@contextmanager
def refusing(path: Path, sums: Sums | None, remedy: str = RECOVER) -> Iterator[None]:
    """Convert the errors of a file that cannot be opened into StorageError, and close its checksums."""
    try:
        yield
    except BaseException as error:
        if sums is not None:
            sums.close()
        if isinstance(error, UNREADABLE):
            raise refusal(path, error, remedy) from error
        if isinstance(error, OSError):
            cause = f"{path} cannot be opened: {error}"
            raise StorageError(cause, "Check the disk that contains this file.") from error
        raise


def _opened(examined: Examined) -> Opened:
    path = examined.path
    db = _connect(str(path))
    path.with_name(f"{path.name}-shm").unlink(
        missing_ok=True
    )  # of an interrupted check: this process holds the lock
    try:
        adapt(db, path)
        disk.name_again(path, path.with_name(f"{path.name}-wal"))
        opened = Opened(db, _recorded(db, path, examined.beside), path=path, sums=examined.sums)
        opened.begin(holds=examined.holds)
    except BaseException:
        db.close()
        raise
    return opened


def _recorded(db: sqlite3.Connection, path: Path, beside: Commit | None) -> Record:
    """Open the commit file, continuing from the queue. Ids continue from the higher of both.

    A new queue gets its name only after the file contains it: a queue without a name was never opened before.
    """
    if beside is not None:
        raise_ids(db, beside.last_job)
    name = _name_of(db) or os.urandom(4).hex()
    now = Commit(name, db.execute(SQL["get_commits"]).fetchone()["count"], last_id(db))
    record = Record(files.commit_file(path), now, is_new=beside is None or beside.queue != name)
    files.write_marker(path, Marker(name, _named(db, name)))
    return record


def raise_ids(db: sqlite3.Connection, beyond: int) -> None:
    """Make the next job get an id above `beyond`."""
    if beyond > last_id(db):
        for name in ("first_ids", "raise_ids"):
            db.execute(SQL[name], {"beyond": beyond})


def last_id(db: sqlite3.Connection) -> int:
    """Return the highest job id that was assigned."""
    return int(db.execute(SQL["last_job"]).fetchone()[0])


def _name_of(db: sqlite3.Connection) -> str:
    """Return the name of the queue, or "" if it has none yet."""
    row = db.execute(SQL["get_meta"], {"key": "name"}).fetchone()
    return str(row["value"]) if row else ""


def _named(db: sqlite3.Connection, name: str) -> float:
    """Name the queue permanently, and return its creation time."""
    db.execute(SQL["name_queue"], {"value": name})
    db.execute(SQL["date_queue"])
    return float(db.execute(SQL["get_meta"], {"key": "created"}).fetchone()["value"])


# -- files beside it --------------------------------------------------------------------------------


def beside_of(path: Path, remedy: str) -> Commit | None:
    """Return the commit file's record, or None. Raises StorageError if it is damaged."""
    try:
        return files.read_commit(files.commit_file(path))
    except files.Damaged as error:
        raise StorageError(
            f"{error}: it cannot tell whether {path.name} has all its commits", remedy
        ) from None


def _of_new(path: Path) -> Commit | None:
    """Return the record that an earlier queue left, from whose ids those of a new one continue."""
    with suppress(files.Damaged):
        return files.read_commit(files.commit_file(path))
    return None


def compare_commits(path: Path, beside: Commit | None, commit: Commit, kind: Kind) -> None:
    """Compare a file with its commit file. Raises StorageError if it is another one, or lacks commits."""
    name = kind.name(path)
    if not commit.queue and name is None:
        return  # it was being made
    if beside is None and name is not None and (commit.number or not kind.is_shared):
        cause = f"{files.commit_file(path)} is missing: it tells whether {path.name} has all its commits"
        raise StorageError(cause, kind.remedy)
    queues = [queue for queue in (name, beside and beside.queue) if queue not in (None, commit.queue)]
    if queues and commit.queue:
        raise StorageError(kind.other(path, commit.queue, queues[0]), kind.remedy)
    if beside is not None and commit.number < beside.number:
        raise StorageError(kind.missing(path, commit, beside), kind.remedy)


def _marked_name(path: Path) -> str | None:
    marker = files.read_marker(path)
    return None if marker is None else marker.queue


def _other(path: Path, name: str, expected: str) -> str:
    return f"{path} is another queue ({name}) than the one that was here ({expected})"


def _missing(path: Path, commit: Commit, beside: Commit) -> str:
    """Describe how many commits are missing, and since when."""
    missing = beside.number - commit.number
    more = beside.last_job - commit.last_job
    jobs = (
        f", with them {more} submitted job{'s' * (more != 1)} (up to job {beside.last_job})"
        if more > 0
        else ""
    )
    plural = "" if missing == 1 else "s"
    return (
        f"{path} lacks its last {missing} commit{plural}, after number {commit.number}{jobs}:"
        f" {path.name}-wal was lost or damaged, or an older copy is in place"
    )


def verify(path: Path, beside: Commit | None, sums: Sums, kind: Kind) -> bool:
    """Tell whether the checksums hold, without changes. Raises StorageError for an untrusted file."""
    logged = wal.pages(path.with_name(f"{path.name}-wal"))
    bad = sums.damaged(1, min(sums.pages, AT_ONCE), logged) if sums.is_there else []
    bad += [page for page in files.known_damage(path) if sums.damaged(page, page, logged)]
    try:
        holds = _compared(path, beside, sums, kind, is_logged=bool(logged), bad=bad)
    except UNREADABLE as error:
        if bad and "locked" not in str(error):
            raise files.damage_error(path, bad, kind.remedy) from error
        raise
    files.forget_damage(path)
    return holds


def _compared(
    path: Path, beside: Commit | None, sums: Sums, kind: Kind, *, is_logged: bool, bad: list[int]
) -> bool:
    """Tell whether the checksums hold; `bad` are the pages that differ."""
    with looking(path, is_shared=kind.is_shared) as db:
        commit, rows = kind.told(db, path)
        compare_commits(path, beside, commit, kind)
        now, was = State(commit.queue, commit.number, rows, sums.changes), sums.state
        holds = was is not None and was.queue == now.queue and (is_logged or was == now)
        if bad and holds and is_logged:
            holds = _without_log(path, sums, kind) == was  # else another program made a checkpoint
        if bad and holds:
            raise files.damage_error(path, bad, kind.remedy)
        if sums.is_there and not holds and commit.queue:
            log.warning("%s was written by another program: only its structure can be checked", path)
        if not holds or path.stat().st_size <= _CHECKED:
            _check(db, with_indexes=kind.is_shared and not holds)
    return holds


def _without_log(path: Path, sums: Sums, kind: Kind) -> State:
    """Return the state of the file without its log."""
    with looking(path, _WITHOUT_LOG) as db:
        commit, rows = kind.told(db, path)
    return State(commit.queue, commit.number, rows, sums.changes)


@contextmanager
def looking(path: Path, options: str = "", *, is_shared: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a connection that does not change the files, before the file is opened.

    `is_shared`: other processes may use the -shm file.
    """
    log_file = path.with_name(f"{path.name}-wal")
    is_logged = not options and log_file.exists() and log_file.stat().st_size > 0
    has_made_index = is_logged and wal.make_index(path)
    try:
        with closing(_reader(path, options or (wal.READ_ONLY if is_logged else _WITHOUT_LOG))) as db:
            db.row_factory = sqlite3.Row
            yield db
    finally:
        if has_made_index and not is_shared:
            path.with_name(f"{path.name}-shm").unlink(missing_ok=True)


def _reader(path: Path, options: str) -> sqlite3.Connection:
    """Open a connection that reads; on a full disk, on which there is no -shm file, with the index in memory.

    This process holds the lock of the queue. Another program that has the file open is noticed later, when it
    is opened for writing.
    """
    uri = f"{path.absolute().as_uri()}?{options}"
    db = sqlite3.connect(uri, uri=True, check_same_thread=False)
    try:
        db.execute("BEGIN")  # or each question makes the index
        db.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname not in _WITHOUT_SHM:
            return db  # the caller meets the same error
        db.close()
        if not wal.has_commit(
            path.with_name(f"{path.name}-wal")
        ):  # the connection below would remove such a log
            return _reader(path, _WITHOUT_LOG)
        db = sqlite3.connect(f"{uri}&vfs=unix-none", uri=True, check_same_thread=False)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # the index of the log is in memory
    except UNREADABLE:
        pass
    return db


def numbers(row: sqlite3.Row | tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Return the values of a row of numbers; a page of an older log can have any. Raises DatabaseError."""
    values = tuple(row) if row is not None else (None,)
    if not all(isinstance(value, int | float) for value in values):
        raise sqlite3.DatabaseError("the row that counts the commits is damaged")
    return values


def _last_commit(db: sqlite3.Connection, path: Path) -> tuple[Commit, int]:
    """Return the last commit according to the queue, and the number of rows ever written."""
    version = version_of(db, str(path))
    if version == 0:
        return Commit("", 0), 0
    count, rows = numbers(db.execute(SQL["get_commits"]).fetchone())
    return Commit(_name_of(db), count, last_id(db)), rows


# -- the file itself ---------------------------------------------------------------------------------


def refuse_newer_file(path: Path) -> None:
    """Refuse the queue of a newer version without opening it: a running controller keeps it locked.

    Raises:
        StorageError: it is of a newer version.
    """
    with suppress(FileNotFoundError), path.open("rb") as file:
        page = wal.newest(path.with_name(f"{path.name}-wal"), 1) or file.read(PAGE)
        refuse_newer(int.from_bytes(page[_VERSION_IN_HEADER], "big"), str(path))


def _connect(path: str) -> Connection:
    db: Connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256, factory=Connection
    )
    try:
        _set_up(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: Connection, path: str) -> None:
    """Make the settings of a connection, and the tables of a new queue or of a newer version."""
    db.row_factory = sqlite3.Row
    is_new = path == ":memory:" or not os.path.getsize(path)
    for pragma in (
        "wal_autocheckpoint = 0",  # before anything is written: Opened makes the checkpoints, with the sums
        "locking_mode = EXCLUSIVE",  # before anything is read: others are locked out and no -shm file exists
        *(["auto_vacuum = INCREMENTAL"] if is_new else []),  # it writes: pages that exist have sums
        "synchronous = FULL",  # an acknowledged commit survives a power cut
        "foreign_keys = ON",
        "journal_size_limit = 67108864",
        "temp_store = MEMORY",
    ):
        db.execute(f"PRAGMA {pragma}")
    wal.use(db, path)
    migrate(db, path)


def _expect(path: Path) -> bool:
    """Tell whether the file must be created. Raises StorageError if it is missing or invalid."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk.restore_name(path)
    was_here = files.marker_path(path).exists()
    try:
        status = path.lstat()
    except FileNotFoundError:
        if was_here:
            raise StorageError(
                f"{path} is missing, and there was a queue here before",
                f"Bring it back (is the disk mounted?), or remove {files.marker_path(path)} to start with an"
                " empty queue.",
            ) from None
        os.close(disk.open_file(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return True
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"{path} is not a regular file", "Move it away; the queue is kept in a file.")
    if status.st_uid != os.geteuid():
        raise StorageError(f"{path} belongs to uid {status.st_uid}", "Only its owner may open it.")
    if status.st_mode & 0o022:
        raise StorageError(f"{path} is writable by others", f"Look who changed it, then: chmod 600 {path}")
    if status.st_size == 0 and was_here:
        raise StorageError(f"{path} is empty, and there was a queue here before", RECOVER)
    return status.st_size == 0


def _check(db: sqlite3.Connection, *, with_indexes: bool = False) -> None:
    """Check the structure; `with_indexes`: after half of a checkpoint an index may have other rows."""
    # A row that breaks a rule of the schema concerns one job: rows.past_of.
    db.execute("PRAGMA ignore_check_constraints = ON")
    check = "integrity_check" if with_indexes else "quick_check"
    answer = db.execute(f"PRAGMA {check}(1)").fetchone()[0]
    db.execute("PRAGMA ignore_check_constraints = OFF")
    if answer != "ok":
        raise sqlite3.DatabaseError(str(answer).splitlines()[-1])


def refusal(path: Path, error: Exception, remedy: str = RECOVER) -> StorageError:
    """Return the error for a file that SQLite cannot open."""
    if isinstance(error, UnicodeDecodeError):
        return StorageError(f"{path} is damaged: its schema has text that is not UTF-8", remedy)
    if "I/O" in str(error) and disk.has_used_up_quota(path.parent):
        return StorageError(
            f"{path} cannot be written: the quota for {path.parent} is used up", "Free some space there."
        )
    if "locked" in str(error):
        return StorageError(f"{path} is in use by another program", "Close what has it open (a shell?).")
    if "disk" in str(error) and "full" in str(error):
        return StorageError(f"{path} cannot be written: {error}", "Free some space on its disk.")
    return StorageError(f"{path} is damaged: {error}", remedy)


QUEUE = Kind(_last_commit, _marked_name, _other, _missing, RECOVER)
