"""The controller's side of the arbiter: when its process is started."""

import os

import pytest

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


@pytest.mark.parametrize("seconds", [1, 2])
def test_an_arbiter_that_cannot_be_started_is_tried_once_a_second(tmp_path, caplog, seconds):
    steps(Arbiter(tmp_path / "missing", tmp_path / "lock"), seconds)
    assert len(caplog.messages) == seconds
    assert "the arbiter of shared GPUs cannot be started: " in caplog.text
