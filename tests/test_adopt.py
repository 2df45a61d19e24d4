"""Adopted processes: processes that were started outside of fgsched, and became jobs."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from awaiting import LOOKS, PATIENCE, rest, until
from builders import Part, World, a_demand, a_gpu, a_job
from crashing import kill_controller
from fgsched.controller.caller import Caller
from fgsched.controller.gpumonitor import GpuObservation
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.handlers.adopt import (
    AdoptHandlers,
    GpuUse,
    ProcessHandlers,
    demand_for,
    holds_for,
    uses_of,
)
from fgsched.controller.turn import HostShort
from fgsched.domain.errors import BadUsage, Busy, FgschedError, NotPermitted, Refused
from fgsched.domain.job import WHOLE, AdoptedProcess, Demand, GpuProcess, Hold, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.launch import adopted as helper
from fgsched.protocol import ListGpuProcesses
from fgsched.scheduling.placement import rooms
from fgsched.system import process as processes
from fgsched.system.process import identify
from live_host import Home

GIB = 1 << 30
ME = Caller(os.geteuid(), 0, "ann", is_operator=False)
BOB = Caller(os.geteuid() + 1, 2, "bob", is_operator=False)

# -- what it holds ------------------------------------------------------------------------------


def reading(*processes, gpu=0):
    found = tuple(GpuProcess(pid=pid, memory=memory) for pid, memory in processes)
    used = sum(one.memory for one in found)
    return Reading(gpu=gpu, used=used, external=used, processes=found)


def test_a_process_uses_what_its_descendants_use():
    readings = {0: reading((12, GIB), (99, GIB)), 1: reading((11, GIB), (13, 2 * GIB), gpu=1), 2: reading()}
    above = {13: 12, 12: 11, 11: 10, 99: 1}
    assert uses_of(10, readings, above) == {0: GpuUse(GIB, (12,)), 1: GpuUse(3 * GIB, (11, 13))}
    assert uses_of(98, readings, above) == {}
    circle = {12: 11, 11: 13, 13: 12}  # of processes that had the same pid one after the other
    assert uses_of(10, readings, circle) == {}


def test_only_the_processes_on_gpus_and_their_ancestors_are_read(world, monkeypatch):
    def all_processes():
        raise AssertionError("on a busy host this takes the controller long, at each request of a user")

    monkeypatch.setattr(processes, "_pids", all_processes)
    assert adopt(world, ME, os.getppid(), demand={"gpus": 1, "share": 5000})["gpus"] == [0]


@pytest.mark.parametrize(
    ("asked", "demand"),
    [
        (Demand(), Demand(gpus=2, memory=3 * GIB + (1 << 20))),
        (Demand(gpus=1, share=5000), Demand(gpus=2, share=5000)),
        (Demand(gpus=1, memory=4 * GIB), Demand(gpus=2, memory=4 * GIB)),
        (Demand(gpus=2, share=WHOLE), Demand(gpus=2, share=WHOLE)),
    ],
)
def test_the_demand_is_that_of_each_gpu_and_by_default_the_memory_in_use(asked, demand):
    assert demand_for(asked, {0: GpuUse(GIB), 1: GpuUse(3 * GIB + 1)}, 7) == demand


@pytest.mark.parametrize(
    ("asked", "memory", "error"),
    [
        (Demand(gpus=1, share=WHOLE), GIB, "process 7 uses 2 GPUs (0,1), and 1 are asked for"),
        (Demand(), 0, "the driver does not tell the memory of process 7"),
    ],
)
def test_a_demand_that_cannot_be_the_processs_is_refused(asked, memory, error):
    with pytest.raises(BadUsage) as raised:
        demand_for(asked, {0: GpuUse(memory), 1: GpuUse(memory)}, 7)
    assert raised.value.cause == error


def held(demand, *, others=(), used=3 * GIB, most=0):
    """The hold on a GPU of 16 GiB whose process uses `used` bytes, beside the holds of `others`."""
    there = rooms([a_gpu(0)], [(one, False) for one in others], {0: reading((7, used))})
    return holds_for(demand, there, {0: GpuUse(used)}, step=1, most=most)


def test_a_job_holds_its_share_and_the_memory_that_it_uses_is_not_counted_twice():
    assert held(Demand(gpus=1, memory=16 * GIB)) == (Hold(gpu=0, share=WHOLE, memory=16 * GIB),)
    assert held(Demand(gpus=1, share=2500)) == (Hold(gpu=0, share=2500, memory=4 * GIB),)


@pytest.mark.parametrize(
    ("demand", "more", "error"),
    [
        (
            Demand(gpus=1, share=5000),
            {"others": [Hold(gpu=0, share=7500, memory=GIB)]},
            "GPU 0 has 0.25 and 15360M left, and the job needs 0.5 and 8192M",
        ),
        (Demand(gpus=1, share=1000), {}, "the process uses 3072M on GPU 0, and the job would hold 1639M"),
        (
            Demand(gpus=1, share=5000),
            {"others": [Hold(gpu=0, share=1, memory=1)], "most": 1},
            "GPU 0 has 1 jobs, which is the limit",
        ),
    ],
)
def test_a_gpu_with_too_little_left_is_refused(demand, more, error):
    with pytest.raises(Refused) as raised:
        held(demand, **more)
    assert raised.value.cause == error


# -- who may ------------------------------------------------------------------------------------


class ListedProcesses(Part):
    """A GPU on which processes are seen, and the handlers of adoptions."""

    def __init__(self):
        self.states = GpuStates([a_gpu(0)], sampled=True)
        self.owners = {os.geteuid(): (7, "ann")}
        self.jobs: dict[int, int] = {}  # pid -> job

    def gpu_states(self):
        return self.states

    def show(self, *pids):
        self.states.use_readings(
            {0: reading(*((pid, GIB) for pid in pids))}, listed_jobs=(), now=self.world.now + 1
        )

    def handlers(self):
        job_of, owner_of = self.jobs.get, self.owners.get
        world = self.world
        return [AdoptHandlers(world.engine, world.job_handlers, job_of, owner_of, "/usr/bin/python3")]


def adopt(world, caller, pid, key="k" * 16, **more):
    return world.ask(caller, "adopt", key=key, pid=pid, **more)


@pytest.fixture
def world():
    world = World([a_gpu(0)], processes=ListedProcesses())
    world.processes.show(os.getpid())
    return world


def test_an_adopted_process_is_a_job_of_its_owner_beside_the_queue(world):
    told = {"job": 1, "gpus": [0], "share": 625, "memory": GIB}
    assert adopt(world, ME, os.getpid()) == told
    assert adopt(world, ME, os.getpid()) == told, "a repeated request makes no second job"
    job = world.job(1)
    own = identify(os.getpid())
    assert (job.state, job.user, job.gid, job.tier) == (JobState.RUNNING, "ann", 7, "none")
    assert job.adopted == AdoptedProcess(pid=own.pid, start=own.start)
    assert tuple(world.holds()) == (Hold(gpu=0, share=625, memory=GIB),)
    script, _ = world.store.material(1)
    words = f"{helper.__file__} {own.pid} {own.start} 30"
    assert script.decode() == f"#!/bin/sh\nexec /usr/bin/python3 -I -S {words}\n"


def refusal(world, caller, pid, **more):
    with pytest.raises(FgschedError) as raised:
        adopt(world, caller, pid, key="other key of 16 characters", **more)
    assert raised.value.remedy
    return type(raised.value), raised.value.cause


def test_what_cannot_be_adopted_is_refused_with_the_reason(world):
    me, nobody = os.getpid(), 4_194_300
    assert refusal(world, BOB, me) == (NotPermitted, f"process {me} belongs to another user")
    assert refusal(world, ME, nobody) == (Refused, f"there is no process {nobody}")
    assert refusal(world, ME, me, gpus=[1]) == (Refused, f"process {me} does not use GPU 1")
    world.processes.jobs = {me: 5}
    assert refusal(world, ME, me) == (Refused, f"process {me} belongs to job 5 already")
    world.processes.jobs = {}
    world.processes.show()
    assert refusal(world, ME, me) == (Refused, f"process {me} uses no GPU")
    world.now += 100
    assert refusal(world, ME, me) == (Busy, "the GPUs did not answer yet")
    world.processes.owners = {}
    said = f"process {me} belongs to a user who can have no jobs of this controller"
    assert refusal(world, ME, me) == (Refused, said)
    assert world.store.open_jobs() == []


def test_an_operator_adopts_for_the_owner(world):
    root = Caller(12345, 0, "root", is_operator=True)
    assert adopt(world, root, os.getpid())["job"] == 1
    assert (world.job(1).uid, world.job(1).user) == (os.geteuid(), "ann")


# -- when the start fails -----------------------------------------------------------------------


def test_an_adoption_that_was_not_launched_before_a_crash_is_launched_by_the_next_controller(world):
    world.submit([a_demand(WHOLE)])
    world.host.start = lambda job, given: None  # the controller is killed before it launches
    adopt(world, ME, os.getpid())
    del world.host.start
    before = world.holds()
    world.start()
    assert (world.job(2).attempt, world.holds()) == (2, before)
    assert world.host.runs == [2]


def test_an_adoption_for_which_the_host_lacks_resources_ends(world):
    adopt(world, ME, os.getpid())
    world.turn(HostShort(1, 1, "no space"))
    job = world.job(1)
    assert (job.state, job.reason, job.ended.detail) == (
        *(JobState.FAILED, Reason.LAUNCH_FAILURE),
        "no space",
    )


# -- the program of the job ---------------------------------------------------------------------


def waited_for(kill_wait, command):
    """A process, and the program that waits for it."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    own = identify(process.pid)
    words = [sys.executable, "-I", "-S", helper.__file__, str(own.pid), str(own.start), str(kill_wait)]
    return process, subprocess.Popen(words)


