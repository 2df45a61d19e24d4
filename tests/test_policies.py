"""The idle watch: which jobs are idle, what is due, and what the command does about a real one."""

import os
import time

import pytest
from msgspec.structs import replace

from awaiting import PATIENCE
from fgsched.accounting.ledger import Ledger, Reader
from fgsched.accounting.policies import IdleJob, IdleRules, RunningJob, idle_jobs, message
from fgsched.accounting.records import Card, Minute, Owner, OwnerUse, Warned
from fgsched.cli.policy import idle
from live_host import living
from mailserver import serving

NOW = 100_000.0
RULES = IdleRules(action="cancel", window=3600, grace=1800)
JOB = RunningJob(id=7, name="train", user="ann", partition="main", started_at=NOW - 9000)
OWNER = Owner(uid=1, user="ann", partition="main")


def minutes(job=7, since=NOW - 3600, until=NOW, **use):
    """A use in each minute; by default a share that is charged and has no process."""
    use = {"charged": 60.0, "empty": 60.0} | use
    return [
        OwnerUse(at=int(at), owner=OWNER, card="GPU-0", job=job, **use)
        for at in range(int(since), int(until), 60)
    ]


def warned(*steps, ago=4000.0, job=7, **more):
    """Warnings, one after another, the last one `ago` seconds ago."""
    at = [NOW - ago - 100 * (len(steps) - place - 1) for place in range(len(steps))]
    pairs = zip(at, steps, strict=True)
    return [Warned(at=at, job=job, policy="idle", finding="x", action=step, **more) for at, step in pairs]


def judged(uses, before=(), job=JOB, rules=RULES):
    return [(one.finding, one.action) for one in idle_jobs(rules, [job], uses, before, NOW)]


@pytest.mark.parametrize(
    ("use", "job", "finding"),
    [
        ({}, JOB, "no process"),
        ({"empty": 0.0, "held": 60.0}, JOB, "memory without work"),
        ({"empty": 0.0, "held": 60.0}, replace(JOB, was_busy=True), "idle later"),
    ],
)
def test_three_kinds_of_idle_jobs_are_told_apart(use, job, finding):
    assert judged(minutes(**use), job=job) == [(finding, "warning 1")]


def test_a_job_is_idle_only_below_one_per_cent():
    assert judged(minutes(empty=0.0, active=60.0, used=0.6)) == []
    assert judged(minutes(empty=0.0, active=60.0, used=0.59)) == [("memory without work", "warning 1")]


def test_minutes_without_samples_are_not_idle_minutes():
    assert judged(minutes(until=NOW - 600)) == []
    assert judged(minutes(until=NOW - 360)) == [("no process", "warning 1")]
    assert judged([]) == []


def test_the_time_after_the_start_does_not_count():
    young = replace(JOB, started_at=NOW - 5000)
    assert judged(minutes(), job=young) == []
    assert judged(minutes(), job=replace(JOB, started_at=NOW - 5400)) == [("no process", "warning 1")]


def test_users_and_partitions_can_be_left_alone():
    assert judged(minutes(), rules=replace(RULES, users=("ann",))) == []
    assert judged(minutes(), rules=replace(RULES, partitions=("main",))) == []
    assert len(judged(minutes(), rules=replace(RULES, users=("bob",), partitions=("long",)))) == 1


@pytest.mark.parametrize(
    ("before", "action"),
    [
        (warned("warning 1"), "warning 2"),
        (warned("warning 1", ago=100.0), ""),
        (warned("warning 1", "warning 2"), "cancel"),
        (warned("warning 1", "warning 2", "cancel"), ""),
        (warned("warning 1", dry=True), "warning 1"),
        (warned("warning 1", job=8), "warning 1"),
        (warned("warning 1", ago=9500.0), "warning 1"),  # about an earlier attempt
    ],
)
def test_the_steps_follow_one_another_half_a_window_apart(before, action):
    assert judged(minutes(), before) == [("no process", action)]


def test_the_minutes_of_other_jobs_do_not_count():
    other = minutes(job=8, empty=0.0, active=60.0, used=60.0)
    assert judged([*minutes(), *other]) == [("no process", "warning 1")]


def test_the_mail_says_what_was_found_and_what_follows():
    one = IdleJob(job=JOB, finding="no process", window=3600, charged=3600.0, action="warning 2")
    subject, text = message(one, RULES, "hopper")
    assert subject == "fgsched Job_id=7 Name=train Idle GPU, warning 2"
    assert text.startswith(
        "In the last 60 minutes no process of the job has used its GPUs.\n"
        "This is the second and last warning. After that it is cancelled.\n"
    )


# -- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "mails") as one:
        yield one


def idle_home(tmp_path, server, action):
    config = f'[host]\ncpus = 64\n[policies]\nidle = "{action}"\nidle_window = "10"\nidle_grace = "0"\n'
    return living(tmp_path / "home", config=config + server.settings(domain='"example.org"'))


def make_idle(home, job, until):
    """Write ten minutes of an idle job, before `until`."""
    ledger = Ledger(home.path / "accounts.db")
    card = Card(uuid="GPU-x", gpu=0, model="A100", total=1, since=until - 9000, until=until)
    with ledger.write():
        ledger.add_cards([card])
        for use in minutes(job=job, since=until - 660, until=until):
            ledger.add_minute(Minute(at=use.at, owners=(replace(use, card="GPU-x"),)))
    ledger.close()


def actions(home):
    reader = Reader(home.path / "accounts.db")
    found = [(one.job, one.finding, one.action) for one in reader.warnings(0, 1e11)]
    reader.close()
    return found


def recorded(home, count):
    """The warnings, once there are `count` of them: a commit becomes visible through shared memory."""
    end = time.monotonic() + PATIENCE
    while len(found := actions(home)) < count:
        assert time.monotonic() < end, found
        os.sched_yield()
    return found


def test_two_warnings_are_mailed_and_recorded_and_then_the_job_is_cancelled(tmp_path, server, monkeypatch):
    with idle_home(tmp_path, server, "cancel") as home:
        job = home.running()
        for name, value in home.environ.items():
            monkeypatch.setenv(name, value)
        later = time.time() + 3600
        make_idle(home, job, later)
        assert "warning 1" in idle(is_dry=True, now=later)
        assert actions(home) == []
        steps = ["warning 1", "warning 2", "cancel"]
        for count, step in enumerate(steps, 1):
            assert idle(is_dry=False, now=later).rstrip().endswith(step)
            assert recorded(home, count)[-1] == (job, "no process", step)
        assert idle(is_dry=False, now=later) == ""
        assert [one["state"] for one in home.wait(job)] == ["CANCELLED"]
        assert home.job(job)["note"] == "idle GPU: no process"
        found = [str(one["Subject"]).rpartition(", ")[2] for one in server.wait(3)]
        assert found == steps


def test_nothing_is_done_unless_the_site_says_so(tmp_path, server):
    with idle_home(tmp_path, server, "off") as home:
        home.running()
        done = home.run("fgsched", "policy", "idle")
        assert (done.status, done.out, done.err) == (0, "", "")


def test_a_young_job_is_not_idle(tmp_path, server):
    with idle_home(tmp_path, server, "cancel") as home:
        job = home.running()
        make_idle(home, job, time.time())
        assert home.run("fgsched", "policy", "idle", "--dry-run").out == ""
