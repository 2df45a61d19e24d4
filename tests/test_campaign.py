"""The campaign of faults: its disk that forgets, its sums, and a short form of its targets."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from live_host import ROOT

sys.path.append(str(ROOT / "scripts/bench"))
from targets import disk, kills, layer, rows

SEEDS = range(40)
WRITER = """
import sys
from fgsched.domain.job import Demand, Request
from fgsched.store import NewJob, Store
queue, log = sys.argv[1:]
store = Store(queue)
request = Request(name="job", demand=Demand())
job = NewJob(request=request, script=b"#!/bin/sh\\n" + b"x" * 9000, environment=b"A=1\\0")
for number in range(60):
    with store.write():
        ids = store.submit([job], key=f"key-of-submission-{number}", submitter=(1, 1, "ann"), now=1.0)
    with open(log, "ab", buffering=0) as told:
        told.write(b"a %d 1\\n" % ids[0].id)
    if number % 30 == 10:
        store._opened.checkpoint()
"""


def record(kind, end, file=7, offset=0, data=b"", began=0):
    return disk.Change(end, kind, file, offset, began, data)


def survivors(changes, *, loose=False):
    """Return what cuts with many seeds leave of a disk after these changes."""
    one = disk.Disk(loose=loose)
    for change in changes:
        one.take(change)
    found = [one.survivor(random.Random(seed)) for seed in SEEDS]
    return [dict(pairs) for pairs in {tuple(sorted(each.items())) for each in found}]


def test_what_was_synchronised_survives_and_what_was_not_may_be_lost():
    created = record("C", 1, data=b"/d/a")
    written = [record("W", 2, data=b"old"), record("S", 3, began=2), record("W", 4, offset=3, data=b"new")]
    found = {one["/d/a"] for one in survivors([created, *written])}
    assert found == {b"old", b"old\0\0\0", b"oldnew"}  # its length may survive alone


def test_a_write_during_a_synchronisation_is_not_durable():
    changes = [record("C", 1, data=b"/d/a"), record("W", 2, data=b"x"), record("S", 3, began=1)]
    assert {one["/d/a"] for one in survivors(changes)} == {b"", b"\0", b"x"}


def test_a_name_is_durable_after_a_synchronisation_of_its_directory_only_where_there_is_no_journal():
    changes = [record("C", 1, data=b"/d/a"), record("W", 2, data=b"x"), record("S", 3, began=2)]
    assert {"/d/a" in one for one in survivors(changes, loose=True)} == {True, False}
    assert {"/d/a" in one for one in survivors(changes)} == {True}
    assert {
        "/d/a" in one for one in survivors([*changes, record("D", 4, began=3, data=b"/d")], loose=True)
    } == {True}


def test_a_renamed_file_is_found_under_one_of_its_names():
    changes = [record("C", 1, data=b"/d/a"), record("W", 2, data=b"x"), record("S", 3, began=2)]
    changes += [record("D", 4, began=3, data=b"/d"), record("R", 5, data=b"/d/a\0/d/b")]
    for loose in (False, True):
        assert sorted(map(list, survivors(changes, loose=loose))) == [["/d/a"], ["/d/b"]]


def test_a_long_write_survives_page_by_page():
    changes = [record("C", 1, data=b"/d/a"), record("W", 2, data=bytes(8192)), record("S", 3, began=2)]
    changes += [record("W", 4, data=b"1" * 8192)]
    found = {
        (one["/d/a"][:4096] == b"1" * 4096, one["/d/a"][4096:] == b"1" * 4096) for one in survivors(changes)
    }
    assert found == {(False, False), (False, True), (True, False), (True, True)}


@pytest.mark.compiler
def test_no_power_cut_loses_an_acknowledged_submission_or_leaves_a_queue_that_is_refused(
    tmp_path, monkeypatch
):
    from fgsched.store import Store

    monkeypatch.setenv("FG_BENCH_DIR", str(tmp_path))
    with layer.layered(records=True) as under:
        queue = under.under / "queue.db"
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", WRITER, queue, under.log], env=environ, check=True)
        found = list(disk.changes(under.log))
    luck, acknowledged, at = random.Random(1), set(), 0
    disks = [disk.Disk(loose=False), disk.Disk(loose=True)]
    first = next(place for place, change in enumerate(found) if change.kind == "a") + 1
    for number, cut in enumerate(sorted(luck.randrange(first, len(found)) for _ in range(15))):
        for change in found[at:cut]:
            for one in disks:
                one.take(change)
            if change.kind == "a":
                acknowledged.add(int(change.data.split()[0]))
        at = cut
        place = tmp_path / f"cut{number}"
        place.mkdir()
        disk.lay_out(luck.choice(disks).survivor(luck), str(under.under), place)
        store = Store(place / "queue.db")
        assert acknowledged <= {row[0] for row in store._db.execute("SELECT id FROM job")}, cut
        store.close()
    assert len(acknowledged) > 30


def test_rows_of_several_rounds_are_summed_and_told_with_their_seeds():
    rounds = [
        rows.Row("T4", seed, 40, jobs=100, worst=seed, notes={"max x": seed, "n": 1}) for seed in (3, 4, 9)
    ]
    total = rows.summed(rounds)
    assert (total.done, total.jobs, total.worst, total.notes) == (120, 300, 9, {"max x": 9, "n": 3})
    line = rows.table([("T4", "power cuts", 200, "", rounds)]).splitlines()[-1]
    told = ["T4", "power cuts", "200", "120", "3\u20134, 9", "300", *"000000", "9 ms"]
    assert line == f"| {' | '.join(told)} | held so far (60.0% of the target) |"
    bad = rows.Row("T4", 10, 80, findings=["cut 1: lost"])
    assert "**failed**: 1 findings" in rows.table([("T4", "power cuts", 200, "", [*rounds, bad])])


def test_a_report_of_kills_is_a_row_of_each_of_three_targets():
    zeros = dict.fromkeys(
        (
            *(
                "orders answered and not obeyed",
                "jobs still open after 120 s",
                "clients that failed",
                "run twice",
            ),
            *("acknowledged and lost", "never run", "wrong status", "orphaned processes"),
            *("of killed shepherds: called COMPLETED wrongly", "claims, results and directories left"),
        ),
        0,
    )
    report = zeros | {
        "seed": 5,
        "kill -9 of the controller": 30,
        "kill -9 of the spawner": 20,
        "kill -9 of a shepherd": 10,
    }
    report |= {
        "jobs acknowledged": 99,
        "integrity of the queue file": "ok",
        "of killed shepherds: status unknown": 1,
    }
    found = [(row.target, row.seed, row.done, row.jobs, row.is_held) for row in kills.rows(report)]
    assert found == [("T1", 5, 30, 99, True), ("T2", 5, 20, 99, True), ("T3", 5, 10, 99, True)]
    assert not any(row.is_held for row in kills.rows(report | {"never run": 1}))


def test_a_campaign_continues_where_its_results_end(tmp_path):
    results = tmp_path / "results.json"
    told = subprocess.run(
        [sys.executable, ROOT / "scripts/bench/campaign", "--results", results, "--table"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| T4 | power cuts | 200 | 0 |" in told.stdout
    assert not Path(results).exists()


WRITES = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for text in (b"a", b"b", b"c", b"d"):
    try:
        os.write(file, text)
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.compiler
def test_the_layer_fails_the_chosen_calls_on_files_of_the_home_only(tmp_path, monkeypatch):
    monkeypatch.setenv("FG_BENCH_DIR", str(tmp_path))
    with layer.layered(program="-c") as over:
        over.fail("write", errno.ENOSPC, skip=1, times=2)
        words = [sys.executable, "-c", WRITES]
        done = subprocess.run([*words, over.under / "a"], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(errno.ENOSPC)] * 2
        assert (over.under / "a").read_bytes() == b"ad"
        assert over.control.hits == 2
        over.fail("write", errno.ENOSPC, skip=0, times=9)
        done = subprocess.run([*words, tmp_path / "b"], capture_output=True, text=True, check=True)
        assert (done.stdout, (tmp_path / "b").read_bytes()) == ("", b"abcd")
