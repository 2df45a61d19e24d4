"""Contain unexpected exceptions: log them, count them, and report them to `fgsched doctor`."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fgsched.domain.errors import StorageError
from fgsched.domain.text import storable
from fgsched.protocol import InternalErrors

log = logging.getLogger("fgsched.controller")
_LONGEST = 300  # characters of an error's text
_QUIET = 1.0  # seconds within which the same fault of the same part is counted and not logged again


@dataclass(slots=True)
class Faults:
    """The number of contained exceptions, and the last one."""

    count: int = 0
    text: str = ""
    at: float = 0.0  # seconds since the epoch
    logged_at: float = 0.0

    @contextmanager
    def contained(self, part: str) -> Iterator[None]:
        """Contain an exception of the block: log and count it. Errors of the queue file are raised."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            self.note(part, error)

    def run(self, part: str, act: Callable[[], Any]) -> bool:
        """Call `act`; return False if it raised an unexpected exception."""
        before = self.count
        with self.contained(part):
            act()
        return self.count == before

    def note(self, part: str, error: Exception) -> str:
        """Count the exception being handled, log its traceback, and return it as one line."""
        text, now = f"{part}: {told(error)}", time.time()
        if text != self.text or not 0 <= now - self.logged_at < _QUIET:
            self.logged_at = now
            log.error("internal error in %s", part, exc_info=error)
        self.count, self.text, self.at = self.count + 1, text, now
        return told(error)

    def told(self) -> InternalErrors:
        """Return the count as `ping` shows it."""
        return InternalErrors(count=self.count, last=self.text[:500], at=self.at or None)


def told(error: BaseException) -> str:
    """Return an exception as one line that can be stored and shown."""
    text = " ".join(str(error).split())
    return storable(f"{type(error).__name__}: {text}" if text else type(error).__name__)[:_LONGEST]
