"""Ended jobs move from the queue to the accounts, once each, whatever is killed when."""

import shutil
import sqlite3
import tempfile
from contextlib import closing
from datetime import UTC
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from builders import BOOT, GIB, a_demand, a_gpu
from crashing import PowerCut
from endedjobs import changed
from fgsched.accounting import guard
from fgsched.accounting.accountant import Accountant
from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.messages import batch_line, encoded
from fgsched.accounting.records import JobAccount, Owner, to_json
from fgsched.controller.jobtable import JobTable, eligible
from fgsched.controller.moving import Mover, PastJobs, Site, account_of
from fgsched.crash import MOVING
from fgsched.domain.job import WHOLE, Ended, Hold, Job, OomReport, Preemption, Request
from fgsched.domain.states import JobState, Reason
from fgsched.store import GpuAllocation, JobRecord, NewJob, Store, wal
from fgsched.store.rows import record_of
from fgsched.store.store import Unreadable
from inmemory import memory, new_directory
from live_host import attempts, living, zone_at_noon
from test_accountant import KEEP
from test_records import requests

wal.READ_ONLY = "mode=ro"  # SQLite opens the index once in a process, and the accountant writes in this one
ANN = (1001, 100, "ann")
DAY = 86_400.0
ENDS = [state for state in JobState if state.is_final]
times = st.floats(0, 2e9, allow_nan=False)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
counts = st.integers(0, 1000)
allocations = st.builds(
    GpuAllocation,
    st.integers(0, 15),
    st.just("GPU-1"),
    st.just("A100"),
    st.integers(1, WHOLE),
    st.integers(0, 2**36),
    st.integers(1, WHOLE),
)
ends = st.builds(
    Ended,
    status=st.integers(0, 0xFFFF),
    cpu_seconds=times,
    max_rss=counts,
    gpu_peak=counts,
    refusals=counts,
    detail=words,
    disk_read=counts,
    disk_written=counts,
    srun_steps=words,
)
jobs = st.builds(
    Job,
    id=st.integers(1, 2**40),
    uid=counts,
    gid=counts,
    user=words,
    request=requests,
    submitted_at=times,
    state=st.sampled_from(ENDS),
    reason=st.sampled_from(Reason),
    held=st.sampled_from(["", "user", "admin"]),
    attempt=st.integers(1, 9),
    partition=words.filter(bool),
    resources=st.just(()) | st.just((("matlab", (0, 2)),)),
    slot=counts,
    started_at=times,
    ended_at=times,
    boot=st.just(BOOT),
    cancelled_by=st.none() | counts,
    ended=ends,
    outcome=st.none() | st.sampled_from(ENDS),
    tier=st.sampled_from(["none", "shim"]),
    mounts=words,
    cpus=words,
    supervisor_lost=st.booleans(),
    warning=words,
    post_mortem=st.none() | st.just(OomReport(gpu=1, asked=2, held=3, limit=4, jobs=((5, 6),), strangers=7)),
    condemned=st.sampled_from(Reason),
    restarts=counts,
    failures=counts,
    not_before=times,
    opened_at=times,
    note=words,
    wish=st.sampled_from(["", "requeue"]),
    depends=st.just(""),
    suspended=times,
    relimited=st.booleans(),
    preemption=st.none() | st.just(Preemption(by=1, at=2.0, mode="cancel", attempt=1)),
)
records = st.builds(JobRecord, jobs, st.lists(allocations, max_size=2).map(tuple))


# -- one job -------------------------------------------------------------------------------------------


@given(records)
def test_a_job_comes_back_from_its_account_as_it_was(record):
    account = account_of(record, [], material=("1:aa", "2:bb"), host="h")
    assert record_of(msgspec.json.decode(to_json(account), type=JobAccount).row) == record


@given(records)
def test_an_account_names_what_reports_read(record):
    job, account = record.job, account_of(record, ())
    share = sum(one.charged for one in record.allocated) / WHOLE
    assert account.charged == pytest.approx(share * max(0.0, job.ended_at - job.started_at))
    assert (account.exit_code, account.signal) == (job.ended.exit_code, job.ended.signal)
    since = eligible(job)
    assert account.eligible_at == (job.submitted_at if since is None else since)
    assert record_of(account.row).allocated == record.allocated
    assert account.refused == (job.post_mortem.asked if job.post_mortem else 0)


