"""Identify processes by pid, start time and boot, and send signals that cannot reach another process.

The kernel reuses a pid. A pid with start time and boot id identifies one process uniquely.
"""

import errno
import os
import re
import signal as signals
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from fgsched.system import processfiles
from fgsched.system.processfiles import ProcessFiles, read_of

T = TypeVar("T")
Watch = Callable[[int, Callable[[], None]], None]  # (pidfd, called when the process has exited)
_PROC = Path("/proc")
CANCEL_STEP = signals.SIGRTMIN + 2  # tells srun to end its step; SIGTERM can be for the whole job
_EXITED_STATES = "ZXx"  # states of processes that have exited: a zombie holds only its exit status
_STATUS = re.compile(rb"\nState:\t(\w).*?\nPPid:\t(\d+).*?\nUid:\t(\d+)", re.DOTALL)
_STAT = 4096  # bytes of /proc/PID/stat that are read
UNREAD = 0  # start of a process whose user is silent


class Identity(Struct, frozen=True):
    """A process, unique across pid reuse and reboots."""

    pid: int
    start: int  # clock ticks since boot
    boot: str  # boot id of the kernel


def children(pid: int) -> list[int]:
    """Return the children of a process, including ended ones that were not waited for."""
    pids: list[int] = []
    for task in _PROC.joinpath(str(pid), "task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            pids += map(int, task.read_text().split())
    return pids


class Children:
    """Children that a program which executed this one left: spawners, which end after their jobs."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)

    def watch(self, watch_once: Callable[[int, Callable[[], None]], None]) -> None:
        """Wait for each child when it has ended; `watch_once` calls a function when a pidfd is readable."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                watch_once(pidfd, partial(_reap, pidfd))


NO_CHILDREN = Children(())


def _reap(pidfd: int) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    os.close(pidfd)


class _Status(Struct, frozen=True):
    state: str
    parent: int
    owner: int  # real uid


@cache
def boot_id() -> str:
    """Return the kernel's id of the current boot."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def umask() -> int:
    """Return the umask. Reading it sets it for a moment, so the process must have no other threads."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def identify(pid: int) -> Identity | None:
    """Return the identity of the process with this pid, or None if there is none or it is a zombie.

    The start time is UNREAD for root, if it has had no answer about the processes of their user lately.
    """
    status = _status(pid)
    return None if status is None or status.state in _EXITED_STATES else _identity(pid, status)


def _identity(pid: int, status: _Status) -> Identity | None:
    try:
        stat = _content_of(pid, status.owner, "stat", size=_STAT)
    except OSError:
        return Identity(pid, UNREAD, boot_id()) if is_silent(status.owner) else None
    return Identity(pid, _start_in(stat), boot_id())


def started_at(pid: int, now: float) -> float | None:
    """Return when a process was started, in epoch seconds; None if there is none. `now` in epoch seconds."""
    identity = identify(pid)
    if identity is None:
        return None
    return now - time.clock_gettime(time.CLOCK_BOOTTIME) + identity.start / os.sysconf("SC_CLK_TCK")


def is_alive(identity: Identity) -> bool:
    """Return whether the process still runs, as far as it is known: of a silent user only the pid is."""
    now = identify(identity.pid)
    if now is not None and UNREAD in (now.start, identity.start):
        return now.boot == identity.boot
    return now == identity


def is_unreaped(identity: Identity) -> bool:
    """Return whether the process has exited and is not reaped yet by its parent, a spawner of this user."""
    status = _status(identity.pid)
    if status is None or status.state != "Z" or _identity(identity.pid, status) != identity:
        return False
    return is_own_supervisor(status.parent)


def open_pidfd(identity: Identity) -> int | None:
    """Open a pidfd of the process; return None if the process has exited. The caller closes it.

    The identity is checked after opening, because the pid may be reused until then.
    """
    if identity.pid <= 0:
        return None  # 0 and below mean process groups, or are refused by the kernel
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if is_alive(identity):
        return pidfd
    os.close(pidfd)
    return None


def kill(identity: Identity, signal: int) -> bool:
    """Send `signal` to the process; return False if the process has exited."""
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
    """Return {pid: parent pid} of all living processes."""
    states = ((pid, _status(pid)) for pid in _pids())
    return {pid: status.parent for pid, status in states if status and status.state not in _EXITED_STATES}


def ancestry(pid: int) -> dict[int, int]:
    """Return {pid: parent pid} of a living process and its ancestors; {} if there is no such process."""
    parent_of: dict[int, int] = {}
    while pid > 0 and pid not in parent_of:
        status = _status(pid)
        if status is None or status.state in _EXITED_STATES:
            break
        parent_of[pid], pid = status.parent, status.parent
    return parent_of


def descendants(pid: int) -> list[Identity]:
    """Return the living descendants of a process, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    pids = list(children.get(pid, ()))
    for child in pids:  # grows while it is walked
        pids += children.get(child, ())
    return [identity for child in pids if (identity := identify(child))]


def handles(pid: int, signals: Iterable[int]) -> bool:
    """Return whether a process has handlers for all these signals; False if there is no such process."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return all(caught >> (number - 1) & 1 for number in signals)


def processes_of_job(job_dir: str | os.PathLike[str], uid: int | None = None) -> list[Identity]:
    """Return the living processes that were started with FG_JOB_DIR=`job_dir`.

    A process that left its session, its parent or its group is found as well. A process whose environment
    this user may not read is not.

    Args:
        uid: the owner of the job; processes of other users than the owner and root are omitted.
    """
    mark = b"FG_JOB_DIR=" + os.fsencode(job_dir)
    uids = None if uid is None else {uid}
    stats = _files(_pids(), "stat", bytes, uids, _STAT)
    identities = {
        pid: Identity(pid, _start_in(stat), boot_id()) for pid, stat in stats.items() if _lives(stat)
    }
    is_marked = _files(identities, "environ", lambda variables: mark in variables.split(b"\0"), uids)
    return [identities[pid] for pid in is_marked if is_marked[pid]]


def may_be_of(pid: int, uid: int) -> bool:
    """Return whether a process has the real uid `uid` or 0.

    Needed because any user can start a process with the environment of another user's job.
    """
    return owner_of(pid) in (uid, 0)


def owner_of(pid: int) -> int | None:
    """Return the real uid of a process; None if there is no such process, or this user may not know."""
    status = _status(pid)
    return status.owner if status else None


def started_below(directory: str, uids: Collection[int] | None = None) -> dict[str, list[Identity]]:
    """Return {FG_JOB_DIR: processes} of the living processes whose FG_JOB_DIR starts with `directory`.

    Args:
        uids: the owners of the jobs; processes of other users than these and root are omitted. None: of all.
    """
    grouped_identities: dict[str, list[Identity]] = {}
    job_dirs = _files(_pids(), "environ", lambda variables: _value(variables, "FG_JOB_DIR"), uids)
    for pid, job_dir in job_dirs.items():
        if job_dir.startswith(directory) and (identity := identify(pid)):
            grouped_identities.setdefault(job_dir, []).append(identity)
    return grouped_identities


def started_with(pid: int, name: str) -> str:
    """Return the value of an environment variable at the start of a process, or "" if it cannot be read."""
    return _files([pid], "environ", lambda variables: _value(variables, name)).get(pid, "")


def _value(variables: bytes, name: str) -> str:
    mark = os.fsencode(name) + b"="
    values = (entry[len(mark) :] for entry in variables.split(b"\0") if entry.startswith(mark))
    return os.fsdecode(next(values, b""))


def maps(pid: int, name: str) -> bool | None:
    """Return whether a file named `name` is mapped into a process; False if this user may not know.

    None means that the process is exiting: it has no mappings left, but may still have files open. Or root
    has had no answer about the process of another user.
    """
    try:
        text = file_of(pid, "maps")
    except PermissionError:
        return False
    except OSError:
        return None
    return f"/{name}\n".encode() in text if text else None


def file_of(pid: int, name: str, offset: int = 0, size: int = processfiles.MOST) -> bytes:
    """Return a part of a file in /proc/PID that shows the memory or the program of a process.

    Args:
        offset, size: bytes.

    Raises:
        OSError: it cannot be read, or root has had no answer about the process of another user.
    """
    return _content_of(pid, owner_of(pid) if os.geteuid() == 0 else None, name, offset, size)


def _content_of(
    pid: int, owner: int | None, name: str, offset: int = 0, size: int = processfiles.MOST
) -> bytes:
    if os.geteuid() != 0 or owner in (0, None):
        return read_of(pid, name, offset, size)
    contents = _of_others.read({pid: owner}, name, bytes, offset, size)
    if pid not in contents:
        raise OSError(errno.EIO, os.strerror(errno.EIO), f"/proc/{pid}/{name}")
    return contents[pid]


def program_of(pid: int) -> str:
    """Return the path of the program of a process. Raises OSError as `file_of`."""
    return os.fsdecode(file_of(pid, processfiles.LINK + "exe"))


def is_silent(uid: int) -> bool:
    """Tell whether root has had no answer about the processes of a user lately."""
    return _of_others.is_hanging(uid)


def _files(
    pids: Iterable[int],
    name: str,
    part: Callable[[bytes], T],
    uids: Collection[int] | None = None,
    size: int = processfiles.MOST,
) -> dict[int, T]:
    """Return {pid: part of its file} of the processes of root and `uids` (None: all) that can be read."""
    contents, owners = dict[int, T](), dict[int, int]()
    is_root = os.geteuid() == 0
    for pid in pids:
        owner = owner_of(pid) if is_root or uids is not None else None
        if uids is not None and owner not in (0, *uids):
            continue
        if is_root and owner:
            owners[pid] = owner
            continue
        with suppress(OSError):
            contents[pid] = part(read_of(pid, name, 0, size))
    return contents | _of_others.read(owners, name, part, 0, size)


_of_others = ProcessFiles()  # a hanging helper is a fact of the host and concerns all who ask


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())


