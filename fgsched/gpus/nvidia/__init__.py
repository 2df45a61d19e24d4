"""NVIDIA's GPUs.

driver       the driver's NVML; the only module that imports pynvml, in the probe process
nodes        device nodes of GPUs and MIG instances, and what a container needs of the driver
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fgsched.domain.job import Gpu
from fgsched.domain.vendor import ShareService, VendorFacts
from fgsched.gpus.backend import Backend
from fgsched.gpus.nvidia import nodes

_DRIVER = Path("/proc/driver/nvidia")  # the kernel has it, even if the libraries fail
_MPS_PLACE = (("CUDA_MPS_PIPE_DIRECTORY", "{directory}"), ("CUDA_MPS_LOG_DIRECTORY", "{directory}"))
MPS = ShareService(
    program="nvidia-cuda-mps-control",
    server="nvidia-cuda-mps-server",
    directory="CUDA_MPS_PIPE_DIRECTORY",
    prefix="CUDA_MPS_",
    client=(
        *_MPS_PLACE,
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "{percent}"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0={mebibytes}M"),  # 0: the only GPU that the job sees
    ),
    daemon=(*_MPS_PLACE, ("CUDA_VISIBLE_DEVICES", "{uuid}")),
)
FACTS = VendorFacts(
    name="NVIDIA",
    source="nvml",
    selection="CUDA_VISIBLE_DEVICES",
    aliases=("GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES"),
    constant=(("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),),
    uuids="NVIDIA_VISIBLE_DEVICES",
    no_uuids="void",
    prefix="CUDA_",
    service=MPS,
    brands=("NVIDIA", "GeForce", "Tesla"),
    series=("RTX",),
    runtime="CUDA",
    context="CUDA context",
    listing="nvidia-smi -L",
    query="nvidia-smi",
    apptainer="--nv",
    cdi="nvidia.com/gpu",
)


class Nvidia:
    """The vendor NVIDIA."""

    facts: VendorFacts = FACTS

    def has_driver(self) -> bool:
        """Tell whether the kernel has the driver, even if its libraries fail."""
        return _DRIVER.exists()

    def driver_state(self) -> str:
        """Return a text that changes with the loaded driver."""
        with suppress(OSError):
            return (_DRIVER / "version").read_text()
        return ""

    def check(self, description: str) -> None:
        """Accept every description: none is used."""

    def backend(self, description: str, environ: Mapping[str, str], deadline: float) -> Backend:
        """Open the driver, in the probe process. `deadline`: seconds, unused. Raises NoDriver."""
        from fgsched.gpus.nvidia.driver import Driver

        return Driver()

    def nodes(self) -> tuple[str, ...]:
        """Return the device nodes of all GPUs and MIG instances."""
        return nodes.nodes()

    def nodes_of(self, gpus: Iterable[Gpu]) -> dict[str, tuple[str, ...]]:
        """Return {UUID: device nodes}."""
        return nodes.nodes_of(gpus)

    def container_nodes(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Return the device nodes that a container with these GPUs needs."""
        from fgsched.gpus.nvidia import nodes

        return nodes.devices(uuids)

    def container_files(self) -> tuple[str, ...]:
        """Return the libraries and programs of the driver that a container needs."""
        from fgsched.gpus.nvidia import nodes

        return nodes.driver_files()

    def has_cdi(self) -> bool:
        """Tell whether the host describes its GPUs for containers."""
        from fgsched.gpus.nvidia import nodes

        return nodes.has_cdi()
