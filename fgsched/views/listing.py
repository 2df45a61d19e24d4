"""Lay out rows as lines of text: the table engine of all listings.

A column is data: its heading, the value that it shows of a row, and the text of that value. A format is made
of columns with their widths and the text between them, as the options of a command choose them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.text import clean, column_width
from fgsched.views.display import fit
from fgsched.views.job import fields_of

LEAST_TEXT = 6  # terminal columns that a text is cut to in a narrow window, before minor columns are left out
_MARK = "+"  # the end of a cell that was cut, in the tables of accounts
_DEFAULT_WIDTH = 20  # of a column that is named without a width
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet would take such a text for a formula


def plain(value: object) -> str:
    """Return a value as text; an unknown one is blank."""
    return "" if value is None else str(value)


class TableColumn(NamedTuple):
    """One column: a value of a row, and its text."""

    heading: str
    value: str | Callable[[Any], Any]  # the name of an attribute of the row, or a function of the row
    text: Callable[[Any], str] = plain
    names: tuple[str, ...] = ()  # by which it is chosen; (): by its heading
    letter: str = ""  # by which it is chosen; "": by name only
    width: int = 0  # terminal columns, if no other width is chosen; 0: as wide as the text
    left: bool = False  # aligned at the left, if no other alignment is chosen
    by: str = ""  # the attribute that rows are sorted by; "": the first of `fields`
    is_local: bool = False  # the text depends on the time zone of the reader, or on further answers
    is_of_jobs: bool = False  # blank in the row of a step
    is_whole: bool = False  # never cut
    least: int = 0  # terminal columns that it keeps in a narrow window; 0: it is not cut
    is_minor: bool = False  # left out in a narrow window
    paint: str = ""  # what its colour shows: "state", "reason" or "outcome"; "": it has none

    @property
    def fields(self) -> tuple[str, ...]:
        """The attributes of a job that the column needs."""
        return fields_of(self.value)

    @property
    def key(self) -> str:
        """The attribute that rows are sorted by."""
        return self.by or self.fields[0]

    def cell(self, row: Any) -> str:
        """Return the text of a row, neither cut nor padded."""
        if self.is_of_jobs and row.step:
            return ""
        return self.text(getattr(row, self.value) if isinstance(self.value, str) else self.value(row))


class LinePiece(Struct, frozen=True):
    """One column in a line, with the text after it."""

    column: TableColumn
    width: int = 0  # 0: as wide as it is
    right: bool = False
    after: str = ""
    mark: str = ""  # the end of a text that is cut

    def fitted(self, text: str) -> str:
        """Return the text of a cell in the width of its column."""
        if self.column.is_whole and len(text) > self.width:
            return text
        return fit(text, self.width, right=self.right, mark=self.mark)


class Format(Struct, frozen=True):
    """A line: text, then pieces."""

    before: str
    pieces: tuple[LinePiece, ...]

    @property
    def fields(self) -> list[str]:
        """The attributes that the columns need."""
        return list(dict.fromkeys(field for piece in self.pieces for field in piece.column.fields))

    def without_last(self) -> "Format":
        """Return the format without its last column."""
        line_pieces = self.pieces[:-1]
        return Format(self.before, (*line_pieces[:-1], replace(line_pieces[-1], after=self.pieces[-1].after)))

    def header(self) -> str:
        """Return the line of headings."""
        return self._line([piece.column.heading for piece in self.pieces])

    def rule(self) -> str:
        """Return the line of dashes under the headings."""
        return self._line(["-" * piece.width for piece in self.pieces])

    def formatter(self) -> Callable[[Any], str]:
        """Return the function that makes the line of a row; equal cells are formatted once."""
        before, cells = self.before, [_cell(piece) for piece in self.pieces]
        return lambda row: before + "".join([cell(row) for cell in cells])

    def lines(self, rows: Iterable[Any]) -> Iterator[str]:
        """Return the rows as lines of text."""
        return map(self.formatter(), rows)

    def _line(self, cells: Sequence[str]) -> str:
        parts = [self.before]
        for piece, cell in zip(self.pieces, cells, strict=True):
            parts += [fit(cell, piece.width, right=piece.right), piece.after]
        return "".join(parts)


def _cell(piece: LinePiece) -> Callable[[Any], str]:
    """Return the function that makes the text of one column; equal attributes are formatted once."""
    column, cells = piece.column, dict[Any, str]()

    def text(row: Any) -> str:
        return piece.fitted(clean(column.cell(row))) + piece.after

    if not column.fields or column.fields[0] == "id" or column.is_of_jobs:  # it differs in each row
        return text
    attributes = attrgetter(*column.fields)

    def cached(row: Any) -> str:
        key = attributes(row)
        try:
            return cells[key]
        except KeyError:
            cell = cells[key] = text(row)
            return cell
        except TypeError:  # a list
            return text(row)

    return cached


# -- formats: the text that chooses columns ----------------------------------------------------------


def by_letters(
    text: str,
    item: re.Pattern[str],
    column: Callable[[str], TableColumn | None],
    every: Iterable[TableColumn],
) -> Format:
    """Return the format of a text such as '%.18i %j' or '%all', which a dot aligns at the right.

    Args:
        item: matches one item: the dot, the width, and the letter or 'all'.
        column: returns the column of a letter, or raises the error of the command; None: it is text.
        every: the columns of 'all', between vertical bars.
    """
    matches = list(item.finditer(text))
    before, pieces = text[: matches[0].start()] if matches else text, list[LinePiece]()
    for match, following in zip(matches, [*matches[1:], None][: len(matches)], strict=True):
        after = text[match.end() : following.start() if following else len(text)]
        if match[3] == "all":
            listed = [LinePiece(table_column, after="|") for table_column in every if table_column.letter]
            pieces += [*listed[:-1], replace(listed[-1], after=after)]
        elif chosen := column(match[3] or ""):
            pieces.append(LinePiece(chosen, column_width(match[2] or ""), bool(match[1]), after))
        elif pieces:
            pieces[-1] = replace(pieces[-1], after=f"{pieces[-1].after}%{match[3] or ''}{after}")
        else:
            before += f"%{match[3] or ''}{after}"
    return Format(before, tuple(pieces))


def by_name(match: re.Match[str], column: TableColumn) -> LinePiece:
    """Return the piece of 'Name:.20 ': the groups are the name, the dot, the width and the text after it."""
    width = column_width(match[3]) if match[3] else 0 if match[4] else _DEFAULT_WIDTH
    return LinePiece(column, width, bool(match[2]), match[4] or "")


def marked(columns: Iterable[tuple[TableColumn, int | None]], *, end: str = "", mark: str = _MARK) -> Format:
    """Return the format of columns with a blank between them; a text that does not fit ends with a mark.

    Args:
        columns: each with its width; negative: aligned at the left; None: as the column has it.
        end: the text after the last column.
        mark: the end of a text that is cut.
    """
    pieces = [
        LinePiece(column, column.width, not column.left, " ", mark)
        if width is None
        else LinePiece(column, abs(width), width >= 0, " ", mark)
        for column, width in columns
    ]
    return Format("", (*pieces[:-1], *(replace(piece, after=end) for piece in pieces[-1:])))


class Delimited(Struct, frozen=True):
    """Columns of any length between delimiters; with a comma, quoted as in RFC 4180."""

    delimiter: str
    trailing: bool = False  # one after the last column too

    def lines(self, rows: Iterable[Any], columns: Sequence[TableColumn], *, header: bool) -> Iterator[str]:
        """Return the rows as lines of text."""
        end = self.delimiter if self.trailing else ""
        if header:
            yield self.delimiter.join(column.heading for column in columns) + end
        for row in rows:
            yield self.delimiter.join(self._cell(clean(column.cell(row))) for column in columns) + end

    def _cell(self, text: str) -> str:
        if self.delimiter != ",":
            return text.replace(self.delimiter, "?")  # an additional column would shift all later ones
        if text.startswith(_FORMULA):
            text = f"'{text}"
        return f'"{text.replace(chr(34), chr(34) * 2)}"' if "," in text or '"' in text else text
