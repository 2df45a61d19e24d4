"""A request for a report, its answer, and the controller's end of the reporter, which makes the report.

This is the only part of the reports that the controller imports.
"""

import time
from collections.abc import Callable
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
        self._asked: list[int] = []  # numbers of requests without an answer
        self.begin(watch, self._fail)

    def ask(self, request: ReportRequest) -> int:
        """Send a request, and return its number, which its answer has. Raises OSError."""
        self.launch(str(self._accounts), now=time.monotonic())
        if not self.flush():
            raise OSError("the reporter is stopped")
        self._number += 1
        self._asked.append(self._number)
        self.send(msgspec.json.encode(msgspec.structs.replace(request, number=self._number)) + b"\n")
        return self._number

    def _fail(self) -> None:
        """Answer what the process did not answer; the next request starts another one."""
        self.receive()
        for number in list(self._asked):
            self._take(Made(number=number, error=_ENDED, remedy="Ask for a shorter period."))

    def receive(self) -> None:
        """Take in the answers that have arrived; never blocks."""
        for line in self.lines():
            with suppress(msgspec.MsgspecError):
                self._take(msgspec.json.decode(line, type=Made))

    def _take(self, report: Made) -> None:
        if report.number in self._asked:
            self._asked.remove(report.number)
            self._answered(report)
