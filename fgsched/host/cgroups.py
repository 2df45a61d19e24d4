"""Where a job's host memory can be limited: the cgroup that the controller may make others below, if any."""

import os
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")


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


def _version_2() -> Path:
    """Our own cgroup, with the memory controller passed on to those below it.

    A cgroup that passes controllers on has no processes of its own: the
    controller moves into one below it first. Where others share ours, that fails.
    """
    root = _mounted("cgroup2", "") / _own("")
    if "memory" not in (root / "cgroup.controllers").read_text().split():
        raise LookupError("cgroup v2 has no memory controller here")
    if "memory" not in (root / "cgroup.subtree_control").read_text().split():
        leaf = root / "fgsched-controller"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (root / "cgroup.subtree_control").write_text("+memory")
    return root


def _version_1() -> Path:
    root = _mounted("cgroup", "memory") / _own("memory")
    if not (root / "memory.limit_in_bytes").exists():
        raise LookupError("cgroup v1 has no memory controller here")
    return root


def _mounted(kind: str, controller: str) -> Path:
    """Where a hierarchy is mounted."""
    for line in _MOUNTS.read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields = right.split()
        if fields[0] == kind and (not controller or controller in fields[2].split(",")):
            return Path(left.split()[4])
    raise LookupError(f"no {kind} {controller}".rstrip() + " is mounted")


def _own(controller: str) -> str:
    """Our own cgroup in a hierarchy, relative to its mount."""
    for line in _OWN.read_text().splitlines():
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
