"""What is removed of ended jobs, and what is not; and how many bytes the others may have."""

import os
import sqlite3

import pytest

from asking import carried_out, plain
from builders import World
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.submission import MaterialQuota, Rules
from fgsched.controller.upkeep import JobRetention, Pruner
from fgsched.domain.errors import Refused
from fgsched.domain.job import Request
from fgsched.domain.states import JobState
from fgsched.domain.times import FOREVER
from fgsched.store import NewJob, Store
from live_host import attempts, living

DAY, MIB = 86_400.0, 1 << 20


@pytest.fixture
def store(tmp_path):
    one = Store(tmp_path / "queue.db")
    yield one
    one.close()


def submit(store, script, environment=b"A=1\0", *, uid=1, at=0.0):
    new = NewJob(request=Request(name="x"), script=script, environment=environment)
    with store.write():
        key = f"{uid}.{store.last_id()}".rjust(16, "k")
        (job,) = store.submit([new], key=key, submitter=(uid, 1, f"user{uid}"), now=at)
    return job


def end(store, job, at):
    with store.write():
        assert store.save(job, job.changed(state=JobState.CANCELLED, ended_at=at), now=at)


def a_pruner(store, seconds=30 * 86_400, size=64 * MIB, *, revision=lambda: 0):
    pruner = Pruner(store, JobRetention(seconds, size), revision)
    pruner.step(0.0, 0.0)  # the first time that it looks, something has changed
    return pruner


def prune(pruner, wall):
    """All steps of a round; how many there were."""
    now = pruner._whole_at = 1000.0
    pruner.ended(now)
    for steps in range(10_000):
        now += pruner.due(now)
        pruner.step(now, wall)
        if pruner.due(now) >= 1:
            return steps
    raise AssertionError("it does not come to an end")


def kept(store, job):
    return store.material(job.id)


def test_scripts_and_environments_are_kept_for_a_while_after_the_end(store):
    old, late, lives = (submit(store, b"#!/%d" % n, b"A=%d\0" % n) for n in range(3))
    end(store, old, 1 * DAY)
    end(store, late, 5 * DAY)
    prune(a_pruner(store), 31.5 * DAY)
    assert [kept(store, job) for job in (old, late, lives)] == [
        (b"", b""),
        (b"#!/1", b"A=1\0"),
        (b"#!/2", b"A=2\0"),
    ]
    assert store.past(old.id).job.state is JobState.CANCELLED


def test_what_a_living_or_a_later_job_has_as_well_stays(store):
    first, second, third = (submit(store, b"#!/same", b"A=%d\0" % n) for n in range(3))
    end(store, third, 1 * DAY)
    end(store, first, 1 * DAY)
    pruner = a_pruner(store)
    prune(pruner, 40 * DAY)
    assert kept(store, first) == (b"#!/same", b""), "the second job waits"
    end(store, second, 50 * DAY)
    prune(pruner, 60 * DAY)
    assert kept(store, first) == (b"#!/same", b"")
    prune(pruner, 81 * DAY)
    assert kept(store, second) == (b"", b"")


def test_equal_scripts_are_stored_again_after_they_were_removed(store):
    job = submit(store, b"#!/same")
    end(store, job, 0.0)
    prune(a_pruner(store), 40 * DAY)
    again = submit(store, b"#!/same")
    assert (kept(store, job), kept(store, again)) == ((b"", b""), (b"#!/same", b"A=1\0"))


def rows(store, table):
    return [row["id"] for row in store._db.execute(f"SELECT id FROM {table} ORDER BY id")]


