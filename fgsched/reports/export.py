"""Write a report for programs: JSON with a versioned schema, and CSV after RFC 4180."""

import csv
import io
import re
from typing import Any

import msgspec

from fgsched.domain.errors import BadUsage
from fgsched.reports.model import (
    Bar,
    Cell,
    Change,
    Column,
    Event,
    Given,
    Number,
    Phrase,
    Report,
    Table,
)
from fgsched.reports.tables import find, tables_of

# A spreadsheet may begin a formula with these, also after blanks and in their full width.
_FORMULA = re.compile("[\t\r\n]|\\s*[-=+@\uff0d\uff1d\uff0b\uff20]")
_UNITS = {"GPU-hours": "gpu_hours", "GiB-hours": "gib_hours", "%": "percent"}


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
    found = round(value, 6)
    return int(found) if found == int(found) else found
