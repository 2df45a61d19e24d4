"""Pending jobs that are read before the queue is opened: the same jobs, if it has not changed since then."""

import os
import shutil
import sqlite3
from threading import Thread

import pytest

from builders import a_demand, new_jobs
from fgsched.store import Store, ahead, freshrows, wal
from fgsched.store.rows import past_of
from fgsched.store.schema import SQL
from fgsched.store.store import converted

COUNT = 17


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(freshrows, "MOST", 3)
    monkeypatch.setattr(ahead, "_LONG", 1)


def submit(store, count, key):
    with store.write():
        store.submit(new_jobs([a_demand(1)] * count), key=key, who=(7, 8, "ann"), now=5.0)


@pytest.fixture(params=["killed", "stopped"])
def queue(tmp_path, request):
    """The queue of a controller that was killed, with a log, or stopped."""
    store = Store(tmp_path / "queue.db")
    submit(store, COUNT, "first-key")
    store._db.execute("UPDATE job SET note = 'x' WHERE id = 4")
    if request.param == "killed":
        shutil.copytree(tmp_path, tmp_path / "left")
    store.close()
    return tmp_path / "left" / "queue.db" if request.param == "killed" else tmp_path / "queue.db"


def files(queue):
    """Return the contents of the files; of the log, without the old frames at its end."""
    contents = {one.name: one.read_bytes() for one in queue.parent.iterdir() if one.is_file()}
    if log := contents.get("queue.db-wal"):
        contents["queue.db-wal"] = log[: 32 + 4120 * wal.frames(queue.with_name("queue.db-wal"))]
    return contents


def numbers(rows):
    pending, others = rows
    return sorted([*pending.rows, *others])


def test_all_jobs_are_read_and_nothing_is_changed(queue):
    before = files(queue)
    rows = converted(ahead.read_ahead(queue))
    assert numbers(rows) == list(range(1, COUNT + 1))
    assert rows[1] == [4]  # it was changed
    assert files(queue) == before


def test_the_jobs_are_used_if_the_queue_is_as_it_was(queue):
    begun = ahead.read_ahead(queue)
    rows = converted(begun)
    store = Store(queue)
    expected = [past_of(row) for row in store._db.execute(SQL["open_jobs"])]
    store.use_ahead(rows, begun.counts)
    assert store.open_past() == expected
    store.use_ahead(rows, begun.counts)
    assert store.open_rows().pending is rows[0]
    assert store.open_rows().pending is not rows[0]
    store.close()


@pytest.mark.parametrize("change", ["submission", "other program"])
def test_the_jobs_are_read_again_if_the_queue_has_changed(queue, change):
    begun = ahead.read_ahead(queue)
    rows = converted(begun)
    store = Store(queue)
    if change == "submission":
        submit(store, 1, "second-key")
    else:
        store._db.execute("UPDATE job SET note = 'y' WHERE id = 5")
    store.use_ahead(rows, begun.counts)
    assert store.open_rows().pending is not rows[0]
    store.close()


@pytest.mark.parametrize("at", [1, 4])
def test_after_an_error_of_a_thread_the_jobs_are_read_again(queue, at, monkeypatch):
    done, real = [], freshrows.read_part

    def read_part(db, span):
        done.append(span)
        if len(done) == at:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return real(db, span)

    monkeypatch.setattr(ahead, "read_part", read_part)
    begun, before = ahead.read_ahead(queue), files(queue)
    assert converted(begun) is None
    assert not any(thread.is_alive() for thread in begun._threads)
    assert files(queue).keys() == before.keys() - {"queue.db-shm"}


def test_reading_can_be_given_up(queue):
    begun = ahead.read_ahead(queue)
    begun.close()
    assert not any(thread.is_alive() for thread in begun._threads)
    assert "queue.db-shm" not in files(queue)


def test_without_a_second_thread_the_queue_is_read_later(queue, monkeypatch):
    started, real = [], Thread.start

    def start(thread):
        started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(Thread, "start", start)
    assert ahead.read_ahead(queue) is None
    assert not started[0].is_alive()


def test_a_queue_of_one_part_is_not_read_ahead(tmp_path):
    store = Store(tmp_path / "queue.db")
    submit(store, 3, "first-key")
    store.close()
    assert ahead.read_ahead(tmp_path / "queue.db") is None


@pytest.mark.parametrize(
    "what", ["nothing", "a directory", "a pipe", "a text", "another version", "cut short"]
)
def test_what_cannot_be_opened_is_left_to_the_opening(queue, what):
    if what == "another version":
        with sqlite3.connect(queue) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    elif what == "cut short":
        os.truncate(queue, 5000)
    else:
        queue.unlink()
    if what == "a directory":
        queue.mkdir()
    elif what == "a pipe":
        os.mkfifo(queue)
    elif what == "a text":
        queue.write_text("no queue\n" * 1000)
    assert ahead.read_ahead(queue) is None
    assert "queue.db-shm" not in {one.name for one in queue.parent.iterdir()}
