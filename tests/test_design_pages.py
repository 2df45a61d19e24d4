"""The pages of docs name tests; each of them exists."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PAGES = sorted((TESTS.parent / "docs").rglob("*.md"))
NAME = re.compile(r"`(?:tests/)?((?:test|check)_\w+?)(?:\.py)?`")


def known_names() -> set[str]:
    """Return the names of all modules and functions of tests."""
    modules = list(TESTS.rglob("*.py"))
    functions = {name for path in modules for name in re.findall(r"(?m)^\s*def (\w+)\(", path.read_text())}
    return functions | {path.stem for path in modules}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page):
    assert sorted(set(NAME.findall(page.read_text())) - known_names()) == []


def test_every_module_that_the_map_and_the_recipes_name_exists():
    module = re.compile(r"`([a-z]\w*(?:/\w+)+(?:\.(?:py|pyx|pxi|sql|c|h))?)`")
    pages = ((ROOT / page).read_text() for page in ("docs/design/architecture.md", "CONTRIBUTING.md"))
    names = {name for page in pages for name in module.findall(page)}
    made = {"build/pythons", "migrations/2.sql"}  # by a script, and by whoever needs the recipe
    homes, endings = ("", "fgsched/", "fgshim/"), ("", ".py")
    assert len(names) > 150
    assert [
        name
        for name in sorted(names - made)
        if not any((ROOT / home / f"{name}{ending}").exists() for home in homes for ending in endings)
    ] == []


def test_each_row_of_the_field_names_a_test_or_says_how_it_was_shown():
    tables = re.findall(
        r"(?m)^\|.*shown by \|\n\|[-|]+\n((?:\|.*\n)+)", (TESTS.parent / "docs/design/field.md").read_text()
    )
    shown = [row.rstrip("| ").rpartition(" | ")[2] for table in tables for row in table.splitlines()]
    assert len(shown) > 100
    known = (NAME.search, re.compile("by hand|`scripts/|^none$").search)
    assert [cell for cell in shown if not any(is_known(cell) for is_known in known)] == []
