"""The driver's own view of the cards, and the only home of pynvml.

A call can hang for ever: only the probe process asks here.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Gpu, GpuProcess, GpuState, Near, Reading
from fgsched.gpus.xids import Xids

_CPU_WORDS = 128  # of 64 CPUs each: as many as a kernel is built for
_MIG = "MIG is on: not supported yet"
_LISTS = ("Compute", "Graphics", "MPSCompute")

_MEASURED = 1_000_000  # microseconds: the longest that one measurement is of


class NoDriver(FgschedError):
    """There is no driver to ask, or it does not talk to this library."""


class Driver:
    """The driver, open; what it is asked may raise NoDriver when the driver is gone."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NoDriver("the Python package nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NoDriver(_reason(pynvml, error)) from error
        self._handles = {index: self._try(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)}
        self._uuids = {index: self._uuid(index) for index in self._handles}
        self._xids = Xids(pynvml, self.handles())
        self._used_until: dict[str, int] = {}  # microseconds since the epoch: of the last measurement told

    def inventory(self) -> list[Gpu]:
        """Every card; one that does not answer is among them, down, with the reason."""
        return [self._card(index) for index in self._handles]

    def reading(self) -> dict[str, Reading]:
        """What each card shows now, by its UUID; a card that does not answer has an error."""
        xids = self._xids.since_last()
        found = {uuid: self._read(index) for index, uuid in self._uuids.items() if uuid}
        return {uuid: replace(reading, xids=xids.get(uuid, ())) for uuid, reading in found.items()}

    def use(self) -> dict[str, list[list[int]]]:
        """[pid, percent, from, to] of each card's processes since the last time; none: not told."""
        return {uuid: self._used(index, uuid) for index, uuid in self._uuids.items() if uuid}

    def _used(self, index: int, uuid: str) -> list[list[int]]:
        nvml, since = self._nvml, self._used_until.get(uuid, 0)
        found = self._try(nvml.nvmlDeviceGetProcessUtilization, self._handles[index], since)
        if isinstance(found, nvml.NVMLError):
            return []  # no new measurement, or a card that makes none
        rows = [one for one in found if one.timeStamp > since and one.pid]
        until = max((one.timeStamp for one in rows), default=since)
        self._used_until[uuid] = until
        start = max(since, until - _MEASURED)
        return [[one.pid, min(100, one.smUtil), start, until] for one in rows]

    def handle(self, uuid: str) -> Any:
        """The driver's name for a card."""
        index = next(index for index, known in self._uuids.items() if known == uuid)
        return self._handles[index]

    def handles(self) -> list[Any]:
        """Those of the cards that answered when the driver was opened."""
        return [handle for handle in self._handles.values() if not isinstance(handle, self._nvml.NVMLError)]

    @property
    def nvml(self) -> Any:
        return self._nvml

    def _card(self, index: int) -> Gpu:
        nvml, handle = self._nvml, self._handles[index]
        try:
            if isinstance(handle, nvml.NVMLError):
                raise handle
            total, reserved, _ = self._memory(handle)
            model = nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError as error:
            note = f"the driver says: {error}"
            uuid = self._uuids[index] or f"lost-{index}"
            return Gpu(index=index, uuid=uuid, model="", total=0, state=GpuState.DOWN, note=note)
        mig = self._has_mig(handle)
        return Gpu(
            index=index,
            uuid=self._uuids[index],
            model=model,
            total=total,
            reserved=reserved,
            pci=self._pci(handle),
            links=self._links(index),
            cpus=self._cpus(handle),
            state=GpuState.DOWN if mig else GpuState.OK,
            note=_MIG if mig else "",
        )

    def _read(self, index: int) -> Reading:
        nvml, handle = self._nvml, self._handles[index]
        try:
            if self._has_mig(handle):
                return Reading(gpu=index, used=0, error=_MIG)
            _, _, used = self._memory(handle)
            processes = self._processes(handle)
            rates = self._optional(nvml.nvmlDeviceGetUtilizationRates, handle)
            heat = self._optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            ecc, remap = self._health(handle)
        except nvml.NVMLError as error:
            is_lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
            return Reading(gpu=index, used=0, error=f"the driver says: {error}", is_lost=is_lost)
        return Reading(
            gpu=index,
            used=used,
            processes=processes,
            utilisation=None if rates is None else rates.gpu,
            temperature=heat,
            ecc=ecc,
            remap=remap,
        )

    def _health(self, handle: Any) -> tuple[int | None, str]:
        """(errors that could not be corrected, what is to become of bad rows)."""
        nvml = self._nvml
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        errors = self._optional(nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        rows = self._optional(nvml.nvmlDeviceGetRemappedRows, handle)
        pending, failed = rows[2:4] if rows else (0, 0)
        return errors, "failed" if failed else "pending" if pending else ""

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        """(total, kept by the driver, used by everybody); drivers before 510 count what they keep as used."""
        nvml = self._nvml
        found = self._optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if found is not None:
            return found.total, found.reserved, found.used
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
        return found.total, 0, found.used

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Each process once, whatever it does on the card; several lists name the same one."""
        memory: dict[int, int] = {}
        for kind in _LISTS:
            for process in self._listed(kind, handle):
                # Not told (under WSL, in some containers): None here.
                memory[process.pid] = max(memory.get(process.pid, 0), process.usedGpuMemory or 0)
        return tuple(GpuProcess(pid=pid, memory=held) for pid, held in sorted(memory.items()))

    def _listed(self, kind: str, handle: Any) -> list[Any]:
        """By the newest call that this driver and the package have."""
        for version in ("_v3", "_v2"):
            ask = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
            found: list[Any] | None = self._optional(ask, handle) if ask else None
            if found is not None:
                return found
        return []

    def _has_mig(self, handle: Any) -> bool:
        mode = self._optional(self._nvml.nvmlDeviceGetMigMode, handle)
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _pci(self, handle: Any) -> str:
        found = self._optional(self._nvml.nvmlDeviceGetPciInfo, handle)
        return "" if found is None else str(found.busId)

    def _links(self, index: int) -> tuple[tuple[int, int], ...]:
        """(another card, how near it is) for those that are near."""
        near = ((other, self._near(index, other)) for other in self._handles if other != index)
        return tuple((other, int(how)) for other, how in near if how is not None)

    def _near(self, one: int, other: int) -> Near | None:
        nvml, pair = self._nvml, (self._handles[one], self._handles[other])
        if any(isinstance(handle, nvml.NVMLError) for handle in pair):
            return None
        joined = self._try(nvml.nvmlDeviceGetP2PStatus, *pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if not isinstance(joined, nvml.NVMLError) and joined == nvml.NVML_P2P_STATUS_OK:
            return Near.NVLINK
        level = self._try(nvml.nvmlDeviceGetTopologyCommonAncestor, *pair)
        if isinstance(level, nvml.NVMLError) or level > nvml.NVML_TOPOLOGY_NODE:
            return None
        return Near.SWITCH if level <= nvml.NVML_TOPOLOGY_MULTIPLE else Near.SOCKET

    def _cpus(self, handle: Any) -> tuple[int, ...]:
        """The CPUs near a card; none where the driver does not know."""
        words = self._try(self._nvml.nvmlDeviceGetCpuAffinity, handle, _CPU_WORDS)
        if isinstance(words, self._nvml.NVMLError):
            return ()
        return tuple(
            bit + 64 * word for word in range(_CPU_WORDS) for bit in range(64) if words[word] >> bit & 1
        )

    def _uuid(self, index: int) -> str:
        handle = self._handles[index]
        if isinstance(handle, self._nvml.NVMLError):
            return ""
        found = self._try(self._nvml.nvmlDeviceGetUUID, handle)
        return found if isinstance(found, str) else ""

    def _optional(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where card or driver has no such thing."""
        nvml = self._nvml
        found = self._try(ask, *arguments)
        absent = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        old = (nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,)
        if isinstance(found, nvml.NVMLError):
            if found.value in absent + old:
                return None
            raise found
        return found

    def _try(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or the error as a value."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError as error:
            return error


def _reason(nvml: Any, error: Any) -> str:
    """Why there is no driver, for a person."""
    known = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the driver's library libnvidia-ml.so.1 was not found",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver in the kernel is of another version than its "
        "library: load the new driver, or restart the host",
        nvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA devices",
    }
    return known.get(error.value, f"the driver says: {error}")
