"""The ways to allocate device memory: each returns the driver's status and a function that frees it."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from fgshim.selftest import BEYOND, OUT_OF_MEMORY, NotOffered

_VERSION = 12000
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


class _Array(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint))


def driver() -> ctypes.CDLL:
    """Load and initialise the driver.

    Raises: OSError if that fails.
    """
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuInit(0)
    if status:
        raise OSError(f"cuInit of the driver says {status}")
    return library


def with_context() -> ctypes.CDLL:
    """Load the driver and make the context of the first GPU current.

    Raises: OSError if that fails.
    """
    library, context = driver(), c_void_p()
    status = library.cuDevicePrimaryCtxRetain(byref(context), 0) or library.cuCtxSetCurrent(context)
    if status:
        raise OSError(f"no context can be made: the driver says {status}")
    return library


Taken = tuple[int, Callable[[], object]]


def linear(library: ctypes.CDLL, size: int) -> Taken:
    at = c_uint64()
    return library.cuMemAlloc_v2(byref(at), c_size_t(size)), lambda: library.cuMemFree_v2(at)


def _pitched(library: ctypes.CDLL, size: int) -> Taken:
    at, pitch, width = c_uint64(), c_size_t(), 1 << 16
    rows = c_size_t(-(-size // width))
    status = library.cuMemAllocPitch_v2(byref(at), byref(pitch), c_size_t(width), rows, 4)
    return status, lambda: library.cuMemFree_v2(at)


def _managed(library: ctypes.CDLL, size: int) -> Taken:
    at = c_uint64()
    return library.cuMemAllocManaged(byref(at), c_size_t(size), 1), lambda: library.cuMemFree_v2(at)


def _ordered(library: ctypes.CDLL, size: int) -> Taken:
    at = c_uint64()
    status = library.cuMemAllocAsync(byref(at), c_size_t(size), None)
    return status, lambda: library.cuMemFreeAsync(at, None) or library.cuCtxSynchronize()


def virtual(library: ctypes.CDLL, size: int) -> Taken:
    """Allocate physical memory, which needs no context."""
    handle, properties = c_uint64(), _Properties(1, 0, _Location(1, 0), None, 0)
    whole = c_size_t(-(-size >> 21) << 21)
    status = library.cuMemCreate(byref(handle), whole, byref(properties), c_uint64(0))
    return status, lambda: library.cuMemRelease(handle)


def _array(library: ctypes.CDLL, size: int) -> Taken:
    handle, row = c_void_p(), 1 << 14
    about = _Array(row, -(-size // (16 * row)), 0x20, 4)  # four floats each
    status = library.cuArrayCreate_v2(byref(handle), byref(about))
    return status, lambda: library.cuArrayDestroy(handle)


def _looked_up(library: ctypes.CDLL, size: int) -> Taken:
    """Allocate by the CUDA runtime."""
    found, how, at = c_void_p(), c_int(), c_uint64()
    status = library.cuGetProcAddress_v2(b"cuMemAlloc", byref(found), _VERSION, c_uint64(0), byref(how))
    if status or not found.value:
        raise NotOffered(f"cuGetProcAddress says {status}")
    take = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(found.value)
    return take(ctypes.addressof(at), size), lambda: library.cuMemFree_v2(at)


def _runtime(library: ctypes.CDLL, size: int) -> Taken:
    runtime, at = _installed_runtime(), c_void_p()
    return runtime.cudaMalloc(byref(at), c_size_t(size)), lambda: runtime.cudaFree(at)


def _installed_runtime() -> ctypes.CDLL:
    for name in _RUNTIMES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise NotOffered("no libcudart is installed")


WAYS: dict[str, Callable[[ctypes.CDLL, int], Taken]] = {
    "cuMemAlloc": linear,
    "cuMemAllocPitch": _pitched,
    "cuMemAllocManaged": _managed,
    "cuMemAllocAsync": _ordered,
    "cuMemCreate": virtual,
    "cuArrayCreate": _array,
    "cuGetProcAddress": _looked_up,
    "cudaMalloc": _runtime,
}


def way(library: ctypes.CDLL, name: str, limit: int) -> str:
    """Return what is wrong with a way; "" if the limit holds there, and what is inside it is given."""
    for size, wanted in ((limit + BEYOND, OUT_OF_MEMORY), (limit // 4, 0)):
        status, give_back = WAYS[name](library, size)
        if not status:
            give_back()
        if status not in (0, OUT_OF_MEMORY):
            raise NotOffered(f"it does not work here: {size >> 20} MiB got status {status}")
        if status != wanted:
            said = "refused" if status else "given"
            return f"{size >> 20} MiB were {said}; the limit is {limit >> 20} MiB"
    return ""
