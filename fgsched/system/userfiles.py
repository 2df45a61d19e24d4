"""Open files where users can plant links: with the rights of a user, or without following links."""

import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, EPERM


@contextmanager
def rights_of(uid: int) -> Iterator[None]:
    """Give this process the rights of a user on files for as long as the block lasts, if it is root's.

    Root that opens a path of a user would follow the user's links to any file, and open any device.

    Raises:
        PermissionError: the user has no account.
    """
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        raise PermissionError(EPERM, f"uid {uid} has no account") from None
    groups = os.getgroups()
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setegid(account.pw_gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def create_own(path: str, mode: int) -> int:
    """Open an empty file for writing: a new one, or one of the caller without another name.

    For a name that the caller did not choose, in a directory in which others may have planted links.

    Raises:
        OSError: the file cannot be written; EEXIST if it is a link, not a regular file or of another user.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise FileExistsError(EEXIST, os.strerror(EEXIST), path)
    os.ftruncate(descriptor, 0)
    return descriptor
