"""Remove directories that users could write to: by descriptor, in short steps, never through links or mounts.

A tree may be 100,000 levels deep, have millions of files, and change during its removal. So no function here
is recursive, a step ends after a few milliseconds, and only names in open directories are resolved.
"""

import logging
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import EBUSY, EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, ENXIO
from pathlib import Path
from typing import NamedTuple

from fgsched.system.safeopen import open_beneath

log = logging.getLogger(__name__)
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH = 24  # open directories of a tree; deeper directories are moved up first
_STEP = 0.003  # seconds of one step
_MAX_FREED = 64 << 20  # bytes of a file that are freed at a time; removing it would free all of them
_MAX_STEPS = 1_000  # steps of one tree before the next tree
_MAX_ROUNDS = 12  # unsuccessful rounds after which a tree is left to the next controller
_NOT_EMPTY = (ENOTEMPTY, EEXIST)


class _Level(NamedTuple):
    """An open directory and its entries that are still to be removed."""

    descriptor: int
    name: str  # in the parent directory
    entries: "os._ScandirIterator[str]"

    def close(self) -> None:
        """Close the directory."""
        self.entries.close()
        os.close(self.descriptor)


class RemovalTree:
    """A directory tree to be removed. Links and mounts are never followed."""

    def __init__(self, parent: int, name: str) -> None:
        """Prepare to remove the directory `name` in the open directory `parent`."""
        self._parent, self._name = parent, name
        self._levels: list[_Level] = []
        self._device = 0
        self._truncated: os.DirEntry[str] | None = None  # a large file that is not removed yet
        self._moved = False  # directories were moved up in this round, so another round follows at once
        self.fault: OSError | None = None  # why an entry could not be removed

    def work(self, has_time: Callable[[], bool]) -> bool:
        """Remove at least one entry, and more while `has_time`; return False at the end of a round."""
        while self._work():
            if not has_time():
                return True
        return False

    def _work(self) -> bool:
        if not self._levels:
            return self._enter()
        entry = self._next()
        if entry is None:
            return self._exit()
        self._remove(self._levels[-1], entry)
        return True

    def close(self) -> None:
        """Close the open directories; the next `work` starts at the top."""
        self._truncated = None
        while self._levels:
            self._levels.pop().close()

    @property
    def exists(self) -> bool:
        """Return whether the directory, or something mounted over it, still exists."""
        try:
            os.close(open_beneath(self._name, self._parent, os.O_PATH))
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def _enter(self) -> bool:
        self._moved, self.fault = False, None
        try:
            if _remove_empty(self._name, self._parent):
                return False
            descriptor = _open_directory(self._name, self._parent)
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
        if (entry := self._truncated) is not None:
            self._truncated = None
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
            elif _truncate(entry, level.descriptor):
                self._truncated = entry
            else:
                os.unlink(entry.name, dir_fd=level.descriptor)
        except OSError as error:
            if error.errno not in (ENOENT, EISDIR, ENOTDIR):  # changed meanwhile: left to the next round
                self.fault = error

    def _remove_directory(self, level: _Level, name: str) -> None:
        """Remove a directory if it is empty, else open it; the kernel refuses to remove a mount point."""
        if _remove_empty(name, level.descriptor):
            return
        descriptor = _open_directory(name, level.descriptor)
        if os.fstat(descriptor).st_dev != self._device:
            os.close(descriptor)
            raise OSError(EBUSY, os.strerror(EBUSY))
        if len(self._levels) < _MAX_DEPTH:
            self._push(descriptor, name)
            return
        os.close(descriptor)
        top = self._levels[0].descriptor
        os.rename(name, f"moved.{os.urandom(8).hex()}", src_dir_fd=level.descriptor, dst_dir_fd=top)
        self._moved = True

    def _exit(self) -> bool:
        """Remove a directory after its entries; return False if it was the top."""
        level = self._levels.pop()
        above = self._levels[-1].descriptor if self._levels else self._parent
        level.close()
        try:
            os.rmdir(level.name, dir_fd=above)
        except OSError as error:
            if error.errno not in (*_NOT_EMPTY, ENOENT, ENOTDIR):
                self.fault = error
            elif self._moved and not self._levels:
                return True  # start another round
        return bool(self._levels)


