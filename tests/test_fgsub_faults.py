"""fgsub when things go wrong around it: a controller that dies or is silent, a full disk, a damaged queue."""

import fcntl
import os
import resource
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from asking import AskingClient
from crashing import await_end, controller_of, kill, kill_controller, shepherd_of
from fgsched.client import TimedOut
from fgsched.domain.errors import Exit, Unreachable
from live_host import PATIENCE, living

WITNESS = ("--output=/dev/null", "--wrap", "echo $FG_JOB_ID >>witness")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0, to become another user")


def witnesses(home):
    return (home.path / "witness").read_text().split()


def history(home):
    return [job["id"] for job in home.history()]


def controllers(home):
    """The pids of all controllers of this home."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"fgsched.controller" in words and f"FG_HOME={home.path}".encode() in environment:
            found.append(int(entry.name))
    return found


# -- the controller dies ------------------------------------------------------------------------
# `test_crash_points` kills the controller at each of its points, during submissions, too.


def test_the_same_request_again_has_the_same_ids(home):
    request = {
        "key": secrets.token_hex(16),
        "scripts": ["#!/bin/sh\n"],
        "environments": [{}],
        "requests": [{"name": "job", "chdir": str(home.path)}],
        "jobs": [[0, 0, 0, True]] * 3,
    }
    first = home.client.ask("submit", **request)
    assert (first["first"], first["count"]) == (1, 3)
    assert home.client.ask("submit", **request) == first
    assert history(home) == [1, 2, 3]


def test_the_socket_of_a_controller_that_was_killed_is_no_obstacle(home):
    assert home.run("fgsub", "--hold", *WITNESS).status == 0
    kill(controller_of(home))
    assert home.paths.socket.exists()
    assert home.run("fgsub", "--parsable", "--hold", *WITNESS).out == "2\n"


def test_first_commands_at_once_start_one_controller(home):
    count = 8
    words = [sys.executable, "-m", "fgsched.cli.fgsub", "--parsable", *WITNESS]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(words, env=home.environ, cwd=home.path, stdout=pipe, stderr=pipe, text=True)
        for _ in range(count)
    ]
    said = [one.communicate(timeout=PATIENCE) for one in running]
    assert sorted(int(out) for out, _ in said) == list(range(1, count + 1)), said
    assert controllers(home) == [controller_of(home)]
    home.wait(*range(1, count + 1))
    assert sorted(witnesses(home)) == [str(one) for one in range(1, count + 1)]


# -- the controller cannot be reached -----------------------------------------------------------


def test_a_controller_that_is_silent_is_named_by_its_pid(home):
    assert home.client.ask("ping")
    pid = controller_of(home)
    os.kill(pid, signal.SIGSTOP)
    try:
        with AskingClient(home.paths) as client, pytest.raises(TimedOut) as caught:
            client.ask("ping", patience=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert caught.value.cause == f"the controller does not answer (pid {pid})"
    assert caught.value.exit_code == Exit.UNREACHABLE


def test_nobody_but_the_administrator_starts_the_controller_of_a_host(home):
    of_the_host = replace(home.paths, mode="system")
    with pytest.raises(Unreachable) as caught:
        AskingClient(of_the_host).ask("ping")
    assert caught.value.cause == "the controller is not running"
    has_systemd = Path("/run/systemd/system").is_dir()
    start = "systemctl start fgsched" if has_systemd else "fgsched start --system"
    assert caught.value.remedy == f"Start it: {start}"


@pytest.mark.root
@AS_ROOT
def test_a_socket_of_somebody_else_is_said_to_be_that(home):
    assert home.client.ask("ping")
    os.seteuid(65534)
    try:
        with pytest.raises(Unreachable) as caught:
            AskingClient(home.paths).ask("ping")
    finally:
        os.seteuid(0)
    assert caught.value.cause == f"no permission on the controller's socket {home.paths.socket}"


def test_a_file_in_the_place_of_the_socket_is_named(home):
    home.paths.run.mkdir(mode=0o700)
    home.paths.socket.write_text("precious")
    done = home.run("fgsub", *WITNESS)
    assert (done.status, done.out) == (Exit.UNREACHABLE, "")
    assert f"{home.paths.socket} is not a socket.\nMove it away" in done.err  # and nothing is waited for
    assert home.paths.socket.read_text() == "precious"
    home.paths.socket.unlink()


@pytest.mark.parametrize("command", [("fgq",), ("fgsub", *WITNESS), ("fgcancel", "1")])
def test_a_link_to_itself_in_the_place_of_the_socket_is_named(home, command):
    home.paths.run.mkdir(mode=0o700)
    home.paths.socket.symlink_to("socket")
    done = home.run(*command)
    assert (done.status, done.out) == (Exit.UNREACHABLE, "")
    assert f"{home.paths.socket} is not a socket" in done.err


def test_a_socket_where_nobody_listens_is_no_obstacle(home):
    home.paths.run.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home.paths.socket))
    assert home.run("fgsub", "--parsable", *WITNESS).out == "1\n"


# -- the disk and the queue ---------------------------------------------------------------------


def test_a_disk_that_takes_no_more_is_told_and_nothing_is_queued(home):
    home.run("fgq")
    pid = controller_of(home)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in home.path.glob("queue.db*"))
    script = "#!/bin/sh\n" + "# a long script\n" * 100_000 + "true\n"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, before[1]))
    done = home.run("fgsub", input=script)
    with suppress(ProcessLookupError):  # a controller whose disk fails in a commit ends
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert (done.status, done.out) == (6, "")
    assert done.err.startswith("fgsub: error: the queue cannot be written: ")
    assert home.run("fgsub", "--parsable", "--wait", input=script).out == "1\n"
    assert history(home) == [1]


@pytest.mark.parametrize("fault", ["newer", "damaged", "missing"])
def test_a_queue_that_cannot_be_used_is_named_with_the_way_out(tmp_path, fault):
    with living(tmp_path / "home") as home:
        assert home.run("fgsub", "--hold", *WITNESS).status == 0
        home.client.ask("cancel", ids=[1])
        home.leave()
        home._client = None
        queue = home.paths.queue
        kept = queue.read_bytes()
        match fault:
            case "newer":
                with sqlite3.connect(queue) as db:
                    db.execute("PRAGMA user_version = 999")
                db.close()
                way_out = "Upgrade fgsched"
            case "damaged":
                queue.write_bytes(kept[:100] + secrets.token_bytes(len(kept) - 100))
                way_out = "fgsched doctor --recover"
            case "missing":
                queue.unlink()
                way_out = "Bring it back"
        done = home.run("fgsub", *WITNESS)
        assert (done.status, done.out) == (6, "")
        assert str(queue) in done.err
        assert way_out in done.err


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this host does not let us mount a file system")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


FULL = "the queue cannot be written: database or disk is full"


def fill(path):
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.root
@AS_ROOT
def test_a_full_disk_is_told_and_survived(small_disk):
    with living(small_disk / "home") as home:
        assert home.run("fgsub", "--hold", *WITNESS).status == 0
        before = controller_of(home)
        filler = small_disk / "filler"
        fill(filler)
        long = "#!/bin/sh\n" + "# a long script\n" * 20_000 + "true\n"
        done = home.run("fgsub", input=long)
        assert (done.status, done.out) == (6, "")
        assert "Free some space" in done.err
        assert history(home) == [1]
        filler.unlink()
        assert home.run("fgsub", "--parsable", "--wait", input=long).out == "2\n"
        assert controller_of(home) == before


@pytest.mark.root
@AS_ROOT
def test_a_full_disk_is_in_the_status_and_the_report_of_the_doctor_until_the_queue_is_written(small_disk):
    with living(small_disk / "home") as home:
        assert home.run("fgsub", "--hold", *WITNESS).status == 0
        assert "queue " not in home.run("fgsched", "status").out
        filler = small_disk / "filler"
        fill(filler)
        long = "#!/bin/sh\n" + "# a long script\n" * 20_000 + "true\n"
        assert home.run("fgsub", input=long).status == 6
        assert f"queue       {FULL}" in home.run("fgsched", "status").lines
        assert f"({FULL})" in home.run("fgsched", "status", "-v").out
        assert f"FAIL queue       {FULL}" in home.run("fgsched", "doctor").lines
        filler.unlink()
        assert home.run("fgsub", "--parsable", "--wait", input=long).out == "2\n"
        assert FULL not in home.run("fgsched", "status").out
        log = (home.path / "fgsched.log").read_text()
        assert "the queue can be written again" in log


def stop(home):
    """Stop the controller, and wait until it and its accountant have given the space of their logs back."""
    ended = os.pidfd_open(controller_of(home))
    home.client.ask("stop")
    home.disconnect()
    await_end(ended)
    with (home.paths.state / "accounts.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.root
@AS_ROOT
@pytest.mark.parametrize("leave", [stop, kill_controller])
def test_a_controller_starts_on_a_full_disk_and_loses_nothing(small_disk, leave):
    """The spawner keeps the end of the job in memory until the disk takes it."""
    filler = small_disk / "filler"
    with living(small_disk / "home") as home:
        home.submit(hold=True)
        job = home.running()
        script = int(home.run("fgctl", "listpids", str(job)).lines[1].split()[0])
        leave(home)
        fill(filler)
        shepherd = os.pidfd_open(shepherd_of(home, job))
        os.kill(script, signal.SIGTERM)
        await_end(shepherd)
        try:
            queue = home.run("fgq", "-h")
            assert queue.err == ""
            assert [line.split()[:5:4] for line in queue.lines] == [["1", "PD"], ["2", "R"]]
            assert home.run("fginfo").status == 0
            if leave is stop:
                done = home.run("fgcancel", "1")
                assert (done.status, done.err.splitlines()[0]) == (6, f"fgcancel: error: {FULL}")
        finally:
            filler.unlink()
        assert [one["state"] for one in home.wait(job)] == ["FAILED"]
        assert home.job(job)["attempt"] == 1
        assert home.run("fgcancel", "1").status == 0
        assert home.queue() == []


@pytest.mark.root
@AS_ROOT
def test_a_controller_that_cannot_start_on_a_full_disk_says_how_much_space_it_needs(small_disk):
    with living(small_disk / "home") as home:
        home.submit(hold=True)
        stop(home)
        fill(small_disk / "filler")
        more = {"FG_DEVICES": "sim:3x16G"}  # which it must store
        done = home.run("fgq", "-h", env=more)
        assert (done.status, done.out) == (6, "")
        why = f"the file system of {home.path} is full: 0 bytes are free, and 1048576 are needed to store"
        assert done.err.startswith(f"fgq: error: the controller cannot start: {why}")
        with open(small_disk / "filler", "r+b") as filler:
            filler.truncate(os.path.getsize(filler.name) - 2**20)
        done = home.run("fgq", "-h", "-o", "%i", env=more)
        assert (done.status, done.out.split()) == (0, ["1"])
