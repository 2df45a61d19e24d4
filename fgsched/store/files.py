"""The small files beside queue and accounts: marker, damaged pages, number of commits, checksums of pages."""

import json
import logging
import os
import sqlite3
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from fgsched.crash import point
from fgsched.domain.errors import StorageError
from fgsched.system import disk

PAGE = 4096  # bytes of a page of the queue
# Errors of a damaged file. Python raises the second one if a message of SQLite quotes text that is not UTF-8.
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)


# -- damaged pages that a running controller found, for its next start --------


DAMAGE_END = ".damaged"  # of queue and accounts
RECOVER = (
    "It is left as it is. Save what can be read with: fgsched doctor --recover, which fgsched(8) explains;"
    " or bring a backup of the queue back, and do that with it."
)
_SHOWN = 10


def damage_error(queue: Path, pages: Iterable[int], remedy: str = RECOVER) -> StorageError:
    """Return the error that refuses a queue with these damaged pages."""
    damaged = sorted(set(pages))
    listed = ", ".join(map(str, damaged[:_SHOWN])) + (" …" if len(damaged) > _SHOWN else "")
    plural = "" if len(damaged) == 1 else "s"
    return StorageError(f"{queue} is damaged: it differs from its checksums at page{plural} {listed}", remedy)


def remember_damage(queue: Path, pages: Iterable[int]) -> None:
    """Store the damaged pages, so that the next start checks them first."""
    with suppress(OSError):
        disk.replace_file(queue.with_suffix(DAMAGE_END), json.dumps(sorted(set(pages))).encode())


def known_damage(queue: Path) -> list[int]:
    """Return the pages that an earlier controller found damaged."""
    with suppress(OSError, ValueError, TypeError):
        damage = json.loads(queue.with_suffix(DAMAGE_END).read_bytes())
        return [int(page) for page in damage if int(page) > 0]
    return []


def forget_damage(queue: Path) -> None:
    """Delete the list of damaged pages, after a check found them intact."""
    with suppress(OSError):
        disk.remove(queue.with_suffix(DAMAGE_END), missing_ok=True)


# -- the queue that was created here ------------------------------------------


_MARKER_FILE = "queue.initialised"


class Marker(NamedTuple):
    """Identifies the queue that was created here."""

    queue: str  # its name
    created: float  # seconds since the epoch


def marker_path(queue: Path) -> Path:
    """Return the path of the marker file of a queue file."""
    return queue.with_name(_MARKER_FILE)


def read_marker(queue: Path) -> Marker | None:
    """Return the marker, or None if there is none or it is empty (written by an early version)."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        document = json.loads(marker_path(queue).read_bytes())
        return Marker(str(document["queue"]), float(document["created"]))
    return None


def write_marker(queue: Path, marker: Marker) -> None:
    """Write the marker, unless the file contains it."""
    if read_marker(queue) != marker:
        disk.write_marker(marker_path(queue), json.dumps(marker._asdict()).encode() + b"\n")


# -- the number of the last commit, to detect lost commits ----------------------
#
# The file is written after each commit and not synchronised. Killing the process loses no data of it. After
# a power failure the file may lag behind the queue; it is never ahead of it. Queue and accounts have one.


log = logging.getLogger(__name__)
COMMITS_FILE = "queue.commits"
_BODY = struct.Struct("<8s16sQQ")
_DATED = struct.Struct("<8s16sQQd")  # with the time of the commit
_FORMS = {b"FGCOMMIT": _BODY, b"FGCOMMI2": _DATED}
_CHECK = struct.Struct("<I")
_SLOT = 512  # bytes from one record to the next: of two, a write that is cut short damages one
_SLOTS = 2  # that are written in turn, without being synchronised
_SIZE = _SLOT * (_SLOTS + 1)  # the last slot is as it was synchronised when the queue was opened


class Commit(NamedTuple):
    """The last commit of a queue or of accounts, as stored in the file beside it."""

    queue: str  # its name
    number: int  # how many commits there were
    last_job: int = 0  # of a queue: the highest assigned job id; of accounts: how many jobs were ever added
    at: float = 0.0  # epoch seconds; 0: not recorded


def commit_file(path: Path) -> Path:
    """Return the path of the commit file of a queue or of accounts: queue.commits, accounts.commits."""
    return path.with_suffix(".commits")


class Damaged(ValueError):
    """Raised if the file exists and contains no intact record."""


def read_commit(path: Path) -> Commit | None:
    """Return the last commit that the file at `path` records, or None if there is no file.

    Raises:
        Damaged: the file contains no intact record.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    records = list(_records(data))
    if not records:
        raise Damaged(f"no record in {path} is whole")
    return max(records, key=lambda commit: commit.number)


