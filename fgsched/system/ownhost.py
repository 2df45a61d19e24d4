"""The host to which a queue belongs: another host with the same home must not start its jobs again.

The record is the text of the symbolic link `host` in the state directory. A link is made by one atomic call,
on NFS as well, so two hosts cannot both begin with a queue. The locks of a network's file system are another
sign of life, and never the only one.
"""

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from fgsched.domain.errors import StorageError, Unreachable
from fgsched.domain.text import clean
from fgsched.system.process import Identity, boot_id, identify, is_alive

RECORD, JOBS_LOCK = "host", "jobs.lock"
FULL = {errno.ENOSPC, errno.EDQUOT}
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_CARDS = Path("/sys/class/net")
INHERITED = 64  # lowest descriptor that the spawner inherits: it uses the low ones itself


class HostIdentity(Struct, frozen=True, kw_only=True):
    """The identity of a running system."""

    machine: str = ""  # machine id; "": it has none, as in some containers
    name: str = ""
    boot: str
    pids: str = ""  # its PID namespace: a container sees no processes of another one
    hardware: tuple[str, ...] = ()  # addresses of built-in network cards: a cloned image has others


class QueueOwner(Struct, frozen=True, kw_only=True):
    """The host of a queue, and its last controller."""

    host: HostIdentity
    pid: int
    since: float  # start of the controller, in epoch seconds


def this_host() -> HostIdentity:
    """Return the identity of the system on which this process runs."""
    pids = ""
    with suppress(OSError):
        pids = str(os.stat("/proc/self/ns/pid").st_ino)
    return HostIdentity(
        machine=_machine_id(), name=socket.gethostname(), boot=boot_id(), pids=pids, hardware=_hardware()
    )


def _machine_id() -> str:
    for path in _MACHINE_IDS:
        with suppress(OSError, ValueError):
            if len(text := path.read_text().strip()) == 32:
                return text
    return ""


def _hardware() -> tuple[str, ...]:
    """Return the addresses of built-in network cards: neither USB nor made by software."""
    addresses = []
    with suppress(OSError):
        for gpu in sorted(_CARDS.iterdir()):
            with suppress(OSError):
                bus = os.path.basename(os.readlink(gpu / "device/subsystem"))
                if bus != "usb" and (gpu / "addr_assign_type").read_text().strip() == "0":
                    addresses.append((gpu / "address").read_text().strip())
    return tuple(addresses[:16])


def is_same(owner: HostIdentity, host: HostIdentity, *, lives: bool) -> bool:
    """Return whether the host of a queue is this one.

    After a restart, the machine id decides, and the network cards if both have some: images are cloned with
    their machine id, and a host can be renamed.

    Args:
        lives: a process of the queue holds its lock, somewhere.
    """
    if owner.boot == host.boot and owner.pids == host.pids:
        return True
    if lives:
        return False
    if owner.boot == host.boot:
        return True  # a container of this kernel that has ended
    if not owner.machine or owner.machine != host.machine:
        return False
    if owner.hardware and host.hardware:
        return not set(owner.hardware).isdisjoint(host.hardware)
    return owner.name == host.name


def owner_of(state: Path) -> QueueOwner | None:
    """Return the recorded host of a queue; None if there is no record. Raises StorageError."""
    try:
        text = os.readlink(state / RECORD)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            return None
        raise StorageError(f"{state / RECORD} is not the link that names the host of the queue") from None
    try:
        return msgspec.json.decode(text, type=QueueOwner)
    except msgspec.DecodeError:
        raise StorageError(
            f"{state / RECORD} cannot be read: it names the host of the queue",
            "If no other host uses this queue, remove the link.",
        ) from None


def refuse_another_host(state: Path, *, only_other_boots: bool = False) -> None:
    """Refuse a queue that belongs to another host.

    Args:
        only_other_boots: accept a queue of this kernel, whose controller can be reached from a container.

    Raises:
        Unreachable: it does; StorageError: the record cannot be read.
    """
    owner = owner_of(state)
    if owner is None or (only_other_boots and owner.host.boot == boot_id()):
        return
    if not is_same(owner.host, this_host(), lives=is_in_use(state)):
        raise refusal(state, owner)


