"""Turn every part of a report into a plain table, for formats without drawings."""

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

from fgsched.reports.model import (
    Cell,
    ClassBar,
    Figures,
    Given,
    GpuRows,
    HeatMap,
    Number,
    Part,
    Phrase,
    Quantiles,
    Report,
    ReportColumn,
    ReportWords,
    Table,
    UseBars,
    Wastes,
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


def _made(part: Part, columns: tuple[ReportColumn, ...], rows: Iterator[tuple[Cell, ...]]) -> Table:
    caption = part.caption if isinstance(part, UseBars) else ""
    return Table(key=part.key, columns=columns, rows=tuple(rows), title=part.title, caption=caption)


@as_table.register
def _(part: Table) -> Table:
    return part


@as_table.register
def _(part: Figures) -> Table:
    columns = (
        ReportColumn("figure", "Figure"),
        ReportColumn("value", "Value", right=True),
        ReportColumn("note", "Of"),
    )
    heads = (*columns, ReportColumn("change", "Change"))
    rows = (
        (ReportWords(one.label), one.number, ReportWords(one.note), one.change or ReportWords(""))
        for one in part.items
    )
    return _made(part, heads, rows)


@as_table.register
def _(part: ClassBar) -> Table:
    columns = (
        ReportColumn("class", "Class"),
        ReportColumn("meaning", "Meaning"),
        ReportColumn("hours", "GPU-hours", right=True, unit="GPU-hours"),
        ReportColumn("share", "Share", right=True, unit="%"),
        ReportColumn("change", "Change", unit="points"),
    )
    rows: list[tuple[Cell, ...]] = [
        (ReportWords(one.name), ReportWords(one.meaning), one.hours, one.share, one.change or ReportWords(""))
        for one in part.classes
    ]
    total: tuple[Cell, ...] = (ReportWords("total"), ReportWords(""), part.hours, part.share, ReportWords(""))
    return Table(key=part.key, columns=columns, rows=tuple(rows), total=total)


@as_table.register
def _(part: GpuRows) -> Table:
    columns = (
        ReportColumn("gpu", "Card", right=True),
        ReportColumn("uuid", "UUID", minor=True),
        ReportColumn("model", "Model"),
        ReportColumn("charged", "Charged", right=True, unit="%"),
        ReportColumn("active", "Active", right=True, unit="%"),
        ReportColumn("peak", "Peak memory", right=True, unit="bytes"),
        ReportColumn("notes", "Notes"),
    )
    rows = (
        (
            Number(row.gpu, "", str(row.gpu)),
            ReportWords(row.uuid),
            ReportWords(row.model),
            row.charged,
            row.active,
            row.peak,
            _joined(row.notes),
        )
        for row in part.rows
    )
    return _made(part, columns, rows)


def _joined(notes: Sequence[Phrase]) -> Phrase:
    parts: list[ReportWords | Given] = []
    for note in notes:
        parts += [ReportWords("; ")] if parts else []
        parts += note.parts
    return Phrase(tuple(parts))


@as_table.register
def _(part: HeatMap) -> Table:
    hours = tuple(ReportColumn(f"{hour:02d}", f"{hour:02d}", right=True, unit="%") for hour in range(24))
    columns = (ReportColumn("day", "Day"), *hours, ReportColumn("mean", "mean", right=True, unit="%"))
    rows: list[tuple[Cell, ...]] = [
        (ReportWords(row.label), *row.cells, row.mean) for row in (*part.rows, part.means)
    ]
    return Table(part.key, columns, tuple(rows[:-1]), total=rows[-1], title=part.title, caption=part.caption)


@as_table.register
def _(part: Quantiles) -> Table:
    columns = (
        ReportColumn("size", part.head),
        ReportColumn("jobs", "Jobs", right=True, unit="jobs"),
        ReportColumn("median", "Median", right=True, unit="seconds"),
        ReportColumn("ninety", "90 %", right=True, unit="seconds"),
        ReportColumn("longest", "Longest", right=True, unit="seconds"),
    )
    rows = (
        (
            Given(row.name) if row.is_given else ReportWords(row.name),
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
        ReportColumn("user", "User"),
        ReportColumn("job", "Job"),
        ReportColumn("jobs", "Jobs", right=True, unit="jobs"),
        ReportColumn("cost", cost, right=True),
        ReportColumn("used", used, right=True),
        ReportColumn("most", most or "Most", right=True),
        ReportColumn("asked", asked, right=True),
        ReportColumn("line", "Proposed line"),
    )
    rows = (
        (row.user, row.job, row.jobs, row.cost, row.used, row.most or ReportWords(""), row.asked, row.line)
        for row in part.rows
    )
    return _made(part, columns, rows)


@as_table.register
def _(part: Wastes) -> Table:
    columns = (
        ReportColumn("rank", "Rank", right=True),
        ReportColumn("user", "User"),
        ReportColumn("job", "Job"),
        ReportColumn("jobs", "Jobs", right=True, unit="jobs"),
        ReportColumn("asked", "Asked"),
        ReportColumn("evidence", "Evidence"),
        ReportColumn("returned", "Would be returned", right=True, unit="GPU-hours"),
        ReportColumn("charged", "Charged", right=True, unit="GPU-hours"),
        ReportColumn("line", "Proposed line"),
        ReportColumn("warned", "Warned"),
    )
    rows = (
        (
            Number(one.rank, "", str(one.rank)),
            one.user,
            one.job,
            one.jobs,
            ReportWords(one.asked),
            ReportWords(one.evidence),
            one.returned,
            one.charged,
            one.line,
            ReportWords(one.warned),
        )
        for one in part.items
    )
    return _made(part, columns, rows)
