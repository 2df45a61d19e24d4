"""Jobs of which each submits the next one: a fast chain is delayed, then held, and no other chain is."""

import sys

import pytest

from awaiting import until
from builders import World, a_gpu, a_job, a_result
from fgsched.controller.caller import Caller
from fgsched.domain.job import Job
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import gate_of
from fgsched.lifecycle.transitions import follow
from fgsched.views.wording import why
from live_host import ROOT


def next_job(job: Job, after: float, **more: float) -> Job:
    """The job that a job submits some seconds after it could start."""
    now = max(job.submitted_at, job.not_before) + after
    return a_job(job.id + 1, submitted_at=now, **follow(job, now, max_requeue=5), **more)


def chain(*seconds: float) -> list[Job]:
    jobs = [a_job(submitted_at=1000.0)]
    for after in seconds:
        jobs.append(next_job(jobs[-1], after))
    return jobs


def pause(job: Job) -> float:
    return job.not_before and job.not_before - job.submitted_at


def test_a_job_that_submits_itself_at_once_waits_longer_each_time_and_is_held_in_the_end():
    jobs = chain(*[2] * 16)
    assert [pause(job) for job in jobs[:16]] == [0] * 11 + [10, 20, 40, 80, 160]
    assert not any(job.held for job in jobs[:16])
    assert (jobs[16].held, jobs[16].reason) == ("user", Reason.HELD_MAX_REQUEUE)


def test_a_chain_says_why_its_job_waits():
    *_, delayed, held = chain(*[2] * 16)
    sentence = "submitted in a chain of {} jobs, each within a minute of the job that submitted it; "
    assert why(gate_of(delayed, Reason.BEGIN_TIME)).startswith(sentence.format(15) + "not before ")
    assert why(gate_of(held, held.reason)) == sentence.format(16) + "held, its owner can release it"


def test_a_job_that_saves_its_state_and_submits_its_successor_goes_on_for_ever():
    assert {(job.held, job.not_before, job.links) for job in chain(*[60] * 200)} == {("", 0, 0)}


def test_a_successor_that_is_submitted_at_the_beginning_and_waits_for_its_job_does_not_count():
    jobs = chain(*[28_800] * 200)  # between two submissions, as each job waits for its predecessor
    assert not any(job.links for job in jobs)
    first = next_job(jobs[0], 1)
    assert (first.links, next_job(first, 28_800).links) == (1, 0)


def test_a_longer_job_ends_the_count_of_short_ones():
    assert [job.links for job in chain(2, 2, 2, 3600, 2)] == [0, 1, 2, 3, 0, 1]
    assert pause(chain(*[2] * 12, 60)[-1]) == 0


def test_the_pause_of_a_job_is_no_time_that_its_chain_has_waited():
    job = a_job(submitted_at=1000.0, not_before=1160.0, links=15)
    assert follow(job, 1162.0, max_requeue=5)["links"] == 16
    assert follow(job, 1220.0, max_requeue=5) == {}


# -- submissions ------------------------------------------------------------------------------------

ANN = Caller(1, 1, "ann", is_operator=False)
BOB = Caller(2, 2, "bob", is_operator=False)


def submit(world, inside, *, caller=ANN, hold=False, **request):
    """The job that a program of job `inside` submits."""
    message = {"key": f"key-{world.now}-0123456789", "scripts": ["#!/bin/sh\n"], "environments": [{}]}
    request = {"name": "x", "demand": {"gpus": 1, "share": 100}} | request
    answer = world.ask(caller, "submit", requests=[request], jobs=[[0, 0, 0, hold]], inside=inside, **message)
    world.settle()
    return world.job(answer["first"]), answer.get("warnings", [])


def chained(world, length, **request):
    job, _ = submit(world, 0)
    for _ in range(length):
        job, _ = submit(world, job.id, **request)
    return job


def test_the_job_of_a_fast_chain_waits_with_a_reason_and_then_runs():
    world = World([a_gpu(0)])
    last = chained(world, 10)
    assert (last.state, last.links) == (JobState.RUNNING, 10)
    job, (warning,) = submit(world, last.id)
    assert (job.state, world.engine.jobtable.reason(job)) == (JobState.PENDING, Reason.BEGIN_TIME)
    assert warning.startswith(f"job {job.id} was submitted in a chain of 11 jobs, each within a minute")
    world.start()  # the next controller
    assert (world.job(job.id).links, world.job(job.id).not_before) == (11, job.not_before)
    world.now = job.not_before
    world.settle()
    assert world.job(job.id).state is JobState.RUNNING


def test_a_release_ends_the_count_of_a_chain():
    world = World([a_gpu(0)])
    last = chained(world, 10)
    for _ in range(6):
        job, _ = submit(world, last.id)
        world.now = job.not_before or world.now
        world.settle()
        last = world.job(job.id)
    assert (last.held, last.reason) == ("user", Reason.HELD_MAX_REQUEUE)
    world.ask(ANN, "release", ids=[last.id])
    world.settle()
    assert world.job(last.id).state is JobState.RUNNING
    assert submit(world, last.id)[0].links == 1


def test_only_a_running_job_of_the_same_user_is_a_link():
    world = World([a_gpu(0)])
    last = chained(world, 5)
    assert submit(world, last.id, caller=BOB)[0].links == 0
    assert submit(world, 999)[0].links == 0
    world.host.finish(last.id, 1, a_result())
    world.settle()
    assert submit(world, last.id)[0].links == 0


def test_the_tasks_of_an_array_are_links():
    world = World([a_gpu(0)])
    job, _ = submit(world, chained(world, 4).id, array="0-2")
    tasks = [past.job for past in world.store.tasks.of(job.id)]
    assert {task.links for task in tasks} == {5}
    assert submit(world, tasks[1].id)[0].links == 6


def test_a_job_that_submits_many_jobs_delays_none():
    world = World([a_gpu(0)])
    first, _ = submit(world, 0)
    assert {submit(world, first.id)[0].links for _ in range(20)} == {1}


SELF = {
    "a script that submits itself": ("fgsub {0}", "fgsub {0}"),
    "without variables, by a list of submissions": (
        "echo --export=NONE,FG_HOME {0} | fgsub --batch -",
        "exit",
    ),
    "two scripts in turn": ("fgsub {1}", "fgsub {0}"),
}


@pytest.mark.parametrize("last_lines", SELF.values(), ids=SELF.keys())
def test_a_chain_of_real_jobs_is_delayed(home, last_lines):
    scripts = [home.path / "a.sh", home.path / "b.sh"]
    for script, line in zip(scripts, last_lines, strict=True):
        command = line.format(*scripts).replace("fgsub", f"{sys.executable} -m fgsched.cli.fgsub")
        script.write_text(f"#!/bin/sh\nexport PYTHONPATH={ROOT}\n{command}\n")
    assert home.run("fgsub", str(scripts[0])).status == 0

    def delayed():
        return [line for line in home.run("fgq", "-h", "-o", "%i %r").lines if line.endswith("BeginTime")]

    assert until(home.path, delayed) == ["12 BeginTime"]
    assert "chain of 11 jobs" in home.why(12)
    home.run("fgcancel", "12")
