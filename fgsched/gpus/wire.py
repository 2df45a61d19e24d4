"""What sampler, keeper and probe say to each other: one JSON object a line."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from fgsched.domain.job import Gpu, GpuProcess, GpuState, Reading

INVENTORY = "inventory"
READING = "reading"
USE = "use"  # which process used how much of each card's time since the last such question
FENCE = "fence"  # whether the hook holds here; JSON follows
LIMIT = "limit"  # hold a cgroup to bytes of cards; JSON follows
WAKING = 5  # times its deadline that the very first answer may take: the driver has to wake the cards up


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The driver's answer to one question, or why there is none. On the wire nothing is chosen yet."""

    want: str
    gpus: tuple[Gpu, ...] = ()
    readings: dict[str, Reading] = field(default_factory=dict)  # by UUID
    error: str = ""
    limits: bool = False  # the driver can limit a cgroup's device memory
    uses: dict[str, list[list[int]]] = field(default_factory=dict)  # by UUID: pid, percent, from, to (µs)

    @property
    def trouble(self) -> str:
        """Why it says nothing about any card; empty when it does."""
        errors = [reading.error for reading in self.readings.values()]
        return self.error or (errors[0] if errors and all(errors) else "")


def dump(report: Report) -> bytes:
    found = asdict(report)
    found["gpus"] = [gpu | {"state": gpu["state"].value} for gpu in found["gpus"]]
    return json.dumps(found).encode() + b"\n"


def load(line: bytes) -> Report:
    """The report of a line; ValueError when it is none."""
    found: dict[str, Any] = json.loads(line)
    try:
        gpus = tuple(_gpu(about) for about in found.pop("gpus"))
        readings = {uuid: _reading(about) for uuid, about in found.pop("readings").items()}
        return Report(gpus=gpus, readings=readings, **found)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a report: {error}") from error


def _gpu(about: dict[str, Any]) -> Gpu:
    links = tuple((other, near) for other, near in about.pop("links"))
    state = GpuState(about.pop("state"))
    del about["usable"]  # which follows from the rest
    return Gpu(links=links, cpus=tuple(about.pop("cpus")), state=state, **about)


def _reading(about: dict[str, Any]) -> Reading:
    processes = tuple(GpuProcess(**process) for process in about.pop("processes"))
    return Reading(processes=processes, xids=tuple(about.pop("xids")), **about)
