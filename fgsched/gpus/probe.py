"""The process that asks the driver. It may hang in it for ever, and is then abandoned.

One line in, what is wanted; one line out. It ends when its stdin does.
"""

import json
import os
import sys

from fgsched.gpus import limits, wire
from fgsched.gpus.nvml import Driver, NoDriver
from fgsched.gpus.wire import Report

_AGAIN = 12


def main() -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the driver's library prints must not pass for an answer
    driver: Driver | None = None
    lost = 0  # looks in a row with a card that was off the bus
    for line in sys.stdin:
        want = line.strip()
        try:
            driver = driver or Driver()
            report = _look(driver, want)
            lost = lost + 1 if any(reading.is_lost for reading in report.readings.values()) else 0
            if lost >= _AGAIN:  # a card that was reset is found only by opening the driver anew
                driver, lost = None, 0
        except NoDriver as error:
            report = Report(want=want, error=error.cause)
        answers.write(wire.dump(report))
        answers.flush()


def _look(driver: Driver, want: str) -> Report:
    kind, _, rest = want.partition(" ")
    if kind == wire.LIMIT:
        return Report(want=want, error=limits.hold(driver, json.loads(rest)))
    if want == wire.USE:
        return Report(want=want, uses=driver.use())
    if want == wire.INVENTORY:
        return Report(want=want, gpus=tuple(driver.inventory()), limits=limits.are_offered(driver))
    return Report(want=want, readings=driver.reading())
