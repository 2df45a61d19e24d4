"""A shepherd is told of another time limit while its job runs."""

import os
import signal

import pytest

from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import ALL, CANCEL, DELIVER, RESUME, SUSPEND, limit_value
from test_spawner_lost import environment, kill_shepherd, noticed

pytestmark = NEEDS_SPAWNER
PATH = {"PATH": os.environ["PATH"]}
ENDLESS = "#!/bin/sh\ntrap 'exit 9' TERM\necho up >gate\nwhile :; do sleep 1000 & wait; done\n"
TELLS = """#!/bin/sh
trap 'exit 9' TERM
trap 'echo early >gate' USR1
trap 'echo other >gate' USR2
echo up >gate
while :; do sleep 1000 & wait; done
"""
HOUR = 3600


def running(spawner, gate, script=ENDLESS, **fields):
    job = spawner.launch(script, env=PATH, **fields)
    assert gate.line() == "up"
    return job


@pytest.mark.parametrize("before", [0, HOUR])
def test_a_limit_that_is_over_already_ends_the_job_as_its_own_would(spawner, gate, before):
    job = running(spawner, gate, time_limit=before * 1000)
    job.limit(1)
    result = job.result()
    assert (result.cause, result.exit_code) == ("timeout", 9)
    assert "DUE TO TIME LIMIT ***" in job.output()


def test_a_longer_limit_or_none_lets_the_job_go_on(spawner, gate):
    script = "#!/bin/sh\necho up >gate\nsleep 9; exit 7\n"
    jobs = []
    for number, after in enumerate([0, HOUR, 2**23, 2**24, 2**24 + 1, 366 * 86_400], 1):
        jobs.append(running(spawner, gate, script, job=number, time_limit=8000))
        jobs[-1].limit(after)
    results = [job.result() for job in jobs]
    assert [(result.cause, result.exit_code) for result in results] == [("exit", 7)] * 6


def test_the_latest_of_several_limits_counts(spawner, gate):
    job = running(spawner, gate)
    for seconds in (2 * HOUR, HOUR, 1):
        job.limit(seconds)
    assert job.result().cause == "timeout"


def test_the_early_signal_moves_with_the_limit_and_is_given_once(spawner, gate):
    job = running(spawner, gate, TELLS, time_limit=10 * HOUR * 1000, warn=(signal.SIGUSR1, ALL, HOUR * 1000))
    job.limit(HOUR)
    assert gate.line() == "early"
    job.limit(HOUR)
    job.order(DELIVER, signal.SIGUSR2)
    assert gate.line() == "other"
    job.order(CANCEL)
    assert job.result().cause == "cancel"


def test_the_early_signal_comes_again_before_a_limit_that_was_moved_away(spawner, gate):
    early = (signal.SIGUSR1, ALL, HOUR * 1000 - 1000)
    job = running(spawner, gate, TELLS, time_limit=HOUR * 1000, warn=early)
    assert gate.line() == "early"
    job.limit(HOUR + 2)
    assert gate.line() == "early"
    job.order(CANCEL)
    assert job.result().cause == "cancel"


def test_a_job_that_had_no_limit_is_warned_of_the_one_it_gets(spawner, gate):
    job = running(spawner, gate, TELLS, warn=(signal.SIGUSR1, ALL, HOUR * 1000))
    job.limit(HOUR)
    assert gate.line() == "early"
    job.order(CANCEL)
    assert job.result().cause == "cancel"


def test_time_that_a_job_stood_still_does_not_count_under_a_new_limit_either(spawner, gate, go):
    script = "#!/bin/sh\necho up >gate; read -r line <go; sleep 0.5; exit 7\n"
    job = running(spawner, gate, script, time_limit=HOUR * 1000)
    job.order(SUSPEND)
    spawner.launch("#!/bin/sh\nsleep 4.6\n", job=2, env=PATH).over()
    job.order(RESUME)
    job.limit(5)
    os.write(go.fd, b"go\n")
    result = job.result()
    assert (result.cause, result.exit_code) == ("exit", 7)


def test_a_suspended_job_is_ended_by_a_limit_only_when_it_goes_on(spawner, gate):
    job = running(spawner, gate)
    job.order(SUSPEND)
    job.limit(1)
    job.order(RESUME)
    assert job.result().cause == "timeout"


def test_a_limit_that_comes_after_the_end_has_begun_changes_nothing(spawner, gate):
    script = "#!/bin/sh\ntrap 'echo asked >gate' TERM\necho up >gate\nwhile :; do sleep 1000 & wait; done\n"
    job = running(spawner, gate, script, grace=60_000)
    job.order(CANCEL)
    assert gate.line() == "asked"
    job.limit(1)
    job.order(DELIVER, signal.SIGKILL)
    assert job.result().cause == "cancel"


def test_a_job_without_a_shepherd_gets_its_limit_from_the_spawner(spawner, gate):
    job = spawner.launch(ENDLESS, env=environment(spawner), leftover_grace=20)
    gate.line()
    kill_shepherd(job)
    spawner.command(1, limit_value(1))
    result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("timeout", 9, 1)


def test_a_limit_that_a_shepherd_heard_of_is_kept_without_it(spawner, gate):
    job = spawner.launch(TELLS, env=environment(spawner), leftover_grace=20)
    gate.line()
    job.limit(4)
    job.order(DELIVER, signal.SIGUSR2)
    assert gate.line() == "other"
    kill_shepherd(job)
    assert noticed(spawner, job).cause == "timeout"