@pytest.mark.parametrize(
    ("reason", "oom"),
    [(Reason.OUT_OF_MEMORY, "host"), (Reason.GPU_OUT_OF_MEMORY, "gpu"), (Reason.EXIT_CODE, "")],
)
def test_the_account_of_a_job_says_which_memory_it_exceeded(reason, oom):
    job = Job(
        **{"id": 1, "uid": 1, "gid": 1, "user": "ann", "submitted_at": 0.0, "state": JobState.OUT_OF_MEMORY},
        request=Request(name="x"),
        reason=reason,
    )
    assert account_of(JobRecord(job, ()), ()).oom == oom


def test_the_tag_of_a_job_is_the_tag_of_its_owner_in_the_accounts():
    job = Job(
        **{"id": 1, "uid": 1, "gid": 1, "user": "ann", "submitted_at": 0.0, "state": JobState.CANCELLED},
        request=Request(name="x", account="vision", qos="high", wckey="paper 7"),
    )
    found = account_of(JobRecord(job, ()), ()).owner
    assert found == Owner(uid=1, user="ann", account="vision", qos="high", tag="paper 7")


def test_each_attempt_is_charged():
    job = Job(
        id=1,
        uid=1,
        gid=1,
        user="ann",
        request=Request(name="x"),
        submitted_at=0.0,
        state=JobState.COMPLETED,
        attempt=2,
        boot=BOOT,
        started_at=100.0,
        ended_at=150.0,
        ended=Ended(status=0),
    )
    given_gpu = GpuAllocation(0, "GPU-0", "A100", 2500, GIB, 5000)
    assert account_of(JobRecord(job, (given_gpu,)), ()).charged == 50.0 / 2
    known = job.changed(charged_before=7.0)
    assert account_of(JobRecord(known, (given_gpu,)), ()).charged == 7.0 + 50.0 / 2
    cancelled = known.changed(started_at=None, state=JobState.CANCELLED)
    assert account_of(JobRecord(cancelled, ()), ()).charged == 7.0


# -- the move, with a crash at each of its effects ------------------------------------------------------


