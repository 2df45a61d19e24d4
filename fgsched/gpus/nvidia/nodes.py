"""Find the device nodes of GPUs and of MIG instances, and what else of the driver a container needs."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fgsched.domain.job import Gpu, MigInstance, is_instance

_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia")


def nodes(*, about: Path = _DRIVER, devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the device nodes of GPUs and MIG instances, without the nodes for control and unified memory."""
    paths = (path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    return (*sorted(map(str, paths)), *all_instance_nodes(about=about / "capabilities", devices=devices))


def nodes_of(
    gpus: Iterable[Gpu], *, about: Path = _DRIVER, devices: Path = _DEVICES
) -> dict[str, tuple[str, ...]]:
    """Return {UUID: device nodes}; the number of a node is not the index of its GPU."""
    minors = {}
    for file in (about / "gpus").glob("*/information"):
        if minor := re.search(r"^Device Minor:\s*(\d+)$", file.read_text(), re.MULTILINE):
            minors[_address(file.parent.name)] = int(minor[1])
    nodes = {}
    for gpu in gpus:
        if (number := minors.get(_address(gpu.pci))) is not None:
            place = {"about": about / "capabilities", "devices": devices}
            own_nodes = instance_nodes(number, gpu.mig, **place) if gpu.mig else ()
            nodes[gpu.uuid] = (f"{devices}/nvidia{number}", *own_nodes)
    return nodes


def _address(pci: str) -> tuple[str, ...]:
    """Return a PCI address in one form: 0000:1B:00.0 and 00000000:1b:00.0 are equal."""
    domain, _, address = pci.lower().partition(":")
    return domain[-4:], address


# -- device files of MIG instances ----------------------------------------------------------------------


_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")


def instance_nodes(
    minor: int, place: MigInstance, *, about: Path = _CAPABILITIES, devices: Path
) -> tuple[str, ...]:
    """Return the device files that a program needs for an instance, in addition to that of its GPU.

    Args:
        minor: number of the device node of the GPU.
    """
    path = about / f"gpu{minor}" / "mig" / f"gi{place.gpu_instance}"
    files = (path / "access", path / f"ci{place.compute_instance}" / "access")
    return tuple(node for file in files if (node := _node(file, devices)))


def all_instance_nodes(*, about: Path = _CAPABILITIES, devices: Path) -> tuple[str, ...]:
    """Return the existing device files of all instances of the host."""
    files = [*about.glob("gpu*/mig/gi*/access"), *about.glob("gpu*/mig/gi*/ci*/access")]
    nodes = {_node(file, devices) for file in files}
    return tuple(sorted(node for node in nodes if node and Path(node).exists()))


def _node(access: Path, devices: Path) -> str:
    """Return the device file that the driver names in /proc for a capability; "" if there is none."""
    try:
        minor = re.search(r"^DeviceFileMinor:\s*(\d+)$", access.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return f"{devices}/nvidia-caps/nvidia-cap{minor[1]}" if minor else ""


# -- what a container needs of the driver --------------------------------------------------------------


_DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_DRIVER_FILES = re.compile(r"lib(cuda|cudadebugger|nvidia-[a-z0-9-]+|nvcuvid|nvoptix)\.so\.1")
_CDI = ("/etc/cdi", "/var/run/cdi")


def devices(uuids: Sequence[str], about: Path = _DRIVER_GPUS, folder: str = "/dev") -> tuple[str, ...]:
    """Return the device nodes of these GPUs, and the nodes that all programs of the driver need.

    If the driver does not list the node of a GPU, as of a MIG instance, the nodes of all GPUs are returned:
    those of other jobs stay closed where the job's namespace closes them.
    """
    if not uuids:
        return ()
    minors = _minors(about)
    if all(uuid in minors for uuid in uuids):
        own = [f"{folder}/nvidia{minors[uuid]}" for uuid in uuids]
    else:
        names = sorted(os.listdir(folder))
        own = [f"{folder}/{name}" for name in names if re.fullmatch(r"nvidia[0-9]+", name)]
        own += _instance_nodes(folder) if any(map(is_instance, uuids)) else []
    shared = [f"{folder}{path.removeprefix('/dev')}" for path in _SHARED_NODES]
    return tuple(node for node in [*own, *shared] if os.path.exists(node))


def _instance_nodes(folder: str) -> list[str]:
    """Return the device nodes of MIG instances."""
    return sorted(map(str, Path(folder, "nvidia-caps").glob("nvidia-cap[0-9]*")))


def _minors(about: Path) -> dict[str, str]:
    """Return {UUID: number of the device node}."""
    minors = {}
    for file in about.glob("*/information"):
        text = file.read_text(errors="replace")
        uuid, minor = (
            re.search(r"^GPU UUID:\s*(\S+)$", text, re.M),
            re.search(r"^Device Minor:\s*(\d+)$", text, re.M),
        )
        if uuid and minor:
            minors[uuid[1]] = minor[1]
    return minors


def driver_files() -> tuple[str, ...]:
    """Return the libraries of the GPU driver that the host's dynamic linker finds, and nvidia-smi."""
    import shutil  # 0.3 MiB, and only a container needs these files
    import subprocess

    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    rows = (line.split() for line in listing.splitlines() if "x86-64" in line and " => " in line)
    files = {row[0]: row[-1] for row in rows if _DRIVER_FILES.fullmatch(row[0])}
    program = shutil.which("nvidia-smi")
    return (*files.values(), *([program] if program and files else []))


def has_cdi() -> bool:
    """Tell whether the host describes its GPUs for containers."""
    return any(any(Path(folder).glob("nvidia*")) for folder in _CDI)
