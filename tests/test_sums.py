"""The checksums of the queue's pages: damage is refused, and nothing else is taken for damage."""

import errno
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from msgspec.structs import replace

from builders import a_demand, a_gpu, new_jobs
from crashing import QUEUE_FILES, copy_files
from fgsched.controller.upkeep import FileCheck
from fgsched.domain.errors import Exit, StorageError
from fgsched.domain.job import Request
from fgsched.store import NewJob, Store, connection, files, opening, wal
from live_host import living

ANN = (1, 1, "ann")
PAGE = 4096


def submit(store, number, count=1):
    with store.write():
        jobs = new_jobs(a_demand(1) for _ in range(count))
        store.submit(jobs, key=f"key-of-16-letters-{number}", submitter=ANN, now=5.0)


def content(path):
    """Every row of the queue as it opens."""
    store = Store(path)
    tables = ("job", "blob", "submission", "hold", "card", "usage", "event")
    rows = [tuple(row) for table in tables for row in store._db.execute(f"SELECT * FROM {table}")]
    store.close()
    return rows


def filled(path, count=300):
    store = Store(path)
    with store.write():
        store.put_gpus([a_gpu(0)])
    submit(store, 1, count)
    store.close()
    return path


def kept(path):
    return {name: path.with_name(name).read_bytes() for name in QUEUE_FILES if path.with_name(name).exists()}


def restore(path, files):
    for name in QUEUE_FILES:
        path.with_name(name).unlink(missing_ok=True)
    for name, data in files.items():
        path.with_name(name).write_bytes(data)
        path.with_name(name).chmod(0o600)


def flipped(data, bit):
    data = bytearray(data)
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def test_no_bit_that_flips_in_the_file_is_believed(tmp_path):
    path = filled(tmp_path / "queue.db")
    whole, files = content(path), kept(path)
    refused = 0
    for bit in random.Random(3).sample(range(len(files["queue.db"]) * 8), 60):
        restore(path, files | {"queue.db": flipped(files["queue.db"], bit)})
        try:
            assert content(path) == whole
        except StorageError:
            refused += 1
    assert refused >= 59, "one may be in the counter of changes, which says nothing"


def test_the_damaged_page_is_named(tmp_path):
    path = filled(tmp_path / "queue.db")
    path.write_bytes(flipped(path.read_bytes(), (PAGE * 6 + 4000) * 8))
    before = kept(path)
    with pytest.raises(StorageError) as error:
        Store(path)
    assert error.value.cause == f"{path} is damaged: it differs from its checksums at page 7"
    assert kept(path) == before, "it is left as it is"


def test_opening_a_queue_writes_nothing_past_its_sums(tmp_path):
    """A long log, as a kill leaves it, and another kill right after the start."""
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    first = Store(tmp_path / "first/queue.db")
    with first.write():
        new = NewJob(request=Request(name="x"), script=b"#!" + os.urandom(6 << 20), environment=b"")
        first.submit([new], key="key-of-16-letters", submitter=ANN, now=5.0)
    restore(tmp_path / "second/queue.db", kept(tmp_path / "first/queue.db"))
    first.close()
    second = Store(tmp_path / "second/queue.db")
    submit(second, 2)
    restore(tmp_path / "third/queue.db", kept(tmp_path / "second/queue.db"))
    second.close()
    third = Store(tmp_path / "third/queue.db")
    assert len(third.open_jobs()) == 2
    third.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE job SET reason = 'Wat' WHERE id = 7",
        "UPDATE card SET state = 'melted'",
        "UPDATE meta SET value = 'x' WHERE key NOT IN ('name', 'created')",
        "DELETE FROM event",
        "ALTER TABLE job ADD COLUMN mood TEXT",
        "VACUUM",
    ],
)
def test_what_another_program_wrote_is_no_damage(tmp_path, change):
    path = filled(tmp_path / "queue.db")
    with sqlite3.connect(path, isolation_level=None) as db:
        db.execute(change)
    db.close()
    content(path)
    path.write_bytes(flipped(path.read_bytes(), (PAGE * 6 + 4000) * 8))
    with pytest.raises(StorageError, match="checksums"):
        Store(path)


def killed(path, store):
    """The files as they are while the store is open: what a kill -9 leaves."""
    shutil.rmtree(path.parent / "left", ignore_errors=True)
    left = copy_files(path, path.parent / "left")
    store.close()
    return left


def test_a_program_that_only_looked_after_a_kill_left_no_damage(tmp_path):
    """It makes a checkpoint when it leaves, without sums."""
    path = filled(tmp_path / "queue.db")
    store = Store(path)
    submit(store, 2, 50)
    path = killed(path, store)
    with sqlite3.connect(path) as db:
        db.execute("SELECT count(*) FROM job").fetchone()
    db.close()
    assert not path.with_name("queue.db-wal").exists()
    assert len([row for row in content(path) if len(row) > 40]) == 350


