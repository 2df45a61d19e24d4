"""A request for a report, and its answer: the only part of the reports that the controller imports."""

from msgspec import Struct

from fgsched.accounting.periods import Choice
from fgsched.domain.job import HostLimits

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
