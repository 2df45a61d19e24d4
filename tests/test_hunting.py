"""A job of which neither shepherd nor spawner is left: its processes are ended, within bounds."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from fgsched.host import shepherds
from fgsched.host.rundir import RunDir
from fgsched.host.shepherds import Shepherds
from fgsched.jobs.surroundings import job_dir
from fgsched.model import JobState
from spawning import await_end
from tracing import TRACE_EXIT, traced
from worlds import a_job

JOB = a_job(1, state=JobState.RUNNING, attempt=1)


@pytest.fixture
def hunter(tmp_path):
    ports = SimpleNamespace(watch=None, gone=None, accounts=None)
    return Shepherds(RunDir(tmp_path / "run", "boot"), SimpleNamespace(pid=0), None, ports, None)


@pytest.fixture
def left(hunter):
    """A process of the job."""
    environment = {"FG_JOB_DIR": job_dir(str(hunter.run.path), 1, 1), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "1000000"], env=environment) as process:
        yield process
        process.kill()


def test_what_is_left_of_a_job_is_killed(hunter, left):
    assert not hunter.hunt(JOB)
    await_end(left.pid)
    assert left.wait() == -signal.SIGKILL
    assert hunter.hunt(JOB)


def test_what_no_kill_ends_is_left_behind_in_the_end(hunter, left, monkeypatch, caplog):
    with traced(left.pid, TRACE_EXIT):
        assert not hunter.hunt(JOB)
        assert not hunter.hunt(JOB), "it has its time first"
        monkeypatch.setattr(shepherds, "_LAST_WAIT", 0.0)
        assert hunter.hunt(JOB)
        assert f"no SIGKILL ends them: processes {left.pid}" in caplog.text
