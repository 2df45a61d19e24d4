"""A file system whose program never answers (FUSE), as a user can mount one over what is the user's."""

import ctypes
import errno
import os
import stat
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from compiled import compiled

_LIBC = ctypes.CDLL(None, use_errno=True)
_FORCE, _DETACH = 1, 2  # of umount2(2)


def _is_possible() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


needs_fuse = pytest.mark.skipif(not _is_possible(), reason="FUSE: root with /dev/fuse")


@contextmanager
def mounted(place: Path) -> Iterator[None]:
    """Mount it over a file or a directory for the time of the block."""
    kind = stat.S_IFMT(place.lstat().st_mode)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode={kind:o},user_id=65534,group_id=65534,allow_other"
    try:
        assert _LIBC.mount(b"silent", os.fsencode(place), b"fuse", 0, options.encode()) == 0
        yield
    finally:
        os.close(device)  # whoever waits for an answer is told that there will be none
        _LIBC.umount2(os.fsencode(place), _DETACH)


# A program that maps a file past the cache (descriptor opened first), while another program waits for a page
# of the file in the cache: the kernel waits for this page with the memory map of the process locked.
MAPS = """
import ctypes, mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
os.setresuid(*[int(sys.argv[2])] * 3)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable: /proc/PID is the user's
os.write(1, b"opened\\n")
os.read(0, 1)
mmap.mmap(descriptor, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
"""


class Unread:
    """A file whose reads are never answered."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.is_read = threading.Event()  # a read waits for its answer
        self._opens = 0

    def open_flags(self) -> int:
        """Return past the cache for the first program that opens it, and in the cache for others."""
        self._opens += 1
        return _DIRECT if self._opens == 1 else _KEEP_CACHE

    def serve(self, device: int) -> None:
        """Answer all but reads until the file system is unmounted."""
        times, mode = [0] * 6, stat.S_IFREG | 0o666
        numbers = (3600, 0, 0, 1, _LENGTH, _LENGTH >> 9, *times, mode, 1, 0, 0, 0, 4096, 0)
        attributes = struct.pack("<QIIQQQQQQIIIIIIIIII", *numbers)
        answers = {
            _INIT: _STARTED,
            _GETATTR: attributes,
            _RELEASE: b"",
            _FLUSH: b"",
        }
        with suppress(OSError):
            while request := os.read(device, (1 << 16) + 4096):
                _, kind, unique = struct.unpack_from("<IIQ", request)
                if kind == _READ:
                    self.is_read.set()
                    continue
                is_open = kind == _OPEN
                answer = struct.pack("<QII", 1, self.open_flags(), 0) if is_open else answers.get(kind)
                error, data = (0, answer) if answer is not None else (-errno.ENOSYS, b"")
                os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)

    def release(self) -> None:
        """End the file system, so that all who wait for it go on."""
        subprocess.run(["umount", "-f", self.place], check=False, stderr=subprocess.DEVNULL)


_LENGTH = 1 << 20  # bytes of the file
_GETATTR, _OPEN, _READ, _INIT, _RELEASE, _FLUSH = 3, 14, 15, 26, 18, 25  # linux/fuse.h
_DIRECT, _KEEP_CACHE = 1, 2
_STARTED = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 1 << 16, 1, 0, 0, 0)  # the answer to INIT


def _fail(device: int) -> None:
    with suppress(OSError):
        while request := os.read(device, (1 << 16) + 4096):
            _, kind, unique = struct.unpack_from("<IIQ", request)
            error, data = (0, _STARTED) if kind == _INIT else (-errno.EIO, b"")
            os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


@contextmanager
def failing(place: Path) -> Iterator[None]:
    """Mount a file system that answers each request with EIO, for the time of the block."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id=65534,group_id=65534,allow_other"
    assert _LIBC.mount(b"failing", os.fsencode(place), b"fuse", 0, options.encode()) == 0
    server = threading.Thread(target=_fail, args=(device,), daemon=True)
    server.start()
    try:
        yield
    finally:
        _LIBC.umount2(os.fsencode(place), _DETACH)
        server.join(10)
        os.close(device)


@contextmanager
def unread(place: Path) -> Iterator[Unread]:
    """Mount such a file over a file for the time of the block."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode={stat.S_IFREG:o},user_id=0,group_id=0,allow_other"
    assert _LIBC.mount(b"unread", os.fsencode(place), b"fuse", 0, options.encode()) == 0
    file = Unread(place)
    server = threading.Thread(target=file.serve, args=(device,), daemon=True)
    server.start()
    try:
        yield file
    finally:
        _LIBC.umount2(os.fsencode(place), _FORCE)  # ends all waits for an answer
        _LIBC.umount2(os.fsencode(place), _DETACH)
        server.join(10)
        os.close(device)


def executing_program() -> Path:
    """Return the compiled tests/executing.c, which tells what it does."""
    source = Path(__file__).with_name("executing.c")

    def make(folder: Path) -> None:
        subprocess.run(["cc", "-static", "-o", folder / "executing", source], check=True)

    return compiled("executing", [source], ["-static"], make) / "executing"


def until_it_waits(pid: int) -> None:
    """Wait until a reader of a process waits: it executes a program then."""
    while True:
        reader = subprocess.Popen(["cat", f"/proc/{pid}/auxv"], stdout=subprocess.DEVNULL)
        try:
            reader.wait(1)
        except subprocess.TimeoutExpired:
            return
        finally:
            reader.kill()
            reader.wait()
