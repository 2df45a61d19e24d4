"""Find the device files of MIG instances."""

import re
from pathlib import Path

from fgsched.domain.job import MigInstance

_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")


def nodes(minor: int, place: MigInstance, *, about: Path = _CAPABILITIES, devices: Path) -> tuple[str, ...]:
    """Return the device files that a program needs for an instance, in addition to that of its GPU.

    Args:
        minor: number of the device node of the GPU.
    """
    path = about / f"gpu{minor}" / "mig" / f"gi{place.gpu_instance}"
    files = (path / "access", path / f"ci{place.compute_instance}" / "access")
    return tuple(node for file in files if (node := _node(file, devices)))


def all_nodes(*, about: Path = _CAPABILITIES, devices: Path) -> tuple[str, ...]:
    """Return the existing device files of all instances of the host."""
    files = [*about.glob("gpu*/mig/gi*/access"), *about.glob("gpu*/mig/gi*/ci*/access")]
    found = {_node(file, devices) for file in files}
    return tuple(sorted(node for node in found if node and Path(node).exists()))


def _node(access: Path, devices: Path) -> str:
    """Return the device file that the driver names in /proc for a capability; "" if there is none."""
    try:
        minor = re.search(r"^DeviceFileMinor:\s*(\d+)$", access.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return f"{devices}/nvidia-caps/nvidia-cap{minor[1]}" if minor else ""