def test_the_order_to_end_kills_a_process_that_ignores_it():
    process, job = waited_for(0.25, "trap '' TERM; echo ready; read line")
    until_handled(job.pid, *helper.ORDER)
    job.send_signal(signal.SIGCONT)
    job.send_signal(signal.SIGTERM)
    assert (job.wait(PATIENCE), process.wait(PATIENCE)) == (0, -signal.SIGKILL)
    process.communicate()


def test_a_signal_of_a_user_is_passed_on_and_is_no_order_to_end():
    process, job = waited_for(0, "trap 'echo term' TERM; echo ready; while ! read line; do :; done; exit 3")
    until_handled(job.pid, signal.SIGTERM)
    job.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "term\n"
    process.communicate("go\n")
    assert (process.returncode, job.wait(PATIENCE)) == (3, 0)


def test_a_pid_that_another_process_has_now_is_not_waited_for():
    words = [sys.executable, "-I", "-S", helper.__file__, str(os.getpid()), "1", "5"]
    assert subprocess.run(words, check=False, timeout=PATIENCE).returncode == 0


def until_handled(pid, *numbers):
    """Wait until a process handles the signals; the kernel tells only who asks."""
    while not processes.handles(pid, numbers):
        rest()


# -- on a live host -----------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    """A home, a process outside of it that uses GPU 0, and functions that start and end such processes."""
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\nexit 1\n")
    fails.chmod(0o755)
    never = f'[hooks]\nprolog = "{fails}"\nepilog = "{fails}"\n'  # they would drain the GPU
    config = f'[host]\ncpus = 64\n[sampling]\ninterval = 0.25\n[mail]\nsend = "off"\n{never}'
    home = Home(tmp_path / "home", devices="sim:1x16G", config=config)
    script = home.path / "cards" / "script.json"
    script.parent.mkdir()
    begun = []

    def show():
        about = {"memory": "3G", "sm": 40, "uid": os.geteuid(), "command": "train"}
        processes = [{"pid": one.pid, **about} for one in begun]
        script.with_suffix(".new").write_text(json.dumps({"0": {"processes": processes, "power": 300}}))
        script.with_suffix(".new").rename(script)

    def start():
        begun.append(subprocess.Popen(["sleep", "1000000"]))
        show()
        return begun[-1]

    def gone(process):
        status = process.wait(PATIENCE)
        begun.remove(process)
        show()
        return status

    yield home, {"FG_SIM_SCRIPT": str(script)}, start, gone
    home.leave()
    for process in begun:
        process.kill()
        process.wait()


