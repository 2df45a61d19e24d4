"""A job that waits for a file system at its start or its end says so, and ends when it is cancelled."""

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

import silent
from awaiting import PATIENCE, rest
from builders import a_job
from fgsched.domain.states import JobState
from fgsched.launch.hostwait import HostWaits
from fgsched.lifecycle.transitions import Shepherd


def waiting(home, job):
    """Return the warning of a job, once it has one."""
    end = time.monotonic() + PATIENCE
    while not (warning := home.job(job)["warning"]):
        assert time.monotonic() < end, home.job(job)
        rest()
    return warning


@pytest.mark.root
@silent.needs_fuse
@pytest.mark.parametrize(
    ("option", "path", "named"),
    [
        ("--output", "far/out", "standard output"),
        ("--error", "far/err", "standard error"),
        ("--input", "far/in", "standard input"),
        ("--chdir", "far", "working directory"),
    ],
)
def test_a_job_that_waits_for_a_silent_file_system_says_for_which_file_and_can_be_cancelled(
    home, tmp_path, option, path, named
):
    far = tmp_path / "far"
    far.mkdir()
    (far / "in").touch()
    made = home.run("fgsub", "--parsable", "--hold", option, str(tmp_path / path), "--wrap", "exit 3")
    job = int(made.out)
    with silent.mounted(far):
        assert home.run("fgctl", "release", str(job)).status == 0
        warning = waiting(home, job)
        assert warning.startswith("not executed yet: ")
        assert f"its {named}, which does not answer" in warning
        assert warning in home.run("fgctl", "show", "job", str(job)).out
        assert home.job(job)["state"] == "RUNNING"
        assert home.job(job)["reason"] == "HostWait"
        assert home.run("fgcancel", str(job)).status == 0
        (ended,) = home.wait(job)
        assert ended["state"] == "CANCELLED"
    assert home.job(home.ended("exit 4"))["exit_code"] == 4


def test_a_job_that_executes_its_script_has_no_such_warning(home):
    job = home.running()
    end = time.time() + PATIENCE
    while home.job(job)["elapsed"] < 6:
        assert time.time() < end
        rest()
    assert home.job(job)["warning"] == ""


def until_reason(home, job, reason="HostWait"):
    end = time.monotonic() + PATIENCE
    while (shown := home.job(job))["reason"] != reason:
        assert time.monotonic() < end, shown
        rest()
    return shown


@pytest.mark.root
@silent.needs_fuse
def test_a_job_whose_end_waits_for_a_file_system_shows_this_reason_in_every_table(home, tmp_path):
    source = tmp_path / "source"
    source.touch()
    with silent.unread(source) as unread:
        job = home.submit(f"exec cat {source}")
        assert unread.is_read.wait(PATIENCE)
        assert home.run("fgcancel", str(job)).status == 0
        warning = until_reason(home, job)["warning"]
        assert warning.startswith("its end waits for process ")
        assert "(cat), which SIGKILL has not ended: " in warning
        assert home.run("fgq", "-h", "-j", str(job)).out.split()[-1] == "(HostWait)"
        assert home.run("squeue", "-h", "-o", "%r", "-j", str(job)).out == "HostWait\n"
        shown = home.run("fgctl", "show", "job", str(job)).out
        assert "Reason=HostWait" in shown
        assert warning in shown
    (ended,) = home.wait(job)
    assert ended["state"] == "CANCELLED"
    assert home.job(job)["reason"] == "None"


RUNNING = a_job(state=JobState.RUNNING, attempt=1, started_at=0.0)


@contextmanager
def named(name):
    """The pid of a process with a name, as a shepherd takes it."""
    program = (
        f"import os; open('/proc/self/comm', 'wb').write(os.fsencode({name!r})); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as process:
        assert process.stdout.readline()
        yield process.pid
        process.communicate(b"\n")


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\udcff"])
def test_the_name_of_a_process_controls_no_terminal(name):
    with named(name) as process, named(f"fg:kill {process}") as shepherd:
        text = HostWaits(lambda job: Shepherd(pid=shepherd, start=0, boot="")).of(RUNNING, 1.0)
    assert text.isprintable()
    assert "which SIGKILL has not ended" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fg:empty", "its end waits until its TMPDIR and its job directory are empty"),
        ("fg:kill 1", "its end waits for process 1 ("),
        ("fg-7.1", ""),
    ],
)
def test_the_name_of_a_shepherd_tells_for_what_an_end_waits(name, text):
    with named(name) as pid:
        waits = HostWaits(lambda job: Shepherd(pid=pid, start=0, boot=""))
        shown = waits.of(RUNNING, 1.0)
        assert shown.startswith(text) if text else shown == ""
        assert waits.of(replace(RUNNING, state=JobState.COMPLETING), 1.0) == ""