WRITES = """
import sys
sys.path[:0] = sys.argv[2:]
from fgsched.store import Store, connection
from test_sums import submit
connection._LONG = connection._CHANGES = 20
store = Store(sys.argv[1])
for number in range(100, 200):
    submit(store, number, 3)
    print(number, flush=True)
"""


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize(
    "point", ["before", "without_sums", "with_some_sums", "with_sums"], ids="checkpoint_{}".format
)
def test_a_kill_around_a_checkpoint_is_no_damage(tmp_path, point, nth):
    path = filled(tmp_path / "queue.db", 100)
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", WRITES, str(path), os.path.dirname(here), here]
    environ = {**os.environ, "FG_CRASH_AT": f"checkpoint_{point}:{nth}"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    acknowledged = len(done.stdout.split())
    for _ in (1, 2):
        found = len([row for row in content(path) if len(row) > 40])
        assert found in {100 + 3 * acknowledged, 103 + 3 * acknowledged}
    checked = files.Sums(path)
    assert checked.damaged(1, checked.pages, ()) == []
    checked.close()


def test_a_kill_right_after_a_start_with_a_long_log_is_no_damage(tmp_path, monkeypatch):
    """To open the queue writes nothing, so that SQLite makes no checkpoint of its own."""
    monkeypatch.setattr(connection, "_LONG", 10**9)
    path = filled(tmp_path / "queue.db", 100)
    store = Store(path)
    while wal.frames(path.with_name("queue.db-wal")) < 1200:
        submit(store, wal.frames(path.with_name("queue.db-wal")), 3)
    path = killed(path, store)
    before = kept(path)
    store = Store(path)
    assert kept(path) | {"queue.commits": b""} == before | {"queue.commits": b""}
    assert not path.with_name("queue.db-shm").exists()
    submit(store, "late")
    again = kept(path)
    store.close()
    restore(path, again)
    assert len([row for row in content(path) if len(row) > 40]) > 100


def test_a_checkpoint_of_another_program_that_was_killed_is_no_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_LONG", 10**9)
    path = filled(tmp_path / "queue.db", 100)
    store = Store(path)
    while wal.frames(path.with_name("queue.db-wal")) < 1200:
        submit(store, wal.frames(path.with_name("queue.db-wal")), 3)
    path = killed(path, store)
    db = sqlite3.connect(path)
    for note in "ab":  # the first makes a checkpoint, the second begins the log again
        db.execute("UPDATE card SET note = ?", (note,))
        db.commit()
    files = kept(path)
    db.close()
    restore(path, files)
    assert wal.frames(path.with_name("queue.db-wal")) < 10
    assert len([row for row in content(path) if len(row) > 40]) > 100


def test_a_power_cut_that_leaves_older_sums_is_no_damage(tmp_path, monkeypatch):
    """They are synchronised before the log can begin again; until then the log has the pages."""
    monkeypatch.setattr(connection, "_LONG", 10**9)
    path = filled(tmp_path / "queue.db")
    store = Store(path)
    submit(store, 2, 50)
    older = path.with_name("queue.sums").read_bytes()
    store._opened.checkpoint()
    store._db.execute("SELECT 1")
    files = kept(path)
    store.close()
    for cut in (older, older[: len(older) - 8], files["queue.sums"]):
        restore(path, files | {"queue.sums": cut})
        assert len([row for row in content(path) if len(row) > 40]) == 350


def test_a_frame_that_a_power_cut_tore_apart_costs_no_sums(tmp_path):
    """The page number of a frame and its salts may lie on two pages of the log: one of them was lost."""
    store = Store(filled(tmp_path / "queue.db"))
    submit(store, 2, 50)
    files = kept(tmp_path / "queue.db")
    log = files["queue.db-wal"]
    torn = bytes(4) + log[-24 - PAGE :][4:]
    store.close()
    restore(tmp_path / "queue.db", files | {"queue.db-wal": log + torn})
    store = Store(tmp_path / "queue.db")
    store._opened.checkpoint()
    assert (tmp_path / "queue.sums").exists()
    store.close()


def test_commits_that_a_kill_left_in_memory_are_durable_before_the_next_controller_relies_on_them(
    tmp_path, monkeypatch
):
    """A kill between the write of a commit and its synchronisation, then a power cut."""
    store = Store(filled(tmp_path / "queue.db"))
    submit(store, 2, 50)
    files = kept(tmp_path / "queue.db")
    store.close()
    restore(tmp_path / "queue.db", files)
    synced, real = [], os.fsync

    def noted(fd):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    store = Store(tmp_path / "queue.db")
    monkeypatch.undo()
    store.close()
    assert synced[0] == "queue.db-wal.again"
    assert synced.index(tmp_path.name) < synced.index("queue.commits.new")


@pytest.mark.parametrize("at", [0, 30, 40, 4096, 4100, 4200])
def test_damaged_sums_are_no_damage_of_the_queue(tmp_path, at):
    path = filled(tmp_path / "queue.db")
    data = path.with_name("queue.sums").read_bytes()
    path.with_name("queue.sums").write_bytes(flipped(data, at * 8))
    assert content(path)
    path.with_name("queue.sums").unlink()
    assert content(path)
    assert path.with_name("queue.sums").exists()


def test_sums_that_cannot_be_written_are_done_without(tmp_path, monkeypatch):
    path = filled(tmp_path / "queue.db")
    store = Store(path)
    submit(store, 2, 50)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.Sums, "_put", full)
        store._opened.checkpoint()
    assert not path.with_name("queue.sums").exists()
    submit(store, 3, 50)
    path = killed(path, store)
    assert len([row for row in content(path) if len(row) > 40]) == 400


