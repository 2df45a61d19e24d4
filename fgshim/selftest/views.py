"""Checks of the figures that a job sees: every interface must report its share."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

from fgshim.selftest import NotOffered


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = (("pid", c_uint), ("memory", c_uint64), ("instance", c_uint), ("compute", c_uint))


def _is_near(found: int, limit: int) -> bool:
    return abs(found - limit) <= max(limit // 100, 2 << 20)


def _free_and_total(library: ctypes.CDLL, limit: int) -> str:
    free, total = c_size_t(), c_size_t()
    library.cuMemGetInfo_v2(byref(free), byref(total))
    if _is_near(total.value, limit) and free.value <= total.value:
        return ""
    return f"it says {free.value} free of {total.value}"


def _total(library: ctypes.CDLL, limit: int) -> str:
    total = c_size_t()
    library.cuDeviceTotalMem_v2(byref(total), 0)
    return "" if _is_near(total.value, limit) else f"it says {total.value}"


@contextmanager
def _first_of_nvml() -> Iterator[tuple[ctypes.CDLL, c_void_p]]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NotOffered(str(error)) from error
    handle, status = c_void_p(), nvml.nvmlInit_v2()
    status = status or nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    if status:
        raise NotOffered(f"NVML says {status}")
    yield nvml, handle
    nvml.nvmlShutdown()


def _nvml_memory(library: ctypes.CDLL, limit: int) -> str:
    with _first_of_nvml() as (nvml, handle):
        memory = _Memory()
        nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory))
    return "" if _is_near(memory.total, limit) else f"it says {memory.total}"


def _nvml_processes(library: ctypes.CDLL, limit: int) -> str:
    """Check that the job sees no other process on its GPU."""
    with _first_of_nvml() as (nvml, handle):
        room, found = c_uint(64), (_Process * 64)()
        status = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, byref(room), found)
    if status:
        return f"it says {status}"
    strangers = [one.pid for one in found[: room.value] if one.pid != os.getpid()]
    return f"it shows processes {strangers}, which are not the job's" if strangers else ""


VIEWS: dict[str, Callable[[ctypes.CDLL, int], str]] = {
    "cuMemGetInfo": _free_and_total,
    "cuDeviceTotalMem": _total,
    "NVML memory": _nvml_memory,
    "NVML processes": _nvml_processes,
}
