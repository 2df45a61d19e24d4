"""Find the device nodes of GPUs and of MIG instances."""

import re
from collections.abc import Iterable
from pathlib import Path

from fgsched.domain.job import Gpu, MigInstance

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
    found = {}
    for gpu in gpus:
        if (number := minors.get(_address(gpu.pci))) is not None:
            place = {"about": about / "capabilities", "devices": devices}
            own = instance_nodes(number, gpu.mig, **place) if gpu.mig else ()
            found[gpu.uuid] = (f"{devices}/nvidia{number}", *own)
    return found


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
