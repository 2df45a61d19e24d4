"""What cards there are and what is on them: the driver's, or simulated ones.

selection   which cards are meant
occupancy   whose memory is on a card
sampler     what the controller holds: asks and never waits
keeper      the process that waits, with a deadline
probe       the process that asks the driver and may hang
fence       the process that tries whether the hook holds, and may hang
limits      the driver's own limit on a cgroup
nvml        the driver, and the only home of pynvml
sim         cards that are not there
"""

import select as polling
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fgsched.config.load import Config
from fgsched.domain.job import Gpu
from fgsched.gpus import sim
from fgsched.gpus.occupancy import SLACK, external
from fgsched.gpus.sampler import Answer, AnySampler, Sampler, SimSampler
from fgsched.gpus.selection import select
from fgsched.gpus.wire import FENCE, INVENTORY, LIMIT, READING, USE, WAKING

__all__ = [
    "FENCE",
    "INVENTORY",
    "LIMIT",
    "READING",
    "SLACK",
    "USE",
    "Answer",
    "AnySampler",
    "Inventory",
    "attach",
    "discover",
    "external",
]

_STARTING = 10.0  # seconds beyond its deadlines that a keeper has to be up and answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The cards to give out, and who says so."""

    gpus: tuple[Gpu, ...]
    source: Literal["nvml", "sim", "none"]
    note: str = ""  # why there are none, or fewer than were named
    limits: bool = False  # the driver can limit a cgroup's device memory
    failed: bool = False  # there may be cards, and the driver did not answer
    is_sampled: bool = False  # there is something to see on them: real ones, or simulated ones with a script


def discover(config: Config, environ: Mapping[str, str], *, option: str = "") -> Inventory:
    """What cards there are now. No driver means none, with the reason; only bad usage is an error."""
    inventory, sampler = attach(config, environ, option=option)
    sampler.close()
    return inventory


def attach(config: Config, environ: Mapping[str, str], *, option: str = "") -> tuple[Inventory, AnySampler]:
    """The cards, and the sampler that watches them, started. For the controller, before it opens the queue.

    `option` is what --gpus of the controller says.
    """
    selection = select(config.devices, environ, option=option, headroom=config.headroom)
    if selection.source == "auto" and selection.only != ():
        sampler = Sampler(selection, config.deadline)
        sampler.start()
        return _settled(sampler, config.deadline), sampler
    gpus = sim.parse(selection.source) if selection.source.startswith("sim:") else ()
    script = Path(environ["FG_SIM_SCRIPT"]) if environ.get("FG_SIM_SCRIPT") else None
    simulated = SimSampler(selection, sim.Stage(gpus=gpus, script=script, deadline=config.deadline))
    chosen = selection.of(gpus)
    simulated.watch(chosen)
    if gpus:
        return Inventory(gpus=chosen, source="sim", is_sampled=script is not None), simulated
    return Inventory(gpus=chosen, source="none", note="GPUs are switched off by the settings"), simulated


def _settled(sampler: Sampler, deadline: float) -> Inventory:
    """Wait for the first inventory: as long as a driver that wakes its cards up may need."""
    sampler.ask(INVENTORY)
    answers: list[Answer] = []
    while not answers and polling.select([sampler], [], [], deadline * WAKING + _STARTING)[0]:
        answers = sampler.read()
    if not answers:
        return Inventory(gpus=(), source="none", note="no keeper of the driver's probe answers", failed=True)
    answer = answers[0]
    sampler.watch(answer.gpus)
    if answer.error:
        return Inventory(gpus=answer.gpus, source="none", note=answer.error, failed=True)
    note = "" if answer.gpus else "the driver shows no GPU"
    return Inventory(gpus=answer.gpus, source="nvml", note=note, limits=answer.limits, is_sampled=True)
