"""The GPUs of the host and their use, from the driver or simulated.

backend     the interface of a vendor: questions and reports
nvidia      NVIDIA's driver; the only module that imports pynvml
mig         the MIG instances that the driver shows
simulated   simulated GPUs
selection   the GPUs that jobs may use
ownership   ensure that one controller of the host allocates a GPU
sampler     the controller's end: asks and never blocks
supervisor  the process that enforces a deadline on the probe
probe       the process that queries the driver and may hang
processload the load of each process, from the samples of a driver
processnames  who runs a process
hooktest    the process that tests the hook and may hang
"""

import select as polling
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Gpu
from fgsched.gpus import simulated
from fgsched.gpus.backend import HOOK_TEST, INVENTORY, LIMIT, READING, USE, WAKE_FACTOR, Person
from fgsched.gpus.sampler import SLACK, AnySampler, GpuAnswer, Sampler, SimSampler, external
from fgsched.gpus.selection import Selection, select

__all__ = [
    "HOOK_TEST",
    "INVENTORY",
    "LIMIT",
    "READING",
    "SLACK",
    "USE",
    "AnySampler",
    "GpuAnswer",
    "Inventory",
    "Person",
    "Sampler",
    "attach",
    "discover",
    "external",
]

_START_TIME = 10.0  # seconds beyond its deadlines that a starting supervisor may take to answer


class GpuSettings(Protocol):
    """The settings of GPUs in the configuration."""

    @property
    def devices(self) -> str:
        """Return `[gpus] devices`."""

    @property
    def headroom(self) -> int:
        """Return the bytes of each GPU that are kept free of jobs."""

    @property
    def oversubscribe(self) -> int:
        """Return the ten-thousandths of each GPU that jobs may hold."""

    @property
    def oversubscribed_gpus(self) -> Mapping[int, int]:
        """Return those of single GPUs, by index."""

    @property
    def share_instances(self) -> bool:
        """Return whether parts of MIG instances are allocated."""

    @property
    def gpu_features(self) -> Mapping[int, tuple[str, ...]]:
        """Return the features of the configuration by index."""

    @property
    def deadline(self) -> float:
        """Return the seconds that the driver has for an answer."""


class Inventory(Struct, frozen=True, kw_only=True):
    """The GPUs that jobs may use, and their source."""

    gpus: tuple[Gpu, ...]
    source: Literal["nvml", "sim", "none"]
    note: str = ""  # why there are none, or fewer than were named
    limits: bool = False  # the driver can limit the GPU memory of a cgroup
    failed: bool = False  # the driver did not answer, so there may be GPUs
    is_late: bool = False  # it did not answer in time, so it may answer later
    is_sampled: bool = False  # real GPUs, or simulated ones with a script, which readings describe


def discover(config: GpuSettings, environ: Mapping[str, str], *, option: str = "") -> Inventory:
    """Return the current GPUs; without a driver there are none, and `note` says why.

    Raises:
        BadUsage: the option, a variable or the configuration is malformed.
    """
    inventory, sampler = attach(config, environ, option=option)
    sampler.close()
    return inventory


def attach(
    config: GpuSettings, environ: Mapping[str, str], *, option: str = ""
) -> tuple[Inventory, AnySampler]:
    """Return the current GPUs and a started sampler. For the controller, before it opens the queue.

    Args:
        option: the value of --gpus.

    Raises:
        BadUsage: the option, a variable or the configuration is malformed.
    """
    selection = _selection(config, environ, option)
    if selection.source == "auto" and selection.only != ():
        sampler = Sampler(selection, config.deadline)
        sampler.start()
        return _first_inventory(sampler, config.deadline), sampler
    gpus = simulated.parse(selection.source) if selection.source.startswith("sim:") else ()
    script = Path(environ["FG_SIM_SCRIPT"]) if environ.get("FG_SIM_SCRIPT") else None
    backend = simulated.SimulatedGpus(gpus=gpus, script=script, deadline=config.deadline)
    sim_sampler = SimSampler(selection, backend)
    chosen = selection.of(gpus)
    sim_sampler.watch(chosen)
    if gpus:
        return Inventory(gpus=chosen, source="sim", is_sampled=script is not None), sim_sampler
    return Inventory(gpus=chosen, source="none", note="GPUs are switched off by the settings"), sim_sampler


def check(config: GpuSettings) -> None:
    """Check how a configuration describes the GPUs; the driver is not asked. Raises BadUsage."""
    selection = _selection(config, {}, "")
    if selection.source.startswith("sim:"):
        simulated.parse(selection.source)


def _selection(config: GpuSettings, environ: Mapping[str, str], option: str) -> Selection:
    selection = select(
        config.devices,
        environ,
        option=option,
        headroom=config.headroom,
        features=config.gpu_features,
        share_instances=config.share_instances,
    )
    return replace(selection, capacity=config.oversubscribe, capacities=config.oversubscribed_gpus)


def _first_inventory(sampler: Sampler, deadline: float) -> Inventory:
    """Wait for the first inventory, which takes longer while the driver wakes the GPUs up.

    `deadline`: seconds.
    """
    sampler.ask(INVENTORY)
    answers: list[GpuAnswer] = []
    while not answers and polling.select([sampler], [], [], deadline * WAKE_FACTOR + _START_TIME)[0]:
        answers = sampler.read()
    if not answers:
        silent = "the probe supervisor does not answer"
        return Inventory(gpus=(), source="none", note=silent, failed=True, is_late=True)
    answer = answers[0]
    sampler.watch(answer.gpus)
    if answer.error:
        found, why, is_late = answer.gpus, answer.error, answer.is_late
        return Inventory(gpus=found, source="none", note=why, failed=True, is_late=is_late)
    note = "" if answer.gpus else "the driver shows no GPU"
    return Inventory(gpus=answer.gpus, source="nvml", note=note, limits=answer.limits, is_sampled=True)
