"""The interface of a GPU vendor: its values and files, the questions to its driver, and their answers.

Sampler, supervisor and probe exchange reports as lines of JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Gpu, Reading
from fgsched.domain.vendor import VendorFacts

INVENTORY = "inventory"  # all GPUs
READING = "reading"  # the current use and health of each GPU
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
    people: dict[int, Person] = msgspec.field(default_factory=dict)  # of a reading's processes, by pid
    driver: str = ""  # its version, to READING; "": unknown
    # UUID of a GPU in MIG mode -> UUIDs of its instances; to READING
    layouts: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Return why the report has no data about any GPU; "" if it has some."""
        errors = [reading.error for reading in self.readings.values()]
        return self.error or (errors[0] if errors and all(errors) else "")


class Vendor(Protocol):
    """A GPU vendor, listed in `vendors.VENDORS`. Everything that fgsched asks of it, apart from its driver.

    No method asks the driver, and none raises OSError for a missing file: the host may have no such GPU.
    """

    facts: VendorFacts

    def has_driver(self) -> bool:
        """Tell whether the kernel has the vendor's driver, even if its libraries fail."""

    def driver_state(self) -> str:
        """Return a text that changes when another version of the driver is loaded; "": there is none."""

    def check(self, description: str) -> None:
        """Check the part of a setting behind "SOURCE:", such as 4x80G:H100. Raises BadUsage."""

    def backend(self, description: str, environ: Mapping[str, str], deadline: float) -> "Backend":
        """Open the driver; in the probe process, without a description, if a query of the driver may hang.

        Args:
            description: the part of a setting behind "SOURCE:"; "" for the GPUs of the host.
            environ: of the controller.
            deadline: seconds for an answer.

        Raises:
            NoDriver: the driver cannot be opened; its cause is the note on the inventory.
            BadUsage: the description is malformed.
        """

    def nodes(self) -> tuple[str, ...]:
        """Return the device nodes that are closed to jobs without them: of GPUs, not of control."""

    def nodes_of(self, gpus: Iterable[Gpu]) -> dict[str, tuple[str, ...]]:
        """Return {UUID: device nodes} that a job with this GPU opens; GPUs of unknown nodes are left out."""

    def container_nodes(self, uuids: Sequence[str]) -> tuple[str, ...]:
        """Return the device nodes that a container needs, with those of control. Called in a job."""

    def container_files(self) -> tuple[str, ...]:
        """Return the libraries and programs of the driver that a container needs. Called in a job."""

    def has_cdi(self) -> bool:
        """Tell whether the host describes the vendor's GPUs for containers, under `facts.cdi`."""


class Backend(Protocol):
    """The opened driver of a vendor, or simulated GPUs."""

    def answer(self, want: str) -> GpuReport:
        """Answer INVENTORY, READING or LIMIT with its JSON; may block for as long as the driver does.

        A failure is the report's `error`; it raises NoDriver if the driver must be opened again. A question
        that the vendor does not know has an empty report.
        """


class LocalBackend(Backend, Protocol):
    """A backend that never blocks, so the controller asks it itself (`facts.may_hang` is False)."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs at the start."""

    @property
    def is_sampled(self) -> bool:
        """Return whether readings describe the use of the GPUs, so that jobs wait for the first one."""


class NoDriver(FgschedError):
    """There is no driver, or its version differs from that of the library."""


@runtime_checkable
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
