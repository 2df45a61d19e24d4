"""The reports by user, account, partition, model or tag; on the largest users and jobs; and on one user."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from fgsched.accounting.records import Owner
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import is_instance
from fgsched.reports import frame, numbers
from fgsched.reports.facts import Facts, TopJob
from fgsched.reports.grouping import Numbers, ordered
from fgsched.reports.incidents import failures_section
from fgsched.reports.model import (
    CHARGED,
    Bar,
    Cell,
    Column,
    Given,
    Headline,
    Number,
    Part,
    Piece,
    PieceKind,
    Report,
    Section,
    Table,
    Words,
)
from fgsched.reports.queueing import waits_section
from fgsched.reports.registry import Wish
from fgsched.reports.waste import findings, merged, wastes
from fgsched.reports.wording import dash, job_cells, model_name, quantile

BY = {  # what --by chooses: the heading of the column
    "user": "User",
    "account": "Account",
    "partition": "Partition",
    "type": "Model",
    "tag": "Tag",
}
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


_PIECES: tuple[PieceKind, ...] = ("used", "unused", *CHARGED)
_LEAST = 1e-9  # of a bar: a smaller piece is a rounding
_BARS = (
    "Bars: used (SM share × time), lighter where a process computes and the share is not used; held-idle;"
    " reserved-empty."
)


class UsageGroup(Struct):
    """The use and the results of the jobs of one user (or account, …). Times in GPU seconds."""

    name: str
    charged: float = 0.0
    active: float = 0.0
    held: float = 0.0
    empty: float = 0.0
    used: float = 0.0
    measured: float = 0.0  # charged where compute time is measured
    unknown: float = 0.0  # active where compute time is not measured
    jobs: int = 0
    failed: int = 0
    unused: float = 0.0  # byte-seconds
    waits: list[Numbers] = []  # seconds

    @property
    def idle(self) -> float:
        return self.held + self.empty


def groups_of(facts: Facts, by: str, *, has_memory: bool = False) -> list[UsageGroup]:
    """Return the groups of a period, the largest first; `by` is a key of BY.

    `has_memory`: whether they have the unused memory, which costs another pass over the jobs.
    """
    name, models = _namer(by), {gpu.uuid: gpu.model for gpu in facts.gpus}
    groups: dict[str, UsageGroup] = defaultdict(lambda: UsageGroup(name=""))
    for use in facts.uses:
        group = groups[name(use.owner, models.get(use.uuid, ""))]
        group.charged += use.charged
        group.active += use.active
        group.held += use.held
        group.empty += use.empty
        group.used += use.used
        if is_instance(use.uuid):
            group.unknown += use.active
        else:
            group.measured += use.charged
    for job in facts.jobs:
        group = groups[name(job.owner, job.model)]
        group.jobs += job.jobs
        group.failed += job.jobs if job.has_failed else 0
    for ending in facts.waits:
        groups[name(ending.owner, ending.model)].waits.append(ending.waits)
    for memory in facts.unused if has_memory else ():
        groups[name(memory.owner, memory.model)].unused += memory.seconds
    for text, group in groups.items():
        group.name = text
    return sorted(groups.values(), key=lambda group: (-group.charged, -group.jobs, group.name))


def _namer(by: str) -> Callable[[Owner, str], str]:
    def name(owner: Owner, model: str) -> str:
        return model_name(model) if by == "type" and model else "" if by == "type" else _field(owner, by)

    return name


def _field(owner: Owner, by: str) -> str:
    return {
        "user": owner.user,
        "account": owner.account,
        "partition": owner.partition,
        "tag": owner.tag,
    }[by]


def total_of(groups: Iterable[UsageGroup], name: str) -> UsageGroup:
    """Return the sum of groups, without their waits."""
    total = UsageGroup(name=name)
    for group in groups:
        total.charged += group.charged
        total.active += group.active
        total.held += group.held
        total.empty += group.empty
        total.used += group.used
        total.measured += group.measured
        total.unknown += group.unknown
        total.jobs += group.jobs
        total.failed += group.failed
        total.unused += group.unused
    return total


def columns(by: str, *, wide: bool) -> tuple[Column, ...]:
    """Return the columns of a table of groups; `wide` adds the memory that was not used."""
    every = [
        Column("name", BY[by]),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("classes", "active, held-idle, reserved-empty", short=""),
        Column("share", "Share", right=True, minor=True, unit="%", in_text=wide),
        Column("efficiency", "Efficiency", short="effic.", right=True, unit="%"),
        Column("idle", "Idle h", right=True, minor=True, unit="GPU-hours"),
        Column("unused", "GiB-h not used", short="GiB-h n.u.", right=True, minor=True, unit="GiB-hours"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("failed", "Failed", right=True, minor=True, unit="jobs"),
        Column("median_wait", "Median wait", short="wait", right=True, minor=True, unit="seconds"),
    ]
    return tuple(column for column in every if wide or column.key != "unused")


def table(facts: Facts, by: str, *, most: int = 0, wide: bool = False, empty: str) -> Table:
    """Return the table of the groups of a period: the `most` largest, and one row for the others."""
    groups = groups_of(facts, by, has_memory=wide)
    shown, usage_groups = (groups[:most], groups[most:]) if most and len(groups) > most + 1 else (groups, [])
    total = total_of(groups, "total")
    total.waits = [facts.all_waits]
    others = total_of(usage_groups, f"{len(usage_groups)} others")
    others.waits = [wait for group in usage_groups for wait in group.waits]
    lines = [*shown, *([others] if usage_groups else [])]
    shares = numbers.shares([group.charged for group in lines])
    largest = max((group.charged for group in lines), default=0.0)
    heads = columns(by, wide=wide)
    rows = [
        _row(group, share, largest, heads, is_sum=bool(usage_groups) and at == len(lines) - 1)
        for at, (group, share) in enumerate(zip(lines, shares, strict=True))
    ]
    whole = Number(100.0, "%", "100.0 %") if total.charged else numbers.unknown("%")
    end = _row(total, whole, 0.0, heads, is_sum=True) if rows else ()
    caption = _BARS if largest > 0 else ""
    return Table(key=by + "s", columns=heads, rows=tuple(rows), total=end, caption=caption, empty=empty)


def _row(
    group: UsageGroup, share: Number, largest: float, heads: Sequence[Column], *, is_sum: bool
) -> tuple[Cell, ...]:
    cells: Mapping[str, Cell] = {
        "name": Words(group.name) if is_sum else Given(group.name or "(none)"),
        "charged": numbers.hours(group.charged),
        "classes": _bar(group, largest),
        "share": share,
        "efficiency": numbers.rate(group.used, group.measured),
        "idle": numbers.hours(group.idle),
        "unused": numbers.memory_hours(group.unused),
        "jobs": numbers.count(group.jobs),
        "failed": numbers.count(group.failed),
        "median_wait": numbers.duration(quantile(ordered(group.waits), 50)),
    }
    return tuple(cells[column.key] for column in heads)


def _bar(group: UsageGroup, largest: float) -> Bar:
    if largest <= 0:
        return Bar(())
    used = min(group.used, group.active - group.unknown)
    unused = max(0.0, group.active - group.unknown - used)
    parts = zip(_PIECES, (used, unused, group.unknown, group.held, group.empty), strict=True)
    return Bar(tuple(Piece(kind, part / largest) for kind, part in parts if part > _LEAST * group.charged))


def users_section(facts: Facts, most: int = 8) -> Section:
    """Return the section of the users of an overview."""
    part = table(facts, "user", most=most, empty="No user ran a job.")
    return Section("users", "Users", concentration(facts), (part,))


def concentration(facts: Facts) -> str:
    """Return a sentence with the number of users whose jobs ran, and the part of the three largest."""
    charged: dict[str, float] = defaultdict(float)
    for use in facts.uses:
        charged[use.owner.user] += use.charged
    users = {user for user, sums in charged.items() if sums} | {ending.owner.user for ending in facts.waits}
    whole = sum(charged.values())
    if not users:
        return ""
    if len(users) < 5 or whole <= 0:
        return f"{numbers.counted(len(users), 'person', 'people')} ran jobs."
    share = numbers.rate(sum(sorted(charged.values())[-3:]), whole).text
    return f"{len(users)} people ran jobs; three of them were charged {share} of the hours."


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
        waits_section(facts),
        failures_section(facts, most=10),
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
    measured = sum(use.charged for use in facts.uses if not is_instance(use.uuid))
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
            numbers.gibibytes(group.peak if group.peak or group.idle is not None else None),
            numbers.gibibytes(group.memory, 0),
            numbers.duration(group.longest),
        )
        for group in groups
    )
    return Table("names", columns, rows, empty="No job with a GPU ended.")
