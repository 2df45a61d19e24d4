"""What each user is given of the file systems: space in the run directory, and a place for TMPDIRs."""

import ctypes
import os
import stat
from contextlib import suppress
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_NOSUID, _NODEV, _REMOUNT, _NOFOLLOW = 2, 4, 32, 8  # of mount(2) and umount2(2)
_FILE = 4096  # bytes of space for which a user may have one file


class Spaces:
    """A small tmpfs for each user below the run directory, in which the directories of the user's jobs lie.

    So no job can fill what claims, results and the jobs of others need. Where nothing can be mounted,
    `note` says why, and the directories lie in the run directory itself.
    """

    def __init__(self, run: Path, *, size: int) -> None:
        """`size`: bytes of each; 0: none is made."""
        self._root, self._size = run / "space", size
        self._ready: set[int] = set()
        self.note = "" if size else "run_space is 0"
        if size:
            self._probe()

    @property
    def is_limited(self) -> bool:
        return not self.note

    def _probe(self) -> None:
        place = self._root / "probe"
        try:
            place.mkdir(parents=True, exist_ok=True)
            self._root.chmod(0o711)
            _mount(place, "size=4096,mode=711")
            _unmount(place)
            place.rmdir()
        except OSError as error:
            self.note = f"no tmpfs can be mounted below {self._root}: {error.strerror}"

    def of(self, uid: int) -> str:
        """Where the user's job directories lie; "" where they have no place of their own."""
        if self.note or not uid:
            return ""
        place = self._root / str(uid)
        if uid not in self._ready:
            self._make(place)
            self._ready.add(uid)
        return str(place)

    def _make(self, place: Path) -> None:
        """Mount it, or give that of an earlier controller the present size."""
        place.mkdir(mode=0o711, exist_ok=True)
        is_there = place.stat().st_dev != self._root.stat().st_dev
        options = f"size={self._size},nr_inodes={max(1024, self._size // _FILE)},mode=711"
        try:
            _mount(place, options, _REMOUNT if is_there else 0)
        except OSError:
            if not is_there:  # a smaller size than what is in use is refused, and the old one stays
                raise

    def leave(self) -> None:
        """Give back those that are empty: other jobs go on."""
        with suppress(OSError):
            for name in os.listdir(self._root):
                place = self._root / name
                with suppress(OSError):
                    if place.stat().st_dev != self._root.stat().st_dev and not os.listdir(place):
                        _unmount(place)
                    place.rmdir()
            self._root.rmdir()
        self._ready.clear()


def lying(run: Path, job: int, attempt: int) -> list[Path]:
    """Where the directory of an attempt lies in the space of a user. `run`: the directory of its queue."""
    return list((run.parent / "space").glob(f"*/{run.name}-{job}.{attempt}"))


def attempts(run: Path) -> set[tuple[int, int]]:
    """(job, attempt) of each directory of this queue that lies in the space of a user."""
    found = (path.name.partition("-")[2] for path in (run.parent / "space").glob(f"*/{run.name}-*"))
    pairs = (name.partition(".") for name in found)
    return {(int(job), int(attempt)) for job, _, attempt in pairs if job.isdecimal() and attempt.isdecimal()}


class Scratch:
    """The directory in which the users' TMPDIRs are: each user's in one that belongs to the user.

    Its name ends in random letters, so that nobody can take it first, and it is remembered in the run
    directory. If it is gone or somebody else's at the next start, another name is taken.
    """

    def __init__(self, run: Path, prefix: str, *, for_all: bool) -> None:
        """`for_all`: jobs of every user have to reach theirs."""
        self._note, self._prefix, self._mode = run / "scratch", prefix, 0o711 if for_all else 0o700
        self._seen = 0  # when something in it was made or removed last
        self._users: frozenset[str] = frozenset()
        self.path = self._remembered()  # "": the first job makes it

    def _remembered(self) -> str:
        with suppress(OSError):
            path = os.readlink(self._note)
            if path.startswith(self._prefix) and self._is_ours(path):
                return path
        return ""

    def _new(self) -> None:
        self.path = f"{self._prefix}{os.urandom(8).hex()}"
        os.mkdir(self.path, 0o700)
        os.chmod(self.path, self._mode)
        self._note.unlink(missing_ok=True)
        self._note.symlink_to(self.path)
        self._seen = 0

    def _is_ours(self, path: str) -> bool:
        found = os.lstat(path)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def of(self, uid: int, gid: int) -> str:
        """The user's directory in it, made if need be."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:  # nothing is made for nobody; or what tidies up there took it for old
            self._new()
            found = os.lstat(self.path)
        if found.st_mtime_ns != self._seen:
            self._users, self._seen = frozenset(os.listdir(self.path)), found.st_mtime_ns
        if str(uid) not in self._users:
            self._make(str(uid), uid, gid)
        return f"{self.path}/{uid}"

    def _make(self, name: str, uid: int, gid: int) -> None:
        """It appears as the user's, whenever we are killed."""
        fresh = f"{self.path}/new"
        with suppress(FileExistsError):
            os.mkdir(fresh, 0o700)
        os.chown(fresh, uid, gid)
        os.rename(fresh, f"{self.path}/{name}")
        self._users |= {name}

    def tidy(self, slots: set[int]) -> None:
        """Remove the empty directories of numbers that no running job has, and what is empty then."""
        mounted = _mounted()
        with suppress(OSError):
            for user in os.listdir(self.path):
                place = f"{self.path}/{user}"
                if any(point == place or point.startswith(f"{place}/") for point in mounted):
                    continue  # a file system of the user's, which may never answer
                _remove_empty(place, slots)
            os.rmdir(self.path)


def _remove_empty(place: str, slots: set[int]) -> None:
    with suppress(OSError):
        for name in os.listdir(place):
            if name.isdecimal() and int(name) not in slots:
                with suppress(OSError):
                    os.rmdir(f"{place}/{name}")
        os.rmdir(place)


def _mounted() -> list[str]:
    """The places of all mounts; users name some of them, in any bytes."""
    lines = os.fsdecode(_MOUNTS.read_bytes()).split("\n")
    return [line.split(" ")[4] for line in lines if line]


def _mount(place: Path, options: str, flags: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags |= _NOSUID | _NODEV
    if libc.mount(b"fgsched", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options.encode()) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _unmount(place: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(place), _NOFOLLOW) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
