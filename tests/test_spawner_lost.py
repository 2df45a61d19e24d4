"""What survives when a shepherd or the spawner is killed, at any moment."""

import errno
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import silent
from awaiting import rest, state_of, until
from fixtures_spawner import NEEDS_SPAWNER
from silent import until_it_waits
from spawner_driver import (
    ALL,
    ANSWER,
    ANSWER_MAGIC,
    CANCEL,
    DELIVER,
    PATIENCE,
    RESULT_MAGIC,
    Answer,
    Gate,
    Result,
    await_end,
    is_gone,
    spawning,
)
from tracing import TRACE_EXIT, traced

pytestmark = NEEDS_SPAWNER
SOON = 6000  # milliseconds: a limit before which the test has killed the shepherd
WAITS = "#!/bin/sh\necho $$ >gate\nread -r code <go\nexit $code\n"


def environment(spawner, job=1):
    return {"PATH": os.environ["PATH"], "FG_JOB_DIR": f"{spawner.run}/job/{job}.1"}


def kill_shepherd(job):
    os.kill(job.answer.pid, signal.SIGKILL)
    job.over()
    assert not os.path.lexists(job.link)


def noticed(spawner, job) -> Result:
    """The result of a job whose shepherd was killed, once the spawner says that it is there."""
    assert spawner.notice() == Answer(RESULT_MAGIC, 1, job.wish.job, 0, 0, 0)
    return Result.read(job.link)


def test_a_killed_shepherds_job_runs_on_to_its_true_exit_code(spawner, gate, go, tmp_path):
    job = spawner.launch(WAITS, env=environment(spawner), tmpdir=str(tmp_path / "private"))
    pid = gate.number()
    kill_shepherd(job)
    assert not is_gone(pid)
    os.write(go.fd, b"42\n")
    result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("exit", 42, 1)
    assert not job.wish.directory.exists()
    assert list((tmp_path / "private").iterdir()) == []


def test_a_job_that_kills_its_shepherd_gains_nothing(spawner):
    job = spawner.launch("#!/bin/sh\nkill -9 $PPID\nexit 3\n")
    job.over()
    result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("exit", 3, 1)


def test_the_time_limit_holds_without_the_shepherd(spawner, gate):
    script = "#!/bin/sh\ntrap '' TERM\necho $$ >gate\nwhile :; do sleep 1000; done\n"
    job = spawner.launch(script, env=environment(spawner), time_limit=SOON, grace=2000)
    pid = gate.number()
    kill_shepherd(job)
    result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("timeout", -signal.SIGKILL, 1)
    assert is_gone(pid)
    assert "DUE TO TIME LIMIT ***" in job.output()


def test_a_job_without_a_shepherd_can_be_cancelled(spawner, gate):
    script = "#!/bin/sh\ntrap 'exit 8' TERM\necho >gate\nwhile :; do sleep 1000 & wait; done\n"
    job = spawner.launch(script, env=environment(spawner))
    gate.line()
    kill_shepherd(job)
    spawner.command(1, CANCEL)
    result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("cancel", 8, 1)


def test_what_a_lost_job_leaves_is_killed_and_nothing_else_is(spawner, gate, go, tmp_path):
    other_go = Gate(tmp_path / "other-go")
    is_being_preempted = (
        "#!/bin/sh\nsleep 1000 & echo $! >gate\n"
        "(setsid sh -c 'sleep 1000 & echo $! >gate' &)\nread -r code <go\nexit $code\n"
    )
    job = spawner.launch(is_being_preempted, env=environment(spawner), leftover_grace=20)
    left = [gate.number(), gate.number()]
    other = spawner.launch(
        "#!/bin/sh\n(setsid sleep 1000 & echo $! >gate)\necho >gate\nread -r code <other-go\nexit $code\n",
        env=environment(spawner, 2), job=2, leftover_grace=20,
    )  # fmt: skip
    others_child = gate.number()
    gate.line()
    kill_shepherd(job)
    kill_shepherd(other)
    os.write(go.fd, b"1\n")
    assert noticed(spawner, job).exit_code == 1
    assert [is_gone(pid) for pid in left] == [True, True]
    assert not is_gone(others_child)
    os.write(other_go.fd, b"2\n")
    assert noticed(spawner, other).exit_code == 2
    assert is_gone(others_child)


