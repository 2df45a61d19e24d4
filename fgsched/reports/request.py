"""A request for a report, its answer, and the controller's end of the reporter, which makes the report.

This is the only part of the reports that the controller imports.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from fgsched.accounting.periods import Choice
from fgsched.domain.job import HostLimits
from fgsched.system.helper import Helper
from fgsched.system.process import Watch

WITHOUT_NAMES = ("health", "capacity")  # reports that name no user


class ReportRequest(Struct, frozen=True, kw_only=True):
    """A report and its parameters."""

    number: int = 0
    report: str
    choice: Choice = Choice()  # of the period
    user: str = ""  # to whose jobs the report is restricted; "": none
    by: str = "user"
    rows: int = 10  # of lists of the largest
    host: str = ""  # short name
    weights: dict[str, float] = {}  # by model of GPU
    quotas: dict[str, float] = {}  # GPU seconds by account
    has_paths: bool = False  # whether it may show paths of output files
    limits: HostLimits | None = None  # of the replay in the report on capacity


class Records(Struct, frozen=True):
    """Tell whether a period has records, and since when there are any."""

    is_empty: bool = False  # nothing was accounted in the period
    begin: float | None = None  # epoch seconds of the first record; None: there is none


class Made(Struct, frozen=True, kw_only=True):
    """A report as JSON, or the reason why there is none."""

    number: int
    report: str = ""
    records: Records = Records()
    error: str = ""
    remedy: str = ""
    exit: int = 1  # of a command that gets the error


_ENDED = "the reporter has ended before it answered"


class ReporterProcess(Helper):
    """The process that makes reports for users who may not read the accounts, from its first request on."""

    def __init__(self, accounts: Path, watch: Watch, answered: Callable[[Made], None]) -> None:
        """Create it without a process.

        Args:
            accounts: path of the accounts.
            watch: calls back once when the process of a pidfd has ended.
            answered: takes each answer.
        """
        super().__init__("fgsched.simulate.reporter", patience=0.0)
        self._accounts, self._answered = accounts, answered
        self._number = 0
        self._asked: dict[int, bytes] = {}  # number -> line of a request without an answer
        self.begin(watch, self._fail)

    def ask(self, request: ReportRequest) -> int:
        """Send a request, and return its number, which its answer has. Raises OSError."""
        self.notice_end()  # a request to an ended process would be refused as the one that ended it
        self.launch(str(self._accounts), now=time.monotonic())
        if not self.flush():
            raise OSError("the reporter is stopped")
        self._number += 1
        line = msgspec.json.encode(msgspec.structs.replace(request, number=self._number)) + b"\n"
        self._asked[self._number] = line
        self.send(line)
        return self._number

    def _fail(self) -> None:
        """Answer the request at which the process was; another process gets those of others behind it."""
        self.receive()
        self._refuse(list(self._asked)[:1])
        if not self._asked:
            return
        try:
            self.launch(str(self._accounts), now=time.monotonic())
        except (OSError, ValueError):  # ValueError: it is closed
            self._refuse(list(self._asked))
        for line in self._asked.values():
            self.send(line)

    def _refuse(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._take(Made(number=number, error=_ENDED, remedy="Ask for a shorter period."))

    def receive(self) -> None:
        """Take in the answers that have arrived; never blocks."""
        for line in self.lines():
            with suppress(msgspec.MsgspecError):
                self._take(msgspec.json.decode(line, type=Made))

    def _take(self, report: Made) -> None:
        if self._asked.pop(report.number, None) is not None:
            self._answered(report)
