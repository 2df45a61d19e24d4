"""The overview: one page of a made fortnight, of one card, of an empty host, and of hostile names."""

import csv
import io
import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import history
from endedjobs import an_ended_job
from fgsched.accounting.ledger import Ledger, LedgerReader
from fgsched.accounting.periods import Choice
from fgsched.accounting.records import GpuRecord, GpuUseRecord, Minute, Owner, OwnerUse
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import width_of as width
from fgsched.domain.times import DAY, HOUR, MINUTE
from fgsched.reports.export import as_csv, as_json, as_markdown, names
from fgsched.reports.facts import Facts
from fgsched.reports.model import ClassBar, Given, Table
from fgsched.reports.overview import overview
from fgsched.reports.registry import Wish
from fgsched.reports.text import as_text
from reporting import NOW, facts_of, hostile_plan, is_expected

PLANS = {
    "fortnight": (history.FORTNIGHT, "hopper"),
    "one-card": (history.ONE_CARD, "desk-3"),
    "empty": (history.EMPTY, "new-host"),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    for name, (plan, _) in PLANS.items():
        history.write(plan, folder / f"{name}.db")
    return folder


@pytest.fixture(params=PLANS)
def report(request, paths):
    with facts_of(paths / f"{request.param}.db", host=PLANS[request.param][1]) as facts:
        yield request.param, overview(facts, Wish(now=NOW))


def test_the_overview_as_text_is_the_expected_page(report):
    name, page = report
    assert is_expected(f"overview-{name}.txt", as_text(page))
    assert is_expected(f"overview-{name}-ascii.txt", as_text(page, ascii=True))


def test_no_line_of_text_is_longer_than_78_columns_and_ascii_is_ascii(report):
    for ascii in (False, True):
        text = as_text(report[1], ascii=ascii)
        assert max(width(line) for line in text.splitlines()) <= 78
        assert text.isascii() is ascii


def test_the_overview_of_a_closed_period_has_the_same_bytes_when_it_is_made_later(paths):
    made = []
    for now in (NOW, NOW + 90 * DAY):
        with facts_of(paths / "fortnight.db", now=now) as facts:
            made.append(as_json(overview(facts, Wish(now=now))))
    assert made[0] == made[1]


def test_every_section_keeps_its_place_even_if_it_is_empty(paths):
    keys = []
    for name in PLANS:
        with facts_of(paths / f"{name}.db") as facts:
            keys.append([section.key for section in overview(facts, Wish(now=NOW)).sections])
    assert keys[0] == keys[1] == keys[2]
    assert keys[0] == ["time", "gpus", "hours", "users", "waits", "failures", "wastes", "health"]


def test_every_number_of_the_text_is_the_same_string_in_json(paths):
    with facts_of(paths / "fortnight.db") as facts:
        report = overview(facts, Wish(now=NOW))
    text, content = as_text(report), json.loads(as_json(report))
    assert content["schema"] == 1
    for item in content["figures"]["items"]:
        assert item["number"]["text"] in text
    for section in content["sections"]:
        for part in section["parts"]:
            for one in part.get("classes", []):
                assert one["hours"]["text"] in text
                assert one["share"]["text"] in text


def test_the_users_of_the_overview_add_up_to_the_charged_hours(paths):
    with facts_of(paths / "fortnight.db") as facts:
        report, charged = overview(facts, Wish(now=NOW)), facts.charged
    (table,) = (part for part in report.sections[3].parts if isinstance(part, Table))
    assert sum(row[1].value for row in table.rows) == pytest.approx(charged / HOUR)
    assert table.total[1].value == pytest.approx(charged / HOUR)


def test_csv_has_a_header_raw_numbers_and_one_table(paths):
    with facts_of(paths / "fortnight.db") as facts:
        report = overview(facts, Wish(now=NOW))
    text = as_csv(report, "classes")
    assert text.endswith("\r\n")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["class"] for row in rows] == [
        *("active", "held-idle", "reserved-empty", "free", "external", "down"),
    ]
    assert sum(float(row["share_percent"]) for row in rows) == pytest.approx(100.0)
    assert as_csv(report) == text
    with pytest.raises(BadUsage, match="no table 'nothing'"):
        as_csv(report, "nothing")
    for name in names(report):
        assert len({len(row) for row in csv.reader(io.StringIO(as_csv(report, name)))}) == 1


# -- the six classes -----------------------------------------------------------------------------------

PARTS = st.lists(st.integers(0, 20), min_size=6, max_size=6)
MINUTES = st.lists(st.tuples(st.integers(0, 600), st.integers(0, 2), PARTS), max_size=25)


def _written(path, minutes):
    """Write minutes of up to three cards; return the seconds of each class, and what owners were charged."""
    owner, slow, begin = Owner(uid=1, user="ann"), Counter(), int(history.ts(history.at(2026, 11, 10)))
    gpus = [
        GpuRecord(uuid=f"GPU-{at}", gpu=at, model="A100", total=80 << 30, since=begin, until=begin + DAY)
        for at in range(3)
    ]
    ledger = Ledger(path)
    with ledger.write():
        ledger.add_gpus(gpus)
        for (minute, gpu), parts in {(one[0], one[1]): one[2] for one in minutes}.items():
            sampled = sum(parts) / 2
            values = [part / 2 for part in parts]
            slow.update(dict(enumerate(values)))
            names = ("active", "held", "empty", "free", "external", "down")
            use = GpuUseRecord(
                at=begin + 60 * minute,
                uuid=f"GPU-{gpu}",
                sampled=sampled,
                **dict(zip(names, values, strict=True)),
            )
            mine = OwnerUse(
                at=use.at, owner=owner, uuid=use.uuid, job=1, charged=sum(values[:3]), active=values[0]
            )
            ledger.add_minute(Minute(at=use.at, gpus=(use,), owners=(mine,)))
        for hour in range(begin, begin + DAY, HOUR):
            ledger.roll(HOUR, hour, hour + HOUR)
        ledger.roll(DAY, begin, begin + DAY)
    ledger.close()
    return slow


