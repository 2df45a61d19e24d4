"""A job whose files lie on a file system that does not answer says so, and ends when it is cancelled."""

import time

import pytest

import silent
from awaiting import PATIENCE, rest

pytestmark = [pytest.mark.root, silent.needs_fuse]


def waiting(home, job):
    """Return the warning of a job, once it has one."""
    end = time.monotonic() + PATIENCE
    while not (warning := home.job(job)["warning"]):
        assert time.monotonic() < end, home.job(job)
        rest()
    return warning


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