def _records(data: bytes) -> Iterator[Commit]:
    for start in range(0, _SIZE, _SLOT):
        form = _FORMS.get(data[start : start + 8], _BODY)
        body = data[start : start + form.size]
        check = data[start + form.size : start + form.size + _CHECK.size]
        if len(check) == _CHECK.size and _CHECK.unpack(check)[0] == crc32(body):
            magic, name, *numbers = form.unpack(body)
            if magic in _FORMS:
                yield Commit(name.rstrip(b"\0").decode("ascii", "replace"), *numbers)


def _packed(commit: Commit) -> bytes:
    name, numbers = commit.queue.encode(), (commit.number, commit.last_job)
    if commit.at:
        body = _DATED.pack(b"FGCOMMI2", name, *numbers, commit.at)
    else:
        body = _BODY.pack(b"FGCOMMIT", name, *numbers)
    return body + _CHECK.pack(crc32(body))


class Record:
    """The open commit file of one queue. It does nothing for a queue in memory (no path)."""

    def __init__(self, path: Path | None, commit: Commit, *, is_new: bool = True) -> None:
        """Open the file. `is_new`: the queue has no such file yet, and a failure to create one is fatal."""
        self.last = commit
        self._path = path
        self._fd = -1
        self._has_failed = False
        if path is not None:
            self._begin(path, is_new=is_new)

    def _begin(self, path: Path, *, is_new: bool) -> None:
        """Replace the file with synchronised records; keep the old one if the disk is full.

        Another error is fatal: a directory that cannot be synchronised loses the new log of SQLite, too.
        """
        try:
            disk.replace_file(path, _packed(self.last).ljust(_SLOT, b"\0") * (_SLOTS + 1))
        except OSError as error:
            if is_new or error.errno not in disk.FULL:
                raise
            log.warning("%s cannot be replaced: %s", path, error.strerror)
        self._fd = disk.open_file(path, os.O_WRONLY)
        self.note(self.last.number, self.last.last_job, self.last.at)

    def note(self, number: int, last_job: int, at: float = 0.0) -> None:
        """Write a commit. On failure the file lags behind the queue, which is not damage."""
        self.last = Commit(self.last.queue, number, last_job, at)
        if self._fd < 0:
            return
        try:
            disk.write(self._fd, _packed(self.last), number % _SLOTS * _SLOT)
        except OSError as error:
            if not self._has_failed:
                log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._has_failed = True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


# -- checksums of pages ---------------------------------------------------------
#
# The checksum of a page is valid unless the write-ahead log contains that page. SQLite writes pages into the
# file only at a checkpoint. After each checkpoint, before the log restarts, the checksums of the pages of
# the log are computed and synchronised. The file also stores the number of commits, of changed rows and of
# changes of the first page. If these differ and the log is empty, another program has written to the queue.


SUMS_FILE = "queue.sums"
_MAGIC = b"FGSUMS01"
_HEAD = struct.Struct("<8s16sQQI")
_ENTRY = struct.Struct("<II")  # the page's sum, and one of that and of its number
_START = 4096  # where the entries begin
_AT_ONCE = 256  # pages that are read at once


class State(NamedTuple):
    """Counters that identify a state of the queue file."""

    queue: str  # its name
    commits: int
    rows: int
    changes: int  # of its first page, as its header counts them


