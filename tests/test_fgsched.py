"""fgsched: the controller started, stopped, looked after; its settings printed and checked."""

import fcntl
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from awaiting import is_zombie, rest, until
from crashing import kill
from fgsched import __version__
from fgsched.cli.doctor import examine
from fgsched.cli.restart import _refuse_without_handler
from fgsched.client import Client
from fgsched.config.keys import KEYS
from fgsched.config.load import Config, load
from fgsched.domain.errors import Exit, Refused
from fgsched.domain.units import parse_indices
from fgsched.protocol import About, InternalErrors, Ping
from fgsched.store.connection import may_lose_commits
from fgsched.system import process
from fgsched.system.ownhost import starting
from fgsched.system.process import identify, umask
from live_host import PATIENCE, living


def controller_of(home):
    return home.run("fgsched", "status", "--json").json["pid"]


def test_a_controller_is_started_once_and_stopped(home):
    started = home.run("fgsched", "start")
    pid = controller_of(home)
    assert (started.status, started.out) == (0, f"controller started (pid {pid})\n")
    again = home.run("fgsched", "start")
    assert (again.status, f"another controller is running (pid {pid})" in again.err) == (
        Exit.UNREACHABLE,
        True,
    )
    assert home.run("fgsched", "stop").out == f"controller stopped (pid {pid})\n"
    assert identify(pid) is None
    assert home.run("fgsched", "stop").status == 0


def test_to_stop_a_controller_that_does_not_run_is_no_error(home):
    done = home.run("fgsched", "stop")
    assert (done.status, done.out, done.err) == (Exit.DONE, "the controller is not running\n", "")


def test_a_directory_in_the_place_of_the_socket_is_named(home):
    home.paths.run.mkdir(mode=0o700)
    home.paths.socket.mkdir()
    done = home.run("fgsched", "stop")
    assert (done.status, done.out) == (Exit.UNREACHABLE, "")
    cause = f"{home.paths.socket} is not a socket: it has replaced that of the controller"
    assert done.err.startswith(f"fgsched: error: {cause}\n")
    home.paths.socket.rmdir()


def test_a_second_controller_names_the_first_and_leaves(home):
    home.run("fgsched", "start")
    done = home.run("fgsched", "run")
    assert done.status == Exit.UNREACHABLE
    assert f"another controller is running (pid {controller_of(home)})" in done.err


def test_a_second_controller_leaves_though_the_lock_file_of_the_first_was_removed(home):
    home.run("fgsched", "start")
    pid = controller_of(home)
    home.paths.lock.unlink()
    done = home.run("fgsched", "run")
    assert (done.status, done.err.splitlines()[0]) == (
        Exit.UNREACHABLE,
        f"fgsched: error: another controller is running (pid {pid})",
    )
    assert (controller_of(home), home.paths.lock.read_text()) == (pid, f"{pid}\n")


def test_jobs_go_on_while_no_controller_runs(home):
    one = home.running()
    assert "; 1 running job continues\n" in home.run("fgsched", "stop").out
    home.run("fgsched", "start")
    assert home.job(one)["state"] == "RUNNING"


def test_all_jobs_are_ended_first_when_asked(home):
    running = [home.running(share=10_000), home.running(share=10_000)]
    waiting = home.submit(share=10_000, count=2)
    assert home.run("fgsched", "stop", "--kill").status == 0
    home.run("fgsched", "start")
    jobs = home.wait(*running, waiting, waiting + 1)
    assert [job["state"] for job in jobs] == ["CANCELLED"] * 4


def test_the_cards_named_at_the_start_prevail_and_last(home):
    home.run("fgsched", "start", "--gpus", "sim:3x8G")
    assert home.run("fgsched", "status", "--json").json["gpus"] == 3
    pid = controller_of(home)
    lose_the_spawner(home, pid)
    assert (
        home.run("fgsched", "status", "--json").json | {"gpus": 3, "pid": pid}
        == home.run("fgsched", "status", "--json").json
    )


def test_a_restart_keeps_process_options_and_running_jobs(home):
    home.run("fgsched", "start", "--gpus", "sim:3x16G")
    pid, jobs = controller_of(home), [home.running(share=2500), home.running(share=2500)]
    begun = [home.job(job) for job in jobs]
    done = home.run("fgsched", "restart")
    expected = f"controller restarted (pid {pid}), version {__version__}; 2 running jobs continue\n"
    assert (done.out, done.err) == (expected, "")
    assert home.run("fgsched", "status", "--json").json["gpus"] == 3
    upgraded = home.run("fgsched", "upgrade")
    assert (upgraded.out, upgraded.err) == (expected, "")
    changing = {"elapsed", "gpu_hours", "pacing"}  # the method of measuring is chosen again
    for job, before in zip(jobs, begun, strict=True):
        assert {key for key, value in home.job(job).items() if before[key] != value} <= changing


