"""Write a report as text: 78 columns, for a terminal and for mail."""

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

from fgsched.domain.text import clean, width_of
from fgsched.reports.model import (
    CLASSES,
    DASH,
    Bar,
    Cell,
    Change,
    ClassBar,
    Column,
    Figures,
    GpuRows,
    Headline,
    HeatMap,
    HeatRow,
    Line,
    Paragraphs,
    Phrase,
    Quantiles,
    Report,
    Section,
    Step,
    Table,
    UseBars,
    Wastes,
    Words,
)
from fgsched.views.display import WIDTH, ascii_only, cells, cut, eighths, pad, paragraph

FILLS = dict(zip((*CLASSES, "used", "unused", "count"), "█▒░·▚╳█▓█", strict=True))
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_HEIGHTS_ASCII = " .:-=+*#%@"
_ARROWS = {"up": "▲ ", "down": "▼ ", "same": "= "}
_ROW = 56  # columns of a GPU
_BAR = 17  # columns of a bar in a table, at most
_LEAST = 6  # columns that a cell is cut to, at least


def as_text(report: Report, *, ascii: bool = False) -> str:
    """Return a report as text; `ascii` replaces drawings and other characters outside of ASCII."""
    lines = [*_head(report), *_figures(report.figures)]
    for section in report.sections:
        lines += _section(section, ascii)
    lines += ["", *_heading("Definitions")] if report.definitions else []
    for definition in report.definitions:
        lines += paragraph(f"{definition.term}: {definition.text}", "  ", "")
    lines += ["", *[line for note in report.notes for line in paragraph(clean(note))]]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return ascii_only(text) if ascii else text


def _head(report: Report) -> list[str]:
    name = report.period.name
    title = cut(f"{report.title}  {clean(report.host)}", WIDTH - len(name) - 2)
    lede = paragraph(clean(" ".join(report.lede)))
    return [pad(title, WIDTH - len(name)) + name, report.period.label, "═" * WIDTH, *lede, ""]


def _heading(title: str) -> list[str]:
    return [title.upper(), "─" * WIDTH]


_FIGURE = 27  # columns of a label and a number, without the blank between them


def _figures(part: Figures) -> list[str]:
    room = 17 if any(item.change for item in part.items) else 0
    return [cut(f"{_number(item)}   {_change(item.change):<{room}}{item.note}", WIDTH) for item in part.items]


def _number(item: Headline) -> str:
    """Return the label and the number, which end at one column in all lines."""
    return f"{item.label} {item.number.text:>{_FIGURE - len(item.label)}}"


def _change(change: Change | None) -> str:
    if change is None:
        return ""
    return "=" if change.direction == "same" else _ARROWS[change.direction] + change.text


def _section(section: Section, ascii: bool) -> Iterator[str]:
    yield ""
    yield from _heading(section.title)
    if section.say:
        yield from paragraph(clean(section.say))
    for number, part in enumerate(section.parts):
        if number or section.say:
            yield ""
        if part.title and len(section.parts) > 1:
            yield from paragraph(part.title)
        yield from part_lines(part, ascii)


@singledispatch
def part_lines(part: Any, ascii: bool) -> Iterator[str]:
    """Yield the lines of a part of a section."""
    raise TypeError(f"no text for {type(part).__name__}")


# -- drawings ------------------------------------------------------------------------------------------


@part_lines.register
def _(part: Figures, ascii: bool) -> Iterator[str]:
    yield from _figures(part)


@part_lines.register
def _(part: ClassBar, ascii: bool) -> Iterator[str]:
    shares = [(kind.share.value or 0.0) / 100 for kind in part.classes]
    if part.share.value:
        yield "".join(
            FILLS[gpu_class.name] * room
            for gpu_class, room in zip(part.classes, cells(shares, WIDTH), strict=True)
        )
        yield f"0{'25':>20}{'50':>19}{'75':>19}{'100 %':>19}"
        yield ""
    for class_share in part.classes:
        change = f"   {_change(class_share.change)}" if class_share.change else ""
        fill, hours, share = FILLS[class_share.name] * 2, class_share.hours.text, class_share.share.text
        yield f"{fill}  {class_share.name:<16}{hours:>11} h{share:>11}{change}"
    lost = f"   {part.lost.text} h without samples" if (part.lost.value or 0) >= 0.05 else ""
    yield f"    {'total':<16}{part.hours.text:>11} h{part.share.text:>11}{lost}"


