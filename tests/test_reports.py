"""Every report on a made fortnight, on one card, on an empty host, and with hostile names."""

import csv
import io
import json
import os
import re
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import history
from endedjobs import changed
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.periods import Choice
from fgsched.accounting.records import HealthEvent
from fgsched.config.load import Config
from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import width_of as width
from fgsched.domain.times import HOUR
from fgsched.domain.units import GIB
from fgsched.protocol import Allocation, JobInfo
from fgsched.reports import waste
from fgsched.reports.charge import weight_of
from fgsched.reports.ended import Repeated
from fgsched.reports.export import as_csv, as_json, as_markdown, names, table_as_csv
from fgsched.reports.facts import Example
from fgsched.reports.html import as_html
from fgsched.reports.model import (
    Column,
    Given,
    Line,
    Phrase,
    Report,
    Table,
    UseBars,
    Wastes,
    Words,
)
from fgsched.reports.registry import NAMES, Wish, kind
from fgsched.reports.status import status as status_report
from fgsched.reports.text import as_text
from fgsched.reports.waste import use_of
from fgsched.simulate.replay import one_more_gpu
from fgsched.submission.table import OPTIONS
from fgsched.views import job as view
from reporting import NOW, facts_of, hostile_plan, is_expected
from test_ledger import CARD, JOB, USAGE

PLANS = {
    "fortnight": history.FORTNIGHT,
    "one-card": history.ONE_CARD,
    "empty": history.EMPTY,
    "hostile": hostile_plan(),
}
WISH = Wish(now=NOW, weights={"A100": 2.5}, quotas={"vision": 600.0 * HOUR})
every_report = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    for name, plan in PLANS.items():
        history.write(plan, folder / f"{name}.db")
    return folder


def made(paths, name, plan="fortnight", **more):
    """Make a report."""
    user = "jonas" if name == "me" else ""
    with facts_of(paths / f"{plan}.db", user=user) as facts:
        return kind(name).make(facts, replace(WISH, **more))


def parts(report):
    return [part for section in report.sections for part in section.parts]


def table(report, key):
    (part,) = [part for part in parts(report) if isinstance(part, Table) and part.key == key]
    return part


@every_report
def test_a_report_of_the_fortnight_is_the_expected_page(paths, name):
    assert is_expected(f"{name}-fortnight.txt", as_text(made(paths, name)))


@every_report
@pytest.mark.parametrize("plan", PLANS)
def test_every_format_can_be_written_of_every_history(paths, name, plan):
    report = made(paths, name, plan)
    for ascii in (False, True):
        text = as_text(report, ascii=ascii)
        assert max(width(line) for line in text.splitlines()) <= 78
        assert all(char.isprintable() or char == "\n" for char in text)
    assert not ascii or text.isascii()
    text = as_markdown(report)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert not re.search(r"(?<!\\)<[a-z/]", text)
    assert json.loads(as_json(report))["kind"] == name
    for section in names(report):
        rows = list(csv.reader(io.StringIO(as_csv(report, section))))
        assert len({len(row) for row in rows}) == 1
        assert not [cell for row in rows for cell in row if is_formula(cell)]


def is_formula(cell):
    """Tell whether a spreadsheet computes a cell, except numbers and our own lines such as --gpu-mem=8G."""
    begins = re.match(r"[\t\r\n]|\s*[-=+@\uff0d\uff1d\uff0b\uff20]", cell)
    return begins and not re.fullmatch(r"-?[0-9.e-]+|--[a-z-]+=[0-9A-Za-z.]+", cell)


@pytest.mark.parametrize(
    "text", ["=1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1", "\uff0b1"]
)
def test_a_text_of_a_user_begins_no_formula_in_csv(text):
    joined = Phrase((Words(""), Given(text), Words(" 3")))
    table = Table("t", (Column("name", "Name"), Column("users", "Users")), ((Given(text), joined),))
    (_, row) = csv.reader(io.StringIO(table_as_csv(table), newline=""))
    assert row == [f"'{text}", f"'{text} 3"]


def test_a_failed_job_has_its_output_and_a_replayed_job_the_model_that_it_asked_for(paths):
    with facts_of(paths / "fortnight.db") as facts:
        assert facts.failed_jobs(1)[0].output == "/home/hiro/debug-40932.out"
        assert {run.gpu_type for run in facts.runs(2000)} == {"", "A100", "A6000"}


@every_report
def test_a_report_is_the_same_whenever_it_is_made(paths, name):
    first, later = made(paths, name), made(paths, name, now=NOW + 1e7)
    assert as_json(first) == as_json(later)


