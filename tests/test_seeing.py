"""Whose a process on a card is: by the shepherd above it, or by its user and its environment."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from builders import a_job
from fgsched.controller import gpumonitor
from fgsched.controller.gpumonitor import UnresolvedPids, interpreted
from fgsched.domain.job import GpuProcess, Hold, Reading
from fgsched.domain.states import JobState
from fgsched.gpus.simulated import FOREIGN_PID

RUN = "/run/of/a/test"


@contextmanager
def a_process(**env):
    """Its pid; it waits until the block is left."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, env={**os.environ, **env}) as process:
        process.stdin.write(b"here\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"here\n"
        yield process.pid


def seen(pid, *, shepherds=(), uid=None):
    """What a reading with this process says, where job 7 runs."""
    job = a_job(7, state=JobState.RUNNING, uid=os.geteuid() if uid is None else uid)
    readings = {0: Reading(gpu=0, used=5 << 30, processes=(GpuProcess(pid=pid, memory=5 << 30),))}
    return interpreted(readings, shepherds=dict(shepherds), ended=[], run=RUN, running={7: job})


def test_a_process_below_a_shepherd_is_its_jobs():
    with a_process() as pid:
        found = seen(pid, shepherds={os.getpid(): 7})
    assert (found.owners, found.readings[0].external) == ({pid: 7}, 0)


def test_a_process_that_left_its_shepherd_is_known_by_the_environment_of_its_job():
    with a_process(FG_JOB_DIR=f"{RUN}/job/7.1") as pid:
        found = seen(pid)
    assert (found.owners, found.readings[0].external) == ({pid: 7}, 0)


@pytest.mark.parametrize("mark", ["", f"{RUN}/job/7.2", f"{RUN}/job/8.1"])
def test_any_other_process_is_a_strangers(mark):
    with a_process(FG_JOB_DIR=mark) as pid:
        found = seen(pid)
    assert (found.owners, found.readings[0].external) == ({}, 5 << 30)


def test_nobody_can_pass_off_his_process_as_another_users_job():
    with a_process(FG_JOB_DIR=f"{RUN}/job/7.1") as pid:
        found = seen(pid, uid=os.geteuid() + 1)
    assert (found.owners, found.readings[0].external) == ({}, 5 << 30)


SETUID = "import os; os.setresuid(65534, 0, 0); print(flush=True); input()"


@pytest.mark.root
def test_a_process_of_a_job_that_executed_a_setuid_program_is_its_jobs():
    mark = {"FG_JOB_DIR": f"{RUN}/job/7.1"}
    with subprocess.Popen([sys.executable, "-c", SETUID], stdin=-1, stdout=-1, env=mark) as process:
        assert process.stdout.readline()
        assert os.stat(f"/proc/{process.pid}").st_uid == 0
        assert seen(process.pid, uid=65534).owners == {process.pid: 7}
        process.communicate(b"\n")


def test_a_process_whose_pid_another_user_has_got_meanwhile_is_a_strangers(monkeypatch):
    with a_process(FG_JOB_DIR=f"{RUN}/job/7.1") as pid:
        owners = iter([os.geteuid(), os.geteuid() + 1])
        monkeypatch.setattr(gpumonitor, "owner_of", lambda pid: next(owners))
        assert seen(pid).owners == {}


@pytest.mark.parametrize(
    ("reading", "there"),
    [
        (Reading(gpu=0, used=0), set()),
        (Reading(gpu=0, used=0, error="no answer for 2 s"), {7}),
        (Reading(gpu=0, used=0, error="it is gone", is_lost=True), set()),
    ],
)
def test_an_ended_job_is_not_off_a_card_that_does_not_answer(reading, there):
    """Its share would be given out while its memory is still taken."""
    ended = a_job(7, state=JobState.COMPLETING, holds=(Hold(gpu=0, share=5000, memory=1 << 30),))
    assert interpreted({0: reading}, shepherds={}, ended=[ended], run=RUN).still_listed == there


@pytest.mark.parametrize(("is_held", "strange"), [(True, 0), (False, 5 << 30)])
def test_what_a_job_left_behind_is_looked_for_when_the_job_is_over_too(is_held, strange):
    """As long as its share is held its memory is no stranger's; afterwards it is like a stranger's."""
    over = a_job(7, state=JobState.COMPLETING, holds=(Hold(gpu=0, share=5000, memory=1 << 30),))
    with a_process(FG_JOB_DIR=f"{RUN}/job/7.1") as pid:
        readings = {0: Reading(gpu=0, used=5 << 30, processes=(GpuProcess(pid=pid, memory=5 << 30),))}
        groups = {"ended": [over] if is_held else [], "stayed": [] if is_held else [over]}
        found = interpreted(readings, shepherds={}, run=RUN, **groups)
    assert (found.still_listed, found.readings[0].external) == ({7}, strange)


def test_while_a_user_is_not_heard_of_each_process_of_the_user_may_be_what_an_ended_job_left(monkeypatch):
    over = a_job(
        7, state=JobState.COMPLETING, holds=(Hold(gpu=0, share=5000, memory=1 << 30),), uid=os.geteuid()
    )
    with a_process() as pid:
        readings = {0: Reading(gpu=0, used=5 << 30, processes=(GpuProcess(pid=pid, memory=5 << 30),))}
        whole = [interpreted(readings, shepherds={}, ended=[over], run=RUN).still_listed]
        monkeypatch.setattr(gpumonitor, "is_silent", lambda uid: uid == os.geteuid())
        whole.append(interpreted(readings, shepherds={}, ended=[over], run=RUN).still_listed)
    assert whole == [set(), {7}]


GONE = (1 << 22) - 1  # a pid that nobody has


def test_pids_that_nobody_has_here_are_told_of_once_they_were_listed_for_a_whole_look(caplog):
    unresolved, told = UnresolvedPids(), []
    for now, pids in ((0, {GONE}), (4, {GONE, 5}), (5, {GONE}), (9, {GONE, 5}), (12, {5}), (14, set())):
        unresolved.record_query(pids, now=now, interval=5)
        told.append(unresolved.pids)
    assert told == [(), (), (GONE,), (GONE,), (), ()]
    (record,) = caplog.records
    assert f"do not exist in this PID namespace: {GONE};" in record.message


def test_a_look_tells_which_pids_are_no_process_here():
    with a_process() as pid:
        processes = tuple(GpuProcess(pid=one, memory=1) for one in (pid, GONE, FOREIGN_PID))
        found = interpreted({0: Reading(gpu=0, used=3, processes=processes)}, shepherds={}, ended=[], run=RUN)
    assert found.unresolved == {GONE}
