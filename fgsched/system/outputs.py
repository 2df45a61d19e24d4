"""Read the last lines of a job's output with the rights of the job's owner, and never with those of root."""

import os
import pwd
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fgsched.system.safeopen import become

_BYTES = 1 << 14  # of output that is examined
_MOST = 2 * _BYTES  # that the reader may write; its process belongs to the user
_LINE = 500  # characters of a line
_END = 1.0  # seconds in which a killed reader ends
_TIME = 5.0  # seconds until a file system that does not answer is given up
_READ = '[ -f "$1" ] && tail -c "$2" -- "$1" && echo && exec stat -L -c %.9Y -- "$1"'
_ENVIRON = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}  # the user can read the variables of this process


class Tail(NamedTuple):
    """The last lines of a file."""

    lines: Sequence[str] = ()  # empty: the user may not read it, or it is empty
    is_changed: bool = False  # the file was changed too late, and `lines` are left out
    is_late: bool = (
        False  # reading took too long: a file system does not answer, or the user stopped the reader
    )


def last_lines(
    path: str, count: int, *, uid: int, gid: int | None = None, unless_changed_after: float | None = None
) -> list[str]:
    """Return the last lines of a regular file as `tail` does; [] if it was changed too late."""
    return list(tail(path, count, uid=uid, gid=gid, unless_changed_after=unless_changed_after).lines)


def tail(
    path: str, count: int, *, uid: int, gid: int | None = None, unless_changed_after: float | None = None
) -> Tail:
    """Return the last lines of a regular file; none if the user may not read it.

    Root reads as the user; another caller reads only own files. The time of the last change is read after
    the lines, so that a change in between is noticed.

    Args:
        path: absolute.
        count: number of lines, at most.
        uid: the user who wrote it.
        gid: of that user; None: the one of the user database.
        unless_changed_after: epoch seconds; no lines if the file was changed later.
    """
    rights = _rights(uid, gid)
    if count < 1 or not path.startswith("/") or rights is None:
        return Tail()
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        output = _read(["sh", "-c", _READ, "sh", path, str(_BYTES)], rights)
        if output is None:
            return Tail(is_late=True)
        data, _, changed_at = output.rstrip(b"\n").rpartition(b"\n")
        if unless_changed_after is not None and float(changed_at) > unless_changed_after:
            return Tail(is_changed=True)
        text = data.decode(errors="replace").splitlines()[-count:] if changed_at else []
        return Tail([line[:_LINE] for line in text])
    return Tail()


def _rights(uid: int, gid: int | None) -> dict[str, Any] | None:
    """Return the arguments that make a child process run as a user; None if that is not possible."""
    if os.geteuid() != 0:
        return {} if uid == os.geteuid() else None
    if uid == 0:
        return {}
    try:
        struct_passwd = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return None if gid is None else {"preexec_fn": partial(become, uid, gid, [gid])}
    group = struct_passwd.pw_gid if gid is None else gid
    groups: Sequence[int] = [group]
    with suppress(OSError):
        groups = os.getgrouplist(struct_passwd.pw_name, group)
    return {"preexec_fn": partial(become, uid, group, groups)}


def _read(command: Sequence[str], rights: dict[str, Any]) -> bytes | None:
    """Return the output of a command; None if it takes too long. Raises OSError."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=null, stdout=pipe, stderr=null, cwd="/", env=_ENVIRON, **rights
    )
    assert process.stdout is not None
    output, until = b"", time.monotonic() + _TIME
    with process.stdout as stream:
        while len(output) <= _MOST and (remaining := until - time.monotonic()) > 0:
            if not select.select([stream], [], [], remaining)[0]:
                break
            if not (data := os.read(stream.fileno(), _MOST)):
                process.wait(_END)
                return output
            output += data
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END)  # it hangs in the kernel, and is left behind
    return None
