"""`fgsched doctor --recover`: what can be read of a damaged queue is in a new one, and the rest is told."""

import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest

from builders import BOOT, GIB, a_demand, a_gpu, new_jobs
from crashing import QUEUE_FILES, Countdown, PowerCut, copy_files, kill_controller
from fgsched.domain.errors import Exit, StorageError
from fgsched.domain.job import Ended, Hold
from fgsched.domain.states import JobState
from fgsched.store import GpuAllocation, Store, opening, recovering, wal
from fgsched.store.recovering import recover
from fgsched.system.disk import Kernel
from live_host import ROOT, living

ANN = (1, 1, "ann")
FILES = QUEUE_FILES[:4]  # without the checksums
PAGE = 4096


def submit(store, count, key):
    with store.write():
        return store.submit(
            new_jobs(a_demand(1) for _ in range(count)), key=f"{key:0>16}", submitter=ANN, now=5.0
        )


def start(store, job):
    hold = Hold(gpu=0, share=5000, memory=GIB)
    begun = job.advance(JobState.STARTING, attempt=1, holds=(hold,), boot=BOOT, started_at=6.0)
    runs = begun.advance(JobState.RUNNING)
    with store.write():
        store.start(job, begun, (GpuAllocation(0, "GPU-0", "Simulated", 5000, GIB, 5000),))
        store.run(begun, runs, now=7.0)
    return runs


def a_queue(path):
    """Job 1 is over, job 2 runs, job 3 waits; the name of the queue."""
    store = Store(path)
    with store.write():
        store.put_gpus([a_gpu(0)])
        store.kept.remember("said", "something")
    first, second, _ = submit(store, 3, "first")
    runs = start(store, first)
    over = runs.advance(JobState.COMPLETED, holds=(), ended_at=8.0, ended=Ended(status=0))
    with store.write():
        store.save(runs, over, now=8.0)
    start(store, second)
    name = store.name
    store.close()
    return name


def killed(path, into):
    """The same queue, killed after jobs 4 and 5 were submitted; its write-ahead log is gone."""
    a_queue(path)
    store = Store(path)
    submit(store, 2, "second")
    left = copy_files(path, into, FILES)
    store.close()
    (into / "queue.db-wal").unlink()
    return left


def recovered(path, **more):
    given = {"started": {}, "beyond": 0, "ending": "damaged-1", "now": 99.0}
    return recover(path, **(given | more))


def standing(path):
    store = Store(path)
    found = {
        past.job.id: past.job
        for past in store.history(since=0, until=1e9, uid=None, after=0, page=999).records
    }
    store.close()
    return found


def test_a_queue_that_lost_commits_comes_back_with_what_it_has(tmp_path):
    path = killed(tmp_path / "queue.db", tmp_path / "left")
    before = path.read_bytes()
    found = recovered(path)
    assert (found.commits, found.missing_jobs, found.last_job) == (1, [(4, 5)], 5)
    assert (found.held, found.under_way, found.without_script) == ([3], [2], [])
    jobs = standing(path)
    assert [(job.id, job.state, job.held) for job in jobs.values()] == [
        (1, JobState.COMPLETED, ""),
        (2, JobState.FAILED, ""),
        (3, JobState.PENDING, "admin"),
    ]
    assert (jobs[2].ended_at, jobs[2].ended.detail) == (
        99.0,
        "status unknown: the queue was recovered while it ran",
    )
    assert jobs[3].warning == (
        "it may have run in commits that the damaged queue lost: see that it did not before you release it"
    )
    assert path.with_name("queue.db.damaged-1").read_bytes() == before


def test_it_is_another_queue_whose_ids_go_on(tmp_path):
    path = killed(tmp_path / "queue.db", tmp_path / "left")
    found = recovered(path, beyond=17)
    store = Store(path)
    assert found.name == store.name
    assert [job.id for job in submit(store, 1, "third")] == [18]
    assert store.submitted(1, "first".rjust(16, "0")) == range(1, 4), "a repeated request queues no job again"
    assert store.kept.recall("said") == "something"
    assert [event[2:4] for event in store.steps.of(1)][-1] == ("RUNNING", "COMPLETED")
    store.close()


