"""Read the write-ahead log of SQLite: which pages its frames contain.

The log has a header of 32 bytes, then frames: 24 bytes that begin with the page number, followed by the page.
Frames written since the log was last restarted contain the two salts of the header.
"""

import os
import sqlite3
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.domain.errors import StorageError
from fgsched.store.files import PAGE
from fgsched.system import disk

_HEADER, _HEAD = 32, 24
_FRAME = _HEAD + PAGE
_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_VERSION = 3007000  # of the format
_PAGES = 2**24  # no queue has so many
_SALTS = slice(16, 24)  # of the header; in a frame they are at 8 to 16

# options of a connection that does not write to the index either; see `make_index`
READ_ONLY = "mode=ro&readonly_shm=1"


def frames(path: Path) -> int:
    """Count the frames with the current salts. Some at the end may be uncommitted or damaged."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _frames(fd)
        finally:
            os.close(fd)
    return 0


def pages(path: Path) -> set[int]:
    """Return the numbers of the pages that have a frame in the log."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = _frames(fd)
            return _pages(fd, count) if count else set()
        finally:
            os.close(fd)
    return set()


def write_again(path: Path, *, in_place: bool = False) -> None:
    """Make header and frames durable, whatever happened to earlier syncs of the log: commits rely on them.

    A later frame is valid only behind all earlier ones, so one frame that is only in the page cache endangers
    every commit behind it. A checkpoint instead would put pages of a commit that is not durable into the
    file. `in_place`: other processes read the log now, and need this file.

    SQLite synchronises the name of a log only in the process that created it. An empty log of an earlier
    process is therefore removed, and another one without frames is written again, too.

    Raises:
        OSError: the log is perhaps not durable.
    """
    disk.restore_name(path)
    with suppress(FileNotFoundError):
        count, size = frames(path), path.stat().st_size
        if not size and not in_place:
            disk.remove(path)
            return
        disk.write_again(path, _HEADER + count * _FRAME if count else size, in_place=in_place)


def use(db: sqlite3.Connection, path: Path | str) -> None:
    """Make SQLite write a log. Raises StorageError if it does not.

    Where a write fails, SQLite keeps its other journal and reports no error; with that one, a loss of power
    takes back the last commit.
    """
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] not in ("wal", "memory"):
        raise StorageError(f"{path} cannot be written", "Check the disk that contains this file.")


def refuse_leftover(path: Path) -> None:
    """Refuse a closed file of SQLite that still has a log.

    SQLite ignores the error of the checkpoint at its last close, and keeps the log then: pages are missing in
    the file, or will be after a loss of power. Raises StorageError.
    """
    if path.with_name(f"{path.name}-wal").exists():
        raise StorageError(f"{path} cannot be written completely", "Check the disk that contains this file.")


def remove_database(path: Path) -> None:
    """Remove a file of SQLite with its log and the log's index, as far as they exist. Raises OSError."""
    for end in ("", "-wal", "-shm"):
        disk.remove(path.with_name(f"{path.name}{end}"), missing_ok=True)


def newest(path: Path, page: int) -> bytes:
    """Return the content of a page in its last frame, which may be uncommitted; b"" without a frame."""
    with suppress(FileNotFoundError), open(path, "rb") as log:
        for start in range(_HEADER + (_frames(log.fileno()) - 1) * _FRAME, 0, -_FRAME):
            if int.from_bytes(os.pread(log.fileno(), 4, start), "big") == page:
                return os.pread(log.fileno(), PAGE, start + _HEAD)
    return b""


def _frames(fd: int) -> int:
    header = os.pread(fd, _HEADER, 0)
    if len(header) < _HEADER or header[:4] not in _MAGICS or int.from_bytes(header[8:12], "big") != PAGE:
        return 0
    low, high = 0, (os.fstat(fd).st_size - _HEADER) // _FRAME
    while low < high:  # frames with the current salts come first
        middle = (low + high) // 2
        if os.pread(fd, 8, _HEADER + middle * _FRAME + 8) == header[_SALTS]:
            low = middle + 1
        else:
            high = middle
    return low


def _pages(fd: int, count: int) -> set[int]:
    """Read the page numbers of `count` frames, not by a mapping: the log can become shorter meanwhile."""
    starts = range(_HEADER, _HEADER + count * _FRAME, _FRAME)
    numbers = {int.from_bytes(os.pread(fd, 4, start), "big") for start in starts}
    return numbers - {0}  # a frame that a power cut tore apart


