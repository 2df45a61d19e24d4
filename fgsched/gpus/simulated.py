"""Simulated GPUs for evaluation, training and tests, such as `sim:4x80G:H100` or `sim:1x16G:V100,1x40G:A100`.

`sim:4x80G:H100:nvlink,4x80G:H100:nvlink` describes two groups of connected GPUs, and
`sim:1x16G:cpus=0-7,1x16G:cpus=8-15` two GPUs near different CPUs. `sim:1x80G:H100:mig=3g.40gb/2x1g.10gb`
describes a GPU with three MIG instances.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import Gpu, GpuProcess, GpuState, MigInstance, Near, Reading
from fgsched.domain.text import read_json, shown
from fgsched.domain.units import parse_bytes, parse_indices
from fgsched.gpus import mig
from fgsched.gpus.backend import READING, GpuReport, Person
from fgsched.gpus.nvidia import FACTS, Nvidia

Value = TypeVar("Value")
FOREIGN_PID = (1 << 22) + 1  # a pid that no kernel assigns
_MAX_GPUS = 1024
_UUID, _MIG_UUID = "GPU-51570000-0000-4000-8000-", "MIG-51570000-0000-4000-8000-"
_GROUP = re.compile(
    r"([0-9]{1,4})x([^:,]+)(?::([\w .+-]+))?(?::(nvlink|switch|socket))?(?::cpus=([0-9-]+))?"
    r"(?::mig=([^:,]+))?"
)
_PROFILE = re.compile(r"(?:([1-7])x)?(([1-7])g\.([0-9]{1,3})gb(?:[+-][\w.]+)?)")
_MOST_SLICES = 7  # of one GPU in MIG mode
_MOST_CARDS = 100  # indices that MIG instances can have a GPU of
_KEYS = {"used", "processes", "error", "state", "note", "utilisation", "temperature", "hang"}
_KEYS |= {"lost", "ecc", "remap", "xids", "traffic", "power", "energy", "clock", "throttled"}


def parse(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs that `sim:…` describes; equal texts give equal UUIDs.

    Raises:
        BadUsage: the text is malformed, or a GPU has no memory.
    """
    gpus: list[Gpu] = []
    layouts: dict[int, list[str]] = {}  # GPU in MIG mode -> profiles
    for part in text.removeprefix("sim:").split(","):
        match = _GROUP.fullmatch(part.strip())
        if not match or not 1 <= int(match[1]) <= _MAX_GPUS - len(gpus):
            raise BadUsage(
                f"{shown(text)} does not describe simulated GPUs.",
                "Use sim:COUNTxMEMORY[:MODEL][:LINK][:cpus=CPUS][:mig=PROFILES][,…], such as sim:4x80G:H100, "
                f"for 1 to {_MAX_GPUS} of them; LINK is nvlink, switch or socket, CPUS a range such as "
                "0-7, PROFILES such as 3g.40gb/2x1g.10gb.",
            )
        total, model = _part(parse_bytes, match[2], text), match[3] or "Simulated"
        if not total:
            raise BadUsage(f"{shown(text)} has GPUs without memory.", "Write sim:4x80G:H100, for example.")
        group = range(len(gpus), len(gpus) + int(match[1]))
        near = Near[match[4].upper()] if match[4] else None
        cpus = _part(parse_indices, match[5], text) if match[5] else ()
        gpus += [
            Gpu(index=i, uuid=uuid(i), model=model, total=total, links=_links(i, group, near), cpus=cpus)
            for i in group
        ]
        if match[6]:
            layouts |= {gpu.index: _profiles(match[6], gpu, text) for gpu in gpus[group.start :]}
    parts = {index: _instances(gpus[index], profiles) for index, profiles in layouts.items()}
    return tuple(part for gpu in gpus for part in parts.get(gpu.index, [gpu]))


def _part(read: Callable[[str], Value], part: str, text: str) -> Value:
    """Parse a part of the description `text`. Raises BadUsage, which repeats the description."""
    try:
        return read(part)
    except BadUsage as error:
        raise BadUsage(f"{shown(text)}: {error.cause}", error.remedy) from None