def test_after_its_jobs_have_left_the_queue_nothing_of_a_script_is_left(store):
    first, second = submit(store, b"#!/first", b"A=1\0"), submit(store, b"#!/second", b"A=2\0")
    references = store.settled.material(first.id)
    for job in (first, second):
        end(store, job, 1.0)
    pruner = a_pruner(store)
    prune(pruner, 10.0)
    with store.write():
        store.settled.remove([first.id])
    prune(pruner, 40 * DAY)
    assert len(rows(store, "blob")) == 4, "a job that is in the queue could refer to them"
    store._db.execute("DELETE FROM event")
    third = submit(store, b"#!/third", b"A=3\0")
    end(store, third, 41 * DAY)
    with store.write():
        store.settled.remove([second.id])
    prune(pruner, 42 * DAY)
    with store.write():
        store.settled.remove([third.id])
    prune(pruner, 99 * DAY)
    left = rows(store, "blob")
    assert left[-1] == 6, "the last row stays, so that no id is used again"
    assert 5 not in left
    assert store.blobs.of_reference(references[0]) == b""
    assert store.check() == "ok"
    assert store._db.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_a_submission_between_two_steps_keeps_what_it_has(store):
    """Nothing is removed by what an earlier step saw."""
    end(store, submit(store, b"#!/same"), 0.0)
    pruner = a_pruner(store)
    pruner.ended(0.0)
    pruner.step(2.0, 40 * DAY)
    again = submit(store, b"#!/same")
    prune(pruner, 40 * DAY)
    assert kept(store, again) == (b"#!/same", b"A=1\0")


def test_of_each_user_the_oldest_go_beyond_the_quota(store):
    of_ann = [submit(store, b"#!%d" % n + bytes(MIB), uid=1) for n in range(5)]
    of_bob = submit(store, b"#!bob" + bytes(MIB), uid=2)
    for at, job in enumerate([of_bob, *of_ann]):
        end(store, job, float(at))
    prune(a_pruner(store, size=3 * MIB), 10.0)
    assert [len(kept(store, job)[0]) > 0 for job in of_ann] == [False, False, False, True, True]
    assert len(kept(store, of_bob)[0]) > 0


@pytest.mark.parametrize(("seconds", "is_kept"), [(0, False), (FOREVER, True)])
def test_nothing_or_everything_can_be_kept(store, seconds, is_kept):
    job = submit(store, b"#!/x")
    end(store, job, 100.0)
    prune(a_pruner(store, seconds), 100.0 if seconds == 0 else 10_000 * DAY)
    assert (kept(store, job)[0] != b"") is is_kept


def test_after_25_large_scripts_were_cancelled_the_file_is_small_again(tmp_path):
    store = Store(tmp_path / "queue.db")
    jobs = [submit(store, b"#!%d" % n + os.urandom(4 * MIB)) for n in range(25)]
    for job in jobs:
        end(store, job, 1.0)
    rest = submit(store, b"#!/rest")
    assert prune(a_pruner(store), 40 * DAY) > 25, "in small steps"
    assert (tmp_path / "queue.db-wal").stat().st_size < 130 * MIB, "nor does the log grow meanwhile"
    assert kept(store, rest)[0] == b"#!/rest"
    store.close()
    assert (tmp_path / "queue.db").stat().st_size < 6 * MIB
    again = Store(tmp_path / "queue.db")
    assert again.check() == "ok"
    again.close()


def test_large_scripts_do_not_let_the_log_grow(tmp_path, store):
    """The log is looked at after so many changed rows, and each of these has a thousand pages."""
    for n in range(12):
        submit(store, b"#!%d" % n + os.urandom(4 * MIB))
    assert (tmp_path / "queue.db-wal").stat().st_size < 16 * MIB


def test_no_step_removes_more_than_a_few_mebibytes(store):
    for n in range(6):
        end(store, submit(store, b"#!%d" % n + bytes(3 * MIB)), 1.0)
    pruner = a_pruner(store)
    pruner.ended(0.0)
    left, now = [], 2.0
    for _ in range(12):
        pruner.step(now, 40 * DAY)
        left.append(sum(len(kept(store, store.past(job).job)[0]) > 0 for job in range(1, 7)))
        now += 0.06
    assert sorted(set(left), reverse=True) == [4, 2, 0]