def make_index(path: Path) -> bool:
    """Make an empty index of a log (-shm), if there is none, for READ_ONLY; return whether it was made.

    SQLite maps the index. A connection that writes to it, even to say what it reads, is ended by SIGBUS where
    the page has no space: with copy on write (btrfs), a page needs space at each write. With an empty index,
    SQLite keeps one in memory. Without space for its name, nothing is made.
    """
    with suppress(OSError):
        status = path.stat()
        index, flags = path.with_name(f"{path.name}-shm"), os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(index, os.O_CREAT | flags, status.st_mode & 0o666)
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
        finally:
            os.close(fd)
        return True
    return False


def has_commit(path: Path) -> bool:
    """Tell whether SQLite reads a commit from a log: frames with their checksums, to the last of a commit."""
    with suppress(FileNotFoundError), path.open("rb") as log:
        header = log.read(_HEADER)
        if len(header) < _HEADER or header[:4] not in _MAGICS:
            return False
        order = "<" if header[:4] == _MAGICS[0] else ">"
        seen = _checksum(header[:24], (0, 0), order)
        is_whole = _packed(seen) == header[24:]
        while is_whole and len(frame := log.read(_FRAME)) == _FRAME:
            seen = _checksum(frame[:8] + frame[_HEAD:], seen, order)
            is_whole = _packed(seen) == frame[16:_HEAD] and frame[8:16] == header[_SALTS]
            if is_whole and any(frame[4:8]):  # the size of the file after a commit
                return True
    return False


# -- a damaged log -----------------------------------------------------------------------------------


def copy_mended(log: Path, copy: Path) -> tuple[int, ...]:
    """Copy a log, if there is one, repaired so that SQLite reads all frames.

    Return the pages that were damaged and are used as they are, in their order. Raises OSError.
    """
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return ()
    repaired = mended(content)
    copy.write_bytes(repaired.log if repaired else content)
    return tuple(sorted(repaired.damaged)) if repaired else ()


class Mended(NamedTuple):
    """A repaired log: SQLite accepts every frame, including frames that were damaged."""

    log: bytes
    damaged: tuple[int, ...]  # pages whose last frame is damaged; their content is used unchanged


def mended(log: bytes) -> Mended | None:
    """Recompute the checksums of a log, because SQLite ignores all frames after a damaged one.

    Return None if nothing is damaged or nothing can be repaired.
    """
    salts = _salts(log)
    starts = range(_HEADER, len(log) - _FRAME + 1, _FRAME)
    is_current = [log[start + 8 : start + 16] == salts for start in starts]
    if not any(is_current):
        return None
    count = len(is_current) - is_current[::-1].index(True)
    order, magic = ("<", _MAGICS[0]) if sys.byteorder == "little" else (">", _MAGICS[1])
    header = magic + struct.pack(">2I", _VERSION, PAGE) + log[12:16] + salts
    true = fresh = _checksum(header, (0, 0), order)
    pieces, last = [header + _packed(fresh)], dict[int, bool]()
    is_damaged = pieces[0] != log[:_HEADER]
    for start in starts[:count]:
        frame = log[start : start + _FRAME]
        stored = _unpacked(frame[16:24])
        computed = _checksum(frame[:8] + frame[_HEAD:], true, order)
        is_whole = stored == computed and frame[8:16] == salts
        is_damaged |= not is_whole
        true = stored if is_whole or _follows(log, start + _FRAME, stored, order) else computed
        page = int.from_bytes(frame[:4], "big")
        if is_whole or 0 < page < _PAGES:
            fresh = _checksum(frame[:8] + frame[_HEAD:], fresh, order)
            pieces.append(frame[:8] + salts + _packed(fresh) + frame[_HEAD:])
            last[page] = is_whole
    return (
        Mended(b"".join(pieces), tuple(p for p, whole in last.items() if not whole)) if is_damaged else None
    )


def _salts(log: bytes) -> bytes:
    """Return the salts of the header, or those on which the first two frames agree if they differ."""
    first, second = (log[start + 8 : start + 16] for start in (_HEADER, _HEADER + _FRAME))
    return first if first == second else log[_SALTS]


def _follows(log: bytes, start: int, before: tuple[int, int], order: str) -> bool:
    """Tell whether the frame at `start` was written after a frame with the checksum `before`."""
    frame = log[start : start + _FRAME]
    is_there = len(frame) == _FRAME
    return is_there and _checksum(frame[:8] + frame[_HEAD:], before, order) == _unpacked(frame[16:24])


def _checksum(data: bytes, seed: tuple[int, int], order: str) -> tuple[int, int]:
    """Compute the checksum that SQLite's file format defines for the log."""
    first, second = seed
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _packed(checksum: tuple[int, int]) -> bytes:
    return struct.pack(">2I", *checksum)


def _unpacked(data: bytes) -> tuple[int, int]:
    first, second = struct.unpack(">2I", data)
    return first, second
