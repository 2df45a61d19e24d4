"""Find out which device node belongs to which GPU."""

import re
from collections.abc import Iterable
from pathlib import Path

from fgsched.domain.job import Gpu
from fgsched.gpus.nvidia import instancefiles

_DEVICES = Path("/dev")
_DRIVER = Path("/proc/driver/nvidia")


def nodes(*, about: Path = _DRIVER, devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the device nodes of GPUs and MIG instances, without the nodes for control and unified memory."""
    paths = (path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    return (*sorted(map(str, paths)), *instancefiles.all_nodes(about=about / "capabilities", devices=devices))


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
            own = instancefiles.nodes(number, gpu.mig, **place) if gpu.mig else ()
            found[gpu.uuid] = (f"{devices}/nvidia{number}", *own)
    return found


def _address(pci: str) -> tuple[str, ...]:
    """Return a PCI address in one form: 0000:1B:00.0 and 00000000:1b:00.0 are equal."""
    domain, _, address = pci.lower().partition(":")
    return domain[-4:], address
