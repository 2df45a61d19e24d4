"""Find the cgroups in which the controller can limit host memory, processes and GPUs of jobs.

With version 2, the cgroups of a queue's jobs lie in one cgroup beside that of the controller's unit, and not
below it: a cgroup that has processes cannot enable controllers for its children, and systemd cannot start a
unit again whose cgroup has enabled them for jobs that still run (docs/design/architecture.md).
"""

import errno
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

_MOUNTS = Path("/proc/self/mountinfo")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_PID_MAX = Path("/proc/sys/kernel/pid_max")
_QUEUE = re.compile(r"fgsched-[0-9a-f]{8}")
# By version: the limit of memory, and that of swap with its value; version 1 limits the sum of both.
_MEMORY_FILES = {
    "v2": ("memory.max", ("memory.swap.max", "0")),
    "v1": ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", "")),
}
_LEAF = "fgsched-controller"  # of a controller in the topmost cgroup of a container


class MemoryCgroup(Struct, frozen=True):
    """The cgroup below which cgroups of jobs are created; with kind "" there is none, and `note` says why."""

    kind: str  # "v1", "v2" or ""
    root: Path
    note: str = ""
    suffix: str = ""  # of the names of jobs: with version 1, controllers can share `root`

    def of_job(self, name: str, limit: int) -> tuple[str, tuple[str, ...]] | None:
        """Return (directory, settings) of a cgroup with a memory limit; None if there are no cgroups.

        Args:
            limit: bytes.
        """
        if not self.kind:
            return None
        most, swap = _MEMORY_FILES[self.kind]
        # Without a limit for swap, the whole host swaps for a job above its memory. A kernel may have none.
        no_swap = (f"{swap[0]}={swap[1] or limit}",) if (self.root / swap[0]).exists() else ()
        return str(self.root / f"{name}{self.suffix}"), (f"{most}={limit}", *no_swap)


def find(queue: str) -> MemoryCgroup:
    """Find the memory cgroup of a queue by creating and removing a cgroup in it."""
    kind, root, note = _find(queue, "memory")
    return MemoryCgroup(kind, root, note, f"-{queue}" if kind == "v1" else "")


def probe() -> MemoryCgroup:
    """Find the memory cgroup that a controller would have here; nothing is left of it."""
    memory_cgroup = find(f"probe-{os.getpid()}")
    if memory_cgroup.kind == "v2":
        remove_if_empty(memory_cgroup.root)
    return memory_cgroup


def _find(queue: str, controller: str) -> tuple[str, Path, str]:
    """Return version and path of the cgroup for the jobs of a queue; if there is none, "" and why."""
    reasons = []
    for kind, choose in (("v2", partial(of_queue, queue)), ("v1", _own_cgroup_v1)):
        try:
            root = choose(controller)
            tried = root / f"fgsched-{controller}-probe-{os.getpid()}"
            tried.mkdir()
            tried.rmdir()
        except (OSError, LookupError) as error:
            reasons.append(str(error))
            continue
        return kind, root, ""
    return "", Path("/"), "; ".join(reasons)


def oom_kills(directory: Path) -> int:
    """Return how many processes of a cgroup the kernel has killed for memory; 0 if it does not count them."""
    for name in ("memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError):
            fields = dict(line.split() for line in (directory / name).read_text().splitlines())
            return int(fields["oom_kill"])
    return 0


def make(directory: Path) -> None:
    """Create a cgroup that all users can read, so that jobs see their limits; it may exist.

    Raises:
        OSError: it cannot be created.
    """
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)  # whatever the umask: that of the unit is 077


def remove_if_empty(directory: Path) -> None:
    """Remove a cgroup, unless it has processes or cgroups below it."""
    with suppress(OSError):
        directory.rmdir()


def remove_left() -> None:
    """Remove the cgroups beside the unit of the host's controller that have no processes."""
    with suppress(LookupError):
        for queue in (_mounted("cgroup2", "") / "system.slice").glob("fgsched-*"):
            if _QUEUE.fullmatch(queue.name):
                for directory in (*queue.glob("fgsched-*"), queue):
                    remove_if_empty(directory)


