"""Every sentence and every number of every report, compared with a history whose truth is counted by hand.

A report is read as JSON, where each sentence must match a rule of report_rules and each table a table of
report_tables. The other forms must say the same: what JSON does not have, no form shows.
"""

import json
from contextlib import closing

import pytest

import history
from fgsched.accounting.periods import Choice, chosen
from fgsched.accounting.reports.export import as_json
from fgsched.accounting.reports.facts import Facts, ReportReader
from fgsched.accounting.reports.registry import NAMES, Wish, kind
from known_history import HISTORY, STEP, World, t, write
from report_rules import problems
from report_tables import HOUR, agrees, proposals
from report_truth import Truth

END = t(9, 12)  # the controller is still running
NOW = HISTORY.at(END) + 1200
NUMBERS = ("no", "one", "two", "three", "four", "five")
WEIGHTS, QUOTAS = {"A100": 2.5}, {"lab": 200 * 3600.0}


class Case:
    """A period of a history, its truth and that of the period before."""

    def __init__(self, world: World, choice: Choice, span, before, words, user="") -> None:
        self.world, self.choice, self.user = world, choice, user
        self.truth, self.before = Truth(world, *span, user), Truth(world, *before, user)
        self.noun, self.name, self.label, self.earlier, self.closed = words
        self.weights, self.quotas, self.by, self.number = WEIGHTS, QUOTAS, "user", 10

    def read(self, report) -> None:
        """Note which proposals a report must have."""
        most = 5 if report["kind"] in ("overview", "me") else self.number
        self.items = proposals(self)[:most]
        self.returned = sum(one[5] for one in self.items) / HOUR if self.items else 0

    def findings(self, number: str, amount: str) -> bool:
        return number == NUMBERS[len(self.items)] and agrees(amount, self.returned)

    def together(self, amount: str, part: str) -> bool:
        charged = sum(map(self.truth.charged, self.truth.ended)) / HOUR
        return agrees(amount, self.returned) and agrees(part, 100 * self.returned / charged)

    def made(self, path, name: str):
        with history.zone(), closing(ReportReader(path)) as reader, reader.reading():
            facts = Facts(reader, chosen(self.choice, "week", NOW), host="hopper", user=self.user)
            wish = Wish(now=NOW, by=self.by, number=self.number, weights=self.weights, quotas=self.quotas)
            return kind(name).make(facts, wish)


MONTH = t(-8) - 0  # 1 November
CASES = {
    "a week": (
        Choice(week="2026-W46"),
        (t(0), t(7)),
        (t(-7), t(0)),
        ("week", "2026-W46", "9–15 November 2026", "week 45", True),
    ),
    "a week that has not ended": (
        Choice(week="2026-W47"),
        (t(7), t(9, 12)),
        (t(0), t(2, 12)),
        ("week", "2026-W47", "Mon 16 Nov 2026 00:00 – Wed 18 Nov 2026 12:00", "week 46", False),
    ),
    "a day": (
        Choice(since="2026-11-12", until="2026-11-13"),
        (t(3), t(4)),
        (t(2), t(3)),
        ("day", "2026-11-12", "Thursday 12 November 2026", "the day before", True),
    ),
    "hours": (
        Choice(since="2026-11-11T20:00", until="2026-11-12T09:00"),
        (t(2, 20), t(3, 9)),
        (t(2, 7), t(2, 20)),
        (
            "period",
            "2026-11-11T20:00..2026-11-12T09:00",
            "Wed 11 Nov 2026 20:00 – Thu 12 Nov 2026 09:00",
            "the period before",
            True,
        ),
    ),
    "a month that has not ended": (
        Choice(month="2026-11"),
        (t(-8), t(9, 12)),
        (t(-39) + STEP * 0 - 12, t(-22, 12)),
        ("month", "2026-11", "Sun 1 Nov 2026 00:00 – Wed 18 Nov 2026 12:00", "2026-10", False),
    ),
    "a week before there was anything": (
        Choice(week="2026-W42"),
        (t(-28) - 12, t(-21) - 12),
        (t(-35) - 12, t(-28) - 12),
        ("week", "2026-W42", "12–18 October 2026", "week 41", True),
    ),
    "an hour without samples": (
        Choice(since="2026-11-12T00:00", until="2026-11-12T01:00"),
        (t(3), t(3, 1)),
        (t(2, 23), t(3)),
        (
            "period",
            "2026-11-12T00:00..2026-11-12T01:00",
            "Thu 12 Nov 2026 00:00 – Thu 12 Nov 2026 01:00",
            "the period before",
            True,
        ),
    ),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place = tmp_path_factory.mktemp("known") / "accounts.db"
    with history.zone():
        write(HISTORY, place)
    return place


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return Case(HISTORY, *CASES[request.param])


@pytest.mark.parametrize("name", NAMES)
def test_every_sentence_and_every_number_of_a_report_is_true(path, case, name):
    if name == "me":
        case = Case(HISTORY, *CASES["a week"], user="mei")
    report = json.loads(as_json(case.made(path, name)))
    with history.zone():
        assert problems(case, report) == []
