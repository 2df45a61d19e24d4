"""Write a report as one HTML page that needs no other file, no script and no network."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import structs

from fgsched.reports import drawing
from fgsched.reports.drawing import DARK, LIGHT, variables
from fgsched.reports.model import (
    CLASSES,
    DASH,
    Bar,
    Cell,
    Change,
    ClassBar,
    Event,
    Given,
    GpuRow,
    GpuRows,
    HeatMap,
    Line,
    Number,
    Part,
    Phrase,
    Quantiles,
    Report,
    Step,
    Table,
    Words,
)

TEMPLATES = Path(__file__).parent / "templates"
LABELLED = 13.0  # per cent of the bar of classes from which a class is labelled inside of it
_PHONE = 48  # characters of a table that stays a table on a phone, at most
_NAME = 12  # characters of a name before it is broken
_NAMES = 24  # characters of a user and a job, or of a command, before they are broken
_IN_BLOCK = 6  # numbers in a block on a phone, at most; with more, the minor ones are left out
_LONG = ("command", "event", "evidence", "notes", "lines")  # columns over the whole width of a block
_BRIEF = ("user", "card", "line", "change", "state", "time")  # columns of a third of the width
# Between these elements a space is inserted: copied text and screen readers would join their contents.
_ADJACENT = re.compile(r"(?<=</t[dh]>|</li>|</dt>)(?=<(?:t[dh]|li|dd)\b)")
_NARROW = "\u202f"  # no-break space, between a number and its unit
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[KMGT]iB(?:-h(?:ours)?)?|kWh|W|°C|GPU-h(?:ours?)?|GPU|h|min|d|s|points?)(?:\W|$))"
)
_TOKENS = re.compile(r"[^\W\d_%]+(?:-[^\W\d_]+)*|%")  # the units in a number


def as_html(report: Report) -> str:
    """Return a report as a page in HTML, with its style and its drawings within."""
    page = environment().get_template("report.html.j2")
    return _ADJACENT.sub(" ", page.render(report=report, light=variables(LIGHT), dark=variables(DARK)))


def index_page(host: str, files: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Return the index of a folder of reports; `files` are their names by kind and period."""
    kinds = [
        (
            kind,
            [
                (period, sorted(periods[period], key=_suffix_order))
                for period in sorted(periods, reverse=True)
            ],
        )
        for kind, periods in sorted(files.items())
    ]
    page = environment().get_template("index.html.j2")
    return page.render(host=host, kinds=kinds, light=variables(LIGHT), dark=variables(DARK))


def _suffix_order(name: str) -> tuple[bool, str]:
    """Sort the page before the other files."""
    suffix = name.rpartition(".")[2]
    return suffix != "html", suffix