@contextmanager
def long_start(home):
    """A controller whose start takes as long as the block: it waits for its queue file. Yields its pid."""
    with open(home.paths.queue, "rb+") as queue:
        fcntl.lockf(queue, fcntl.LOCK_EX, 1, 1 << 30)  # the byte that SQLite locks before it reads
        words = (sys.executable, "-m", "fgsched.cli.fgsched", "start")
        with subprocess.Popen(words, env=home.environ, cwd=home.path) as command:
            yield until(home.paths.run, lambda: starting(home.paths.socket))
            fcntl.lockf(queue, fcntl.LOCK_UN, 1, 1 << 30)
    assert command.returncode == 0


def test_a_controller_that_starts_obeys_the_signals_that_came_meanwhile(home):
    home.ended()
    home.run("fgsched", "stop")
    log = home.paths.log
    with long_start(home) as pid:
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGUSR1)
    until(home.path, lambda: log.read_text().count(f"event=controller-start pid={pid}") == 2)
    assert 'why="asked to restart by a signal"' in log.read_text()
    assert controller_of(home) == pid


def test_a_controller_that_is_about_to_execute_itself_again_can_be_stopped(home):
    home.ended()
    pid, log = controller_of(home), home.paths.log
    accountant = next(one for one in process.children(pid) if b"accountant" in cmdline(one))
    with open(os.pidfd_open(pid), "rb") as gone:
        os.kill(accountant, signal.SIGSTOP)  # the controller waits for its end
        os.kill(pid, signal.SIGUSR1)
        until(home.path, lambda: "asked to restart" in log.read_text())
        os.kill(pid, signal.SIGTERM)
        os.kill(accountant, signal.SIGCONT)
        assert select.select([gone], [], [], PATIENCE)[0], "it runs again"


