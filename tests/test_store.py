"""The queue file: what it keeps, what it refuses, what it can never hold."""

import math
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from msgspec.structs import replace

from builders import BOOT, GIB, a_demand, a_gpu, new_jobs
from crashing import copy_files
from fgsched.domain.errors import Refused, StorageError
from fgsched.domain.job import WHOLE, Ended, GpuState, Hold, Request
from fgsched.domain.states import JobState, Reason
from fgsched.store import DiskError, GpuAllocation, NewJob, StorageBroken, Store
from fgsched.store.connection import Statement
from fgsched.store.files import commit_file, marker_path
from fgsched.store.opening import looking, open_queue, refuse_newer_file
from fgsched.store.rows import past_of
from fgsched.store.schema import SQL, VERSION
from fgsched.store.store import MOST_EVENTS

ANN = (1, 1, "ann")


@pytest.fixture
def store():
    store = Store(":memory:")
    with store.write():
        store.put_gpus([a_gpu(0), a_gpu(1)])
    yield store
    store.close()


def submit(store, *shares, key="key-of-16-letters"):
    with store.write():
        return store.submit(new_jobs(a_demand(share) for share in shares), key=key, submitter=ANN, now=5.0)


def start(store, job, *, gpu=0, share=5000, memory=GIB):
    hold = Hold(gpu=gpu, share=share, memory=memory)
    after = job.advance(JobState.STARTING, attempt=1, holds=(hold,), boot=BOOT, started_at=6.0)
    with store.write():
        given = (GpuAllocation(gpu, "GPU-0", "Simulated", share, memory, share),)
        return store.start(job, after, given), after


def test_a_script_that_is_missing_from_a_damaged_queue_is_told_in_words(tmp_path):
    store = Store(tmp_path / "queue.db")
    with store.write():
        first = store.submit(new_jobs([a_demand(1)]), key="key-of-16-letters", submitter=ANN, now=5.0)[0].id
    store.close()
    with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as db:
        db.execute("DELETE FROM blob")
    store = Store(tmp_path / "queue.db")
    with pytest.raises(Refused, match="script or environment is missing from the queue"):
        store.material(first)
    store.close()


def test_ids_grow_by_one_and_are_never_used_again(store):
    assert [job.id for job in submit(store, 1, 2)] == [1, 2]
    assert [job.id for job in submit(store, 3, key="another-key-of-more")] == [3]
    assert store.last_id() == 3


def test_a_key_that_was_seen_names_the_jobs_it_made(store):
    submit(store, 1, 2, 3)
    assert store.submitted(1, "key-of-16-letters") == range(1, 4)
    assert store.submitted(2, "key-of-16-letters") is None, "keys are each user's own"


def test_a_job_comes_back_as_it_was_written(store):
    (job,) = submit(store, 5000)
    _, after = start(store, job)
    assert store.open_jobs() == [after]


def test_a_job_whose_cards_are_being_cleaned_keeps_its_end(store):
    (job,) = submit(store, 5000)
    _, starting = start(store, job)
    over = {"ended_at": 8.0, "ended": Ended(status=0), "outcome": JobState.COMPLETED}
    cleaned = starting.advance(JobState.COMPLETING, reason=Reason.GPU_CLEANING, **over)
    with store.write():
        store.save(starting, cleaned, now=9.0)
    assert store.open_jobs() == [cleaned]


def test_equal_scripts_and_environments_are_kept_once(store):
    submit(store, 1, 2, 3)
    assert store.material(2) == (b"#!/bin/sh\n", b"A=1\0")


def material_of(number):
    return b"#!/bin/sh\n# %d\n" % number, b"N=%d\0" % number


def submit_different(store, *numbers):
    (like,) = new_jobs([a_demand(1)])
    jobs = [
        replace(like, script=script, environment=variables) for script, variables in map(material_of, numbers)
    ]
    return store.submit(jobs, key=f"key-of-16-letters-{numbers}", submitter=ANN, now=5.0)


