"""Make a report that another process has requested, and say in a sentence if it is about nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from fgsched.accounting.ledger import Ledger
from fgsched.accounting.periods import chosen
from fgsched.domain.errors import StorageError
from fgsched.domain.job import HostLimits
from fgsched.domain.text import clean
from fgsched.domain.times import format_time
from fgsched.reports.facts import Facts, ReportReader
from fgsched.reports.model import Report
from fgsched.reports.registry import Replayed, Wish, kind
from fgsched.reports.request import Records, ReportRequest
from fgsched.views.display import paragraph

Replay = Callable[[Facts, HostLimits], tuple[Replayed, ...]]
_OTHERS = "--since, --week and --month choose another period; fgacct shows jobs at once."
_DATE = "%Y-%m-%d"


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


def blank(report: Report, records: Records, user: str, now: float) -> str:
    """Return the text that replaces a report about nothing, in lines of 78 columns; else "".

    Args:
        user: of whom `me` reports.
        now: epoch seconds.
    """
    sentences = _sentences(report, records, user, now)
    return "".join(f"{line}\n" for line in paragraph(sentences))


def _sentences(report: Report, records: Records, user: str, now: float) -> str:
    label = report.period.label
    if records.begin is None:
        return (
            "Nothing is accounted yet: the accounts begin about ten minutes after the first job has ended "
            "(move_after in fgsched.toml), and fgacct shows jobs at once."
        )
    nothing = f"Nothing was accounted in the period {label}; the accounts begin on"
    first = format_time(records.begin, _DATE)
    if records.begin >= report.period.until and first == format_time(now, _DATE):
        return f"{nothing} {first}. --since today reports this day up to the last full hour."
    if records.begin >= report.period.until:
        return f"{nothing} {first}. --since {first} reports the time since then."
    if report.kind == "me" and report.quiet:
        return f"No job of {clean(user)} ran in the period {label}. {_OTHERS}"
    return f"{nothing} {first}. {_OTHERS}" if records.is_empty else ""
