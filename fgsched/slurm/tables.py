"""Print rows as the accounting commands of Slurm do: fields with widths, or delimited."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fgsched.domain.text import clean, column_width
from fgsched.slurm.getopt import BadLine
from fgsched.views.display import fit

_MARK = "+"  # ends a text that was cut


class SlurmField(NamedTuple):
    """One field: its heading, its width, and its text for a row."""

    name: str
    width: int
    show: Callable[[Any], object]


class SelectedField(NamedTuple):
    """A field as it was selected."""

    field: SlurmField
    width: int
    left: bool = False


class Layout(NamedTuple):
    """How rows are printed."""

    columns: Sequence[SelectedField]
    header: bool = True
    delimiter: str = ""  # "": fixed widths
    trailing: bool = False  # a delimiter after the last field too


def columns(text: str, fields: Sequence[SlurmField], *, owner: str) -> list[SelectedField]:
    """Return the columns of 'account%20,user%-8'; a field is named by a beginning of its name.

    Raises:
        BadLine: there is no such field; `owner` names the command in its text.
    """
    found = []
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, width = part.partition("%")
        field = _field(name, fields)
        if field is None or not (width.lstrip("-") or "0").isdecimal():
            raise BadLine(f"error: Invalid field requested: {owner}{part!r}")
        amount = column_width(width.lstrip("-")) * (-1 if width.startswith("-") else 1)
        found.append(SelectedField(field, abs(amount) or field.width, amount < 0))
    return found


def _field(name: str, fields: Sequence[SlurmField]) -> SlurmField | None:
    plain = [(field.name.replace(" ", "").lower(), field) for field in fields]
    exact = [field for known, field in plain if known == name.lower()]
    return (
        next((field for known, field in plain if known.startswith(name.lower())), None)
        if not exact
        else exact[0]
    )


def text(rows: Iterable[Any], layout: Layout) -> str:
    """Return the rows as text."""
    cells = [[clean(str(column.field.show(row))) for column in layout.columns] for row in rows]
    names = [column.field.name for column in layout.columns]
    if layout.delimiter:
        end = layout.delimiter if layout.trailing else ""
        lines = [*([names] if layout.header else []), *cells]
        return "".join(layout.delimiter.join(line) + f"{end}\n" for line in lines)
    heads = [names, ["-" * column.width for column in layout.columns]] if layout.header else []
    return "".join(_aligned(line, layout.columns) for line in [*heads, *cells])


def _aligned(cells: Sequence[str], chosen: Sequence[SelectedField]) -> str:
    pairs = zip(cells, chosen, strict=True)
    return (
        " ".join(fit(cell, column.width, right=not column.left, mark=_MARK) for cell, column in pairs) + " \n"
    )
