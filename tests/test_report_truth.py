"""Reports compared with what happened: histories with known figures, written by hand."""

import json
import re

import pytest

import history
from fgsched.accounting.ledger import Ledger
from fgsched.accounting.records import ForeignUse, Gap, GpuRecord, GpuUseRecord, HealthEvent, Minute
from fgsched.accounting.samples import GpuLook, Look, Samples
from fgsched.domain.times import DAY, HOUR, MINUTE
from fgsched.reports.export import as_json
from fgsched.reports.mail import report_mail
from fgsched.reports.registry import Wish, kind
from fgsched.reports.text import as_text
from reporting import NOW, facts_of

GIB = 1 << 30
with history.zone():
    MONDAY = int(history.ts(history.at(2026, 11, 9)))


def at(day, hour, minute=0):
    """Return a time of the week in epoch seconds."""
    return MONDAY + day * DAY + hour * HOUR + minute * MINUTE


def a_week(path, processes, gaps=()):
    """Write a week of a host with one GPU; `processes`: (user, command, PID, begin, end)."""
    with history.zone():
        ledger = Ledger(path)
        with ledger.write():
            ledger.add_gpus(
                [GpuRecord(uuid="GPU-0", gpu=0, model="A100", total=80 * GIB, since=at(0, 0), until=at(7, 0))]
            )
        for day in range(7):
            with ledger.write():
                for hour in range(24):
                    for begin in range(at(day, hour), at(day, hour + 1), MINUTE):
                        ledger.add_minute(a_minute(begin, processes, gaps))
                    ledger.roll(HOUR, at(day, hour), at(day, hour + 1))
                ledger.roll(DAY, at(day, 0), at(day + 1, 0))
                while ledger.prune(MINUTE, at(day + 1, 0)):
                    pass
        ledger.close()
    return path


def a_minute(begin, processes, gaps):
    if any(since <= begin < until for since, until in gaps):
        return Minute(at=begin)
    there = [one for one in processes if one[3] < begin + MINUTE and one[4] > begin]
    uses = []
    for user, command, pid, since, until in there:
        first, last = max(since, begin), min(until, begin + MINUTE)
        fields = {"seconds": last - first, "memory": 2.0 * GIB * (last - first), "peak": 2 * GIB}
        fields |= {"user": user, "command": command, "pid": pid, "since": first, "until": last}
        uses.append(ForeignUse(at=begin, uuid="GPU-0", **fields))
    return Minute(
        at=begin,
        gpus=(GpuUseRecord(at=begin, uuid="GPU-0", sampled=MINUTE, free=MINUTE, peak=2 * GIB),),
        foreign=tuple(uses),
    )


def made(path, name):
    with facts_of(path) as facts:
        return kind(name).make(facts, Wish(now=NOW))


def notes(path):
    """Return the notes beside the GPU in the overview."""
    (part,) = next(one for one in made(path, "overview").sections if one.key == "gpus").parts
    return ["".join(word.text for word in note.parts) for note in part.rows[0].notes]


def rows(path):
    """Return the cells of the report on processes outside of jobs: PID, begin, end, time."""
    content = json.loads(as_json(made(path, "strangers")))
    (part,) = next(one for one in content["sections"] if one["key"] == "processes")["parts"]
    texts = [[cell.get("text", "") for cell in row] for row in part["rows"]]
    return sorted((row[1], row[5], row[6], row[7]) for row in texts)


TWO = [("viz", "paraview", 501, at(0, 9), at(0, 10)), ("viz", "paraview", 777, at(5, 15), at(5, 16))]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return a_week(tmp_path_factory.mktemp("two") / "accounts.db", TWO)


def test_the_time_between_two_processes_is_not_shown_as_use(two):
    assert notes(two) == ["external Mon 09:00 – 10:00: viz, 2 GiB", "external Sat 15:00 – 16:00: viz, 2 GiB"]
    assert rows(two) == [
        ("501", "Mon 9 Nov 09:00", "Mon 9 Nov 10:00", "1.0 h"),
        ("777", "Sat 14 Nov 15:00", "Sat 14 Nov 16:00", "1.0 h"),
    ]


def test_no_form_of_a_report_shows_a_time_that_begins_on_monday_and_ends_on_saturday(two):
    for name in ("overview", "utilization", "strangers"):
        mail = report_mail(made(two, name))
        for text in (as_text(made(two, name)), as_json(made(two, name)), mail.text, mail.html, mail.page):
            plain = re.sub(r"<[^>]*>|\s+", " ", text)
            assert not re.search(r"Mon(?: 9 Nov)? 09:00 . Sat", plain)


