"""Decide where the run directory of a user's controller lies.

It is `run` in the state directory, unless that is on a file system of a network, or its path cannot be used
for a socket or by the linker. Then `run` is a link to a directory with a random name in /var/tmp or /tmp. The
end of a login removes XDG_RUNTIME_DIR and the user's files in /dev/shm, so neither is used. Commands follow
the link: they need no variable, and no other user can foresee the name.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from fgsched.domain.errors import StorageError
from fgsched.system.ownhost import INHERITED
from fgsched.system.paths import SOCKET_PATH_MAX, Paths, is_private, linked

log = logging.getLogger("fgsched.controller")
SHARED = (Path("/var/tmp"), Path("/tmp"))
_LONGEST_NAME = len("/socket.new")  # of a socket below the run directory
_LONG_LIVED = ("hooks.lock", "mps.lock", "fence")  # of programs that may run without a controller
_LOCAL = frozenset(  # types of file systems with sockets, links, locks and shared mappings of one host
    [
        "bcachefs",
        "btrfs",
        "ecryptfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "tmpfs",
        "xfs",
        "zfs",
    ]
)
_MOUNTS = Path("/proc/self/mountinfo")
_MAGIC = {  # of statfs(2), where the mounts do not tell
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs",
    0xCA451A4E: "bcachefs",
    0x858458F6: "ramfs",
    0x3153464A: "jfs",
    0x52654973: "reiserfs",
    0xF15F: "ecryptfs",
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0x65735546: "fuse",
}


def placed(paths: Paths, uid: int, boot: str, *, shared: Sequence[Path] = SHARED) -> Paths:
    """Return the paths with the run directory, which is made if there is none.

    A run directory that programs of this boot use keeps its place. The caller holds the lock of the state
    directory. `boot`: id of the current boot.

    Raises:
        StorageError: there is no place for the directory, or the link cannot be written.
    """
    if paths.mode != "user":
        return paths
    link = paths.state / "run"
    try:
        return _placed(paths, link, uid, boot, shared)
    except OSError as error:
        cause = f"{link} cannot be replaced: {error.strerror}"
        raise StorageError(cause, "Remove it while no job of this controller runs.") from None


def _placed(paths: Paths, link: Path, uid: int, boot: str, shared: Sequence[Path]) -> Paths:
    target = linked(link, uid)
    if target is not None:
        if is_private(target, uid) and (_is_used(target, boot) or _is_chosen(target, link, shared)):
            return paths
        link.unlink()
        _remove_if_ours(target, uid)
    elif os.path.lexists(link) and (is_suitable(link) or not _is_removed(link, boot)):
        return paths
    if is_suitable(link):
        link.mkdir(0o700, exist_ok=True)
        return replace(paths, run=link, run_link=None)
    return _with_link(paths, link, _made(shared, uid))


def _with_link(paths: Paths, link: Path, target: Path) -> Paths:
    link.symlink_to(target)
    log.info("the run directory is %s", target)
    return replace(paths, run=target, run_link=link)


def _is_chosen(target: Path, link: Path, shared: Sequence[Path]) -> bool:
    """Return whether a link still leads where a new run directory would lie."""
    return target.parent in shared and not is_suitable(link)


def _made(shared: Sequence[Path], uid: int) -> Path:
    """Make a run directory with a random name. Raises StorageError."""
    import tempfile  # 0.3 MiB, and only a home without a place needs it

    for directory in shared:
        with suppress(OSError):
            if is_suitable(directory / "fgsched-01234567") and _is_safe(directory, uid):
                return Path(tempfile.mkdtemp(prefix="fgsched-", dir=directory))
    names = " nor ".join(map(str, shared))
    raise StorageError(
        f"neither the state directory nor {names} can hold the run directory",
        "It needs a local file system, a short path without blanks and colons, and permission to write. "
        "Set FG_HOME to such a directory.",
    )


def is_suitable(directory: Path) -> bool:
    """Return whether a run directory can lie here: the path is short and plain, the file system is local."""
    name = str(directory)
    if ":" in name or any(map(str.isspace, name)):
        return False
    return len(os.fsencode(name)) + _LONGEST_NAME <= SOCKET_PATH_MAX and file_system(directory) in _LOCAL


def file_system(path: Path) -> str:
    """Return the type of the file system of a path, or of its nearest parent that exists; "" if unknown."""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in _MOUNTS.read_text(errors="surrogateescape").splitlines():
        mount, _, file_system = line.partition(" - ")
        point = mount.split()[4].encode().decode("unicode_escape")
        is_above = point == "/" or real == point or real.startswith(f"{point}/")
        if is_above and len(point) >= len(best):
            best, kind = point, file_system.split()[0]
    return kind or _type_by_statfs(real)


def _type_by_statfs(real: str) -> str:
    """Return the type of a file system as statfs(2) tells; in a chroot, no mount may be listed for it."""
    import ctypes  # 0.5 MiB, and only a chroot needs it

    while not os.path.lexists(real):
        real = os.path.dirname(real)
    answer = (ctypes.c_long * 64)()  # begins with the type
    if ctypes.CDLL(None).statfs(os.fsencode(real), answer):
        return ""
    return _MAGIC.get(answer[0] & 0xFFFFFFFF, "")


def keep_from_cleaners(run: Path) -> int:
    """Lock a run directory, which systemd-tmpfiles then leaves alone; return the descriptor, or -1."""
    with suppress(OSError):
        descriptor = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        inheritable = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, INHERITED)
        os.close(descriptor)
        return inheritable
    return -1


def _is_safe(directory: Path, uid: int) -> bool:
    """Return whether no other user can rename entries of ours in a shared directory."""
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and (
        bool(status.st_mode & stat.S_ISVTX) if status.st_mode & 0o022 else status.st_uid in (0, uid)
    )


def _remove_if_ours(target: Path, uid: int) -> None:
    """Remove a directory to which the link led, if it is this user's and has the name of a run directory."""
    if target.name.startswith("fgsched-") and is_private(target, uid):
        _rmtree(target)


