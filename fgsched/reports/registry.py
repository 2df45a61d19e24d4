"""The reports and the formats there are, and the making of the report that a command or a user requests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.ledger import Ledger
from fgsched.accounting.periods import Default, chosen
from fgsched.domain.errors import BadUsage, StorageError
from fgsched.domain.job import HostLimits
from fgsched.domain.text import clean
from fgsched.domain.times import format_time
from fgsched.reports.facts import Facts, FailedJob, ReportReader
from fgsched.reports.model import Report
from fgsched.reports.request import Records, ReportRequest
from fgsched.views.display import paragraph


class Replayed(Struct, frozen=True, kw_only=True):
    """The waits, in seconds, of a replay of the period without and with one more GPU."""

    model: str
    jobs: int
    left_out: int  # jobs of the period that were not replayed: the earliest
    since: float  # epoch seconds: the first job that was replayed could start
    until: float  # epoch seconds: the last one ended
    median_now: float
    median: float
    ninety_now: float
    ninety: float


class Wish(Struct, frozen=True, kw_only=True):
    """The parameters of a report beside its period."""

    now: float  # epoch seconds
    by: str = "user"
    number: int = 10  # rows of lists of the largest
    weights: dict[str, float] = {}  # by model of GPU: the price of an hour, relative to others
    quotas: dict[str, float] = {}  # by account: GPU seconds; accounts without one are missing
    replays: tuple[Replayed, ...] = ()  # of the report on capacity
    tail: Callable[[FailedJob], Sequence[str]] = lambda job: ()  # returns the last lines of its output
    has_paths: bool = True  # whether it may show paths of output files


class ReportKind(Struct, frozen=True, kw_only=True):
    """One kind of report."""

    make: Callable[[Facts, Wish], Report]
    default: Default  # period


class ReportFormat(Struct, frozen=True, kw_only=True):
    """One way to write a report."""

    suffix: str
    render: Callable[[Report, "Style"], str]


class Style(Struct, frozen=True, kw_only=True):
    """How a report is written."""

    ascii: bool = False
    section: str = ""  # of CSV; "": the main table


_MODULES: dict[str, tuple[str, Default]] = {
    # name: module of fgsched.reports with a function of that name, and the default period
    "overview": ("overview", "week"),
    "users": ("users", "week"),
    "top": ("users", "week"),
    "waits": ("queueing", "week"),
    "failures": ("incidents", "day"),
    "utilization": ("utilization", "week"),
    "waste": ("waste", "week"),
    "strangers": ("incidents", "day"),
    "health": ("incidents", "day"),
    "capacity": ("queueing", "30 days"),
    "charge": ("charge", "month"),
    "me": ("users", "week"),
}
ALIASES = {"intruders": "strangers"}
NAMES = tuple(_MODULES)


def kind(name: str) -> ReportKind:
    """Return a kind of report by its name. Raises BadUsage."""
    name = ALIASES.get(name, name)
    if name not in _MODULES:
        raise BadUsage(f"there is no report '{name[:40]}'", f"Reports: {', '.join((*NAMES, 'status'))}.")
    module, default = _MODULES[name]
    module_type = import_module(f"fgsched.reports.{module}")
    return ReportKind(make=getattr(module_type, name), default=default)


def _text(report: Report, style: Style) -> str:
    from fgsched.reports.text import as_text

    return as_text(report, ascii=style.ascii)


def _markdown(report: Report, style: Style) -> str:
    from fgsched.reports.export import as_markdown

    return as_markdown(report)


def _json(report: Report, style: Style) -> str:
    from fgsched.reports.export import as_json

    return as_json(report)


def _csv(report: Report, style: Style) -> str:
    from fgsched.reports.export import as_csv

    return as_csv(report, style.section)


def _html(report: Report, style: Style) -> str:
    from fgsched.reports.html import as_html  # needs Jinja2, which the other formats do not

    return as_html(report)


FORMATS = {
    "text": ReportFormat(suffix="txt", render=_text),
    "markdown": ReportFormat(suffix="md", render=_markdown),
    "json": ReportFormat(suffix="json", render=_json),
    "csv": ReportFormat(suffix="csv", render=_csv),
    "html": ReportFormat(suffix="html", render=_html),
}


def written(report: Report, format: str, style: Style) -> str:
    """Return a report in a format. Raises BadUsage if the format has nothing to write."""
    return FORMATS[format].render(report, style)


# -- one requested report ------------------------------------------------------------------------------


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

    `replay` replays the period with one more GPU, if the request has limits for that.
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
