"""The interface of a GPU vendor: questions, the report that answers them, and the backend that makes it.

Sampler, supervisor and probe exchange reports as lines of JSON.
"""

from typing import Protocol

import msgspec

from fgsched.domain.job import Gpu, Reading

INVENTORY = "inventory"  # all GPUs
READING = "reading"  # the current use and health of each GPU
USE = "use"  # compute time of each process on each GPU since the last such question
HOOK_TEST = "hooktest"  # whether the hook enforces a limit here; followed by JSON
LIMIT = "limit"  # limit the GPU memory of a cgroup; followed by JSON
WAKE_FACTOR = 5  # the first answer may take this many times the deadline: the driver wakes the GPUs up


class Person(msgspec.Struct, frozen=True, array_like=True):
    """Who runs a process, and what it is."""

    uid: int
    command: str


class GpuReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of a backend to one question, about all GPUs of the host, or why there is none."""

    want: str
    gpus: tuple[Gpu, ...] = ()
    readings: dict[str, Reading] = msgspec.field(default_factory=dict)  # by UUID
    error: str = ""
    is_late: bool = False  # the error is that the driver did not answer in time
    limits: bool = False  # the driver can limit the GPU memory of a cgroup
    # UUID -> [pid, percent, start, end] with microseconds since the epoch
    uses: dict[str, list[list[int]]] = msgspec.field(default_factory=dict)
    people: dict[int, Person] = msgspec.field(default_factory=dict)  # of a reading's processes, by pid
    driver: str = ""  # its version, to READING; "": unknown
    # UUID of a GPU in MIG mode -> UUIDs of its instances; to READING
    layouts: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Return why the report has no data about any GPU; "" if it has some."""
        errors = [reading.error for reading in self.readings.values()]
        return self.error or (errors[0] if errors and all(errors) else "")


class Backend(Protocol):
    """The GPUs of one vendor, or simulated ones."""

    def answer(self, want: str) -> GpuReport:
        """Answer INVENTORY, READING, USE or LIMIT with its JSON; may block for as long as the driver does."""


class Attentive(Protocol):
    """A backend whose driver forgets what it measured."""

    @property
    def pause(self) -> float | None:
        """Return the seconds after which `keep_up` is due while no question comes; None: never."""

    def keep_up(self) -> None:
        """Take in what the driver would forget before the next question."""


_decode = msgspec.json.Decoder(GpuReport).decode


def dump(report: GpuReport) -> bytes:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report) + b"\n"


def load(line: bytes) -> GpuReport:
    """Return the report in a line.

    Raises:
        ValueError: the line is not a report.
    """
    try:
        return _decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a report: {error}") from error