class QueueAndAccounts:
    """A queue, accounts, and a controller and an accountant that can be killed."""

    def __init__(self, path):
        self.path, self.wall, self.keys = path, 1000.0, 0
        self.store = Store(":memory:")
        with self.store.write():
            self.store.put_gpus([a_gpu(0)])
        self.ended = {}  # id -> JobRecord, steps
        self.started = 0.0
        self.restart()

    def restart(self):
        """Another controller and another accountant."""
        self.accountant = Accountant(self.path, UTC, KEEP)
        self.accounts = PastJobs(self.path)
        self.store.use_moved(self.accounts)
        table = JobTable(self.store.open_jobs(), made_tasks=self.store.tasks.made)
        self.table = table
        self.mover = Mover(self.store, self.accounts, Site(lambda: self.table, "host"), move_after=60.0)
        self.number = 0

    def stop(self):
        self.accountant.close()
        self.accounts.close()

    def reread(self):
        self.table = JobTable(self.store.open_jobs(), made_tasks=self.store.tasks.made)

    def submit(self, **more):
        self.keys += 1
        request = Request(name="x", demand=a_demand(5000), **more)
        new = NewJob(request=request, script=b"#!/bin/sh %d" % self.keys, environment=b"A=1\0")
        with self.store.write():
            key = f"key-{self.keys}".rjust(16, "k")
            (job,) = self.store.submit([new], key=key, submitter=ANN, now=self.wall)
        self.reread()
        return job.id

    def run(self, job):
        """Start and end a job."""
        hold = Hold(gpu=0, share=5000, memory=GIB)
        with self.store.write():
            begun = job.advance(
                JobState.STARTING,
                attempt=1,
                holds=(hold,),
                boot=BOOT,
                started_at=self.wall,
                reason=Reason.NONE,
            )
            given_gpu = (GpuAllocation(0, "GPU-0", "Simulated", 5000, GIB, 5000),)
            assert self.store.start(job, begun, given_gpu)
        self.wall += 5
        over = {"holds": (), "ended_at": self.wall, "ended": Ended(status=0)}
        with self.store.write():
            assert self.store.save(begun, begun.changed(state=JobState.COMPLETED, **over), now=self.wall)
            self.store.idle.note(100)
        self.end_of(job.id)

    def cancel(self, job):
        with self.store.write():
            after = job.changed(state=JobState.CANCELLED, ended_at=self.wall, cancelled_by=0)
            assert self.store.save(job, after, now=self.wall)
            self.store.idle.note(100)
        self.end_of(job.id)

    def end_of(self, job_id):
        self.ended[job_id] = (
            self.store.past(job_id),
            self.store.steps.of(job_id),
            self.store.material(job_id),
        )
        self.reread()
        self.mover.ended(self.number * 1000.0)

    def split(self, rest):
        """Give the next task of an array a row of its own."""
        left = self.store.tasks.rest(rest)
        task = (left & -left).bit_length() - 1
        with self.store.write():
            made = self.store.tasks.make(rest, task, is_last=left.bit_count() == 1)
        self.reread()
        return made

    def step(self, crash=""):
        """One step of the mover with its message; a crash at the named effect, if it comes to it."""
        self.number += 1
        now = self.number * 1000.0
        try:
            if crash == "before the deletion" and self.mover._stored:
                raise PowerCut
            jobs = self.mover.next_jobs(now, self.wall)
            if not jobs:
                if crash == "after the deletion":
                    raise PowerCut
                return
            self.deliver(jobs, crash)
        except PowerCut:
            self.stop()
            self.restart()

    def deliver(self, jobs, crash):
        line = batch_line(self.number, [(JobAccount, encoded(job)) for job in jobs])
        if crash == "before the message":
            raise PowerCut
        if crash == "the accountant before its commit":
            self.accountant.close()
            self.accountant = Accountant(self.path, UTC, KEEP)
            self.mover.back()
            return
        answer = self.accountant.answer(line, self.wall)
        assert (answer.error, answer.refused) == ("", ())
        if crash == "after the commit":
            raise PowerCut
        if crash == "the accountant after its commit":
            self.accountant.close()
            self.accountant = Accountant(self.path, UTC, KEEP)
            self.mover.back()
            return
        self.mover.stored([job.id for job in jobs], answer.refused)

    def settle(self):
        """Steps until nothing moves any more."""
        self.wall += 3600
        for _ in attempts():
            before = len(self.in_queue())
            for _ in range(4):
                self.step()
            if len(self.in_queue()) == before:
                return

    def in_queue(self):
        return [row["id"] for row in self.store._db.execute("SELECT id FROM job ORDER BY id")]

    def in_accounts(self):
        if not self.path.exists():
            return []
        reader = LedgerReader(self.path)
        found = [job.id for job in reader.jobs(0, 1e12)]
        reader.close()
        return found

    def history(self):
        found, after = [], 0
        while after is not None:
            part = self.store.history(since=0.0, until=1e12, uid=None, after=after, page=3)
            found += part.records
            after = part.upto
        return found

    def check(self):
        """Each answer has each job once, as it was when it ended, wherever it is now."""
        for job_id, (record, steps, material) in self.ended.items():
            assert self.store.past(job_id) == record
            assert self.store.steps.of(job_id) == steps
            assert self.store.material(job_id) == material
        ids = [record.job.id for record in self.history()]
        assert ids == sorted({*ids}), "once each, by id"
        assert set(ids) == {*self.table.jobs, *self.ended}
        accounts = self.in_accounts()
        assert len(accounts) == len({*accounts})
        assert set(accounts) | set(self.in_queue()) == set(ids), "a job is in one of both at least"

    def close(self):
        self.stop()
        self.store.close()


CRASHES = [
    "",
    "before the message",
    "the accountant before its commit",
    "the accountant after its commit",
    "after the commit",
    "before the deletion",
    "after the deletion",
]