@part_lines.register
def _(part: GpuRows, ascii: bool) -> Iterator[str]:
    count = max((len(row.steps) for row in part.rows), default=0)
    steps_per_cell = max(1, -(-count // _ROW))
    axis = [" "] * (_ROW + 8)
    for mark in part.days:
        at = min(_ROW, int(mark.at * count / steps_per_cell))
        axis[at : at + len(mark.label)] = mark.label
    yield f"{'':<15}{'charged':>5}  {''.join(axis).rstrip()}"[: WIDTH + 2].rstrip()
    for row in part.rows:
        drawn = "".join(
            _column(row.steps[at : at + steps_per_cell], ascii) for at in range(0, count, steps_per_cell)
        )
        yield f"{row.gpu:<3}{cut(_short_model(row.model), 9):<10}{row.charged.text:>6}  {drawn}".rstrip()
    for row in part.rows:
        for note in row.notes:
            yield from paragraph(f"GPU {row.gpu}  {clean(note.text)}", "       ", "")
    hours = part.step * steps_per_cell / 3600
    unit = f"{hours:.0f} hours" if hours != 1 else "1 hour"
    unit = unit if hours >= 1 else f"{hours * 60:.0f} minutes"
    yield f"{'':<21}{unit} a column.  ╳ down  ? no samples"


def _short_model(model: str) -> str:
    return model.removeprefix("RTX ")


def _column(steps: Sequence[Step | None], ascii: bool) -> str:
    measured = [step for step in steps if step is not None]
    if 2 * len(measured) < len(steps) or not measured:
        return "?"
    if sum(step.down for step in measured) > len(measured) / 2:
        return "╳"
    heights = _HEIGHTS_ASCII if ascii else _HEIGHTS
    charged = sum(step.charged for step in measured) / len(measured)
    level = round(min(1.0, charged) * (len(heights) - 1))
    return heights[level if level or charged < 0.005 else 1]


@part_lines.register
def _(part: HeatMap, ascii: bool) -> Iterator[str]:
    yield from paragraph(f"{part.caption} The last column and the last row are means.")
    yield ""
    yield "   " + "".join(f"{hour:>3}" for hour in range(24))
    for row in part.rows:
        yield _heat_line(row.label, row)
    yield _heat_line("all", part.means)


def _heat_line(label: str, row: HeatRow) -> str:
    mean = row.mean.text.removesuffix(" %")
    return f"{label[:3]:<3}" + "".join(f"{cell.text:>3}" for cell in row.cells) + f"{mean:>3}"


@part_lines.register
def _(part: Quantiles, ascii: bool) -> Iterator[str]:
    yield f"{'':<24}{'jobs':>8}{'median':>14}{'90 %':>14}{'longest':>14}"
    for row in part.rows:
        name = pad(cut(clean(row.name), 23), 24)
        yield (f"{name}{row.jobs.text:>8}{row.median.text:>14}{row.ninety.text:>14}{row.longest.text:>14}")


@part_lines.register
def _(part: Paragraphs, ascii: bool) -> Iterator[str]:
    for text in part.texts:
        yield from paragraph(clean(text.text))


# -- tables --------------------------------------------------------------------------------------------


@part_lines.register
def _(part: Table, ascii: bool) -> Iterator[str]:
    if part.caption:
        yield from paragraph(part.caption)
    if not part.rows:
        yield from paragraph(part.empty)
        return
    rows = [*part.rows, *([part.total] if part.total else [])]
    chosen, below = _chosen(part.columns, rows)
    widths = [_natural(part.columns[at], [row[at] for row in rows]) for at in chosen]
    bars = [any(isinstance(row[at], Bar) for row in rows) for at in chosen]
    _shrink(widths, bars, _LEAST + 2)
    _shrink(widths, [_is_elastic(rows, at) for at in chosen], _LEAST)
    yield _joined([(_heading_of(part.columns[at]), part.columns[at].right) for at in chosen], widths)
    for row in rows:
        texts = [_cell_text(row[at], room) for at, room in zip(chosen, widths, strict=True)]
        last, *more = _wrapped(row[chosen[-1]], texts[-1], widths[-1])
        yield _joined(
            [(text, part.columns[at].right) for at, text in zip(chosen, [*texts[:-1], last], strict=True)],
            widths,
        )
        for line in more:
            yield " " * (sum(widths[:-1]) + 2 * len(widths[:-1])) + line
        for at in below:
            yield from pasted(row[at])


def _wrapped(cell: Cell, text: str, room: int) -> list[str]:
    """Wrap the text of a last column; names of users are cut instead."""
    if width_of(text) <= room or not isinstance(cell, Words | Phrase):
        return [text]
    return paragraph(text, room=room)


def _heading_of(column: Column) -> str:
    if column.is_bar:
        return ""
    return column.short or column.head


def _joined(texts: Sequence[tuple[str, bool]], widths: Sequence[int]) -> str:
    shown = [
        pad(cut(text, room), room, right=right) for (text, right), room in zip(texts, widths, strict=True)
    ]
    return "  ".join(shown).rstrip()


def _chosen(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> tuple[list[int], list[int]]:
    """Return the indices of the columns of the table, and of the columns that are printed below each row."""
    shown = [at for at, column in enumerate(columns) if column.in_text]
    below = [at for at in shown if any(isinstance(row[at], Line) for row in rows)]
    if sum(_least(columns[at], rows, at) + 2 for at in shown) - 2 <= WIDTH:
        return shown, []
    shown = [at for at in shown if at not in below]
    for at in reversed(list(shown)):
        if sum(_least(columns[number], rows, number) + 2 for number in shown) - 2 <= WIDTH:
            break
        if columns[at].minor:
            shown.remove(at)
    return shown, below


def _is_elastic(rows: Sequence[Sequence[Cell]], at: int) -> bool:
    return not any(isinstance(row[at], (Line, Change)) or _is_number(row[at]) for row in rows)


def _is_number(cell: Cell) -> bool:
    return not isinstance(cell, Bar) and type(cell).__name__ in ("Number", "Event")


def _natural(column: Column, column_cells: Sequence[Cell]) -> int:
    return max(len(_heading_of(column)), *(_room(cell) for cell in column_cells))


def _least(column: Column, rows: Sequence[Sequence[Cell]], at: int) -> int:
    natural = _natural(column, [row[at] for row in rows])
    return min(natural, _LEAST) if _is_elastic(rows, at) else natural


def _room(cell: Cell) -> int:
    return _BAR if isinstance(cell, Bar) else width_of(_cell_text(cell, 0))


def _shrink(widths: list[int], elastic: Sequence[bool], least: int) -> None:
    """Shorten the widest elastic columns to `least` until all fit."""
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        able = [at for at, is_elastic in enumerate(elastic) if is_elastic and widths[at] > least]
        if not able:
            return
        widths[max(able, key=lambda at: widths[at])] -= 1


def _cell_text(cell: Cell, room: int) -> str:
    """Return the text of a cell; a bar is drawn in `room` columns."""
    if isinstance(cell, Bar):
        return bar(cell, room)
    if isinstance(cell, Change):
        return _change(cell)
    return clean(cell.text)


def bar(cell: Bar, room: int) -> str:
    """Draw a bar: one piece in eighths, several in their fills."""
    if len(cell.pieces) == 1:
        return eighths(cell.pieces[0].part, room)
    counts = cells([piece.part for piece in cell.pieces], room)
    drawn = "".join(FILLS[piece.kind] * count for piece, count in zip(cell.pieces, counts, strict=True))
    return drawn or ("▏" if any(piece.part > 0 for piece in cell.pieces) else "")


def pasted(cell: Cell) -> Iterator[str]:
    """Yield a header line alone on its line; one that is too long becomes several."""
    if not isinstance(cell, Line):
        return
    indent, line = " " * 6, ""
    for token in cell.tokens:
        if line and len(indent + line) + 1 + len(token) > WIDTH:
            yield indent + line
            line = cell.tokens[0] if cell.tokens[0].startswith("#") else ""
        line = f"{line} {token}".strip()
    yield indent + line


@part_lines.register
def _(part: UseBars, ascii: bool) -> Iterator[str]:
    if part.caption:
        yield from paragraph(part.caption)
    if not part.rows:
        yield from paragraph(part.empty)
        return
    for row in part.rows:
        cost = f"{row.cost.text} {part.heads[0]}" if row.cost.text != DASH else ""
        name = f"{clean(row.user.text)} {clean(row.job.text)}, {row.jobs.text}"
        yield pad(cut(name, WIDTH - len(cost) - 2), WIDTH - len(cost)) + cost
        scale = 16 if row.most else 24
        outline = round(scale * row.outline)
        drawn = pad(eighths(row.full / row.outline, outline), outline).replace(" ", "·")
        most = f", {part.heads[2].lower()} {row.most.text}" if row.most else ""
        used = f"{part.heads[1].lower()} {row.used.text}{most}, {part.heads[3].lower()} {row.asked.text}"
        yield cut(f"   {pad(drawn, scale)}  {used}", WIDTH)
        yield from pasted(row.line)


@part_lines.register
def _(part: Wastes, ascii: bool) -> Iterator[str]:
    if not part.items:
        yield from paragraph(part.empty)
    room = max((len(item.charged.text) for item in part.items), default=0)
    for item in part.items:
        cost = f"{item.returned.text} of {item.charged.text:>{room}}"
        tail = f", {item.jobs.text}, {item.asked}"
        name = cut(f"{clean(item.user.text)} {clean(item.job.text)}", WIDTH - 5 - len(cost) - len(tail))
        label = f"{item.rank:<2} {name}{tail}"
        yield pad(label, WIDTH - len(cost)) + cost
        yield from paragraph(item.evidence + (f" ({item.warned})" if item.warned else ""), "   ")
        yield from pasted(item.line)