class Cleaner:
    """Removes directories while the event loop is idle. Only the controller can write to their parents."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a cleaner without directories.

        Args:
            clock: returns seconds; `due` and `step` take the same clock.
        """
        self._clock = clock
        self._trees: deque[Path] = deque()
        self._tree: RemovalTree | None = None  # the one that is being removed
        self._parent = -1
        self._steps = 0  # since the tree was selected
        self._rounds: dict[Path, int] = {}
        self._not_before: dict[Path, float] = {}
        self._pause_until = 0.0

    def add(self, path: Path) -> None:
        """Schedule a directory for removal. It need not exist, and may be added again."""
        if path not in self._not_before:
            self._not_before[path] = 0.0
            self._trees.append(path)

    def due(self, now: float) -> float | None:
        """Return the seconds until the next step; None if there is nothing to remove."""
        if not self._trees:
            return None
        soonest = min(self._not_before.values())
        return max(0.0, max(soonest, self._pause_until) - now)

    def step(self, now: float) -> None:
        """Remove entries for at most about 3 milliseconds, then pause for as long.

        Args:
            now: seconds of the clock.
        """
        pause = self.due(now)
        if pause is None or pause > 0:
            return
        end = now + _STEP
        while self._trees and self._work(end) and self._clock() < end:
            pass
        done_at = self._clock()
        self._pause_until = done_at + min(done_at - now, _STEP)

    def close(self) -> None:
        """Close the open directories. The next controller removes the entries that are left."""
        if self._tree is not None:
            self._tree.close()
            self._tree = None
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def _work(self, end: float) -> bool:
        """Work on the current tree until `end` (seconds); return False if no tree is due."""
        tree = self._tree or self._pick()
        if tree is None:
            return False
        if tree.work(lambda: self._clock() < end):
            self._steps += 1
            if self._steps > _MAX_STEPS:
                self._trees.rotate(-1)
                self.close()
            return True
        self._round_over(tree)
        return True

    def _pick(self) -> RemovalTree | None:
        """Select the next tree that is due, and move it to the front."""
        now = self._clock()
        for _ in range(len(self._trees)):
            if self._not_before[self._trees[0]] <= now:
                self._steps = 0
                self._tree = self._open_tree()
                return self._tree
            self._trees.rotate(-1)
        return None

    def _open_tree(self) -> RemovalTree | None:
        path = self._trees[0]
        try:
            self._parent = os.open(path.parent, _OPEN)
        except OSError:
            self._forget()  # the parent directory does not exist
            return None
        return RemovalTree(self._parent, path.name)

    def _forget(self) -> int:
        """Drop the first tree; return the number of its rounds."""
        path = self._trees.popleft()
        del self._not_before[path]
        return self._rounds.pop(path, 0)

    def _round_over(self, tree: RemovalTree) -> None:
        """Finish a round: if the tree still exists, schedule the next round after a growing delay."""
        path = self._trees[0]
        tree.close()
        rounds = self._forget() + 1
        if tree.exists and rounds < _MAX_ROUNDS:
            self._trees.append(path)
            self._rounds[path] = rounds
            self._not_before[path] = self._clock() + 0.1 * 2**rounds
        elif tree.exists:
            why = tree.fault.strerror if tree.fault else "a process is still writing to it"
            log.warning("%s cannot be removed: %s", path, why)
        self.close()


def _remove_empty(name: str, parent: int) -> bool:
    """Remove an empty directory or a file; return False for a directory that is not empty.

    Raises:
        OSError: the entry cannot be removed, for example because it is a mount point.
    """
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        if error.errno in _NOT_EMPTY:
            return False
        if error.errno != ENOTDIR:
            raise
        os.unlink(name, dir_fd=parent)
    return True


