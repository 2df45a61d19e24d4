"""Ask for the inventory of the GPUs again, if the driver did not answer at the start of the controller."""

import math
from collections.abc import Callable

from fgsched import gpus

_LONGEST = 60.0  # seconds between an answer and the next question
_DOUBLINGS = 6  # after which the pause is the longest
_LOST = 600.0  # seconds after which a question has no answer any more: the supervisor was killed


def pause(failures: int) -> float:
    """Return the seconds until the next question, after this many further ones without success."""
    return min(_LONGEST, 2.0 ** min(failures, _DOUBLINGS))


def is_needed(inventory: gpus.Inventory) -> bool:
    """Tell whether a later inventory may have more: GPUs, or the driver's limits on known GPUs."""
    return inventory.is_late or (inventory.failed and inventory.is_real)


class InventoryRetry:
    """The questions of one start. Times are in seconds of a clock that is never set."""

    def __init__(
        self, *, needed: bool, ask: Callable[[], None], answered: Callable[[], None], now: float
    ) -> None:
        """`answered` is called once the driver answers."""
        self._ask, self._answered = ask, answered
        self._failures = 0
        self._next = now + pause(0) if needed else math.inf

    def due(self, now: float) -> float | None:
        """Return the seconds until the next question; None: none is needed."""
        return max(0.0, self._next - now) if self._next < math.inf else None

    def look(self, now: float) -> None:
        """Ask if a question is due."""
        if now >= self._next:
            self._next = now + _LOST
            self._ask()

    def hear(self, answer: gpus.GpuAnswer, now: float) -> None:
        """Use the answer to a question."""
        if answer.error and self._next < math.inf:
            self._failures += 1
            self._next = now + pause(self._failures)
        elif self._next < math.inf:
            self._next = math.inf
            self._answered()