@settings(max_examples=25, deadline=None)
@given(MINUTES)
def test_the_six_classes_of_any_history_are_the_sums_of_its_minutes_and_add_up_to_100(
    tmp_path_factory, minutes
):
    path = tmp_path_factory.mktemp("random") / "accounts.db"
    with history.zone():
        slow = _written(path, minutes)
    with facts_of(path, Choice(since="2026-11-10", until="2026-11-11")) as facts:
        report = overview(facts, Wish(now=NOW))
        assert facts.classes == pytest.approx(tuple(slow[at] for at in range(6)))
        assert facts.charged == pytest.approx(sum(use.charged for use in facts.uses))
        assert facts.lost == pytest.approx(3 * DAY - sum(slow.values()))
    (bar,) = (part for part in report.sections[0].parts if isinstance(part, ClassBar))
    shown = [one.share.text.removesuffix(" %") for one in bar.classes]
    if sum(slow.values()):
        assert round(sum(float(one) for one in shown), 6) == 100.0
    else:
        assert set(shown) == {"\u2013"}


def test_hours_and_days_of_a_made_history_give_the_same_sums(paths):
    reader = LedgerReader(paths / "fortnight.db")
    sums = {}
    for span in (HOUR, DAY, MINUTE):
        sums[span] = [
            sum(getattr(use, name) for use in reader.gpu_uses(span, 0, 2e9)) for name in ("active", "free")
        ]
    reader.close()
    assert sums[HOUR] == pytest.approx(sums[DAY])
    assert sums[HOUR] == pytest.approx(sums[MINUTE])


def test_a_period_whose_hours_are_gone_is_reported_from_days(paths, tmp_path):
    path = tmp_path / "old.db"
    path.write_bytes((paths / "fortnight.db").read_bytes())
    with facts_of(path) as facts:
        before = facts.classes
    ledger = Ledger(path)
    ledger._db.execute("DELETE FROM card_use WHERE span < 86400")
    ledger.close()
    with facts_of(path) as facts:
        assert facts.classes == pytest.approx(before)
        text = as_text(overview(facts, Wish(now=NOW)))
    assert "The samples of hours of this period are no longer kept." in text


# -- hostile names -------------------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path):
    history.write(hostile_plan(), tmp_path / "accounts.db")
    return tmp_path / "accounts.db"


def test_names_with_markup_escapes_and_emoji_harm_no_format(hostile):
    with facts_of(hostile) as facts:
        report = overview(facts, Wish(now=NOW))
    for ascii in (False, True):
        text = as_text(report, ascii=ascii)
        assert max(width(line) for line in text.splitlines()) <= 78
        assert all(char.isprintable() or char == "\n" for char in text)
    text = as_markdown(report)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert not re.search(r"(?<!\\)<", text)
    json.loads(as_json(report))
    for name in names(report):
        rows = list(csv.reader(io.StringIO(as_csv(report, name))))
        assert len({len(row) for row in rows}) == 1
        assert not [cell for row in rows for cell in row if cell.startswith("=")]


def test_a_text_of_a_user_is_always_marked_as_given(hostile):
    """A renderer escapes what is marked; no other text of the report holds a name."""
    with facts_of(hostile) as facts:
        report = overview(facts, Wish(now=NOW))
    content = json.loads(as_json(report))
    found = list(_texts(content))
    assert [kind for kind, text in found if "<script>" in text and kind != "given"] == []
    assert [text for kind, text in found if "<script>" in text and kind == "given"]
    assert Given("x").text == "x"


def _texts(value, kind=""):
    """Yield every text of a report with the type of the cell that holds it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one, value.get("type", "") if key == "text" else "")
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield kind, value


def test_jobs_that_never_started_and_jobs_without_a_gpu_have_their_place(tmp_path):
    path = tmp_path / "accounts.db"
    with history.zone():
        begin = history.ts(history.at(2026, 11, 10, 9))
    common = {"owner": Owner(uid=1, user="ann"), "name": "x", "reason": "None", "submitted_at": begin}
    ledger = Ledger(path)
    with ledger.write():
        ledger.add_jobs(
            [
                an_ended_job(
                    id=1,
                    state="CANCELLED",
                    eligible_at=begin,
                    started_at=None,
                    ended_at=begin + 60,
                    gpus=1,
                    **common,
                ),
                an_ended_job(
                    id=2,
                    state="COMPLETED",
                    eligible_at=begin,
                    started_at=begin + 120,
                    ended_at=begin + 180,
                    **common,
                ),
            ]
        )
    ledger.close()
    with facts_of(path) as facts:
        text = as_text(overview(facts, Wish(now=NOW)))
        assert isinstance(facts, Facts)
    assert "no GPU                         1         2 min         2 min         2 min" in text
    assert "cancelled              1  ann 1" in text
    assert "2 jobs ended; the GPUs were not sampled in this week." in text


def test_a_long_period_is_summed_from_days_with_the_same_result(paths):
    sums = {}
    for choice in (
        Choice(since="2026-09-01", until="2026-11-16"),
        Choice(since="2026-11-02", until="2026-11-16"),
    ):
        with facts_of(paths / "fortnight.db", choice) as facts:
            sums[facts.sum_span] = (*facts.classes, sum(use.charged for use in facts.uses))
    assert sums.keys() == {DAY, HOUR}
    assert sums[DAY] == pytest.approx(sums[HOUR])