def test_a_job_beside_a_lost_one_is_not_touched(spawner, gate, go, tmp_path):
    beside_go = Gate(tmp_path / "beside-go")
    beside = spawner.launch(
        "#!/bin/sh\necho >gate\nread -r code <beside-go\nexit $code\n", env=environment(spawner, 2), job=2
    )
    gate.line()
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    kill_shepherd(job)
    os.write(go.fd, b"1\n")
    assert noticed(spawner, job).exit_code == 1
    os.write(beside_go.fd, b"5\n")
    assert (beside.result().exit_code, beside.result().lost) == (5, 0)


def test_a_lost_job_is_seen_to_its_end_after_the_controller_has_gone(spawner, gate, go):
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    spawner.socket.shutdown(socket.SHUT_RDWR)
    kill_shepherd(job)
    os.write(go.fd, b"11\n")
    assert spawner.process.wait(PATIENCE) == 0
    result = Result.read(job.link)
    assert (result.exit_code, result.lost) == (11, 1)


def test_shepherds_outlive_their_spawner(spawner, gate, go):
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    spawner.process.kill()
    spawner.process.wait()
    spawner.expected_end = -signal.SIGKILL
    os.write(go.fd, b"12\n")
    result = job.result()
    assert (result.exit_code, result.lost) == (12, 0)


def test_a_shepherd_killed_before_its_claim_leaves_nothing(tmp_path):
    with spawning(tmp_path, FG_CRASH_AT="shepherd_before_claim") as spawner:
        job = spawner.launch("#!/bin/sh\necho ran\n")
        assert job.answer == Answer(ANSWER_MAGIC, 1, 1, 0, errno.ESRCH, 0)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "run/claim").iterdir()) == list((tmp_path / "run/result").iterdir()) == []


def test_a_shepherd_killed_after_its_claim_is_a_launch_that_failed(tmp_path):
    with spawning(tmp_path, FG_CRASH_AT="shepherd_after_claim") as spawner:
        job = spawner.launch("#!/bin/sh\necho ran\n")
        assert (job.answer.errno, job.answer.ticks) == (0, 0)
        result = noticed(spawner, job)
    assert (result.cause, result.detail, result.lost) == ("launch", "its shepherd was killed", 1)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "run/job").iterdir()) == []


def test_a_shepherd_killed_right_after_the_fork_costs_no_status(tmp_path):
    with spawning(tmp_path, FG_CRASH_AT="shepherd_after_fork") as spawner:
        job = spawner.launch("#!/bin/sh\nexit 21\n")
        result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("exit", 21, 1)
    assert list((tmp_path / "run/job").iterdir()) == []


def test_a_shepherd_killed_after_the_result_leaves_it_as_it_is(tmp_path):
    with spawning(tmp_path, FG_CRASH_AT="shepherd_after_result") as spawner:
        result = spawner.launch("#!/bin/sh\nexit 22\n").result()
    assert (result.exit_code, result.lost) == (22, 0)
    assert list((tmp_path / "run/job").iterdir()) == []


def test_a_shepherd_killed_before_the_result_is_replaced(tmp_path):
    with spawning(tmp_path, FG_CRASH_AT="shepherd_before_result") as spawner:
        job = spawner.launch("#!/bin/sh\nexit 23\n")
        result = noticed(spawner, job)
    assert (result.cause, result.exit_code, result.lost) == ("exit", 23, 1)


def test_the_use_of_a_lost_job_is_counted(spawner, gate, go):
    burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    job = spawner.launch(f"#!/bin/sh\necho $$ >gate\nread -r code <go\n{burn}\n", env=environment(spawner))
    gate.line()
    kill_shepherd(job)
    os.write(go.fd, b"0\n")
    result = noticed(spawner, job)
    assert result.user + result.system > 10_000


def test_a_random_kill_of_shepherds_costs_no_status(spawner):
    """Each job kills its own shepherd at another moment of its life."""
    for number in range(1, 41):
        later = f"i=0; while [ $i -lt {number * 40} ]; do i=$((i+1)); done; kill -9 $PPID"
        spawner.launch(f"#!/bin/sh\n({later}) &\nexit 9\n", env=environment(spawner, number), job=number)
    spawner.socket.shutdown(socket.SHUT_WR)
    spawner.process.wait(PATIENCE)
    results = [Result.read(spawner.run / "result" / f"{number}.1") for number in range(1, 41)]
    assert {(result.cause, result.exit_code) for result in results} == {("exit", 9)}


