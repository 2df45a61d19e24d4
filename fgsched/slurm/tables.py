"""Print rows as the accounting commands of Slurm do: fields with widths, or delimited."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fgsched.domain.text import column_width
from fgsched.slurm.getopt import BadLine
from fgsched.views.listing import Delimited, Format, TableColumn, marked


def columns(text: str, fields: Sequence[TableColumn], *, owner: str) -> Format:
    """Return the format of 'account%20,user%-8'; a field is named by a beginning of its name.

    Raises:
        BadLine: there is no such field; `owner` names the command in its text.
    """
    selected: list[tuple[TableColumn, int | None]] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, width = part.partition("%")
        field = _field(name, fields)
        if field is None or not (width.lstrip("-") or "0").isdecimal():
            raise BadLine(f"error: Invalid field requested: {owner}{part!r}")
        amount = column_width(width.lstrip("-")) or field.width
        selected.append((field, -amount if width.startswith("-") else amount))
    return marked(selected, end=" ")


def _field(name: str, fields: Sequence[TableColumn]) -> TableColumn | None:
    plain = [(field.heading.replace(" ", "").lower(), field) for field in fields]
    exact = [field for heading, field in plain if heading == name.lower()]
    return (
        next((field for heading, field in plain if heading.startswith(name.lower())), None)
        if not exact
        else exact[0]
    )


def text(rows: Iterable[Any], form: Format, options: Mapping[str, str]) -> str:
    """Return the rows as text, in the form that the options noheader, parsable and parsable2 choose."""
    header = "noheader" not in options
    if "parsable" in options or "parsable2" in options:
        delimited = Delimited("|", "parsable" in options)
        lines = delimited.lines(rows, [piece.column for piece in form.pieces], header=header)
    else:
        lines = iter([*([form.header(), form.rule()] if header else []), *form.lines(rows)])
    return "".join(f"{line}\n" for line in lines)