def test_it_waits_while_others_are_served_but_not_for_ever(store):
    revisions = iter(range(10_000))
    end(store, submit(store, b"#!/x"), 1.0)
    pruner = Pruner(store, JobRetention(0, 0), lambda: next(revisions))
    now = 5.0
    while kept(store, store.past(1).job)[0]:
        now += pruner.due(now) or 0.01
        pruner.step(now, 40 * DAY)
    assert 60 < now < 70


def test_it_sleeps_until_something_is_due(store):
    pruner = a_pruner(store)
    prune(pruner, 0.0)
    assert pruner.due(1000.0) > 80_000
    end(store, submit(store, b"#!/x"), 0.0)
    pruner.ended(1000.0)
    assert pruner.due(1000.0) == pytest.approx(1.0)
    prune(pruner, 29.99 * DAY)
    assert 60 <= pruner.due(1001.0) < 1000, "that script is due soon"


def test_keys_of_submissions_are_forgotten_after_a_day(store):
    for n in range(1200):
        submit(store, b"#!/x", at=1.9 * DAY if n % 2 else 0.0)
    prune(a_pruner(store), 2.0 * DAY)
    assert store.submitted(1, "1.0".rjust(16, "k")) is None
    assert store.submitted(1, "1.1".rjust(16, "k")) == range(2, 3)
    rows = store._db.execute("SELECT count(*) FROM submission").fetchone()[0]
    assert rows == 600


def test_giving_pages_back_makes_a_checkpoint_when_the_log_is_long(tmp_path, monkeypatch):
    path = tmp_path / "queue.db"
    store = Store(path)
    for n in range(3):
        end(store, submit(store, b"#!%d" % n + bytes(8 * MIB)), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(store.idle, "shrink", lambda pages: False)
        prune(a_pruner(store), 40 * DAY)
    before = path.stat().st_size
    with store.write():
        assert not store.idle.shrink(10**6)
    assert path.stat().st_size < before - 20 * MIB
    store.close()


def test_a_file_that_cannot_shrink_stays_as_it_is(tmp_path):
    path = tmp_path / "queue.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA auto_vacuum = NONE")
    db.execute("VACUUM")
    db.close()
    store = Store(path)
    for n in range(3):
        end(store, submit(store, b"#!%d" % n + bytes(4 * MIB)), 1.0)
    prune(a_pruner(store), 40 * DAY)
    assert len(kept(store, store.past(1).job)[0]) == 0
    store.close()


def test_the_script_of_a_job_that_ended_long_ago_is_no_longer_kept_and_that_is_said(tmp_path):
    with living(tmp_path / "home", config='[host]\ncpus = 64\n[jobs]\nkeep_scripts = "0"\n') as home:
        job, lives = home.ended("echo secret-of-mine"), home.submit("echo kept", hold=True)
        for _ in attempts():
            done = home.run("fgctl", "write", "batch_script", str(job), "-")
            if done.status:
                break
        assert done.status == 1
        assert f"the script of job {job} is no longer kept" in done.err
        assert "echo kept" in home.run("fgctl", "write", "batch_script", str(lives), "-").out
        assert home.run("fgctl", "show", "job", str(job)).status == 0


def flood(store, seconds, *, size, rate, keep):
    """Cancel jobs at once, on a host that is never idle; return the largest sum of scripts."""
    pruner, now, most = a_pruner(store, size=keep, revision=iter(range(10**9)).__next__), 1.0, 0
    for number in range(seconds * rate):
        now += 1 / rate
        end(store, submit(store, b"#!%d" % number + os.urandom(size)), now)
        pruner.ended(now)
        while (due := pruner.due(now)) is not None and due <= 0:
            pruner.step(now, now)
            now += 0.001
        most = max(most, store._db.execute("SELECT sum(length(data)) FROM blob").fetchone()[0])
    return most


def test_scripts_that_are_cancelled_at_once_are_removed_while_the_host_is_busy(tmp_path):
    store = Store(tmp_path / "queue.db")
    assert flood(store, 40, size=MIB, rate=8, keep=8 * MIB) < 40 * MIB  # of 320 MiB
    assert (tmp_path / "queue.db").stat().st_size < 60 * MIB
    prune(a_pruner(store, size=8 * MIB), 1000.0)
    store.close()
    assert (tmp_path / "queue.db").stat().st_size < 16 * MIB