def test_times_of_one_command_end_where_its_process_was_not_seen(tmp_path):
    """A PID that is used again, a gap of the samples, a pause within an hour, and midnight within a time."""
    processes = [
        ("a", "again", 7, at(0, 9), at(0, 10)),
        ("a", "again", 7, at(2, 9), at(2, 10)),
        ("b", "sampled", 8, at(1, 9), at(1, 12)),
        ("c", "pause", 9, at(3, 9), at(3, 9, 10)),
        ("c", "pause", 10, at(3, 9, 50), at(3, 10)),
        ("d", "midnight", 11, at(4, 22), at(5, 2)),
        ("e", "both", 12, at(6, 9), at(6, 11)),
        ("e", "both", 13, at(6, 10), at(6, 12)),
    ]
    path = a_week(tmp_path / "accounts.db", processes, gaps=[(at(1, 10), at(1, 11))])
    assert rows(path) == sorted(
        [
            ("7", "Mon 9 Nov 09:00", "Mon 9 Nov 10:00", "1.0 h"),
            ("7", "Wed 11 Nov 09:00", "Wed 11 Nov 10:00", "1.0 h"),
            ("8", "Tue 10 Nov 09:00", "Tue 10 Nov 10:00", "1.0 h"),
            ("8", "Tue 10 Nov 11:00", "Tue 10 Nov 12:00", "1.0 h"),
            ("9", "Thu 12 Nov 09:00", "Thu 12 Nov 09:10", "0.2 h"),
            ("10", "Thu 12 Nov 09:50", "Thu 12 Nov 10:00", "0.2 h"),
            ("11", "Fri 13 Nov 22:00", "Sat 14 Nov 02:00", "4.0 h"),
            ("12", "Sun 15 Nov 09:00", "Sun 15 Nov 11:00", "2.0 h"),
            ("13", "Sun 15 Nov 10:00", "Sun 15 Nov 12:00", "2.0 h"),
        ]
    )
    assert notes(path) == [
        "external Fri 22:00 – Sat 02:00: d, 2 GiB",
        "external Sun 09:00 – 11:00: e, 2 GiB",
        "external Sun 10:00 – 12:00: e, 2 GiB",
        "external 4 more times, 4 h in all",
    ]


def test_processes_that_are_started_in_a_loop_are_joined_only_where_they_adjoin(tmp_path):
    loop = [("eve", "python", 100 + one, at(1, 9, one), at(1, 9, one + 1)) for one in range(30)]
    loop += [("eve", "python", 200 + one, at(1, 9, one), at(1, 9, one + 1)) for one in range(40, 60)]
    assert rows(a_week(tmp_path / "accounts.db", loop)) == [
        ("several", "Tue 10 Nov 09:00", "Tue 10 Nov 09:30", "0.5 h"),
        ("several", "Tue 10 Nov 09:40", "Tue 10 Nov 10:00", "0.3 h"),
    ]


def test_a_gpu_that_came_back_while_no_controller_ran_is_not_shown_as_down(tmp_path):
    path = a_week(tmp_path / "accounts.db", [], gaps=[(at(1, 10), at(4, 0))])
    ledger = Ledger(path)
    with ledger.write():
        ledger.add_gap(Gap(since=at(1, 10), until=at(4, 0), why="the controller did not run"))
        for since, state in ((at(0, 0), "ok"), (at(0, 9), "suspect: Xid 79"), (at(4, 0), "ok")):
            ledger.add_health([HealthEvent(at=since, uuid="GPU-0", kind="state", detail=state)])
    ledger.close()
    assert notes(path) == ["down Mon 09:00 – Tue 10:00: Xid 79, the GPU has fallen off the bus"]


def test_a_controller_records_at_its_start_that_a_gpu_is_up():
    look = Look(wall=1000.0, clock=1.0, gpus=(GpuLook(uuid="GPU-0", size=GIB),))
    (event,) = [one for one in Samples(interval=5.0, since=900.0).look(look) if isinstance(one, HealthEvent)]
    assert (event.kind, event.detail) == ("state", "ok")


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (
            2,
            [
                "down Mon 09:00 – 10:00: Xid 31, memory page fault of a program",
                "down Tue 09:00 – 10:00: Xid 31, memory page fault of a program",
            ],
        ),
        (5, ["down 5 times, 5 h in all"]),
    ],
)
def test_more_than_three_times_in_which_a_gpu_was_down_are_counted(tmp_path, days, expected):
    path = a_week(tmp_path / "accounts.db", [])
    ledger = Ledger(path)
    with ledger.write():
        for day in range(days):
            down = HealthEvent(at=at(day, 9), uuid="GPU-0", kind="state", detail="down: Xid 31")
            up = HealthEvent(at=at(day, 10), uuid="GPU-0", kind="state", detail="ok")
            ledger.add_health([down, up])
    ledger.close()
    assert notes(path) == expected