@pytest.mark.parametrize("most", [0, 20_000])
def test_a_job_is_launched_with_its_own_script_and_variables_however_often(store, monkeypatch, most):
    monkeypatch.setattr("fgsched.store.blobs._LATELY", most)
    with store.write():
        submit_different(store, 1, 2)
    with store.write():
        submit_different(store, 3)
    for number in (1, 2, 3, 1, 2, 3):
        assert store.material(number) == material_of(number)


def test_what_was_undone_is_not_what_the_next_job_is_launched_with(store):
    def fail():
        with store.write():
            submit_different(store, 7, 8)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.write():
        assert [job.id for job in submit_different(store, 1, 8)] == [1, 2]
    assert [store.material(job) for job in (1, 2)] == [material_of(1), material_of(8)]


def test_of_two_writers_only_the_first_moves_a_job(store):
    (job,) = submit(store, 5000)
    assert start(store, job)[0] is True
    cancelled = job.advance(JobState.CANCELLED, ended_at=7.0)
    with store.write():
        assert store.save(job, cancelled, now=7.0) is False


def test_the_holds_go_with_the_end(store):
    (job,) = submit(store, 5000)
    _, after = start(store, job)
    with store.write():
        store.save(after, after.advance(JobState.FAILED, ended_at=8.0, holds=()), now=8.0)
    assert store.open_jobs() == []
    past = store.past(1)
    assert past.allocated[0].share == 5000, "accounting still knows what it was given"


def test_the_file_itself_refuses_an_over_held_card(store):
    first, second = submit(store, 6000, 6000)
    start(store, first, share=6000)
    with pytest.raises(sqlite3.IntegrityError, match="held beyond what it has"):
        start(store, second, share=6000)
    assert [job.state for job in store.open_jobs()] == [JobState.STARTING, JobState.PENDING]


def test_the_file_itself_refuses_bytes_that_the_card_does_not_have(store):
    (first,) = submit(store, 6000)
    with pytest.raises(sqlite3.IntegrityError, match="held beyond what it has"):
        start(store, first, memory=17 * GIB)


