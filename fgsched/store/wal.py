"""The write-ahead log of SQLite, as far as its frames say which pages they are of.

A header of 32 bytes, then frames: 24 bytes, with the number of the page first, and the page. Frames that were
written since the log was last begun from its start have the two salts of the header.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path

from fgsched.store.files import PAGE

_HEADER, _HEAD = 32, 24
_FRAME = _HEAD + PAGE
_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_SALTS = slice(16, 24)  # of the header; in a frame they are at 8 to 16


def frames(path: Path) -> int:
    """How many frames the log has, as its salts tell. Some at the end may not be committed, or be damaged."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _frames(fd)
        finally:
            os.close(fd)
    return 0


def pages(path: Path) -> set[int]:
    """The numbers of the pages of which the log has a frame."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = _frames(fd)
            return _pages(fd, count) if count else set()
        finally:
            os.close(fd)
    return set()


def _frames(fd: int) -> int:
    header = os.pread(fd, _HEADER, 0)
    if len(header) < _HEADER or header[:4] not in _MAGICS or int.from_bytes(header[8:12], "big") != PAGE:
        return 0
    low, high = 0, (os.fstat(fd).st_size - _HEADER) // _FRAME
    while low < high:  # those with the salts come first
        middle = (low + high) // 2
        if os.pread(fd, 8, _HEADER + middle * _FRAME + 8) == header[_SALTS]:
            low = middle + 1
        else:
            high = middle
    return low


def _pages(fd: int, count: int) -> set[int]:
    with mmap.mmap(fd, _HEADER + count * _FRAME, prot=mmap.PROT_READ) as log:
        starts = range(_HEADER, _HEADER + count * _FRAME, _FRAME)
        return {int.from_bytes(log[start : start + 4], "big") for start in starts}
