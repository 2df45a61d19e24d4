"""Keep checksums of the pages of a file of SQLite, queue or accounts, in a file beside it.

The checksum of a page is valid unless the write-ahead log contains that page. SQLite writes pages into the
file only at a checkpoint. After each checkpoint, before the log restarts, the checksums of the pages of the
log are computed and synchronised. The file also stores the number of commits, of changed rows and of changes
of the first page. If these differ and the log is empty, another program has written to the queue.
"""

import logging
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from fgsched.crash import point
from fgsched.store.files import PAGE
from fgsched.system import disk

log = logging.getLogger(__name__)
FILE = "queue.sums"
_MAGIC = b"FGSUMS01"
_HEAD = struct.Struct("<8s16sQQI")
_CHECK = struct.Struct("<I")
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
        found = []
        for start in range(first, last + 1, _AT_ONCE):
            count = min(_AT_ONCE, last + 1 - start)
            entries = _whole(os.pread(self._fd, count * _ENTRY.size, _START + (start - 1) * _ENTRY.size))
            for (page, total), (known, check) in zip(
                self._totals(start, count), _ENTRY.iter_unpack(entries), strict=False
            ):
                if total != known and page not in logged and check == _check(page, known):
                    found.append(page)
        return found

    def _totals(self, start: int, count: int) -> Iterator[tuple[int, int]]:
        data = memoryview(os.pread(self._queue, count * PAGE, (start - 1) * PAGE))
        for page, at in enumerate(range(0, len(data) - PAGE + 1, PAGE), start):
            yield page, crc32(data[at : at + PAGE])

    def refresh(self, pages: Iterable[int], state: State) -> None:
        """Compute the checksums of these pages and of added pages, and make them durable."""
        last, summed = self.pages, max(0, os.fstat(self._fd).st_size - _START) // _ENTRY.size
        wanted = sorted({page for page in pages if page <= last} | set(range(summed + 1, last + 1)))
        for start, count in _runs(wanted):
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
