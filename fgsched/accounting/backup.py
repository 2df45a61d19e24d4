"""Copy queue and accounts into one file, and move old records of the accounts to another file."""

import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fgsched.accounting.ledger import Ledger, LedgerReader, open_to_read
from fgsched.domain.errors import Refused, StorageError
from fgsched.domain.times import DAY, HOUR, MINUTE
from fgsched.system import places

_PAGES = 1000  # of the accounts that are copied in one step
_COPIES = "backup.new"  # directory of the copies until they are in the archive
_BATCH = 500  # jobs of one transaction of an archive


def back_up(queue: Path, accounts: Path, file: Path) -> int:
    """Write a tar archive of the queue and the accounts to `file`; return its size in bytes.

    The queue is copied first, so that a job that moves meanwhile is in both. The file of the queue must not
    change: its controller makes no checkpoint.

    Raises:
        Refused: the file exists.
        StorageError: a file cannot be read or written, or the copy is damaged.
    """
    if not file.parent.is_dir():
        raise StorageError(f"{file} cannot be written: there is no directory {file.parent}", "Make it first.")
    if os.path.lexists(file):
        raise Refused(f"{file} exists", "Name a new file.")
    with _storage_errors(file), _copies(queue, accounts) as copies, places.new_file(file) as new:
        with tarfile.open(fileobj=new, mode="w") as tar:
            for copy in copies:
                tar.add(copy, copy.name)
        return new.tell()


@contextmanager
def _copies(queue: Path, accounts: Path) -> Iterator[list[Path]]:
    """Copy the files beside the queue, where no other user can exchange a copy while SQLite writes it."""
    place = queue.with_name(_COPIES)
    shutil.rmtree(place, ignore_errors=True)  # of a backup that was interrupted
    place.mkdir(mode=0o700, exist_ok=True)
    try:
        _copy_queue(queue, place / "queue.db")
        if accounts.exists():
            _copy_accounts(accounts, place / "accounts.db")
        copies = [copy for name in ("queue.db", "accounts.db") if (copy := place / name).exists()]
        for copy in copies:
            _check(copy)
        yield copies
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _copy_queue(queue: Path, copy: Path) -> None:
    before = queue.stat()
    shutil.copyfile(queue, copy)
    after = queue.stat()
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise StorageError(f"{queue} changed while it was copied", "Repeat the command.")


def _copy_accounts(accounts: Path, copy: Path) -> None:
    with closing(open_to_read(accounts, timeout=5.0)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target, pages=_PAGES)


def _check(copy: Path) -> None:
    """Check a copy. Raises StorageError."""
    with closing(sqlite3.connect(f"{copy.as_uri()}?immutable=1", uri=True)) as db:
        answer = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if answer != "ok":
        raise StorageError(f"the copy of {copy.name} is damaged: {answer}", "Check the disk.")


@contextmanager
def _storage_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise Refused(f"{file} exists", "Name a new file.") from None
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        raise StorageError(
            f"{file} cannot be written: {error}", "Check the directory and its space."
        ) from error


# -- archives ------------------------------------------------------------------------------------------


def archive(ledger: Ledger, file: Path, before: int) -> int:
    """Move jobs that ended before `before` (epoch seconds), and older minutes and hours, to another file.

    Return the number of jobs. Each part is stored there before it is deleted here. If this is interrupted,
    the same call continues.

    Raises:
        Refused: the file has accounts of another origin, or is the file of the accounts itself.
        StorageError: a file cannot be read or written, or another user made it or a link on the way.
    """
    with _storage_errors(file), places.pinned(file):  # SQLite opens it by its path
        pass
    if file.exists() and file.samefile(ledger.path):
        raise Refused(f"{file} is the file of the accounts", "Name another file.")
    other = Ledger(file)
    try:
        other.claim(ledger.name)
        reader = LedgerReader(ledger.path)
        try:
            _copy_gpus(reader, other)
            moved = _move_jobs(ledger, reader, other, before)
            for span, step in ((MINUTE, DAY), (HOUR, 30 * DAY)):
                _move_spans(ledger, reader, other, span=span, step=step, before=before)
        finally:
            reader.close()
    finally:
        other.close()
    ledger.shrink()
    return moved


def _copy_gpus(reader: LedgerReader, other: Ledger) -> None:
    with other.write():
        other.add_gpus(reader.gpus(0, float("inf")))


def _move_jobs(ledger: Ledger, reader: LedgerReader, other: Ledger, before: int) -> int:
    moved = 0
    while jobs := reader.first_jobs(before, _BATCH):
        with other.write():
            other.add_jobs(jobs)
        with ledger.write():
            ledger.remove_jobs(job.id for job in jobs)
        moved += len(jobs)
    return moved


def _move_spans(
    ledger: Ledger, reader: LedgerReader, other: Ledger, *, span: int, step: int, before: int
) -> None:
    while (first := ledger.first_span(span)) is not None and first < before:
        until = min(before, first + step)
        with other.write():
            other.copy_spans(reader, span, first, until)
        with ledger.write():
            ledger.remove_spans(span, until)