@every_report
def test_the_main_table_of_a_report_can_be_written_as_csv(paths, name):
    rows = list(csv.DictReader(io.StringIO(as_csv(made(paths, name)))))
    assert rows


def test_a_quiet_report_is_one_without_anything_to_report(paths):
    quiet = {name for name in NAMES if made(paths, name, "empty").quiet}
    assert quiet == set(NAMES) - {"utilization"}
    assert not [name for name in NAMES if made(paths, name).quiet]


@pytest.mark.parametrize("by", ["user", "account", "partition", "type", "tag"])
def test_every_grouping_adds_up_to_the_charged_hours_and_the_ended_jobs(paths, by):
    with facts_of(paths / "fortnight.db") as facts:
        report = kind("users").make(facts, replace(WISH, by=by))
        charged, ended = facts.charged, facts.ended
    (table,) = parts(report)
    heads = [column.key for column in table.columns]
    sums = {key: sum(row[heads.index(key)].value for row in table.rows) for key in ("charged", "jobs")}
    assert sums == {"charged": pytest.approx(charged / HOUR), "jobs": ended}


def test_an_unknown_grouping_and_an_unknown_report_are_refused(paths):
    with pytest.raises(BadUsage, match="no grouping 'moon'"):
        made(paths, "users", by="moon")
    with pytest.raises(BadUsage, match="no report 'nothing'"):
        kind("nothing")


def test_strangers_has_another_name(paths):
    with facts_of(paths / "fortnight.db") as facts:
        assert kind("intruders").make(facts, WISH).kind == "strangers"


def test_the_number_of_rows_of_the_largest_can_be_chosen(paths):
    tables = [part for part in parts(made(paths, "top", number=3)) if isinstance(part, Table)]
    assert [len(table.rows) for table in tables] == [3] * 5


def test_every_proposed_line_is_one_that_fgsub_takes(paths):
    known = {option.name: option for option in OPTIONS}
    lines = []
    for name in ("overview", "waste", "failures"):
        for part in parts(made(paths, name)):
            if isinstance(part, Wastes):
                lines += [item.line for item in part.items]
            elif isinstance(part, UseBars):
                lines += [row.line for row in part.rows]
            elif isinstance(part, Table):
                lines += [cell for row in part.rows for cell in row if isinstance(cell, Line)]
    assert len(lines) > 20
    for line in lines:
        for token in line.tokens:
            if token != "#FG":
                option, _, value = token.removeprefix("--").partition("=")
                if option != "dependency":  # the id of a job that is yet to be submitted
                    known[option].parse(value)


def test_a_proposed_line_returns_what_it_says(paths):
    """49 of 65 GPU-hours: from a whole card to a quarter."""
    with facts_of(paths / "fortnight.db") as facts:
        report = kind("waste").make(facts, WISH)
    item = parts(report)[0].items[0]
    assert (item.user.text, item.job.text) == ("jonas", "clip-embed")
    assert item.line.text.startswith("#FG --gpus=0.25 --gpu-mem=8G")
    assert item.returned.value == pytest.approx(0.75 * item.charged.value)


def test_the_report_on_oneself_shows_no_other_user(paths):
    text = as_json(made(paths, "me"))
    others = {habit.user for habit in history.HABITS} - {"jonas"}
    assert not [user for user in others if f'"{user}' in text]


def test_the_weight_of_a_model_is_that_of_the_longest_name_in_it():
    weights = {"A100": 2.0, "A100 80GB": 2.5, "H100": 4.0}
    assert weight_of("NVIDIA A100 80GB", weights) == 2.5
    assert weight_of("NVIDIA A100-SXM4-40GB", weights) == 2.0
    assert weight_of("NVIDIA RTX A6000", weights) == 1.0


def test_the_charge_of_an_account_is_weighted_and_compared_with_its_quota(paths):
    (accounts, *_) = parts(made(paths, "charge"))
    row = next(row for row in accounts.rows if row[0].text == "vision")
    charged, weighted, _, quota, balance = row[1:]
    assert charged.value < weighted.value < 2.5 * charged.value
    assert (quota.value, balance.value) == (600.0, pytest.approx(600.0 - charged.value))
    rest = next(row for row in accounts.rows if row[0].text == "rl")
    assert [cell.text for cell in rest[4:]] == ["\u2013", "\u2013"]


def test_one_more_card_is_replayed_for_each_model(paths):
    with facts_of(paths / "fortnight.db") as facts:
        found = one_more_gpu(facts, Config().limits)
    assert [one.model for one in found] == ["A100 80GB", "RTX A6000"]
    assert {one.jobs for one in found} == {524}
    assert all(one.median <= one.median_now for one in found)
    report = made(paths, "capacity", replays=found)
    assert (
        "In a replay of the 524 jobs of the period, one more RTX A6000 changed the median wait"
        in " ".join(report.lede)
    )