@pytest.mark.parametrize("seed", range(3))
def test_kills_from_outside_at_any_moment_lose_and_falsify_nothing(spawner, tmp_path, seed):
    dice = random.Random(seed)
    for number in range(1, 61):
        nap = f"sleep 0.0{dice.randint(0, 20):02d}"
        script = f"#!/bin/sh\n({nap}; exit 1) &\n{nap}\nexit {number}\n"
        job = spawner.launch(
            script,
            job=number,
            env=environment(spawner, number),
            tmpdir=f"{tmp_path}/t{number}",
            leftover_grace=50,
        )
        if dice.random() < 0.7 and job.shepherd >= 0:
            with suppress(ProcessLookupError):  # it was quicker
                signal.pidfd_send_signal(job.shepherd, signal.SIGKILL)
            job.over()
    spawner.socket.shutdown(socket.SHUT_WR)
    spawner.process.wait(PATIENCE)
    claimed = {int(name.partition(".")[0]) for name in os.listdir(spawner.run / "claim")}
    assert len(claimed) > 30  # a shepherd that was killed before its claim has started nothing
    for number in claimed:
        result = Result.read(spawner.run / "result" / f"{number}.1")
        if result.cause == "launch":
            assert (result.lost, result.detail) == (1, "its shepherd was killed")
        else:
            assert (result.cause, result.exit_code) == ("exit", number)
    assert {int(name.partition(".")[0]) for name in os.listdir(spawner.run / "result")} <= claimed
    assert list((tmp_path / "run/job").iterdir()) == list(tmp_path.glob("t*/*")) == []


def test_a_result_that_cannot_be_stored_is_kept_until_it_can(spawner, gate, go, tmp_path):
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    (tmp_path / "run/result").rename(tmp_path / "run/away")
    os.write(go.fd, b"13\n")
    directory = job.wish.directory  # removed right before the result is stored
    until(directory.parent, lambda: not directory.exists())
    (tmp_path / "run/away").rename(tmp_path / "run/result")
    assert job.result().exit_code == 13


def test_a_result_for_which_there_is_no_place_any_more_is_let_go(spawner, gate, go, tmp_path):
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    (tmp_path / "run").rename(tmp_path / "gone")
    os.write(go.fd, b"13\n")
    job.over()
    (tmp_path / "gone").rename(tmp_path / "run")
    assert list((tmp_path / "run/result").iterdir()) == []


def test_a_result_that_can_never_be_stored_does_not_keep_its_shepherd(spawner, gate, go, tmp_path):
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    (tmp_path / "run/result").rmdir()
    (tmp_path / "run/result").write_text("")
    os.write(go.fd, b"13\n")
    await_end(job.answer.pid)
    assert not job.wish.directory.exists()


def test_a_result_that_can_never_be_stored_does_not_keep_the_spawner(spawner, gate, go, tmp_path):
    job = spawner.launch(WAITS, env=environment(spawner))
    gate.line()
    kill_shepherd(job)
    (tmp_path / "run/result").rmdir()
    (tmp_path / "run/result").write_text("")
    os.write(go.fd, b"13\n")
    spawner.socket.shutdown(socket.SHUT_WR)
    assert spawner.process.wait(PATIENCE) == 0


def test_signals_reach_a_lost_job(spawner, gate):
    script = "#!/bin/sh\ntrap 'exit 31' USR1\necho >gate\nwhile :; do sleep 1000 & wait; done\n"
    job = spawner.launch(script, env=environment(spawner), leftover_grace=20)
    gate.line()
    kill_shepherd(job)
    spawner.command(1, DELIVER | signal.SIGUSR1 << 8 | ALL << 16)
    assert noticed(spawner, job).exit_code == 31
    await_end(job.answer.pid)
    assert ANSWER.size == 32


@pytest.mark.parametrize(("options", "survives"), [(0, False), (TRACE_EXIT, True)])
def test_a_tracer_does_not_keep_a_lost_job(spawner, gate, options, survives):
    script = "#!/bin/sh\necho $$ >gate\nexec sleep 1000\n"
    job = spawner.launch(script, env=environment(spawner), time_limit=SOON, grace=20, last_wait=100)
    pid = gate.number()
    with traced(pid, options):
        kill_shepherd(job)
        result = noticed(spawner, job)
        assert (result.cause, result.lost, result.survivor) == ("timeout", 1, pid if survives else 0)


