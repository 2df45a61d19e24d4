"""Helpers for tests of reports: facts of a made history, and files with the expected text."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

import history
from fgsched.accounting.periods import Choice, chosen
from fgsched.reports.facts import Facts, ReportReader

EXPECTED = Path(__file__).parent / "data" / "reports"
NOW = history.ts(history.at(2026, 11, 16, 6))
WEEK = Choice(week="2026-W46")
HOSTS = {"fortnight": "hopper", "one-card": "desk-3", "empty": "new-host", "sixteen": "dgx-1"}


@contextmanager
def facts_of(
    path: Path, choice: Choice = WEEK, host: str = "hopper", now: float = NOW, user: str = ""
) -> Iterator[Facts]:
    """Give the facts of a period of the accounts in `path`, in the zone of the made histories."""
    with history.zone(), closing(ReportReader(path)) as reader, reader.reading():
        yield Facts(reader, chosen(choice, "week", now), host=host, user=user)


def is_expected(name: str, text: str) -> bool:
    """Compare a text with the file of that name; FG_EXPECTED=write writes it instead."""
    path = EXPECTED / name
    if os.environ.get("FG_EXPECTED") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path.read_text() == text


HOSTILE = (
    "<script>alert(1)</script>",
    "\x1b]0;title\x07\x1b[31mred",
    "\u202eevil\u2066",
    "😀" * 1000,
    "a|b`c*d_e[f](g)\nh\r\n",
    '=HYPERLINK("http://x")',
    'quote",comma\n',
    "x" * 4096,
    "@SUM(A1)",
    "\n =1+1",
    "\uff1d1+1",
)


def hostile_plan() -> history.Plan:
    """Return a fortnight in which every text that a user gives is hostile."""
    plan = history.FORTNIGHT
    habits = tuple(
        history.Habit(
            user=f"{text}{at}",
            name=text,
            a_week=4,
            hours=3,
            share=5000,
            peak=2,
            sm=0.1,
            account=text,
            partition=text,
            tag=text,
            ends=(("oom-gpu", 0.4), ("FAILED", 0.4)),
        )
        for at, text in enumerate(HOSTILE)
    )
    foreign = tuple(replace(one, user=HOSTILE[0], command=HOSTILE[at]) for at, one in enumerate(plan.foreign))
    return replace(plan, habits=habits, foreign=foreign)
