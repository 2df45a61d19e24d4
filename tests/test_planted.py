"""Each fault that `scripts/bench/mutants --planted` makes has a test that exists, and a line of the page."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAULTS = tomllib.loads((ROOT / "scripts/bench/planted.toml").read_text())["fault"]
PAGE = ROOT / "docs/design/reliability.md"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_a_fault_has_a_test_and_a_line_of_the_page(fault):
    file, _, test = fault["test"].partition("::")
    assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
    assert f"| {fault['name']} | `{Path(file).stem}::{test}` |" in PAGE.read_text()
    assert (ROOT / fault["file"]).exists()
    assert fault["before"] != fault["after"]