@contextmanager
def unreadable_process(spawner, gate, go, tmp_path, **fields):
    """Yield a job without a shepherd, and its process in another session whose variables are never read."""
    (tmp_path / "unread").write_bytes(b"")
    wait = Gate(tmp_path / "map")
    command = shlex.join([sys.executable, "-c", silent.MAPS, str(tmp_path / "unread"), "0"])
    script = f"#!/bin/sh\nsetsid {command} <map >gate &\nread -r code <go\nexit $code\n"
    with silent.unread(tmp_path / "unread") as file:
        job = spawner.launch(script, env=environment(spawner), last_wait=100, leftover_grace=20, **fields)
        assert gate.line() == "opened"
        with subprocess.Popen(["cat", file.place], stdout=subprocess.DEVNULL):
            try:
                assert file.is_read.wait(PATIENCE)
                (pid,) = [each for each in children_of(job.answer.pid) if os.getsid(each) == each]
                os.write(wait.fd, b"\n")
                while state_of(pid) != "D":
                    rest()
                kill_shepherd(job)
                yield job, pid
            finally:
                file.release()


def children_of(shepherd):
    """Return the processes below the script of a job."""
    (script,) = Path(f"/proc/{shepherd}/task/{shepherd}/children").read_text().split()
    return [int(pid) for pid in Path(f"/proc/{script}/task/{script}/children").read_text().split()]


@pytest.mark.root
@silent.needs_fuse
def test_a_process_whose_variables_are_never_read_keeps_neither_the_spawner_nor_another_job(
    spawner, gate, go, tmp_path
):
    with unreadable_process(spawner, gate, go, tmp_path) as (job, pid):
        os.write(go.fd, b"6\n")
        result = noticed(spawner, job)
        assert (result.cause, result.exit_code, result.lost, result.survivor) == ("exit", 6, 1, pid)
        assert spawner.launch("#!/bin/sh\nexit 7\n", job=2).result().exit_code == 7


@pytest.mark.root
@silent.needs_fuse
def test_a_process_whose_variables_are_never_read_ends_with_the_last_lost_job_of_its_user(
    spawner, gate, go, tmp_path
):
    other_gate, other_go = Gate(tmp_path / "other-gate"), Gate(tmp_path / "other-go")
    script = "#!/bin/sh\necho >other-gate\nread -r code <other-go\nexit $code\n"
    other = spawner.launch(script, env=environment(spawner, 2), job=2, last_wait=100, leftover_grace=20)
    other_gate.line()
    with unreadable_process(spawner, gate, go, tmp_path) as (job, pid):
        kill_shepherd(other)
        os.write(go.fd, b"6\n")
        first = noticed(spawner, job)
        assert (first.exit_code, first.survivor) == (6, 0)
        os.write(other_go.fd, b"7\n")
        result = noticed(spawner, other)
        assert (result.exit_code, result.survivor) == (7, pid)


@pytest.mark.root
@silent.needs_fuse
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_process_that_waits_inside_an_execution_keeps_no_job_beyond_its_limit(
    spawner, gate, go, tmp_path, is_lost
):
    (tmp_path / "unread").write_bytes(b"")
    wait = Gate(tmp_path / "map")
    command = f"{silent.executing_program()} {tmp_path / 'unread'} 0"
    script = f"#!/bin/sh\n{command} <map >gate &\nread -r code <go\n"
    with silent.unread(tmp_path / "unread") as file:
        job = spawner.launch(script, env=environment(spawner), time_limit=SOON, grace=20, last_wait=100)
        pid = gate.number()
        (holder,) = children_of(job.answer.pid)
        with subprocess.Popen(["cat", file.place], stdout=subprocess.DEVNULL):
            try:
                assert file.is_read.wait(PATIENCE)
                os.write(wait.fd, b"\n")
                until_it_waits(pid)
                if is_lost:
                    kill_shepherd(job)
                result = noticed(spawner, job) if is_lost else job.result()
                assert (result.cause, result.lost) == ("timeout", is_lost)
                assert result.survivor in (holder, pid)
                assert spawner.launch("#!/bin/sh\nexit 7\n", job=2).result().exit_code == 7
            finally:
                file.release()
