"""The number of the last commit beside the queue: a queue that lacks some is refused, and no other."""

import os
import random
import shutil
import sqlite3
from errno import ENOSPC

import pytest

from builders import a_demand, new_jobs
from crashing import QUEUE_FILES, copy_files
from fgsched.domain.errors import StorageError
from fgsched.store import Store

ANN = (1, 1, "ann")
FILES = QUEUE_FILES[:4]  # without the checksums


def submit(store, number):
    with store.write():
        store.submit(new_jobs([a_demand(1)]), key=f"key-of-16-letters-{number}", submitter=ANN, now=5.0)


@pytest.fixture
def killed(tmp_path):
    """The files of a queue with ten jobs as a kill -9 leaves them: all ten are in the write-ahead log."""
    (tmp_path / "before").mkdir()
    store = Store(tmp_path / "before" / "queue.db")
    for number in range(10):
        submit(store, number)
    left = copy_files(tmp_path / "before" / "queue.db", tmp_path / "left", FILES)
    store.close()
    return left


def ids(path):
    store = Store(path)
    found = [job.id for job in store.open_jobs()]
    store.close()
    return found


def opened(path):
    """The ids of its jobs, or that it is refused for what it lacks."""
    try:
        return ids(path)
    except StorageError as error:
        return "refused" if "lacks its last" in error.cause or "is damaged" in error.cause else error


def refused(path):
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(StorageError) as error:
        Store(path)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    return error.value


def test_a_queue_that_was_killed_opens_with_all_that_was_committed(killed):
    assert ids(killed) == list(range(1, 11))
    assert ids(killed) == list(range(1, 11)), "and once more, after it was closed"


def test_a_lost_write_ahead_log_is_refused_with_what_is_missing(killed):
    killed.with_name("queue.db-wal").unlink()
    error = refused(killed)
    assert error.cause == (
        f"{killed} lacks its last 10 commits, after number 0, with them 10 submitted jobs (up to job 10):"
        " queue.db-wal was lost or damaged, or an older copy is in place"
    )
    assert error.remedy == (
        "It is left as it is. Save what can be read with: fgsched doctor --recover, which fgsched(8) explains"
        "; or bring a backup of the queue back, and do that with it."
    )


def test_no_bit_that_flips_in_the_write_ahead_log_loses_a_job_silently(killed):
    wal = killed.with_name("queue.db-wal")
    whole, rest = wal.read_bytes(), {name: killed.with_name(name).read_bytes() for name in FILES}
    luck = random.Random(7)
    for bit in luck.sample(range(len(whole) * 8), 60):
        for name, data in rest.items():
            killed.with_name(name).write_bytes(data)
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        wal.write_bytes(data)
        assert opened(killed) in ("refused", list(range(1, 11)))


def test_a_record_that_lags_behind_is_no_damage(killed):
    """After a power cut: the queue is synchronised with each commit, and the record is not."""
    killed.with_name("queue.commits").write_bytes(killed.with_name("queue.commits").read_bytes())
    store = Store(killed)
    early = killed.with_name("queue.commits").read_bytes()
    submit(store, 11)
    submit(store, 12)
    store.close()
    killed.with_name("queue.commits").write_bytes(early)
    assert ids(killed) == list(range(1, 13))


@pytest.mark.parametrize("slots", [(0,), (512,), (0, 512)])
def test_records_that_were_cut_short_leave_those_before_them(killed, slots):
    """By a power cut: two are written in turn and not synchronised, and one is from when it was opened."""
    file = killed.with_name("queue.commits")
    data = bytearray(file.read_bytes())
    for slot in slots:
        data[slot + 3] ^= 1
    file.write_bytes(data)
    assert ids(killed) == list(range(1, 11))


def test_a_full_disk_keeps_no_queue_from_opening_that_has_its_record(killed, monkeypatch):
    def full(*_):
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("fgsched.store.files.disk.replace_file", full)
        store = Store(killed)
        submit(store, 11)
        store.close()
    assert ids(killed) == list(range(1, 12))
    killed.with_name("queue.commits").unlink()
    killed.with_name("queue.initialised").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("fgsched.store.files.disk.replace_file", full)
        with pytest.raises(StorageError, match="cannot be opened: "):
            Store(killed)
    assert ids(killed) == list(range(1, 12))


def test_a_damaged_record_is_refused(killed):
    file = killed.with_name("queue.commits")
    file.write_bytes(b"\0" * len(file.read_bytes()))
    assert refused(killed).cause == (
        f"no record in {file} is whole: it cannot tell whether queue.db has all its commits"
    )


def test_a_missing_record_is_refused_where_there_was_one(killed):
    file = killed.with_name("queue.commits")
    file.unlink()
    cause = f"{file} is missing: it tells whether queue.db has all its commits"
    assert refused(killed).cause == cause
    killed.with_name("queue.initialised").unlink()
    assert ids(killed) == list(range(1, 11)), "nothing says that there was one: it may be a copy"


def test_an_older_copy_is_refused(killed):
    store = Store(killed)
    store.close()
    copy = killed.read_bytes()
    store = Store(killed)
    submit(store, 11)
    store.close()
    killed.write_bytes(copy)
    assert refused(killed).cause.startswith(
        f"{killed} lacks its last 1 commit, after number 10, with them 1 submitted job (up to job 11): "
    )


def test_another_queue_in_its_place_is_refused(killed, tmp_path):
    (tmp_path / "other").mkdir()
    other = Store(tmp_path / "other" / "queue.db")
    name = other.name
    other.close()
    killed.with_name("queue.db-wal").unlink()
    mine = Store(tmp_path / "before" / "queue.db")
    was = mine.name
    mine.close()
    shutil.copy(tmp_path / "other" / "queue.db", killed)
    assert refused(killed).cause == f"{killed} is another queue ({name}) than the one that was here ({was})"


def test_ids_go_on_where_those_of_the_queue_before_ended(killed):
    """As an administrator may have done: the queue and its marker were moved away."""
    for name in ("queue.db", "queue.db-wal", "queue.initialised"):
        killed.with_name(name).unlink()
    store = Store(killed)
    submit(store, 11)
    assert [job.id for job in store.open_jobs()] == [11]
    store.close()
    assert ids(killed) == [11]


@pytest.mark.parametrize("step", ["empty", "unnamed", "recorded", "named"])
def test_a_queue_that_was_killed_while_it_was_made_opens(killed, step):
    """With the record of an earlier queue beside it, which no queue that is being made is measured by."""
    foreign = killed.with_name("queue.commits").read_bytes()
    for name in FILES:
        killed.with_name(name).unlink()
    Store(killed).close()
    own = killed.with_name("queue.commits").read_bytes()
    killed.with_name("queue.initialised").unlink()
    if step == "empty":
        killed.write_bytes(b"")
    elif step != "named":
        with sqlite3.connect(killed) as db:
            db.execute("DELETE FROM meta")
        db.close()
    killed.with_name("queue.commits").write_bytes(own if step in {"named", "recorded"} else foreign)
    assert ids(killed) == []


def test_a_turn_that_writes_nothing_is_no_commit(tmp_path):
    store = Store(tmp_path / "queue.db")
    before = (tmp_path / "queue.commits").read_bytes()
    with store.write():
        store.open_jobs()
    assert (tmp_path / "queue.commits").read_bytes() == before
    store.close()
