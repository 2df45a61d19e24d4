"""A disk whose power can fail: files lose what was not synchronised, and each call can fail.

`FaultyDisk` registers a file system with SQLite, and takes the place of the kernel of `fgsched.system.disk`.
It passes each call on, and remembers what every write replaced since its file was last synchronised. After
a power cut each of these writes is kept, lost or torn. Each call after the cut fails, so that a controller
can do no more.

A failed sync drops the pages of its file, as Linux does: their bytes can still be read, but later syncs do
not write them. They are lost at a power cut, or whenever the page cache needs memory, unless their page is
written again.

Names are kept by their directories: files that were created, renamed, linked and removed since a directory
was synchronised can lose these changes at a power cut, the last ones first. A directory whose sync failed
loses its changes in any case, unless they are made again.
"""

import _sqlite3
import ctypes
import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from fgsched.system import disk
from fgsched.system.disk import Kernel

KINDS = ("write", "sync", "truncate", "create", "rename", "link", "remove", "directory")  # of calls
OK, FULL = 0, 13
IOERR_WRITE, IOERR_FSYNC, IOERR_TRUNCATE, IOERR_DELETE = (10 | number << 8 for number in (3, 4, 6, 10))
SECTOR = 512  # bytes that a disk writes whole
PAGE = 4096  # bytes that the kernel writes back whole
_WRITE, _TRUNCATE, _SYNC = 3, 4, 5  # places of the methods of a file
_MAIN = 0x100  # the flag of a file that is no log
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


@dataclass
class Change:
    """Names that changed together, since their directories were synchronised."""

    files: dict[str, str]  # path -> a second name of its file in the attic; "": it has no file
    dropped: set[str] = field(default_factory=set)  # paths whose directory no later sync writes


class FaultyKernel(Kernel):
    """The system calls of the product for durable files, on a faulty disk."""

    def __init__(self, faulty: "FaultyDisk") -> None:
        self._disk = faulty

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if not flags & os.O_CREAT or path.exists():
            return super().open(path, flags, mode)
        with self._disk.changing("create", path):
            return super().open(path, flags, mode)

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
        os.stat(source)  # a missing file is no call of the disk
        with self._disk.changing("rename", source, target):
            super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        with self._disk.changing("link", target):
            super().link(source, target)

    def remove(self, path: Path) -> None:
        os.lstat(path)
        with self._disk.changing("remove", path):
            super().remove(path)