def _status(pid: int) -> _Status | None:
    """Return what /proc/PID/status says, whose readers no user can make wait."""
    try:
        descriptor = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 1024)  # no file object: a starting controller reads about a thousand
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    match = _STATUS.search(text)  # the name of the process has no line feed there
    return _Status(match[1].decode(), int(match[2]), int(match[3])) if match else None


def _fields(stat: bytes) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, which may contain any character."""
    return stat[stat.rindex(b")") + 2 :].split()


def _start_in(stat: bytes) -> int:
    return int(_fields(stat)[19])


def _lives(stat: bytes) -> bool:
    return _fields(stat)[0].decode() not in _EXITED_STATES


# -- what processes use --------------------------------------------------------


class TreeUse(Struct, frozen=True, kw_only=True):
    """What processes use together."""

    cpu_seconds: float = 0.0  # with their children that have ended
    rss: int = 0  # bytes; memory that several processes share counts for each
    read: int | None = None  # bytes read from disks; None: this user may not know
    written: int | None = None  # bytes written to disks


def use_of(pids: Sequence[int]) -> TreeUse:
    """Return what living processes use together; a process that has ended is left out."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    words = _files(pids, "stat", _fields, size=_STAT).values()
    io = _files(pids, "io", _counts).values()
    return TreeUse(
        cpu_seconds=sum(int(word[at]) for word in words for at in (11, 12, 13, 14)) / ticks,
        rss=sum(int(word[21]) for word in words) * page,
        read=sum(counts.get("read_bytes", 0) for counts in io) if io else None,
        written=sum(counts.get("write_bytes", 0) for counts in io) if io else None,
    )


