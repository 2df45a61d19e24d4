"""Open only safe files, and become another user for good in a child process that root has forked.

A file is safe if no other user can change it, and no user's link or mount leads to it.
"""

import ctypes
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOSYS
from pathlib import Path

from fgsched.domain.errors import Refused

_LOGIN_UID = Path("/proc/self/loginuid")
_UNSET = "4294967295"
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1


# -- files that root relies on ------------------------------------------------


def refuse_unless_safe(path: Path, *, owner: int, writers: int = 0o022) -> None:
    """Refuse a file that an untrusted user could change, directly or through a directory above it.

    Args:
        owner: the uid that may own the file and the directories, beside root.
        writers: the mode bits that must not be set; programs may be in a directory that a group of
            administrators can write.

    Raises:
        Refused: the file, or a directory above it, has another owner or such a mode bit.
    """
    path = path.resolve()
    for place in (path, *path.parents):
        status = place.stat()
        # In a sticky directory only the owner of a file can replace it.
        sticky = place != path and status.st_mode & 0o1000
        if status.st_uid not in (0, owner):
            raise Refused(
                f"{place} belongs to uid {status.st_uid}, but root relies on {path}.", f"chown root {place}"
            )
        if status.st_mode & writers and not sticky:
            raise Refused(
                f"{path} is writable by others ({place} has mode {status.st_mode & 0o7777:04o}).",
                f"chmod go-w {place}",
            )


# -- files in a directory of a user -------------------------------------------


_LIBC = ctypes.CDLL(None, use_errno=True)
_OPENAT2, _NO_XDEV, _NO_SYMLINKS = 437, 0x01, 0x04


def open_beneath(path: str, place: int, flags: int) -> int:
    """Open a path below the open directory `place`, without following links or entering mounts.

    A file system that a user mounts there may never answer, or show another directory. Before Linux 5.6,
    which lacks openat2, links and mounts are followed.

    Raises:
        OSError: the path cannot be opened; EXDEV if something is mounted on the way.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK)
    open_how = struct.pack("=3Q", flags, 0, _NO_XDEV | _NO_SYMLINKS)
    descriptor = int(
        _LIBC.syscall(_OPENAT2, place, os.fsencode(path), open_how, ctypes.c_size_t(len(open_how)))
    )
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number == ENOSYS:
        return os.open(path, flags, dir_fd=place)
    raise OSError(number, os.strerror(number), path)


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Take a session, the login uid, an empty keyring, groups and ids of a user, between fork and exec.

    Once the process has executed a program, its user can trace it and use whatever root has left to it: a
    terminal, into which it could type, or keys.

    Raises:
        OSError: the step failed; no program may be executed.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    take_login_uid(uid)
    if number := _KEYCTL.get(os.uname().machine):  # where a sandbox refuses the call, it refuses every use
        _LIBC.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def take_login_uid(uid: int) -> None:
    """Set the login uid of the kernel's audit: a process without one can choose that of any user.

    Kernels without audit have none. One that is set already cannot be changed without a capability.

    Raises:
        OSError: it stays unset.
    """
    try:
        with suppress(FileNotFoundError):
            _LOGIN_UID.write_text(str(uid))
    except OSError:
        if _LOGIN_UID.read_text() == _UNSET:
            raise
