"""Test programs, run inside a share or without one: programs.py ROOT VERB … prints one line of JSON.

Standard library and ctypes alone, and PyTorch in the verbs that begin with torch.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

sys.path.insert(0, sys.argv[1])

from fgshim.selftest import OUT_OF_MEMORY, NotOffered
from fgshim.selftest.ways import WAYS, driver, linear, with_context

MIB = 1 << 20
_STEPS = 64  # pieces that a limit is filled with
_PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
"""


def used() -> dict[str, Any]:
    """Return the used bytes of the GPU, as the driver reports them to this process."""
    import os

    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    held = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    told = {"used": memory.used, "total": memory.total, "free": memory.free}
    return told | {"pids": list(held), "held": held, "pid": os.getpid()}


def numbers() -> dict[str, Any]:
    """Return the GPUs of CUDA, those of NVML under the words of CUDA_VISIBLE_DEVICES, and open nodes."""
    import os

    import pynvml

    library, count, raw = driver(), c_int(), (ctypes.c_uint8 * 16)()
    library.cuDeviceGetCount(byref(count))
    seen = []
    for device in range(count.value):
        library.cuDeviceGetUuid(raw, device)
        text = bytes(raw).hex()
        seen.append("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
    pynvml.nvmlInit()
    words = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    handles = [pynvml.nvmlDeviceGetHandleByIndex(int(word)) for word in words if word.isdecimal()]
    return {
        "words": words,
        "uuids": os.environ["FG_GPU_UUIDS"].split(","),
        "cuda": seen,
        "nvml": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
        "nvml_count": pynvml.nvmlDeviceGetCount(),
        "foreign": _foreign_nodes({pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles}),
    }


def _foreign_nodes(own: set[int]) -> list[str]:
    """Return the device nodes of other GPUs that this process can open."""
    import glob
    import os

    found = []
    for node in glob.glob("/dev/nvidia[0-9]*"):
        try:
            os.close(os.open(node, os.O_RDWR))
        except OSError:
            continue
        if int(node.removeprefix("/dev/nvidia")) not in own:
            found.append(node)
    return sorted(found)


def contexts() -> dict[str, Any]:
    """Return the additional used bytes of the GPU after each step of a process's start."""
    empty, found = used()["used"], {}
    driver()
    found["cuInit"] = used()["used"] - empty
    library = with_context()
    found["primary context"] = used()["used"] - empty
    linear(library, 2 * MIB)
    found["first cudaMalloc (2 MiB)"] = used()["used"] - empty
    try:
        import torch

        a = torch.ones(64, 64, device="cuda")
        found["first tensor of PyTorch"] = used()["used"] - empty
        torch.cuda.synchronize()
        a @ a
        torch.cuda.synchronize()
        found["first cuBLAS"] = used()["used"] - empty
    except (ImportError, RuntimeError):
        pass
    return found


def chunks(size: str, count: str) -> dict[str, Any]:
    """Allocate small pieces. Return the bytes that the driver took, and the chunks of their addresses."""
    library, at, windows = with_context(), c_uint64(), set()
    empty = used()["used"]
    for _ in range(int(count)):
        if status := library.cuMemAlloc_v2(byref(at), c_size_t(int(size))):
            return {"not here": f"cuMemAlloc failed with status {status}"}
        windows.add(at.value // (2 * MIB))
    return {"took": used()["used"] - empty, "windows": len(windows)}


def ways() -> dict[str, Any]:
    return {"ways": list(WAYS)}


def fill(name: str, limit: str) -> dict[str, Any]:
    """Allocate 1/64 of the limit at a time until an allocation is refused."""
    library, step, had, taken = with_context(), int(limit) // _STEPS, 0, []
    status = 0
    try:
        while not status and had <= 2 * int(limit):
            status, give_back = WAYS[name](library, step)
            had += 0 if status else step
            taken += [] if status else [give_back]
    except (NotOffered, AttributeError) as error:
        return {"not here": str(error)}
    if not had and status != OUT_OF_MEMORY:
        return {"not here": f"the driver does not offer it on this card: status {status}"}
    try:
        on_card = used()["used"]
    except ImportError:
        on_card = 0
    for give_back in taken:
        give_back()
    return {"had": had, "status": status, "used": on_card}


def hold(size: str) -> dict[str, Any]:
    """Allocate `size` bytes with a context, report it, and hold them until stdin ends."""
    library, status = with_context(), 0
    if int(size):
        status, _ = linear(library, int(size))
    print(json.dumps({"status": status}), flush=True)
    sys.stdin.read()
    return {}


class _Ipc(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def give(size: str) -> dict[str, Any]:
    """Allocate memory, print its IPC handle, and hold it until stdin ends."""
    library, at, handle = with_context(), c_uint64(), _Ipc()
    status = library.cuMemAlloc_v2(byref(at), c_size_t(int(size)))
    status = status or library.cuIpcGetMemHandle(byref(handle), at)
    print(json.dumps({"status": status, "handle": bytes(handle.bytes).hex()}), flush=True)
    sys.stdin.read()
    return {}


def receive(handle: str) -> dict[str, Any]:
    """Open memory of another process, report it, and hold it until stdin ends."""
    library, at = with_context(), c_uint64()
    status = library.cuIpcOpenMemHandle_v2(byref(at), _Ipc.from_buffer_copy(bytes.fromhex(handle)), c_uint(1))
    print(json.dumps({"status": status}), flush=True)
    sys.stdin.read()
    return {}


def churn() -> dict[str, Any]:
    """Allocate and free memory in an endless loop."""
    library = with_context()
    print("{}", flush=True)
    while True:
        _, give_back = linear(library, 8 * MIB)
        give_back()


def _seconds(count: int, act: Callable[[], object]) -> float:
    """Return the nanoseconds of one call: the best of five runs."""
    found = []
    for _ in range(5):
        began = time.perf_counter_ns()
        for _ in range(count // 5):
            act()
        found.append((time.perf_counter_ns() - began) / (count // 5))
    return min(found)


def pairs(count: str) -> dict[str, Any]:
    """Return the nanoseconds of malloc and free of 2 MiB together."""
    library, at, size = with_context(), c_uint64(), c_size_t(2 * MIB)

    def pair() -> None:
        library.cuMemAlloc_v2(byref(at), size)
        library.cuMemFree_v2(at)

    return {"ns": _seconds(int(count), pair)}


def launches(count: str) -> dict[str, Any]:
    """Return the nanoseconds of the launch of an empty kernel."""
    library, module, kernel = with_context(), c_void_p(), c_void_p()
    try:
        status = library.cuModuleLoadData(byref(module), _PTX)
        status = status or library.cuModuleGetFunction(byref(kernel), module, b"nothing")
    except AttributeError as error:
        return {"not here": str(error)}
    if status:
        return {"not here": f"the driver does not take the kernel: status {status}"}
    shape = [c_uint(1)] * 6 + [c_uint(0), None, None, None]
    found = {"ns": _seconds(int(count), lambda: library.cuLaunchKernel(kernel, *shape))}
    library.cuCtxSynchronize()
    return found


def twins(size: str) -> dict[str, Any]:
    """Return the results of the per-thread variants of the stream-ordered calls, and of the plain calls."""
    library, found = with_context(), {}
    for word, flags in (("plain", 0), ("per thread", 2)):
        give, how = c_void_p(), c_int()
        status = library.cuGetProcAddress_v2(
            b"cuMemAllocAsync", byref(give), 12000, c_uint64(flags), byref(how)
        )
        if status or not give.value:
            return {"not here": f"cuGetProcAddress says {status}"}
        take = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p)(give.value)
        at, within = c_uint64(), c_uint64()
        found[word] = [
            take(ctypes.addressof(within), int(size) // 4, None),
            take(ctypes.addressof(at), int(size) * 2, None),
        ]
        library.cuMemFreeAsync(within, None)
        library.cuCtxSynchronize()
    return found


def main() -> None:
    verb, words = sys.argv[2], sys.argv[3:]
    verbs = (used, contexts, chunks, ways, fill, hold, give, receive, churn, pairs, launches, twins, numbers)
    try:
        found = {one.__name__: one for one in verbs}[verb](*words)
    except (OSError, ImportError) as error:
        found = {"not here": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