def _counts(io: bytes) -> dict[str, int]:
    return {
        name: int(value) for name, _, value in (line.partition(": ") for line in io.decode().splitlines())
    }


# -- shepherds and spawners ---------------------------------------------------


_PROGRAM = "fgspawn"


def supervisor_above(pid: int, parents: Mapping[int, int]) -> Identity | None:
    """Return the nearest ancestor that is a shepherd or spawner of this user, or None.

    Args:
        parents: {pid: parent pid} of all processes.
    """
    while (pid := parents.get(pid, 0)) > 1:
        identity = identify(pid)
        if identity is not None and is_own_supervisor(pid):
            return identity
    return None


def is_own_supervisor(pid: int) -> bool:
    """Return whether a process is a shepherd or a spawner of this user."""
    return owner_of(pid) == os.geteuid() and is_supervisor(pid)


def is_supervisor(pid: int) -> bool:
    """Return whether a process is a shepherd or a spawner of any user.

    The program file of another user's process cannot be read; then its name decides.
    """
    try:
        program = program_of(pid).removesuffix(" (deleted)")  # an upgrade deletes the file
    except PermissionError:
        return _has_its_name(pid)
    except OSError:
        return False
    return os.path.basename(program) == _PROGRAM and not _runs_a_task_prolog(pid)


def _runs_a_task_prolog(pid: int) -> bool:
    """Return whether this process of the program belongs to a job: it runs the task prolog."""
    try:
        return file_of(pid, "cmdline", size=4096).split(b"\0")[1:2] == [b"task"]
    except OSError:
        return False


def _has_its_name(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{_PROGRAM}\n"
    except OSError:
        return False


# -- a command that runs inside a job -----------------------------------------


IN_A_JOB = "a controller cannot be started from inside a job: it would end with the job"
_JOB_DIR = "FG_JOB_DIR"


def is_inside_job(environ: Mapping[str, str]) -> bool:
    """Return whether this process runs inside a job.

    True if an ancestor is a shepherd or spawner of any user, or if the directory FG_JOB_DIR exists.
    """
    job_dir = environ.get(_JOB_DIR, "")
    return any(map(is_supervisor, _ancestors())) or bool(job_dir and os.path.isdir(job_dir))


def spawner_outside(run: Path) -> Identity | None:
    """Return the spawner of the controllers of a run directory if this process runs in one of their jobs."""
    job_pids: list[int] = [os.getpid()]
    for pid in _ancestors():
        if not is_supervisor(pid):
            job_pids.append(pid)
        elif _is_spawner(pid):
            if _are_of(run, job_pids):
                return identify(pid)
            job_pids = []
    return None


def _ancestors() -> Iterator[int]:
    parent_of, pid = parents(), os.getpid()
    while (pid := parent_of.get(pid, 0)) > 1:
        yield pid


def _is_spawner(pid: int) -> bool:
    """Return whether a process is a spawner; shepherds have the name of their job."""
    try:
        return is_own_supervisor(pid) and Path(f"/proc/{pid}/comm").read_text() == "fgspawn\n"
    except OSError:
        return False


def _are_of(run: Path, pids: Sequence[int]) -> bool:
    """Return whether one of the processes was started in a job of the run directory."""
    return any(started_with(pid, _JOB_DIR).startswith(f"{run}/") for pid in pids)