def _is_removed(run: Path, boot: str) -> bool:
    """Remove a run directory without attempts of this boot; return whether it is gone."""
    with suppress(OSError):
        run.rmdir()
    if not run.is_dir():
        return not os.path.lexists(run)
    if _is_used(run, boot):
        return False
    _rmtree(run)
    return not os.path.lexists(run)


def _rmtree(path: Path) -> None:
    from shutil import rmtree  # 0.2 MiB, and only a directory that moves needs it

    rmtree(path, ignore_errors=True)  # a job that ends removes its files at the same time


def _is_used(run: Path, boot: str) -> bool:
    """Return whether a program of this boot may use files in a run directory. Its entries may be damaged."""
    if any(os.path.lexists(run / name) for name in _LONG_LIVED):
        return True
    above = [run, *_directories(run)]
    places = [
        path for directory in above for path in _directories(directory) if path.name.startswith("claim")
    ]
    return any(_target(claim).endswith(f":{boot}") for place in places for claim in place.iterdir())


def _directories(above: Path) -> list[Path]:
    """Return the real directories in a directory."""
    with suppress(OSError), os.scandir(above) as entries:
        return [above / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _target(path: Path) -> str:
    """Return the target of a link; "" if the path is none."""
    with suppress(OSError):
        return os.readlink(path)
    return ""


_OTHERS, _WRITERS = 0o077, 0o022
_OURS = ("queue.", "accounts.", "audit.log", "fgsched.log")  # how the names of the files begin


def open_to_others(paths: Paths) -> list[Path]:
    """Return what other users may access of the state: files of fgsched, `mail`, and its own directory.

    A directory that FG_HOME names may contain files of the user's for others; it is not returned. What cannot
    be examined is left out.
    """
    return [path for path in _ours(paths) if _mode(path) & _OTHERS]


def close_to_others(paths: Paths) -> list[Path]:
    """Remove the permissions of other users; return the paths, changed or not.

    A queue that others could write stays as it is, and is refused when it is opened.
    """
    exposed = [path for path in open_to_others(paths) if path != paths.queue or not _mode(path) & _WRITERS]
    for path in exposed:
        try:
            os.chmod(path, _mode(path) & ~_OTHERS, follow_symlinks=True)
        except OSError:  # a read-only file system: the caller names the path all the same
            continue
    return exposed


def _ours(paths: Paths) -> Iterator[Path]:
    if not paths.is_named:
        yield paths.state
    try:
        names = sorted(os.listdir(paths.state))
    except OSError:
        return
    for name in names:
        if name == "mail" or name.startswith(_OURS):
            yield paths.state / name


def _mode(path: Path) -> int:
    """Return the permissions of a file or directory of this user; 0 for anything else."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return stat.S_IMODE(status.st_mode) if is_plain and status.st_uid == os.geteuid() else 0