IMPOSSIBLE = [
    *["state = 'DONE'", "held = 'me'", "wish = 'more'", "lost = 2", "attempt = -1"],
    *[
        "state = 'RUNNING'",
        "state = 'COMPLETED'",
        "ended_at = 9",
        "suspended_at = 9",
        "array_job = 1, attempt = 1",
    ],
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_the_file_itself_refuses_a_job_as_none_can_be(store, change):
    submit(store, 5000)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        store._db.execute(f"UPDATE job SET {change}")


@pytest.mark.parametrize("state", [*JobState])
def test_the_file_knows_every_state(store, state):
    submit(store, 5000)
    fitting = "attempt = 1, boot = 'b', started_at = 1, allocated = '[]'"
    ends = "ended_at = :ended, suspended_at = :suspended"
    values = {
        "state": state.value,
        "ended": 2 if state.is_final else None,
        "suspended": 2 if state is JobState.SUSPENDED else None,
    }
    store._db.execute(f"UPDATE job SET state = :state, {fitting}, {ends}", values)
    assert [
        past.job.state for past in store.history(since=0, until=9, uid=None, after=0, page=9).records
    ] == [state]


@pytest.mark.parametrize("name", ["add_job", "start_job", "run_job", "save_job"])
def test_what_is_written_for_each_job_makes_no_table_in_memory(store, name):
    values = dict.fromkeys(re.findall(r":(\w+)", SQL[name]), 1)
    steps = {row["opcode"] for row in store._db.execute("EXPLAIN " + SQL[name], values)}
    assert "MakeRecord" in steps
    assert not steps & {"OpenEphemeral", "OpenAutoindex"}


def test_a_failed_transaction_leaves_nothing(store):
    def fail():
        with store.write():
            store.submit(new_jobs([a_demand(1)]), key="key-of-16-letters", submitter=ANN, now=5.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.open_jobs() == []
    submit(store, 1)


def submit_separately(store, count):
    """Store submissions of one job each with keys that are not known, in the open transaction."""
    jobs = []
    for key in (f"key-of-letters-{number:02}" for number in range(count)):
        assert store.submitted(1, key) is None
        jobs += store.submit(new_jobs([a_demand(1)]), key=key, submitter=ANN, now=5.0)
    return jobs


@pytest.mark.parametrize("most", [1, 2, 1000], ids=lambda most: f"{most} in memory")
def test_a_key_that_was_used_before_in_the_same_transaction_is_known(store, monkeypatch, most):
    monkeypatch.setattr("fgsched.store.store._ADDED", most)
    with store.write():
        jobs = submit_separately(store, 3)
        found = [store.submitted(1, f"key-of-letters-{number:02}") for number in range(3)]
    assert found == [range(job.id, job.id + 1) for job in jobs]


def test_a_key_of_a_failed_transaction_or_of_a_deleted_submission_is_not_known(store):
    def fail():
        with store.write():
            submit_separately(store, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.write():
        submit_separately(store, 1)
    with store.write():
        store.submissions.forget_old((0, ""), before=6.0, most=10)
    assert store.submitted(1, "key-of-letters-00") is None


@pytest.mark.parametrize("count", [1, 3, 4, 16, 23, 40])
def test_the_submissions_of_a_transaction_are_inserted_together_and_are_all_there(store, count):
    (first,) = submit(store, 1, key="a-key-before-all")  # later ones read nothing
    said = []
    store._db.set_trace_callback(said.append)
    with store.write():
        made = submit_separately(store, count)
    inserts = [text for text in said if text.startswith("INSERT INTO job")]
    assert len(inserts) == count // 16 + count % 16 // 4 + count % 4
    assert store.open_jobs() == [first, *made]
    assert [store.submitted(1, f"key-of-letters-{number:02}") for number in range(count)] == [
        range(job.id, job.id + 1) for job in made
    ]


@pytest.mark.parametrize(
    "sees",
    [
        lambda store, job: store.past(job.id).job == job,
        lambda store, job: store.tasks.last_submission_of(1) == job.id,
        lambda store, job: store.save(job, job.changed(held="user"), now=6.0),
        lambda store, job: store.material(job.id)[0] == b"#!/bin/sh\n",
        lambda store, job: store._db.executemany("UPDATE job SET note = ? WHERE id = 3", ["x"]).rowcount == 1,
    ],
)
def test_a_submission_is_seen_by_each_later_statement_of_its_transaction(store, sees):
    with store.write():
        *_, job = submit_separately(store, 3)
        store.blobs.forget()  # the ids of script and environment, which are in memory
        assert sees(store, job)


def test_a_row_that_could_not_be_inserted_keeps_its_transaction_from_being_stored(store):
    submit(store, 1)

    def fail():
        with store.write():
            store._last_id = 0  # as of a damaged queue
            submit_separately(store, 2)
            with suppress(sqlite3.IntegrityError):
                store.past(1)

    with pytest.raises(sqlite3.IntegrityError):
        fail()
    assert [job.id for job in store.open_jobs()] == [1]
    assert [job.id for job in submit(store, 1, key="another-key-of-more")] == [2]


def test_each_step_leaves_an_event(store):
    (job,) = submit(store, 5000)
    _, after = start(store, job)
    with store.write():
        store.run(after, after.advance(JobState.RUNNING), now=7.0)
    assert [(event[2], event[3]) for event in store.steps.of(1)] == [
        ("PENDING", "CONFIGURING"),
        ("CONFIGURING", "RUNNING"),
    ]


def test_history_comes_in_pages_by_id(store):
    submit(store, *range(1, 8))
    page = store.history(since=0, until=9, uid=None, after=2, page=3).records
    assert [past.job.id for past in page] == [3, 4, 5]
    assert store.history(since=0, until=4, uid=None, after=0, page=9) == ([], None)


def test_a_statement_whose_values_go_by_place_takes_each_for_its_name():
    db = sqlite3.connect(":memory:")
    statement = Statement("SELECT :late, :early, 'it''s', :late WHERE :third = 3")
    assert statement.text == "SELECT ?, ?, 'it''s', ? WHERE ? = 3"
    assert statement.do(db, {"early": 1, "third": 3, "late": 2, "more": 4}).fetchall() == [(2, 1, "it's", 2)]
    db.close()


@pytest.mark.parametrize("name", sorted(SQL))
def test_every_statement_fits_the_schema(store, name):
    values = dict.fromkeys(re.findall(r":(\w+)", SQL[name]), 1)
    assert store._db.execute("EXPLAIN " + SQL[name], values).fetchall()


# -- the file ---------------------------------------------------------------------------------


def test_nobody_else_gets_in_while_it_is_open(tmp_path):
    store = Store(tmp_path / "queue.db")
    other = sqlite3.connect(tmp_path / "queue.db", timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM job")
    other.close()
    store.close()
    assert not (tmp_path / "queue.db-shm").exists()


def test_its_file_is_for_its_owner_only(tmp_path):
    Store(tmp_path / "queue.db").close()
    assert (tmp_path / "queue.db").stat().st_mode & 0o777 == 0o600


def refusal(path):
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StorageError) as error:
        Store(path)
    after = path.read_bytes() if path.is_file() else None
    assert before == after, "what cannot be trusted is left as it is"
    return error.value


def test_a_newer_queue_that_a_controller_has_locked_is_refused_too(tmp_path):
    queue = open_queue(tmp_path / "queue.db")
    refuse_newer_file(tmp_path / "queue.db")
    queue.db.execute("PRAGMA user_version = 9999")  # it is in the log only
    with pytest.raises(StorageError) as refused:
        refuse_newer_file(tmp_path / "queue.db")
    queue.close()
    assert "its version is 9999" in str(refused.value)


def test_a_newer_queue_is_refused(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9999")
    db.close()
    error = refusal(path)
    assert (
        error.cause
        == f"{path} was written by a newer fgsched (its version is 9999, this one knows {VERSION})"
    )
    assert (
        error.remedy
        == "Upgrade fgsched, or restore an older backup: this one would lose what it does not know."
    )


def test_a_queue_that_has_more_than_is_expected_opens(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE job ADD COLUMN mood TEXT; CREATE TABLE mine (a);")
    store = Store(path)
    assert store.open_jobs() == []
    store.close()


def test_a_missing_queue_is_not_replaced_by_an_empty_one(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    path.unlink()
    assert refusal(path).cause == f"{path} is missing, and there was a queue here before"
    assert not path.exists()


def test_a_new_queue_needs_nothing_that_one_which_was_removed_has_left(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    for file in (path, marker_path(path)):
        file.unlink()
    commit_file(path).write_bytes(b"no record")
    Store(path).close()
    again = Store(path)
    assert again.name in marker_path(path).read_text()
    again.close()


def test_a_look_at_a_queue_leaves_no_index_of_its_log(tmp_path):
    store = Store(tmp_path / "queue.db")
    submit(store, 1)
    copied = copy_files(tmp_path / "queue.db", tmp_path / "copy")
    store.close()
    with looking(copied) as db:
        assert db.execute("SELECT count(*) FROM job").fetchone()[0] == 1
    assert not copied.with_name("queue.db-shm").exists()


def test_a_job_whose_submission_was_rolled_back_has_no_script():
    store = Store(":memory:")
    new = NewJob(request=Request(name="t"), script=b"new", environment=b"")
    with suppress(ZeroDivisionError), store.write():
        made = store.submit([new], key="k" * 16, submitter=ANN, now=5.0)
        raise ZeroDivisionError
    assert store.material(made[0].id) == (b"", b"")
    store.close()


def test_an_emptied_queue_is_refused(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    path.write_bytes(b"")
    assert refusal(path).cause == f"{path} is empty, and there was a queue here before"


@pytest.mark.parametrize("offset", [0, 18, 100, 4096, 8192])
def test_a_damaged_queue_is_refused_and_named(tmp_path, offset):
    path = tmp_path / "queue.db"
    store = Store(path)
    submit(store, *range(1, 400))
    store.close()
    data = bytearray(path.read_bytes())
    data[offset : offset + 64] = b"\xff" * 64
    path.write_bytes(data)
    error = refusal(path)
    assert error.cause.startswith(f"{path} is damaged: ")
    assert "It is left as it is." in error.remedy


def test_a_queue_that_others_can_write_is_refused(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    path.chmod(0o666)
    error = refusal(path)
    assert (error.cause, error.remedy) == (
        f"{path} is writable by others",
        f"Look who changed it, then: chmod 600 {path}",
    )


def test_a_directory_is_no_queue(tmp_path):
    (tmp_path / "queue.db").mkdir()
    assert refusal(tmp_path / "queue.db").cause == f"{tmp_path / 'queue.db'} is not a regular file"


FULL = """
import resource, signal, sys
from fgsched.domain.errors import Refused, StorageError
from fgsched.store import NewJob, Store
from fgsched.domain.job import Request
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
stored = []
try:
    for number in range(100):
        with store.write():
            job = NewJob(request=Request(name="x"), script=b"#!" + bytes([number]) * 9000, environment=b"")
            made = store.submit([job], key=f"key-of-16-letters-{number}", submitter=(1, 1, "ann"), now=1.0)
        stored += [one.id for one in made]
except StorageError as error:
    print(error.cause)
print(len(stored), [job.id for job in store.open_jobs()] == stored)
"""


def test_what_a_full_disk_refuses_was_not_acknowledged_and_the_rest_is_there(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "queue.db")], capture_output=True, text=True, check=True
    )
    cause, figures = ran.stdout.splitlines()
    assert cause.startswith("the queue cannot be written: ")
    count, is_same = figures.split()
    assert 0 < int(count) < 100
    assert is_same == "True"
    store = Store(tmp_path / "queue.db")
    assert len(store.open_jobs()) == int(count)
    store.close()


def test_a_queue_that_cannot_be_written_is_logged_once_until_it_is_written(store, caplog):
    def fail(number):
        with store.write():
            submit_different(store, number)
            raise sqlite3.OperationalError("database or disk is full")

    for number in (1, 2):
        with pytest.raises(StorageError):
            fail(number)
    with store.write():
        pass  # a turn that changes nothing tells nothing of the disk
    assert store.trouble == "the queue cannot be written: database or disk is full"
    for number in (3, 4):
        with store.write():
            submit_different(store, number)
    assert store.trouble == ""
    assert [(one.levelname, one.message.partition(";")[0]) for one in caplog.records] == [
        ("ERROR", "the queue cannot be written: database or disk is full"),
        ("WARNING", "the queue can be written again"),
    ]


# -- compare and set ----------------------------------------------------------------------------


def test_a_step_of_an_earlier_attempt_moves_nothing(store):
    (job,) = submit(store, 5000)
    _, first = start(store, job)
    again = first.advance(JobState.PENDING, holds=(), started_at=None)
    with store.write():
        assert store.save(first, again, now=7.0)
        assert not store.start(job, job.advance(JobState.STARTING, attempt=1, boot=BOOT, started_at=8.0), ())
    hold = Hold(gpu=0, share=1, memory=1)
    second = again.advance(JobState.STARTING, attempt=2, holds=(hold,), boot=BOOT, started_at=8.0)
    with store.write():
        assert store.start(again, second, (GpuAllocation(0, "GPU-0", "Simulated", 1, 1, 1),))
        assert not store.run(first, first.advance(JobState.RUNNING), now=9.0)
        assert not store.save(first, first.advance(JobState.FAILED, ended_at=9.0, holds=()), now=9.0)
        assert store.run(second, second.advance(JobState.RUNNING), now=9.0)
        assert not store.run(second, second.advance(JobState.RUNNING), now=9.0), "it runs already"
        late = second.advance(JobState.FAILED, ended_at=9.0, holds=())
        assert not store.save(second, late, now=9.0), "what is stored is RUNNING, not CONFIGURING"
    (present,) = store.open_jobs()
    assert (present.state, present.attempt, present.holds) == (JobState.RUNNING, 2, (hold,))


def test_the_holds_of_one_job_go_and_those_of_the_others_stay(store):
    first, second = submit(store, 4000, 4000)
    _, one = start(store, first, share=4000)
    _, two = start(store, second, share=4000)
    with store.write():
        store.save(one, one.advance(JobState.FAILED, ended_at=8.0, holds=()), now=8.0)
    assert store.open_jobs() == [two]


def test_a_job_that_is_back_in_the_queue_holds_nothing(store):
    (job,) = submit(store, 5000)
    _, after = start(store, job)
    with store.write():
        store.save(after, after.advance(JobState.PENDING, holds=(), started_at=None), now=7.0)
    assert [(job.state, job.holds) for job in store.open_jobs()] == [(JobState.PENDING, ())]


def over(store, job, at, **more):
    with store.write():
        assert store.save(job, job.advance(JobState.CANCELLED, ended_at=at, **more), now=at)


def test_a_window_of_history_has_both_its_edges(store):
    first, _ = submit(store, 1, 2)
    over(store, first, 8.0)

    def ids(since, until, uid=None):
        return [
            past.job.id for past in store.history(since=since, until=until, uid=uid, after=0, page=9).records
        ]

    assert ids(8.0, 9.0) == [1, 2]
    assert ids(8.1, 9.0) == [2]
    assert ids(0.0, 5.0) == [1, 2]
    assert ids(0.0, 4.9) == []
    assert ids(0.0, 9.0, uid=2) == []
    assert ids(0.0, 9.0, uid=1) == [1, 2]


def test_those_who_ended_lately_are_found_by_their_end(store):
    first, second, _ = submit(store, 1, 2, 3)
    over(store, first, 8.0)
    over(store, second, 9.0)
    assert [past.job.id for past in store.ended_since(9.0)] == [2]


def test_all_that_is_known_of_an_end_comes_back(store):
    (job,) = submit(store, 5000)
    _, after = start(store, job)
    ended = Ended(status=9, cpu_seconds=1.5, max_rss=2, gpu_peak=3, refusals=4, detail="x")
    last = after.advance(
        JobState.FAILED, ended=ended, ended_at=8.0, supervisor_lost=True, cancelled_by=0, holds=()
    )
    with store.write():
        store.save(after, last, now=8.0)
    assert store.past(1).job == last


def test_a_changed_request_is_what_is_read_from_then_on(store):
    submit(store, 1)
    request = Request(name="new", demand=a_demand(7), time_limit=9)
    with store.write():
        store.change_request(1, request)
    assert store.open_jobs()[0].request == request


def test_what_was_undone_leaves_neither_events_nor_scripts_that_are_only_remembered(store):
    (job,) = submit(store, 5000)
    other = NewJob(request=Request(name="x"), script=b"#!other", environment=b"")
    with suppress(ZeroDivisionError), store.write():
        store.submit([other], key="key-of-other-letters", submitter=ANN, now=5.0)
        store.save(job, job.advance(JobState.CANCELLED, ended_at=1.0), now=1.0)
        raise ZeroDivisionError
    with store.write():
        store.submit([other], key="key-of-other-letters", submitter=ANN, now=5.0)
    assert store.material(2) == (b"#!other", b"")
    assert store.steps.of(1) == []


@pytest.mark.parametrize(
    ("says", "is_broken"),
    [
        ("database or disk is full", False),
        ("disk I/O error", True),
        ("attempt to write a readonly database", True),
    ],
)
def test_only_a_full_disk_leaves_the_queue_usable(store, says, is_broken):
    with pytest.raises(StorageError, match=says) as error, store.write():
        raise DiskError(says)
    assert isinstance(error.value, StorageBroken) is is_broken
    assert ("Free some space" in error.value.remedy) is not is_broken
    assert ("is read-only" in error.value.remedy) is is_broken
    submit(store, 1)


def test_a_card_that_moved_leaves_nothing_said_of_it_behind(store):
    with store.write():
        store.mark_gpu(replace(a_gpu(0), state=GpuState.DRAINED, note="fan"))
        store.put_gpus([replace(a_gpu(0), index=3)])
    assert store.gpu_marks()[a_gpu(0).uuid][0] is GpuState.OK


def test_no_index_of_the_log_is_shared_with_other_processes(tmp_path):
    path = tmp_path / "queue.db"
    for _ in range(2):  # a new file, and one that is there
        store = Store(path)
        with store.write():
            store.kept.remember("some", "text")
        assert not path.with_name("queue.db-shm").exists()
        store.close()


def test_jobs_that_wait_as_they_were_submitted_are_read_like_all_others(tmp_path):
    """Of those there may be 100,000: the columns that they all have alike are not looked at one by one."""
    store = Store(tmp_path / "queue.db")
    for number in range(6):
        with store.write():
            new = NewJob(request=Request(name=f"job{number}", comment="c"), script=b"#!", environment=b"")
            who = (number % 2, 7, f"user{number % 2}")
            store.submit([new], key=f"key-of-16-letters-{number}", submitter=who, now=float(number))
    jobs = store.open_jobs()
    with store.write():
        assert store.save(jobs[1], jobs[1].changed(held="user", note="n"), now=9.0)
        store._db.execute("UPDATE job SET uid = 4294967296 WHERE id = 5")
        store._db.execute("UPDATE job SET request = 'nonsense' WHERE id = 6")
    rows = store._db.execute("SELECT * FROM job").fetchall()
    wanted = [past_of(row) for row in rows]
    assert store.open_past() == wanted
    assert [bool(past.damage) for past in wanted] == [False, False, False, False, True, True]
    store.close()


def test_a_job_with_a_hold_and_an_end_is_read_among_the_jobs_that_wait(store):
    """Only damage gives it both; its part of the GPU is not given away."""
    _, second, *_ = submit(store, 1, 5000, 1, 1)
    start(store, second)
    change(store, "UPDATE job SET ended_at = 9.0 WHERE id = ?", 2)
    found = store.open_past()
    assert [past.job.id for past in found] == [1, 2, 3, 4]
    assert [len(past.job.holds) for past in found] == [0, 1, 0, 0]


def test_a_job_that_is_held_and_released_without_end_keeps_its_newest_events(store):
    first, other = submit(store, 5000, 5000)
    with store.write():
        for number in range(MOST_EVENTS + 50):
            after = first.changed(held="" if number % 2 else "user")
            assert store.save(first, after, now=float(number))
            first = after
            store.steps.write()
        assert store.save(other, other.changed(held="user"), now=1.0)
    assert [step[1] for step in store.steps.of(first.id)] == [float(at) for at in range(50, MOST_EVENTS + 50)]
    assert len(store.steps.of(other.id)) == 1


@pytest.fixture
def running(store):
    """Two jobs; the first has a part of a GPU."""
    first, _ = submit(store, 5000, 5000)
    start(store, first)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("allocated", '[[0, null, "model", 1, 2, 3]]'),
        ("submitted_at", math.inf),
        ("opened_at", -math.inf),
        ("suspended", math.inf),
    ],
)
def test_a_row_with_a_value_that_no_answer_can_carry_is_damaged(store, running, column, value):
    change(store, f"UPDATE job SET {column} = ? WHERE id = 1", value)
    assert [bool(past.damage) for past in store.open_past()] == [True, False]


def test_a_row_whose_name_and_request_are_damaged_is_read(store, running):
    change(store, "UPDATE job SET name = CAST(x'6100' AS TEXT), request = ? WHERE id = 1", "no JSON")
    damaged, other = store.open_past()
    assert (damaged.job.request.name, damaged.job.state, bool(other.damage)) == (
        "?",
        JobState.STARTING,
        False,
    )


def test_a_hold_without_its_job_keeps_no_other_job_from_being_read(store, running):
    store._db.execute("PRAGMA foreign_keys = OFF")
    change(store, "DELETE FROM job WHERE id = ?", 1)
    assert [past.job.id for past in store.open_past()] == [2]
    second = store.open_jobs()[0]
    with pytest.raises(sqlite3.IntegrityError, match="held beyond"):
        start(store, second, share=WHOLE)
    with store.write():
        assert store.drop_orphan_holds() == 1
    start(store, second, share=WHOLE)
    with store.write():
        assert store.drop_orphan_holds() == 0


def change(store, statement, *values):
    store._db.execute("PRAGMA ignore_check_constraints = ON")
    store._db.execute(statement, values)