def test_a_sentence_about_a_replay_of_a_part_names_the_part(paths):
    with facts_of(paths / "fortnight.db") as facts:
        found = one_more_gpu(facts, Config().limits, most=50)
        ran = [run for run in facts.runs(10_000)]
    latest = sorted(ran, key=lambda run: (run.ended_at, run.id))[-50:]
    with history.zone():
        days = [
            time.strftime("%-d %b %Y", time.localtime(at))
            for at in (min(r.eligible_at for r in latest), max(r.ended_at for r in latest))
        ]
    part = f"the last 50 of {len(ran):,} jobs ({days[0]} to {days[1]})"
    report = made(paths, "capacity", replays=found)
    table = next(section for section in report.sections if section.key == "replay").parts[0]
    assert table.caption == f"A replay of {part}, with and without one more card."
    for sentence in report.lede:
        assert "replay" not in sentence or part in sentence


def test_jobs_of_very_many_names_are_grouped_by_sqlite_alike(paths):
    with facts_of(paths / "fortnight.db") as facts:
        kept = facts.repeated
    with facts_of(paths / "fortnight.db") as facts:
        facts.most_names = len(kept) - 1
        found = facts.repeated
    assert len(kept) > 20
    assert [msgspec.structs.asdict(one) for one in found] == [
        pytest.approx(msgspec.structs.asdict(one)) for one in kept
    ]


def test_the_waits_of_a_report_do_not_depend_on_the_query(paths):
    with facts_of(paths / "fortnight.db") as facts:
        alone = list(facts.all_waits)
    with facts_of(paths / "fortnight.db") as facts:
        assert sorted(wait for one in facts.waits for wait in one.waits) == alone == list(facts.all_waits)
    with facts_of(paths / "fortnight.db") as facts:
        assert facts.repeated
        assert list(facts.all_waits) == alone


def test_without_jobs_nothing_is_replayed(paths):
    with facts_of(paths / "empty.db") as facts:
        assert one_more_gpu(facts, Config().limits) == ()


def test_a_day_and_a_month_are_reported_too(paths):
    for choice in (Choice(yesterday=True), Choice(month="2026-11"), Choice(since="2026-11-02T05:00")):
        for name in NAMES:
            with facts_of(paths / "fortnight.db", choice) as facts:
                text = as_text(kind(name).make(facts, WISH))
            assert max(width(line) for line in text.splitlines()) <= 78


def test_the_schema_of_json_is_the_published_one():
    """A field is added, never renamed: a change here is a change for programs that read reports."""
    schema = msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Report)), indent=1).decode() + "\n"
    path = Path(__file__).parent.parent / "docs" / "report-schema.json"
    if os.environ.get("FG_EXPECTED") == "write":
        path.write_text(schema)
    assert path.read_text() == schema


def test_memory_that_was_not_measured_is_no_waste_and_gives_no_line():
    group = Repeated(
        **{"owner": 1, "user": "ann", "name": "train", "gpus": 1, "share": 10_000, "memory": 80 << 30},
        **{"model": "A100", "jobs": 1, "charged": 36_000.0, "used": 360.0, "idle": 0.0, "peak": 0},
        **{"longest": 36_000.0, "elapsed": 36_000.0, "time_limit": 0, "first": 1.0, "last": 1.0},
    )
    example = Example(
        **{"elapsed": 36_000.0, "charged": 36_000.0, "used": 360.0, "peak": 0, "cpus": 1, "empty": 0.0},
        **{"state": "COMPLETED", "sampled": 36_000.0},
        **{"cpu_seconds": None, "held": 0.0, "first_process": 1.0, "busy": 1.0, "with_process": 1.0},
        longest_idle=1.0,
    )

    def line(peak):
        found = use_of(replace(group, peak=peak), [example], {"A100": 80 << 30})
        return [one.line.tokens[:3] for one in [waste._judged(found)] if one]

    assert line(0) == []
    assert line(5 << 30) == [("#FG", "--gpus=0.1", "--gpu-mem=6G")]


