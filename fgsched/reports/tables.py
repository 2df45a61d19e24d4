"""Turn every part of a report into a plain table, for formats without drawings."""

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

from fgsched.reports.model import (
    Cell,
    ClassBar,
    Column,
    Figures,
    Given,
    GpuRows,
    HeatMap,
    Number,
    Part,
    Phrase,
    Quantiles,
    Report,
    Table,
    UseBars,
    Wastes,
    Words,
)


def tables_of(report: Report) -> Iterator[Table]:
    """Yield every part of a report that is a table or can be one, with its own key."""
    for part in (report.figures, *(part for section in report.sections for part in section.parts)):
        table = as_table(part)
        if table is not None:
            yield table


def find(report: Report, key: str) -> Table | None:
    """Return the table of a part, or the first one of a section; None if there is none of this name."""
    for part in (report.figures, *(part for section in report.sections for part in section.parts)):
        if part.key == key:
            return as_table(part)
    parts = [part for section in report.sections if section.key == key for part in section.parts]
    return next((table for part in parts if (table := as_table(part)) is not None), None)


@singledispatch
def as_table(part: Any) -> Table | None:
    """Return a part as a table; None if it is only text."""
    return None


def _made(part: Part, columns: tuple[Column, ...], rows: Iterator[tuple[Cell, ...]]) -> Table:
    caption = part.caption if isinstance(part, UseBars) else ""
    return Table(key=part.key, columns=columns, rows=tuple(rows), title=part.title, caption=caption)


@as_table.register
def _(part: Table) -> Table:
    return part


@as_table.register
def _(part: Figures) -> Table:
    columns = (
        Column("figure", "Figure"),
        Column("value", "Value", right=True),
        Column("note", "Of"),
    )
    heads = (*columns, Column("change", "Change"))
    rows = ((Words(one.label), one.number, Words(one.note), one.change or Words("")) for one in part.items)
    return _made(part, heads, rows)


@as_table.register
def _(part: ClassBar) -> Table:
    columns = (
        Column("class", "Class"),
        Column("meaning", "Meaning"),
        Column("hours", "GPU-hours", right=True, unit="GPU-hours"),
        Column("share", "Share", right=True, unit="%"),
        Column("change", "Change", unit="points"),
    )
    rows: list[tuple[Cell, ...]] = [
        (Words(one.name), Words(one.meaning), one.hours, one.share, one.change or Words(""))
        for one in part.classes
    ]
    total: tuple[Cell, ...] = (Words("total"), Words(""), part.hours, part.share, Words(""))
    return Table(key=part.key, columns=columns, rows=tuple(rows), total=total)


@as_table.register
def _(part: GpuRows) -> Table:
    columns = (
        Column("gpu", "Card", right=True),
        Column("uuid", "UUID", minor=True),
        Column("model", "Model"),
        Column("charged", "Charged", right=True, unit="%"),
        Column("active", "Active", right=True, unit="%"),
        Column("peak", "Peak memory", right=True, unit="bytes"),
        Column("notes", "Notes"),
    )
    rows = (
        (
            Number(row.gpu, "", str(row.gpu)),
            Words(row.uuid),
            Words(row.model),
            row.charged,
            row.active,
            row.peak,
            _joined(row.notes),
        )
        for row in part.rows
    )
    return _made(part, columns, rows)


def _joined(notes: Sequence[Phrase]) -> Phrase:
    parts: list[Words | Given] = []
    for note in notes:
        parts += [Words("; ")] if parts else []
        parts += note.parts
    return Phrase(tuple(parts))


@as_table.register
def _(part: HeatMap) -> Table:
    hours = tuple(Column(f"{hour:02d}", f"{hour:02d}", right=True, unit="%") for hour in range(24))
    columns = (Column("day", "Day"), *hours, Column("mean", "mean", right=True, unit="%"))
    rows: list[tuple[Cell, ...]] = [
        (Words(row.label), *row.cells, row.mean) for row in (*part.rows, part.means)
    ]
    return Table(part.key, columns, tuple(rows[:-1]), total=rows[-1], title=part.title, caption=part.caption)


@as_table.register
def _(part: Quantiles) -> Table:
    columns = (
        Column("size", part.head),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("median", "Median", right=True, unit="seconds"),
        Column("ninety", "90 %", right=True, unit="seconds"),
        Column("longest", "Longest", right=True, unit="seconds"),
    )
    rows = (
        (
            Given(row.name) if row.is_given else Words(row.name),
            row.jobs,
            row.median,
            row.ninety,
            row.longest,
        )
        for row in part.rows
    )
    return _made(part, columns, rows)


@as_table.register
def _(part: UseBars) -> Table:
    cost, used, most, asked = part.heads
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("cost", cost, right=True),
        Column("used", used, right=True),
        Column("most", most or "Most", right=True),
        Column("asked", asked, right=True),
        Column("line", "Proposed line"),
    )
    rows = (
        (row.user, row.job, row.jobs, row.cost, row.used, row.most or Words(""), row.asked, row.line)
        for row in part.rows
    )
    return _made(part, columns, rows)


@as_table.register
def _(part: Wastes) -> Table:
    columns = (
        Column("rank", "Rank", right=True),
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("asked", "Asked"),
        Column("evidence", "Evidence"),
        Column("returned", "Would be returned", right=True, unit="GPU-hours"),
        Column("charged", "Charged", right=True, unit="GPU-hours"),
        Column("line", "Proposed line"),
        Column("warned", "Warned"),
    )
    rows = (
        (
            Number(one.rank, "", str(one.rank)),
            one.user,
            one.job,
            one.jobs,
            Words(one.asked),
            Words(one.evidence),
            one.returned,
            one.charged,
            one.line,
            Words(one.warned),
        )
        for one in part.items
    )
    return _made(part, columns, rows)
