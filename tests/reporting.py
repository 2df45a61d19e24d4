"""Helpers for tests of reports: facts of a made history, and files with the expected text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import history
from fgsched.accounting.periods import Choice, chosen
from fgsched.accounting.reports.facts import Facts, ReportReader

EXPECTED = Path(__file__).parent / "data" / "reports"
NOW = history.ts(history.at(2026, 11, 16, 6))
WEEK = Choice(week="2026-W46")
HOSTS = {"fortnight": "hopper", "one-card": "desk-3", "empty": "new-host", "sixteen": "dgx-1"}


@contextmanager
def facts_of(path: Path, choice: Choice = WEEK, host: str = "hopper", now: float = NOW) -> Iterator[Facts]:
    """Give the facts of a period of the accounts in `path`, in the zone of the made histories."""
    with history.zone():
        reader = ReportReader(path)
        with reader.reading():
            yield Facts(reader, chosen(choice, "week", now), host=host)
        reader.close()


def is_expected(name: str, text: str) -> bool:
    """Compare a text with the file of that name; FG_EXPECTED=write writes it instead."""
    path = EXPECTED / name
    if os.environ.get("FG_EXPECTED") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path.read_text() == text