def cmdline(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_the_helpers_are_shown_with_their_names_and_without_settings(tmp_path):
    relays = "[events]\ncommand = '/usr/bin/cat'\n"
    mails = "[mail]\nsend = 'smtp'\nfrom = 'gpu@lab.example'\nsmtp_host = 'mail.lab.example'\n"
    with living(tmp_path / "home", config=relays + mails) as home:
        home.run("fgsched", "start")
        pid = controller_of(home)
        lines = [os.fsdecode(cmdline(child)).split("\0") for child in process.children(pid)]
        helpers = {line[3]: line for line in lines if "fgspawn" not in line[0]}
        modules = {"accounting.accountant", "mail.mailer", "hooks.relay"}
        assert helpers.keys() >= {f"fgsched.{module}" for module in modules}, lines
        assert max(len(" ".join(line)) for line in lines) < 300, lines
        assert not any("\n" in word or "lab.example" in word for line in lines for word in line), lines


def test_restarts_leave_no_ended_children(home):
    home.run("fgsched", "start")
    pid, job = controller_of(home), home.running(share=2500)
    for _ in range(3):
        assert home.run("fgsched", "restart").status == 0
    until_no_child_is_dead(pid)
    home.run("fgcancel", str(job))  # its spawner of three restarts ago ends with it
    home.wait(job)
    until_no_child_is_dead(pid)
    assert len(process.children(pid)) <= 3  # a spawner, an accountant and a mailer


def until_no_child_is_dead(pid):
    """Wait until the controller has waited for all children that have ended, of which nothing tells."""
    end = time.monotonic() + PATIENCE
    while dead := [child for child in process.children(pid) if is_zombie(child)]:
        assert time.monotonic() < end, dead
        rest()


def test_a_restart_is_refused_before_the_controller_stops_if_the_configuration_is_not_valid(home):
    home.run("fgsched", "start")
    wrong = {
        "[host]\ncups = 1\n": "has no key cups",
        '[gpus]\ndevices = "sim:two"\n': "sim:two does not describe simulated GPUs",
    }
    for settings, why in wrong.items():
        (home.path / "fgsched.toml").write_text(settings)
        for words in (["restart"], ["upgrade"], ["config", "--check"]):
            done = home.run("fgsched", *words)
            assert (done.status, why in done.err) == (Exit.USAGE, True), done.err
    assert "event=controller-stop" not in home.paths.log.read_text()


def test_an_upgrade_is_refused_while_a_job_runs_with_another_layout_of_the_region(home):
    job = home.running(share=2500)
    (region,) = home.paths.run.glob("job/*/region")
    with region.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff")  # the version
    done = home.run("fgsched", "upgrade")
    assert (done.status, f"in the format of another version: {job}." in done.err) == (Exit.REFUSED, True), (
        done.err
    )


def test_an_upgrade_to_a_version_older_than_the_queue_is_refused(home):
    home.run("fgsched", "start")
    home.run("fgsched", "stop")
    with closing(sqlite3.connect(home.paths.queue)) as db:
        db.execute("PRAGMA user_version = 9999")
    done = home.run("fgsched", "upgrade")
    assert (done.status, "was written by a newer fgsched" in done.err) == (Exit.STORAGE, True), done.err


def test_a_controller_that_cannot_restart_itself_is_not_signalled():
    with subprocess.Popen(["sleep", "1000"]) as other:
        with pytest.raises(Refused) as refused:
            _refuse_without_handler(other.pid)
        other.kill()
    assert refused.value.remedy == "Run fgsched stop, then fgsched start. Running jobs continue."


OTHER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("ready", flush=True)
    while True:
        line = listening.accept()[0]
        if line.recv(65536):
            line.sendall(b'{"v": 1, "ok": {}}\\n')
"""


def test_a_controller_of_another_protocol_is_stopped_too(home):
    home.run("fgsched", "stop")
    home.paths.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = [sys.executable, "-c", OTHER, home.paths.socket]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        done = home.run("fgsched", "stop")
        assert (done.out, done.err) == (f"controller stopped (pid {other.pid}); running jobs continue\n", "")
    assert other.returncode == -signal.SIGTERM


def lose_the_spawner(home, pid):
    """The controller executes itself anew."""
    spawner = next(child for child in children(pid) if "fgspawn" in child[1])
    starts = home.paths.log.read_text().count("event=controller-start ")
    kill(spawner[0])
    until(home.path, lambda: home.paths.log.read_text().count("event=controller-start ") > starts)
    assert any("fgspawn" in name and child != spawner[0] for child, name in children(pid))
    assert home.run("fgctl", "ping").status == 0


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as listed:
        pids = [int(child) for child in listed.read().split()]
    return [
        (child, os.readlink(f"/proc/{child}/exe")) for child in pids if os.path.exists(f"/proc/{child}/exe")
    ]


def may_go_ahead():
    ask = "import os; os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)"
    return subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode == 0


@pytest.mark.root
@pytest.mark.skipif(not may_go_ahead(), reason="this host lets nobody be served before others")
def test_the_controller_is_served_before_jobs_and_jobs_are_not(home):
    home.ended("nice", output=str(home.path / "first"))
    pid = controller_of(home)
    assert os.getpriority(os.PRIO_PROCESS, pid) == -10, "whatever the tests themselves have"
    lose_the_spawner(home, pid)
    home.ended("nice", output=str(home.path / "second"))
    assert os.getpriority(os.PRIO_PROCESS, pid) == -10, "and not twice as far"
    assert [(home.path / name).read_text() for name in ("first", "second")] == ["0\n"] * 2


IN_A_SESSION_OF_ITS_OWN = """
import os
import resource
import resource
import shutil
from pathlib import Path
from fgsched.system.nice import before_jobs

def standing():
    group = Path("/proc/self/autogroup")
    return os.getpriority(os.PRIO_PROCESS, 0), group.read_text().split()[-1] if group.exists() else ""

os.setpriority(os.PRIO_PROCESS, 0, 15)
usual = standing()
with before_jobs():
    ahead = standing()
print(usual[0], ahead[0], standing() == usual, usual[1], ahead[1])
"""


@pytest.mark.root
@pytest.mark.skipif(not may_go_ahead(), reason="this host lets nobody be served before others")
def test_a_controller_of_low_priority_does_not_set_its_session_back(home):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SESSION_OF_ITS_OWN],
        **{"capture_output": True, "text": True, "check": True, "start_new_session": True},
    )
    assert done.stdout.split() in (["15", "5", "True", "0", "-10"], ["15", "5", "True"])


def test_the_foreground_controller_stops_at_sigterm(home):
    command = [sys.executable, "-m", "fgsched.cli.fgsched", "run", "--gpus", "sim:1x8G"]
    with subprocess.Popen(command, env=home.environ, stderr=subprocess.PIPE, text=True) as controller:
        while "event=controller-start " not in controller.stderr.readline():
            assert controller.poll() is None
        controller.terminate()
        assert controller.wait(PATIENCE) == 0


def test_the_status_names_jobs_source_and_limits(home):
    home.running()
    home.submit(hold=True)
    lines = dict(line.split(None, 1) for line in home.run("fgsched", "status").lines)
    assert lines["jobs"] == "1 PENDING, 1 RUNNING"
    assert lines["GPUs"] == "2 from sim"
    assert lines["socket"] == str(home.paths.socket)


def test_without_a_controller_the_status_says_so_and_starts_none(home):
    done = home.run("fgsched", "status")
    assert (done.status, "is not running" in done.out) == (Exit.UNREACHABLE, True)
    assert home.run("fgsched", "status", "--json").json["running"] is False
    assert not home.paths.socket.exists()


def test_a_silent_controller_is_named(home):
    home.run("fgsched", "start")
    pid = controller_of(home)
    os.kill(pid, signal.SIGSTOP)
    try:
        done = home.run("fgctl", "ping")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.status == Exit.UNREACHABLE
    assert f"the controller does not answer (pid {pid})" in done.err


@pytest.mark.parametrize("is_running", [False, True])
def test_the_doctor_finds_a_healthy_host_healthy(home, is_running):
    if is_running:
        home.run("fgsched", "start")
    done = home.run("fgsched", "doctor", "--json")
    verdicts = {one["check"]: one["verdict"] for one in done.json["checks"]}
    assert (done.status, done.json["healthy"], set(verdicts.values()) - {"OK", "WARN"}) == (0, True, set())
    for check in ("python", "hook", "spawner", "settings", "controller", "queue", "GPUs", "claims"):
        assert verdicts[check] == "OK"
    assert verdicts["enforcement"] == "OK"
    (text,) = [one["text"] for one in done.json["checks"] if one["check"] == "enforcement"]
    assert ("simulated" in text) is is_running
    assert home.paths.socket.exists() is is_running


def test_the_doctor_speaks_of_claims_without_a_controller_only_where_there_are_some(home):
    assert "OK   claims      no claim is left over" in home.run("fgsched", "doctor").lines
    home.running()
    home.run("fgsched", "stop")
    assert (
        "OK   claims      jobs that run or ended without a controller: 1"
        in home.run("fgsched", "doctor").lines
    )
    home.run("fgsched", "start")  # it ends the job with the home


def test_the_doctor_finds_a_damaged_queue(home):
    home.run("fgsched", "start")
    home.run("fgsched", "stop")
    size = home.paths.queue.stat().st_size
    with open(home.paths.queue, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 4096)
    done = home.run("fgsched", "doctor")
    assert done.status == Exit.REFUSED
    assert any(line.startswith("FAIL queue") for line in done.lines)


@pytest.mark.parametrize("spoil", ["newer", "empty", "directory", "writable"])
def test_the_doctor_tells_the_way_out_of_a_queue_that_is_refused(home, spoil):
    home.run("fgsched", "start")
    home.run("fgsched", "stop")
    queue = home.paths.queue
    if spoil == "newer":
        with sqlite3.connect(queue) as db:
            db.execute("PRAGMA user_version = 9999")
        db.close()
    elif spoil == "writable":
        queue.chmod(0o666)
    else:
        queue.unlink()
        queue.mkdir() if spoil == "directory" else queue.touch(0o600)
    found = {one["check"]: one for one in home.run("fgsched", "doctor", "--json").json["checks"]}
    assert (found["queue"]["verdict"], bool(found["queue"]["remedy"])) == ("FAIL", True)


def test_a_state_that_others_can_read_is_reported_and_made_private_by_a_start(home):
    home.run("fgsub", "--hold", "--wrap", "true")
    home.run("fgsched", "stop")
    names = ("queue.db", "audit.log", "fgsched.log", "mail", "queue.initialised")
    for name in names:
        (home.path / name).chmod(0o755 if name == "mail" else 0o644)
    (home.path / "notes").touch(mode=0o644)  # a user's own file in FG_HOME
    done = home.run("fgsched", "doctor")
    assert (done.status, "WARN privacy     other users can read" in done.out) == (0, True)
    assert str(home.path / "queue.db") in done.out
    assert home.run("fgsched", "start").status == 0
    modes = {name: (home.path / name).stat().st_mode & 0o777 for name in (*names, "notes")}
    assert modes == {name: 0o700 if name == "mail" else 0o600 for name in names} | {"notes": 0o644}
    assert "is private now: " in home.paths.log.read_text()
    assert "OK   privacy     no other user can read" in home.run("fgsched", "doctor").out


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_queue_that_others_could_write_is_refused_at_the_start(home, mode):
    assert home.submit(hold=True)
    assert home.run("fgsched", "stop").status == 0
    home.paths.queue.chmod(mode)
    done = home.run("fgq")
    home.paths.queue.chmod(0o600)
    assert (done.status, done.out) == (Exit.STORAGE, ""), done.err
    assert done.err.startswith(f"fgq: error: {home.paths.queue} is writable by others\nLook who changed it")


def test_a_log_is_made_private(home):
    previous = os.umask(0)
    try:
        home.run("fgq", "-h")
    finally:
        os.umask(previous)
    found = [path for path in home.path.iterdir() if path.is_file() and path.stat().st_mode & 0o077]
    assert [path.name for path in found if path.name != "fgsched.toml"] == []


def test_the_doctor_misses_accounts_that_were_there(home):
    home.paths.accounts.with_name("accounts.initialised").write_text("a4d2c1b0\n")
    done = home.run("fgsched", "doctor")
    assert f"FAIL accounts    the accounts {home.paths.accounts} are missing" in done.lines


def test_the_doctor_tells_of_internal_errors_of_the_controller(home, monkeypatch):
    call = Client.call
    errors = InternalErrors(count=3, last="the pacer: KeyError: 7", at=0.0)

    def spoiled(client, request, **options):
        answer = call(client, request, **options)
        return replace(answer, internal_errors=errors) if isinstance(answer, About) else answer

    assert home.client.call(Ping()).internal_errors == InternalErrors()
    monkeypatch.setattr(Client, "call", spoiled)
    found = {one.check: one for one in examine(home.paths)}["faults"]
    assert (found.verdict, "3 internal errors" in found.text) == ("WARN", True)
    assert "the pacer: KeyError: 7" in found.text


def test_the_doctor_finds_bad_settings(home):
    (home.path / "fgsched.toml").write_text("[gpus]\nheadrom = 3\n")
    done = home.run("fgsched", "doctor")
    assert done.status == Exit.REFUSED
    assert "fgsched.toml:2: [gpus] has no key headrom." in done.out


def test_the_doctor_finds_what_a_job_left_behind(home):
    home.run("fgsched", "start")
    (home.paths.run / "claim" / "99.1").symlink_to("P:1:1:x")
    assert "WARN claims      left over: [99]" in home.run("fgsched", "doctor").lines


@pytest.mark.parametrize(
    ("version", "is_bad"),
    [
        ((3, 6, 23), False),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
    ],
)
def test_the_sqlites_that_may_lose_commits_are_known(version, is_bad):
    assert may_lose_commits(version) is is_bad


def test_the_settings_printed_are_the_settings_in_force(home, tmp_path):
    text = '[gpus]\nheadroom = "256M"\nshare_step = 0.05\n[host]\ncpus = 12\n[operators]\nusers = ["ann"]\n'
    text += '[partitions.night]\ndevices = "0-1"\nusers = ["ann"]\nmax_gpus = 1.5\n[resources]\nmatlab = 5\n'
    (home.path / "fgsched.toml").write_text(text)
    printed = home.run("fgsched", "config").out
    copy = tmp_path / "copy.toml"
    copy.write_text(printed)
    read = load(replace(home.paths, config_file=copy))
    assert read == load(home.paths) != Config()
    assert all(f"{key.name} = " in printed and key.description in printed for key in KEYS.values())
    assert set(tomllib.loads(printed)) == {key.table for key in KEYS.values()} | {"partitions", "resources"}


def test_the_file_in_force_is_checked_where_none_is_named(home):
    (home.path / "fgsched.toml").write_text("[partitions.night]\ntime = '1h'\n")
    assert (
        home.run("fgsched", "config", "--check").out
        == f"{home.path}/fgsched.toml: nothing is wrong with it\n"
    )
    (home.path / "fgsched.toml").write_text("[partitions.night]\ntime = 'soon'\n")
    done = home.run("fgsched", "config", "--check")
    assert (done.status, done.out) == (2, "")
    assert f"{home.path}/fgsched.toml:2: partitions.night.time" in done.err


def test_settings_that_the_host_does_not_have_are_warned_of_wherever_they_are_read(home):
    home.run("fgsched", "start")
    text = "[host]\ncpus = 60000\nmemory = '900T'\n[partitions.wide]\ncpus = 60001\nmem = '901T'\n"
    (home.path / "fgsched.toml").write_text(text)
    told = [
        "[host] cpus = 60000, but this host has",
        "[host] memory = ",
        "[partitions.wide] cpus = 60001, but",
    ]
    told.append("[partitions.wide] mem = ")
    check = home.run("fgsched", "config", "--check")
    assert (check.status, check.out) == (0, f"{home.path}/fgsched.toml: valid, with 4 warnings\n")
    reconfigure = home.run("fgctl", "reconfigure")
    os.kill(int(home.paths.lock.read_text()), signal.SIGHUP)
    log = until(
        home.paths.log.parent,
        lambda: (text := home.paths.log.read_text()).count("but jobs may use") == 2 and text,
    )
    doctor = {one.check: one for one in examine(home.paths)}["host size"]
    assert (reconfigure.status, doctor.verdict) == (0, "WARN")
    for place in (check.err, reconfigure.err, log, doctor.text):
        assert [text for text in told if text not in place] == []


@pytest.mark.parametrize(
    "text", ["", "[host]\ncpus = 1\nmemory = '64M'\n", "[partitions.a]\ncpus = 1\nmem = '1M'\n"]
)
def test_settings_that_the_host_has_cause_no_warning(home, text):
    (home.path / "fgsched.toml").write_text(text)
    assert "nothing is wrong with it" in home.run("fgsched", "config", "--check").out
    assert {one.check: one.verdict for one in examine(home.paths)}["host size"] == "OK"


def test_a_file_is_checked_without_being_obeyed(home):
    (home.path / "good.toml").write_text("[host]\ncpus = 1\n")
    (home.path / "bad.toml").write_text("[host]\ncpus = 2\ncups = 1\n")
    assert home.run("fgsched", "config", "--check", "good.toml").status == 0
    bad = home.run("fgsched", "config", "--check", "bad.toml")
    assert (bad.status, "bad.toml:3: [host] has no key cups." in bad.err) == (Exit.USAGE, True)
    assert home.run("fgsched", "config", "--check", "none.toml").status == Exit.USAGE


def test_a_controller_that_stops_leaves_no_private_directory_but_those_in_use(home):
    home.ended('echo "$TMPDIR" >one')
    running = home.running()
    home.submit('echo "$TMPDIR" >two')
    home.wait(running + 1)
    one, two = ((home.path / name).read_text().strip() for name in ("one", "two"))
    assert one != two, "the second ran beside another job, under another number"
    assert home.run("fgsched", "stop").status == 0
    assert (os.path.isdir(one), os.path.isdir(two)) == (True, False), "the running job has the first number"
    home.run("fgsched", "start")  # it ends the job with the home


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_jobs_are_not_bound_as_the_command_was_that_started_the_controller(tmp_path):
    with living(tmp_path / "home") as home:
        home.run("fgsched", "stop")
        allowed = os.sched_getaffinity(0)
        words = [sys.executable, "-m", "fgsched.cli.fgsched", "start"]

        def bind():
            os.sched_setaffinity(0, {min(allowed)})
            os.nice(5)
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.umask(0o077)
            for limit in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
                resource.setrlimit(limit, (4096, resource.getrlimit(limit)[1]))

        words = ["ionice", "-c3", *words]
        subprocess.run(words, env=home.environ, cwd=home.path, preexec_fn=bind, timeout=PATIENCE, check=True)
        shown = "grep Cpus_allowed_list /proc/self/status; nice; umask; ulimit -l; ulimit -c"
        shown += "; ionice; chrt -p $$"
        done = home.run("fgsub", "--wait", "-o", "bound", "--wrap", shown)
        assert done.status == 0, done.err
        listed, nice, mask, locked, core, io, policy, _ = (home.path / "bound").read_text().splitlines()
        assert set(parse_indices(listed.split()[1])) >= allowed
        assert (int(mask, 8), io.partition(":")[0], policy.split()[-1]) == (umask(), "none", "SCHED_OTHER")
        usual = subprocess.run(
            ["sh", "-c", "ulimit -l; ulimit -c"], capture_output=True, text=True, check=True
        )
        assert [locked, core] == usual.stdout.split()
        if os.geteuid() == 0:
            assert int(nice) <= 0
