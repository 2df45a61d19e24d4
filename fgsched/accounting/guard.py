"""Guard the accounts as the queue is guarded: name, number of the last commit, and checksums of the pages.

The marker, `accounts.commits` and `accounts.sums` lie beside the file. The accountant refuses accounts that
lack commits or are damaged; then ended jobs stay in the queue. Readers compare the number of the last commit.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fgsched.domain.errors import StorageError
from fgsched.domain.times import format_time
from fgsched.store import wal
from fgsched.store.connection import Connection, Opened
from fgsched.store.files import UNREADABLE, Commit, Record, Sums, commit_file, forget_damage
from fgsched.store.opening import Kind, beside_of, compare_commits, looking, numbers, refusing, verify
from fgsched.store.schema import named
from fgsched.system import disk, locks

# -- the marker of the accounts, so that missing ones are not replaced ---------------------------------


def marker_of(accounts: Path) -> Path:
    """Return the path of the marker file of an accounts file."""
    return accounts.with_name("accounts.initialised")


def are_new(accounts: Path) -> bool:
    """Tell whether the accounts are new: there is no file, or an empty one that no marker names.

    Raises:
        StorageError: the file is missing, and there were accounts before.
    """
    try:
        return accounts.stat().st_size == 0 and not marker_of(accounts).exists()
    except FileNotFoundError:
        refuse_missing(accounts)
    return True


def refuse_missing(accounts: Path) -> None:
    """Refuse missing accounts if there were accounts before. Raises StorageError."""
    if marker_of(accounts).exists():
        raise StorageError(
            f"the accounts {accounts} are missing",
            f"Restore the file, or remove {marker_of(accounts)} to start with empty accounts.",
        ) from None


def recorded_name(accounts: Path) -> str | None:
    """Return the recorded name of the accounts, or None."""
    marker = marker_of(accounts)
    return (marker.read_text().strip() or None) if marker.exists() else None


def name_error(accounts: Path, name: str, expected: str) -> str:
    """Return the error for accounts with another name than the recorded one."""
    return (
        f"{accounts} contains other accounts: its name is {name}, and {expected} is expected (remove"
        f" {marker_of(accounts)} to accept this file)"
    )


def record_name(accounts: Path, name: str) -> None:
    """Record the name of the accounts, or compare it with the recorded one.

    Raises:
        StorageError: the names differ, so the file was exchanged.
    """
    marker, known_name = marker_of(accounts), recorded_name(accounts)
    if known_name and known_name != name:
        raise StorageError(
            f"{accounts} contains other accounts: its name is {name}, and {known_name} is expected",
            f"Restore the file, or remove {marker} to accept this one.",
        )
    if not known_name:
        disk.name_again(accounts)
        disk.write_marker(marker, f"{name}\n".encode())


_HOME = Path(__file__).parent
_SQL = named(_HOME.joinpath("queries.sql").read_text())
REMEDY = (
    "It is left as it is, and ended jobs stay in the queue. Restore a backup, and accept its state with:"
    " fgsched doctor --recover, which fgsched(8) explains."
)
_EVENTS = {"INSERT": "added", "UPDATE": "changed", "DELETE": "removed"}
_TRIES = 3  # looks at a file that is being written


def _last_commit(db: sqlite3.Connection, _path: Path) -> tuple[Commit, int]:
    """Return the last commit according to the accounts, and the number of changed rows."""
    if not db.execute(_SQL["count_tables"]).fetchone()[0]:
        return Commit("", 0), 0
    name = db.execute(_SQL["get_meta"], {"key": "name"}).fetchone()
    if not db.execute(_SQL["count_commits"]).fetchone()[0]:
        return Commit(name[0] if name else "", 0), 0
    count, rows, jobs, at = numbers(db.execute(_SQL["last_commit"]).fetchone())
    return Commit(name[0] if name else "", count, jobs, at), rows


def _missing(path: Path, here: Commit, beside: Commit) -> str:
    """Return the error for lost commits: how many, their ended jobs, and their time."""
    lost, jobs = beside.number - here.number, max(0, beside.last_job - here.last_job)
    since = f"from {_moment(here.at)} " if here.at else ""
    return (
        f"the accounts {path} lack their last {lost} commit{'s' * (lost != 1)}, {since}to"
        f" {_moment(beside.at)}, with {jobs} ended job{'s' * (jobs != 1)}: {path.name}-wal was lost or"
        " damaged, or an older copy is in place"
    )


def _moment(at: float) -> str:
    return format_time(at)


KIND = Kind(_last_commit, recorded_name, name_error, _missing, REMEDY, is_shared=True)


class Guarded:
    """Accounts that were examined and are not changed yet."""

    def __init__(self, path: Path) -> None:
        """Examine the accounts at `path`. Raises StorageError, with the remedy."""
        self._path = path
        self._sums = Sums(path)
        with refusing(path, self._sums, REMEDY):
            is_accepted = recorded_name(path) is None  # an operator has removed the marker: docs
            self._recorded_commit = None if is_accepted else beside_of(path, REMEDY)
            if is_accepted:
                self._sums.discard()
            self._holds = verify(path, self._recorded_commit, self._sums, KIND)

    def open(self, db: Connection) -> Opened:
        """Guard an open connection from now on."""
        with refusing(self._path, self._sums, REMEDY):
            if not db.execute(_SQL["count_commits"]).fetchone()[0]:
                db.executescript(f"BEGIN;{_script(db)};COMMIT;")
            commit, _ = _last_commit(db, self._path)
            record = Record(commit_file(self._path), commit, is_new=self._recorded_commit is None)
            opened = Opened(db, record, path=self._path, sums=self._sums, remedy=REMEDY)
        opened.begin(holds=self._holds)
        return opened

    def close(self) -> None:
        """Close the files, if `open` was not called."""
        self._sums.close()


def _script(db: sqlite3.Connection) -> str:
    """Return the statements that add the table of commits, and the triggers that count changed rows."""
    tables = [row[0] for row in db.execute(_SQL["tables"])]
    triggers = [
        f"CREATE TRIGGER {table}_row_is_{word} AFTER {event} ON {table}"
        " BEGIN UPDATE commits SET rows = rows + 1; END;"
        for table in tables
        for event, word in _EVENTS.items()
        if (table, event) != ("job", "INSERT")
    ]
    return _HOME.joinpath("guard.sql").read_text() + "\n".join(triggers)


def compare(path: Path, db: sqlite3.Connection, beside: Commit | None) -> None:
    """Compare open accounts with their commit file, read before.

    Raises:
        StorageError: commits are missing.
    """
    if recorded_name(path) is not None:
        compare_commits(path, beside, _last_commit(db, path)[0], KIND)


def damage(path: Path) -> str:
    """Return the damage of the accounts; "": none. An accountant may be writing them."""
    cause = ""
    for _ in range(_TRIES):
        try:
            with closing(Guarded(path)), closing(Sums(path)) as sums:
                logged = wal.pages(path.with_name(f"{path.name}-wal"))
                bad = sums.damaged(1, sums.pages, logged) if sums.is_there else []
            if not bad:
                return ""
            cause = f"the accounts {path} are damaged: they differ from their checksums at page {bad[0]}"
        except StorageError as error:
            cause = error.cause
    return cause


# -- `fgsched doctor --recover` --------------------------------------------------------------------


def recover(path: Path, ending: str) -> str:
    """Accept the accounts as they are, with a repaired log; return a report, "" if nothing was changed.

    The files as they were are kept with the suffix `ending`. The accounts file itself is never changed: after
    an error, a log that is found later still belongs to it.

    Raises:
        StorageError: the accounts cannot be read.
    """
    if not path.exists():
        return ""
    with _locked(path):
        disk.restore_name(path.with_name(f"{path.name}-wal"))
        if not (why := damage(path)):
            return ""
        files = [file for file in _files(path) if file.exists()]
        for file in files:
            from shutil import copy2  # 0.2 MiB, and only a repair needs it

            copy2(file, file.with_name(f"{file.name}.{ending}"))
        pages, commit = _mend(path, why)
        disk.remove(commit_file(path), missing_ok=True)
        Record(commit_file(path), commit).close()
        disk.remove(path.with_suffix(".sums"), missing_ok=True)
        forget_damage(path)
    doubtful = f" The log was damaged where it has page {', '.join(map(str, pages))}." if pages else ""
    return (
        f"{why}\nThe accounts continue after commit {commit.number}, with {commit.last_job} jobs.{doubtful}"
        f" The files as they were are kept with the ending .{ending}.\n"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    place = path.with_name("accounts.lock")
    with place.open("w") as file:
        locks.lock(file.fileno(), place, "the accounts")
        yield


def _files(path: Path) -> list[Path]:
    beside = (commit_file(path), path.with_suffix(".sums"))
    return [path, path.with_name(f"{path.name}-wal"), *beside]


def _mend(path: Path, why: str) -> tuple[tuple[int, ...], Commit]:
    """Replace the log by one with which the accounts are whole; the file itself is not changed.

    The log is made beside a copy of the file: a recovery that fails must not change pages to which a log that
    is found later belongs. Return the pages used although damaged, and the last commit.

    Raises:
        StorageError: the accounts cannot be read or written.
    """
    from shutil import copyfile  # 0.2 MiB, and only a repair needs it

    log, copy = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}.recovering")
    wal.remove_database(copy)
    try:
        copyfile(path, copy)
        pages = wal.copy_mended(log, copy.with_name(f"{copy.name}-wal"))
        commit = _readable(copy, why)
        with closing(sqlite3.connect(copy, isolation_level=None)) as db:
            db.execute("PRAGMA wal_autocheckpoint = 0")
            _rebuild_indexes(db, why)
            fresh = log.with_name(f"{log.name}.again")
            copyfile(copy.with_name(f"{copy.name}-wal"), fresh)
        disk.sync_file(fresh)
        disk.rename(fresh, log)
        disk.remove(path.with_name(f"{path.name}-shm"), missing_ok=True)
        disk.sync_directory(path.parent)
    finally:
        wal.remove_database(copy)
    return pages, commit


def _rebuild_indexes(db: sqlite3.Connection, why: str) -> None:
    """Make the indexes again: half of a checkpoint can leave jobs in an index that their table lacks.

    Raises:
        StorageError: the accounts cannot be read or written.
    """
    try:
        db.execute("REINDEX")
        answer = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except UNREADABLE as error:
        answer = str(error)
    if answer != "ok":
        raise StorageError(f"{why}; its indexes cannot be made again: {answer}", "Bring a backup back.")


def _readable(path: Path, why: str) -> Commit:
    """Return the last commit of accounts whose structure is whole. Raises StorageError for others."""
    try:
        with looking(path, is_shared=True) as db:
            answer = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
            commit, _ = _last_commit(db, path)
    except UNREADABLE as error:
        answer = str(error)
    if answer != "ok":
        raise StorageError(f"{why}; its tables cannot be read: {answer}", "Bring a backup back.")
    return commit