def _open_directory(name: str, parent: int) -> int:
    """Open a directory, after giving its owner the permission to remove entries.

    Raises:
        OSError: the directory cannot be opened; EXDEV: something is mounted over it.
    """
    try:
        descriptor = open_beneath(name, parent, _OPEN)
    except PermissionError:
        path_descriptor = open_beneath(name, parent, os.O_PATH | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{path_descriptor}", 0o700)
        finally:
            os.close(path_descriptor)
        descriptor = open_beneath(name, parent, _OPEN)
    with suppress(OSError):
        if os.fstat(descriptor).st_mode & 0o700 != 0o700:
            os.fchmod(descriptor, 0o700)
    return descriptor


def _truncate(entry: "os.DirEntry[str]", parent: int) -> bool:
    """Truncate a large file by a part; return False if it is small enough to be removed."""
    if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
        return False
    try:
        descriptor = open_beneath(entry.name, parent, os.O_WRONLY)
    except OSError:
        return False  # not writable, or another kind of entry by now: remove it as it is
    try:
        status = os.fstat(descriptor)
        if status.st_nlink > 1 or not _is_large(status):
            return False  # a hard link elsewhere may use the content
        os.ftruncate(descriptor, _reduced_size(descriptor, status))
    finally:
        os.close(descriptor)
    return True


def _is_large(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_blocks * 512 > _MAX_FREED


def _reduced_size(descriptor: int, status: os.stat_result) -> int:
    """Return a size that frees at most one part: a part smaller, or more if the end of the file is a hole."""
    size, part = status.st_size, _MAX_FREED
    while size > status.st_blocks * 1024 and part < size and _is_hole(descriptor, size - part):
        part *= 2
    return max(0, size - max(_MAX_FREED, part // 2))


def _is_hole(descriptor: int, offset: int) -> bool:
    """Return whether a file has no data from `offset` (bytes) to its end."""
    try:
        os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return error.errno == ENXIO
    return False


# -- entries with a wrong kind or name ----------------------------------------


_MAX_ENTRIES = 64  # older ones are removed
_MAX_LOGGED = 1_000  # entries that could not be moved and are not logged again


class Quarantine:
    """The directory `<run>/quarantine`, in which an administrator can inspect the entries."""

    def __init__(self, run: Path, cleaner: Cleaner) -> None:
        self._directory, self._cleaner = run / "quarantine", cleaner
        self._logged: set[str] = set()  # entries that could not be moved

    def take(self, path: str, why: str) -> bool:
        """Move an entry to `quarantine`; return False if it cannot be moved."""
        target = self._directory / f"{time.time_ns()}.{_short(path)}"
        try:
            self._make()
            os.rename(path, target)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._log_once(path, f"{why}; it cannot be moved to {self._directory}: {error.strerror}")
            return False
        log.warning("%a: %s; moved to %s", path, why, self._directory)
        self._remove_oldest()
        return True

    def _make(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        if not stat.S_ISDIR(os.lstat(self._directory).st_mode):
            os.unlink(self._directory)
            os.mkdir(self._directory, 0o700)

    def _log_once(self, path: str, why: str) -> None:
        if path not in self._logged:
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged.add(path)
            log.warning("%a: %s", path, why)

    def _remove_oldest(self) -> None:
        for name in sorted(os.listdir(self._directory))[:-_MAX_ENTRIES]:
            self._cleaner.add(self._directory / name)


def kind_of(path: str) -> str:
    """Return the kind of an entry in words; "nothing" if there is none."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    kind = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a directory",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kind.get(stat.S_IFMT(mode), "a device")


def _short(path: str) -> str:
    """Return the last two parts of a path as one file name of at most 200 bytes."""
    name = "-".join(Path(path).parts[-2:])
    return os.fsdecode(os.fsencode(name)[:200])
