"""The time that a run may take, and the page with its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck.sheet import Row


@dataclass(frozen=True)
class Section:
    """A section with its results."""

    number: str
    title: str
    rows: Sequence[Row]
    seconds: float


def has_time(spent: float, usual: float, budget: float) -> bool:
    """Tell whether a section still fits. `usual`: seconds that it takes on a GPU."""
    return spent + usual <= budget


def page(gpu: str, python: str, sections: Sequence[Section]) -> str:
    """Return the results as a page of Markdown."""
    failed = sum(row.holds is False for section in sections for row in section.rows)
    missing = sum(row.holds is None for section in sections for row in section.rows)
    count = sum(len(section.rows) for section in sections)
    took = sum(section.seconds for section in sections)
    lines = [
        "# Results of `scripts/gpu-check`",
        "",
        f"{gpu}. Frameworks of `{Path(python).name}`.",
        f"{count} checks in {took:.0f} s: {failed} failed, {missing} were not made.",
    ]
    for section in sections:
        lines += ["", f"## {section.number}. {_cell(section.title)} ({section.seconds:.0f} s)", ""]
        lines += ["| | check | result |", "|---|---|---|"]
        lines += [
            f"| {row.word.rstrip(':')} | {_cell(row.what)} | {_cell(row.result)} |" for row in section.rows
        ]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
