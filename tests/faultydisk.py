"""A disk whose power can fail: SQLite's files lose what was not synchronised, and its writes can fail.

`FaultyDisk` registers a file system with SQLite, and takes the place of the kernel of `fgsched.system.disk`.
It passes each call on, and remembers what every write replaced since its file was last synchronised. After
a power cut each of these writes is kept, lost or torn. Each call after the cut fails, so that a controller
can do no more.

A failed sync drops the pages of its file, as Linux does: their bytes can still be read, but later syncs do
not write them. They are lost at a power cut, or whenever the page cache needs memory, unless their page is
written again. A name whose directory could not be synchronised is lost in the same way.
"""

import _sqlite3
import ctypes
import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from fgsched.system import disk
from fgsched.system.disk import Kernel

OK, FULL = 0, 13
IOERR_WRITE, IOERR_FSYNC, IOERR_TRUNCATE, IOERR_DELETE = (10 | number << 8 for number in (3, 4, 6, 10))
SECTOR = 512  # bytes that a disk writes whole
PAGE = 4096  # bytes that the kernel writes back whole
_WRITE, _TRUNCATE, _SYNC = 3, 4, 5  # places of the methods of a file
_METHODS = 19  # words of the methods of a file, its version included
_Open = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
)  # the name stays an address: SQLite keeps it, and reads on behind its end
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _FileSystem(ctypes.Structure):
    """`sqlite3_vfs` of SQLite's interface."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", _Open),
        ("delete", _Delete),
        ("others", ctypes.c_void_p * 14),
    )


_Methods = ctypes.c_void_p * _METHODS


def why_not() -> str:
    """Return why SQLite's file system cannot be replaced here; "": it can."""
    try:
        _library()
    except (AttributeError, OSError) as error:
        return f"this Python hides SQLite's functions: {error}"
    return ""


def _library() -> ctypes.CDLL:
    """Return the SQLite that this Python uses."""
    found = ctypes.CDLL(_sqlite3.__file__)
    found.sqlite3_vfs_find.restype = ctypes.POINTER(_FileSystem)
    return found


class Replaced(NamedTuple):
    """What a write replaced."""

    offset: int
    data: bytes  # shorter than the write if that made the file longer
    written: int  # bytes


