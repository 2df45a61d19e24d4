"""Open paths in a directory of a user without accessing file systems that are mounted there."""

import ctypes
import os
import struct
from errno import ENOSYS

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
    how = struct.pack("=3Q", flags, 0, _NO_XDEV | _NO_SYMLINKS)
    descriptor = int(_LIBC.syscall(_OPENAT2, place, os.fsencode(path), how, ctypes.c_size_t(len(how))))
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number == ENOSYS:
        return os.open(path, flags, dir_fd=place)
    raise OSError(number, os.strerror(number), path)
