"""The report on waste: idle reservations, memory, time limits, large cards, jobs without a process."""

from collections.abc import Sequence

from fgsched.accounting.ledger import HOUR
from fgsched.domain.units import format_share
from fgsched.reports import frame, numbers
from fgsched.reports.ended import Repeated
from fgsched.reports.facts import Facts, WarnedJobs
from fgsched.reports.model import (
    Bar,
    Cell,
    Column,
    Given,
    Headline,
    Line,
    Mark,
    Number,
    Part,
    Piece,
    Report,
    Section,
    Table,
    UseBars,
    UseRow,
    Wastes,
    Words,
)
from fgsched.reports.proposal import ROOM_MEMORY, WHOLE, WORTH, gibibytes_up
from fgsched.reports.registry import Wish
from fgsched.reports.waste import NONE, WasteFinding, findings, item, merged, shorter_limit
from fgsched.reports.wording import dash, long_time, model_name, quantile, type_word

_IDLE = 0.2  # of the charged hours: the least idle part of a row
_LEAST_IDLE = 360.0  # GPU seconds
_LEAST_MEMORY = 10 * numbers.GIB * HOUR  # byte-seconds: the least unused memory of a row


def waste(facts: Facts, wish: Wish) -> Report:
    """Return the report on waste, with the header lines that would have prevented it."""
    proposals, groups = findings(facts, max(wish.number, 20)), merged(facts.repeated)
    lines = {(proposal.jobs.user, proposal.jobs.name): proposal.line for proposal in proposals}
    sections = (
        _proposals(facts, proposals, wish.number),
        Section("idle", "Idle reservations", _IDLE_SAY, (_idle(facts, groups, lines, wish.number),)),
        Section("memory", "Memory asked and not used", "", (_memory(facts, groups, wish.number),)),
        Section("limits", "Time limits", "", (_limits(facts, groups, wish.number),)),
        Section("models", "Larger card than needed", _models_say(facts), (_models(facts, wish.number),)),
        Section("empty", "Jobs without a GPU process", "", (_without_process(facts, wish.number),)),
    )
    body = frame.Body(
        kind="waste",
        title="GPU waste report",
        lede=_lede(facts, proposals),
        figures=_figures(facts, proposals[: wish.number]),
        sections=sections,
        terms=("charged", "idle", "unused", "longest", "returned", "whole"),
        main="wastes",
        quiet=not proposals and facts.idle < HOUR,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts, proposals: Sequence[WasteFinding]) -> tuple[str, ...]:
    if nothing := frame.nothing_ran(facts):
        return tuple(nothing)
    if not facts.charged:
        return (f"Nothing was charged in this {facts.period.noun}.",)
    part = numbers.share(facts.idle, facts.charged).text
    text = [
        f"{numbers.brief_hours(facts.idle)} GPU-hours were charged and idle, {part} of all hours charged."
    ]
    if proposals:
        text.append("Each proposal is the header line that would have prevented the waste.")
    return tuple(text)


def _figures(facts: Facts, proposals: Sequence[WasteFinding]) -> tuple[Headline, ...]:
    held, empty = (numbers.brief_hours(facts.classes[at]) for at in (1, 2))
    returned = sum(proposal.returned for proposal in proposals)
    unused = facts.all_unused
    tebi = unused / numbers.GIB / HOUR / 1024
    warned = sum(jobs.warnings for jobs in facts.warned.values())
    people = len({jobs.user for jobs in facts.warned.values()})
    return (
        _hours("idle", "Idle", facts.idle, f"{held} held-idle, {empty} reserved-empty"),
        _hours("returned", "Would be returned", returned, f"by {numbers.counted(len(proposals), 'line')}"),
        Headline(
            "unused",
            "Memory not used",
            Number(unused / numbers.GIB / HOUR, "GiB-hours", f"{numbers.grouped(tebi, 1)} TiB-h"),
            "asked, and above the peak",
        ),
        Headline(
            "warnings", "Warnings", numbers.count(warned, "warnings"), f"to {numbers.counted(people, 'user')}"
        ),
    )


def _hours(key: str, label: str, seconds: float, note: str) -> Headline:
    text = f"{numbers.grouped(seconds / HOUR, 1 if seconds < 99.95 * HOUR else 0)} GPU-h"
    return Headline(key, label, Number(seconds / HOUR, "GPU-hours", text), note)


