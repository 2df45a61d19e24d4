"""The driver's own limit on the device memory of a cgroup (r615 and later), set and read back.

Only the probe process asks here.
"""

from typing import Any

from fgsched.gpus.nvml import Driver

_OWN = b"/sys/fs/cgroup"


def are_offered(driver: Driver) -> bool:
    """Whether this driver knows such limits: one that has none to tell of says "not found"."""
    nvml = driver.nvml
    for handle in driver.handles():
        asked = _question(nvml, _OWN)
        if asked is None:
            return False
        try:
            nvml.nvmlDeviceGetMemoryLimits_v1(handle, asked)
        except nvml.NVMLError as error:
            return bool(error.value == nvml.NVML_ERROR_NOT_FOUND)
        return True
    return False


def hold(driver: Driver, wish: dict[str, Any]) -> str:
    """Hold the cgroup `wish["path"]` to bytes of cards, {uuid: bytes}; why not, or ""."""
    path = str(wish["path"])
    for uuid, size in wish["cards"].items():
        if why := _hold_on(driver, path, uuid, int(size)):
            return f"{path} on {uuid}: {why}"
    return ""


def _hold_on(driver: Driver, path: str, uuid: str, size: int) -> str:
    """No soft limit: one that is left when the cgroup is removed would stay with its parents."""
    nvml = driver.nvml
    try:
        handle = driver.handle(uuid)
        limit = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=path.encode(), softLimit=0, hardLimit=size)
        nvml.nvmlDeviceSetMemoryLimits_v1(handle, limit)
        found = _question(nvml, path.encode())
        nvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
    except StopIteration:
        return "the driver does not show this card"
    except nvml.NVMLError as error:
        return f"the driver says: {error}"
    if found.hardLimit != size:
        return f"the driver holds it to {found.hardLimit} bytes, and was told {size}"
    return ""


def _question(nvml: Any, path: bytes) -> Any:
    """None where the package nvidia-ml-py is older than these limits."""
    kind = getattr(nvml, "c_nvmlGetMemoryLimits_v1_t", None)
    return kind(nameSpace=path) if kind else None
