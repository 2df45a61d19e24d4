"""Another time limit for a running job, whatever crashes on the way, and with real processes."""

import os
import re

import pytest

from asking import carried_out
from builders import World, a_demand, a_gpu
from crashing import Power, crashing
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.submission import Rules
from fgsched.controller.turn import ClientRequest, SendReply
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState

ROOT = Caller(0, 0, "root", is_operator=True)
TIMED = "trap 'exit 9' TERM; echo >{ready}; while :; do sleep 1000 & wait; done"


def update(world, limit, answered):
    def act(now):
        handlers = JobHandlers(world.engine, Rules(max_script=1000, default_time=0))
        carried_out([handlers], "update", ROOT, {"id": 1, "changes": {"time_limit": limit}}, now)
        return SendReply(answered, limit)

    world.turn(ClientRequest(act, lambda error: None))


def two_limits(effects, answered):
    """A job that runs is given two limits; the power fails after some effects."""
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)], time_limit=1000)
    world.settle()

    def updates():
        for limit in (500, 700):
            update(world, limit, answered)
        world.settle()

    power = Power(world, effects)
    power.lasts(updates)
    return power


@pytest.mark.parametrize("effects", range(12))
def test_a_crash_at_any_effect_leaves_the_shepherd_with_the_limit_that_is_written_down(effects):
    answered = [1000]
    world = two_limits(effects, answered.append).world
    world.start()
    world.settle()
    job, attempt = world.job(1), world.host.attempts[1, 1]
    assert (job.state, world.host.runs) == (JobState.RUNNING, [1])
    assert attempt.limit == job.request.time_limit
    told = [1000, 500, 700]
    assert told.index(job.request.time_limit) >= told.index(answered[-1])
    assert job.relimited == (job.request.time_limit != 1000)


def test_the_crashes_above_reach_from_before_the_commit_to_after_the_last_order():
    seen = set()
    for effects in range(12):
        power = two_limits(effects, lambda limit: None)
        world = power.world
        found = world.job(1).request.time_limit, world.host.attempts[1, 1].limit
        seen.add(found if power.cuts else "whole")
    assert {(1000, 1000), (500, 1000), (500, 500), (700, 500), (700, 700), "whole"} == seen


def begun(home, *options):
    """A job that has set its trap."""
    ready = home.path / "ready"
    os.mkfifo(ready)
    done = home.run("fgsub", "--parsable", "--output=out", *options, "--wrap", TIMED.format(ready=ready))
    ready.read_text()
    return done.out.strip()


def test_fgq_and_fgctl_show_the_new_limit_and_fgacct_keeps_it(home):
    job = begun(home, "--time=1:00:00")
    assert home.run("fgctl", "update", f"job={job}", "timelimit=2-0").status == 0
    limit, left, end = home.run("fgq", "-h", "-o", "%l|%L|%e", "-j", job).out.strip().split("|")
    assert limit == "2-00:00:00"
    assert re.fullmatch(r"1-23:59:\d\d", left)
    shown = home.run("fgctl", "show", "job", job).out
    assert "TimeLimit=2-00:00:00" in shown
    assert f"EndTime={end}" in shown
    assert home.run("fgctl", "update", f"job={job}", "timelimit=unlimited").status == 0
    assert home.run("fgq", "-h", "-o", "%l %L", "-j", job).out.split() == ["UNLIMITED", "UNLIMITED"]
    home.run("fgcancel", job)
    home.run("fgwait", job)
    assert home.run("fgacct", "-j", job, "-n", "-P", "-o", "Timelimit").out.strip() == "UNLIMITED"


def test_a_limit_that_is_over_already_ends_the_job_with_timeout(home):
    job = begun(home, "--time=1:00:00")
    assert home.run("fgctl", "update", f"job={job}", "timelimit=0:01").status == 0
    home.run("fgwait", job)
    found = home.job(int(job))
    assert (found["state"], found["reason"], found["exit_code"]) == ("TIMEOUT", "TimeLimit", 9)
    assert "DUE TO TIME LIMIT ***" in (home.path / "out").read_text()


def test_a_controller_that_dies_on_the_way_has_the_next_one_give_the_order(tmp_path):
    """The order is committed, and not given; the virtual world changes limits among all other deaths."""
    with crashing(tmp_path, "controller_before_signal:1") as home:
        job = begun(home, "--time=1:00:00")
        for text in ("30:00", "20:00", "0:01"):
            home.run("fgctl", "update", f"job={job}", f"timelimit={text}")
        home.run("fgwait", job)
        found = home.job(int(job))
        assert (found["state"], found["exit_code"]) == ("TIMEOUT", 9)
        assert (home.path / "out").read_text().count("DUE TO TIME LIMIT ***") == 1
