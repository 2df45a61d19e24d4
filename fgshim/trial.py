"""Device memory taken in every way that the host's libraries offer: is it refused where it should be?

Runs in a job's environment, as `python trial.py fence` or `python trial.py all LIMIT`, and prints JSON.
It needs the standard library alone: where it runs, there may be nothing else.
"""

import ctypes
import json
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

OUT_OF_MEMORY = 2


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


def driver() -> ctypes.CDLL:
    """The driver, ready; OSError says why not."""
    library = ctypes.CDLL("libcuda.so.1")
    status = library.cuInit(0)
    if status:
        raise OSError(f"cuInit of the driver says {status}")
    return library


def create(library: ctypes.CDLL, size: int) -> tuple[int, c_uint64]:
    """Physical memory, which needs no context: the driver's status, and the handle."""
    handle, properties = c_uint64(), _Properties(1, 0, _Location(1, 0), None, 0)
    status = library.cuMemCreate(byref(handle), c_size_t(size), byref(properties), c_uint64(0))
    return status, handle


def fence() -> dict[str, object]:
    """What a job sees of the card, and what the driver says to more than any small limit."""
    library = driver()
    device, total = c_int(), c_size_t()
    status = library.cuDeviceGet(byref(device), 0) or library.cuDeviceTotalMem_v2(byref(total), device)
    if status:
        raise OSError(f"the driver does not show the card: {status}")
    status, handle = create(library, 64 << 20)
    if not status:
        library.cuMemRelease(handle)
    return {"status": status, "total": total.value}


def main() -> None:
    """Print what was found, or why nothing was."""
    try:
        found = fence()
    except (OSError, AttributeError) as error:
        found = {"error": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
