"""The requests that other processes carry out: backups, archives, warnings and reports."""

from collections.abc import Callable
from typing import Any

from fgsched import protocol
from fgsched.config.load import Config
from fgsched.controller.bookkeeping import Books
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.eventloop import Apart, EventLoop
from fgsched.controller.handlers.books import BooksHandlers
from fgsched.controller.handlers.reports import ReportHandlers
from fgsched.controller.handlers.subscribe import EventReaders
from fgsched.system.paths import Paths


class LaterHandlers:
    """The handlers of requests that are answered later."""

    def __init__(
        self, places: Paths, books: Books, loop: EventLoop, config: Callable[[], Config], log: DecisionLog
    ) -> None:
        """`config` returns the settings in force; `log` has the decisions that readers of events get."""
        self.readers = EventReaders(log, loop)
        self._reports = ReportHandlers(places.accounts, loop, config)
        self.calls: dict[type[protocol.Call[Any]], Apart] = {
            **BooksHandlers(books, loop).calls,
            **self._reports.calls,
            **self.readers.calls,
        }
        self.begin, self.close = self._reports.begin, self._reports.close
