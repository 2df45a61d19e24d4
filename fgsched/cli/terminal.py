"""Fit tables to the width of a terminal, and colour states and reasons."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import clean, width_of
from fgsched.protocol import JobInfo
from fgsched.views.display import fit, text_table
from fgsched.views.listing import Format, TableColumn

_MARK = "+"  # the end of a cell that is cut
RED, YELLOW, BLUE, DIM = "31", "33", "94", "2"
_NUMBER = re.compile(r"-|\d[\d.:/,%-]*([kMGT]?[BJ]?|C)(/[\d-]+[MG]?)*")  # also several in one cell
_LEAST_REASON = 21  # columns of a text of any length
_LEAST = 4  # columns that a cell is cut to if nothing else helps
_STATES = {
    JobState.RUNNING: BLUE,
    JobState.STARTING: BLUE,
    JobState.SUSPENDED: YELLOW,
    JobState.CANCELLED: YELLOW,
    JobState.PREEMPTED: YELLOW,
    JobState.COMPLETING: DIM,
    JobState.DEADLINE: RED,
    **{state: RED for state in JobState if state.is_failure},
}
_NEVER = {Reason.DEPENDENCY_NEVER, Reason.LAUNCH_FAILURE, Reason.HELD_MAX_REQUEUE, Reason.PROLOG_FAILED}
_HELD = {Reason.HELD_USER, Reason.HELD_ADMIN, Reason.PARTITION_DOWN, Reason.GPU_DRAINED}
_HELD |= {Reason.GPU_EXTERNAL_USE, Reason.PARTITION_TIME_LIMIT}


def is_terminal() -> bool:
    """Tell whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def width() -> int:
    """Return the columns of the terminal; COLUMNS overrides them."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def wants_colour(choice: str) -> bool:
    """Tell whether to print colours; `choice` is always, never, or auto, which obeys NO_COLOR and TERM."""
    if choice != "auto":
        return choice == "always"
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def of_state(state: JobState) -> str:
    """Return the colour of a state; "": none."""
    return _STATES.get(state, "")


def of_reason(state: JobState, reason: Reason) -> str:
    """Return the colour of the reason of a job: that of its state, or of what a pending job needs."""
    if state is not JobState.PENDING:
        return of_state(state)
    return RED if reason in _NEVER else YELLOW if reason in _HELD else ""


class Cell(Struct, frozen=True):
    """A text with its colour; "": none."""

    text: str
    colour: str = ""


class Head(Struct, frozen=True):
    """A column of a table."""

    text: str
    right: bool = False
    least: int = 0  # terminal columns that it is cut to, before minor ones are left out; 0: it is not cut
    minor: bool = False  # it is left out if the others do not fit


def table(
    heads: Sequence[Head], rows: Sequence[Sequence[Cell]], room: int, *, header: bool = True
) -> list[str]:
    """Return the lines of a table of at most `room` columns, if its least widths permit it.

    Columns are as wide as their widest cell. If that is too much, the columns that may be cut are; if that is
    not enough, minor columns are left out, the last one first.
    """
    texts = [[Cell(clean(cell.text), cell.colour) for cell in row] for row in rows]
    natural = [
        max([width_of(head.text), *(width_of(row[at].text) for row in texts)])
        for at, head in enumerate(heads)
    ]
    shown = _shown(heads, natural, room)
    widths = {at: natural[at] for at in shown}
    _shrink(widths, {at: heads[at].least for at in shown if heads[at].least}, room)
    _shrink(widths, {at: _LEAST for at in shown if heads[at].least}, room)
    lines = [[Cell(head.text) for head in heads]] * header + texts
    return [_line(heads, row, widths) for row in lines]


def colour_of(column: TableColumn, job: JobInfo) -> str:
    """Return the colour of a cell: of states and reasons."""
    if column.paint == "state":
        return of_state(job.state)
    if column.paint == "outcome" or (column.paint == "reason" and job.state is JobState.PENDING):
        return of_reason(job.state, job.reason)
    return ""


def painted_lines(form: Format, jobs: Iterable[JobInfo]) -> Iterator[str]:
    """Yield jobs as lines of text with coloured states and reasons."""
    for job in jobs:
        parts = [form.before]
        for piece in form.pieces:
            text = piece.fitted(clean(piece.column.cell(job)))
            parts += [painted(text, colour_of(piece.column, job)), piece.after]
        yield "".join(parts)


def fitted(
    form: Format, jobs: Iterable[JobInfo], *, header: bool, colour: bool, most: int | None = None
) -> list[str]:
    """Return a table of jobs for the width of the terminal.

    `most`: columns from which on none is left out in a narrow window; None: always some are.
    """
    is_short = most is None or len(form.pieces) <= most
    heads = [
        Head(
            piece.column.heading,
            right=piece.right,
            least=piece.column.least if piece.width else _LEAST_REASON,
            minor=piece.column.is_minor and is_short,
        )
        for piece in form.pieces
    ]
    columns = [piece.column for piece in form.pieces]
    rows = [
        [Cell(column.cell(job), colour_of(column, job) if colour else "") for column in columns]
        for job in jobs
    ]
    return table(heads, rows, width(), header=header)


def listing(columns: Sequence[TableColumn], rows: Iterable[Any], *, header: bool = True) -> str:
    """Return a table: fitted to the window of a terminal, and whole for a program that reads it.

    Columns of numbers are aligned at the right. A narrow window cuts the columns with a least width, and then
    leaves out the minor ones.
    """
    texts = [[column.cell(row) for column in columns] for row in rows]
    if not is_terminal():
        return text_table([column.heading for column in columns], texts, header=header)
    numeric = [bool(texts) and all(map(_NUMBER.fullmatch, cells)) for cells in zip(*texts, strict=True)]
    heads = [
        Head(column.heading, right=is_number, least=column.least, minor=column.is_minor)
        for column, is_number in zip(columns, numeric or [False] * len(columns), strict=True)
    ]
    lines = table(heads, [[Cell(text) for text in row] for row in texts], width(), header=header)
    return "".join(f"{line}\n" for line in lines)


def wrapped(lines: Iterable[str]) -> list[str]:
    """Wrap sentences at the window of a terminal; a word is never broken, so that it can be copied."""
    if not is_terminal():
        return list(lines)
    return [part for line in lines for part in _wrapped(line, width())]


def _wrapped(line: str, room: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip(" "))]
    parts, text = [], ""
    for word in line.split():
        if text and width_of(f"{text} {word}") > room:
            parts.append(text)
            text = f"{indent}  {word}"
        else:
            text = f"{text} {word}" if text else indent + word
    return [*parts, text]


def _shown(heads: Sequence[Head], natural: Sequence[int], room: int) -> list[int]:
    """Return the columns that are shown."""
    least = [min(wide, head.least or wide) for head, wide in zip(heads, natural, strict=True)]
    shown = list(range(len(heads)))
    for at in reversed(range(len(heads))):
        if sum(least[number] for number in shown) + len(shown) - 1 <= room:
            break
        if heads[at].minor:
            shown.remove(at)
    return shown


def _shrink(widths: dict[int, int], least: dict[int, int], room: int) -> None:
    """Cut the widest column until all fit, none below its least width."""
    while sum(widths.values()) + len(widths) - 1 > room:
        able = [at for at, width in least.items() if widths[at] > width]
        if not able:
            return
        widths[max(able, key=lambda at: widths[at])] -= 1


def _line(heads: Sequence[Head], row: Sequence[Cell], widths: dict[int, int]) -> str:
    parts, last = [], max(widths)
    for at, width in widths.items():
        is_last = at == last and not heads[at].right
        room = min(width, width_of(row[at].text)) if is_last else width
        parts.append(painted(fit(row[at].text, room, right=heads[at].right, mark=_MARK), row[at].colour))
    return " ".join(parts)


def painted(text: str, colour: str) -> str:
    """Return a text in a colour, the blanks around it without."""
    bare = text.strip(" ")
    if not colour or not bare:
        return text
    before, after = text[: text.index(bare)], text[text.index(bare) + len(bare) :]
    return f"{before}\033[{colour}m{bare}\033[0m{after}"
