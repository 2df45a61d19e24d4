"""What the watchdog writes into the region of a job, over several looks and controllers."""

import os
import subprocess

import pytest
from msgspec.structs import replace

from builders import a_job
from fgsched.controller import gpumonitor
from fgsched.controller.gpumonitor import GpuObservation, Watchdog
from fgsched.domain.job import AdoptedProcess, GpuProcess, Reading
from fgsched.domain.states import JobState
from fgsched.launch.regions import Slot
from fgsched.lifecycle.watchdog import WatchdogPolicy
from fgshim import region

GIB, CONTEXT = 1 << 30, 256 << 20
UUID = f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"
NO_OWNER, SILENT = Reading(gpu=0, used=0), Reading(gpu=0, used=0, error="no answer")


@pytest.fixture
def job(tmp_path):
    """One that runs, with a region of its own."""
    folder = tmp_path / "job" / "7.1"
    folder.mkdir(parents=True)
    head = region.pack(7, 1, [(0, UUID, GIB)])
    (folder / "region").write_bytes(head + bytes(region.SIZE - len(head)))
    return a_job(7, state=JobState.RUNNING, uid=os.geteuid(), tier="shim")


@pytest.fixture
def controller(tmp_path):
    """controller() -> look(reading) of a new one: what is charged then."""

    def start():
        watching = Watchdog(str(tmp_path), WatchdogPolicy(), lambda noticed: None)

        def look(job, reading):
            owners = {process.pid: job.id for process in reading.processes}
            watching.judge_jobs(GpuObservation({0: reading}, set(), owners), {job.id: job})
            return region.read(tmp_path / "job" / "7.1" / "region").gpus[0].untracked

        return look

    return start


def busy(pid=1):
    return Reading(gpu=0, used=CONTEXT, processes=(GpuProcess(pid=pid, memory=CONTEXT),))


def test_a_charge_stays_while_the_card_is_silent_and_goes_with_its_process(job, controller):
    look = controller()
    assert [look(job, one) for one in (busy(), busy(), SILENT, busy())] == [0, CONTEXT, CONTEXT, CONTEXT]
    assert [look(job, one) for one in (SILENT, NO_OWNER)] == [CONTEXT, 0]


def test_what_an_earlier_controller_charged_stays_and_goes_as_if_it_were_its_own(job, controller):
    look = controller()
    assert [look(job, busy()), look(job, busy())] == [0, CONTEXT]
    look = controller()
    assert [look(job, busy()), look(job, busy())] == [CONTEXT, CONTEXT]
    look = controller()
    assert [look(job, NO_OWNER), look(job, NO_OWNER)] == [CONTEXT, 0]


def test_the_measured_memory_of_a_process_replaces_its_estimate(job, tmp_path, monkeypatch):
    marks = {"bytes": (0,), "given": (0,), "past": (1,), "contexts": (True,), "marks": (1,)}
    process, measured = region.Process(pid=1, start=1, image=1, slot=0, **marks), []
    monkeypatch.setattr(gpumonitor, "slots", lambda run, job: {0: {1: Slot(process, 0)}})
    monkeypatch.setattr(
        gpumonitor, "set_outside_memory", lambda run, job, slot, size: measured.append((slot.process, size))
    )
    watching = Watchdog(str(tmp_path), WatchdogPolicy(), lambda noticed: None)
    for _ in range(2):
        watching.judge_jobs(GpuObservation({0: busy()}, set(), {1: job.id}), {job.id: job})
    assert measured == [(process, CONTEXT)]


@pytest.fixture
def ending():
    """start() -> the pid of a process that has given up its memory, and that nobody has waited for."""
    children = []

    def start():
        children.append(subprocess.Popen(["true"]))
        os.waitid(os.P_PID, children[-1].pid, os.WEXITED | os.WNOWAIT)
        return children[-1].pid

    yield start
    for child in children:
        child.wait()


def test_of_processes_that_are_ending_nobody_can_say_that_the_hook_is_not_in_them(job, tmp_path, ending):
    """The driver lists one until it has cleared it away: a job of many short programs often shows one."""
    told = []
    watching = Watchdog(str(tmp_path), WatchdogPolicy(), told.append)
    for pid in (ending(), ending()):
        watching.judge_jobs(GpuObservation({0: busy(pid)}, set(), {pid: job.id}), {job.id: job})
    assert told == []
    for pid in (os.getpid(), os.getpid()):
        watching.judge_jobs(GpuObservation({0: busy(pid)}, set(), {pid: job.id}), {job.id: job})
    assert [bool(one.end) for one in told] == [False, True]


def test_an_adopted_process_is_not_judged(job, controller):
    """It was started without the hook and without a limit."""
    look, adopted = controller(), replace(job, adopted=AdoptedProcess(pid=1, start=1))
    assert [look(adopted, busy()) for _ in range(2)] == [0, 0]
