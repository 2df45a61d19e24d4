"""How the controller looks at the cards without ever waiting for them: it asks, goes on, and reads later."""

import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from fgsched.domain.job import Gpu, Reading
from fgsched.gpus import wire
from fgsched.gpus.isolated import isolated
from fgsched.gpus.selection import Selection
from fgsched.gpus.sim import Stage
from fgsched.gpus.wire import INVENTORY, READING, Report

log = logging.getLogger(__name__)
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one question."""

    want: str
    gpus: tuple[Gpu, ...] = ()  # to INVENTORY: the chosen cards
    readings: dict[int, Reading] = field(default_factory=dict)  # to READING: of every watched card, by index
    error: str = ""  # why the driver said nothing; each reading then says so too
    limits: bool = False  # to INVENTORY: the driver can limit a cgroup's device memory
    uses: dict[str, list[list[int]]] = field(default_factory=dict)  # to USE: by UUID, as in the report


class Watch:
    """Which cards are meant, and what a report says about them."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._watched: tuple[Gpu, ...] = ()

    def watch(self, gpus: tuple[Gpu, ...]) -> None:
        """From now on readings are of these cards, told apart by UUID: indices change with a driver."""
        self._watched = gpus

    def chosen(self, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
        """Those of the cards that are meant."""
        return self._selection.of(gpus)

    def understand(self, report: Report) -> Answer:
        if report.want == INVENTORY:
            chosen = self._selection.of(report.gpus, report.error)
            return Answer(want=INVENTORY, gpus=chosen, error=report.error, limits=report.limits)
        if report.want != READING:
            return Answer(want=report.want, error=report.error, uses=report.uses)
        readings = {gpu.index: self._reading(gpu, report) for gpu in self._watched}
        return Answer(want=READING, readings=readings, error=report.error)

    def _reading(self, gpu: Gpu, report: Report) -> Reading:
        if gpu.uuid in report.readings:
            return replace(report.readings[gpu.uuid], gpu=gpu.index)
        return Reading(gpu=gpu.index, used=0, error=report.error or "the driver does not show this card")


class Sampler(Watch):
    """The driver's cards, asked through a keeper process. `start` it before the queue is opened."""

    def __init__(self, selection: Selection, deadline: float) -> None:
        super().__init__(selection)
        self._deadline = deadline
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def start(self) -> None:
        """Also after a keeper was killed: the next one has the same two ends, so `fileno` stays."""
        command = isolated("fgsched.gpus.keeper", str(self._deadline))
        end = self._theirs.fileno()
        self._keeper = subprocess.Popen(command, stdin=end, stdout=end, cwd="/", start_new_session=True)

    def fileno(self) -> int:
        """Readable when `read` has something."""
        return self._ours.fileno()

    def ask(self, want: str) -> None:
        """INVENTORY, READING, or FENCE or LIMIT with JSON; one answer comes for each, in order.

        None comes when the keeper is killed.
        """
        if self._keeper is None or self._keeper.poll() is not None:
            log.warning("the keeper of the driver's probe was gone: starting another")
            self.start()
        with suppress(BlockingIOError):  # a keeper that was stopped has questions enough
            self._ours.send(f"{want}\n".encode())

    def read(self) -> list[Answer]:
        """The answers that are here; never waits."""
        with suppress(BlockingIOError):
            while data := self._ours.recv(_CHUNK):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        return [self._parsed(line) for line in lines]

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        if self._keeper:
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(5)
                return
            self._keeper.kill()
            self._keeper.wait()

    def _parsed(self, line: bytes) -> Answer:
        try:
            report = wire.load(line)
        except ValueError:  # half a line of a keeper that was killed
            report = Report(want=READING, error="the keeper of the driver's probe was killed")
        return self.understand(report)


class SimSampler(Watch):
    """Simulated cards, or none: the same questions, answered at once."""

    def __init__(self, selection: Selection, stage: Stage) -> None:
        super().__init__(selection)
        self._stage = stage
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asked: list[str] = []

    def start(self) -> None:
        """Nothing has to run."""

    def fileno(self) -> int:
        return self._bell

    def ask(self, want: str) -> None:
        self._asked.append(want)
        os.eventfd_write(self._bell, 1)

    def read(self) -> list[Answer]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        asked, self._asked = self._asked, []
        return [self.understand(self._stage.answer(want)) for want in asked]

    def close(self) -> None:
        os.close(self._bell)


AnySampler = Sampler | SimSampler