class Moving(RuleBasedStateMachine):
    """Jobs and arrays are submitted, end and move, in any order, with crashes at any effect."""

    def __init__(self):
        super().__init__()
        self.place = new_directory()
        self.world = QueueAndAccounts(self.place / "accounts.db")

    def teardown(self):
        self.world.settle()
        self.world.check()
        open_jobs = self.world.table.jobs
        arrays = {job.array for job in open_jobs.values() if job.array}
        awaited = {int(job.depends.partition(":")[2]) for job in open_jobs.values() if job.depends}
        left = set(self.world.in_queue()) - open_jobs.keys()
        for job_id in left:
            array = self.world.store.past(job_id).job.array
            assert array in arrays or job_id in awaited or array in awaited
        self.world.close()
        shutil.rmtree(self.place)

    def open(self, which):
        found = [job for job in self.world.table.jobs.values() if not job.depends]
        return found[which % len(found)] if found else None

    @rule()
    def submit(self):
        self.world.submit()

    @rule(count=st.integers(1, 4))
    def submit_array(self, count):
        self.world.submit(array=f"0-{count - 1}")

    @precondition(lambda self: self.world.store.last_id())
    @rule(which=st.integers(0, 1000))
    def submit_dependent(self, which):
        on = which % self.world.store.last_id() + 1
        past = self.world.store.past(on)
        if past.job.task is None:
            self.world.submit(dependency=f"afterany:{on}")

    @rule(which=st.integers(0, 1000))
    def run(self, which):
        job = self.open(which)
        if job is not None:
            self.world.run(self.world.split(job) if job.is_rest else job)

    @rule(which=st.integers(0, 1000))
    def cancel(self, which):
        job = self.open(which)
        if job is not None:
            self.world.cancel(job)

    @rule(seconds=st.sampled_from([1.0, 90.0]))
    def wait(self, seconds):
        self.world.wall += seconds

    @rule(crash=st.sampled_from(CRASHES), times=st.integers(1, 4))
    def step(self, crash, times):
        self.world.wall += 90.0 * (crash != "")
        for _ in range(times):
            self.world.step(crash)

    @invariant()
    def answers_are_complete(self):
        self.world.check()


TestMoving = Moving.TestCase
TestMoving.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.fixture
def world(tmp_path):
    one = QueueAndAccounts(tmp_path / "accounts.db")
    yield one
    one.close()


@pytest.mark.parametrize("crash", CRASHES)
def test_a_job_moves_once_with_a_crash_at_each_effect(world, crash):
    ids = [world.submit() for _ in range(3)]
    for job_id in ids:
        world.run(world.table.jobs[job_id])
    world.wall += 3600
    world.step(crash)
    world.step(crash)
    world.check()
    world.settle()
    world.check()
    assert (world.in_queue(), world.in_accounts()) == ([], ids)


def test_ids_are_not_used_again_after_all_jobs_have_moved(world):
    job_id = world.submit()
    world.cancel(world.table.jobs[job_id])
    world.settle()
    assert world.in_queue() == []
    assert world.submit() == job_id + 1
    assert world.accounts.last_id() == job_id


def test_a_task_moves_only_after_all_of_its_array_is_over(world):
    array = world.submit(array="0-2")
    world.run(world.split(world.table.jobs[array]))
    world.settle()
    assert world.in_accounts() == []
    world.cancel(world.table.jobs[array])
    world.settle()
    assert world.in_queue() == []
    assert world.store.tasks.rest(world.store.past(array).job) == 0b110
    assert [record.job.id for record in world.store.tasks.of(array)] == [array + 1, array]
    assert world.store.tasks.ended(array) == {0: True}
    found = world.store.tasks.sum(array)
    assert (found.rows, found.over, found.completed) == (2, 2, 1)
    assert world.store.tasks.get(array, 0).job.id == array + 1
    assert world.store.tasks.last_submission_of(ANN[0]) == array


