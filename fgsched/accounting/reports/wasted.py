"""The report on waste: idle reservations, memory, time limits, large cards, jobs without a process."""

from collections.abc import Sequence

from fgsched.accounting.ledger import HOUR
from fgsched.accounting.proposal import ROOM_MEMORY, ROOM_TIME, WHOLE, WORTH, gibibytes_up, hours_up
from fgsched.accounting.reports import frame, numbers
from fgsched.accounting.reports.ended import Repeated
from fgsched.accounting.reports.facts import Facts, WarnedJobs
from fgsched.accounting.reports.model import (
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
from fgsched.accounting.reports.registry import Wish
from fgsched.accounting.reports.waste import NONE, Finding, findings, item, merged
from fgsched.accounting.reports.wording import dash, long_time, model_name, quantile, type_word
from fgsched.domain.units import format_share

_IDLE = 0.2  # of the charged hours: the least idle part of a row
_LEAST_IDLE = 360.0  # GPU seconds
_LEAST_MEMORY = 10 * numbers.GIB * HOUR  # byte-seconds: the least unused memory of a row


def waste(facts: Facts, wish: Wish) -> Report:
    """Return the report on waste, with the header lines that would have prevented it."""
    found, groups = findings(facts, max(wish.number, 20)), merged(facts.repeated)
    lines = {(one.jobs.user, one.jobs.name): one.line for one in found}
    sections = (
        _proposals(facts, found, wish.number),
        Section("idle", "Idle reservations", _IDLE_SAY, (_idle(facts, groups, lines, wish.number),)),
        Section("memory", "Memory asked and not used", "", (_memory(facts, groups, wish.number),)),
        Section("limits", "Time limits", "", (_limits(facts, groups, wish.number),)),
        Section("models", "Larger card than needed", _models_say(facts), (_models(facts, wish.number),)),
        Section("empty", "Jobs without a GPU process", "", (_without_process(facts, wish.number),)),
    )
    body = frame.Body(
        kind="waste",
        title="GPU waste report",
        lede=_lede(facts, found),
        figures=_figures(facts, found[: wish.number]),
        sections=sections,
        terms=("charged", "idle", "unused", "longest", "returned", "whole"),
        main="wastes",
        quiet=not found and facts.idle < HOUR,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts, found: Sequence[Finding]) -> tuple[str, ...]:
    if nothing := frame.nothing_ran(facts):
        return tuple(nothing)
    if not facts.charged:
        return (f"Nothing was charged in this {facts.period.noun}.",)
    part = numbers.share(facts.idle, facts.charged).text
    text = [
        f"{numbers.brief_hours(facts.idle)} GPU-hours were charged and idle, {part} of all hours charged."
    ]
    if found:
        text.append("Each proposal is the header line that would have prevented the waste.")
    return tuple(text)


def _figures(facts: Facts, found: Sequence[Finding]) -> tuple[Headline, ...]:
    held, empty = (numbers.brief_hours(facts.classes[at]) for at in (1, 2))
    returned = sum(one.returned for one in found)
    unused = facts.all_unused
    tebi = unused / numbers.GIB / HOUR / 1024
    warned = sum(one.warnings for one in facts.warned.values())
    people = len({one.user for one in facts.warned.values()})
    return (
        _hours("idle", "Idle", facts.idle, f"{held} held-idle, {empty} reserved-empty"),
        _hours("returned", "Would be returned", returned, f"by {numbers.counted(len(found), 'line')}"),
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


def _proposals(facts: Facts, found: Sequence[Finding], most: int) -> Section:
    items = tuple(
        item(rank, one, _warned(facts, one.jobs.user, one.jobs.name))
        for rank, one in enumerate(found[:most], 1)
    )
    say = "GPU-hours that each line would have returned, and charged GPU-hours." if items else ""
    part = Wastes(items, empty=NONE)
    return Section("wastes", "Proposed lines", say, (part,))


def _warned(facts: Facts, user: str, name: str) -> str:
    """Return how often and when the idle policy warned, as of the end of the period."""
    found: WarnedJobs | None = facts.warned.get((user, name))
    if found is None:
        return ""
    times = {1: "once", 2: "twice"}.get(found.warnings, f"{found.warnings} times")
    return f"warned {times}, last {long_time(found.last)}"


# -- idle reservations ---------------------------------------------------------------------------------

_IDLE_SAY = (
    "Jobs with a fifth or more of their charged hours idle: hours in which no process had an SM share"
    " above 1 %."
)


def _idle(facts: Facts, groups: Sequence[Repeated], lines: dict[tuple[str, str], Line], most: int) -> Part:
    idle = [
        one for one in groups if one.idle is not None and one.idle >= max(_LEAST_IDLE, _IDLE * one.charged)
    ]
    idle.sort(key=lambda one: (-(one.idle or 0.0), one.user, one.name))
    largest = max((one.idle or 0.0 for one in idle), default=0.0)
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
    rows = tuple(_idle_row(facts, one, largest, lines) for one in idle[:most])
    return Table(
        "idle",
        columns,
        rows,
        empty="No jobs of one name were idle for 0.1 GPU-hours and a fifth of their charge.",
    )


def _idle_row(
    facts: Facts, one: Repeated, largest: float, lines: dict[tuple[str, str], Line]
) -> tuple[Cell, ...]:
    idle = one.idle or 0.0
    stretches = [found.longest_idle for found in facts.examples(one) if found.longest_idle is not None]
    line: Cell = lines.get((one.user, one.name)) or dash()
    return (
        Given(one.user),
        Given(one.name),
        numbers.count(one.jobs),
        numbers.hours(idle),
        Bar((Piece("count", idle / largest),)),
        numbers.rate(idle, one.charged),
        numbers.duration(max(stretches, default=None)),
        line,
        Words(_warned(facts, one.user, one.name) or "not warned"),
    )


# -- memory and time -----------------------------------------------------------------------------------


def _memory(facts: Facts, groups: Sequence[Repeated], most: int) -> Part:
    found = []
    for one in groups:
        proposed = gibibytes_up(one.peak * ROOM_MEMORY)
        cost = (one.memory - one.peak) * one.elapsed * one.gpus
        if one.peak > 0 and proposed * numbers.GIB < WORTH * one.memory and cost >= _LEAST_MEMORY:
            found.append((cost, one, Line(("#FG", f"--gpu-mem={proposed}G"))))
    found.sort(key=lambda row: (-row[0], row[1].user, row[1].name))
    largest = max((one.memory for _, one, _ in found[:most]), default=1)
    scale, ticks = _scale(largest / numbers.GIB)
    rows = tuple(
        UseRow(
            user=Given(one.user),
            job=Given(one.name),
            jobs=Number(one.jobs, "jobs", numbers.counted(one.jobs, "job")),
            cost=numbers.memory_hours(cost),
            full=one.peak / numbers.GIB / scale,
            pale=None,
            outline=one.memory / numbers.GIB / scale,
            used=numbers.gibibytes(one.peak),
            asked=numbers.gibibytes(one.memory, 0),
            line=line,
        )
        for cost, one, line in found[:most]
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
    ordered = sorted(one.elapsed for one in facts.examples(of) if one.state == "COMPLETED")
    return quantile(ordered, 50), quantile(ordered, 90)


def _limits(facts: Facts, groups: Sequence[Repeated], most: int) -> Part:
    found = []
    for one in groups:
        proposed = hours_up(one.completed * ROOM_TIME)
        if one.completed and one.time_limit and proposed * HOUR < WORTH * one.time_limit:
            found.append((one.time_limit - one.completed, one, Line(("#FG", f"--time={proposed}h"))))
    found.sort(key=lambda row: (-row[0] * row[1].jobs, row[1].user, row[1].name))
    rows = tuple(
        UseRow(
            user=Given(one.user),
            job=Given(one.name),
            jobs=Number(one.jobs, "jobs", numbers.counted(one.jobs, "job")),
            cost=numbers.unknown(""),
            full=min(1.0, (median or 0.0) / one.time_limit),
            pale=min(1.0, (ninety or 0.0) / one.time_limit),
            outline=1.0,
            used=numbers.duration(median),
            asked=numbers.duration(one.time_limit),
            line=line,
            most=numbers.duration(one.completed),
        )
        for _, one, line in found[:most]
        for median, ninety in (_runs(facts, one),)
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
    smaller = _smaller(facts)
    if not facts.cards:
        return "No GPU was seen."
    if smaller is None:
        return "All cards have the same memory."
    size = numbers.gibibytes(smaller[1], 0).text
    return f"Jobs on larger cards whose peak would fit the {smaller[0]} ({size})."


def _fitting(facts: Facts, size: int) -> list[Repeated]:
    """Return the jobs on larger cards whose peak would fit a card of `size` bytes, by charge."""
    totals = {card.model: card.total for card in facts.cards}
    found = [
        one
        for one in merged(one for one in facts.repeated if totals.get(one.model, 0) > size)
        if 0 < one.peak * ROOM_MEMORY <= size * one.share / WHOLE and one.charged >= HOUR
    ]
    return sorted(found, key=lambda one: (-one.charged, one.user, one.name))


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
    found = _fitting(facts, smaller[1]) if smaller else []
    models = {model_name(card.model) for card in facts.cards}
    word = type_word(smaller[0], models - {smaller[0]}) if smaller else ""
    rows = tuple(
        (
            Given(one.user),
            Given(one.name),
            numbers.count(one.jobs),
            Words(format_share(one.share * one.gpus)),
            numbers.hours(one.charged),
            numbers.gibibytes(one.peak),
            Line(("#FG", f"--gpu-type={word}")),
        )
        for one in found[:most]
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
            Given(one.user),
            Given(one.name),
            numbers.count(one.jobs),
            numbers.hours(one.charged),
            Line(("#FG", "--gpus=0")),
        )
        for one in facts.without_process(most)
    )
    return Table(
        "empty", columns, rows, empty="No sampled job of 10 GPU-minutes or more was without a GPU process."
    )
