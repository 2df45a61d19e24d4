"""fgwait: for how long, for which jobs, and with whose exit code."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from awaiting import rest
from crashing import controller_of, kill
from fgsched import protocol
from fgsched.cli.fgwait import ProgressLine
from live_host import PATIENCE


def until(is_so):
    """Look until it is so; everything here is a matter of moments."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came to that"
        rest()


def waiting(home, *words, **more):
    """fgwait under way."""
    command = [sys.executable, "-m", "fgsched.cli.fgwait", *words]
    return subprocess.Popen(command, env=home.environ, cwd=home.path, text=True, **more)


def test_the_largest_exit_code_of_the_jobs_is_the_answer(home):
    jobs = [home.ended(f"exit {code}") for code in (0, 3, 2)]
    assert home.run("fgwait", f"{jobs[0]}-{jobs[-1]}").status == 3
    assert home.run("fgwait", str(jobs[0])).status == 0


def test_a_job_that_a_signal_ended_counts_128_more(home):
    assert home.run("fgwait", str(home.ended("kill -9 $$"))).status == 137


def test_a_cancelled_pending_job_is_no_success(home):
    job = home.submit(hold=True)
    home.client.ask("cancel", ids=[job])
    assert home.run("fgwait", str(job)).status == 1


def test_any_ends_with_the_first(home):
    running, over = home.running(), home.ended("exit 4")
    assert home.run("fgwait", "--any", str(running), str(over)).status == 4


def test_the_time_is_up_when_it_is_up(home):
    done = home.run("fgwait", "--timeout", "0.1", str(home.submit(hold=True)))
    assert (done.status, done.err) == (124, "fgwait: error: some jobs have not ended after 0.1 seconds\n")


def test_a_controller_that_does_not_answer_is_told_so(home):
    job = home.submit(hold=True)
    pid = controller_of(home)
    os.kill(pid, signal.SIGSTOP)
    try:
        done = home.run("fgwait", str(job))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (done.status, done.out) == (5, "")
    assert done.err.startswith(f"fgwait: error: the controller does not answer (pid {pid})\n")


@pytest.mark.parametrize("text", ["soon", "-1", "1e3", ""])
def test_a_bad_time_is_bad_usage(home, text):
    assert home.run("fgwait", f"--timeout={text}", "1").status == 2


def test_json_tells_how_each_ended(home):
    job = home.ended("exit 3")
    done = home.run("fgwait", "--json", str(job))
    assert done.json["jobs"] == [{"job_id": job, "state": "FAILED", "exit_code": 3, "signal": 0}]


def test_an_unknown_job_is_not_waited_for(home):
    done = home.run("fgwait", "99")
    assert (done.status, "Invalid job id specified" in done.err) == (3, True)


def test_it_waits_through_a_restart_of_the_controller(home):
    job = home.running()
    with waiting(home, str(job)) as waiter:
        until(lambda: waits(home))
        kill(controller_of(home))
        assert home.run("fgq", "-h").status == 0  # whoever comes first starts another one
        assert waiter.poll() is None
        home.run("fgcancel", str(job))
        assert waiter.wait(PATIENCE) == 128 + signal.SIGTERM


def waits(home):
    """Whether somebody besides us is connected to the controller, which itself listens."""
    with open("/proc/net/unix") as sockets:
        return sum(f" {home.paths.run}/socket" in line for line in sockets) > 2


def test_starts_are_told_as_well_as_ends(home):
    first, second = home.running(), home.submit(f"cat {home.path}/gate", hold=True)
    os.mkfifo(home.path / "gate")
    with home.client.watch([first, second]) as watch:
        until(lambda: watch.is_over(0.1) or watch.progress)
        assert watch.progress == protocol.Progress(done=0, running=1, pending=1)
        home.client.ask("release", ids=[second])
        until(lambda: watch.is_over(0.1) or watch.progress.running == 2)
        home.client.ask("cancel", ids=[first])
        until(lambda: watch.is_over(0.1) or watch.progress.done == 1)
        (home.path / "gate").write_text("")
        until(lambda: watch.is_over(0.1))


def test_a_terminal_is_told_how_far_it_is_when_it_takes_long(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    progress = ProgressLine()
    progress.show(protocol.Progress(pending=2))
    assert screen.getvalue() == ""
    monkeypatch.setattr(progress, "_since", float("-inf"))
    progress.show(protocol.Progress(done=3, running=2, pending=5))
    assert screen.getvalue() == "\r\x1b[K3 done, 2 running, 5 pending"
