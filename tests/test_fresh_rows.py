"""Pending jobs that are read in parts: the same jobs as row by row, whatever a row contains."""

import sqlite3

import pytest

from builders import a_demand, new_jobs
from fgsched.store import Store, freshrows
from fgsched.store.rows import past_of
from fgsched.store.schema import COLUMNS, SQL

CHANGED = [one for one in COLUMNS if one.name not in ("id", "ended_at")]
TIMES = (5.0, 1_764_111_222.333444, 0.1, 2.0**31 + 2.0**-21, 1e-300)


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(freshrows, "MOST", 3)  # several parts, of which the last is empty
    store = Store(":memory:")
    for number, at in enumerate(TIMES):
        for user in ("ann", "bob", "ünïcode"):
            with store.write():
                who = (number, 7, user)
                store.submit(new_jobs([a_demand(1)]), key=f"key-of-{user}-{number}", who=who, now=at)
    store._db.execute("PRAGMA ignore_check_constraints = ON")
    store._db.execute("PRAGMA foreign_keys = OFF")
    yield store
    store.close()


def row_by_row(store):
    return [past_of(row) for row in store._db.execute(SQL["open_jobs"])]


def undecoded(store):
    return list(store.open_rows().pending.rows)


def test_jobs_of_several_parts_owners_and_times_are_read_exactly_and_in_order(store):
    assert store.open_past() == row_by_row(store)
    assert [past.job.submitted_at for past in store.open_past()][::3] == list(TIMES)


def test_only_a_time_that_is_no_multiple_of_the_unit_is_read_with_its_row(store):
    assert undecoded(store) == [1, 2, 3, 4, 5, 6, 10, 11, 12]


@pytest.mark.parametrize("column", CHANGED, ids=[one.name for one in CHANGED])
@pytest.mark.parametrize("other", [False, True])
def test_a_job_with_another_value_in_any_column_is_read_as_row_by_row(store, column, other):
    value = {"INTEGER": 1, "REAL": 7.5, "TEXT": "PENDING"}[column.type]
    store._db.execute(f"UPDATE job SET {column.name} = ? WHERE id = 2", [value])
    if other:
        store._db.execute("UPDATE job SET started_at = 6.0, status = 1 WHERE id = 2")
    assert store.open_past() == row_by_row(store)


def test_a_separator_in_a_damaged_text_does_not_shift_the_other_rows(store):
    whole = store.open_past()
    store._db.execute("UPDATE job SET request = request || char(30) || request WHERE id = 2")
    found = store.open_past()
    assert [bool(past.damage) for past in found[:3]] == [False, True, False]
    assert found[:1] + found[2:] == whole[:1] + whole[2:]


def test_a_text_that_is_not_utf_8_damages_only_its_own_job(store):
    store._db.execute("UPDATE job SET request = CAST(x'7bff7d' AS TEXT) WHERE id = 2")
    assert [past.job.id for past in store.open_past() if past.damage] == [2]


def test_requests_that_are_too_long_for_one_list_are_read(store):
    store._db.execute("UPDATE job SET request = json_set(request, '$.comment', ?) WHERE id < 4", ["c" * 5000])
    store._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 12_000)
    assert store.open_past() == row_by_row(store)


def test_an_empty_queue_has_no_jobs():
    store = Store(":memory:")
    assert store.open_jobs() == []
    store.close()