def test_scripts_of_jobs_that_ended_in_the_recovery_are_removed_like_those_of_others(tmp_path):
    path = killed(tmp_path / "queue.db", tmp_path / "left")
    recovered(path)
    store = Store(path)
    with store.write():
        assert store.idle.note(99) is False
    unused = store.idle.since(1e9, 99)
    assert {(one.size, one.ended_at) for one in unused} == {
        (len(b"#!/bin/sh\n"), 99.0),
        (len(b"A=1\0"), 99.0),
    }
    store.close()


def test_a_job_that_left_a_trace_is_told_to_have_been_started(tmp_path):
    path = killed(tmp_path / "queue.db", tmp_path / "left")
    recovered(path, started={1: 1, 3: 2})
    assert standing(path)[3].warning.startswith(
        "it was started in commits that the damaged queue lost, attempt 2: "
    )


def damage_a_page_of_jobs(path):
    """Overwrite the page in the middle of the jobs."""
    with closing(sqlite3.connect(path)) as db:
        rows = [
            row[0] for row in db.execute("SELECT pageno FROM dbstat WHERE name = 'job' AND pagetype = 'leaf'")
        ]
    data = bytearray(path.read_bytes())
    at = (rows[len(rows) // 2] - 1) * PAGE
    data[at : at + PAGE] = b"\xff" * PAGE
    path.write_bytes(data)


def test_what_lies_on_other_pages_than_the_damaged_one_is_saved(tmp_path):
    path = tmp_path / "queue.db"
    store = Store(path)
    submit(store, 2000, "many")
    store.close()
    damage_a_page_of_jobs(path)
    with pytest.raises(StorageError):
        standing(path)
    found = recovered(path)
    (lost,) = found.missing_jobs
    saved = standing(path) if found.rows["job"] < 999 else {}
    assert saved == {}
    assert found.rows["job"] == 2000 - (lost[1] - lost[0] + 1)
    assert 0 < lost[1] - lost[0] < 100, "the jobs of one page"


def test_a_table_of_which_too_much_cannot_be_read_is_given_up_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(recovering, "_FAILURES", 20)
    path = tmp_path / "queue.db"
    store = Store(path)
    submit(store, 2000, "many")
    store.close()
    damage_a_page_of_jobs(path)
    found = recovered(path)
    assert found.given_up == ["job"]
    assert found.rows["job"] > 900


def test_a_job_that_waits_and_whose_script_is_lost_does_not_run_without_it(tmp_path):
    path = tmp_path / "queue.db"
    a_queue(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("DELETE FROM blob")
    db.close()
    found = recovered(path)
    assert (found.held, found.without_script) == ([], [3])
    job = standing(path)[3]
    assert (job.state, job.warning) == (JobState.CANCELLED, "its script was lost with the damaged queue")


def test_what_no_queue_can_have_is_left_out_and_counted(tmp_path):
    path = tmp_path / "queue.db"
    a_queue(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE job SET held = 'me' WHERE id = 1")
    db.close()
    found = recovered(path)
    assert (found.refused, found.missing_jobs, found.rows["job"]) == ({"job": 1}, [(1, 1)], 2)


@pytest.mark.parametrize("offset", [0, 16, 28, 40, 100, 108])
def test_a_queue_whose_first_page_is_damaged_is_read_by_the_schema_of_a_new_one(tmp_path, offset):
    path = tmp_path / "queue.db"
    a_queue(path)
    data = bytearray(path.read_bytes())
    data[offset : offset + 16] = b"\xff" * 16
    path.write_bytes(data)
    recovered(path)
    assert [(job.id, job.state) for job in standing(path).values()][-1] == (3, JobState.PENDING)


def with_damaged_definitions(data, rng):
    """A queue file with some wrong bytes among the definitions of its tables, which fill whole pages."""
    found = sorted({at // PAGE for at in range(len(data)) if data.startswith(b"CREATE ", at)})
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.choice(found) * PAGE + rng.randrange(PAGE)] ^= rng.randrange(1, 256)
    return bytes(changed)


@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_a_queue_with_damaged_definitions_of_its_tables_is_refused_and_recovered_whole(
    tmp_path, seed, has_sums
):
    path = tmp_path / "queue.db"
    a_queue(path)
    path.write_bytes(with_damaged_definitions(path.read_bytes(), random.Random(seed)))
    if not has_sums:
        (tmp_path / "queue.sums").unlink()
    with suppress(StorageError):  # without the sums, a byte between two definitions is not noticed
        Store(path).close()
        assert not has_sums
    recovered(path)
    assert [(job.id, job.state) for job in standing(path).values()][-1] == (3, JobState.PENDING)
    assert len(standing(path)) == 3


def test_a_definition_that_is_not_text_is_a_damage_that_doctor_reports_and_recovers(home):
    assert home.run("fgsub", "--hold", "--wrap", "true").status == 0
    assert home.run("fgsched", "stop").status == 0
    data = home.paths.queue.read_bytes()
    at = data.index(b"CREATE TABLE job") + 10  # the message of SQLite quotes the text
    home.paths.queue.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    for command in (("start",), ("doctor",)):
        done = home.run("fgsched", *command)
        assert "Traceback" not in done.err + done.out
        assert "queue.db is damaged" in done.err + done.out
    assert home.run("fgsched", "start").status == Exit.STORAGE
    assert home.run("fgsched", "doctor", "--recover").status == 0
    assert "1" in home.run("fgq", "-h", "-o", "%i").lines[0]


@pytest.mark.parametrize("step", range(1, 6))
def test_a_recovery_that_is_cut_short_leaves_a_queue_that_is_refused_and_can_be_repeated(
    tmp_path, monkeypatch, step
):
    path = killed(tmp_path / "queue.db", tmp_path / "left")

    def is_ours(*words):
        return str(words[-1]).startswith(f"{path.parent}/queue") and "recovering" not in str(words[-1])

    def cut():
        raise PowerCut

    countdown = Countdown(step, cut)
    with monkeypatch.context() as patch:
        for name in ("link", "rename"):
            patch.setattr(Kernel, name, countdown.around(getattr(Kernel, name), is_ours))
        with pytest.raises(PowerCut):
            recovered(path)
    with pytest.raises(StorageError):
        Store(path)
    recovered(path, ending="damaged-2")
    assert [(job.id, job.held) for job in standing(path).values()] == [(1, ""), (2, ""), (3, "admin")]


def damaged_with_a_log(tmp_path):
    """Jobs 1 to 3 are in the file, 4 and 5 in the log; the counter beside it tells of one more commit."""
    a_queue(tmp_path / "queue.db")
    store = Store(tmp_path / "queue.db")
    submit(store, 2, "second")
    copy_files(tmp_path / "queue.db", tmp_path / "left", FILES[:3])
    submit(store, 1, "third")
    left = copy_files(tmp_path / "queue.db", tmp_path / "left", FILES[2:])
    store.close()
    return left


STEPS = """
import os, sys
from pathlib import Path
sys.path.append("tests")
from crashing import Countdown, kill_self
from fgsched.store import recovering
from fgsched.system.disk import Kernel
countdown = Countdown(int(sys.argv[2]), kill_self)
exchange = recovering._exchange
def watched(*words):
    for name in ("link", "sync", "remove", "rename"):
        setattr(Kernel, name, countdown.around(getattr(Kernel, name)))
    exchange(*words)
    os._exit(3)
recovering._exchange = watched
recovering.recover(Path(sys.argv[1]), started={}, beyond=0, ending="damaged-1", now=99.0)
"""


@pytest.mark.parametrize("step", range(1, 27))
def test_a_recovery_that_is_killed_loses_nothing_of_the_log(tmp_path, step):
    path = damaged_with_a_log(tmp_path)
    command = [sys.executable, "-c", STEPS, str(path), str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (-signal.SIGKILL, 3), done.stderr
    assert done.returncode == -signal.SIGKILL or step > 15
    with suppress(StorageError):
        Store(path).close()  # a controller that is started in between
    recovered(path, ending="damaged-2")
    assert list(standing(path)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(12))
def test_what_follows_damage_in_the_write_ahead_log_is_saved(tmp_path, seed):
    """SQLite ignores it, since each frame's checksum goes by the one before."""
    path = tmp_path / "queue.db"
    store = Store(path)
    for number in range(12):
        submit(store, 1, f"k{number}")
    left = copy_files(path, tmp_path / "left", FILES)
    store.close()
    path = left
    log = bytearray(path.with_name("queue.db-wal").read_bytes())
    bit = random.Random(seed).randrange(len(log) * 8)
    log[bit // 8] ^= 1 << bit % 8
    path.with_name("queue.db-wal").write_bytes(log)
    with pytest.raises(StorageError):
        standing(path)
    found = recovered(path)
    assert (found.commits, found.missing_jobs, found.held) == (0, [], list(range(1, 13)))
    assert len(found.doubtful) <= 1


@pytest.mark.parametrize("damage", ["the header", "the first frame", "none"])
def test_a_look_at_a_queue_without_space_for_the_index_leaves_its_log_alone(tmp_path, damage):
    """On a full disk, SQLite reads as the only user, and removes a log without a commit that it can read."""
    Store(tmp_path / "queue.db").close()
    store = Store(tmp_path / "queue.db")
    submit(store, 3, "k")
    path = copy_files(tmp_path / "queue.db", tmp_path / "copy", FILES)
    store.close()
    log, content = path.with_name("queue.db-wal"), bytearray(path.with_name("queue.db-wal").read_bytes())
    at = {"the header": 20, "the first frame": 100, "none": 0}[damage]
    content[at] ^= at and 1
    log.write_bytes(content)
    path.with_name("queue.db-shm").symlink_to("nowhere")  # as if there was no space for its name
    with opening.looking(path) as db:
        [jobs] = db.execute("SELECT count(*) FROM job").fetchone()
    assert jobs == (3 if damage == "none" else 0)
    assert log.read_bytes() == content


def test_a_log_that_is_whole_needs_no_mending(tmp_path):
    store = Store(tmp_path / "queue.db")
    submit(store, 5, "key")
    assert wal.mended((tmp_path / "queue.db-wal").read_bytes()) is None
    store.close()
    assert wal.mended(b"") is None


def test_what_is_not_there_cannot_be_recovered(tmp_path):
    with pytest.raises(StorageError, match="is missing"):
        recovered(tmp_path / "queue.db")


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.compiler
def test_the_doctor_recovers_a_queue_that_no_controller_starts_from(tmp_path):
    with living(tmp_path / "home") as home:
        home.submit("exit 0", hold=True, count=2)
        kill_controller(home)
        queue = home.path / "queue.db"
        queue.with_name("queue.db-wal").write_bytes(b"")
        refused = home.run("fgq")
        assert (refused.status, "lacks its last" in refused.err) == (Exit.STORAGE, True)
        done = home.run("fgsched", "doctor", "--recover")
        assert (done.status, "Ids without a job: 1-2. The next job gets 3." in done.lines) == (0, True), done
        assert home.submit("exit 0") == 3
        (ended,) = home.wait(3)
        assert ended["state"] == "COMPLETED"
        assert home.run("fgsched", "doctor", "--recover").status == Exit.UNREACHABLE
