"""The table engine: formats, marks, delimiters, and that there is one."""

import ast
from pathlib import Path
from types import SimpleNamespace

import fgsched
from fgsched.views import fields
from fgsched.views.listing import Delimited, TableColumn, marked

PACKAGE = Path(fgsched.__file__).parent
ROW = SimpleNamespace(name="a-long-name", size=None, step="")
NAME = TableColumn("Name", "name", width=6)
SIZE = TableColumn("Size", "size", width=4)


def test_a_text_that_does_not_fit_ends_with_a_mark_and_an_unknown_value_is_blank():
    form = marked([(NAME, None), (SIZE, -6)], end="|")
    assert [form.header(), form.rule(), *form.lines([ROW])] == [
        "  Name Size  |",
        "------ ------|",
        "a-lon+       |",
    ]


def test_a_delimiter_in_a_text_shifts_no_column():
    row = SimpleNamespace(name="a|b", size=1, step="")
    assert list(Delimited("|", trailing=True).lines([row], [NAME, SIZE], header=True)) == [
        "Name|Size|",
        "a?b|1|",
    ]


def test_a_column_of_jobs_is_blank_in_the_row_of_a_step():
    column = NAME._replace(is_of_jobs=True)
    assert [column.cell(ROW), column.cell(SimpleNamespace(name="x", step="0"))] == ["a-long-name", ""]


def test_every_column_of_jobs_declares_the_attributes_that_it_reads():
    assert all(column.fields for column in (*fields.COLUMNS, *fields.ACCOUNTS))


def test_cells_of_tables_are_cut_and_padded_in_the_engine_alone():
    """The table that fits a window, and the parts of one line, are the exceptions."""
    importers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "fgsched.views.display"
        if any(alias.name == "fit" for alias in node.names)
    }
    assert importers == {"views/listing.py", "cli/terminal.py"}
