"""Removal of directories that users could write to: by descriptor, a little at a time, never beyond them.

A tree may be 100,000 levels deep, have millions of files, and change during its removal. So no function here
calls itself, a step ends after a few milliseconds, and no path is resolved from its beginning.
"""

import ctypes
import logging
import os
import secrets
import stat
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import EBUSY, EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, ENXIO
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None)
_OPENAT2, _NO_XDEV, _NO_SYMLINKS = 437, 0x01, 0x04
_DEEPEST = 24  # directories of a tree that are open at a time; what is below is moved up first
_STEP = 0.003  # seconds of one step
_PART = 64 << 20  # bytes of a file that are freed at a time: removing it frees all of them at once
_TURN = 1_000  # steps that one tree is given before the next one
_TRIES = 12  # rounds that leave something behind, after which a tree is left to the next controller
_FULL = (ENOTEMPTY, EEXIST)


class _Level(NamedTuple):
    """An open directory and what is still to be removed of it."""

    descriptor: int
    name: str  # in the directory above
    entries: "os._ScandirIterator[str]"

    def close(self) -> None:
        self.entries.close()
        os.close(self.descriptor)


class Tree:
    """One directory that is to be removed with all that is in it. Links and mounts are never followed."""

    def __init__(self, parent: int, name: str) -> None:
        self._parent, self._name = parent, name
        self._levels: list[_Level] = []
        self._device = 0
        self._again: os.DirEntry[str] | None = None  # a large file, of which a part was freed
        self._moved = False  # in this round, directories were moved up: there is more to be done at once
        self.fault: OSError | None = None  # why something stays

    def work(self, has_time: Callable[[], bool]) -> bool:
        """Remove one entry, and others while there is time; False once a round is over."""
        while self._work():
            if not has_time():
                return True
        return False

    def _work(self) -> bool:
        if not self._levels:
            return self._begin()
        entry = self._next()
        if entry is None:
            return self._leave()
        self._remove(self._levels[-1], entry)
        return True

    def close(self) -> None:
        """Give back its descriptors; the next `work` begins at the top."""
        self._again = None
        while self._levels:
            self._levels.pop().close()

    @property
    def is_there(self) -> bool:
        try:
            os.lstat(self._name, dir_fd=self._parent)
        except FileNotFoundError:
            return False
        return True

    def _begin(self) -> bool:
        self._moved, self.fault = False, None
        try:
            if _is_gone(self._name, self._parent):
                return False
            descriptor = _entered(self._name, self._parent)
        except OSError as error:
            self.fault = None if error.errno == ENOENT else error
            return False
        self._device = os.fstat(descriptor).st_dev
        self._push(descriptor, self._name)
        return bool(self._levels)

    def _push(self, descriptor: int, name: str) -> None:
        try:
            self._levels.append(_Level(descriptor, name, os.scandir(descriptor)))
        except OSError as error:
            os.close(descriptor)
            self.fault = error

    def _next(self) -> "os.DirEntry[str] | None":
        if (entry := self._again) is not None:
            self._again = None
            return entry
        try:
            return next(self._levels[-1].entries, None)
        except OSError as error:
            self.fault = error
            return None

    def _remove(self, level: _Level, entry: "os.DirEntry[str]") -> None:
        try:
            if entry.is_dir(follow_symlinks=False):
                self._remove_directory(level, entry.name)
            elif _is_shortened(entry, level.descriptor):
                self._again = entry
            else:
                os.unlink(entry.name, dir_fd=level.descriptor)
        except OSError as error:
            if error.errno not in (
                ENOENT,
                EISDIR,
                ENOTDIR,
            ):  # it was changed meanwhile: the next round sees it
                self.fault = error

    def _remove_directory(self, level: _Level, name: str) -> None:
        """The kernel refuses it where something is mounted there, before it looks whether it is empty."""
        if _is_gone(name, level.descriptor):
            return
        descriptor = _entered(name, level.descriptor)
        if os.fstat(descriptor).st_dev != self._device:
            os.close(descriptor)
            raise OSError(EBUSY, os.strerror(EBUSY))
        if len(self._levels) < _DEEPEST:
            self._push(descriptor, name)
            return
        os.close(descriptor)
        top = self._levels[0].descriptor
        os.rename(name, f"moved.{secrets.token_hex(8)}", src_dir_fd=level.descriptor, dst_dir_fd=top)
        self._moved = True

    def _leave(self) -> bool:
        """A directory has been gone through: remove it. False if that was the top."""
        done = self._levels.pop()
        above = self._levels[-1].descriptor if self._levels else self._parent
        done.close()
        try:
            os.rmdir(done.name, dir_fd=above)
        except OSError as error:
            if error.errno not in (*_FULL, ENOENT, ENOTDIR):
                self.fault = error
            elif self._moved and not self._levels:
                return True  # into another round, at once
        return bool(self._levels)


