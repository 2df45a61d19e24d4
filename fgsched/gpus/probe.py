"""The process that asks the driver. It may hang in it for ever, and is then abandoned.

One line in, what is wanted; one line out. It ends when its stdin does, and after an answer that failed on
every card: the next probe opens the driver afresh, which helps when the driver was loaded anew.
"""

import sys

from fgsched.gpus import wire
from fgsched.gpus.nvml import Driver, NoDriver
from fgsched.gpus.wire import Report


def main() -> None:
    """Answer until nobody asks."""
    driver: Driver | None = None
    for line in sys.stdin:
        want = line.strip()
        try:
            driver = driver or Driver()
            report = _look(driver, want)
        except NoDriver as error:
            report = Report(want=want, error=error.cause)
        sys.stdout.buffer.write(wire.dump(report))
        sys.stdout.buffer.flush()
        if report.readings and all(reading.error for reading in report.readings.values()):
            return


def _look(driver: Driver, want: str) -> Report:
    if want == wire.INVENTORY:
        return Report(want=want, gpus=tuple(driver.inventory()))
    return Report(want=want, readings=driver.reading())