def test_a_job_stays_as_long_as_another_one_depends_on_it(world):
    first = world.submit()
    second = world.submit(dependency=f"afterok:{first}")
    world.cancel(world.table.jobs[first])
    world.settle()
    assert world.in_queue() == [first, second]
    world.cancel(world.table.jobs[second])
    world.settle()
    assert world.in_queue() == []


def test_forecasts_know_the_runs_of_moved_jobs(world):
    job_id = world.submit()
    world.run(world.table.jobs[job_id])
    before = world.store.runs_since(0.0)
    world.settle()
    assert world.in_queue() == []
    assert (len(before), world.store.runs_since(0.0)) == (1, before)
    world.stop()
    world.restart()
    world.accounts.read_runs(0.0)
    assert world.store.runs_since(0.0) == before
    assert world.store.runs_since(world.wall) == []


def test_a_job_that_the_accounts_refuse_stays_in_the_queue(world, caplog):
    job_id = world.submit()
    world.cancel(world.table.jobs[job_id])
    record = world.ended[job_id][0]
    other = account_of(replace(record, job=record.job.changed(submitted_at=1.0)), ())
    line = batch_line(1, [(JobAccount, encoded(other))])
    assert world.accountant.answer(line, 0.0).error == ""
    world.wall += 3600
    jobs = world.mover.next_jobs(1000.0, world.wall) or world.mover.take(2000.0, world.wall)
    answer = world.accountant.answer(batch_line(2, [(JobAccount, encoded(job)) for job in jobs]), 0.0)
    world.mover.stored([job_id], answer.refused)
    assert answer.refused == (job_id,)
    world.settle()
    assert world.in_queue() == [job_id]
    assert "the accounts refuse it" in caplog.text


def test_unreadable_accounts_are_told_and_jobs_of_the_queue_are_found(world):
    old, new = world.submit(), world.submit()
    world.cancel(world.table.jobs[old])
    world.settle()
    world.accountant.close()
    world.accounts.close()
    kept = world.path.read_bytes()
    world.path.write_bytes(b"no database at all" * 100)
    assert world.store.past(new).job.id == new
    with pytest.raises(Unreadable, match=r"jobs that have moved cannot be looked up: .*not a database"):
        world.store.past(old)
    world.path.unlink()
    with pytest.raises(Unreadable, match="are missing"):
        world.store.past(old)
    world.path.write_bytes(kept)
    assert world.store.past(old).job.id == old


def test_a_page_of_history_reads_only_what_it_has_to(world, tmp_path):
    """Ids that are far apart, and a period that excludes most of them."""
    template = account_of(an_ended_job(1, at=0.0), ())
    for start in range(0, 20_000, 1000):
        many = [
            changed(template, id=number, submitted_at=float(number), ended_at=number + 0.5)
            for number in range(start + 1, start + 1001, 100)
        ]
        line = batch_line(1, [(JobAccount, encoded(job)) for job in many])
        assert world.accountant.answer(line, 0.0).error == ""
    period = {"since": 15_000.0, "until": 16_500.0, "uid": None}
    found, after, steps = [], 0, 0
    while after is not None:
        part = world.accounts.history(**period, after=after, page=4)
        found += [record.job.id for record in part.records]
        after, steps = part.upto, steps + 1
    assert found == list(range(15_001, 16_500, 100))
    assert steps <= 6
    assert world.accounts.history(**(period | {"uid": 5}), after=0, page=4).records == []


def an_ended_job(number, *, at):
    job = Job(
        id=number,
        uid=ANN[0],
        gid=1,
        user="ann",
        request=Request(name="x"),
        submitted_at=at,
        state=JobState.CANCELLED,
        ended_at=at,
    )
    return JobRecord(job, ())


def test_missing_accounts_are_no_accounts_on_a_new_host(tmp_path):
    accounts = PastJobs(tmp_path / "accounts.db")
    assert (accounts.past(1), accounts.last_id(), guard.marker_of(tmp_path / "x").exists()) == (
        None,
        0,
        False,
    )


