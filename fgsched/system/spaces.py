"""Give each user a limited space in the run directory, and a directory for the TMPDIRs of jobs."""

import ctypes
import fcntl
import os
import stat
import string
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fgsched.system import places
from fgsched.system.safeopen import open_beneath

_MAX_TIDY, _MAX_TIDY_USER = 2.0, 0.5  # seconds of tidying: in all, and for one user
_MAX_DIGITS = 18  # of a slot number
_LETTERS = string.ascii_lowercase + string.digits
_LENGTH = 6  # characters: the path of a socket below TMPDIR has at most 107
_TRIES = 20  # names of a directory
_NOSUID, _NODEV, _REMOUNT, _NOFOLLOW = 2, 4, 32, 8  # of mount(2) and umount2(2)
_BYTES_PER_INODE = 4096  # bytes of space for each file that a user may have


class Spaces:
    """A small tmpfs for each user below the run directory, for the directories of the user's jobs.

    It keeps a job from filling the file system that claims, results and other jobs need. If no tmpfs can be
    mounted, `note` says why, and the directories are in the run directory itself.
    """

    def __init__(self, run: Path, *, size: int) -> None:
        """Find out whether a tmpfs can be mounted.

        Args:
            size: bytes for each user; 0 mounts none.
        """
        self._root, self._size = run / "space", size
        self._ready: set[int] = set()
        self.note = "" if size else "run_space is 0"
        if size:
            self._probe()

    @property
    def is_limited(self) -> bool:
        """Return whether users have limited spaces."""
        return not self.note

    def _probe(self) -> None:
        directory = self._root / "probe"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o711)
            _mount(directory, "size=4096,mode=711")
            _unmount(directory)
            directory.rmdir()
        except OSError as error:
            self.note = f"no tmpfs can be mounted below {self._root}: {error.strerror}"

    def of(self, uid: int) -> str:
        """Return the directory for a user's job directories, mounting it if needed; "" without a space.

        Raises:
            OSError: the tmpfs cannot be mounted.
        """
        if self.note or not uid:
            return ""
        directory = self._root / str(uid)
        if uid not in self._ready:
            self._make(directory)
            self._ready.add(uid)
        return str(directory)

    def _make(self, directory: Path) -> None:
        """Mount the tmpfs, or set the size of one that an earlier controller mounted."""
        directory.mkdir(mode=0o711, exist_ok=True)
        is_mounted = directory.stat().st_dev != self._root.stat().st_dev
        options = f"size={self._size},nr_inodes={max(1024, self._size // _BYTES_PER_INODE)},mode=711"
        try:
            _mount(directory, options, _REMOUNT if is_mounted else 0)
        except OSError:
            if not is_mounted:  # a size below the used space is refused, and the old size stays
                raise

    def leave(self) -> None:
        """Unmount the spaces that are empty; jobs of other controllers may still use the rest."""
        with suppress(OSError):
            for name in os.listdir(self._root):
                directory = self._root / name
                with suppress(OSError):
                    if directory.stat().st_dev != self._root.stat().st_dev and not os.listdir(directory):
                        _unmount(directory)
                    directory.rmdir()
            self._root.rmdir()
        self._ready.clear()


def attempt_dirs(run: Path, job: int, attempt: int) -> list[Path]:
    """Return the directories of an attempt in the spaces of users.

    Args:
        run: the directory of the queue.
    """
    return list((run.parent / "space").glob(f"*/{run.name}-{job}.{attempt}"))


def attempts(run: Path) -> set[tuple[int, int]]:
    """Return (job, attempt) of each directory of a queue in the spaces of users.

    Args:
        run: the directory of the queue.
    """
    names = (path.name.partition("-")[2] for path in (run.parent / "space").glob(f"*/{run.name}-*"))
    pairs = (name.partition(".") for name in names)
    return {(int(job), int(attempt)) for job, _, attempt in pairs if job.isdecimal() and attempt.isdecimal()}


