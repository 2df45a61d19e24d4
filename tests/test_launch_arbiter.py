"""The controller's side of the arbiter: when its process is started."""

import os
from pathlib import Path

import pytest

import fgshim
from fgsched.launch.arbiter import Arbiter, TurnJob, TurnShare

STEP = 0.025  # seconds
JOBS = {(7, 1): TurnJob(os.geteuid(), "/nowhere", (TurnShare(0, 0, "hard", 5000),))}


def steps(arbiter, seconds):
    """Update an arbiter as a busy controller does; each process that it starts ends before the next step."""
    for step in range(round(seconds / STEP)):
        arbiter.update(JOBS, 100 + step * STEP)
        if process := arbiter._process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    arbiter.close()


def test_an_arbiter_that_ends_at_once_is_started_once_a_second(tmp_path):
    program, starts = tmp_path / "arbiter", tmp_path / "starts"
    program.write_text(f"#!/bin/sh\necho started >>{starts}\n")
    program.chmod(0o700)
    steps(Arbiter(program, tmp_path / "lock"), 3)
    assert len(starts.read_text().splitlines()) == 3


def test_an_arbiter_that_does_not_answer_is_replaced_after_three_seconds(tmp_path, caplog):
    program = tmp_path / "arbiter"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o700)
    arbiter, seen = Arbiter(program, tmp_path / "lock"), []
    for step in range(round(3.5 / STEP)):
        arbiter.update(JOBS, 100 + step * STEP)
        if arbiter._process and arbiter._process.pid not in seen:
            seen.append(arbiter._process.pid)
    assert len(seen) == 2
    assert caplog.messages == ["the arbiter of shared GPUs does not answer: another one is started"]
    arbiter._process.kill()
    arbiter._process.wait()
    arbiter.close()


def test_an_arbiter_is_not_blamed_for_steps_of_the_controller_that_are_late(tmp_path):
    arbiter = Arbiter(Path(fgshim.__file__).with_name("fgspawn"), tmp_path / "lock")
    arbiter.update(JOBS, 100)
    process = arbiter._process
    for step in range(4):
        arbiter.update(JOBS, 200 + 100 * step)
    assert arbiter._process is process
    process.kill()
    process.wait()
    arbiter.close()


@pytest.mark.parametrize("seconds", [1, 2])
def test_an_arbiter_that_cannot_be_started_is_tried_once_a_second(tmp_path, caplog, seconds):
    steps(Arbiter(tmp_path / "missing", tmp_path / "lock"), seconds)
    assert len(caplog.messages) == seconds
    assert "the arbiter of shared GPUs cannot be started: " in caplog.text
