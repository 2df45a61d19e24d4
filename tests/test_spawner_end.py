"""How a job ends: its time, its cancelling, the processes it leaves, what it used."""

import os
import re
import resource
import signal

import pytest

from awaiting import rest, until_stopped
from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import (
    ALL,
    CANCEL,
    CHILDREN,
    DELIVER,
    RESUME,
    SHELL,
    SUSPEND,
    Result,
    is_gone,
    spawning,
)
from tracing import TRACE_EXIT, traced

pytestmark = NEEDS_SPAWNER
PATH = {"PATH": os.environ["PATH"]}
SOON = 5000  # milliseconds: a limit or a warning before which a script has set its traps
NOTED = 2000  # milliseconds of grace: the writer of the line about the end is killed with the rest
STUBBORN = "#!/bin/sh\ntrap '' TERM\necho $$ >gate\nwhile :; do sleep 1000; done\n"
WILLING = "#!/bin/sh\ntrap 'echo asked; exit 9' TERM\nsleep 1000 &\necho $$ >gate\nwait\n"


def test_a_job_that_heeds_nothing_is_killed_when_its_time_is_up(spawner, gate, tmp_path):
    job = spawner.launch(STUBBORN, env=PATH, time_limit=SOON, grace=NOTED, job=23)
    pid = gate.number()
    result = job.result()
    assert (result.cause, result.exit_code) == ("timeout", -signal.SIGKILL)
    assert is_gone(pid)
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    host = re.escape(os.uname().nodename.partition(".")[0])
    line = rf"\*\*\* JOB 23 ON {host} CANCELLED AT {when} DUE TO TIME LIMIT \*\*\*\n"
    assert re.fullmatch(line, job.output())
    assert result.end - result.start >= 60_000_000


def test_a_job_that_heeds_term_ends_in_its_own_way(spawner, gate):
    job = spawner.launch(WILLING, env=PATH, time_limit=SOON, leftover_grace=20)
    gate.line()
    result = job.result()
    assert (result.cause, result.exit_code) == ("timeout", 9)
    assert "asked\n" in job.output()


def test_a_job_within_its_time_is_left_alone(spawner):
    result = spawner.launch(
        "#!/bin/sh\nexit 3\n", time_limit=60_000, warn=(signal.SIGUSR1, ALL, 1000)
    ).result()
    assert (result.cause, result.exit_code) == ("exit", 3)


TREE = """#!/bin/sh
trap 'echo shell >gate' USR1
sh -c 'trap "echo child >gate; exit" USR1; echo ready >gate; while :; do sleep 1000 & wait; done' &
while :; do wait; done
"""


@pytest.mark.parametrize(
    ("target", "heard"), [(ALL, {"shell", "child"}), (SHELL, {"shell"}), (CHILDREN, {"child"})]
)
def test_the_early_warning_reaches_whom_it_is_for(spawner, gate, target, heard):
    limit = 600_000
    job = spawner.launch(
        TREE,
        env=PATH,
        time_limit=limit,
        warn=(signal.SIGUSR1, target, limit - SOON),
        leftover_grace=50,
        grace=50,
    )
    assert gate.line() == "ready"
    assert {gate.line() for _ in heard} == heard
    job.order(CANCEL)
    assert job.result().cause == "cancel"


@pytest.mark.parametrize(
    ("target", "heard"), [(ALL, {"shell", "child"}), (SHELL, {"shell"}), (CHILDREN, {"child"})]
)
def test_a_signal_is_delivered_to_whom_it_is_for(spawner, gate, target, heard):
    job = spawner.launch(TREE, env=PATH, leftover_grace=50, grace=50)
    assert gate.line() == "ready"
    job.order(DELIVER, signal.SIGUSR1, target)
    assert {gate.line() for _ in heard} == heard
    job.order(CANCEL)
    assert job.result().cause == "cancel"


def test_a_cancelled_job_says_so_in_its_output(spawner, gate):
    job = spawner.launch(WILLING, env=PATH, leftover_grace=NOTED)
    gate.line()
    job.order(CANCEL)
    result = job.result()
    assert (result.cause, result.exit_code) == ("cancel", 9)
    assert re.search(r"^\*\*\* JOB 1 ON \S+ CANCELLED AT \S+ \*\*\*$", job.output(), re.MULTILINE)