class PidsCgroups:
    """Cgroups that limit the number of processes of each user's jobs; `note` says why there are none.

    There is one for each user and not for each job, because creating and removing a cgroup takes longer
    than starting the shepherd of a job. With cgroup v2 a job is in one cgroup only: a job that has its own
    gets the limit there.
    """

    def __init__(self, name: str, most: int) -> None:
        """Find the parent cgroup of the users' cgroups.

        Args:
            name: the name of the queue.
            most: processes and threads of one user's jobs; 0 is no limit.
        """
        self.most, self._name, self._ready = _at_most_half_of_pids(most), name, set[int]()
        self.kind, self.root, self.note = (
            _find(name, "pids") if most else ("", Path("/"), "max_processes is 0")
        )

    def of_user(self, uid: int) -> str:
        """Return the directory of a user's cgroup, creating it if needed; "" if there are no cgroups.

        Raises:
            OSError: the cgroup cannot be created.
        """
        if not self.kind or not uid:
            return ""
        directory = f"{self.root}/fgsched-{self._name}-{uid}"
        if uid not in self._ready or not os.path.isdir(directory):
            make(Path(directory))
            Path(directory, "pids.max").write_text(str(self.most))
            self._ready.add(uid)
        return directory

    @property
    def setting(self) -> tuple[str, ...]:
        """Return the settings for a cgroup of one job, which with v2 is the only one that the job is in."""
        return (f"pids.max={self.most}",) if self.kind == "v2" else ()

    def leave(self) -> None:
        """Remove the cgroups without processes, including those of an earlier controller."""
        for directory in self.root.glob(f"fgsched-{self._name}-*") if self.kind else ():
            remove_if_empty(directory)
        self._ready.clear()


def _at_most_half_of_pids(most: int) -> int:
    """Limit a number of processes to half of the kernel's pids, to leave the other half to the host."""
    try:
        return min(most, int(_PID_MAX.read_text()) // 2)
    except (OSError, ValueError):
        return most


def of_queue(queue: str, controller: str = "") -> Path:
    """Return the cgroup of a queue, beside this process's own, after enabling a controller for its children.

    Raises:
        LookupError: the controller is not available here.
        OSError: the cgroup cannot be created or changed.
    """
    own_cgroup = _own_unified()
    above = own_cgroup if own_cgroup == _mounted("cgroup2", "") else own_cgroup.parent
    if controller and controller not in (above / "cgroup.controllers").read_text().split():
        raise LookupError(f"cgroup v2 has no {controller} controller here")
    if controller:
        _enable(above, controller)
    root = above / f"fgsched-{queue}"
    make(root)
    if controller:
        _enable(root, controller)
    return root


def _own_unified() -> Path:
    own_cgroup = _mounted("cgroup2", "") / _own("")
    return own_cgroup.parent if own_cgroup.name == _LEAF else own_cgroup


def _enable(directory: Path, controller: str) -> None:
    """Enable a controller for the children of a cgroup.

    In a container, this process can be in the topmost cgroup that it sees. It then moves into a child first,
    which is not enough if other processes are there, too.

    Raises:
        OSError: the cgroup cannot be changed.
    """
    control_file = directory / "cgroup.subtree_control"
    if controller in control_file.read_text().split():
        return
    try:
        control_file.write_text(f"+{controller}")
    except OSError as error:
        if error.errno != errno.EBUSY or directory != _own_unified():
            raise
        make(directory / _LEAF)
        (directory / _LEAF / "cgroup.procs").write_text(str(os.getpid()))
        control_file.write_text(f"+{controller}")


def _own_cgroup_v1(controller: str) -> Path:
    """Return this process's own cgroup: with version 1 it can have processes and children."""
    root = _mounted("cgroup", controller) / _own(controller)
    if controller == "memory" and not (root / "memory.limit_in_bytes").exists():
        raise LookupError("cgroup v1 has no memory controller here")
    return root


def _mounted(kind: str, controller: str) -> Path:
    """Return the mount point of a hierarchy."""
    for line in os.fsdecode(_MOUNTS.read_bytes()).split("\n"):  # users choose some names, in any bytes
        mount, _, file_system = line.partition(" - ")
        fields = file_system.split(" ")
        if fields[0] == kind and (not controller or controller in fields[2].split(",")):
            return Path(mount.split(" ")[4])
    raise LookupError(f"no {kind} {controller}".rstrip() + " is mounted")


def _own(controller: str) -> str:
    """Return this process's own cgroup in a hierarchy, relative to its mount point."""
    for line in os.fsdecode(_OWN_CGROUPS.read_bytes()).split("\n")[:-1]:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") if controller else not controllers:
            return path.lstrip("/")
    raise LookupError(f"this process is in no {controller or 'v2'} cgroup")


def for_devices(queue: str) -> Path | None:
    """Return the cgroup v2 below which the driver can limit GPU memory; None if none can be created."""
    try:
        offered = (_own_unified() / "cgroup.controllers").read_text().split()
        return of_queue(queue, "dmem" if "dmem" in offered else "")
    except (OSError, LookupError):
        return None
