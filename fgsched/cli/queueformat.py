"""fgq's formats: %-letters as in -o, names as in -O, and rows set in them."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from fgsched.cli.cells import columns as width_of
from fgsched.cli.cells import fit
from fgsched.cli.queuecolumns import COLUMNS, Column, by_letter, by_name, safe
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import shown
from fgsched.jobs.arrays import parse_tasks, tasks

_ITEM = re.compile(r"%(\.?)([0-9]{0,4})(all\b|.)?", re.DOTALL)
_NAMED = re.compile(r"([A-Za-z-]+)(?::(\.?)([0-9]{0,4})(.*))?", re.DOTALL)
_DEFAULT_WIDTH = 20  # of -O

_FIRST = "JobID:.18 ,Partition:.9 ,Name:.8 ,UserName:.8 "
QUEUE = f"{_FIRST},StateCompact:.2 ,TimeUsed:.10 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
LONG = f"{_FIRST},State:.8 ,TimeUsed:.10 ,TimeLimit:.9 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
SLURM = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
START = f"{_FIRST},StateCompact:.2 ,StartTime:.19 ,LikelyStart:.19 ,Known:.7 ,GPUs:.6 ,GpuReason:0"
SLURM_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
SLURM_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


@dataclass(frozen=True, slots=True)
class Piece:
    """One column in a line, with the text after it."""

    column: Column
    width: int = 0  # 0: as wide as it is
    right: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """A line: text, then pieces."""

    before: str
    pieces: tuple[Piece, ...]

    @property
    def fields(self) -> list[str]:
        """What the controller is asked for."""
        return list(dict.fromkeys(field for piece in self.pieces for field in piece.column.fields))

    def header(self) -> str:
        return self._line([piece.column.heading for piece in self.pieces])

    def lines(self, rows: Iterable[Sequence[Any]], names: Sequence[str]) -> Iterable[str]:
        """The rows as text. `names` are those of the values in each row."""
        getters = [_getter(piece.column, names) for piece in self.pieces]
        form = self._template()
        for row in rows:
            cells = [get(row) for get in getters]
            line = form.format(*cells)
            # Nearly every line is plain, and then one format call pads and cuts all of it.
            yield line if line.isascii() and line.isprintable() else self._line(safe(cells))

    def widened(self, rows: Sequence[Sequence[Any]], names: Sequence[str], room: int) -> "Format":
        """The same with its name and user columns using what is spare of `room` columns."""
        longest = max((width_of(line) for line in self.lines(rows, names)), default=0)
        spare = room - max(longest, width_of(self.header()))
        pieces = []
        for piece in self.pieces:
            field = piece.column.fields[0]
            if field in {"name", "user"}:
                at = names.index(field)
                wanted = max((width_of(row[at]) for row in rows), default=0) - piece.width
                grown = max(0, min(spare, wanted))
                spare -= grown
                piece = replace(piece, width=piece.width + grown)
            pieces.append(piece)
        return replace(self, pieces=tuple(pieces))

    def _template(self) -> str:
        parts = [_escaped(self.before)]
        for piece in self.pieces:
            align = ">" if piece.right else "<"
            parts.append(f"{{:{align}{piece.width}.{piece.width}}}" if piece.width else "{}")
            parts.append(_escaped(piece.after))
        return "".join(parts)

    def _line(self, cells: Sequence[str]) -> str:
        parts = [self.before]
        for piece, cell in zip(self.pieces, cells, strict=True):
            parts += [fit(cell, piece.width, right=piece.right), piece.after]
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _getter(column: Column, names: Sequence[str]) -> Any:
    places = [names.index(field) for field in column.fields]
    show = column.show
    if len(places) == 1:
        at = places[0]
        return lambda row: show(row[at])
    values = itemgetter(*places)
    return lambda row: show(*values(row))


def percent(text: str) -> Format:
    """The format of -o: '%.18i %j', '%all'."""
    first = text.find("%")
    if first < 0:
        raise BadUsage(f"the format {shown(text)} names no field", "Such as: -o '%i %j %T'")
    pieces: list[Piece] = []
    at = first
    while at < len(text):
        match = _ITEM.match(text, at)
        assert match, "the text before an item belongs to the one before it"
        end = text.find("%", match.end())
        after = text[match.end() : end if end >= 0 else len(text)]
        if match[3] == "all":
            every = [Piece(column, after="|") for column in COLUMNS if column.letter]
            pieces += [*every[:-1], replace(every[-1], after=after)]
        else:
            pieces.append(Piece(by_letter(match[3] or ""), int(match[2] or 0), bool(match[1]), after))
        at = match.end() + len(after)
    return Format(text[:first], tuple(pieces))


def named(text: str) -> Format:
    """The format of -O: 'JobID:8,Name:.20,State'."""
    pieces = []
    for part in text.split(","):
        match = _NAMED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field of -O", "Such as: -O JobID:8,Name:.20,State")
        column = by_name(match[1])
        width = int(match[3]) if match[3] else _DEFAULT_WIDTH
        pieces.append(Piece(column, width, bool(match[2]), match[4] or ""))
    return Format("", tuple(pieces))


def sort_keys(text: str) -> list[tuple[Column, bool]]:
    """(column, descending?) of 'P,t,-i' or 'Partition,-JobID'."""
    keys = []
    for part in text.split(","):
        name = part.lstrip("+-")
        try:
            column = by_letter(name) if len(name) <= 1 else by_name(name)
        except BadUsage:
            remedy = "Such as: -S P,-i or -S Partition,-JobID; fgq(1) lists the fields."
            raise BadUsage(f"{shown(part)} is nothing to sort by", remedy) from None
        keys.append((column, part.startswith("-")))
    return keys


def expanded(rows: Iterable[list[Any]], names: Sequence[str]) -> list[list[Any]]:
    """Each waiting task of an array as a row of its own."""
    task_at, rest_at = names.index("task"), names.index("tasks")
    found = []
    for row in rows:
        listed = (row[rest_at] or "").partition("%")[0]
        if not listed:
            found.append(row)
            continue
        for task in tasks(parse_tasks(listed)):
            one = list(row)
            one[task_at], one[rest_at] = task, None
            found.append(one)
    return found


def _order(column: Column, names: Sequence[str]) -> Callable[[list[Any]], Any]:
    """What rows are sorted by: the key of the column; the tasks of an array stand together."""
    at = names.index(column.key)
    if column.fields[:3] != ("id", "array", "task"):
        return lambda row: column.order(row[at])
    array_at, task_at = names.index("array"), names.index("task")

    def place(row: list[Any]) -> tuple[int, int]:
        return row[array_at] or row[at], -1 if row[task_at] is None else row[task_at]

    return place


def ordered(
    rows: list[list[Any]], names: Sequence[str], keys: Sequence[tuple[Column, bool]]
) -> list[list[Any]]:
    """The rows sorted by the keys; equal ones stay in the order of their ids."""
    for column, down in reversed(keys):
        rows.sort(key=_order(column, names), reverse=down)
    return rows