def test_a_stopped_job_is_continued_to_hear_of_its_end(spawner, gate):
    script = (
        "#!/bin/sh\ntrap 'exit 9' TERM\necho $$ >gate; kill -STOP $$; while :; do sleep 1000 & wait; done\n"
    )
    job = spawner.launch(script, env=PATH, leftover_grace=20)
    pid = gate.number()
    until_stopped(pid)
    job.order(CANCEL)
    assert job.result().exit_code == 9


def test_a_suspended_job_stands_still_and_so_does_its_clock(spawner, gate):
    script = "#!/bin/sh\ntrap 'exit 9' TERM\nsleep 1000 &\necho $$ $! >gate\nwhile :; do wait; done\n"
    job = spawner.launch(script, env=PATH, time_limit=SOON, leftover_grace=20)
    pids = gate.line().split()
    job.order(SUSPEND)
    for pid in pids:
        until_stopped(int(pid))
    job.order(RESUME)
    result = job.result()
    assert (result.cause, result.exit_code) == ("timeout", 9)


def test_only_the_first_cause_counts(spawner, gate):
    script = "#!/bin/sh\ntrap 'echo asked >gate' TERM\necho up >gate\nwhile :; do sleep 1000 & wait; done\n"
    job = spawner.launch(script, env=PATH, time_limit=SOON, grace=60_000)
    assert [gate.line(), gate.line()] == ["up", "asked"]
    job.order(CANCEL)
    job.order(DELIVER, signal.SIGKILL, ALL)
    assert job.result().cause == "timeout"


ESCAPERS = """#!/bin/sh
trap '' TERM HUP
sleep 1000 & echo $! >gate
setsid sh -c 'trap "" TERM; echo $$ >gate; while :; do sleep 1000; done' &
(setsid sh -c 'trap "" TERM; sleep 1000 & echo $! >gate' &)
env -i setsid setsid /bin/sh -c 'trap "" TERM; echo $$ >gate; while :; do /bin/sleep 1000; done' >/dev/null &
read -r line <go
exit 5
"""


@pytest.mark.parametrize("missing", ["", "children_files"])
def test_nothing_of_a_job_outlives_its_result(gate, go, tmp_path, missing):
    with spawning(tmp_path, FG_CRASH_AT=missing) as spawner:
        job = spawner.launch(ESCAPERS, env=PATH, leftover_grace=20)
        pids = [gate.number() for _ in range(4)]
        os.write(go.fd, b"go\n")
        result = job.result()
        assert (result.cause, result.exit_code) == ("exit", 5)
        assert [pid for pid in pids if not is_gone(pid)] == []


def test_what_is_left_is_asked_before_it_is_killed(spawner, gate, go):
    child = "trap 'echo asked; exit' TERM; echo >gate; while :; do sleep 1000 & wait; done"
    job = spawner.launch(f'#!/bin/sh\nsh -c "{child}" &\nread -r line <go\n', env=PATH)
    gate.line()
    os.write(go.fd, b"go\n")
    assert job.result().exit_code == 0
    assert job.output() == "asked\n"


STORM = """#!/usr/bin/env python3
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", file=open("gate", "w"))
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""


def test_a_job_that_forks_as_fast_as_it_can_is_ended(spawner, gate):
    job = spawner.launch(STORM, env=PATH, leftover_grace=10)
    gate.line()
    assert job.result().exit_code == 0


def test_use_counts_children_that_ended_and_children_that_were_left(spawner, gate, go, tmp_path):
    """Each child writes down what it used; the shell waits for one of them."""
    burn = "(i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; times >used-{0}; echo >gate; {1})"
    children = " & ".join(
        [burn.format(0, "exit"), burn.format(1, "sleep 1000"), burn.format(2, "sleep 1000")]
    )
    script = f"#!/bin/sh\n{children} & read a <go; exit 0\n"
    job = spawner.launch(script, env=PATH, leftover_grace=20)
    for _ in range(3):
        gate.line()
    os.write(go.fd, b"go\n")
    result = job.result()
    own = [seconds_in((tmp_path / f"used-{number}").read_text()) for number in range(3)]
    assert min(own) > 0
    assert (result.user + result.system) / 1e6 >= sum(own)
    assert 500 < result.max_rss < 100_000


def seconds_in(text):
    """The seconds that a shell has used, in the first line of its `times`."""
    return sum(
        60 * int(one) + float(more) for one, more in re.findall(r"(\d+)m([\d.]+)s", text.partition("\n")[0])
    )


def on_disk(path):
    """Whether writes below a path are counted: a tmpfs has no disk."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_oublock
    (path / "probe").write_bytes(bytes(1 << 16))
    return resource.getrusage(resource.RUSAGE_SELF).ru_oublock > before