def test_bytes_of_ended_jobs_count_until_they_are_deleted(store, quota):
    for n in range(6):
        end(store, submit(store, b"#!%d" % n + bytes(MIB)), float(n))
    with pytest.raises(Refused, match="have 5M"):  # a little more than 4: 6 without the two that are kept
        quota.check(1, new(b"#!more" + bytes(MIB)), 4 * MIB + 100, 2 * MIB)
    prune(a_pruner(store, size=2 * MIB), 100.0)
    assert quota.check(1, new(b"#!more" + bytes(MIB)), 4 * MIB + 100, 2 * MIB) > MIB


# -- quotas of what is not over ------------------------------------------------------------------------


@pytest.fixture
def quota(store):
    return MaterialQuota(store, clock=lambda: 0.0)


def new(script, environment=b"A=1\0"):
    return [NewJob(request=Request(name="x"), script=script, environment=environment)]


def test_what_one_user_has_is_limited_and_texts_that_are_alike_count_once(store, quota):
    for n in range(3):
        assert quota.check(1, new(b"#!%d" % n + bytes(MIB)), 3 * MIB + 100) > MIB
        quota.add(1, MIB + 7)
        submit(store, b"#!%d" % n + bytes(MIB))
    said = "have 4M, this submission adds 2M, and 4M is the limit"
    with pytest.raises(Refused, match=said):
        quota.check(1, new(b"#!more" + bytes(MIB)), 3 * MIB + 100)
    assert quota.check(1, new(b"#!1" + bytes(MIB)), 3 * MIB + 100) == 0, "there is one like it"
    assert quota.check(2, new(b"#!more" + bytes(MIB)), 3 * MIB + 100) > MIB
    assert quota.check(1, new(b"#!more" + bytes(MIB)), 0) > MIB, "no limit"


def test_what_ended_counts_no_more(store, quota):
    jobs = [submit(store, b"#!%d" % n + bytes(MIB)) for n in range(3)]
    with pytest.raises(Refused):
        quota.check(1, new(b"#!more" + bytes(MIB)), 3 * MIB + 100)
    end(store, jobs[0], 1.0)
    assert quota.check(1, new(b"#!more" + bytes(MIB)), 3 * MIB + 100, 2 * MIB) > MIB


def test_it_is_not_counted_again_for_each_refusal(store):
    clock, counted = iter(range(1000)), []
    quota = MaterialQuota(store, clock=lambda: float(next(clock)))
    real = store.idle.open_material
    store.idle.open_material = lambda uid: counted.append(uid) or real(uid)
    submit(store, b"#!" + bytes(MIB))
    for _ in range(10):
        with pytest.raises(Refused):
            quota.check(1, new(b"#!more" + bytes(MIB)), MIB)
    assert counted == [1]


def test_a_submission_beyond_the_quota_is_refused_whole():
    world = World([])
    handlers = JobHandlers(world.engine, Rules(max_script=2 * MIB, default_time=0, max_material=MIB))
    ann = Caller(uid=1, gid=1, name="ann", is_operator=False)

    def ask(number, size):
        sent = {
            "key": f"key-number-{number}".ljust(16, "k"),
            "scripts": ["#!/bin/sh\n" + "#" * size],
            "environments": [{}],
            "requests": [{"name": "x"}],
            "jobs": [[0, 0, 0, False]] * 3,
        }
        with world.store.write():
            return plain(carried_out([handlers], "submit", ann, sent, 0.0))["count"]

    assert ask(1, MIB // 2) == 3
    with pytest.raises(Refused, match="1M is the limit"):
        ask(2, MIB * 3 // 4)
    assert ask(1, MIB // 2) == 3, "the same again is no other submission"
    assert world.store.last_id() == 3
