"""Policies: idle jobs and GPU processes of no job, what is due, and what the commands do about real ones."""

import json
import os
import pwd
import time

import pytest
from msgspec.structs import replace

from awaiting import LOOKS, PATIENCE, rest, until
from fgsched.accounting.ledger import Ledger, LedgerReader
from fgsched.accounting.policies import (
    IdleJob,
    IdleRules,
    RunningJob,
    Stranger,
    StrangerRules,
    idle_jobs,
    message,
    stranger_report,
    strangers,
)
from fgsched.accounting.records import GpuRecord, Minute, Owner, OwnerUse, Warned
from fgsched.cli import policy
from fgsched.cli.policy import idle
from fgsched.domain.errors import StorageError
from fgsched.protocol import GpuProcessInfo
from live_host import Home, living
from mailserver import serving

NOW = 100_000.0
RULES = IdleRules(action="cancel", window=3600, grace=1800)
JOB = RunningJob(id=7, name="train", user="ann", partition="main", started_at=NOW - 9000)
OWNER = Owner(uid=1, user="ann", partition="main")


def minutes(job=7, since=NOW - 3600, until=NOW, **use):
    """A use in each minute; by default a share that is charged and has no process."""
    use = {"charged": 60.0, "empty": 60.0} | use
    return [
        OwnerUse(at=int(at), owner=OWNER, uuid="GPU-0", job=job, **use)
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
    gpu = GpuRecord(uuid="GPU-x", gpu=0, model="A100", total=1, since=until - 9000, until=until)
    with ledger.write():
        ledger.add_gpus([gpu])
        for use in minutes(job=job, since=until - 660, until=until):
            ledger.add_minute(Minute(at=use.at, owners=(replace(use, uuid="GPU-x"),)))
    ledger.close()


def actions(home):
    reader = LedgerReader(home.path / "accounts.db")
    found = [(one.job, one.finding, one.action) for one in reader.warnings(0, 1e11)]
    reader.close()
    return found


def recorded(home, count):
    """The warnings, once there are `count` of them."""
    eventually(lambda: len(actions(home)) >= count)
    return actions(home)


def eventually(is_so):
    """Wait for a change in the accounts: a commit becomes visible through shared memory, without an event."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        rest()


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


# -- processes of no job -------------------------------------------------------------------------------

GIB = 1 << 30
WARN = StrangerRules(action="warn", grace=600, users=("root",), commands=("Xorg", "dcgm*"))


def process(pid=5, gpu=0, user="bob", command="python x.py", ago=700.0, **more):
    given = {"memory": GIB, "since": NOW - ago} | more
    return GpuProcessInfo(pid=pid, gpu=gpu, user=user, command=command, **given)


def pids(*processes, before=(), rules=WARN):
    return [(one.pid, one.action) for one in strangers(rules, processes, before, NOW)]


def test_processes_of_jobs_and_allowed_ones_are_no_strangers():
    others = [
        *(process(job=7), process(user="root"), process(command="Xorg"), process(command="dcgm-exporter")),
        process(ago=599.0),
    ]
    assert pids(*others) == []
    assert pids(process(), process(6, user="ann", command="Xorg2")) == [(5, "warn"), (6, "warn")]


def test_a_process_on_two_gpus_is_one_and_the_largest_comes_first():
    found = strangers(WARN, [process(), process(6), process(6, gpu=1, ago=900.0)], [], NOW)
    assert found[0] == Stranger(
        pid=6,
        user="bob",
        command="python x.py",
        gpus=(0, 1),
        memory=2 * GIB,
        since=NOW - 900,
        action="warn",
    )
    assert [one.pid for one in found] == [6, 5]


@pytest.mark.parametrize(("ago", "action"), [(86_399, ""), (86_401, "warn")])
def test_a_process_is_reported_once_a_day(ago, action):
    before = Warned(at=NOW - ago, job=0, policy="strangers", finding=process_finding(), action="warn")
    assert pids(process(), before=[before]) == [(5, action)]
    assert pids(process(), before=[replace(before, dry=True)]) == [(5, "warn")]
    assert pids(process(command="other"), before=[before]) == [(5, "warn")]


def process_finding():
    return strangers(WARN, [process()], [], NOW)[0].finding


def test_a_command_cannot_forge_a_line_of_the_mail():
    (found,) = strangers(WARN, [process(command="x\n  User  root")], [], NOW)
    subject, text = stranger_report([found], "hopper", NOW)
    assert subject == "fgsched: 1 GPU process outside of jobs on hopper"
    assert "  Command    'x\\x0a  User  root'\n  GPU        0\n  Memory     1024M\n" in text


@pytest.fixture
def shared(tmp_path, server):
    """A home whose first GPU has a process of this user that belongs to no job."""
    policies = '[policies]\nstrangers = "warn"\nstrangers_to = "chief"\nstrangers_commands = ["Xorg"]\n'
    config = f'[host]\ncpus = 64\n[sampling]\ninterval = 1\n{policies}strangers_grace = "0"\n'
    home = Home(tmp_path / "home", config=config + server.settings(domain='"example.org"'))
    script = home.path / "cards" / "script.json"
    script.parent.mkdir()
    known = [
        {"pid": 4_200_001, "memory": "3G", "sm": 40, "uid": os.geteuid(), "command": "python x.py"},
        {"pid": 4_200_002, "memory": "1G", "uid": os.geteuid(), "command": "Xorg"},
    ]
    script.write_text(json.dumps({"0": {"processes": known}}))
    home.run("fgq", "-h", env={"FG_SIM_SCRIPT": str(script)})
    yield home
    home.leave()


def test_a_process_of_no_job_is_mailed_to_the_administrator_and_to_its_user(shared, server, monkeypatch):
    for name, value in shared.environ.items():
        monkeypatch.setenv(name, value)
    eventually(lambda: has_accounts(shared))
    until(shared.path / "cards", lambda: policy.strangers(is_dry=True, now=time.time()), LOOKS)
    assert server.mails == []
    lines = policy.strangers(is_dry=False, now=time.time() + 10).splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["PID", "USER", "GPU", "MEM"],
        ["4200001", me(), "0", "3072M"],
    ]
    assert {mail["To"]: mail["Subject"].partition(" outside")[0] for mail in server.wait(2)} == {
        "chief@example.org": "fgsched: 1 GPU process",
        f"{me()}@example.org": "fgsched: your GPU processes",
    }
    (found,) = recorded(shared, 1)
    assert found == (0, f"pid 4200001 of {me()}: 'python x.py'", "warn")
    assert policy.strangers(is_dry=False, now=time.time() + 20).splitlines()[1].split()[5:7] == [
        *("none", "today"),
    ]
    assert len(server.mails) == 2


def has_accounts(home):
    """Whether the accountant has made the accounts."""
    try:
        LedgerReader(home.path / "accounts.db").close()
    except StorageError:
        return False
    return True


def me():
    return pwd.getpwuid(os.geteuid()).pw_name


def test_pidinfo_tells_the_job_of_a_process_and_the_strangers(shared):
    job = shared.running(name="train")
    (pid, *_) = [line.split()[0] for line in shared.run("fgctl", "listpids", str(job)).lines[1:]]
    found = shared.run("fgctl", "pidinfo", pid)
    assert found.lines[0] == f"Pid={pid}  JobId={job}  JobName=train"
    document = shared.run("fgctl", "pidinfo", "--json", "4200001").json["process"]
    (part,) = document.pop("gpus")
    assert document | {"seen_at": 0} == {
        "pid": 4_200_001,
        "job": None,
        "step": None,
        "user": me(),
        "command": "python x.py",
        "started_at": None,
        "seen_at": 0,
    }
    assert {key: part[key] for key in ("gpu", "memory", "busy")} == {"gpu": 0, "memory": 3 * GIB, "busy": 0.4}
    assert shared.run("fgctl", "pidinfo", "4200001").lines[:2] == [
        "Pid=4200001  JobId=none",
        f"   UserId={me()}  Command=python x.py",
    ]
    own = shared.run("fgctl", "pidinfo", str(os.getpid())).lines
    assert (own[0], own[-2]) == (f"Pid={os.getpid()}  JobId=none", "   Gpu=none")
    missing = shared.run("fgctl", "pidinfo", "4100001")
    assert (missing.status, missing.err.splitlines()[0]) == (1, "fgctl: error: there is no process 4100001")