def test_a_long_log_is_checkpointed_and_its_file_does_not_grow_for_ever(tmp_path):
    store = Store(tmp_path / "queue.db")
    for number in range(40):
        submit(store, number, 200)
    assert wal.frames(tmp_path / "queue.db-wal") < 2000
    assert (tmp_path / "queue.db-wal").stat().st_size < 3000 * PAGE
    store.close()


def unnoticed(data, page):
    """The file with one bit of a page flipped that SQLite's own check does not notice."""
    for byte in range((page - 1) * PAGE + 100, page * PAGE):
        changed = flipped(data, byte * 8)
        with closing(sqlite3.connect(":memory:")) as db, suppress(sqlite3.DatabaseError):
            db.deserialize(changed[:18] + b"\1\1" + changed[20:])  # without a log
            if db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                return changed
    raise AssertionError("SQLite notices each of them")


def check_all(store):
    while store.is_checking:
        store.check_some()


def test_a_large_file_is_checked_in_steps_and_what_is_found_stays_refused(tmp_path, monkeypatch):
    path = filled(tmp_path / "queue.db", 3000)
    for module in (connection, opening):
        monkeypatch.setattr(module, "AT_ONCE", 20)
    monkeypatch.setattr(connection, "_SLICE", 16)
    store, now = Store(path), 1.0
    check = FileCheck(store)
    while (due := check.due(now)) is not None:
        now += due
        check.step(now)
    submit(store, 2)
    store.close()
    last = path.stat().st_size // PAGE - 5
    path.write_bytes(unnoticed(path.read_bytes(), last))
    store = Store(path)
    cause = f"{path} is damaged: it differs from its checksums at page {last}"
    with pytest.raises(StorageError) as error:
        check_all(store)
    assert error.value.cause == cause
    store.close()
    with pytest.raises(StorageError) as error:
        Store(path)
    assert error.value.cause == cause


def test_writes_between_the_steps_are_no_damage(tmp_path, monkeypatch):
    path = filled(tmp_path / "queue.db", 3000)
    for module in (connection, opening):
        monkeypatch.setattr(module, "AT_ONCE", 20)
    for name in ("_SLICE", "_LONG", "_CHANGES"):
        monkeypatch.setattr(connection, name, 16)
    store = Store(path)
    submit(store, 2, 100)
    path = killed(path, store)
    store, number = Store(path), 3
    while store.is_checking:
        store.check_some()
        with store.write():
            for job in store.open_jobs()[number::97]:
                store.save(job, job.changed(held="user"), now=9.0)
        number += 1
    assert number > 5
    store.close()


def large(path):
    """A queue of more than is checked at once."""
    store = Store(path)
    for number in range(17):
        job = NewJob(request=Request(name="x"), script=b"#!" + os.urandom(4 << 20), environment=b"")
        with store.write():
            store.submit(
                [replace(job, held="user")], key=f"key-of-16-letters-{number}", submitter=ANN, now=5.0
            )
        store._opened.checkpoint()
    store.close()


@pytest.mark.compiler
def test_a_controller_checks_a_large_file_beside_its_work_and_stops_once_a_page_is_damaged(tmp_path):
    with living(tmp_path / "home") as home:
        path = home.path / "queue.db"
        large(path)
        assert home.client.ask("ping")["pid"]
        assert home.run("fgsched", "stop").status == 0
        last = path.stat().st_size // PAGE - 5
        path.write_bytes(flipped(path.read_bytes(), ((last - 1) * PAGE + 100) * 8))
        for _ in ("while it runs", "at the start"):
            done = home.run("fgsched", "run")
            cause = f"{path} is damaged: it differs from its checksums at page {last}\n"
            assert (done.status, cause in done.err) == (Exit.STORAGE, True)


def test_the_bench_of_flips_finds_none_that_is_believed():
    here = os.path.dirname(os.path.dirname(__file__))
    command = [sys.executable, f"{here}/scripts/bench/flips", "--log=15", "--file=3", "--megabytes=8.5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("BELIEVED 0") == 2
