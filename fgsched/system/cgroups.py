"""Where a job's host memory can be limited: the cgroup that the controller may make others below, if any."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_PID_MAX = Path("/proc/sys/kernel/pid_max")


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A place for jobs' cgroups. kind "": there is none, and `note` says why."""

    kind: str  # "v1", "v2" or ""
    root: Path
    note: str = ""

    def of_job(self, name: str, limit: int) -> tuple[str, tuple[str, ...]] | None:
        """(directory, settings) that hold a job to `limit` bytes; None where nothing can."""
        if self.kind == "v2":
            return str(self.root / name), (f"memory.max={limit}",)
        if self.kind == "v1":
            return str(self.root / name), (f"memory.limit_in_bytes={limit}",)
        return None


def find() -> MemoryCgroup:
    """Probe by doing it once: what cannot be made here is not promised."""
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
    """A cgroup for each user that limits the processes of the user's jobs. `note`: why there are none.

    One for each user and not for each job: making and removing one costs a short job more than its
    shepherd does. With version 2 a job is in one cgroup only: one that has its own has the limit there.
    """

    def __init__(self, name: str, most: int) -> None:
        """`name`: of the queue. `most`: processes and threads of a user's jobs; 0: no limit."""
        self.most, self._name, self._ready = _within_the_kernels(most), name, set[int]()
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
        """The directory of the user's cgroup, made if need be; "" where there is none."""
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
        """For the cgroup of one job, where that is the only one the job is in."""
        return (f"pids.max={self.most}",) if self.kind == "v2" else ()

    def leave(self) -> None:
        """Remove those without processes, also those that an earlier controller has made."""
        for directory in self.root.glob(f"fgsched-{self._name}-*") if self.kind else ():
            with suppress(OSError):
                directory.rmdir()
        self._ready.clear()


def _within_the_kernels(most: int) -> int:
    """Never more than half of the process ids that the kernel has: the other half is the host's."""
    try:
        return min(most, int(_PID_MAX.read_text()) // 2)
    except (OSError, ValueError):
        return most


def _version_2(controller: str = "memory") -> Path:
    """Our own cgroup, with a controller passed on to those below it.

    A cgroup that passes controllers on has no processes of its own: the
    controller moves into one below it first. Where others share ours, that fails.
    """
    root = _mounted("cgroup2", "") / _own("")
    if root.name == "fgsched-controller":  # it has been moved there
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
    """Where a hierarchy is mounted."""
    for line in os.fsdecode(_MOUNTS.read_bytes()).split("\n"):  # users name some mounts, in any bytes
        left, _, right = line.partition(" - ")
        fields = right.split(" ")
        if fields[0] == kind and (not controller or controller in fields[2].split(",")):
            return Path(left.split(" ")[4])
    raise LookupError(f"no {kind} {controller}".rstrip() + " is mounted")


def _own(controller: str) -> str:
    """Our own cgroup in a hierarchy, relative to its mount."""
    for line in os.fsdecode(_OWN.read_bytes()).split("\n")[:-1]:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") if controller else not controllers:
            return path.lstrip("/")
    raise LookupError(f"this process is in no {controller or 'v2'} cgroup")


def for_devices() -> Path | None:
    """Where cgroups of version 2 can be made for the driver to limit; None where they cannot."""
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