def refusal(state: Path, owner: QueueOwner) -> Unreachable:
    """Return the error for a queue of another host."""
    name = clean(owner.host.name) or "another host"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(owner.since))
    kind = "container" if owner.host.boot == boot_id() else "host"
    return Unreachable(
        f"the queue in {state} belongs to {kind} {name}: "
        f"its last controller there has pid {owner.pid}, from {since}",
        f"Use it on {name}. For a queue of this host, set FG_HOME to a directory on a disk of its own. "
        f"If {name} is gone for good: fgsched start --take-over",
    )


def claim(state: Path, owner: QueueOwner, *, takes_over: bool = False) -> None:
    """Record this host as that of a queue. The caller holds the lock of the state directory.

    A record that exists is moved away by one call, which succeeds on one of several hosts. On a full disk the
    record of this host stays, with the controller before.

    Raises:
        Unreachable: the queue belongs to another host.
    """
    before = owner_of(state)
    if before is not None:
        lives = is_in_use(state)
        if not is_same(before.host, owner.host, lives=lives) and (lives or not takes_over):
            raise refusal(state, before)
        with suppress(FileNotFoundError):
            os.rename(state / RECORD, state / f"{RECORD}.before")
    try:
        os.symlink(msgspec.json.encode(owner), os.fsencode(state / RECORD))
    except FileExistsError:
        raise refusal(state, owner_of(state) or owner) from None
    except OSError as error:
        if before is None or error.errno not in FULL:
            raise
        os.rename(state / f"{RECORD}.before", state / RECORD)


def hold_jobs_lock(state: Path) -> int:
    """Lock a queue for as long as its controller, or a spawner with jobs, runs; return the descriptor.

    Raises:
        StorageError: the file system has no locks.
    """
    descriptor = _locked(state)
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, INHERITED)
    finally:
        os.close(descriptor)


def refuse_without_locks(state: Path) -> None:
    """Refuse a state directory whose file system has no locks. Raises StorageError."""
    os.close(_locked(state))


def _locked(state: Path) -> int:
    descriptor = os.open(state / JOBS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # SQLite's kind
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # `is_in_use` holds another one for an instant
    except OSError as error:
        os.close(descriptor)
        if error.errno in NO_LOCKS:
            raise no_locks(state, error) from None
        raise
    return descriptor


def no_locks(state: Path, error: OSError) -> StorageError:
    """Return the error for a file system without locks."""
    return StorageError(
        f"the file system of {state} has no locks ({os.strerror(error.errno or 0)}): nothing is damaged, "
        "but a queue needs them",
        "Set FG_HOME to a directory on a disk of this host, or mount the file system with locks "
        "(Lustre: -o flock).",
    )


def is_in_use(state: Path) -> bool:
    """Return whether a controller or a spawner with jobs is seen to hold the lock of a queue."""
    with suppress(OSError):
        descriptor = os.open(state / JOBS_LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


# -- the start of a controller -------------------------------------------------------------------------
#
# A symbolic link beside the socket names the process that is starting. It exists from the lock of the
# controller until its first request, and while it executes itself again. A killed controller leaves a link to
# a process that no longer exists; the next one replaces it.


def _link(socket: Path) -> Path:
    return socket.with_name("starting")


def show_start(socket: Path) -> None:
    """Name this process as the controller that is starting. On a full disk it starts without the link."""
    link, identity = _link(socket), identify(os.getpid())
    if identity is not None:
        with suppress(OSError):
            link.unlink(missing_ok=True)
            link.symlink_to(f"{identity.pid}:{identity.start}:{identity.boot}")


def clear_start(socket: Path) -> None:
    """Remove the link, if there is one."""
    with suppress(OSError):
        _link(socket).unlink(missing_ok=True)


def starting(socket: Path) -> int:
    """Return the pid of the controller that is starting; 0 if none is."""
    try:
        pid, start, boot = os.readlink(_link(socket)).split(":")
        identity = Identity(int(pid), int(start), boot)
    except (OSError, ValueError):
        return 0
    return identity.pid if is_alive(identity) else 0
