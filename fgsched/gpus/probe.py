"""Process that queries the GPU driver, which may hang forever; the supervisor then abandons the process.

It reads questions as lines and writes a report as a line for each. It exits at the end of its input.
"""

import os
import sys

from fgsched.gpus.backend import Backend, Report, dump
from fgsched.gpus.nvidia import Driver, NoDriver

_MAX_LOST = 12  # reports in a row with a lost GPU, after which the driver is opened again


def main() -> None:
    """Answer questions until the end of standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the driver's library may print to standard output
    backend: Backend | None = None
    lost = 0  # reports in a row with a GPU that is off the bus
    for line in sys.stdin:
        want = line.strip()
        try:
            backend = backend or Driver()
            report = backend.answer(want)
            lost = lost + 1 if any(reading.is_lost for reading in report.readings.values()) else 0
            if lost >= _MAX_LOST:  # a GPU that was reset is found only after opening the driver again
                backend, lost = None, 0
        except NoDriver as error:
            report = Report(want=want, error=error.cause)
        answers.write(dump(report))
        answers.flush()