@pytest.mark.parametrize(("peak", "used", "hours"), [(0, None, 0.0), (0, 1.0, 40.0), (30 << 30, None, 10.0)])
def test_memory_counts_as_not_used_if_it_was_measured(tmp_path, peak, used, hours):
    ledger = Ledger(tmp_path / "accounts.db")
    usage = replace(USAGE, used=used, peak=0) if used else None
    with ledger.write():
        ledger.add_jobs([changed(JOB, started_at=0.0, ended_at=3600.0, gpu_peak=peak, usage=usage)])
    ledger.close()
    with facts_of(tmp_path / "accounts.db", Choice(since="1970-01-01", until="1970-01-03")) as facts:
        assert sum(one.seconds for one in facts.unused) / (1 << 30) / 3600 == hours
        assert facts.all_unused == pytest.approx(sum(one.seconds for one in facts.unused))


@pytest.mark.parametrize(
    ("peak", "used", "shown"), [(0, None, "–"), (0, 1.0, "0.0 GiB"), (30 << 30, None, "30.0 GiB")]
)
def test_a_peak_that_was_not_measured_is_a_dash_in_one_s_own_report(tmp_path, peak, used, shown):
    ledger = Ledger(tmp_path / "accounts.db")
    usage = replace(USAGE, used=used, peak=0) if used else None
    with ledger.write():
        ledger.add_jobs([changed(JOB, started_at=0.0, ended_at=3600.0, gpu_peak=peak, usage=usage)])
    ledger.close()
    period = Choice(since="1970-01-01", until="1970-01-03")
    with facts_of(tmp_path / "accounts.db", period, user="ann") as facts:
        report = kind("me").make(facts, WISH)
    (table,) = (part for section in report.sections for part in section.parts if part.key == "names")
    cells = dict(zip((column.key for column in table.columns), *table.rows, strict=True))
    assert cells["peak"].text == shown


def test_health_has_the_driver_of_the_period_and_its_changes(tmp_path):
    path, day = tmp_path / "accounts.db", 86_400
    ledger = Ledger(path)
    seen = [
        (1, "535.1"),
        (2, "550.2"),
        (3, "550.2"),
        (5 * day, "550.2"),
        (6 * day, "560.3"),
        (9 * day, "570.4"),
    ]
    with ledger.write():
        ledger.add_gpus([replace(CARD, until=10.0 * day)])
        ledger.add_health([HealthEvent(at=at, uuid=CARD.uuid, kind="driver", detail=it) for at, it in seen])
    ledger.close()

    def driver(first, last):
        with facts_of(path, Choice(since=f"1970-01-{first:02}", until=f"1970-01-{last:02}")) as facts:
            report = kind("health").make(facts, WISH)
            tables = [part for one in report.sections for part in one.parts if part.key == "driver"]
            return report.quiet, [row[0].text for table in tables for row in table.rows]

    assert driver(3, 5) == (True, ["550.2"])
    assert driver(5, 9) == (False, ["550.2", "560.3"])
    assert "The driver changed to 560.3" in health_text(path, 5, 9)


def health_text(path, first, last):
    with facts_of(path, Choice(since=f"1970-01-{first:02}", until=f"1970-01-{last:02}")) as facts:
        return as_text(kind("health").make(facts, WISH))


def test_the_reason_of_a_drained_card_is_in_the_health_report(tmp_path):
    ledger = Ledger(tmp_path / "accounts.db")
    event = HealthEvent(at=90_000.0, uuid=CARD.uuid, kind="state", detail="drained: replace <the> fan")
    again = replace(event, at=91_000.0)  # the next controller
    with ledger.write():
        ledger.add_gpus([replace(CARD, until=100_000.0)])
        ledger.add_health([event, again])
    ledger.close()
    with facts_of(tmp_path / "accounts.db", Choice(since="1970-01-02", until="1970-01-03")) as facts:
        assert facts.health == [event]
    assert "down: replace <the> fan; not back" in health_text(tmp_path / "accounts.db", 2, 3)


def test_failed_jobs_have_the_last_lines_of_their_output(tmp_path):
    path = tmp_path / "accounts.db"
    ledger = Ledger(path)
    failed = changed(JOB, state="FAILED", exit_code=1, ended_at=90_000.0, usage=None)
    with ledger.write():
        ledger.add_jobs([failed, changed(failed, id=8, ended_at=90_001.0)])
    ledger.close()
    lines = {7: ["Traceback", "\x1b[31mOSError: <disk>"], 8: []}
    with facts_of(path, Choice(since="1970-01-02", until="1970-01-03")) as facts:
        report = kind("failures").make(facts, replace(WISH, tail=lambda job: lines[job.id]))
        silent = kind("failures").make(facts, WISH)
    text = as_text(report)
    assert [line.strip() for line in text.splitlines() if "Traceback" in line or "OSError" in line] == [
        "7  Traceback",
        "?[31mOSError: <disk>",
    ]
    assert "&lt;disk&gt;" in as_html(report)
    assert "Output of these jobs" not in as_text(silent)


