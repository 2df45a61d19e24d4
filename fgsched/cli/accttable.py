"""Print the fields of fgacct as a table: with fixed widths, or fitted to a terminal."""

from collections.abc import Iterable, Iterator

from fgsched.cli import terminal
from fgsched.cli.acctfields import AcctColumn
from fgsched.cli.terminal import Cell, Head
from fgsched.domain.text import clean
from fgsched.protocol import JobInfo
from fgsched.views.display import fit

_LEAST = {"JobID": 12, "JobName": 8, "Partition": 6, "User": 6, "State": 9}  # columns on a narrow terminal
_MINOR = {"Partition", "User", "MaxGPUMem"}  # left out on a narrower one
_FITS = 9  # fields at most, of which a narrow terminal leaves out some


def aligned(
    jobs: Iterable[JobInfo], chosen: list[AcctColumn], unit: str, *, header: bool, colour: bool = False
) -> Iterator[str]:
    """Return lines of columns of fixed width; a text that does not fit ends with +."""
    if header:
        yield _line([Cell(column.field.name) for column in chosen], chosen)
        yield _line([Cell("-" * column.width) for column in chosen], chosen)
    for job in jobs:
        yield _line([_cell(job, column, unit, colour=colour) for column in chosen], chosen)


def fitted(
    jobs: Iterable[JobInfo], chosen: list[AcctColumn], unit: str, *, header: bool, colour: bool
) -> list[str]:
    """Return a table for the width of the terminal; one with too many columns is wider."""
    heads = [
        Head(
            column.field.name,
            right=not column.left,
            least=_LEAST.get(column.field.name, 0),
            minor=column.field.name in _MINOR and len(chosen) <= _FITS,
        )
        for column in chosen
    ]
    rows = [[_cell(job, column, unit, colour=colour) for column in chosen] for job in jobs]
    return terminal.table(heads, rows, terminal.width(), header=header)


def _cell(job: JobInfo, column: AcctColumn, unit: str, *, colour: bool) -> Cell:
    text = column.text(job, unit)
    is_painted = colour and column.field.name in ("State", "Reason")
    return Cell(text, terminal.of_reason(job.state, job.reason) if is_painted else "")


def _line(cells: list[Cell], chosen: list[AcctColumn]) -> str:
    return " ".join(
        terminal.painted(
            fit(clean(cell.text), column.width, right=not column.left, mark=terminal.MARK), cell.colour
        )
        for cell, column in zip(cells, chosen, strict=True)
    )
