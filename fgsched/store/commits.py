"""Store the number of the last commit of a file of SQLite beside it, to detect lost commits.

The file is written after each commit and not synchronised. Killing the process loses no data of it. After a
power failure the file may lag behind the queue; it is never ahead of it. The queue and the accounts have one.
"""

import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from fgsched.system import disk

log = logging.getLogger(__name__)
FILE = "queue.commits"
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