def test_the_output_and_the_requested_model_of_a_job_are_read_from_its_compressed_part(tmp_path):
    ledger = Ledger(tmp_path / "accounts.db")
    asked = '{"demand":{"gpu_type":"H100"}}'
    job = changed(JOB, state="FAILED", ended_at=90_000.0, output="/home/ann/x.out", request=asked)
    with ledger.write():
        ledger.add_jobs([job, changed(job, id=8, request="", output="")])
    ledger.close()
    with facts_of(tmp_path / "accounts.db", Choice(since="1970-01-02", until="1970-01-03")) as facts:
        assert {one.id: one.output for one in facts.failed_jobs(5)} == {7: "/home/ann/x.out", 8: ""}
        assert {one.id: one.gpu_type for one in facts.runs(5)} == {7: "H100", 8: ""}


@pytest.mark.parametrize("used", [15.0, None], ids=["measured", "without an SM share, as on MIG"])
@pytest.mark.parametrize("sampled", [None, 0, 3 * GIB], ids=str)
@pytest.mark.parametrize("counted", [0, 2 * GIB])
def test_the_peak_of_a_job_in_reports_is_that_of_its_columns(tmp_path, counted, sampled, used):
    usage = None if sampled is None else replace(USAGE, peak=sampled, used=used)
    account = changed(JOB, ended_at=90_000.0, memory=4 * GIB, share=2500, usage=usage, gpu_peak=counted)
    part = Allocation(gpu=0, uuid="GPU-0", model="A100", share=2500, memory=4 * GIB, charged=2500)
    times = {"submitted_at": 10.0, "started_at": 20.0, "ended_at": 90_000.0, "elapsed": 89_980.0}
    seen = {"allocated": [part], "usage": usage, "gpu_peak": counted, "tier": "shim"}
    job = JobInfo(id=7, state=JobState.COMPLETED, **times, **seen)
    ledger = Ledger(tmp_path / "accounts.db")
    with ledger.write():
        ledger.add_jobs([account])
    ledger.close()
    with facts_of(tmp_path / "accounts.db", Choice(since="1970-01-02", until="1970-01-03")) as facts:
        assert facts.all_unused / GIB / HOUR == pytest.approx(view.wasted_memory_hours(job) or 0.0)
        (group,) = facts.repeated
        assert group.peak == (view.gpu_peak(job) or 0)
        (row,) = table(kind("me").make(facts, WISH), "names").rows
        assert row[5].value == view.gpu_peak(job)
        (stored,) = facts.reader.jobs(0, 1 << 40)
    assert stored.row.get("gpu_peak", 0) == counted  # of the job itself nothing is changed


def test_a_task_of_an_array_has_the_name_of_its_columns_in_reports(tmp_path):
    failed = changed(JOB, state="FAILED", oom="gpu", exit_code=1, ended_at=90_000.0)
    ledger = Ledger(tmp_path / "accounts.db")
    with ledger.write():
        ledger.add_jobs([changed(failed, array_job=5, array_task=2), changed(failed, id=8)])
    ledger.close()
    with facts_of(tmp_path / "accounts.db", Choice(since="1970-01-02", until="1970-01-03")) as facts:
        wish = replace(WISH, tail=lambda job: ["a line"])
        for report, names in (
            ("top", "jobs_by_charge jobs_by_idle jobs_by_wait"),
            ("failures", "jobs limits output"),
            ("waits", "longest"),
        ):
            for name in names.split():
                rows = table(kind(report).make(facts, wish), name).rows
                assert sorted((row[0].value, row[0].text) for row in rows) == [(7, "5_2"), (8, "8")], name
    waiting = JobInfo(id=5, array=5, tasks="3-9%2", state=JobState.PENDING, reason=Reason.PRIORITY)
    running = JobInfo(id=7, array=5, task=2, state=JobState.RUNNING)
    present = status_report([], [waiting, running], {}, "hopper", NOW)
    assert [table(present, name).rows[0][0].text for name in ("running", "next")] == ["5_2", "5_[3-9%2]"]


def test_a_table_of_one_column_is_a_page_too(paths):
    report = made(paths, "users")
    names = Table("names", (Column("name", "Name"),), ((Given("ann"),),))
    section = replace(report.sections[0], parts=(names,))
    narrow = replace(report, sections=(section,))
    for form in (as_html, as_text, as_markdown, lambda narrow: as_csv(narrow, "users"), as_json):
        assert "ann" in form(narrow), form
