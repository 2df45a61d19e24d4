"""Find the GPUs that jobs may use, once at a start, and the sampler that asks for their use."""

import select as polling
from collections.abc import Mapping
from typing import Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Gpu
from fgsched.gpus import vendors
from fgsched.gpus.backend import INVENTORY, WAKE_FACTOR, LocalBackend, Vendor
from fgsched.gpus.sampler import AnySampler, GpuAnswer, LocalSampler, Sampler
from fgsched.gpus.selection import Selection, select
from fgsched.gpus.simulated import SimulatedGpus

_START_TIME = 10.0  # seconds beyond its deadlines that a starting supervisor may take to answer


class GpuSettings(Protocol):
    """The settings of GPUs. Reports need names of models from here, and the configuration needs reports."""

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
    source: str  # of the vendor; "none": there is no GPU
    note: str = ""  # why there are none, or fewer than were named
    limits: bool = False  # the driver can limit the GPU memory of a cgroup
    failed: bool = False  # the driver did not answer, so there may be GPUs
    is_late: bool = False  # it did not answer in time, so it may answer later
    is_sampled: bool = False  # readings describe the use of the GPUs

    @property
    def vendor(self) -> Vendor:
        """The vendor of the GPUs; without any, that of the host."""
        return vendors.named(self.source)

    @property
    def is_real(self) -> bool:
        """Whether the GPUs are devices of the host, and not simulated."""
        return self.source != "none" and self.vendor.facts.is_real

    def nodes(self) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Return the device nodes of all GPUs of the host, and those of each GPU by UUID."""
        return self.vendor.nodes(), self.vendor.nodes_of(self.gpus)


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
    named = vendors.described(selection.source)
    if named is None and (selection.source != "auto" or selection.only == ()):
        note = "GPUs are switched off by the settings"
        return Inventory(gpus=(), source="none", note=note), LocalSampler(selection, SimulatedGpus(gpus=()))
    vendor, description = named or (vendors.of_host(), "")
    if vendor.facts.may_hang:
        sampler = Sampler(selection, config.deadline, vendor.facts.source)
        sampler.start()
        return _first_inventory(sampler, config.deadline, vendor.facts.source), sampler
    backend = cast(LocalBackend, vendor.backend(description, environ, config.deadline))
    local_sampler = LocalSampler(selection, backend)
    chosen = selection.of(backend.gpus)
    local_sampler.watch(chosen)
    source = vendor.facts.source
    return Inventory(gpus=chosen, source=source, is_sampled=backend.is_sampled), local_sampler


def check(config: GpuSettings) -> None:
    """Check how a configuration describes the GPUs; the driver is not asked. Raises BadUsage."""
    if named := vendors.described(_selection(config, {}, "").source):
        vendor, description = named
        vendor.check(description)


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


def _first_inventory(sampler: Sampler, deadline: float, source: str) -> Inventory:
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
        gpus, why, is_late = answer.gpus, answer.error, answer.is_late
        return Inventory(gpus=gpus, source="none", note=why, failed=True, is_late=is_late)
    note = "" if answer.gpus else "the driver shows no GPU"
    return Inventory(gpus=answer.gpus, source=source, note=note, limits=answer.limits, is_sampled=True)