@cache
def environment(*more: Path) -> Environment:
    """Return the templates of pages and mails, and those in further folders.

    Every text is escaped unless a filter marks it as HTML.
    """
    templates = Environment(
        loader=FileSystemLoader([*more, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update({function.__name__: function for function in _FILTERS})
    templates.globals.update(
        {function.__name__: function for function in _FUNCTIONS},
        DASH=DASH,
        LABELLED=LABELLED,
        HEIGHT=drawing.HEIGHT,
    )
    return templates


# -- texts ---------------------------------------------------------------------------------------------


def shown(text: str) -> str:
    """Replace characters that a page must not hold: controls, and marks that reverse its direction."""
    return "".join(char if char.isprintable() or char in "\u200c\u200d" else "?" for char in text)


def own(text: str) -> Markup:
    """Return a text of the report; a number stays on the line of its unit."""
    return escape(_UNIT.sub(_NARROW, shown(text)))


def user(text: str) -> Markup:
    """Return a text that a user gave: escaped, and isolated from the direction of its surroundings."""
    return Markup("<bdi>{}</bdi>").format(shown(text))


def output(text: str) -> Markup:
    """Return a line of a program's output; its blanks stay."""
    blank = re.sub(r"  +", lambda match: "\xa0" * (len(match[0]) - 1) + " ", shown(text.expandtabs()))
    return Markup("<bdi>{}</bdi>").format(blank)


def figure(text: str) -> Markup:
    """Return the number of a headline: its units are small."""
    return Markup("").join(
        Markup("<small>{}{}</small>").format(_NARROW if at else "", part)
        if _TOKENS.fullmatch(part)
        else Markup("{}{}").format(_NARROW if at else "", part)
        for at, part in enumerate(shown(text).split(" "))
    )


def percent(part: float) -> str:
    """Return a part from 0 to 1 as a width in per cent."""
    return f"{drawing.number(round(100 * min(1.0, max(0.0, part)), 1))}%"


def slug(text: str) -> str:
    """Return a key of the report as the name of an element."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())


def label(head: str) -> str:
    """Return the head of a column as a label within a block: it begins with a small letter."""
    return head[:1].lower() + head[1:] if head.split(" ")[0][1:].islower() else head


def capital(head: str) -> str:
    """Return the head of a column with a capital at its begin."""
    return head[:1].upper() + head[1:]


def kind(part: Part | Cell) -> str:
    """Return the kind of a part of a section, or of a cell."""
    return str(part.__struct_config__.tag)


# -- cells ---------------------------------------------------------------------------------------------


def cell(value: Cell, unit: str = "") -> Markup:
    """Return the content of a cell; `unit` is left out of it, as the head of its column names it."""
    match value:
        case Number():
            return _number(value)
        case Change():
            return _change(value, unit)
        case Given():
            return user(value.text)
        case Phrase():
            return Markup("").join(cell(part) for part in value.parts)
        case Event():
            return Markup('<time datetime="{}">{}</time>').format(value.iso, own(value.text))
        case Line():
            return _line(value)
        case Words(text=text):
            return Markup('<span class="zero">{}</span>').format(DASH) if text == DASH else own(text)
        case _:
            return Markup("")


def _number(value: Number) -> Markup:
    text = own(value.text)
    if not value.value and not value.text[:1].isalpha():  # "GPU 0" is a name
        return Markup('<span class="zero">{}</span>').format(text)
    first, slash, total = text.partition(" / ")
    return first + Markup(' <span class="soft">/ {}</span>').format(Markup(total)) if slash else text


def _change(value: Change, unit: str) -> Markup:
    if value.direction == "same":
        return Markup('<span class="change">{}</span>').format(value.text)
    return Markup(
        '<span class="change {tone}"><span aria-hidden="true">{arrow}</span>'
        '<span class="hidden">{word} </span> {text}</span>'
    ).format(
        tone=value.tone,
        arrow="▲" if value.direction == "up" else "▼",
        word=value.direction,
        text=own(value.text.removesuffix(f" {unit}")),
    )


def _line(value: Line) -> Markup:
    if len(value.tokens) == 1:
        return Markup('<code class="whole">{}</code>').format(shown(value.tokens[0]))
    tokens = Markup(" ").join(Markup("<span>{}</span>").format(shown(token)) for token in value.tokens)
    return Markup('<pre class="short">{}</pre>').format(tokens)


# -- descriptions of drawings --------------------------------------------------------------------------


def class_label(part: ClassBar) -> str:
    """Describe the bar of classes."""
    return "Time classes: " + ", ".join(
        f"{class_share.name} {class_share.share.text}" for class_share in part.classes
    )


def gpu_label(row: GpuRow) -> str:
    """Describe the drawing of a GPU."""
    notes = "".join(f"; {note.text}" for note in row.notes)
    return shown(f"GPU {row.gpu}: charged {row.charged.text}, active {row.active.text}{notes}")


def bar_label(bar: Bar) -> str:
    """Describe the bar of a table by the parts of its own length."""
    whole = sum(piece.part for piece in bar.pieces) or 1.0
    return ", ".join(f"{piece.kind} {100 * piece.part / whole:.0f} %" for piece in bar.pieces)


# -- questions of the templates ------------------------------------------------------------------------


def with_names(table: Table) -> Table:
    """Return a table whose columns of a user and of the job's name are one."""
    keys = [column.key for column in table.columns]
    at = next(
        (at for at in range(len(keys) - 1) if keys[at] == "user" and keys[at + 1] in ("job", "name")), None
    )
    if at is None:
        return table
    column = structs.replace(table.columns[at], head="User, job")
    return structs.replace(
        table,
        columns=(*table.columns[:at], column, *table.columns[at + 2 :]),
        rows=tuple(_joined(row, at) for row in table.rows),
        total=_joined(table.total, at) if table.total else (),
    )


def _joined(row: tuple[Cell, ...], at: int) -> tuple[Cell, ...]:
    first, second = row[at : at + 2]
    if not (isinstance(first, Given) and isinstance(second, Given)):
        return (*row[:at], first, *row[at + 2 :])
    return (*row[:at], Phrase((first, Words(" · "), second)), *row[at + 2 :])


def is_stacked(table: Table) -> bool:
    """Tell whether a table becomes blocks on a phone: it has bars of classes or lines, or is too wide."""
    drawn = any(
        is_long_line(cell) or (isinstance(cell, Bar) and any(piece.kind != "count" for piece in cell.pieces))
        for row in table.rows
        for cell in row
    )
    return drawn or sum(_room(table, at) for at in range(len(table.columns))) > _PHONE


def _room(table: Table, at: int) -> int:
    """Estimate the characters that a column needs on a phone. Names of users may be broken."""
    column = table.columns[at]
    if column.minor:
        return 0
    cells = [row[at] for row in table.rows if not isinstance(row[at], Bar)]
    longest = max((len(cell.text) for cell in cells if not isinstance(cell, Bar)), default=0)
    if not column.right and column.key != "line":
        is_joined = column.key == "user" and any(isinstance(cell, Phrase) for cell in cells)
        is_long = column.key in _LONG or is_joined
        longest = min(longest, _NAMES if is_long else _NAME)
    return max(longest, *(len(word) for word in column.head.split() or [""])) + 2


def is_led(table: Table, row: Sequence[Cell]) -> bool:
    """Tell whether a row begins with a rank or a job's number, which stands beside its name on a phone."""
    return isinstance(row[0], Number) and len(row) > 1 and isinstance(row[1], Given | Phrase)


def has_label(table: Table, row: Sequence[Cell], at: int) -> bool:
    """Tell whether a cell is labelled in a block on a phone."""
    return not (is_main(table, at) or is_long_line(row[at]) or (at == 1 and is_led(table, row)))


def phone_unit(value: Cell, unit: str) -> str:
    """Return the unit of the main number of a block: "1 job", "2 jobs"."""
    is_one = isinstance(value, Number) and value.text == "1"
    return unit.removesuffix("s") if is_one else unit


def is_main(table: Table, at: int) -> bool:
    """Tell whether a column has the main number, which stands beside the name in a block on a phone."""
    return 1 == at < len(table.columns) and table.columns[at].right and bool(table.columns[at].unit)


def head_class(table: Table, at: int) -> str:
    """Return the classes of the head of a column."""
    return " ".join(_place(table, at))


def cell_class(table: Table, row: Sequence[Cell], at: int) -> str:
    """Return the classes of a cell."""
    value, classes = row[at], list(_place(table, at))
    if at == 0:
        classes += ["whole" if isinstance(value, Number) else "name"]
        classes += ["soft"] if _is_sum(table, value) and row is not table.total else []
        if is_led(table, row):
            return " ".join([*classes, "lead"])
        return " ".join([*classes, "beside" if is_main(table, 1) else "wide"])
    if at == 1 and is_led(table, row):
        classes.append("led")
    elif isinstance(value, Bar) or table.columns[at].key in _LONG or is_long_line(value):
        classes.append("wide")
    elif is_main(table, at):
        classes.append("main")
    elif isinstance(value, Number) and not table.columns[at].right:
        classes.append("whole")
    elif not table.columns[at].right and table.columns[at].key not in _BRIEF:
        classes.append("half")
    return " ".join(classes)


def _place(table: Table, at: int) -> Iterable[str]:
    """Yield the classes of all cells of a column."""
    column = table.columns[at]
    has_bars = any(isinstance(row[at], Bar) for row in table.rows)
    if column.right and at:
        yield "n"
    if has_bars:
        yield "bars"
    elif at > 1 and not column.right and table.columns[at - 1].right:
        yield "after"
    if column.minor and not (is_stacked(table) and len(table.columns) - 3 <= _IN_BLOCK):
        yield "minor"


def _is_sum(table: Table, value: Cell) -> bool:
    """Tell whether the name of a row is the report's own among names of users: "7 others"."""
    return isinstance(value, Words) and isinstance(table.rows[0][0], Given)


def is_long_line(value: Cell) -> bool:
    """Tell whether a cell is a line of several options, which takes the whole width of a block."""
    return isinstance(value, Line) and len(value.tokens) > 1


def has_gaps(part: GpuRows | HeatMap) -> bool:
    """Tell whether a drawing has hours without samples."""
    if isinstance(part, GpuRows):
        return any(None in row.steps for row in part.rows)
    return any(None in row.levels for row in part.rows)


def used_classes(steps: Iterable[Sequence[Step | None]]) -> list[str]:
    """Return the classes that are drawn in GPU rows, in their order; always the charged ones."""
    drawn = {name for row in steps for name, _ in drawing.classes(row)}
    return [name for name in CLASSES if name in drawn or name in CLASSES[:3]]


def wait_axis(part: Quantiles) -> drawing.WaitAxis:
    """Return the axis that all size classes share."""
    longest = max((dot for row in part.rows for dot in row.dots), default=0.0)
    longest = max([longest, *(row.longest.value or 0.0 for row in part.rows)])
    return drawing.WaitAxis(part.ticks, longest)


# What the templates call.
_FILTERS = (capital, cell, figure, kind, label, own, percent, shown, user, slug, output)
_FUNCTIONS = (
    bar_label,
    cell_class,
    drawing.classes,
    class_label,
    drawing.gaps,
    gpu_label,
    has_gaps,
    has_label,
    head_class,
    is_main,
    is_stacked,
    drawing.lines,
    phone_unit,
    used_classes,
    wait_axis,
    with_names,
)
