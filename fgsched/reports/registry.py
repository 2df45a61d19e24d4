"""The reports and the formats there are."""

from collections.abc import Callable, Sequence
from importlib import import_module

from msgspec import Struct

from fgsched.accounting.periods import Default
from fgsched.domain.errors import BadUsage
from fgsched.reports.facts import Facts, FailedJob
from fgsched.reports.model import Report


class Replayed(Struct, frozen=True, kw_only=True):
    """The waits, in seconds, of a replay of the period without and with one more card."""

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
    "capacity": ("capacity", "30 days"),
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