def _profiles(listed: str, gpu: Gpu, text: str) -> list[str]:
    """Return the profiles in a list such as 3g.40gb/2x1g.10gb. Raises BadUsage if they do not fit the GPU."""
    matches = [_PROFILE.fullmatch(word) for word in listed.split("/")]
    shapes = [match for match in matches if match for _ in range(int(match[1] or 1))]
    memory = sum(int(shape[4]) for shape in shapes) << 30
    if not all(matches) or sum(int(shape[3]) for shape in shapes) > _MOST_SLICES or memory > gpu.total:
        raise BadUsage(
            f"{shown(text)}: {shown(listed)} is no layout of MIG instances of such a GPU.",
            f"Write profiles such as mig=3g.40gb/2x1g.10gb: at most {_MOST_SLICES}g and its memory together.",
        )
    if gpu.index >= _MOST_CARDS:
        raise BadUsage(f"{shown(text)} has too many GPUs for MIG.", f"Use at most {_MOST_CARDS}.")
    return [shape[2] for shape in shapes]


def _instances(gpu: Gpu, profiles: Iterable[str]) -> list[Gpu]:
    """Return the MIG instances of a simulated GPU."""
    instances = []
    for number, profile in enumerate(profiles):
        place = MigInstance(
            profile=profile,
            gpu=gpu.index,
            parent=gpu.uuid,
            gpu_instance=number + 1,
            compute_instance=0,
        )
        index, size = mig.index_of(gpu.index, number), profile.partition(".")[2].partition("gb")[0]
        model, instance_uuid = f"{gpu.model} MIG {profile}", f"{_MIG_UUID}{index:012x}"
        instances.append(
            replace(
                gpu, index=index, uuid=instance_uuid, model=model, total=int(size) << 30, links=(), mig=place
            )
        )
    return instances


def _links(index: int, group: range, near: Near | None) -> tuple[tuple[int, int], ...]:
    return tuple((other, int(near)) for other in group if other != index) if near else ()


def uuid(index: int) -> str:
    """Return the UUID of a simulated GPU."""
    return f"{_UUID}{index:012x}"


def is_simulated(uuid: str) -> bool:
    """Return whether a UUID is that of a simulated GPU."""
    return uuid.startswith((_UUID, _MIG_UUID))


class Simulator(Nvidia):
    """The vendor of simulated GPUs, which look like NVIDIA's to jobs."""

    facts = replace(FACTS, source="sim", is_real=False, may_hang=False)

    def has_driver(self) -> bool:
        """Return False: there is no driver."""
        return False

    def driver_state(self) -> str:
        """Return "": there is no driver."""
        return ""

    def check(self, description: str) -> None:
        """Check a description such as 4x80G:H100. Raises BadUsage."""
        parse(f"sim:{description}")

    def backend(self, description: str, environ: Mapping[str, str], deadline: float) -> "SimulatedGpus":
        """Return the GPUs of a description, with the script that FG_SIM_SCRIPT names. Raises BadUsage.

        `deadline`: seconds.
        """
        script = Path(environ["FG_SIM_SCRIPT"]) if environ.get("FG_SIM_SCRIPT") else None
        return SimulatedGpus(gpus=parse(f"sim:{description}"), script=script, deadline=deadline)


class JobLoad(Struct, frozen=True, kw_only=True):
    """The load that a job says it is."""

    gpus: tuple[int, ...]  # indices
    pid: int
    memory: int  # bytes on each GPU
    busy: int | None = None  # ten-thousandths of each GPU's compute time; None: the job does not say


def parse_load(text: str, *, gpus: tuple[int, ...], pid: int) -> JobLoad:
    """Return the load in a text such as `sm=80 mem=12G`: percent of compute time, memory of each GPU.

    Raises:
        BadUsage, ValueError: the text is malformed.
    """
    values = dict(word.split("=", 1) for word in text.split())
    if unknown := values.keys() - {"sm", "mem"}:
        raise BadUsage(f"unknown: {', '.join(sorted(unknown))}", "Write sm=PERCENT mem=SIZE.")
    busy = round(float(values["sm"]) * 100) if "sm" in values else None
    return JobLoad(gpus=gpus, pid=pid, memory=parse_bytes(values.get("mem", "0")), busy=busy)


