"""NVIDIA GPUs through the driver's NVML: inventory, readings, compute time, Xid errors and memory limits.

A call can hang forever, so only the probe process uses this module. No other module imports pynvml.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from fgsched.domain.job import Gpu, GpuProcess, GpuState, Near, Reading
from fgsched.domain.text import read_json
from fgsched.gpus import mig
from fgsched.gpus.backend import INVENTORY, LIMIT, GpuReport, NoDriver
from fgsched.gpus.processes import IDLE, LoadMeter, ProcessNames, Sample

_CPU_WORDS = 128  # of 64 CPUs each: the largest number of CPUs that a kernel supports
_MIG = "MIG is on: restart the controller to use its instances"
_PROCESS_LISTS = ("Compute", "Graphics", "MPSCompute")
_MAX_EVENTS = 256  # of one reading; further events are in the next reading
_CGROUP_ROOT = b"/sys/fs/cgroup"
_KEEP_UP = 1.0  # seconds between two looks at the driver's samples of processes, which it forgets
_THROTTLES = {0x04: "power", 0x80: "power", 0x08: "hardware", 0x20: "heat", 0x40: "heat"}


class Driver:
    """The opened driver; a Backend."""

    def __init__(self) -> None:
        """Open the driver.

        Raises:
            NoDriver: the driver or the package nvidia-ml-py is missing, or the driver cannot be opened.
        """
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
        self._xids = _XidEvents(pynvml, self._answering())
        self._meters: dict[str, LoadMeter] = {}  # UUID -> of its processes
        self._occupied: frozenset[str] = frozenset()  # UUIDs of the GPUs with processes
        self._layouts: dict[str, tuple[str, ...]] = {}  # UUID of a GPU in MIG mode -> UUIDs of its instances
        self._names = ProcessNames()
        version = self._try(pynvml.nvmlSystemGetDriverVersion)
        self._version = version if isinstance(version, str) else ""

    def answer(self, want: str) -> GpuReport:
        """Answer one question of the probe."""
        kind, _, answer = want.partition(" ")
        if kind == LIMIT:
            return GpuReport(want=want, error=self.set_limits(read_json(answer)))
        if want == INVENTORY:
            return GpuReport(want=want, gpus=tuple(self.inventory()), limits=self.has_limits())
        readings = self.reading()
        pids = {
            gpu_process.pid
            for reading in readings.values()
            for gpu_process in (*reading.processes, *reading.past)
        }
        people, layouts = self._names.of(pids), self._layouts
        return GpuReport(want=want, readings=readings, people=people, driver=self._version, layouts=layouts)

    @property
    def pause(self) -> float | None:
        """Return the seconds after which `keep_up` is due while no question comes; None: never."""
        return _KEEP_UP if self._occupied else None

    def keep_up(self) -> None:
        """Take in the samples of processes that the driver would forget before the next reading."""
        for index, uuid in self._uuids.items():
            if uuid in self._occupied:
                self._sample(self._handles[index], uuid)

    def inventory(self) -> list[Gpu]:
        """Return every GPU and MIG instance; one that does not answer is included as DOWN with the reason."""
        return [gpu for index in self._handles for gpu in self._gpus(index)]

    def reading(self) -> dict[str, Reading]:
        """Return {UUID: reading} of every GPU and instance; of one that does not answer, it has an error."""
        xids, self._layouts = self._xids.since_last(), {}
        readings = {uuid: self._read(index) for index, uuid in self._uuids.items() if uuid}
        self._occupied = frozenset(uuid for uuid, reading in readings.items() if reading.processes)
        readings = {uuid: replace(reading, xids=xids.get(uuid, ())) for uuid, reading in readings.items()}
        for index, uuid in self._uuids.items():
            if uuid and readings[uuid].error == _MIG:
                readings |= self._instances(index, readings[uuid])
        return readings

    def has_limits(self) -> bool:
        """Return whether the driver can limit the GPU memory of a cgroup (r615 and later)."""
        nvml = self._nvml
        for handle in self._answering():
            question = _limits_question(nvml, _CGROUP_ROOT)
            if question is None:
                return False
            try:
                if self._has_mig(handle):
                    continue  # the driver has no such limits for MIG instances
                nvml.nvmlDeviceGetMemoryLimits_v1(handle, question)
            except nvml.NVMLError as error:
                return bool(error.value == nvml.NVML_ERROR_NOT_FOUND)  # the driver knows limits, but has none
            return True
        return False

    def set_limits(self, limits: dict[str, Any]) -> str:
        """Limit the GPU memory of a cgroup; return why that failed, or "".

        Args:
            limits: {"path": cgroup, "cards": {UUID: bytes}}.
        """
        path = str(limits["path"])
        for uuid, size in limits["cards"].items():
            if why := self._set_limit(path, uuid, int(size)):
                return f"{path} on {uuid}: {why}"
        return ""

    def _set_limit(self, path: str, uuid: str, size: int) -> str:
        """Set the hard limit only: a soft limit would stay with the parents of a removed cgroup."""
        nvml = self._nvml
        handle = next(
            (self._handles[index] for index, listed_uuid in self._uuids.items() if listed_uuid == uuid), None
        )
        if handle is None:
            return "the driver does not show this card"
        try:
            new_limits = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=path.encode(), softLimit=0, hardLimit=size)
            nvml.nvmlDeviceSetMemoryLimits_v1(handle, new_limits)
            reported_limits = _limits_question(nvml, path.encode())
            nvml.nvmlDeviceGetMemoryLimits_v1(handle, reported_limits)
        except nvml.NVMLError as error:
            return f"the driver says: {error}"
        if reported_limits.hardLimit != size:
            return f"the driver reports a limit of {reported_limits.hardLimit} bytes instead of {size}"
        return ""

    def _answering(self) -> list[Any]:
        """Return the handles of the GPUs that answered when the driver was opened."""
        return [handle for handle in self._handles.values() if not isinstance(handle, self._nvml.NVMLError)]

    def _gpus(self, index: int) -> list[Gpu]:
        """Return a GPU, or its instances if it is in MIG mode."""
        gpu = self._gpu(index)
        if gpu.note != _MIG:
            return [gpu]
        try:
            gpus = [
                self._instance(gpu, device) for device in mig.devices(self._nvml, self._handles[index], index)
            ]
        except self._nvml.NVMLError as error:
            return [replace(gpu, note=f"the driver says about its MIG instances: {error}")]
        return gpus or [replace(gpu, note=mig.NO_INSTANCES)]

    def _instance(self, gpu: Gpu, device: mig.Device) -> Gpu:
        """Return a MIG instance; compute instances that share its memory have equal parts of it."""
        total, reserved, _ = self._memory(device.handle)
        return Gpu(
            index=device.index,
            uuid=device.uuid,
            model=device.model,
            total=total // device.parts,
            reserved=reserved // device.parts,
            pci=gpu.pci,
            cpus=gpu.cpus,
            mig=device.place,
        )

    def _gpu(self, index: int) -> Gpu:
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
        has_mig = self._has_mig(handle)
        return Gpu(
            index=index,
            uuid=self._uuids[index],
            model=model,
            total=total,
            reserved=reserved,
            pci=self._pci(handle),
            links=self._links(index),
            cpus=self._cpus(handle),
            state=GpuState.DOWN if has_mig else GpuState.OK,
            note=_MIG if has_mig else "",
        )

    def _instances(self, index: int, gpu: Reading) -> dict[str, Reading]:
        """Return {UUID: reading} of the instances of a GPU in MIG mode, with the health of the GPU."""
        try:
            devices = mig.devices(self._nvml, self._handles[index], index)
        except self._nvml.NVMLError:
            return {}  # the layout is unknown: the instances have no reading
        self._layouts[self._uuids[index]] = tuple(device.uuid for device in devices)
        return {device.uuid: self._read_instance(device, gpu) for device in devices}

    def _read_instance(self, device: mig.Device, gpu: Reading) -> Reading:
        """Return the reading of an instance. The driver measures no utilisation, power or energy of it."""
        try:
            _, _, used = self._memory(device.handle)
            processes = self._processes(device.handle)
            if device.parts > 1:  # the memory of the other compute instances is counted as well
                used = sum(process.memory for process in processes)
        except self._nvml.NVMLError as error:
            return Reading(gpu=device.index, used=0, error=f"the driver says: {error}")
        return Reading(
            gpu=device.index,
            used=used,
            processes=processes,
            temperature=gpu.temperature,
            ecc=gpu.ecc,
            remap=gpu.remap,
            xids=gpu.xids,
        )

    def _read(self, index: int) -> Reading:
        nvml, handle = self._nvml, self._handles[index]
        try:
            if self._has_mig(handle):
                return self._read_parent(index)
            _, _, used = self._memory(handle)
            processes, past = self._loads(handle, self._uuids[index], self._processes(handle))
            rates = self._optional(nvml.nvmlDeviceGetUtilizationRates, handle)
            figures = self._figures(handle)
            ecc, remap = self._health(handle)
        except nvml.NVMLError as error:
            is_lost = error.value == nvml.NVML_ERROR_GPU_IS_LOST
            return Reading(gpu=index, used=0, error=f"the driver says: {error}", is_lost=is_lost)
        return Reading(
            gpu=index,
            used=used,
            processes=processes,
            past=past,
            utilisation=None if rates is None else rates.gpu,
            traffic=None if rates is None else rates.memory,
            ecc=ecc,
            remap=remap,
            throttled=self._throttled(handle),
            **figures,
        )

    def _read_parent(self, index: int) -> Reading:
        """Return the reading of a GPU in MIG mode: its figures, and an error, because it cannot be used."""
        handle = self._handles[index]
        figures = self._figures(handle)
        ecc, remap = self._health(handle)
        throttled = self._throttled(handle)
        return Reading(gpu=index, used=0, error=_MIG, ecc=ecc, remap=remap, throttled=throttled, **figures)

    def _figures(self, handle: Any) -> dict[str, Any]:
        """Return the fields of a reading that are single figures of the driver."""
        nvml, ask = self._nvml, self._optional
        return {
            "temperature": ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "power": ask(nvml.nvmlDeviceGetPowerUsage, handle),
            "energy": ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            "clock": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        }

    def _throttled(self, handle: Any) -> tuple[str, ...] | None:
        """Return what limits the clock of a GPU; None if the driver does not say."""
        mask = self._optional(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if mask is None:
            return None
        return tuple(dict.fromkeys(word for bit, word in _THROTTLES.items() if mask & bit))

    def _loads(
        self, handle: Any, uuid: str, processes: tuple[GpuProcess, ...]
    ) -> tuple[tuple[GpuProcess, ...], tuple[GpuProcess, ...]]:
        """Return the processes with their loads, and the processes with a load that have ended."""
        if not self._sample(handle, uuid):
            return processes, ()
        loads = self._meters[uuid].take()
        present = {process.pid for process in processes}
        loaded = [GpuProcess(pid=pid, memory=0, **load._asdict()) for pid, load in loads.items()]
        gpu_processes = [replace(process, **loads.get(process.pid, IDLE)._asdict()) for process in processes]
        return tuple(gpu_processes), tuple(
            gpu_process for gpu_process in loaded if gpu_process.pid not in present
        )

    def _sample(self, handle: Any, uuid: str) -> bool:
        """Take in the driver's new samples of processes; return False for a GPU that takes none."""
        nvml, now = self._nvml, time.time_ns() // 1000
        meter = self._meters.setdefault(uuid, LoadMeter(now))
        samples = self._try(nvml.nvmlDeviceGetProcessUtilization, handle, meter.seen)
        if isinstance(samples, nvml.NVMLError):
            if samples.value not in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS):  # all processes were idle
                return False
            samples = []
        meter.add(
            [
                Sample(sample.pid, sample.timeStamp, sample.smUtil, sample.memUtil)
                for sample in samples
                if sample.pid
            ],
            now,
        )
        return True

    def _health(self, handle: Any) -> tuple[int | None, str]:
        """Return (uncorrectable ECC errors, state of row remapping: "", "pending" or "failed")."""
        nvml = self._nvml
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        errors = self._optional(nvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        rows = self._optional(nvml.nvmlDeviceGetRemappedRows, handle)
        pending, failed = rows[2:4] if rows else (0, 0)
        return errors, "failed" if failed else "pending" if pending else ""

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        """Return (total, reserved, used) bytes; drivers before 510 count reserved memory as used."""
        nvml = self._nvml
        memory = self._optional(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if memory is not None:
            return memory.total, memory.reserved, memory.used
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return memory.total, 0, memory.used

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Return each process once, although several lists of the driver may name it."""
        memory: dict[int, int] = {}
        for kind in _PROCESS_LISTS:
            for process in self._listed(kind, handle):
                # None under WSL and in some containers, where the driver hides the memory of processes.
                memory[process.pid] = max(memory.get(process.pid, 0), process.usedGpuMemory or 0)
        return tuple(GpuProcess(pid=pid, memory=size) for pid, size in sorted(memory.items()))

    def _listed(self, kind: str, handle: Any) -> list[Any]:
        """Return the processes of one list by the newest call that driver and package have."""
        for version in ("_v3", "_v2"):
            call = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
            processes: list[Any] | None = self._optional(call, handle) if call else None
            if processes is not None:
                return processes
        return []

    def _has_mig(self, handle: Any) -> bool:
        mode = self._optional(self._nvml.nvmlDeviceGetMigMode, handle)
        return mode is not None and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE

    def _pci(self, handle: Any) -> str:
        address = self._optional(self._nvml.nvmlDeviceGetPciInfo, handle)
        return "" if address is None else str(address.busId)

    def _links(self, index: int) -> tuple[tuple[int, int], ...]:
        """Return (other GPU, distance) for the GPUs that are near."""
        near = ((other, self._near(index, other)) for other in self._handles if other != index)
        return tuple((other, int(distance)) for other, distance in near if distance is not None)

    def _near(self, index: int, other_index: int) -> Near | None:
        nvml, pair = self._nvml, (self._handles[index], self._handles[other_index])
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
        """Return the CPUs near a GPU; none if the driver does not report them."""
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
        uuid = self._try(self._nvml.nvmlDeviceGetUUID, handle)
        return uuid if isinstance(uuid, str) else ""

    def _optional(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer, or None if the GPU or the driver does not support the call."""
        nvml = self._nvml
        answer = self._try(call, *arguments)
        absent = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        old = (nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,)
        if isinstance(answer, nvml.NVMLError):
            if answer.value in absent + old:
                return None
            raise answer
        return answer

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer, or the error as a value."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            return error


def _reason(nvml: Any, error: Any) -> str:
    """Return why the driver cannot be used."""
    reason = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the driver's library libnvidia-ml.so.1 was not found",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver in the kernel and its library have different "
        "versions: load the new driver, or restart the host",
        nvml.NVML_ERROR_NO_PERMISSION: "this user may not use the NVIDIA devices",
    }
    return reason.get(error.value, f"the driver says: {error}")


class _XidEvents:
    """The numbered errors (Xid) that the driver reports as events; `since_last` never blocks.

    A driver without events reports none.
    """

    def __init__(self, nvml: Any, handles: Iterable[Any]) -> None:
        self._nvml, self._set = nvml, None
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        for handle in handles:
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            except nvml.NVMLError:
                continue  # this GPU has no such events

    def since_last(self) -> dict[str, tuple[int, ...]]:
        """Return {UUID: Xid numbers} of the events since the last call, in their order."""
        numbers: dict[str, tuple[int, ...]] = {}
        nvml = self._nvml
        for _ in range(_MAX_EVENTS if self._set is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = nvml.nvmlDeviceGetUUID(event.device)
            except nvml.NVMLError:
                break  # no further event, or the GPU was lost
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                numbers[uuid] = (*numbers.get(uuid, ()), int(event.eventData))
        return numbers


def _limits_question(nvml: Any, path: bytes) -> Any:
    """Return the query of a cgroup's limits; None if the package nvidia-ml-py is too old."""
    kind = getattr(nvml, "c_nvmlGetMemoryLimits_v1_t", None)
    return kind(nameSpace=path) if kind else None