class FaultyDisk:
    """The disk of the files below a directory, while the block lasts. `is_full` refuses longer files."""

    def __init__(self, directory: Path, draw: random.Random) -> None:
        self._directory, self._draw = os.fsencode(directory), draw
        self._open_files: dict[int, File] = {}  # by the address of SQLite's file
        self._files: dict[tuple[int, int], File] = {}  # by device and inode
        self._tables: dict[int, Any] = {}  # address of SQLite's methods -> ours
        self._functions: list[Any] = []  # that SQLite calls
        self._changes: list[Change] = []  # of names
        self._names: dict[str, str] = {}  # path -> the file that the disk has there, as in Change
        self._created: set[int] = set()  # addresses of files whose first sync makes their names durable
        self._attic = directory.parent / f"{directory.name}.attic"  # second names of files
        self._links = 0
        self._faults: dict[str, tuple[int, int]] = {}  # kind of call -> calls until it fails, how
        self.is_cut = self.is_full = False
        self.hurt: Counter[str] = Counter()  # calls that failed

    def __enter__(self) -> "FaultyDisk":
        self._sqlite = _library()
        self._own = self._sqlite.sqlite3_vfs_find(None)
        self._system = _FileSystem.from_buffer_copy(self._own.contents)
        self._system.name = b"faulty"
        self._system.open, self._system.delete = (
            self._called(_Open(self._open)),
            self._called(_Delete(self._delete)),
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
        for file in self._files.values():
            os.close(file.fd)

    def _called(self, function: Any) -> Any:
        self._functions.append(function)
        return function

    # -- faults ---------------------------------------------------------------------------------------

    def arm(self, calls: int, fault: str, kind: str = "") -> None:
        """Let a call fail after `calls` more of its kind, or of any kind: "cut", or "EIO" this once."""
        self._faults[kind] = calls, OK if fault == "cut" else IOERR_WRITE

    def disarm(self, *, is_cut_only: bool = False) -> None:
        """Let no later call fail."""
        self._faults = {kind: fault for kind, fault in self._faults.items() if kind} if is_cut_only else {}

    @contextmanager
    def unarmed(self) -> Iterator[None]:
        """Let no call fail while the block lasts."""
        faults, self._faults = self._faults, {}
        yield
        self._faults = faults

    def _is_refused(self, kind: str) -> bool:
        for name in ("", kind):
            left, fault = self._faults.get(name, (-1, OK))
            if left == 0:
                del self._faults[name]
                self.is_cut = self.is_cut or fault == OK
                self.hurt[f"disk: {kind}" if fault else "disk: power"] += 1
                return True
            if left > 0:
                self._faults[name] = left - 1, fault
        return self.is_cut

    @property
    def unsynced(self) -> list[Replaced]:
        """What the writes that are not synchronised replaced."""
        return [one for file in self._files.values() for one in file.replaced]

    def write_back(self, path: Path) -> None:
        """Write what waits in the page cache for a file, as the kernel does after half a minute."""
        if path.exists():
            self._file(str(path)).synced()

    def cut(self) -> None:
        """Let every later call fail; `restore` then decides what is on the disk."""
        self.is_cut = True

    def restore(self, *, is_power: bool) -> None:
        """Let the next controller use the disk; after a loss of power without what was not synchronised."""
        self.is_cut = False
        for file in self._files.values():
            if is_power:
                file.lose(self._draw)
            else:
                file.evict(self._draw, self._draw.choice([0.0, 0.0, 0.5, 1.0]))
        if is_power:
            self._lose_names()
        for key, file in [*self._files.items()]:
            if not os.fstat(file.fd).st_nlink:
                os.close(self._files.pop(key).fd)

    # -- names ----------------------------------------------------------------------------------------

    @contextmanager
    def changing(self, kind: str, *paths: Path) -> Iterator[None]:
        """Change names, unless the call fails."""
        names = [str(path) for path in paths if self._is_ours(str(path))]
        if names:
            self._refuse(names[-1], kind)
        with self._noting(names):
            yield

    @contextmanager
    def _noting(self, names: Iterable[str]) -> Iterator[None]:
        fresh = [name for name in names if name not in self._names]
        before = {name: self._second_name(name) for name in fresh}
        yield
        self._names |= before
        self._changes.append(Change({name: self._second_name(name) for name in names}))

    def _second_name(self, path: str) -> str:
        """Keep the file that has a name now."""
        self._links += 1
        kept = str(self._attic / str(self._links))
        try:
            os.link(path, kept)
        except FileNotFoundError:
            return ""
        return kept

    def _directory_synced(self, directory: str) -> None:
        """Make the changes in a directory durable; a file is renamed in both of its directories."""
        for change in [*self._changes]:
            here = {path for path in change.files if os.path.dirname(path) == directory}
            if here - change.dropped:
                self._is_durable(change)
        self._tidy()

    def _is_durable(self, change: Change) -> None:
        for path in [path for path in change.files if path not in change.dropped]:
            for earlier in self._changes:
                file = earlier.files.pop(path, None)
                if earlier is change:
                    self._names[path] = file or ""
                    break

    def _tidy(self) -> None:
        """Forget what is durable."""
        self._changes = [change for change in self._changes if change.files]
        pending = {path for change in self._changes for path in change.files}
        self._names = {path: file for path, file in self._names.items() if path in pending}
        needed = {os.path.basename(file) for file in self._names.values()}
        needed |= {os.path.basename(file) for change in self._changes for file in change.files.values()}
        for name in os.listdir(self._attic):
            if name not in needed:
                os.unlink(self._attic / name)

    def _lose_names(self) -> None:
        """Undo changes of names: the dropped ones, and all after the first that was lost, as a journal."""
        left, names = self._draw.randrange(len(self._changes) + 1), dict(self._names)
        for change in self._changes[:left]:
            names |= {path: file for path, file in change.files.items() if path not in change.dropped}
        for path, file in names.items():
            if file and os.path.isdir(os.path.dirname(path)):  # else removed with its directory
                os.link(file, again := f"{path}.restored")
                os.replace(again, path)
                with suppress(FileNotFoundError):  # both are names of one file
                    os.unlink(again)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(path)
        self._changes.clear()
        self._tidy()

    # -- what the product calls -----------------------------------------------------------------------

    def _is_ours(self, path: str) -> bool:
        return (os.fsencode(path) + b"/").startswith(self._directory + b"/")

    def _refuse(self, path: str, kind: str, *, bytes_more: bool = False) -> None:
        """Raise the error of a call that fails."""
        if self._is_refused(kind):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.is_full and bytes_more:
            self.hurt["disk: full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def will_write(self, path: str, offset: int, amount: int) -> None:
        if self._is_ours(path):
            self._refuse(path, "write", bytes_more=offset + amount > os.path.getsize(path))
            self._file(path).will_write(offset, amount)

    def will_truncate(self, path: str, size: int) -> None:
        if self._is_ours(path):
            self._refuse(path, "truncate")
            self._file(path).will_truncate(size)

    def sync(self, path: str) -> None:
        if not self._is_ours(path):
            return
        is_directory = os.path.isdir(path)
        try:
            self._refuse(path, "directory" if is_directory else "sync")
        except OSError:
            if not self.is_cut:
                self._drop_names(path) if is_directory else self._drop(self._file(path))
            raise
        self._directory_synced(path) if is_directory else self._file(path).synced()

    def _drop_names(self, directory: str) -> None:
        for change in self._changes:
            change.dropped |= {path for path in change.files if os.path.dirname(path) == directory}

    def _drop(self, file: File) -> None:
        file.drop()
        file.evict(self._draw, self._draw.choice([0.0, 0.0, 0.0, 0.5, 1.0]))

    # -- what SQLite calls ----------------------------------------------------------------------------

    def _open(self, system: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        is_new = bool(path) and self._is_ours(path) and not os.path.exists(path)
        with self._noting([path] if is_new else []):
            done: int = self._own.contents.open(ctypes.addressof(self._own.contents), name, file, flags, out)
        if done == OK and path and self._is_ours(path):
            self._open_files[file] = self._file(path)
            self._created.discard(file)
            if is_new and not flags & _MAIN:
                self._created.add(file)
            place = ctypes.c_void_p.from_address(file)
            place.value = ctypes.addressof(self._methods(place.value or 0))
        return done

    def _file(self, path: str) -> File:
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if key not in self._files:
            self._files[key] = File(path)
        self._files[key].size = found.st_size
        return self._files[key]

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
                table[place] = ctypes.cast(self._called(function), ctypes.c_void_p)
            self._tables[address] = table
        return self._tables[address]

    def _write(self, own: Any, file: int, data: int, amount: int, offset: int) -> int:
        if self._is_refused("write"):
            return IOERR_WRITE
        if self.is_full and offset + amount > self._open_files[file].size:
            self.hurt["disk: full"] += 1
            return FULL
        self._open_files[file].will_write(offset, amount)
        return int(own(file, data, amount, offset))

    def _truncate(self, own: Any, file: int, size: int) -> int:
        if self._is_refused("truncate"):
            return IOERR_TRUNCATE
        self._open_files[file].will_truncate(size)
        return int(own(file, size))

    def _sync(self, own: Any, file: int, flags: int) -> int:
        if self._is_refused("sync"):
            if not self.is_cut:
                self._drop(self._open_files[file])
            return IOERR_FSYNC
        self._open_files[file].synced()
        if file in self._created:
            self._created.remove(file)
            self._directory_synced(os.fsdecode(self._directory))
        return OK

    def _delete(self, system: int, name: bytes, syncs: int) -> int:
        path = os.fsdecode(name)
        if self._is_refused("remove"):
            return IOERR_DELETE
        with self._noting([path] if self._is_ours(path) else []):
            return int(self._own.contents.delete(ctypes.addressof(self._own.contents), name, syncs))
