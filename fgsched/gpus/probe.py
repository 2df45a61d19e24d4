"""Process that queries the GPU driver, which may hang forever; the supervisor then abandons the process.

Its argument is the source of the vendor. It reads questions as lines and writes a report as a line for each.
It exits at the end of its input.
"""

import os
import select
import sys
import time
from collections.abc import Iterator

from fgsched.gpus import vendors
from fgsched.gpus.backend import Attentive, Backend, GpuReport, NoDriver, dump

_MAX_LOST = 12  # reports in a row with a lost GPU, after which the driver is opened again
_LONGEST = 60.0  # seconds without a question after which nothing is read from the driver
_CHUNK = 1 << 16  # bytes


def main() -> None:
    """Answer questions until the end of standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the driver's library may print to standard output
    vendor = vendors.named(sys.argv[1])
    backend: Backend | None = None
    lost_reports = 0  # reports in a row with a GPU that is off the bus
    questions = Questions(0)
    while (want := questions.next(backend)) is not None:
        try:
            backend = backend or vendor.backend("", os.environ, 0)
            report = backend.answer(want)
            lost_reports = (
                lost_reports + 1 if any(reading.is_lost for reading in report.readings.values()) else 0
            )
            if lost_reports >= _MAX_LOST:  # a GPU that was reset is found only after opening the driver again
                backend, lost_reports = None, 0
        except NoDriver as error:
            report = GpuReport(want=want, error=error.cause)
        answers.write(dump(report))
        answers.flush()


class Questions:
    """The lines of a descriptor. While none comes, the backend keeps up with its driver."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: Iterator[bytes] = iter(())
        self._unread = b""

    def next(self, opened: object) -> str | None:
        """Return the next question; None at the end of the input."""
        backend = opened if isinstance(opened, Attentive) else None
        until = time.monotonic() + _LONGEST
        while (line := next(self._lines, None)) is None:
            pause = backend.pause if backend and time.monotonic() < until else None
            if backend and not select.select([self._descriptor], [], [], pause)[0]:
                backend.keep_up()
            elif not (data := os.read(self._descriptor, _CHUNK)):
                return None
            else:
                *lines, self._unread = (self._unread + data).split(b"\n")
                self._lines = iter(lines)
        return line.decode().strip()