def _proposals(facts: Facts, proposals: Sequence[WasteFinding], most: int) -> Section:
    items = tuple(
        item(rank, proposal, _warned(facts, proposal.jobs.user, proposal.jobs.name))
        for rank, proposal in enumerate(proposals[:most], 1)
    )
    say = "GPU-hours that each line would have returned, and charged GPU-hours." if items else ""
    part = Wastes(items, empty=NONE)
    return Section("wastes", "Proposed lines", say, (part,))


def _warned(facts: Facts, user: str, name: str) -> str:
    """Return how often and when the idle policy warned, as of the end of the period."""
    jobs: WarnedJobs | None = facts.warned.get((user, name))
    if jobs is None:
        return ""
    times = {1: "once", 2: "twice"}.get(jobs.warnings, f"{jobs.warnings} times")
    return f"warned {times}, last {long_time(jobs.last)}"


# -- idle reservations ---------------------------------------------------------------------------------

_IDLE_SAY = (
    "Jobs with a fifth or more of their charged hours idle: hours in which no process had an SM share"
    " above 1 %."
)


def _idle(facts: Facts, groups: Sequence[Repeated], lines: dict[tuple[str, str], Line], most: int) -> Part:
    idle = [group for group in groups if _is_idle(group)]
    idle.sort(key=lambda group: (-(group.idle or 0.0), group.user, group.name))
    largest = max((group.idle or 0.0 for group in idle), default=0.0)
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("idle", "Idle h", right=True, unit="GPU-hours"),
        Column("bar", "Idle hours", minor=True, in_text=False),
        Column("part", "Of charged", right=True, unit="%"),
        Column("longest", "Longest", right=True, unit="seconds"),
        Column("line", "Proposed line"),
        Column("warned", "Warnings", in_text=False),
    )
    rows = tuple(_idle_row(facts, group, largest, lines) for group in idle[:most])
    return Table(
        "idle",
        columns,
        rows,
        empty="No jobs of one name were idle for 0.1 GPU-hours and a fifth of their charge.",
    )


def _is_idle(group: Repeated) -> bool:
    return group.idle is not None and group.idle >= max(_LEAST_IDLE, _IDLE * group.charged)


def _idle_row(
    facts: Facts, group: Repeated, largest: float, lines: dict[tuple[str, str], Line]
) -> tuple[Cell, ...]:
    idle = group.idle or 0.0
    stretches = [job.longest_idle for job in facts.examples(group) if job.longest_idle is not None]
    line: Cell = lines.get((group.user, group.name)) or dash()
    return (
        Given(group.user),
        Given(group.name),
        numbers.count(group.jobs),
        numbers.hours(idle),
        Bar((Piece("count", idle / largest),)),
        numbers.rate(idle, group.charged),
        numbers.duration(max(stretches, default=None)),
        line,
        Words(_warned(facts, group.user, group.name) or "not warned"),
    )


# -- memory and time -----------------------------------------------------------------------------------


def _memory(facts: Facts, groups: Sequence[Repeated], most: int) -> Part:
    proposals = []
    for group in groups:
        proposed = gibibytes_up(group.peak * ROOM_MEMORY)
        cost = (group.memory - group.peak) * group.elapsed * group.gpus
        if group.peak > 0 and proposed * numbers.GIB < WORTH * group.memory and cost >= _LEAST_MEMORY:
            proposals.append((cost, group, Line(("#FG", f"--gpu-mem={proposed}G"))))
    proposals.sort(key=lambda row: (-row[0], row[1].user, row[1].name))
    largest = max((group.memory for _, group, _ in proposals[:most]), default=1)
    scale, ticks = _scale(largest / numbers.GIB)
    rows = tuple(
        UseRow(
            user=Given(group.user),
            job=Given(group.name),
            jobs=Number(group.jobs, "jobs", numbers.counted(group.jobs, "job")),
            cost=numbers.memory_hours(cost),
            full=group.peak / numbers.GIB / scale,
            pale=None,
            outline=group.memory / numbers.GIB / scale,
            used=numbers.gibibytes(group.peak),
            asked=numbers.gibibytes(group.memory, 0),
            line=line,
        )
        for cost, group, line in proposals[:most]
    )
    return UseBars(
        "memory",
        rows,
        ticks,
        ("GiB-h", "Peak", "", "asked"),
        caption="Outline: asked. Bar: highest peak of all its jobs. The proposal is that peak and 15 %.",
        empty="No smaller request of GPU memory is proposed.",
    )


