"""A real controller and spawner, and a kill -9 at each named point: nothing lost, twice or left."""

import os
import signal
from collections import Counter

import pytest

from crashing import crashing, kill, leftovers, shepherd_of
from fgsched.crash import POINTS
from live_host import attempts, living

pytestmark = pytest.mark.compiler
CPUS = "[host]\ncpus = 4\n"
SHEPHERDS = (
    "shepherd_before_claim",
    "shepherd_after_claim",
    "shepherd_after_fork",
    "shepherd_before_result",
    "shepherd_after_result",
)


def story(home, *first):
    """Run three jobs that write a witness, the first with options, and one that is cancelled."""
    script = home.path / "witness.sh"
    script.write_text(
        "#!/bin/sh\n#FG --gpus=0.25 --no-requeue --output=/dev/null\necho $FG_JOB_ID >>witness\nexit $1\n"
    )
    options = {0: first, 3: (), 5: ()}
    jobs = [
        int(home.run("fgsub", "--parsable", *options[code], str(script), str(code)).out) for code in options
    ]
    stuck = int(home.run("fgsub", "--parsable", "--wrap", "exec sleep 1000").out)
    home.run("fgcancel", str(stuck))
    home.run("fgwait", *map(str, (*jobs, stuck)))
    return jobs, stuck


def standing(home, job):
    found = home.job(job)
    return found["state"], found["exit_code"]


@pytest.mark.parametrize("point", POINTS)
def test_the_controller_may_die_anywhere(tmp_path, point):
    """Each task of an array, and each job after it, runs once; the virtual world has the combinations."""
    with crashing(tmp_path, f"{point}:1", config=CPUS) as home:
        first = home.paths.lock.read_text()
        (array, *jobs), stuck = story(home, "--array=0-2%2")
        tasks = home.history(array)
        assert [(job["task"], job["state"]) for job in tasks] == [(task, "COMPLETED") for task in range(3)]
        assert [standing(home, job) for job in jobs] == [("FAILED", 3), ("FAILED", 5)]
        assert standing(home, stuck)[0] == "CANCELLED"
        ran = Counter(int(line) for line in (home.path / "witness").read_text().split())
        assert ran == Counter([*(job["id"] for job in tasks), *jobs])
        assert home.queue("id") == []
        assert len(home.history()) == 6, "no repeat of a command queued a job twice"
        until_nothing_is_left(home)
        assert home.paths.lock.read_text() != first


def until_nothing_is_left(home):
    """Wait until the run directory is tidy: that of a job can be removed after its end is known."""
    for _ in attempts():
        if not (left := leftovers(home.paths.run)):
            return
    raise AssertionError(left)


@pytest.mark.parametrize("point", SHEPHERDS)
def test_every_shepherd_may_die_anywhere(tmp_path, point):
    with crashing(tmp_path, point, config=CPUS) as home:
        check_the_shepherds(home)


def check_the_shepherds(home):
    jobs, _ = story(home)
    ran = (
        Counter((home.path / "witness").read_text().split())
        if (home.path / "witness").exists()
        else Counter()
    )
    for job, code in zip(jobs, (0, 3, 5), strict=True):
        state, exit_code = standing(home, job)
        assert ran[str(job)] <= 1
        if ran[str(job)]:
            assert (state, exit_code) == ("FAILED" if code else "COMPLETED", code)
        else:
            assert state == "FAILED", "what never ran is never called completed"
    until_nothing_is_left(home)


@pytest.mark.parametrize("point", ["controller_before_forget", "shepherd_before_result"])
def test_the_steps_of_a_job_are_stored_once_whatever_dies_at_its_end(tmp_path, point):
    with crashing(tmp_path, point, config=CPUS) as home:
        steps = "srun -J one true; srun -J two sh -c 'exit 3'; exit 0"
        job = home.run("fgsub", "--parsable", "--slurm-env", "-o/dev/null", "--wrap", steps).out.strip()
        home.run("fgwait", job)
        rows = home.run("fgacct", "--steps", "-nP", "-j", job, "-o", "JobID,JobName,ExitCode").lines
        assert rows[2:] == [f"{job}.0|one|0:0", f"{job}.1|two|3:0"]
        until_nothing_is_left(home)


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_a_cancelled_job_whose_shepherd_was_killed_is_asked_before_it_is_ended(tmp_path, cancelled_first):
    with living(tmp_path / "home") as home:
        ready, told = home.path / "ready", home.path / "told"
        os.mkfifo(ready)
        job = home.submit(
            f"trap 'echo asked >{told}; exit 0' TERM; echo >{ready}; while :; do sleep 1000 & wait; done"
        )
        ready.read_text()
        shepherd = shepherd_of(home, job)
        if cancelled_first:
            os.kill(shepherd, signal.SIGSTOP)  # it will never hear of it
            home.client.ask("cancel", ids=[job])
        kill(shepherd)
        if not cancelled_first:
            home.client.ask("cancel", ids=[job])
        home.wait(job)
        assert told.read_text() == "asked\n"
        assert standing(home, job)[0] == "CANCELLED"
