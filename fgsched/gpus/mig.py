"""Find the MIG instances of the host, which administrators make.

A GPU in MIG mode cannot be used itself. Each of its instances is a device of its own, with the index
100 + 10 × (index of the GPU) + (number of the MIG device in nvidia-smi): those of GPU 1 are 110 to 116.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from fgsched.domain.job import Gpu, MigInstance, is_instance
from fgsched.gpus.backend import GpuReport

MANUAL = "docs/administration.md, MIG"
NO_INSTANCES = f"MIG is on, and the card has no instances: see {MANUAL}"
CHANGED = "the MIG layout of its card has changed: restart the controller once no job runs on the card"
GONE = "the MIG instance no longer exists"
_PROFILE = re.compile(r"(?:\dc\.)?\dg\.\d+gb\S*")
_MOST_DEVICES = 10  # of one GPU: indices have one digit for them


class Device(Struct, frozen=True, kw_only=True):
    """A MIG instance as the driver shows it."""

    index: int
    handle: Any
    uuid: str
    model: str
    place: MigInstance
    parts: int  # number of compute instances that share its memory


def index_of(gpu: int, number: int) -> int:
    """Return the index of a MIG device of a GPU."""
    return 100 + 10 * gpu + number


def profile_of(model: str) -> str:
    """Return the profile in the name of a MIG instance; "" if there is none."""
    match = _PROFILE.search(model.rpartition(" MIG ")[2])
    return match[0] if match else ""


def devices(nvml: Any, gpu: Any, index: int) -> list[Device]:
    """Return the MIG instances of a GPU in MIG mode.

    Args:
        index: of the GPU.

    Raises:
        NVMLError: the driver does not answer.
    """
    handles = list(_handles(nvml, gpu))
    ids = (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId)
    places = [(ids[0](handle), ids[1](handle)) for _, handle in handles]
    parts = Counter(place[0] for place in places)
    parent = nvml.nvmlDeviceGetUUID(gpu)
    devices = []
    for (number, handle), (gpu_instance, compute_instance) in zip(handles, places, strict=True):
        model, profile = _names(nvml, gpu, handle)
        place = MigInstance(
            profile=profile,
            gpu=index,
            parent=parent,
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            is_alone=parts[gpu_instance] == 1,
        )
        uuid = nvml.nvmlDeviceGetUUID(handle)
        about = {"uuid": uuid, "model": model, "place": place, "parts": parts[gpu_instance]}
        devices.append(Device(index=index_of(index, number), handle=handle, **about))
    return devices


def layouts(gpus: Iterable[Gpu]) -> dict[str, set[str]]:
    """Return {UUID of a GPU in MIG mode: UUIDs of its instances}."""
    instances: dict[str, set[str]] = {}
    for gpu in gpus:
        if gpu.mig:
            instances.setdefault(gpu.mig.parent, set()).add(gpu.uuid)
    return instances


def is_gone(place: MigInstance, report: GpuReport) -> bool:
    """Tell whether a MIG instance that a report does not show has been destroyed; not if a GPU is silent."""
    gpus = [place.parent] if place.parent else [gpu for gpu in report.readings if not is_instance(gpu)]
    return not report.error and all(
        gpu in report.layouts or (gpu in report.readings and not report.readings[gpu].error) for gpu in gpus
    )


def _handles(nvml: Any, gpu: Any) -> Iterator[tuple[int, Any]]:
    """Yield (number, handle) of each MIG device; numbers without a device are omitted."""
    for number in range(min(_MOST_DEVICES, nvml.nvmlDeviceGetMaxMigDeviceCount(gpu))):
        try:
            yield number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue


def _names(nvml: Any, gpu: Any, handle: Any) -> tuple[str, str]:
    """Return (model, profile); old drivers name only the GPU, so the profile follows from its slices."""
    model = nvml.nvmlDeviceGetName(handle)
    if profile := profile_of(model):
        return model, profile
    about = nvml.nvmlDeviceGetAttributes_v2(handle)
    whole, computing = about.gpuInstanceSliceCount, about.computeInstanceSliceCount
    profile = f"{whole}g.{-(-about.memorySizeMB // 1024)}gb"
    profile = profile if computing == whole else f"{computing}c.{profile}"
    return f"{nvml.nvmlDeviceGetName(gpu)} MIG {profile}", profile