class Sums:
    """The checksums of one file of SQLite. No other process may write the file."""

    def __init__(self, queue: Path) -> None:
        """Open the files.

        `queue` stays open, because closing any descriptor of it would release SQLite's locks.
        """
        self.path = queue.with_suffix(".sums")
        self._queue = os.open(queue, os.O_RDONLY | os.O_CLOEXEC)
        self._fd = -1
        with suppress(FileNotFoundError):
            self._fd = disk.open_file(self.path, os.O_RDWR)

    @property
    def is_there(self) -> bool:
        return self._fd >= 0

    @property
    def state(self) -> State | None:
        """Return the state of the file when its checksums were computed, or None if unreadable."""
        head = os.pread(self._fd, _HEAD.size + _CHECK.size, 0) if self._fd >= 0 else b""
        body, check = head[: _HEAD.size], head[_HEAD.size :]
        if len(check) != _CHECK.size or _CHECK.unpack(check)[0] != crc32(body) or body[:8] != _MAGIC:
            return None
        _, name, *numbers = _HEAD.unpack(body)
        return State(name.rstrip(b"\0").decode("ascii", "replace"), *numbers)

    @property
    def pages(self) -> int:
        """Return the number of pages of the queue file."""
        return os.fstat(self._queue).st_size // PAGE

    @property
    def changes(self) -> int:
        """Return the change counter in the header of the queue file."""
        return int.from_bytes(os.pread(self._queue, 4, 24), "big")

    def damaged(self, first: int, last: int, logged: Collection[int]) -> list[int]:
        """Return the pages from `first` to `last` that differ from their checksums, without logged ones."""
        damaged = []
        for start in range(first, last + 1, _AT_ONCE):
            count = min(_AT_ONCE, last + 1 - start)
            entries = _whole(os.pread(self._fd, count * _ENTRY.size, _START + (start - 1) * _ENTRY.size))
            for (page, total), (recorded, check) in zip(
                self._totals(start, count), _ENTRY.iter_unpack(entries), strict=False
            ):
                if total != recorded and page not in logged and check == _check(page, recorded):
                    damaged.append(page)
        return damaged

    def _totals(self, start: int, count: int) -> Iterator[tuple[int, int]]:
        data = memoryview(os.pread(self._queue, count * PAGE, (start - 1) * PAGE))
        for page, at in enumerate(range(0, len(data) - PAGE + 1, PAGE), start):
            yield page, crc32(data[at : at + PAGE])

    def refresh(self, pages: Iterable[int], state: State) -> None:
        """Compute the checksums of these pages and of added pages, and make them durable."""
        last, summed = self.pages, max(0, os.fstat(self._fd).st_size - _START) // _ENTRY.size
        changed = sorted({page for page in pages if page <= last} | set(range(summed + 1, last + 1)))
        for start, count in _runs(changed):
            self._put(start, count)
        point("checkpoint_with_some_sums")
        disk.sync(self._fd)
        self._put_state(state)

    def _put(self, start: int, count: int) -> None:
        for at in range(start, start + count, _AT_ONCE):
            totals = self._totals(at, min(_AT_ONCE, start + count - at))
            data = b"".join(_ENTRY.pack(total, _check(page, total)) for page, total in totals)
            disk.write(self._fd, data, _START + (at - 1) * _ENTRY.size)

    def _put_state(self, state: State) -> None:
        body = _HEAD.pack(_MAGIC, state.queue.encode(), *state[1:])
        disk.write(self._fd, body + _CHECK.pack(crc32(body)))

    def rebuild(self, state: State) -> None:
        """Compute the checksums of all pages into a new file."""
        self.discard()
        fresh = self.path.with_name(f"{self.path.name}.new")
        self._fd = disk.open_file(fresh, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
        disk.write(self._fd, bytes(_START))
        self.refresh((), state)
        disk.sync(self._fd)
        disk.rename(fresh, self.path)
        disk.sync_directory(self.path.parent)

    def discard(self) -> None:
        """Delete the checksums, because no checksums are better than wrong ones."""
        disk.remove(self.path, missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def close(self) -> None:
        """Close the files. Call this only after SQLite has closed the queue."""
        if self._fd >= 0:
            with suppress(OSError):
                disk.sync(self._fd)
            os.close(self._fd)
        os.close(self._queue)
        self._fd = self._queue = -1

    def ahead(self, first: int, count: int) -> None:
        """Ask the kernel to read these pages in advance."""
        with suppress(OSError):
            os.posix_fadvise(self._queue, (first - 1) * PAGE, count * PAGE, os.POSIX_FADV_WILLNEED)


def _check(page: int, total: int) -> int:
    return crc32(_ENTRY.pack(page, total))


def _whole(entries: bytes) -> bytes:
    return entries[: len(entries) // _ENTRY.size * _ENTRY.size]


def _runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of each run of consecutive numbers."""
    for _, run in groupby(enumerate(pages), key=lambda pair: pair[1] - pair[0]):
        numbers = [page for _, page in run]
        yield numbers[0], len(numbers)
