"""The reports by user, account, partition, model or tag; on the largest users and jobs; and on one user."""

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import is_instance
from fgsched.reports import frame, numbers
from fgsched.reports.facts import Facts, TopJob
from fgsched.reports.failures import failures
from fgsched.reports.model import (
    Cell,
    Column,
    Given,
    Headline,
    Number,
    Part,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.reports.people import BY, concentration, groups_of, table
from fgsched.reports.registry import Wish
from fgsched.reports.waits import waits
from fgsched.reports.waste import findings, merged, wastes
from fgsched.reports.wording import dash, job_cells

_TERMS = ("charged", "used", "efficiency", "measured", "idle", "unused", "wait", "failed")
_PLURALS = {
    "user": "Users",
    "account": "Accounts",
    "partition": "Partitions",
    "type": "Models",
    "tag": "Tags",
}
_EMPTY = {  # the sentence in place of a table of jobs, by its order
    "charge": "No job that ended was charged.",
    "idle": "No job that ended was idle.",
    "wait": "No job that ended had started.",
}


def users(facts: Facts, wish: Wish) -> Report:
    """Return the report by user, account, partition, model or tag. Raises BadUsage for another --by."""
    if wish.by not in BY:
        raise BadUsage(f"there is no grouping '{wish.by[:40]}'", f"Groupings: {', '.join(BY)}.")
    groups = table(facts, wish.by, wide=True, empty="No user ran a job.")
    title = _PLURALS[wish.by]
    say = concentration(facts) if wish.by == "user" else ""
    body = frame.Body(
        kind="users",
        title=f"GPU report by {wish.by}",
        lede=_lede(facts),
        figures=_figures(facts),
        sections=(Section("users", title, say, (groups,)),),
        terms=_TERMS,
        main=groups.key,
        quiet=not facts.ended and not facts.charged,
    )
    return frame.framed(facts, body, wish.now)


def _figures(facts: Facts) -> tuple[Headline, ...]:
    return (
        frame.headline_charged(facts),
        frame.headline_efficiency(facts),
        frame.headline_idle(facts),
        frame.headline_jobs(facts),
    )


def _lede(facts: Facts) -> tuple[str, ...]:
    if nothing := frame.nothing_ran(facts):
        return tuple(nothing)
    hours = numbers.brief_hours(facts.charged)
    part = frame.headline_charged(facts).number.text
    idle = numbers.brief_hours(facts.idle)
    text = f"{hours} GPU-hours were charged, {part} of the hours measured; {idle} of them were idle."
    return (text, *frame.no_earlier(facts))


# -- the largest ---------------------------------------------------------------------------------------


def top(facts: Facts, wish: Wish) -> Report:
    """Return the report on the largest users and jobs."""
    people = (
        _top_users(facts, wish.number, "charged", "By GPU-hours charged"),
        _top_users(facts, wish.number, "idle", "By idle GPU-hours"),
    )
    jobs = (
        _top_jobs(facts, wish.number, "charge", "By GPU-hours charged"),
        _top_jobs(facts, wish.number, "idle", "By idle GPU-hours"),
        _top_jobs(facts, wish.number, "wait", "By wait"),
    )
    body = frame.Body(
        kind="top",
        title="Largest users and jobs",
        lede=_lede(facts),
        figures=_figures(facts),
        sections=(Section("users", "Users", "", people), Section("jobs", "Jobs", "", jobs)),
        terms=("charged", "used", "efficiency", "measured", "idle", "wait", "failed", "whole"),
        main="users_by_charged",
        quiet=not facts.ended and not facts.charged,
    )
    return frame.framed(facts, body, wish.now)


def _top_users(facts: Facts, most: int, by: str, title: str) -> Part:
    groups = [group for group in groups_of(facts, "user") if getattr(group, by) >= 1]
    groups.sort(key=lambda group: (-getattr(group, by), group.name))
    columns = (
        Column("rank", "Rank", right=True),
        Column("user", "User"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("idle", "Idle h", right=True, unit="GPU-hours"),
        Column("efficiency", "Efficiency", right=True, unit="%"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
    )
    rows = tuple(
        (
            _rank(rank),
            Given(group.name),
            numbers.hours(group.charged),
            numbers.hours(group.idle),
            numbers.rate(group.used, group.measured),
            numbers.count(group.jobs),
        )
        for rank, group in enumerate(groups[:most], 1)
    )
    empty = "No user was charged." if by == "charged" else "No user had idle hours."
    return Table(f"users_by_{by}", columns, rows, title=title, empty=empty)


def _rank(rank: int) -> Number:
    return Number(rank, "", str(rank))


def _top_jobs(facts: Facts, most: int, by: str, title: str) -> Part:
    columns = (
        Column("job", "Job", right=True),
        Column("user", "User"),
        Column("name", "Name"),
        Column("state", "State"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("idle", "Idle h", right=True, unit="GPU-hours"),
        Column("wait", "Wait", right=True, unit="seconds"),
    )
    rows = tuple(_job_row(job) for job in facts.top_jobs(by, most))
    return Table(f"jobs_by_{by}", columns, rows, title=title, empty=_EMPTY[by])


def _job_row(job: TopJob) -> tuple[Cell, ...]:
    return (
        *job_cells(job),
        Words(job.state),
        numbers.hours(job.charged),
        dash() if job.idle is None else numbers.hours(job.idle),
        numbers.duration(None if job.wait is None else max(0.0, job.wait)),
    )


# -- oneself -------------------------------------------------------------------------------------------


def me(facts: Facts, wish: Wish) -> Report:
    """Return the report on the jobs of one user: `facts` are restricted to that user."""
    proposals = findings(facts, 5)
    sections = (
        Section("jobs", "Jobs", "", (_by_name(facts),)),
        waits(facts),
        failures(facts, most=10),
        wastes(facts, proposals),
    )
    body = frame.Body(
        kind="me",
        title="GPU report of a user",
        lede=_own_lede(facts),
        figures=_own_figures(facts),
        sections=sections,
        terms=("charged", "used", "efficiency", "idle", "unused", "wait", "failed", "returned", "whole"),
        main="names",
        quiet=not facts.ended and not facts.uses,
    )
    return frame.framed(facts, body, wish.now)


def _own_lede(facts: Facts) -> tuple[str, ...]:
    charged = sum(use.charged for use in facts.uses)
    if not facts.ended and not charged:
        return (f"No job of {facts.user or 'this user'} ran in this {facts.period.noun}.",)
    hours, idle = numbers.brief_hours(charged), numbers.brief_hours(_own_idle(facts))
    return (f"{hours} GPU-hours were charged to {facts.user}; {idle} of them were idle.",)


def _own_idle(facts: Facts) -> float:
    return sum(use.held + use.empty for use in facts.uses)


def _own_figures(facts: Facts) -> tuple[Headline, ...]:
    charged, idle = sum(use.charged for use in facts.uses), _own_idle(facts)
    hours = numbers.hours(charged)
    whole = Number(hours.value, hours.unit, f"{hours.text} h")
    measured = sum(use.charged for use in facts.uses if not is_instance(use.card))
    used = numbers.share(facts.used, measured)
    return (
        Headline("charged", "Charged", whole, f"of {numbers.brief_hours(facts.sampled)} GPU-hours"),
        Headline("efficiency", "GPU efficiency", used, frame.fraction(facts.used, measured, " used")),
        Headline("idle", "Idle", numbers.share(idle, charged), frame.fraction(idle, charged)),
        frame.headline_wait(facts),
        frame.headline_jobs(facts),
    )


def _by_name(facts: Facts) -> Part:
    columns = (
        Column("name", "Name"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("efficiency", "Efficiency", short="effic.", right=True, unit="%"),
        Column("idle", "Idle h", right=True, unit="GPU-hours"),
        Column("peak", "Peak memory", right=True, unit="bytes"),
        Column("asked", "Asked", right=True, unit="bytes"),
        Column("longest", "Longest run", right=True, unit="seconds", minor=True),
    )
    measured = facts.measured_of_jobs
    groups = sorted(merged(facts.repeated), key=lambda group: (-group.charged, group.name))
    rows = tuple(
        (
            Given(group.name),
            numbers.count(group.jobs),
            numbers.hours(group.charged),
            dash()
            if group.used is None
            else numbers.rate(group.used, measured.get((group.name, group.gpus, group.share), 0.0)),
            numbers.hours(group.idle) if group.idle is not None else dash(),
            numbers.gibibytes(group.peak if group.peak or group.used is not None else None),
            numbers.gibibytes(group.memory, 0),
            numbers.duration(group.longest),
        )
        for group in groups
    )
    return Table("names", columns, rows, empty="No job with a GPU ended.")
