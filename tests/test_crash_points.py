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
ONCE = {"controller_in_recovery", "controller_before_signal"}  # passed once in this story
AS_OFTEN_AS_JOBS_LAST = "controller_before_follow"  # a job that ends within its turn is not followed
SHEPHERDS = (
    "shepherd_before_claim",
    "shepherd_after_claim",
    "shepherd_after_fork",
    "shepherd_before_result",
    "shepherd_after_result",
)


def story(home):
    """Three jobs that write a witness, and one that is cancelled; asked for as often as it needs."""
    script = home.path / "witness.sh"
    script.write_text(
        "#!/bin/sh\n#FG --gpus=0.25 --no-requeue --output=/dev/null\necho $FG_JOB_ID >>witness\nexit $1\n"
    )
    jobs = [int(home.run("fgsub", "--parsable", str(script), str(code)).out) for code in (0, 3, 5)]
    stuck = int(home.run("fgsub", "--parsable", "--wrap", "exec sleep 1000").out)
    home.run("fgcancel", str(stuck))
    home.run("fgwait", *map(str, (*jobs, stuck)))
    return jobs, stuck


def standing(home, job):
    found = home.job(job)
    return found["state"], found["exit_code"]


@pytest.mark.parametrize(
    ("point", "nth"),
    [(point, nth) for point in POINTS for nth in (1, 2) if (point, nth) != (AS_OFTEN_AS_JOBS_LAST, 2)],
)
def test_the_controller_may_die_anywhere(tmp_path, point, nth):
    with crashing(tmp_path, f"{point}:{nth}", config=CPUS) as home:
        check_the_story(home, must_have_died=nth == 1 or point not in ONCE)


@pytest.mark.parametrize("point", POINTS)
def test_the_tasks_of_an_array_run_once_each_wherever_the_controller_dies(tmp_path, point):
    with crashing(tmp_path, f"{point}:1", config=CPUS) as home:
        script = 'echo "$FG_ARRAY_TASK_ID" >>witness; exit 0'
        done = home.run("fgsub", "--parsable", "--array=0-4%2", "--output=/dev/null", "--wrap", script)
        array = done.out.strip()
        home.run("fgwait", array)
        assert sorted((home.path / "witness").read_text().split()) == ["0", "1", "2", "3", "4"]
        tasks = home.history(int(array))
        assert [(job["task"], job["state"]) for job in tasks] == [(task, "COMPLETED") for task in range(5)]
        until_nothing_is_left(home)


def until_nothing_is_left(home):
    """Wait until the run directory is tidy: that of a job can be removed after its end is known."""
    for _ in attempts():
        if not (left := leftovers(home.places.run)):
            return
    raise AssertionError(left)


def check_the_story(home, *, must_have_died):
    first = home.places.lock.read_text()
    jobs, stuck = story(home)
    assert [standing(home, job) for job in jobs] == [("COMPLETED", 0), ("FAILED", 3), ("FAILED", 5)]
    assert standing(home, stuck)[0] == "CANCELLED"
    assert Counter((home.path / "witness").read_text().split()) == Counter(str(job) for job in jobs)
    assert home.queue("id") == []
    assert len(home.history()) == 4, "no repeat of a command queued a job twice"
    until_nothing_is_left(home)
    assert (home.places.lock.read_text() != first) is must_have_died


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
