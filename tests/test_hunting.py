"""A job of which neither shepherd nor spawner is left: its processes are ended, within bounds."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from awaiting import until, until_stopped, until_written
from builders import a_job
from fgsched.domain.states import JobState
from fgsched.launch import launcher as shepherds
from fgsched.launch.launcher import Launcher
from fgsched.launch.rundir import RunDir
from fgsched.lifecycle.launchspec import job_dir
from fgsched.system.process import boot_id, identify, parents, processes_of_job
from fgshim import spawner as program
from spawner_driver import await_end
from tracing import TRACE_EXIT, traced

JOB = a_job(1, state=JobState.RUNNING, attempt=1, uid=os.geteuid())


@pytest.fixture
def hunter(tmp_path):
    ports = SimpleNamespace(watch=None, shepherd_ended=None, host_users=None)
    site = SimpleNamespace(kill_wait=30.0)
    return Launcher(RunDir(tmp_path / "run", "boot"), SimpleNamespace(pid=0), site, ports, None)


@pytest.fixture
def left(hunter):
    """A process of the job."""
    environment = {"FG_JOB_DIR": job_dir(str(hunter.run.path), 1, 1), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "1000000"], env=environment) as process:
        yield process
        process.kill()


def test_what_is_left_of_a_job_is_killed(hunter, left):
    assert not hunter.kill_remaining(JOB)
    await_end(left.pid)
    assert left.wait() == -signal.SIGKILL
    assert hunter.kill_remaining(JOB)


@pytest.mark.compiler
@pytest.mark.skipif(not program().exists(), reason="fgspawn is not built")
def test_a_job_whose_killed_shepherd_the_spawner_has_not_noticed_yet_is_not_lost(spawner):
    begun = spawner.run / "begun"
    job = spawner.launch(f"#!/bin/sh\necho >{begun}\nexec sleep 1000000\n", job=1, attempt=1)
    until_written(begun)
    ports = SimpleNamespace(watch=None, shepherd_ended=None, host_users=None)
    hunter = Launcher(RunDir(spawner.run, boot_id()), SimpleNamespace(pid=0), None, ports, None)
    os.kill(spawner.process.pid, signal.SIGSTOP)
    until_stopped(spawner.process.pid)
    try:
        script = [pid for pid, above in parents().items() if above == job.answer.pid]
        for pid in (job.answer.pid, *script):
            os.kill(pid, signal.SIGKILL)
            await_end(pid)
        assert not processes_of_job(job_dir(str(spawner.run), 1, 1), os.geteuid())
        assert not hunter.kill_remaining(JOB)
    finally:
        os.kill(spawner.process.pid, signal.SIGCONT)
    until(spawner.run / "result", lambda: os.path.lexists(job.link))
    assert job.result().exit_code == -signal.SIGKILL


def test_the_time_for_an_order_to_end_is_that_of_one_attempt(hunter, monkeypatch):
    """A job that was ended and started again has its whole grace time before its processes are killed."""
    now = 1000.0
    monkeypatch.setattr(shepherds.time, "monotonic", lambda: now)
    monkeypatch.setattr(hunter.run, "holder", lambda job, attempt: identify(os.getpid()))
    first = JOB.changed(wish="requeue")
    assert not hunter.kill_remaining(first), "the spawner that inherited it carries out the order"
    hunter.forget(first)
    now += 1000.0
    second = first.changed(attempt=2)
    assert not hunter.kill_remaining(second)
    now += 1000.0
    assert hunter.kill_remaining(second), "it has no processes, and no time is left"


def test_what_no_kill_ends_is_left_behind_in_the_end(hunter, left, monkeypatch, caplog):
    with traced(left.pid, TRACE_EXIT):
        assert not hunter.kill_remaining(JOB)
        assert not hunter.kill_remaining(JOB), "it has its time first"
        monkeypatch.setattr(shepherds, "_LAST_WAIT", 0.0)
        assert hunter.kill_remaining(JOB)
        assert f"processes {left.pid} survive SIGKILL" in caplog.text


def test_one_look_at_the_processes_serves_all_lost_jobs(hunter, monkeypatch):
    looks = []

    def look(directory, uids):
        looks.append((directory, uids))
        return {job_dir(str(hunter.run.path), number, 1): [identify(os.getpid())] for number in range(1, 51)}

    monkeypatch.setattr(shepherds, "_SCAN_MAX_AGE", 60.0)  # seconds; a busy host may be slow
    monkeypatch.setattr(shepherds, "started_below", look)
    monkeypatch.setattr(shepherds, "processes_of_job", lambda *of: looks.append(of))
    monkeypatch.setattr(shepherds, "supervisor_above", lambda pid, above: identify(pid))
    gone = [hunter.kill_remaining(replace(JOB, id=number)) for number in range(1, 51)]
    assert (gone, looks) == ([False] * 50, [(f"{hunter.run.path}/job/", {JOB.uid})])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0")
def test_a_process_of_another_user_with_the_variable_of_a_job_is_not_of_the_job(hunter):
    environment = {"FG_JOB_DIR": job_dir(str(hunter.run.path), 1, 1), "PATH": os.environ["PATH"]}
    job = replace(JOB, uid=4001)
    with subprocess.Popen(["sleep", "1000000"], env=environment, user=4002) as process:
        assert hunter.kill_remaining(job)
        assert process.poll() is None
        assert [one.pid for one in processes_of_job(environment["FG_JOB_DIR"], 4002)] == [process.pid]
        process.kill()
