"""Tell the file system that the directories below one are unrelated, so that each gets its own part of it.

ext4 creates files in the block group of their directory, and does not use an inode again for minutes after it
was freed. Where other programs have just removed thousands of files, a new file takes 0.3 ms instead of 0.01.
"""

import fcntl
import struct
from contextlib import suppress

_LONG = struct.calcsize("l")
_GET, _SET = 0x80006601 | _LONG << 16, 0x40006602 | _LONG << 16  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_TOPDIR = 0x00020000  # FS_TOPDIR_FL, `chattr +T`: a hint to ext2, ext3 and ext4


def spread_below(directory: int) -> None:
    """Mark an open directory of this user. Other file systems refuse the flag, and need none."""
    with suppress(OSError):
        (flags,) = struct.unpack("i", fcntl.ioctl(directory, _GET, bytes(_LONG))[:4])
        fcntl.ioctl(directory, _SET, struct.pack("i", flags | _TOPDIR).ljust(_LONG, b"\0"))
