"""Sample the GPUs from the controller without blocking: send questions, and read the answers later."""

import logging
import os
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.job import Gpu, Reading
from fgsched.gpus import mig
from fgsched.gpus.backend import INVENTORY, READING, GpuReport, LocalBackend, Person, load
from fgsched.gpus.selection import Selection
from fgsched.gpus.simulated import JobLoad, SimulatedGpus
from fgsched.system.helper import Helper

log = logging.getLogger(__name__)
SLACK = 512 << 20  # bytes of a GPU in use without a process: contexts, page tables


def external(reading: Reading, job_pids: Container[int], slack: int = SLACK) -> int:
    """Return the bytes of GPU memory of processes that belong to no job.

    The sum of the memory of these processes and of used memory above `slack` that no process accounts for. If
    the driver does not report the memory of a job's process, the latter may belong to this process and is not
    counted.

    Args:
        job_pids: pids of the processes of jobs.
        slack: bytes.
    """
    foreign = sum(process.memory for process in reading.processes if process.pid not in job_pids)
    if any(process.pid in job_pids and not process.memory for process in reading.processes):
        return foreign
    unexplained = reading.used - sum(process.memory for process in reading.processes)
    return foreign + max(0, unexplained - slack)


class GpuAnswer(Struct, frozen=True, kw_only=True):
    """The answer to one question, about the selected GPUs."""

    want: str
    gpus: tuple[Gpu, ...] = ()  # to INVENTORY
    readings: dict[int, Reading] = field(default_factory=dict)  # to READING: of every watched GPU, by index
    error: str = ""  # why the driver did not answer; each reading then has it too
    is_late: bool = False  # to INVENTORY: the error is that the driver did not answer in time
    limits: bool = False  # to INVENTORY: the driver can limit the GPU memory of a cgroup
    people: dict[int, Person] = field(default_factory=dict)  # to READING: by pid
    driver: str = ""  # to READING: version of the driver; "": unknown


class _Selected:
    """Restricts reports to the selected GPUs."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._watched: tuple[Gpu, ...] = ()
        self._layouts: dict[str, set[str]] = {}  # UUID of a GPU in MIG mode -> UUIDs of its instances

    def watch(self, gpus: tuple[Gpu, ...]) -> None:
        """Set the GPUs of further readings; they are identified by UUID, since a driver may renumber them."""
        self._watched = gpus

    def chosen(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Return the selected GPUs."""
        return self._selection.of(gpus)

    def interpret(self, report: GpuReport) -> GpuAnswer:
        """Return the part of a report about the selected and watched GPUs."""
        if report.want == INVENTORY:
            chosen = self._selection.of(report.gpus, report.error)
            self._layouts = mig.layouts(report.gpus)
            return GpuAnswer(
                want=INVENTORY,
                gpus=chosen,
                error=report.error,
                is_late=report.is_late,
                limits=report.limits,
            )
        if report.want != READING:
            return GpuAnswer(want=report.want, error=report.error)
        readings = {gpu.index: self._reading(gpu, report) for gpu in self._watched}
        return GpuAnswer(
            want=READING,
            readings=readings,
            error=report.error,
            people=report.people,
            driver=report.driver,
        )

    def _reading(self, gpu: Gpu, report: GpuReport) -> Reading:
        if gpu.uuid in report.readings:
            reading = replace(report.readings[gpu.uuid], gpu=gpu.index)
            return replace(reading, obstacle=mig.CHANGED) if self._has_changed(gpu, report) else reading
        if gpu.mig and mig.is_gone(gpu.mig, report):
            return Reading(gpu=gpu.index, used=0, error=mig.GONE, is_lost=True)
        if gpu.mig and (parent := report.readings.get(gpu.mig.parent)) and parent.is_lost:
            return replace(parent, gpu=gpu.index)
        return Reading(gpu=gpu.index, used=0, error=report.error or "the driver does not show this card")

    def _has_changed(self, gpu: Gpu, report: GpuReport) -> bool:
        """Tell whether the GPU of a MIG instance has other instances than at the start of the controller."""
        parent = gpu.mig.parent if gpu.mig else ""
        return parent in self._layouts and set(report.layouts.get(parent, ())) != self._layouts[parent]


class Sampler(_Selected):
    """Samples the driver's GPUs through a supervisor process; `start` it before the queue is opened."""

    def __init__(self, selection: Selection, deadline: float, source: str) -> None:
        """`source`: of the vendor whose driver is asked."""
        super().__init__(selection)
        self._deadline, self._source = deadline, source
        self._supervisor = Helper("fgsched.gpus.supervisor", patience=5.0)

    def start(self) -> None:
        """Start the supervisor, or another one after it was killed; `fileno` stays the same.

        Raises:
            OSError: the process cannot be started.
        """
        self._supervisor.launch(str(self._deadline), self._source, now=time.monotonic())

    def fileno(self) -> int:
        """Return the descriptor that is readable when `read` has answers."""
        return self._supervisor.fileno()

    def ask(self, want: str) -> None:
        """Send a question; never blocks.

        Each question has one answer, in order; after the supervisor was killed, its questions have none.

        Args:
            want: INVENTORY, READING, or HOOK_TEST or LIMIT with JSON.
        """
        if not self._supervisor.is_running:
            log.warning("the probe supervisor has exited: starting another")
            self.start()
        if self._supervisor.flush():  # a stopped supervisor has many questions already
            self._supervisor.send(f"{want}\n".encode())

    def read(self) -> list[GpuAnswer]:
        """Return the answers that have arrived; never blocks."""
        return [self._parsed(line) for line in self._supervisor.lines()]

    def close(self) -> None:
        """Stop the supervisor; kill it after 5 seconds."""
        self._supervisor.close()

    def _parsed(self, line: bytes) -> GpuAnswer:
        try:
            report = load(line)
        except ValueError:
            report = GpuReport(want=READING, error="the probe supervisor sent a malformed report")
        return self.interpret(report)


class LocalSampler(_Selected):
    """Samples the GPUs of a backend that never blocks, in this process; has the methods of Sampler."""

    def __init__(self, selection: Selection, backend: LocalBackend) -> None:
        super().__init__(selection)
        self._backend = backend
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked: list[str] = []

    def start(self) -> None:
        """Do nothing: there is no process to start."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `read` has answers."""
        return self._event

    def ask(self, want: str) -> None:
        """Send a question."""
        self._asked.append(want)
        os.eventfd_write(self._event, 1)

    def read(self, loads: Callable[[], Iterable[JobLoad]] = tuple) -> list[GpuAnswer]:
        """Return the results of all pending queries. `loads` returns what jobs do on simulated GPUs."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        questions, self._asked = self._asked, []
        backend = self._backend
        if questions and isinstance(backend, SimulatedGpus):
            backend = replace(backend, loads=tuple(loads()))
        return [self.interpret(backend.answer(want)) for want in questions]

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._event)


AnySampler = Sampler | LocalSampler
