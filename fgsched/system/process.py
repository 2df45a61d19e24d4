"""Identity of a process: which one a pid meant, whether it lives, and signals that cannot hit another one.

A pid alone names whoever has it now. With the start time and the boot it names one process for ever.
"""

import os
import re
import signal as signals
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_DEAD = "ZXx"  # a zombie runs no more: it holds nothing but its status


@dataclass(frozen=True, slots=True)
class Identity:
    """One process of one boot, as a claim writes it down."""

    pid: int
    start: int  # clock ticks since boot
    boot: str  # boot id of the kernel


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    start: int


@cache
def boot_id() -> str:
    """The kernel's name for this boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """Who has this pid now; None when nobody does, or only a zombie."""
    stat = _stat(pid)
    if stat is None or stat.state in _DEAD:
        return None
    return Identity(pid, stat.start, boot_id())


def is_alive(identity: Identity) -> bool:
    return identify(identity.pid) == identity


def open_pidfd(identity: Identity) -> int | None:
    """A descriptor that means this process and no later one, or None when it is gone.

    Checked after opening: until then the pid could still change hands.
    """
    if identity.pid <= 0:
        return None  # the kernel would take 0 and below for groups, or refuse them
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if is_alive(identity):
        return pidfd
    os.close(pidfd)
    return None


def kill(identity: Identity, signal: int) -> bool:
    """Send a signal to exactly this process; False when it is gone."""
    pidfd = open_pidfd(identity)
    if pidfd is None:
        return False
    try:
        signals.pidfd_send_signal(pidfd, signal)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def parents() -> dict[int, int]:
    """The parent of every living process, by pid."""
    stats = ((pid, _stat(pid)) for pid in _pids())
    return {pid: stat.parent for pid, stat in stats if stat and stat.state not in _DEAD}


def descendants(pid: int) -> list[Identity]:
    """Every living process below this one, without it: nearest first."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, ()))
    for child in found:  # grows while it is walked
        found += children.get(child, ())
    return [identity for child in found if (identity := identify(child))]


def marked(job_dir: str | os.PathLike[str], uid: int | None = None) -> list[Identity]:
    """Return the living processes that were started with FG_JOB_DIR=<job_dir>, as far as we may look.

    `uid`: the owner of the job, if other users' processes are to be left out. Processes are found although
    they left their session, their parent and their group.
    """
    mark = b"FG_JOB_DIR=" + os.fsencode(job_dir)
    found = [identity for pid in _pids() if (identity := identify(pid)) and mark in _environment(pid)]
    return found if uid is None else [one for one in found if may_be_of(one.pid, uid)]


def may_be_of(pid: int, uid: int) -> bool:
    """Return whether a process runs for this user: started by the user, or by root for the user.

    Any user can start a process with the environment of another user's job.
    """
    try:
        status = (_PROC / str(pid) / "status").read_bytes()
    except OSError:
        return False
    real = re.search(rb"^Uid:\t(\d+)", status, re.MULTILINE)
    return real is not None and int(real[1]) in (uid, 0)


def started_below(directory: str) -> dict[str, list[Identity]]:
    """The living processes that were started with an FG_JOB_DIR that begins so, by that."""
    found: dict[str, list[Identity]] = {}
    for pid in _pids():
        place = started_with(pid, "FG_JOB_DIR")
        if place.startswith(directory) and (identity := identify(pid)):
            found.setdefault(place, []).append(identity)
    return found


def started_with(pid: int, name: str) -> str:
    """The value that a variable had when the process was started; "" where we may not look."""
    mark = os.fsencode(name) + b"="
    values = (entry[len(mark) :] for entry in _environment(pid) if entry.startswith(mark))
    return os.fsdecode(next(values, b""))


def maps(pid: int, name: str) -> bool | None:
    """Whether a file of this name is mapped into the process; False where we may not look.

    None of one that has nothing mapped any more: it ends, and gives its memory up before its files.
    """
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except PermissionError:
        return False
    except OSError:
        return None
    return f"/{name}\n".encode() in text if text else None


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())


def _environment(pid: int) -> list[bytes]:
    """The environment a process was started with; empty when it is gone or not ours to read."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(pid: int) -> _Stat | None:
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        text = os.read(descriptor, 4096)  # a thousand are looked at when a controller starts: no file object
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    # The name is in brackets and may itself hold brackets, blanks and line ends.
    words = text[text.rindex(b")") + 2 :].split()
    return _Stat(state=words[0].decode(), parent=int(words[1]), start=int(words[19]))
