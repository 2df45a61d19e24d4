"""A run of the tests ends what it started, also what has a new session and environment, and fails for it."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import PATIENCE, until_written
from fakehost import why_not
from fgsched.system.process import identify
from live_host import ROOT, Home

CONFTEST = "import leftovers\nleftovers._PATIENCE = 1.0\nfrom leftovers import pytest_cmdline_main\n"
LEAVES = """
import os

def test_that_leaves_a_process():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.execve("/bin/sleep", ["sleep", "1000001"], {{}})
        os._exit(0)
    os.wait()
    os.close(write)
    pid = os.read(read, 20).decode()
    assert os.read(read, 1) == b""  # closed by exec: the process has its name
    open({pid!r}, "w").write(pid + "\\n")
    {then}
"""
LEAVES_A_CONTROLLER = """
import subprocess, sys

def test_that_leaves_a_controller():
    command = [sys.executable, "-m", "fgsched.cli.fgsched", "start"]
    assert subprocess.run(command, env={environ!r}).returncode == 0
"""
LEAVES_A_CONTROLLER_OF_THE_HOST = """
from fakehost import hosting

def test_that_leaves_a_controller():
    with hosting(started=False) as host:
        assert host.run("root", "fgsched", "start", "--system").status == 0
        print(host.run("root", "fgsched", "status", "--system").out, file=open({said!r}, "w"))
"""
ENDS = "def test_that_ends():\n    pass\n"


def a_run(path: Path, test: str, *options: str) -> subprocess.Popen[str]:
    (path / "conftest.py").write_text(CONFTEST)
    (path / "test_it.py").write_text(test)
    plain = ["-q", "-p", "no:cacheprovider", "--basetemp", str(path / "files")]
    command = [sys.executable, "-m", "pytest", *plain, *options, str(path)]
    environ = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=path, env=environ, stdout=pipe, stderr=pipe, text=True)


def test_a_run_that_leaves_nothing_keeps_its_exit_status(tmp_path):
    for test, status in ((ENDS, 0), (ENDS.replace("pass", "assert False"), 1), ("", 5)):
        run = a_run(tmp_path, test)
        _, err = run.communicate(timeout=PATIENCE)
        assert (run.returncode, err) == (status, "")


@pytest.mark.parametrize("then", ["pass", "assert False"], ids=["passes", "fails"])
def test_a_process_without_parent_and_environment_is_named_and_killed(tmp_path, then):
    run = a_run(tmp_path, LEAVES.format(pid=str(tmp_path / "pid"), then=then))
    _, err = run.communicate(timeout=PATIENCE)
    pid = int((tmp_path / "pid").read_text())
    assert (run.returncode, identify(pid)) == (1, None)
    assert err == f"left by the tests, killed now: {pid}: sleep 1000001 [in {tmp_path}]\n"


def test_a_run_of_several_workers_ends_what_each_of_them_left(tmp_path):
    run = a_run(tmp_path, LEAVES.format(pid=str(tmp_path / "pid"), then="pass"), "-n", "2")
    _, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, identify(int((tmp_path / "pid").read_text()))) == (1, None)
    assert "sleep 1000001" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_run_that_is_stopped_leaves_nothing(tmp_path, number):
    """The run is killed in the middle of a test; its parent is what a terminal or `timeout` sees."""
    run = a_run(tmp_path, LEAVES.format(pid=str(tmp_path / "pid"), then="import signal; signal.pause()"))
    pid = int(until_written(tmp_path / "pid"))
    ended = os.pidfd_open(pid)
    [tests] = [
        int(child)
        for child in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        if int(child) != pid
    ]
    os.kill(run.pid if number == signal.SIGTERM else tests, number)
    _, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, select.select([ended], [], [], PATIENCE)[0]) == (128 + number, [ended])
    assert "sleep 1000001" in err
    os.close(ended)


def test_a_process_of_a_test_that_fails_is_not_waited_for():
    with pytest.raises(AssertionError), subprocess.Popen(["sleep", "1000000"]) as process:
        raise AssertionError
    assert process.returncode == -signal.SIGKILL


def test_a_controller_that_a_test_left_is_named_and_killed(tmp_path):
    home = Home(tmp_path / "home")
    run = a_run(tmp_path, LEAVES_A_CONTROLLER.format(environ=home.environ))
    _, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, "fgsched.controller" in err, f"FG_HOME={home.path}" in err) == (1, True, True), (
        err
    )
    pid = int(home.paths.lock.read_text())
    assert identify(pid) is None


@pytest.mark.root
@pytest.mark.skipif(why_not() != "", reason=why_not())
def test_a_controller_of_the_host_that_a_test_left_is_named_and_killed(tmp_path):
    """Its environment names no test, and its host has a mount namespace of its own."""
    said = tmp_path / "said"
    run = a_run(tmp_path, LEAVES_A_CONTROLLER_OF_THE_HOST.format(said=str(said)))
    out, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, "1 passed" in out, "--system" in err) == (1, True, True), out + err
    assert "system mode" in said.read_text()
    pids = [int(line.split(": ")[1]) for line in err.splitlines()]
    assert [pid for pid in pids if identify(pid)] == []