def test_what_all_processes_of_a_job_write_to_disks_is_counted_for_this_job_alone(spawner, disk):
    if not on_disk(disk):
        pytest.skip("needs a directory on a disk")
    write = "head -c {} /dev/zero >" + str(disk)
    many = f"({write.format(3_000_000)}/a; {write.format(2_000_000)}/b) & wait\n{write.format(1_000_000)}/c"
    job = spawner.launch(f"#!/bin/sh\n{many}\n", job=1, env=PATH).result()
    assert 6_000_000 <= job.disk_written < 6_200_000
    assert spawner.launch("#!/bin/sh\nexit 0\n", job=2).result().disk_written < 200_000


def test_cancel_after_the_end_changes_nothing(spawner, gate, tmp_path):
    job = spawner.launch(
        "#!/bin/sh\ntrap '' TERM\nsleep 1000 &\necho $! >gate\nexit 6\n", env=PATH, leftover_grace=300
    )
    gate.line()
    job.order(DELIVER, 0)
    result = job.result()
    assert (result.cause, result.exit_code) == ("exit", 6)
    assert Result.read(job.link) == result


SLEEPS = "#!/bin/sh\necho $$ >gate\nexec sleep 1000\n"


def test_a_tracer_outside_the_job_does_not_keep_it_beyond_its_time_limit(spawner, gate):
    job = spawner.launch(SLEEPS, env=PATH, time_limit=SOON, grace=20)
    pid = gate.number()
    with traced(pid):
        result = job.result()
        assert (result.cause, result.exit_code, result.survivor) == ("timeout", -signal.SIGKILL, 0)
        assert not job.wish.directory.exists()


def test_a_traced_process_that_a_script_leaves_does_not_keep_the_job(spawner, gate, go):
    script = "#!/bin/sh\nsleep 1000 & echo $! >gate\nread -r code <go\nexit $code\n"
    job = spawner.launch(script, env=PATH, leftover_grace=20)
    with traced(gate.number()):
        os.write(go.fd, b"6\n")
        result = job.result()
        assert (result.cause, result.exit_code, result.survivor) == ("exit", 6, 0)


def test_a_process_that_no_kill_ends_is_left_behind_and_named(spawner, gate):
    """Its tracer stops it at its exit: as one that waits in the kernel, it lives and cannot be ended."""
    job = spawner.launch(SLEEPS, env=PATH, leftover_grace=20, grace=20, last_wait=100)
    pid = gate.number()
    with traced(pid, TRACE_EXIT):
        job.order(CANCEL)
        result = job.result()
        assert (result.cause, result.survivor) == ("cancel", pid)
        assert result.detail == f"process {pid} could not be ended"
        assert not is_gone(pid)


def test_a_zombie_whose_other_threads_live_is_waited_for(spawner, gate):
    """The leader of the process has ended, another thread of it goes on and hears no TERM."""
    script = (
        "#!/usr/bin/env python3\n"
        "import ctypes, os, signal, threading, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print(os.getpid(), file=open('gate', 'w'))\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    job = spawner.launch(script, env=PATH, grace=20)
    pid = gate.number()
    while not is_gone(pid):  # the state that is shown is the leader's
        rest()
    job.order(CANCEL)
    result = job.result()
    assert (result.cause, result.exit_code, result.survivor) == ("cancel", -signal.SIGKILL, 0)
