"""A report that one process asks of another, and what becomes of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.ledger import Ledger
from fgsched.accounting.periods import Choice, chosen
from fgsched.accounting.reports.facts import Facts, ReportReader
from fgsched.accounting.reports.model import Report
from fgsched.accounting.reports.registry import Replayed, Wish, kind
from fgsched.domain.errors import StorageError
from fgsched.domain.job import HostLimits

Replay = Callable[[Facts, HostLimits], tuple[Replayed, ...]]


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


class Made(Struct, frozen=True, kw_only=True):
    """A report as JSON, or the reason why there is none."""

    number: int
    report: str = ""
    is_empty: bool = False  # there are no accounts yet
    error: str = ""
    remedy: str = ""
    exit: int = 1  # of a command that gets the error


@contextmanager
def empty_accounts() -> Iterator[Path]:
    """Yield the path of accounts without a record. Raises StorageError if they cannot be made."""
    try:
        folder = TemporaryDirectory(prefix="fgreport-")
    except OSError as error:
        raise StorageError(
            f"no temporary file can be made: {error}", "Check the space on its disk."
        ) from None
    with folder as name:
        path = Path(name) / "accounts.db"
        Ledger(path).close()
        yield path


def make(accounts: Path, request: ReportRequest, now: float, replay: Replay) -> Report:
    """Make a report from the accounts; `now` is in epoch seconds. Raises FgschedError.

    `replay` replays the period with one more card, if the request has limits for that.
    """
    which = kind(request.report)
    period = chosen(request.choice, which.default, now)
    wish = Wish(
        now=now,
        by=request.by,
        number=request.rows,
        weights=request.weights,
        quotas=request.quotas,
        has_paths=request.has_paths,
    )
    reader = ReportReader(accounts)
    try:
        with reader.reading():
            facts = Facts(reader, period, host=request.host, user=request.user)
            if request.limits is not None:
                wish = replace(wish, replays=replay(facts, request.limits))
            return which.make(facts, wish)
    finally:
        reader.close()
