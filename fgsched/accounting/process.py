"""The controller's end of the accountant: send it messages and receive its answers without blocking."""

import logging
import time
from pathlib import Path

from msgspec import MsgspecError

from fgsched.accounting.messages import Answer, Keep, parse_answer
from fgsched.system.helper import Helper

log = logging.getLogger(__name__)


class AccountantProcess(Helper):
    """The accountant. Its owner paces its starts, and repeats records that have no acknowledgement."""

    def __init__(self, path: Path, keep: Keep) -> None:
        """Create it without a process, for the accounts at `path`."""
        super().__init__("fgsched.accounting.accountant", patience=10.0)
        self._path = path
        self.keep = keep

    def start(self) -> None:
        """Start the process, or another one after it has ended.

        Raises:
            OSError: the process cannot be started.
        """
        keep = [str(seconds) for seconds in (self.keep.minutes, self.keep.hours, self.keep.days)]
        self.launch(str(self._path), *keep, now=time.monotonic())

    def receive(self) -> list[Answer]:
        """Return the answers that have arrived; never blocks."""
        answers = []
        for text in self.lines():
            try:
                answers.append(parse_answer(text))
            except MsgspecError as error:
                log.error("an answer of the accountant cannot be read: %s", error)
        return answers
