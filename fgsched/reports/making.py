"""Make a report that another process has requested."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from fgsched.accounting.ledger import Ledger
from fgsched.accounting.periods import chosen
from fgsched.domain.errors import StorageError
from fgsched.domain.job import HostLimits
from fgsched.reports.facts import Facts, ReportReader
from fgsched.reports.model import Report
from fgsched.reports.registry import Replayed, Wish, kind
from fgsched.reports.request import Records, ReportRequest

Replay = Callable[[Facts, HostLimits], tuple[Replayed, ...]]


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


def records_of(facts: Facts) -> Records:
    """Return whether the accounts have records of the period of these facts."""
    return Records(is_empty=not facts.is_known, begin=facts.reader.begin())


def make(accounts: Path, request: ReportRequest, now: float, replay: Replay) -> tuple[Report, Records]:
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
            return which.make(facts, wish), records_of(facts)
    finally:
        reader.close()
