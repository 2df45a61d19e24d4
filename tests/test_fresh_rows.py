"""Jobs that are pending as submitted are read like all others, whatever a row contains."""

import pytest

from builders import a_demand, new_jobs
from fgsched.domain.job import Request
from fgsched.store import Store
from fgsched.store.rows import fresh_past_of, past_of, request_text
from fgsched.store.schema import COLUMNS, SQL

CHANGED = [one for one in COLUMNS if one.name not in ("id", "ended_at")]
TIMES = (5.0, 1_764_111_222.333444, 0.1, 2.0**31 + 2.0**-21, 1e-300)


@pytest.fixture
def store():
    store = Store(":memory:")
    for number, at in enumerate(TIMES):
        for user in ("ann", "bob", "ünïcode"):
            with store.write():
                who = (number, 7, user)
                store.submit(new_jobs([a_demand(1)]), key=f"key-of-{user}-{number}", submitter=who, now=at)
    store._db.execute("PRAGMA ignore_check_constraints = ON")
    store._db.execute("PRAGMA foreign_keys = OFF")
    yield store
    store.close()


def row_by_row(store):
    return [past_of(row) for row in store._db.execute("SELECT * FROM job WHERE ended_at IS NULL ORDER BY id")]


def test_jobs_of_several_owners_and_times_are_read_exactly_and_in_order(store):
    assert store.open_past() == row_by_row(store)
    assert [past.job.submitted_at for past in store.open_past()][::3] == list(TIMES)


def test_only_jobs_as_submitted_are_read_as_such(store):
    store._db.execute("UPDATE job SET note = 'x' WHERE id = 4")
    assert [row["id"] for row in store._db.execute(SQL["fresh_jobs"])] == [1, 2, 3, *range(5, 16)]
    assert [row["id"] for row in store._db.execute(SQL["changed_jobs"])] == [4]


@pytest.mark.parametrize("at", ["soon", None, -1.0, 2.0**60, b""])
def test_a_time_of_submission_that_is_damaged_is_left_to_the_reader_of_damaged_rows(at):
    assert fresh_past_of(1, 7, 8, "ann", request_text(Request(name="x")), at) is None


@pytest.mark.parametrize(("uid", "gid"), [(-1, 8), (7, 2**32), ("7", 8)])
def test_an_absurd_owner_is_left_to_the_reader_of_damaged_rows(uid, gid):
    assert fresh_past_of(1, uid, gid, "ann", request_text(Request(name="x")), 1.0) is None


@pytest.mark.parametrize("column", CHANGED, ids=[one.name for one in CHANGED])
@pytest.mark.parametrize("other", [False, True])
def test_a_job_with_another_value_in_any_column_is_read_as_row_by_row(store, column, other):
    value = {"INTEGER": 1, "REAL": 7.5, "TEXT": "PENDING"}[column.type]
    store._db.execute(f"UPDATE job SET {column.name} = ? WHERE id = 2", [value])
    if other:
        store._db.execute("UPDATE job SET started_at = 6.0, status = 1 WHERE id = 2")
    assert store.open_past() == row_by_row(store)


def test_a_text_that_is_not_utf_8_damages_only_its_own_job(store):
    store._db.execute("UPDATE job SET request = CAST(x'7bff7d' AS TEXT) WHERE id = 2")
    assert [past.job.id for past in store.open_past() if past.damage] == [2]


def test_a_job_as_submitted_that_holds_a_gpu_is_read_with_its_hold(store):
    store._db.execute("INSERT INTO hold (job, gpu, share, memory) VALUES (2, 0, 100, 0)")
    assert [len(past.job.holds) for past in store.open_past()][:3] == [0, 1, 0]


def test_an_empty_queue_has_no_jobs():
    store = Store(":memory:")
    assert store.open_jobs() == []
    store.close()
