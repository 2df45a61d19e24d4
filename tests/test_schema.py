"""The tables of the queue: older ones are migrated; new fields and states of a job need no migration."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from builders import BOOT, GIB
from fgsched.domain.errors import StorageError
from fgsched.domain.job import Demand, EarlySignal, Ended, Hold, Job, OomReport, Preemption, Request
from fgsched.domain.states import JobState, Reason
from fgsched.scheduling.queue import Usage
from fgsched.store import GpuAllocation, Store, schema
from fgsched.store.opening import refuse_newer_file
from fgsched.store.schema import PARTS, StoredColumn

DATA = Path(__file__).parent / "data"
HALF = Demand(gpus=1, share=5000, cpus=2, host_memory=GIB, resources=(("matlab", 1),))
STARTED = {
    **{"attempt": 1, "boot": BOOT, "tier": "shim", "mounts": "preload", "cpus": "0-1", "partition": "main"},
    "resources": (("matlab", (0,)),),
}


def hold(share, gpu=0):
    return Hold(gpu=gpu, share=share, memory=share * GIB // 1000)


def given(share, gpu=0):
    return (GpuAllocation(gpu, f"GPU-{gpu}", "Simulated", share, share * GIB // 1000, share),)


def job(number, name, request=None, **fields):
    wish = Request(name=name, **(request or {}))
    return Job(id=number, uid=1000, gid=1000, user="ann", request=wish, submitted_at=5.0, **fields)


ENDED = job(
    *(1, "ended"),
    {
        **{"demand": HALF, "early_signal": EarlySignal(signal=10, before=90, target="shell")},
        **{"rlimits": ((7, 1024, -1),), "args": ("a b", "caf\udce9"), "time_limit": 3600},
    },
    **STARTED,
    **{"state": JobState.COMPLETED, "slot": 1, "started_at": 6.0, "ended_at": 9.0},
    ended=Ended(status=0, cpu_seconds=1.5, max_rss=GIB, gpu_peak=2 * GIB, refusals=1, detail="d"),
)
OUT_OF_MEMORY = job(
    *(2, "out of memory", {"demand": HALF, "account": "physics"}),
    **STARTED,
    **{"state": JobState.OUT_OF_MEMORY, "reason": Reason.GPU_OUT_OF_MEMORY, "slot": 2, "started_at": 10.0},
    **{"ended_at": 12.0, "ended": Ended(status=256), "warning": "it holds 9M"},
    post_mortem=OomReport(gpu=0, asked=GIB, held=2 * GIB, limit=3 * GIB, jobs=((3, GIB),), strangers=7),
)
RUNNING = job(
    *(3, "running", {"demand": HALF, "chdir": "/home/caf\udce9", "umask": 0o77, "time_limit": 60}),
    **STARTED,
    **{"state": JobState.RUNNING, "slot": 3, "started_at": 13.0, "holds": (hold(5000),)},
    **{"cancelled_by": 1000, "note": "why not", "relimited": True, "supervisor_lost": True},
)
SUSPENDED = job(
    *(4, "suspended", {"demand": Demand(gpus=1, share=2500)}),
    **STARTED,
    **{"state": JobState.SUSPENDED, "slot": 4, "started_at": 15.0, "holds": (hold(2500, 1),)},
    **{"suspended_at": 20.0, "suspended": 2.5},
    preemption=Preemption(by=3, at=20.0, mode="suspend", attempt=1, grace=30, until=60.0),
)
HELD = job(5, "held", {"nice": 5, "begin": 1_800_000_000}, held="user")
WAITING = job(6, "waits", {"dependency": "afterok:3", "kill_invalid": "yes"}, depends="afterok:3")
LISTED = {"array": "0-4:2", "throttle": 2, "slurm_env": True}
REQUEUED = job(
    *(8, "requeued"),
    **STARTED,
    **{"slot": 8, "started_at": 21.0, "reason": Reason.BEGIN_TIME, "restarts": 1, "failures": 2},
    **{"not_before": 99.0, "opened_at": 22.0, "wish": "requeue", "condemned": Reason.GPU_LOST},
)


@pytest.fixture
def old(tmp_path):
    """A queue as a program of version 1 left it, with jobs in all states."""
    path = tmp_path / "queue.db"
    shutil.copy(DATA / "queue-v1.db", path)
    path.chmod(0o600)
    return path


def test_a_queue_of_version_1_has_all_its_jobs_for_ever(old):
    store = Store(old)
    assert [store.past(number).job for number in (1, 2)] == [ENDED, OUT_OF_MEMORY]
    assert store.open_jobs() == [
        RUNNING,
        SUSPENDED,
        HELD,
        WAITING,
        job(7, "array", LISTED, array=7),
        REQUEUED,
        job(9, "array", LISTED, array=7, task=0),
    ]
    assert [store.past(number).damage for number in range(1, 10)] == [""] * 9
    assert [store.past(number).allocated for number in (1, 4)] == [given(5000), given(2500, 1)]
    assert store.material(6) == (b"#!/bin/sh\n# waits\n", b"A=1\0")
    assert store.kept.usage() == {("physics", "ann"): Usage(12.5, 5.0)}
    assert store.kept.recall("note") == "kept"
    assert store.check() == "ok"
    store.close()


def version_2(monkeypatch, change):
    """Let this program know a version 2 of the schema, to which this statement leads."""
    source = schema.source
    monkeypatch.setattr(schema, "VERSION", 2)
    monkeypatch.setattr(schema, "source", lambda name: change if name == "migrations/2.sql" else source(name))


COLOUR = "ALTER TABLE card ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';"


def test_a_queue_of_the_version_before_is_migrated_after_a_backup(old, monkeypatch):
    with monkeypatch.context() as newer:
        version_2(newer, COLOUR)
        for _ in range(2):
            store = Store(old)
            assert store.open_jobs()[:2] == [RUNNING, SUSPENDED]
            store.close()
        with closing(sqlite3.connect(old)) as db:
            assert db.execute("SELECT DISTINCT colour FROM card").fetchall() == [("grey",)]
            assert db.execute("PRAGMA user_version").fetchone() == (2,)
    with pytest.raises(StorageError, match="its version is 2, this one knows 1"):
        Store(old)
    backup = old.with_name("queue.db.version-1")
    assert backup.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(backup)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM job").fetchone() == (9,)


def test_a_new_queue_has_the_latest_version_and_no_backup(tmp_path, monkeypatch):
    version_2(monkeypatch, COLOUR)
    Store(tmp_path / "queue.db").close()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("SELECT colour FROM card").fetchall() == []
    assert not list(tmp_path.glob("*version*"))


def test_a_migration_that_fails_leaves_the_version_before(old, monkeypatch):
    with monkeypatch.context() as newer:
        version_2(newer, f"{COLOUR} INSERT INTO missing VALUES (1);")
        with pytest.raises(StorageError, match="no such table: missing"):
            Store(old)
    store = Store(old)
    assert store.open_jobs()[:2] == [RUNNING, SUSPENDED]
    store.close()


def test_a_queue_with_the_number_from_before_the_release_is_one_of_version_1(old):
    change(old, "PRAGMA user_version = 5")
    refuse_newer_file(old)
    store = Store(old)
    assert store.open_jobs()[:2] == [RUNNING, SUSPENDED]
    assert store.check() == "ok"
    store.close()
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert not list(old.parent.glob("*version*"))


def test_the_rules_of_an_older_queue_list_the_states_of_this_program(old):
    Store(old).close()
    with closing(sqlite3.connect(old)) as db:
        rules = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'job'").fetchone()[0]
        assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    parts = ("any_state", "holding_state", "open_state")
    assert [rules.count(f"CASE state {PARTS[part]} ELSE") for part in parts] == [1, 1, 1]


def test_a_queue_that_has_all_columns_and_states_is_not_written_when_it_is_opened(old):
    Store(old).close()
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        schema.adapt(db, old)
        assert db.total_changes == 0


def test_a_new_field_of_a_job_gets_its_column_with_the_default(old, monkeypatch):
    mood = StoredColumn("mood", "mood", "TEXT", "calm", "mood")
    energy = StoredColumn("energy", "energy", "REAL", None, "energy")
    Store(old).close()
    monkeypatch.setattr(schema, "COLUMNS", (*schema.COLUMNS, mood, energy))
    for _ in range(2):
        Store(old).close()
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("SELECT DISTINCT mood, energy FROM job").fetchall() == [("calm", None)]
    store = Store(old)
    assert store.open_jobs()[:2] == [RUNNING, SUSPENDED]
    store.close()


def test_a_new_state_of_a_job_is_accepted_by_the_rules_of_an_older_queue(old, monkeypatch):
    Store(old).close()
    with pytest.raises(sqlite3.IntegrityError):
        change(old, "UPDATE job SET state = 'STAGING' WHERE id = 3")
    for part, result in (("any_state", 1), ("open_state", 0), ("holding_state", 0)):
        monkeypatch.setitem(PARTS, part, f"{PARTS[part]} WHEN 'STAGING' THEN {result}")
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        schema.adapt(db, old)
    change(old, "UPDATE job SET state = 'STAGING' WHERE id = 3")


def change(path, statement):
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()


def test_a_queue_with_a_state_of_a_newer_program_is_refused(old, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setitem(PARTS, "any_state", f"{PARTS['any_state']} WHEN 'STAGING' THEN 1")
        with closing(sqlite3.connect(old, isolation_level=None)) as db:
            schema.migrate(db, str(old))
            schema.adapt(db, old)
    with pytest.raises(StorageError) as error:
        Store(old)
    assert str(error.value) == (
        f"{old} was written by a newer fgsched: it knows the state STAGING\n"
        "Upgrade fgsched, or restore an older backup: this one would lose what it does not know."
    )


class FullAtCommit(sqlite3.Connection):
    """A connection to a disk that fills up at the commit, which ends the transaction."""

    def execute(self, statement, *values):
        if statement == "COMMIT":
            super().execute("ROLLBACK")
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(statement, *values)


class FullBefore(sqlite3.Connection):
    """A connection to a file that can have no more pages, so that a statement fails."""

    def execute(self, statement, *values):
        if statement == "BEGIN IMMEDIATE":
            (pages,) = super().execute("PRAGMA page_count").fetchone()
            super().execute(f"PRAGMA max_page_count = {pages}")
        return super().execute(statement, *values)


@pytest.mark.parametrize("disk", [FullAtCommit, FullBefore])
def test_a_queue_whose_disk_is_full_while_it_is_adapted_is_as_it_was_and_is_adapted_later(
    old, monkeypatch, disk
):
    Store(old).close()
    before = old.read_bytes()
    wide = StoredColumn("mood", "mood", "TEXT", "calm " * 20_000, "mood")
    monkeypatch.setattr(schema, "COLUMNS", (*schema.COLUMNS, wide))
    with closing(sqlite3.connect(old, isolation_level=None, factory=disk)) as db:
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            schema.adapt(db, old)
        assert not db.in_transaction
    assert old.read_bytes() == before
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        schema.adapt(db, old)
        assert db.execute("SELECT DISTINCT mood FROM job").fetchall() == [("calm " * 20_000,)]
