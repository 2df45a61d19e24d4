"""Find the cgroups in which the controller can limit host memory, processes and GPUs of jobs."""

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_MOUNTS = Path("/proc/self/mountinfo")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_PID_MAX = Path("/proc/sys/kernel/pid_max")


class MemoryCgroup(Struct, frozen=True):
    """The cgroup below which cgroups of jobs are created; with kind "" there is none, and `note` says why."""

    kind: str  # "v1", "v2" or ""
    root: Path
    note: str = ""

    def of_job(self, name: str, limit: int) -> tuple[str, tuple[str, ...]] | None:
        """Return (directory, settings) of a cgroup with a memory limit; None if there are no cgroups.

        Args:
            limit: bytes.
        """
        if self.kind == "v2":
            return str(self.root / name), (f"memory.max={limit}",)
        if self.kind == "v1":
            return str(self.root / name), (f"memory.limit_in_bytes={limit}",)
        return None


def find() -> MemoryCgroup:
    """Find the memory cgroup of this host by creating and removing a cgroup."""
    reasons = []
    for probe in (_version_2, _version_1):
        try:
            root = probe()
            (root / "fgsched-probe").mkdir()
            (root / "fgsched-probe").rmdir()
            return MemoryCgroup("v2" if probe is _version_2 else "v1", root)
        except (OSError, LookupError) as error:
            reasons.append(str(error))
    return MemoryCgroup("", Path("/"), "; ".join(reasons))


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
        self.kind, self.root, self.note = "", Path("/"), "" if most else "max_processes is 0"
        if most:
            self._find()

    def _find(self) -> None:
        reasons = []
        for kind, probe in (("v2", _version_2), ("v1", _version_1)):
            try:
                root = probe("pids")
                (root / "fgsched-pids-probe").mkdir()
                (root / "fgsched-pids-probe").rmdir()
            except (OSError, LookupError) as error:
                reasons.append(str(error))
                continue
            self.kind, self.root = kind, root
            return
        self.note = "; ".join(reasons)

    def of_user(self, uid: int) -> str:
        """Return the directory of a user's cgroup, creating it if needed; "" if there are no cgroups.

        Raises:
            OSError: the cgroup cannot be created.
        """
        if not self.kind or not uid:
            return ""
        directory = f"{self.root}/fgsched-{self._name}-{uid}"
        if uid not in self._ready or not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
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
            with suppress(OSError):
                directory.rmdir()
        self._ready.clear()


def _at_most_half_of_pids(most: int) -> int:
    """Limit a number of processes to half of the kernel's pids, to leave the other half to the host."""
    try:
        return min(most, int(_PID_MAX.read_text()) // 2)
    except (OSError, ValueError):
        return most


def _version_2(controller: str = "memory") -> Path:
    """Return this process's own cgroup after enabling a controller for its children.

    A cgroup that enables controllers for its children must have no processes, so this process moves into a
    child first. That fails if other processes share the cgroup.

    Raises:
        LookupError: the controller is not available here.
        OSError: the cgroup cannot be changed.
    """
    root = _mounted("cgroup2", "") / _own("")
    if root.name == "fgsched-controller":  # this process has already moved
        root = root.parent
    if controller not in (root / "cgroup.controllers").read_text().split():
        raise LookupError(f"cgroup v2 has no {controller} controller here")
    if controller not in (root / "cgroup.subtree_control").read_text().split():
        leaf = root / "fgsched-controller"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (root / "cgroup.subtree_control").write_text(f"+{controller}")
    return root


def _version_1(controller: str = "memory") -> Path:
    root = _mounted("cgroup", controller) / _own(controller)
    if controller == "memory" and not (root / "memory.limit_in_bytes").exists():
        raise LookupError("cgroup v1 has no memory controller here")
    return root


def _mounted(kind: str, controller: str) -> Path:
    """Return the mount point of a hierarchy."""
    for line in os.fsdecode(_MOUNTS.read_bytes()).split("\n"):  # users choose some names, in any bytes
        left, _, right = line.partition(" - ")
        fields = right.split(" ")
        if fields[0] == kind and (not controller or controller in fields[2].split(",")):
            return Path(left.split(" ")[4])
    raise LookupError(f"no {kind} {controller}".rstrip() + " is mounted")


def _own(controller: str) -> str:
    """Return this process's own cgroup in a hierarchy, relative to its mount point."""
    for line in os.fsdecode(_OWN_CGROUPS.read_bytes()).split("\n")[:-1]:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") if controller else not controllers:
            return path.lstrip("/")
    raise LookupError(f"this process is in no {controller or 'v2'} cgroup")


def for_devices() -> Path | None:
    """Return the cgroup v2 below which the driver can limit GPU memory; None if none can be created."""
    try:
        root = _mounted("cgroup2", "") / _own("")
        offered = (root / "cgroup.controllers").read_text().split()
        if "dmem" in offered and "dmem" not in (root / "cgroup.subtree_control").read_text().split():
            (root / "cgroup.subtree_control").write_text("+dmem")
        (root / "fgsched-devices").mkdir()
        (root / "fgsched-devices").rmdir()
    except (OSError, LookupError):
        return None
    return root