def test_after_a_move_another_step_is_due_and_then_none_and_the_accounts_are_asked(tmp_path):
    both, dues = QueueAndAccounts(tmp_path / "accounts.db"), []
    number = both.submit()
    both.run(both.table.jobs[number])
    both.wall += 3600
    for _ in range(4):
        both.step()
        dues.append(both.mover.due(both.number * 1000.0))
    assert (both.in_queue(), dues[2:]) == ([], [1.0, None])
    assert [both.accounts.past(number).job.id for _ in range(2)] == [number, number]
    both.stop()


# -- with real processes -------------------------------------------------------------------------------

SOON = '[host]\ncpus = 4\n[accounting]\nmove_after = "0"\n'


def moved(home, *ids):
    """Wait until these jobs are in the accounts only."""
    for _ in attempts():
        home.run("fgq", "-h")
        if not {*ids} & of_queue(home.path):
            assert {*ids} <= of_accounts(home.path)
            return
    raise AssertionError("they do not move")


def of_queue(path):
    """Return the ids of the rows of a queue that is in use, from a copy of its files."""
    with tempfile.TemporaryDirectory(dir=memory()) as place:
        for name in ("queue.db-wal", "queue.db"):
            if (path / name).exists():
                shutil.copy(path / name, place)
        with closing(sqlite3.connect(f"{place}/queue.db")) as db:
            return {number for (number,) in db.execute("SELECT id FROM job")}


def of_accounts(path):
    reader = LedgerReader(path / "accounts.db")
    found = {job.id for job in reader.jobs(0, 1e12)}
    reader.close()
    return found


@pytest.mark.compiler
def test_commands_answer_about_moved_jobs_as_before(tmp_path):
    with living(tmp_path / "home", config=SOON) as home:
        job = home.ended("exit 3", comment="of mine")
        array = home.submit("exit 0", array="0-1")
        home.wait(array)
        before = home.job(job), home.history(), home.run("fgacct", "-P", env=zone_at_noon()).out
        assert [one["state"] for one in before[1]] == ["FAILED", "COMPLETED", "COMPLETED"]
        moved(home, *(one["id"] for one in before[1]))
        assert (home.job(job), home.history(), home.run("fgacct", "-P", env=zone_at_noon()).out) == before
        assert home.history(f"{array}_1")[0]["state"] == "COMPLETED"
        assert home.wait(job, array)[0]["state"] == "FAILED"
        done = home.run("fgctl", "write", "batch_script", str(job), "-")
        assert "exit 3" in done.out
        assert home.run("fgcancel", str(job)).status == 0
        bad = home.submit(dependency=f"afterok:{job}")
        good = home.submit(dependency=f"afterok:{array},afternotok:{job}")
        assert home.wait(good)[0]["state"] == "COMPLETED"
        assert home.job(bad)["reason"] == "DependencyNeverSatisfied"
        assert home.run("fgctl", "show", "job", "999").status == 3


@pytest.mark.compiler
def test_without_accounts_ended_jobs_stay_in_the_queue(tmp_path):
    with living(tmp_path / "home", config=SOON + "enabled = false\n") as home:
        job = home.ended()
        assert home.job(job)["state"] == "COMPLETED"
        assert not (home.path / "accounts.db").exists()


@pytest.mark.compiler
def test_jobs_run_on_while_the_accounts_are_unreadable(tmp_path):
    with living(tmp_path / "home", config=SOON) as home:
        first = home.ended()
        moved(home, first)
        kept = home.path / "kept"
        assert home.run("fgsched", "stop").status == 0
        (home.path / "accounts.db").rename(kept)
        (home.path / "accounts.db").write_bytes(b"no database at all" * 1000)
        done = home.run("fgsub", "--wait", "--wrap", "exit 0", "--output=/dev/null")
        assert done.status == 0
        done = home.run("fgctl", "show", "job", str(first))
        assert (done.status, "jobs that have moved cannot be looked up" in done.err) == (6, True)
        told = home.run("fgsched", "status", "-v").out.splitlines()
        assert [line.split()[0] for line in told[-2:]] == ["queue", "accounts"]
        for _ in attempts():
            if "accounts.db is damaged" in home.run("fgsched", "status", "-v").out:
                break
        else:
            raise AssertionError(home.run("fgsched", "status", "-v").out)
        kept.rename(home.path / "accounts.db")
        assert home.run("fgctl", "show", "job", str(first)).status == 0


