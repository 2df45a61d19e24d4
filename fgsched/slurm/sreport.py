"""sreport: sum the accounts of a period, in the reports of Slurm that one host can answer."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.domain.job import WHOLE
from fgsched.domain.times import DAY, HOUR, parse_time
from fgsched.slurm import tables
from fgsched.slurm.getopt import BadLine, parse
from fgsched.views import job as view
from fgsched.views.display import SLURM_VERSION
from fgsched.views.listing import TableColumn

_FIELDS = ("id", "user", "account", "cpus", "state", "started_at", "ended_at", "allocated")  # of JobInfo
_LINE = "-" * 80
_UNITS = {"seconds": 1, "minutes": 60, "hours": HOUR}  # name -> seconds
_PERCENT = "percent"  # of the resource of the host in the period


class Sum(NamedTuple):
    """The use of one resource by an account, or by a user of one."""

    account: str
    user: str
    resource: str
    seconds: float
    total: float  # seconds of the resource of the host in the period
    unit: str

    @property
    def used(self) -> str:
        """The use in the unit of the report."""
        return _amount(self.seconds, self.total, self.unit)


class Whole(NamedTuple):
    """The use of one resource of the host in a period."""

    resource: str
    allocated: float  # seconds
    total: float  # seconds
    unit: str

    def of(self, seconds: float) -> str:
        """Return seconds in the unit of the report."""
        return _amount(seconds, self.total, self.unit)


def _amount(seconds: float, total: float, unit: str) -> str:
    if unit == _PERCENT:
        return f"{100 * seconds / total if total else 0.0:.2f}%"
    return str(round(seconds / _UNITS[unit]))


_CLUSTER = TableColumn("Cluster", lambda row: "fgsched", width=9)
_BY_USER = (
    _CLUSTER,
    TableColumn("Account", lambda row: row.account or "root", width=15),
    TableColumn("Login", lambda row: row.user, width=9),
    TableColumn("Proper Name", lambda row: row.user, width=15),
    TableColumn("TRES Name", lambda row: row.resource, width=14),
    TableColumn("Used", lambda row: row.used, width=10),
    TableColumn("Energy", lambda row: 0, width=10),
)
_UTILIZATION = (
    _CLUSTER,
    TableColumn("TRES Name", lambda row: row.resource, width=14),
    TableColumn("Allocated", lambda row: row.of(row.allocated), width=12),
    TableColumn("Down", lambda row: row.of(0), width=10),
    TableColumn("PLND Down", lambda row: row.of(0), width=10),
    TableColumn("Idle", lambda row: row.of(max(0.0, row.total - row.allocated)), width=12),
    TableColumn("Planned", lambda row: row.of(0), width=10),
    TableColumn("Reported", lambda row: row.of(row.total), width=12),
)
_UTILIZED = "Cluster,Allocated,Down,PLNDDown,Idle,Planned,Reported"
_REPORTS = {  # the words of a report -> its title, its default fields
    ("cluster", "utilization"): (
        "Cluster Utilization",
        _UTILIZED,
    ),
    ("cluster", "accountutilizationbyuser"): (
        "Cluster/Account/User Utilization",
        "Cluster,Account,Login,ProperName,Used,Energy",
    ),
    ("cluster", "userutilizationbyaccount"): (
        "Cluster/User/Account Utilization",
        "Cluster,Login,ProperName,Account,Used,Energy",
    ),
    ("user", "topusage"): ("Top 10 Users", "Cluster,Login,ProperName,Account,Used,Energy"),
}


def answer(words: Sequence[str]) -> str:
    """Return what sreport prints. Raises BadLine in the words of Slurm."""
    spelled, operands = parse("sreport", words, permute=True)
    options = dict(spelled)
    if "version" in options:
        return f"slurm-wlm {SLURM_VERSION}\n"
    if len(operands) < 2:  # the kind and its report
        raise BadLine("error: give a report, such as: cluster utilization start=2026-01-01")
    kind = _kind(operands[0].lower(), operands[1].lower())
    conditions = dict(part.split("=", 1) for part in operands[2:] if "=" in part)
    return _report(kind, {name.lower(): value for name, value in conditions.items()}, options)


def _kind(first: str, second: str) -> tuple[str, str]:
    fitting = [kind for kind in _REPORTS if kind[0].startswith(first) and kind[1].startswith(second)]
    if not fitting:
        names = "; ".join(" ".join(kind) for kind in _REPORTS)
        raise BadLine(f"error: the report '{first} {second}' is not supported. There are: {names}")
    return fitting[0]


def _report(kind: tuple[str, str], conditions: Mapping[str, str], options: Mapping[str, str]) -> str:
    now = time.time()
    midnight = parse_time("midnight", now, past=True)
    begin = parse_time(conditions["start"], now, past=True) if "start" in conditions else midnight - DAY
    end = min(now, parse_time(conditions["end"], now, past=True)) if "end" in conditions else midnight
    if "start" in conditions and "end" not in conditions and begin >= end:
        end = now
    unit = _unit(options.get("time", "minutes"))
    resources = [name for name in options.get("tres", "cpu").lower().split(",") if name]
    resources = ["cpu", "gres/gpu"] if "all" in resources else resources
    title, usual = _REPORTS[kind]
    rows, fields = _rows(kind, (begin, end), resources, unit, conditions)
    usual = usual.replace(",Used", ",TRESName,Used").replace("Cluster,Alloc", "Cluster,TRESName,Alloc")
    shown = usual if "tres" in options else usual.replace(",TRESName", "")
    chosen = tables.columns(conditions.get("format", shown), fields, owner="")
    noun = "TRES" if "tres" in options else "CPU"
    head = (
        ""
        if "noheader" in options or {"parsable", "parsable2"} & options.keys()
        else _head(title, begin, end, f"{noun} {_title(unit)}")
    )
    return head + tables.text(rows, chosen, options)


def _unit(text: str) -> str:
    """Return the unit that a text names. Raises BadLine in the words of Slurm."""
    fitting = [name for name in (*_UNITS, _PERCENT) if len(text) > 2 and name.startswith(text.lower()[:3])]
    if not fitting:
        names = ", ".join((*_UNITS, _PERCENT))
        raise BadLine(f"error: the time format '{text[:40]}' is not supported. There are: {names}")
    return fitting[0]


def _title(unit: str) -> str:
    return "Percentage of Total" if unit == _PERCENT else unit.capitalize()


def _head(title: str, begin: float, end: float, unit: str) -> str:
    first, last = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) for at in (begin, end - 1))
    days = f"({round(end - begin)} secs)"
    return f"{_LINE}\n{title} {first} - {last} {days}\nUsage reported in {unit}\n{_LINE}\n"


def _rows(
    kind: tuple[str, str],
    period: tuple[float, float],
    resources: list[str],
    unit: str,
    conditions: Mapping[str, str],
) -> tuple[list[Sum] | list[Whole], Sequence[TableColumn]]:
    with Client(find_paths()) as client:
        jobs = list(_jobs(client, *period))
        host = client.call(protocol.ListGpus())
    counts = {"cpu": host.cpus.total, "gres/gpu": len(host.gpus)}
    totals = {name: counts.get(name, 0) * (period[1] - period[0]) for name in resources}
    if kind[1] == "utilization":
        return [
            Whole(name, sum(_used(job, name, period) for job in jobs), totals[name], unit)
            for name in resources
        ], _UTILIZATION
    sums: dict[tuple[str, str, str], float] = {}
    for job in jobs:
        for name in resources:
            key = (job.account, job.user, name)
            sums[key] = sums.get(key, 0.0) + _used(job, name, period)
    return _chosen(
        [Sum(*key, seconds, totals[key[2]], unit) for key, seconds in sums.items()], kind, conditions
    ), _BY_USER


def _chosen(rows: Iterable[Sum], kind: tuple[str, str], conditions: Mapping[str, str]) -> list[Sum]:
    users = [name for name in (conditions.get("user") or conditions.get("users") or "").split(",") if name]
    accounts = [
        name for name in (conditions.get("account") or conditions.get("accounts") or "").split(",") if name
    ]
    sums = [
        row for row in rows if (not users or row.user in users) and (not accounts or row.account in accounts)
    ]
    if kind == ("user", "topusage"):
        count = conditions.get("topcount", "10")
        return sorted(sums, key=lambda row: -row.seconds)[: int(count) if count.isdecimal() else 10]
    return sorted(sums, key=lambda row: (row.account, row.user))


def _used(job: protocol.JobInfo, resource: str, period: tuple[float, float]) -> float:
    """Return the seconds of a resource that a job had in a period."""
    if job.started_at is None:
        return 0.0
    last = view.ended_at(job) or period[1]
    length = max(0.0, min(last, period[1]) - max(job.started_at, period[0]))
    if resource == "cpu":
        return length * job.cpus
    if resource == "gres/gpu":
        return float(length * view.allocated_share(job) / WHOLE)
    return 0.0


def _jobs(client: Client, begin: float, end: float) -> Iterable[protocol.JobInfo]:
    after: int | None = 0
    while after is not None:
        call = protocol.ListHistory(fields=_FIELDS, since=begin, until=end, after=after)
        page = client.call(call)
        yield from page.jobs
        after = page.next
