"""The keys of submissions: each names its jobs, whatever was undone or forgotten."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_demand, new_jobs
from fgsched.store import Store

KEYS = [letter * 16 for letter in "acegikmoqsuwy"]
A_STEP = st.tuples(
    st.sampled_from(["stored", "undone", "forgotten"]), st.integers(1, 2), st.sampled_from(KEYS)
)
STEPS = st.lists(A_STEP, max_size=40)


class Undone(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def store():
    one = Store(":memory:")
    yield one
    one.close()


def submit(store, key, *, uid=1, count=1, now=5.0, is_undone=False):
    with store.write():
        made = store.submit(new_jobs([a_demand(1)] * count), key=key, submitter=(uid, 1, "ann"), now=now)
        if is_undone:
            raise Undone
    return range(made[0].id, made[-1].id + 1)


def play(store, step, uid, key, known):
    """Do one step if it is possible; `known`: (uid, key) -> ids."""
    if step == "forgotten":
        with store.write():
            store.submissions.forget_old((-1, ""), 10.0, 100)
        known.clear()
    elif (uid, key) not in known and step == "stored":
        known[uid, key] = submit(store, key, uid=uid, count=2)
    elif (uid, key) not in known:
        with pytest.raises(Undone):
            submit(store, key, uid=uid, is_undone=True)


@given(STEPS)
def test_a_key_names_the_jobs_that_the_file_has_for_it(steps):
    store, known = Store(":memory:"), {}
    for step, uid, key in steps:
        play(store, step, uid, key, known)
        found = {(who, one): store.submitted(who, one) for who in (1, 2) for one in KEYS}
        assert {place: ids for place, ids in found.items() if ids is not None} == known
    store.close()


def test_ids_go_on_from_the_last_one_that_was_not_undone(store):
    assert submit(store, KEYS[0], count=3) == range(1, 4)
    with pytest.raises(Undone):
        submit(store, KEYS[1], count=5, is_undone=True)
    assert submit(store, KEYS[2]) == range(4, 5)
    store.raise_ids(9)
    assert submit(store, KEYS[3]) == range(10, 11)


def test_a_damaged_key_refuses_no_submission(tmp_path):
    path = tmp_path / "queue.db"
    one = Store(path)
    submit(one, KEYS[0])
    one.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE submission SET key = CAST(x'ff' AS TEXT)")
    db.commit()
    db.close()
    one = Store(path)
    assert one.submitted(1, KEYS[1]) is None
    assert submit(one, KEYS[1]) == range(2, 3)
    one.close()