class Cleaner:
    """Removes directories in the idle time of the loop. Their parents belong to the controller."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trees: deque[Path] = deque()
        self._tree: Tree | None = None  # the one that is being removed
        self._parent = -1
        self._steps = 0  # of its turn
        self._tries: dict[Path, int] = {}
        self._not_before: dict[Path, float] = {}
        self._pause_until = 0.0

    def add(self, path: Path) -> None:
        """Have a directory removed. Nothing happens if there is none."""
        if path not in self._not_before:
            self._not_before[path] = 0.0
            self._trees.append(path)

    def due(self, now: float) -> float | None:
        """Seconds until the next step; None: there is nothing to remove."""
        if not self._trees:
            return None
        soonest = min(self._not_before.values())
        return max(0.0, max(soonest, self._pause_until) - now)

    def step(self, now: float) -> None:
        """Remove for a few milliseconds, and as long again belongs to others."""
        due = self.due(now)
        if due is None or due > 0:
            return
        end = now + _STEP
        while self._trees and self._work(end) and self._clock() < end:
            pass
        done_at = self._clock()
        self._pause_until = done_at + min(done_at - now, _STEP)

    def close(self) -> None:
        """Give back what is open; what is left is found by the next controller."""
        if self._tree is not None:
            self._tree.close()
            self._tree = None
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def _work(self, end: float) -> bool:
        """Some of the tree whose turn it is; False if none has one now."""
        tree = self._tree or self._pick()
        if tree is None:
            return False
        if tree.work(lambda: self._clock() < end):
            self._steps += 1
            if self._steps > _TURN:
                self._trees.rotate(-1)
                self.close()
            return True
        self._round_over(tree)
        return True

    def _pick(self) -> Tree | None:
        """The next tree that is due, which then is the first."""
        now = self._clock()
        for _ in range(len(self._trees)):
            if self._not_before[self._trees[0]] <= now:
                self._steps = 0
                self._tree = self._opened()
                return self._tree
            self._trees.rotate(-1)
        return None

    def _opened(self) -> Tree | None:
        path = self._trees[0]
        try:
            self._parent = os.open(path.parent, _OPEN)
        except OSError:
            self._forget()  # all that was there is gone
            return None
        return Tree(self._parent, path.name)

    def _forget(self) -> int:
        """The first tree is not to be removed any more; how often it was tried."""
        path = self._trees.popleft()
        del self._not_before[path]
        return self._tries.pop(path, 0)

    def _round_over(self, tree: Tree) -> None:
        """Either it is gone, or something of it stays: then later again, ever more seldom."""
        path = self._trees[0]
        tree.close()
        tries = self._forget() + 1
        if tree.is_there and tries < _TRIES:
            self._trees.append(path)
            self._tries[path] = tries
            self._not_before[path] = self._clock() + 0.1 * 2**tries
        elif tree.is_there:
            why = tree.fault.strerror if tree.fault else "it is still being written to"
            log.warning("%s cannot be removed: %s", path, why)
        self.close()


def _is_gone(name: str, place: int) -> bool:
    """Remove what is no directory or an empty one; False if it is not empty, OSError for a mount point."""
    try:
        os.rmdir(name, dir_fd=place)
    except OSError as error:
        if error.errno in _FULL:
            return False
        if error.errno != ENOTDIR:
            raise
        os.unlink(name, dir_fd=place)
    return True


def _entered(name: str, place: int) -> int:
    """An open directory in which its owner can remove things, though it was closed."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=place)
    except PermissionError:
        there = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        try:
            os.chmod(f"/proc/self/fd/{there}", 0o700)
        finally:
            os.close(there)
        descriptor = os.open(name, _OPEN, dir_fd=place)
    with suppress(OSError):
        if os.fstat(descriptor).st_mode & 0o700 != 0o700:
            os.fchmod(descriptor, 0o700)
    return descriptor


def _is_shortened(entry: "os.DirEntry[str]", place: int) -> bool:
    """Whether it is a large file of which only the last part was freed."""
    if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
        return False
    descriptor = _opened_here(entry.name, place, os.O_WRONLY)
    if descriptor < 0:
        return False  # its owner closed it, or it is something else by now: remove it as it is
    try:
        found = os.fstat(descriptor)
        if found.st_nlink > 1 or not _is_large(found):
            return False  # with another name elsewhere, its content is not ours
        os.ftruncate(descriptor, _shorter(descriptor, found))
    finally:
        os.close(descriptor)
    return True


def _opened_here(name: str, place: int, flags: int) -> int:
    """Open a file in a directory, unless something is mounted over it; a descriptor, or -1.

    A file system that its user mounts there may never answer, and another file may be behind it. Nothing is
    asked of it (openat2 with RESOLVE_NO_XDEV, from Linux 5.6 on; before, nothing is opened).
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    how = struct.pack("=3Q", flags, 0, _NO_XDEV | _NO_SYMLINKS)
    return int(_LIBC.syscall(_OPENAT2, place, os.fsencode(name), how, ctypes.c_size_t(len(how))))


def _is_large(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_blocks * 512 > _PART


def _shorter(descriptor: int, found: os.stat_result) -> int:
    """A size with which little is freed: a part less, or less by a larger hole where most of it is holes."""
    size, part = found.st_size, _PART
    while size > found.st_blocks * 1024 and part < size and _is_hole(descriptor, size - part):
        part *= 2
    return max(0, size - max(_PART, part // 2))


def _is_hole(descriptor: int, offset: int) -> bool:
    """Whether a file has nothing from there to its end."""
    try:
        os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return error.errno == ENXIO
    return False
