"""Write a report as plain tables: JSON with a versioned schema, CSV after RFC 4180, and Markdown."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

import msgspec

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import clean
from fgsched.reports.model import (
    Bar,
    Cell,
    Change,
    ClassBar,
    Column,
    Event,
    Figures,
    Given,
    GpuRows,
    HeatMap,
    Line,
    Number,
    Paragraphs,
    Part,
    Phrase,
    Quantiles,
    Report,
    Section,
    Table,
    UseBars,
    Wastes,
    Words,
)

# A spreadsheet may begin a formula with these, also after blanks and in their full width.
_FORMULA = re.compile("[\t\r\n]|\\s*[-=+@\uff0d\uff1d\uff0b\uff20]")
_UNITS = {"GPU-hours": "gpu_hours", "GiB-hours": "gib_hours", "%": "percent"}
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+\-!|~&:@])")
_ARROWS = {"up": "▲ ", "down": "▼ ", "same": ""}


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
    rows = (
        (Words(item.label), item.number, Words(item.note), item.change or Words("")) for item in part.items
    )
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
        (Words(kind.name), Words(kind.meaning), kind.hours, kind.share, kind.change or Words(""))
        for kind in part.classes
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
    cost, used, most, requested = part.heads
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("cost", cost, right=True),
        Column("used", used, right=True),
        Column("most", most or "Most", right=True),
        Column("asked", requested, right=True),
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
            Number(item.rank, "", str(item.rank)),
            item.user,
            item.job,
            item.jobs,
            Words(item.asked),
            Words(item.evidence),
            item.returned,
            item.charged,
            item.line,
            Words(item.warned),
        )
        for item in part.items
    )
    return _made(part, columns, rows)


def as_json(report: Report) -> str:
    """Return a report as one JSON object. `schema` is the version of its form."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"


def as_csv(report: Report, section: str = "") -> str:
    """Return one table of a report as CSV; without a section, the main one.

    Raises:
        BadUsage: the report has no such section, or none that is a table.
    """
    key = section or report.main
    table = find(report, key)
    if table is None:
        raise BadUsage(
            f"the report {report.kind} has no table '{key[:40]}' in this period",
            f"It has: {', '.join(names(report)) or 'none'}.",
        )
    return table_as_csv(table)


def names(report: Report) -> list[str]:
    """Return the names of the tables of a report, as --section takes them."""
    return [table.key for table in tables_of(report)]


def table_as_csv(table: Table) -> str:
    """Return a table as CSV: a header, raw numbers, ISO times. The total is left out."""
    shown = [at for at, _ in enumerate(table.columns) if not _is_drawing(table, at)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_head(table.columns[at]) for at in shown])
    for row in table.rows:
        writer.writerow([_raw(row[at]) for at in shown])
    return text.getvalue()


def _is_drawing(table: Table, at: int) -> bool:
    return table.columns[at].is_bar


def _head(column: Column) -> str:
    unit = _UNITS.get(column.unit, column.unit)
    return column.key if not unit or unit in (column.key, "jobs") else f"{column.key}_{unit}"


def _raw(cell: Cell) -> Any:
    """Return the value of a cell. Text that a spreadsheet would compute gets an apostrophe."""
    if isinstance(cell, Number | Change):
        return "" if cell.value is None else _rounded(cell.value)
    if isinstance(cell, Event):
        return cell.iso
    if isinstance(cell, Bar):
        return ""
    text = cell.text.replace("\0", "?")
    if isinstance(cell, Given | Phrase) and _FORMULA.match(text):
        return f"'{text}"
    return text


def _rounded(value: float) -> float | int:
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


def as_markdown(report: Report) -> str:
    """Return a report as Markdown. Texts of users are escaped."""
    lines = [f"# {own(report.title)}: {escaped(report.host)}, {report.period.name}", ""]
    lines += [report.period.label, "", own(" ".join(report.lede)), ""]
    lines += _table(as_table(report.figures))
    for section in report.sections:
        lines += _section(section)
    lines += ["", "## Definitions", ""] if report.definitions else []
    lines += [f"- **{own(definition.term)}**: {own(definition.text)}" for definition in report.definitions]
    lines += ["", *(own(note) for note in report.notes)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return a text on one line whose characters have no meaning in Markdown."""
    return _MARKUP.sub(r"\\\1", clean(text))


def own(text: str) -> str:
    """Return a text of the report with the few characters escaped that have a meaning within a line."""
    return re.sub(r"([\\`*_<|])", r"\\\1", clean(text))


def _section(section: Section) -> Iterator[str]:
    yield from ("", f"## {own(section.title)}", "")
    if section.say:
        yield from (own(section.say), "")
    for part in section.parts:
        if part.title and len(section.parts) > 1:
            yield from (f"### {own(part.title)}", "")
        yield from _part(part)
        yield ""


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Paragraphs):
        yield from (_text(text) for text in part.texts)
    elif isinstance(part, Wastes):
        yield from _wastes(part)
    elif isinstance(part, UseBars) and not part.rows:
        yield own(part.empty)
    else:
        yield from _table(as_table(part))


def _wastes(part: Wastes) -> Iterator[str]:
    if not part.items:
        yield own(part.empty)
    for item in part.items:
        head = f"{escaped(item.user.text)}, {escaped(item.job.text)}, {item.jobs.text}, {item.asked}"
        yield f"{item.rank}. {head}: {item.returned.text} of {item.charged.text}. {own(item.evidence)}"
        yield from (f"   {own(item.warned)}",) if item.warned else ()
        yield f"   `{item.line.text}`"


def _table(table: Table | None) -> Iterator[str]:
    if table is None:
        return
    if not table.rows:
        yield own(table.empty)
        return
    if table.caption_without_bars:
        yield from (own(table.caption_without_bars), "")
    shown = [at for at, column in enumerate(table.columns) if not column.is_bar and column.key != "uuid"]
    heads = [table.columns[at] for at in shown]
    yield "| " + " | ".join(own(column.head) for column in heads) + " |"
    yield "|" + "|".join("---:" if column.right else "---" for column in heads) + "|"
    for row in (*table.rows, *([table.total] if table.total else [])):
        yield "| " + " | ".join(_cell(row[at]) for at in shown) + " |"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Bar):
        return ""
    if isinstance(cell, Line):
        return f"`{cell.text}`"
    if isinstance(cell, Change):
        return _ARROWS[cell.direction] + cell.text
    return _text(cell)


def _text(cell: Number | Words | Given | Event | Phrase) -> str:
    if isinstance(cell, Phrase):
        return "".join(_text(part) for part in cell.parts)
    return escaped(cell.text) if isinstance(cell, Given) else own(cell.text)
