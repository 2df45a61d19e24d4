"""Read the last lines of a job's output with the rights of the job's owner, and never with those of root."""

import os
import pwd
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

_BYTES = 1 << 14  # of output that is examined
_MOST = 2 * _BYTES  # that the reader may write; its process belongs to the user
_LINE = 500  # characters of a line
_END = 1.0  # seconds in which a killed reader ends
_TIME = 5.0  # seconds until a file system that does not answer is given up
_READ = '[ -f "$1" ] && stat -L -c %Y -- "$1" && exec tail -c "$2" -- "$1"'
_ENVIRON = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}  # the user can read the variables of this process


def last_lines(
    path: str, count: int, *, uid: int, gid: int | None = None, unless_changed_after: float | None = None
) -> list[str]:
    """Return the last lines of a regular file; [] if the user may not read it.

    Root reads as the user; another caller reads only own files.

    Args:
        path: absolute.
        count: number of lines, at most.
        uid: the user who wrote it.
        gid: of that user; None: the one of the user database.
        unless_changed_after: epoch seconds; [] if the file was changed later.
    """
    rights = _rights(uid, gid)
    if count < 1 or not path.startswith("/") or rights is None:
        return []
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        head, _, data = _read(["sh", "-c", _READ, "sh", path, str(_BYTES)], rights).partition(b"\n")
        if unless_changed_after is None or int(head) <= unless_changed_after:
            text = data.decode(errors="replace").splitlines()[-count:]
            return [line[:_LINE] for line in text]
    return []


def _rights(uid: int, gid: int | None) -> dict[str, Any] | None:
    """Return the arguments that make a child process run as a user; None if that is not possible."""
    if os.geteuid() != 0:
        return {} if uid == os.geteuid() else None
    if uid == 0:
        return {}
    try:
        found = pwd.getpwuid(uid)
    except (KeyError, OSError):
        return None if gid is None else {"user": uid, "group": gid, "extra_groups": [gid]}
    group = found.pw_gid if gid is None else gid
    groups: Sequence[int] = [group]
    with suppress(OSError):
        groups = os.getgrouplist(found.pw_name, group)
    return {"user": uid, "group": group, "extra_groups": groups}


def _read(command: Sequence[str], rights: dict[str, Any]) -> bytes:
    """Return the output of a command; b"" if it takes too long. Raises OSError or TimeoutExpired."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=null, stdout=pipe, stderr=null, cwd="/", env=_ENVIRON, **rights
    )
    assert process.stdout is not None
    found, until = b"", time.monotonic() + _TIME
    with process.stdout as stream:
        while len(found) <= _MOST and (left := until - time.monotonic()) > 0:
            if not select.select([stream], [], [], left)[0]:
                break
            if not (data := os.read(stream.fileno(), _MOST)):
                process.wait(_END)
                return found
            found += data
    process.kill()
    process.wait(_END)  # raises TimeoutExpired if it hangs in the kernel, and is left behind
    return b""
