"""Write a report as Markdown, for a chat or a wiki."""

import re
from collections.abc import Iterator

from fgsched.domain.text import clean
from fgsched.reports.model import (
    Bar,
    Cell,
    Change,
    Event,
    Given,
    Line,
    Number,
    Paragraphs,
    Part,
    Phrase,
    Report,
    Section,
    Table,
    UseBars,
    Wastes,
    Words,
)
from fgsched.reports.tables import as_table

_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+\-!|~&:@])")
_ARROWS = {"up": "▲ ", "down": "▼ ", "same": ""}


def as_markdown(report: Report) -> str:
    """Return a report as Markdown. Texts of users are escaped."""
    lines = [f"# {own(report.title)}: {escaped(report.host)}, {report.period.name}", ""]
    lines += [report.period.label, "", own(" ".join(report.lede)), ""]
    lines += _table(as_table(report.figures))
    for section in report.sections:
        lines += _section(section)
    lines += ["", "## Definitions", ""] if report.definitions else []
    lines += [f"- **{own(one.term)}**: {own(one.text)}" for one in report.definitions]
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