@pytest.mark.compiler
@pytest.mark.parametrize("crash_point", MOVING)
def test_a_job_moves_once_with_a_kill_at_each_point(tmp_path, crash_point):
    with living(tmp_path / "home", config=SOON) as home:
        home.run("fgq", "-h", env={"FG_CRASH_AT": crash_point})
        first = home.paths.lock.read_text()
        done = home.run("fgsub", "--parsable", "--output=/dev/null", "--wrap", "exit 3")
        job = int(done.out)
        assert home.run("fgwait", str(job)).status == 3
        before = home.run("fgacct", "-P", env=zone_at_noon()).out
        moved(home, job)
        assert home.run("fgacct", "-P", env=zone_at_noon()).out == before
        assert of_accounts(home.path) == {job}
        restarted = home.paths.lock.read_text() != first
        assert restarted is crash_point.startswith("controller")


def test_a_host_that_is_never_idle_moves_all_its_ended_jobs_after_ten_minutes(tmp_path):
    """Steps between which the queue happens not to change do not begin the ten minutes again."""
    store, accounts = Store(tmp_path / "queue.db"), PastJobs(tmp_path / "accounts.db")
    with store.write():
        request = Request(name="job", demand=a_demand(0))
        new = [NewJob(request=request, script=b"#!/bin/sh\n", environment=b"")]
        for job in store.submit(new * 400, key="key-of-16-letters", submitter=ANN, now=1.0):
            assert store.save(job, job.changed(state=JobState.CANCELLED, ended_at=2.0), now=2.0)
    with store.write():
        store.idle.note(1000)
    table = JobTable([], made_tasks=store.tasks.made)
    mover = Mover(store, accounts, Site(lambda: table, "host"), move_after=0.0)
    now, moved = 1000.0, 0
    for step in range(900):
        sent = mover.next_jobs(now, 1e12)
        mover.stored([job.id for job in sent], ())
        moved += len(sent)
        wait = mover.due(now) or 0.0
        table.revision += wait > 0.1 or step % 2  # it may be the same after a twentieth of a second
        now += wait
        if moved == 400:
            break
    store.close()
    accounts.close()
    assert moved == 400
    assert now < 1000.0 + 700


# -- older queues --------------------------------------------------------------------------------------


def test_the_ended_jobs_of_a_queue_of_version_1_move(tmp_path):
    path = tmp_path / "queue.db"
    shutil.copy(Path(__file__).parent / "data" / "queue-v1.db", path)
    store = Store(path)
    before = {
        record.job.id: record
        for record in store.history(since=0, until=1e12, uid=None, after=0, page=99).records
    }
    steps = {number: store.steps.of(number) for number in before}
    accounts, accountant = PastJobs(tmp_path / "accounts.db"), Accountant(tmp_path / "accounts.db", UTC, KEEP)
    store.use_moved(accounts)
    with store.write():
        store.idle.note(100)
    table = JobTable(store.open_jobs(), made_tasks=store.tasks.made)
    mover = Mover(store, accounts, Site(lambda: table, "host"), move_after=0.0)
    for now in range(1, 20):
        if sent := mover.next_jobs(now * 1000.0, 1e12):
            line = batch_line(now, [(JobAccount, encoded(job)) for job in sent])
            mover.stored([job.id for job in sent], accountant.answer(line, 1.0).refused)
    ended = {number for number, record in before.items() if record.job.state.is_final}
    whole = {number for number in ended if table.arrays.get(before[number].job.array) is None}
    in_queue = {row.id for row in store.settled.after((0.0, 0), 1e12, 99)}
    assert whole, "the file has a job that can move"
    assert in_queue == ended - whole
    found = store.history(since=0, until=1e12, uid=None, after=0, page=99).records
    assert {record.job.id: record for record in found} == before
    assert {number: store.steps.of(number) for number in before} == steps
    assert store.check() == "ok"
    accountant.close()
    accounts.close()
    store.close()