class File:
    """The writes to a file that are not synchronised."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.size = os.fstat(self.fd).st_size
        self.synced_size = self.size
        self.replaced: list[Replaced] = []
        self.dropped: dict[int, bytes] = {}  # page that only the cache holds -> what the disk has

    def will_write(self, offset: int, amount: int) -> None:
        for page in [
            one for one in self.dropped if offset < (one + 1) * PAGE and one * PAGE < offset + amount
        ]:
            self.replaced.append(Replaced(page * PAGE, self.dropped.pop(page), PAGE))
        if any(one.offset == offset and one.written == amount for one in self.replaced):
            return  # the disk has the older bytes still
        data = os.pread(self.fd, amount, offset) if offset < self.size else b""
        self.replaced.append(Replaced(offset, data, amount))
        self.size = max(self.size, offset + amount)

    def will_truncate(self, size: int) -> None:
        lost = os.pread(self.fd, self.size - size, size) if size < self.size else b""
        self.replaced.append(Replaced(size, lost, 0))
        self.size = size

    def synced(self) -> None:
        self.replaced.clear()
        self.synced_size = self.size

    def drop(self) -> None:
        """Mark the pages as written after a sync of them failed."""
        pages = {
            page
            for one in self.replaced
            for page in range(
                one.offset // PAGE, (one.offset + max(one.written, len(one.data)) - 1) // PAGE + 1
            )
        }
        images = {page: bytearray(os.pread(self.fd, PAGE, page * PAGE).ljust(PAGE, b"\0")) for page in pages}
        for offset, data, written in reversed(self.replaced):
            old = data.ljust(written, b"\0")
            for page, image in images.items():
                first, last = max(offset, page * PAGE), min(offset + len(old), (page + 1) * PAGE)
                if first < last:
                    image[first - page * PAGE : last - page * PAGE] = old[first - offset : last - offset]
        self.dropped = {page: bytes(image) for page, image in images.items()} | self.dropped
        self.replaced.clear()

    def evict(self, draw: random.Random, probability: float) -> None:
        """Read dropped pages from the disk again, as the kernel does when it needs memory."""
        size = os.fstat(self.fd).st_size
        for page in sorted(self.dropped):
            if draw.random() < probability:
                old = self.dropped.pop(page)
                os.pwrite(self.fd, old[: max(0, size - page * PAGE)], page * PAGE)

    def lose(self, draw: random.Random) -> None:
        """Keep, lose or tear each write since the file was synchronised, the last one first."""
        for offset, data, written in reversed(self.replaced):
            fate = draw.random()
            if fate < 0.4:
                continue
            kept = draw.randrange(0, written, SECTOR) if fate > 0.8 and written > SECTOR else 0
            old = data.ljust(written, b"\0")
            os.pwrite(self.fd, old[kept:], offset + kept)
        self.evict(draw, 1.0)
        if draw.random() < 0.5 and self.synced_size < os.fstat(self.fd).st_size:
            os.truncate(self.fd, self.synced_size)
        self.size = os.fstat(self.fd).st_size
        self.synced()


class Renamed(NamedTuple):
    """A name that is not on the disk, as its directory was not synchronised since."""

    source: str
    target: str
    old: str  # the file that had the name before; "": none
    is_dropped: bool = False  # no later sync writes it


class FaultyKernel(Kernel):
    """The system calls of the product for durable files, on a faulty disk."""

    def __init__(self, faulty: "FaultyDisk") -> None:
        self._disk = faulty

    def write(self, fd: int, data: bytes, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self._disk.will_write(path, offset, len(data))
        return super().write(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._disk.will_truncate(os.readlink(f"/proc/self/fd/{fd}"), size)
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._disk.sync(os.readlink(f"/proc/self/fd/{fd}"))

    def rename(self, source: Path, target: Path) -> None:
        self._disk.rename(str(source), str(target))


class FaultyDisk:
    """The disk of the files below a directory, while the block lasts. `is_full` refuses longer files."""

    def __init__(self, directory: Path, draw: random.Random) -> None:
        self._directory, self._draw = os.fsencode(directory), draw
        self._files: dict[int, File] = {}  # by the address of SQLite's file
        self._by_path: dict[str, File] = {}
        self._tables: dict[int, Any] = {}  # address of SQLite's methods -> ours
        self._kept: list[Any] = []  # functions that SQLite calls
        self._renamed: list[Renamed] = []
        self._attic = directory.parent / f"{directory.name}.attic"  # of files that lost their names
        self.without: tuple[str, ...] = ()  # directories whose files are lost elsewhere
        self.is_cut = self.is_full = False
        self.synced: Callable[[str], None] = lambda path: None  # called before a file is synchronised
        self.faults = 0
        self._countdown, self._fault = -1, OK
        self.calls = 0

    def __enter__(self) -> "FaultyDisk":
        self._sqlite = _library()
        self._own = self._sqlite.sqlite3_vfs_find(None)
        self._system = _FileSystem.from_buffer_copy(self._own.contents)
        self._system.name = b"faulty"
        self._system.open, self._system.delete = (
            self._keep(_Open(self._open)),
            self._keep(_Delete(self._delete)),
        )
        assert self._sqlite.sqlite3_vfs_register(ctypes.byref(self._system), 1) == OK
        self._usual, disk.kernel = disk.kernel, FaultyKernel(self)
        self._attic.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sqlite.sqlite3_vfs_unregister(ctypes.byref(self._system))
        disk.kernel = self._usual
        shutil.rmtree(self._attic)
        for file in self._by_path.values():
            os.close(file.fd)

    def _keep(self, function: Any) -> Any:
        self._kept.append(function)
        return function

    # -- faults ---------------------------------------------------------------------------------------

    def arm(self, calls: int, fault: str) -> None:
        """Make a write or sync fail after `calls` more: "cut", or "EIO" for this one call only."""
        self._countdown, self._fault = calls, OK if fault == "cut" else IOERR_WRITE

    @property
    def is_armed(self) -> bool:
        """Whether a later call will fail."""
        return self._countdown >= 0

    def disarm(self) -> None:
        """Let no later call fail."""
        self._countdown = -1

    def _is_refused(self) -> bool:
        self.calls += 1
        if self._countdown >= 0:
            self._countdown -= 1
            if self._countdown < 0:
                self.faults += 1
                self.is_cut = self._fault == OK
                return True
        return self.is_cut

    @property
    def unsynced(self) -> list[Replaced]:
        """What the writes that are not synchronised replaced."""
        return [one for file in self._by_path.values() for one in file.replaced]

    def cut(self) -> None:
        """Let every later call fail; `lose` then decides what is on the disk."""
        self.is_cut = True

    def restore(self, *, is_power: bool) -> None:
        """Let the next controller use the disk; after a loss of power without what was not synchronised."""
        self.is_cut = False
        for path in sorted(self._by_path):
            if not os.path.exists(path):
                os.close(self._by_path.pop(path).fd)
        if is_power:
            for path in sorted(self._by_path):
                self._by_path[path].lose(self._draw)
            self._lose_names()
        else:
            for path in sorted(self._by_path):
                self._by_path[path].evict(self._draw, self._draw.choice([0.0, 0.0, 0.5, 1.0]))

    def _lose_names(self) -> None:
        """Undo renames: all after the first one that was lost, as a journal does, and the dropped ones."""
        left = self._draw.randrange(len(self._renamed) + 1)
        for number, (_, target, old, is_dropped) in reversed([*enumerate(self._renamed)]):
            if number >= left or is_dropped:
                known = self._by_path.pop(target, None)
                if known is not None:
                    os.close(known.fd)
                if old:
                    os.replace(old, target)
                elif os.path.exists(target):
                    os.unlink(target)
        self._renamed.clear()

    # -- what the product calls -----------------------------------------------------------------------

    def _is_ours(self, path: str) -> bool:
        return (os.fsencode(path) + b"/").startswith(self._directory + b"/")

    def _is_tracked(self, path: str) -> bool:
        return self._is_ours(path) and not path.startswith(self.without)

    def _refuse(self, path: str, *, bytes_more: bool = False) -> None:
        """Raise the error of a call that fails."""
        if not self._is_ours(path):
            return
        if self._is_refused():
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.is_full and bytes_more:
            self.faults += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def will_write(self, path: str, offset: int, amount: int) -> None:
        is_longer = self._is_ours(path) and offset + amount > os.path.getsize(path)
        self._refuse(path, bytes_more=is_longer)
        if self._is_tracked(path):
            self._file(path).will_write(offset, amount)

    def will_truncate(self, path: str, size: int) -> None:
        self._refuse(path)
        if self._is_tracked(path):
            self._file(path).will_truncate(size)

    def sync(self, path: str) -> None:
        is_tracked = self._is_tracked(path)
        try:
            self._refuse(path)
        except OSError:
            if not self.is_cut and is_tracked:
                self._drop(path)
            raise
        if not is_tracked:
            return
        if os.path.isdir(path):
            self._renamed = [one for one in self._renamed if one.is_dropped or not self._is_in(one, path)]
        else:
            self.synced(path)
            self._file(path).synced()

    def _is_in(self, one: Renamed, directory: str) -> bool:
        return os.path.dirname(one.target) == directory

    def _drop(self, path: str) -> None:
        if os.path.isdir(path):
            self._renamed = [
                one._replace(is_dropped=True) if self._is_in(one, path) else one for one in self._renamed
            ]
        else:
            self._file(path).drop()
            self._file(path).evict(self._draw, self._draw.choice([0.0, 0.0, 0.0, 0.5, 1.0]))

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)
        if self._is_tracked(target):
            old = ""
            if os.path.exists(target):
                old = str(self._attic / str(self.calls))
                os.link(target, old)
            earlier = [one for one in self._renamed if one.target == target]
            self._renamed = [one for one in self._renamed if one.target != target]
            old = earlier[0].old if earlier else old  # what the disk has
            self._renamed.append(Renamed(source, target, old))
            if source in self._by_path:
                if target in self._by_path:
                    os.close(self._by_path[target].fd)
                self._by_path[target] = known = self._by_path.pop(source)
                known.path = target
        os.rename(source, target)

    # -- what SQLite calls ----------------------------------------------------------------------------

    def _open(self, system: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        done: int = self._own.contents.open(ctypes.addressof(self._own.contents), name, file, flags, out)
        path = ctypes.string_at(name) if name else b""
        if done == OK and path.startswith(self._directory):
            self._files[file] = self._file(os.fsdecode(path))
            place = ctypes.c_void_p.from_address(file)
            place.value = ctypes.addressof(self._methods(place.value or 0))
        return done

    def _file(self, path: str) -> File:
        known = self._by_path.get(path)
        if known is None or not os.path.samestat(os.fstat(known.fd), os.stat(path)):
            if known is not None:
                os.close(known.fd)
            self._by_path[path] = known = File(path)
        known.size = os.fstat(known.fd).st_size
        return known

    def _methods(self, address: int) -> Any:
        """Return the methods of a file of which those that write are ours."""
        if address not in self._tables:
            table = _Methods.from_buffer_copy(_Methods.from_address(address))
            write, truncate, sync = _Write(table[_WRITE]), _Truncate(table[_TRUNCATE]), _Sync(table[_SYNC])
            ours = (
                (_WRITE, _Write(lambda *words: self._write(write, *words))),
                (_TRUNCATE, _Truncate(lambda *words: self._truncate(truncate, *words))),
                (_SYNC, _Sync(lambda *words: self._sync(sync, *words))),
            )
            for place, function in ours:
                table[place] = ctypes.cast(self._keep(function), ctypes.c_void_p)
            self._tables[address] = table
        return self._tables[address]

    def _write(self, own: Any, file: int, data: int, amount: int, offset: int) -> int:
        if self._is_refused():
            return IOERR_WRITE
        if self.is_full and offset + amount > self._files[file].size:
            self.faults += 1
            return FULL
        self._files[file].will_write(offset, amount)
        return int(own(file, data, amount, offset))

    def _truncate(self, own: Any, file: int, size: int) -> int:
        if self._is_refused():
            return IOERR_TRUNCATE
        self._files[file].will_truncate(size)
        return int(own(file, size))

    def _sync(self, own: Any, file: int, flags: int) -> int:
        if self._is_refused():
            if not self.is_cut:
                self._drop(self._files[file].path)
            return IOERR_FSYNC
        self.synced(self._files[file].path)
        self._files[file].synced()
        return OK

    def _delete(self, system: int, name: bytes, syncs: int) -> int:
        if self._is_refused():
            return IOERR_DELETE
        return int(self._own.contents.delete(ctypes.addressof(self._own.contents), name, syncs))
