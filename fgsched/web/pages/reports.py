"""The reports of `fgreport`, as they are: their list, and one of them as text."""

from collections.abc import Sequence
from urllib.parse import urlencode

from msgspec import Struct

from fgsched.web.reading import ReportData
from fgsched.web.visit import Visit

KINDS = {  # name -> title and what it shows
    "me": ("Your week", "what your jobs used, and header lines for the next runs"),
    "overview": ("Overview", "use, users, waits, failures and waste"),
    "users": ("Users", "GPU-hours and efficiency of each user"),
    "top": ("Largest", "the jobs that were charged most"),
    "waits": ("Waits", "how long jobs of each size waited"),
    "failures": ("Failures", "jobs that failed, and why"),
    "utilization": ("Utilization", "where the hours of the GPUs went"),
    "waste": ("Waste", "requests that were not used"),
    "strangers": ("Processes outside fgsched", "on the GPUs, by user"),
    "health": ("Health", "errors, temperatures, drained GPUs"),
    "capacity": ("Capacity", "what one more GPU would have changed"),
    "charge": ("Charges", "GPU-hours by account"),
}
PERIODS = {  # label -> the value of `since`; "": the usual period of the report
    "usual period": "",
    "today": "today",
    "7 days": "-7d",
    "30 days": "-30d",
}


class ReportLink(Struct, frozen=True):
    """A link to a report or to another period of it."""

    label: str
    href: str
    text: str = ""
    is_current: bool = False


class ReportsPage(Struct, frozen=True, kw_only=True):
    """The context of both pages."""

    reports: Sequence[ReportLink]
    title: str  # of the report that is shown; "": the list
    periods: Sequence[ReportLink]
    text: str
    line: str  # the command that prints it


def context(data: ReportData, visit: Visit) -> ReportsPage:
    """Return the context of the list, or of one report."""
    name = data.name
    links = [ReportLink(title, f"/reports/{key}", text) for key, (title, text) in KINDS.items()]
    since = visit.query.get("since", "")
    return ReportsPage(
        reports=links,
        title=KINDS[name][0] if name else "",
        periods=[_period(name, label, value, since) for label, value in PERIODS.items()] if name else (),
        text=data.text,
        line=f"fgreport {name}{f' --since {since}' if since in PERIODS.values() and since else ''}",
    )


def _period(name: str, label: str, value: str, since: str) -> ReportLink:
    query = f"?{urlencode({'since': value})}" if value else ""
    return ReportLink(label, f"/reports/{name}{query}", is_current=since == value)