def _scale(largest: float) -> tuple[float, tuple[Mark, ...]]:
    """Return the end of an axis in GiB and its ticks, at round values."""
    step = next((one for one in (1, 2, 5, 10, 20, 50, 100) if largest <= 5 * one), 200)
    end = step * -(-largest // step)
    return end, tuple(Mark(at * step / end, str(at * step)) for at in range(int(end // step) + 1))


def _runs(facts: Facts, of: Repeated) -> tuple[float | None, float | None]:
    """Return the median and the 90 % of the run times of the latest jobs that completed, in seconds."""
    ordered = sorted(job.elapsed for job in facts.examples(of) if job.state == "COMPLETED")
    return quantile(ordered, 50), quantile(ordered, 90)


def _limits(facts: Facts, groups: Sequence[Repeated], most: int) -> Part:
    proposals = []
    for group in groups:
        hours = shorter_limit(group)
        if group.time_limit and hours:
            proposals.append((group.time_limit - group.completed, group, Line(("#FG", f"--time={hours}h"))))
    proposals.sort(key=lambda row: (-row[0] * row[1].jobs, row[1].user, row[1].name))
    rows = tuple(
        UseRow(
            user=Given(group.user),
            job=Given(group.name),
            jobs=Number(group.jobs, "jobs", numbers.counted(group.jobs, "job")),
            cost=numbers.unknown(""),
            full=min(1.0, (median or 0.0) / group.time_limit),
            pale=min(1.0, (ninety or 0.0) / group.time_limit),
            outline=1.0,
            used=numbers.duration(median),
            asked=numbers.duration(group.time_limit),
            line=line,
            most=numbers.duration(group.completed),
        )
        for _, group, line in proposals[:most]
        for median, ninety in (_runs(facts, group),)
    )
    ticks = tuple(Mark(at / 100, str(at)) for at in (0, 50, 100))
    return UseBars(
        "limits",
        rows,
        ticks,
        ("", "Median", "Longest", "limit"),
        caption="A shorter limit lets a job start in a gap before a reservation. Bar: median run of the"
        " latest completed jobs; outline: the limit. The proposal is the longest of their runs and 20 %.",
        empty="No shorter time limit is proposed.",
    )


# -- larger cards, and jobs without a process ----------------------------------------------------------


def _smaller(facts: Facts) -> tuple[str, int] | None:
    """Return the model with the least memory and its bytes, if there are several sizes."""
    sizes = sorted({(card.total, model_name(card.model)) for card in facts.cards})
    return (sizes[0][1], sizes[0][0]) if sizes and sizes[0][0] < sizes[-1][0] else None


def _models_say(facts: Facts) -> str:
    if not facts.cards:
        return "No GPU was seen."
    smaller = _smaller(facts)
    if smaller is None:
        return "All cards have the same memory."
    size = numbers.gibibytes(smaller[1], 0).text
    return f"Jobs on larger cards whose peak would fit the {smaller[0]} ({size})."


def _fitting(facts: Facts, size: int) -> list[Repeated]:
    """Return the jobs on larger cards whose peak would fit a card of `size` bytes, by charge."""
    totals = {card.model: card.total for card in facts.cards}
    fitting = [
        group
        for group in merged(group for group in facts.repeated if totals.get(group.model, 0) > size)
        if 0 < group.peak * ROOM_MEMORY <= size * group.share / WHOLE and group.charged >= HOUR
    ]
    return sorted(fitting, key=lambda group: (-group.charged, group.user, group.name))


def _models(facts: Facts, most: int) -> Part:
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("share", "Share", right=True),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("peak", "Peak", right=True, unit="bytes"),
        Column("line", "Proposed line"),
    )
    smaller = _smaller(facts)
    fitting = _fitting(facts, smaller[1]) if smaller else []
    models = {model_name(card.model) for card in facts.cards}
    word = type_word(smaller[0], models - {smaller[0]}) if smaller else ""
    rows = tuple(
        (
            Given(group.user),
            Given(group.name),
            numbers.count(group.jobs),
            Words(format_share(group.share * group.gpus)),
            numbers.hours(group.charged),
            numbers.gibibytes(group.peak),
            Line(("#FG", f"--gpu-type={word}")),
        )
        for group in fitting[:most]
    )
    return Table("models", columns, rows, empty="No job is proposed for a smaller card.")


def _without_process(facts: Facts, most: int) -> Part:
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("line", "Proposed line"),
    )
    rows = tuple(
        (
            Given(jobs.user),
            Given(jobs.name),
            numbers.count(jobs.jobs),
            numbers.hours(jobs.charged),
            Line(("#FG", "--gpus=0")),
        )
        for jobs in facts.without_process(most)
    )
    return Table(
        "empty", columns, rows, empty="No sampled job of 10 GPU-minutes or more was without a GPU process."
    )