def eventually(home, is_so):
    return until(home.path / "cards", is_so, LOOKS)


def check_orders(home, pid):
    """The orders that an adopted process cannot obey are refused."""
    for operation, what in (("suspend", "suspended"), ("requeue", "started again")):
        (outcome,) = home.client.ask(operation, ids=[1])["jobs"]
        assert outcome["error"]["cause"] == f"job 1 is the adopted process {pid}, which cannot be {what}"


def check_orders_to_end(home, second, start, gone):
    """An order ends the process of a job, and one whose helper has no handlers yet."""
    home.client.ask("cancel", ids=[2])
    assert gone(second) == -signal.SIGTERM
    assert [job["state"] for job in home.wait(2)] == ["CANCELLED"]
    process = start()
    eventually(home, lambda: home.gpus()[0]["external"] == 3 * GIB)
    assert home.client.ask("adopt", key="l" * 16, pid=process.pid)["job"] == 3
    home.client.ask("cancel", ids=[3])
    assert gone(process) == -signal.SIGTERM
    assert [job["state"] for job in home.wait(3)] == ["CANCELLED"]


def test_an_adopted_process_is_accounted_until_it_ends_or_is_cancelled(outside):
    home, environment, start, gone = outside
    first, second = start(), start()
    home.run("fgq", env=environment)
    eventually(home, lambda: home.gpus()[0]["external"] == 6 * GIB)
    done = home.run("fgctl", "adopt", str(first.pid), "--gpus=0.5", "--time=2h", "--job-name=mine")
    assert (done.err, done.out) == ("", f"process {first.pid} is job 1 on GPU 0 (0.5, 8192M)\n")
    assert home.client.ask("adopt", key="k" * 16, pid=second.pid)["job"] == 2
    eventually(home, lambda: home.gpus()[0]["external"] == 0)
    found = home.job(1)
    assert (found["state"], found["tier"], found["request"]["time_limit"]) == ("RUNNING", "none", 7200)
    assert found["adopted"]["pid"] == first.pid
    shown = home.run("fgctl", "show", "job", "1").out
    assert (
        f"Adopted=process {first.pid}; nothing limits it, because it was started outside of fgsched" in shown
    )
    assert f"Comment=adopted process {first.pid}; its exit status is not known" in shown
    (use,) = home.client.ask("process", pid=first.pid)["on_gpus"]
    assert (use["job"], use.get("user", "")) == (1, "")
    assert first.pid in home.client.ask("pids", id=1)["pids"]
    check_orders(home, first.pid)
    usage = eventually(home, lambda: (use := home.queue("usage", id=[1])[0].usage) and use.energy and use)
    assert (usage.peak, usage.used > 0) == (3 * GIB, True)
    kill_controller(home)
    home.disconnect()
    home.run("fgq", env=environment)
    first.terminate()
    gone(first)
    assert [job["state"] for job in home.wait(1)] == ["COMPLETED"]
    check_orders_to_end(home, second, start, gone)
    assert home.gpus()[0]["state"] == "ok"


def test_where_data_are_private_a_user_sees_the_processes_of_own_jobs_on_the_gpus():
    on_gpu = tuple(GpuProcess(pid=pid, memory=1 << 30) for pid in (1, 2, 3))
    seen = GpuObservation({0: Reading(gpu=0, used=3 << 30, processes=on_gpu)}, set(), {1: 7, 2: 8})
    answer = SimpleNamespace(people={})
    last = SimpleNamespace(
        observation=seen, answer=answer, since=dict.fromkeys([(0, 1), (0, 2), (0, 3)], 5.0), at=9.0
    )
    jobs = {7: a_job(7, uid=1), 8: a_job(8, uid=2)}
    handlers = ProcessHandlers(last, {}.get, str, lambda: jobs)
    for uid, pids in ((0, [1, 2, 3]), (1, [1]), (2, [2])):
        caller = Caller(uid, uid, "ann", is_operator=not uid, is_confined=bool(uid))
        answer = handlers._list(caller, ListGpuProcesses(), 9.0)
        assert [process.pid for process in answer.processes] == pids
