"""Become another user for good, in a child process that root has forked."""

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_LOGIN_UID = Path("/proc/self/loginuid")
_UNSET = "4294967295"
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_LIBC = ctypes.CDLL(None)


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