class Scratch:
    """The directory for the TMPDIRs of jobs, with a directory for each user that belongs to the user.

    Its name ends in random letters, and is stored in the run directory. A user who sees the name can make the
    directory again if a cleaner of /tmp has removed it. So its owner, type and mode are compared at each use;
    if it is not the one that this controller opened, it is left alone, and a new name is used. The lock keeps
    systemd-tmpfiles from removing it.
    """

    def __init__(
        self, run: Path, prefix: str, *, for_all: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Find the directory of an earlier controller; a new one is created by the first job.

        Args:
            for_all: jobs of every user must reach their own directories.
            clock: returns seconds.
        """
        self._clock = clock
        self._link, self._prefix, self._mode = run / "scratch", prefix, 0o711 if for_all else 0o700
        self._root = -1  # descriptor of the directory
        self.path = ""  # "": not created yet
        with suppress(OSError):
            stored = os.readlink(self._link)
            if stored.startswith(self._prefix):
                self._hold(stored)

    def _hold(self, path: str) -> None:
        """Open the directory, and lock it against cleaners. Raises OSError if it is not this user's alone."""
        descriptor = places.open_own(path)
        self.close()
        self._root, self.path = descriptor, path
        with suppress(OSError):  # another controller of the same run directory has it
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        """Release the directory."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _create(self) -> None:
        """Make a directory with a new name. Raises OSError."""
        for tries_left in reversed(range(_TRIES)):
            path = self._prefix + "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(_LENGTH))
            try:
                os.mkdir(path, 0o700)
                break
            except FileExistsError:
                if not tries_left:
                    raise
        self._hold(path)
        os.fchmod(self._root, self._mode)
        spread_below(self._root)
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(path)

    def of(self, uid: int, gid: int) -> str:
        """Return the directory of a user, creating it if needed.

        Raises:
            OSError: the directory cannot be created.
        """
        if self._root < 0 or not places.is_still(self._root, self.path) or not self._has(uid, gid):
            self._create()
            self._make(str(uid), uid, gid)
        return f"{self.path}/{uid}"

    def _has(self, uid: int, gid: int) -> bool:
        """Return whether the user's directory is there, after making it if it is missing."""
        try:
            status = os.stat(str(uid), dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            self._make(str(uid), uid, gid)
            return True
        return stat.S_ISDIR(status.st_mode) and status.st_uid == uid

    def _make(self, name: str, uid: int, gid: int) -> None:
        """Create a directory so that it always belongs to the user, even after a crash.

        Its first name is used only once: after a crash, its owner may have put something into it.
        """
        fresh = f"new.{os.urandom(8).hex()}"
        os.mkdir(fresh, 0o700, dir_fd=self._root)
        descriptor = places.open_own(fresh, self._root)
        try:
            os.fchown(descriptor, uid, gid)
        finally:
            os.close(descriptor)
        os.rename(fresh, name, src_dir_fd=self._root, dst_dir_fd=self._root)

    def tidy(self, slots: set[int]) -> None:
        """Remove the empty TMPDIRs of slots without a running job, and their parents if these become empty.

        This takes at most 2 s, and 0.5 s for each user, since users can create any number of entries.

        Args:
            slots: numbers of the slots of running jobs.
        """
        end = self._clock() + _MAX_TIDY
        with suppress(OSError):
            if not places.is_still(self._root, self.path):
                return
            for user in os.listdir(self._root):
                now = self._clock()
                if now < end:
                    self._tidy_user(user, slots, min(end, now + _MAX_TIDY_USER))
            os.rmdir(self.path)

    def _tidy_user(self, user: str, slots: set[int], until: float) -> None:
        """Tidy one directory without accessing a file system that the user mounted there."""
        with suppress(OSError):
            directory = open_beneath(user, self._root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._remove_empty(directory, slots, until)
            finally:
                os.close(directory)
            os.rmdir(user, dir_fd=self._root)

    def _remove_empty(self, directory: int, slots: set[int], until: float) -> None:
        """Remove empty TMPDIRs; rmdir refuses a mount point without accessing the mounted file system."""
        with os.scandir(directory) as entries:
            for entry in entries:
                if self._clock() >= until:
                    return
                if entry.name.isdecimal() and int(entry.name[:_MAX_DIGITS]) not in slots:
                    with suppress(OSError):
                        os.rmdir(entry.name, dir_fd=directory)


def remove_scratch(run: Path) -> None:
    """Remove the empty TMPDIRs of a queue without jobs and controller; its directory `run` names them."""
    scratch = Scratch(run, "/", for_all=False)
    scratch.tidy(set())
    scratch.close()
    if not os.path.lexists(scratch.path):
        (run / "scratch").unlink(missing_ok=True)


def _mount(directory: Path, options: str, flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags |= _NOSUID | _NODEV
    if libc.mount(b"fgsched", os.fsencode(directory), b"tmpfs", ctypes.c_ulong(flags), options.encode()) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _unmount(directory: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(directory), _NOFOLLOW) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# -- unrelated directories -----------------------------------------------------------------------------
#
# ext4 creates files in the block group of their directory, and does not use an inode again for minutes after
# it was freed. Where other programs have just removed thousands of files, a new file takes 0.3 ms instead of
# 0.01. A directory whose entries are unrelated gets a part of the file system for each of them.


_LONG = struct.calcsize("l")
_GET, _SET = 0x80006601 | _LONG << 16, 0x40006602 | _LONG << 16  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_TOPDIR = 0x00020000  # FS_TOPDIR_FL, `chattr +T`: a hint to ext2, ext3 and ext4


def spread_below(directory: int) -> None:
    """Mark an open directory of this user. Other file systems refuse the flag, and need none."""
    with suppress(OSError):
        (flags,) = struct.unpack("i", fcntl.ioctl(directory, _GET, bytes(_LONG))[:4])
        fcntl.ioctl(directory, _SET, struct.pack("i", flags | _TOPDIR).ljust(_LONG, b"\0"))
