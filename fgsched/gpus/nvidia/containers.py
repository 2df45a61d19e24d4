"""Find what a container needs of the driver: device nodes, libraries and programs."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fgsched.domain.job import is_instance

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
    found = {}
    for file in about.glob("*/information"):
        text = file.read_text(errors="replace")
        uuid, minor = (
            re.search(r"^GPU UUID:\s*(\S+)$", text, re.M),
            re.search(r"^Device Minor:\s*(\d+)$", text, re.M),
        )
        if uuid and minor:
            found[uuid[1]] = minor[1]
    return found


def driver_files() -> tuple[str, ...]:
    """Return the libraries of the GPU driver that the host's dynamic linker finds, and nvidia-smi."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    rows = (line.split() for line in known.splitlines() if "x86-64" in line and " => " in line)
    files = {row[0]: row[-1] for row in rows if _DRIVER_FILES.fullmatch(row[0])}
    program = shutil.which("nvidia-smi")
    return (*files.values(), *([program] if program and files else []))


def has_cdi() -> bool:
    """Tell whether the host describes its GPUs for containers."""
    return any(any(Path(folder).glob("nvidia*")) for folder in _CDI)