class EnergyMeter:
    """The energy counters of simulated GPUs."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float, int]] = {}  # UUID -> (seconds, millijoules, milliwatts)

    def read(self, uuid: str, power: int | None, now: float) -> int | None:
        """Return the counter in millijoules; None of a GPU without power (milliwatts). `now` in seconds."""
        if power is None:
            return None
        at, energy, before = self._known.get(uuid, (now, 0.0, power))
        energy += before * (now - at)
        self._known[uuid] = now, energy, power
        return int(energy)


class SimulatedGpus(Struct, frozen=True, kw_only=True):
    """Simulated GPUs, and the script file with their current use and faults; a Backend.

    The script is a JSON object by index: `{"0": {"used": "4G", "processes": [{"pid": 7, "memory": "1G"}],
    "error": "…", "state": "down", "note": "…", "utilisation": 50, "temperature": 60, "hang": true,
    "lost": true, "ecc": 3, "remap": "pending", "xids": [48], "traffic": 20, "power": 250, "clock": 1410,
    "throttled": ["heat"]}}`. `used` is the memory of processes outside of jobs. A process can also have
    "sm" (percent of the compute time), "uid" and "command". `power` is in watts, and the energy counter
    adds it up, unless "energy" is the counter in joules. The file is read for each question and need not
    exist.

    `loads` adds the load of jobs: a job writes `sm=80 mem=12G` into the file that FG_SIM_LOAD names.
    """

    gpus: tuple[Gpu, ...]
    script: Path | None = None
    deadline: float = 2.0  # seconds
    loads: tuple[JobLoad, ...] = ()
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    clock: Callable[[], float] = time.monotonic

    @property
    def is_sampled(self) -> bool:
        """Return whether readings describe the use of the GPUs."""
        return self.script is not None

    def answer(self, want: str) -> GpuReport:
        """Answer READING with the state in the script, and every other question with the inventory."""
        try:
            script = self._script()
            if any(about.get("hang") for about in script.values()):
                return GpuReport(want=want, error=f"the driver did not answer within {self.deadline:g} s")
            if want == READING:
                return self._reading(want, script)
            return GpuReport(
                want=want, gpus=tuple(_gpu(gpu, script.get(str(gpu.index), {})) for gpu in self.gpus)
            )
        except (OSError, ValueError, TypeError, AttributeError, KeyError, BadUsage) as error:
            return GpuReport(want=want, error=f"{self.script}: {error!r}")

    def _reading(self, want: str, script: dict[str, dict[str, Any]]) -> GpuReport:
        loads, now = self.loads, self.clock()
        shown: dict[str, Reading] = {}
        people: dict[int, Person] = {}
        for gpu in self.gpus:
            about = script.get(str(gpu.index), {})
            reading = _reading(gpu, about, [load for load in loads if gpu.index in load.gpus])
            energy = self.meter.read(gpu.uuid, reading.power, now)
            shown[gpu.uuid] = reading if "energy" in about else replace(reading, energy=energy)
            people |= _people(about)
        return GpuReport(want=want, readings=shown, people=people)

    def _script(self) -> dict[str, dict[str, Any]]:
        if self.script is None or not self.script.exists():
            return {}
        script: dict[str, dict[str, Any]] = read_json(self.script.read_text())
        unknown = {key for about in script.values() for key in about} - _KEYS
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        return script


def _gpu(gpu: Gpu, about: dict[str, Any]) -> Gpu:
    return replace(gpu, state=GpuState(about.get("state", "ok")), note=str(about.get("note", "")))


def _people(about: dict[str, Any]) -> dict[int, Person]:
    named = {
        process["pid"]: Person(int(process.get("uid", 0)), str(process.get("command", "process")))
        for process in about.get("processes", ())
    }
    return named | ({FOREIGN_PID: Person(0, "foreign")} if about.get("used") else {})


def _busy(process: dict[str, Any]) -> int | None:
    return None if "sm" not in process else round(process["sm"] * 100)


def _reading(gpu: Gpu, about: dict[str, Any], loads: Iterable[JobLoad] = ()) -> Reading:
    if about.get("error") or about.get("lost"):
        error = str(about.get("error", "GPU is lost"))
        return Reading(gpu=gpu.index, used=0, error=error, is_lost=bool(about.get("lost")))
    processes = [
        GpuProcess(pid=entry["pid"], memory=_bytes(entry["memory"]), busy=_busy(entry))
        for entry in about.get("processes", ())
    ]
    processes += [GpuProcess(pid=load.pid, memory=load.memory, busy=load.busy) for load in loads]
    if foreign := _bytes(about.get("used", 0)):
        processes.append(GpuProcess(pid=FOREIGN_PID, memory=foreign))
    return Reading(
        gpu=gpu.index,
        used=sum(process.memory for process in processes),
        processes=tuple(processes),
        utilisation=about.get("utilisation"),
        temperature=about.get("temperature"),
        ecc=about.get("ecc"),
        remap=str(about.get("remap", "")),
        xids=tuple(about.get("xids", ())),
        traffic=about.get("traffic"),
        power=_thousandths(about.get("power")),
        energy=_thousandths(about.get("energy")),
        clock=about.get("clock"),
        throttled=tuple(about["throttled"]) if "throttled" in about else None,
    )


def _thousandths(value: float | None) -> int | None:
    return None if value is None else round(value * 1000)


def _bytes(value: int | str) -> int:
    return parse_bytes(value) if isinstance(value, str) else int(value)
