"""MPS: when a daemon is started and ended, what jobs are told, and what becomes of failures."""

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import driverpackages
import fakemps
from awaiting import until
from builders import BOOT, Attempt, Part, PretendHost, World, a_demand, a_gpu, a_job, a_result, full_disk
from crashing import Power, kill, kill_controller, power_cuts
from cudapackages import NotHere
from fgsched.controller.mpsdaemons import MpsControl
from fgsched.controller.turn import (
    CancelOrder,
    ClientsEnded,
    JobEnded,
    JobStarted,
    MpsDaemonAnswered,
    RunningDaemon,
)
from fgsched.domain.job import COMPUTE_NONE, WHOLE, Gpu, Hold, Job, MpsUse
from fgsched.domain.states import JobState
from fgsched.gpus.nvidia import MPS
from fgsched.hooks.programs import Ran
from fgsched.lifecycle import mps
from fgsched.lifecycle.mps import MpsDaemon, Phase
from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.process import descendants
from fgshim import region
from live_host import PATIENCE, Home, living

# -- decisions --------------------------------------------------------------------------------------

NOW = 1.8e9  # seconds since the epoch
SETTINGS = mps.MpsSettings(gpus=frozenset({0, 1, 3}), program="/usr/bin/nvidia-cuda-mps-control", service=MPS)


class PretendMps(Part):
    """Daemons as a table, which outlives every controller."""

    def __init__(self) -> None:
        self.settings = SETTINGS
        self.living: dict[tuple[int, int], bool] = {}  # (id, number) -> it has a server
        self.begun: list[tuple[int, int]] = []
        self.terminated: list[int] = []  # jobs whose clients were ended
        self.has_servers = True

    def furnish(self) -> None:
        self.world.now = max(self.world.now, NOW)
        self.world.engine.mps.host = self

    def act(self) -> bool:
        return any(server.pids for server in self.world.engine.mps.servers if server.phase is Phase.STARTING)

    def directory(self, server: int, number: int) -> str:
        return f"/run/job/{server}.{number}"

    def start(self, step: mps.StartDaemon) -> None:
        name = step.server.id, step.server.number
        assert name not in self.begun, "two daemons on one directory"
        self.begun.append(name)
        self.living[name] = False
        self.world.host.inbox.append(JobStarted(*name, Shepherd(*name, BOOT)))

    def ask(self, step: mps.AskDaemon) -> None:
        name = step.server.id, step.server.number
        if name in self.living:
            self.living[name] = self.has_servers
            self.world.host.inbox.append(
                MpsDaemonAnswered(*name, (4711,) * self.has_servers, True, "no server")
            )

    def stop(self, step: mps.StopDaemon) -> None:
        self.end(step.server.id, step.server.number)

    def end(self, *name: int) -> None:
        if self.living.pop(name, None) is not None:
            self.world.host.inbox.append(JobEnded(name[0]))

    def follow(self, server: MpsDaemon, shepherd: Shepherd) -> None:
        if (server.id, server.number) not in self.living:
            self.world.host.inbox.append(JobEnded(server.id))

    def end_clients(self, job: Job) -> bool:
        if job.id in self.terminated:
            return False
        self.terminated.append(job.id)
        self.world.host.inbox.append(ClientsEnded(job.id, job.attempt))
        return True

    def why_ended(self, server: int, number: int) -> str:
        return "" if (server, number) in self.living else "exit status 3"

    def find(self, names: Iterable[tuple[int, int]]) -> list[RunningDaemon]:
        return [RunningDaemon(*name, Shepherd(*name, BOOT)) for name in self.living]


def with_mps(*gpus: Gpu) -> World:
    """Return a world of these GPUs, which have MPS."""
    return World(gpus, mps=PretendMps())


def cancel(world: World, job_id: int) -> None:
    job = world.engine.jobtable.jobs[job_id]
    with world.store.write():
        after = world.engine.change(job, world.now, cancelled_by=1)
    world.engine.carry_out([*world.engine._drain(), CancelOrder(after)])


def states(world: World) -> list[tuple[str, str]]:
    """(state, use of MPS) of each job."""
    found = [world.job(job_id) for job_id in world.acknowledged]
    return [(job.state.word, job.mps.state if job.mps else "") for job in found]


def test_a_daemon_is_started_before_the_first_job_and_ended_after_the_last():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(5000)])
    assert (states(world), world.host.runs) == ([("CONFIGURING", "asked")], [])
    world.settle()
    world.submit([a_demand(2500)])
    world.settle()
    assert states(world) == [("RUNNING", "used")] * 2
    assert [world.job(job).mps.percent for job in (1, 2)] == [50, 25]
    assert len(world.mps.begun) == 1
    world.host.finish(1, 1, a_result())
    world.settle()
    assert list(world.mps.living.values()) == [True]
    world.host.finish(2, 1, a_result())
    world.settle()
    assert (world.mps.living, world.engine.mps.servers) == ({}, [])


def test_a_server_that_is_gone_at_the_second_question_lets_no_job_in():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(5000)])
    world.turn()
    world.turn()
    [server] = world.engine.mps.servers
    assert (server.phase, server.pids, world.host.runs) == (Phase.STARTING, (4711,), [])
    assert server.was_reached, "it gets no second command to start a server"
    world.mps.has_servers = False
    world.turn()
    world.turn()
    assert (world.engine.mps.servers[0].phase, world.host.runs) == (Phase.STARTING, [])


def test_each_user_and_each_gpu_has_a_daemon_and_whole_gpus_have_none():
    world = with_mps(a_gpu(0), a_gpu(1), a_gpu(3))
    world.submit([a_demand(7500), a_demand(7500), a_demand(WHOLE)])
    world.settle()
    jobs = world.engine.jobtable.holding
    assert states(world) == [("RUNNING", "used"), ("RUNNING", "used"), ("RUNNING", "")]
    gpus = {jobs[job].holds[0].gpu for job in (1, 2)}
    assert {name for name, _ in world.mps.begun} == {mps.id_of(1, gpu) for gpu in gpus}


@pytest.mark.parametrize(
    ("job", "compute", "percent"),
    [
        (a_job(state=JobState.RUNNING, share=3333), "hard", 33),
        (a_job(state=JobState.RUNNING, share=10), "fair", 1),
        (a_job(state=JobState.RUNNING, share=5000), COMPUTE_NONE, 100),
        (a_job(state=JobState.RUNNING, share=WHOLE), "fair", 0),
        (a_job(state=JobState.PENDING), "fair", 0),
        (a_job(state=JobState.RUNNING, holds=(Hold(gpu=2, share=1, memory=1),)), "fair", 0),
        (a_job(state=JobState.RUNNING, holds=(Hold(gpu=0, share=1, memory=1),) * 2), "fair", 0),
    ],
)
def test_the_part_of_the_threads_is_the_share_of_one_gpu_with_mps(job, compute, percent):
    assert mps.percent_of(job, compute, SETTINGS) == percent


def test_without_the_control_program_jobs_run_and_say_why_they_do_not_use_mps():
    world = with_mps(a_gpu(0))
    world.mps.settings = mps.MpsSettings(gpus=frozenset({0}), program="", service=MPS)
    world.submit([a_demand(5000)])
    world.settle()
    why = "nvidia-cuda-mps-control is not installed"
    assert world.job(1).mps == MpsUse(server=0, percent=50, state="refused", why=why)
    assert (world.host.runs, world.mps.begun) == ([1], [])


def test_jobs_run_without_a_daemon_that_starts_no_server_and_it_is_not_tried_again_at_once():
    world = with_mps(a_gpu(0))
    world.mps.has_servers = False
    world.submit([a_demand(5000)])
    world.settle()
    assert states(world) == [("CONFIGURING", "asked")]
    world.now += mps.START_TIME
    world.settle()
    world.submit([a_demand(2500)])
    world.settle()
    assert states(world) == [("RUNNING", "refused")] * 2
    assert world.job(2).mps.why == "its daemon has no server after 20 s: no server"
    assert (len(world.mps.begun), world.mps.living) == (1, {})
    world.mps.has_servers = True
    world.now += mps.RETRY_TIME
    world.settle()
    world.submit([a_demand(2500)])
    world.settle()
    assert states(world)[2] == ("RUNNING", "used")


def test_a_daemon_that_dies_is_replaced_when_its_clients_have_ended():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(2500), a_demand(2500)])
    world.settle()
    world.mps.end(*world.mps.begun[0])
    world.submit([a_demand(2500)])
    world.settle()
    assert states(world) == [("RUNNING", "lost"), ("RUNNING", "lost"), ("RUNNING", "refused")]
    assert world.job(1).warning == "MPS failed on GPU 0: its daemon has ended: exit status 3"
    world.host.finish(1, 1, a_result())
    world.submit([a_demand(2500)])
    world.settle()
    assert states(world)[3] == ("RUNNING", "refused")
    world.host.finish(2, 1, a_result())
    world.settle()
    world.submit([a_demand(2500)])
    world.settle()
    assert states(world)[4] == ("RUNNING", "used")
    assert len({number for _, number in world.mps.begun}) == 2


def test_a_gpu_lets_in_as_many_jobs_as_it_takes_clients():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(200)] * (mps.MOST_JOBS + 1))
    world.settle()
    uses = [use for _, use in states(world)]
    assert (uses.count("used"), uses.count("refused")) == (mps.MOST_JOBS, 1)


def test_the_work_of_a_cancelled_job_is_terminated_before_its_supervisor_is_told():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(5000)])
    world.settle()
    cancel(world, 1)
    assert (world.mps.terminated, world.host.signals) == ([1], [])
    world.settle()
    assert (world.host.signals, world.job(1).state) == ([1], JobState.CANCELLED)


def test_a_job_that_is_cancelled_before_its_daemon_has_started_is_not_launched():
    world = with_mps(a_gpu(0))
    world.mps.has_servers = False
    world.submit([a_demand(5000)])
    cancel(world, 1)
    world.settle()
    assert (world.job(1).state, world.host.runs) == (JobState.CANCELLED, [])
    assert world.mps.living == {}


def test_a_job_that_runs_again_without_mps_does_not_keep_its_last_daemon():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(5000)], requeue=True)
    world.settle()
    world.mps.settings = mps.OFF
    job = world.engine.jobtable.jobs[1]
    with world.engine.store.write():
        world.engine.change(job, world.now, wish="requeue")
    world.host.finish(1, 1, a_result(15, "cancel"))
    world.settle()
    assert (world.job(1).attempt, states(world)) == (2, [("RUNNING", "")])


def test_a_job_waits_for_the_end_of_an_earlier_daemon_for_a_while_only():
    world = with_mps(a_gpu(0))
    world.submit([a_demand(5000)])
    world.settle()
    world.mps.end = lambda *name: None  # it does not end
    world.host.finish(1, 1, a_result())
    world.settle()
    world.submit([a_demand(5000)])
    world.settle()
    assert states(world)[1] == ("CONFIGURING", "asked")
    world.now += mps.DUE_TIME
    world.settle()
    assert states(world)[1] == ("RUNNING", "refused")
    assert world.job(2).mps.why == "an earlier daemon does not end"


def test_a_turn_that_is_rolled_back_forgets_the_daemon_that_it_would_start():
    world = with_mps(a_gpu(0))
    with full_disk(world):
        world.submit([a_demand(5000)])
    assert (world.engine.mps.servers, world.mps.begun) == ([], [])


def campaign(effects: int) -> Power:
    """Two jobs that end, one of them by a cancel, with a power cut after `effects` effects."""
    world = with_mps(a_gpu(0))
    power = Power(world, effects)
    power.step(lambda: world.submit([a_demand(5000)], key="one"))
    power.step(world.settle)
    power.step(lambda: world.submit([a_demand(2500)], key="two"))
    power.step(world.settle)
    for job in (1, 2):
        for key in [key for key in world.host.running if key[0] == job]:
            world.host.finish(*key, a_result())
        power.step(world.settle)
    power.restore()
    for key in list(world.host.running):
        world.host.finish(*key, a_result())
    world.settle()
    world.settle()
    assert {state for state, _ in states(world)} <= {"COMPLETED"}, states(world)
    assert (world.mps.living, world.engine.mps.servers) == ({}, [])
    return power


def test_a_power_cut_at_any_effect_leaves_no_daemon_behind_and_starts_none_twice():
    assert sum(power_cuts(campaign, 28)) == 28


class Desk(MpsControl):
    """A desk whose daemons do not answer; it notes what they are asked."""

    def __init__(self, path, launcher) -> None:
        super().__init__(path / "lock", lambda *_: None, lambda event: None, launcher)
        self.asked, self.callbacks = [], []

    def _command(self, server, number, words, callback, seconds=0.0) -> None:
        self.asked.append((server, number, words))
        self.callbacks.append(callback)


def test_the_clients_of_a_job_are_listed_by_the_daemon_of_its_user_and_gpu(tmp_path):
    host = PretendHost()
    host.pids = lambda job: [4711]
    desk = Desk(tmp_path, host)
    hold = Hold(gpu=3, share=2500, memory=0)
    job = a_job(7, state=JobState.RUNNING, uid=1001, holds=(hold,), mps=MpsUse(server=5, percent=25))
    assert desk.end_clients(job)
    desk.close([], [])
    assert desk.asked == [(mps.id_of(1001, 3), 5, "get_server_list\n")]


def test_a_daemon_that_has_answered_its_order_to_quit_is_ended_by_signals_too(tmp_path):
    host = PretendHost()
    desk = Desk(tmp_path, host)
    server = MpsDaemon(uid=1001, gid=1001, user="ann", gpu=3, uuid="", number=5)
    desk.stop(mps.StopDaemon(server))
    assert (desk.asked, host.signals) == ([(server.id, 5, "quit -t 5\n")], [])
    desk.callbacks[0](Ran(number=1, status=0))
    desk.close([], [])
    assert host.signals == [server.id]


def test_a_daemon_that_runs_is_found_with_its_shepherd(tmp_path):
    host = PretendHost()
    host.run = SimpleNamespace(path=tmp_path)
    name = mps.id_of(1001, 3), 5
    host.attempts[name] = Attempt(claim="P", shepherd=True)
    desk = Desk(tmp_path, host)
    assert desk.find([name]) == [RunningDaemon(*name, Shepherd(*name, BOOT))]
    desk.close([], [])


def test_of_a_daemon_that_was_killed_nothing_is_left(tmp_path):
    host, cleared = PretendHost(), []
    host.run = SimpleNamespace(clear=lambda *name: cleared.append(name))
    host.attempts[mps.id_of(1001, 3), 5] = Attempt(claim="P")
    desk = Desk(tmp_path, host)
    assert desk.why_ended(mps.id_of(1001, 3), 5) == "it was killed"
    desk.close([], [])
    assert cleared == [(mps.id_of(1001, 3), 5)]


def test_a_job_that_a_client_submits_does_not_inherit_its_daemon():
    client = b"A=1\0CUDA_MPS_PIPE_DIRECTORY=/run/job/1.1\0CUDA_MPS_LOG_DIRECTORY=/run/job/1.1\0"
    assert mps.without_variables(client, "/run/job", MPS) == b"A=1\0"
    assert mps.without_variables(client, "/other/job", MPS) == client


@pytest.mark.parametrize(
    ("output", "pids"),
    [
        ("", ()),
        ("4711\n4712\n", (4711, 4712)),
        ('Unknown command "x"\n12\n', (12,)),
        ("Server not found\n", ()),
    ],
)
def test_answers_of_the_control_program(output, pids):
    assert mps.pids_of(output) == pids


# -- the control program ----------------------------------------------------------------------------


def nvidias() -> Path:
    """NVIDIA's own program, which starts without a GPU. Its servers end at once then."""
    try:
        return driverpackages.mps_control()
    except NotHere as why:
        pytest.skip(str(why))


@pytest.mark.parametrize("kind", ["nvidia", "stand-in"])
def test_the_control_program_speaks_the_protocol_that_the_desk_expects(tmp_path, kind):
    program = nvidias() if kind == "nvidia" else fakemps.install(tmp_path / "mps", "serverless")
    pipes = tmp_path / "p"
    pipes.mkdir()
    env = mps.daemon_variables(str(pipes), "", MPS)

    def said(words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [program], input=words, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return done.returncode, done.stdout, done.stderr

    missing = (1, "", "Cannot find MPS control daemon process\n")
    assert said("get_server_list\n") == missing
    daemon = subprocess.Popen([program, "-f"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(pipes, lambda: said("get_server_list\n") == (0, "", ""))
        uid = os.geteuid()
        status, output, errors = said(f"get_server_list\nstart_server -uid {uid}\nget_server_list\n")
        assert (status, errors) == (0, "")
        end = time.monotonic() + PATIENCE
        while mps.pids_of(output):  # a server that fails is listed for an instant
            assert time.monotonic() < end
            output = said("get_server_list\n")[1]
        assert mps.pids_of(said("get_client_list 1\n")[1]) == ()
        assert mps.pids_of(said("no_such_command\n")[1]) == ()
        second = [program, "-f"]
        assert subprocess.run(second, env=env, capture_output=True, timeout=PATIENCE, check=False).returncode
        assert said("quit -t 1\n")[0] in (0, 1)
        assert daemon.wait(PATIENCE) >= 0
        assert said("get_server_list\n") == missing
    finally:
        daemon.kill()
        daemon.wait()


# -- processes --------------------------------------------------------------------------------------


@contextmanager
def host(path: Path, mode: str = "", **more: Any) -> Iterator[tuple[Home, Path]]:
    """A home whose GPUs have MPS, and the directory of its control program."""
    program = fakemps.install(path / "mps", mode)
    config = f'[host]\ncpus = 64\n[mail]\nsend = "off"\n[gpus]\nmps = "user"\nmps_control = "{program}"\n'
    short = Path(f"/tmp/fgmps-{os.getpid()}")  # sockets have short paths
    try:
        with living(short, config=config, **more) as home:
            yield home, program.parent
    finally:
        shutil.rmtree(short, ignore_errors=True)


def heard(place: Path, *kinds: str) -> list[list[str]]:
    """The events of these kinds that the daemons and their clients noted."""
    lines = [line.split() for line in (place / "heard").read_text().splitlines()]
    return [line for line in lines if line[0] in kinds]


def working(home: Home, place: Path, **more: Any) -> tuple[int, int]:
    """A job that is a client of MPS, and the pid of the client."""
    before = len(heard(place, "client"))
    job = home.submit(f"exec {place}/nvidia-cuda-mps-control client", **more)
    until(place, lambda: len(heard(place, "client")) > before)
    return job, int(heard(place, "client")[-1][1])


def ended(pid: int) -> None:
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        assert select.select([watched], [], [], PATIENCE)[0], f"process {pid} does not end"
        os.close(watched)


def test_daemons_clients_cancels_crashes_and_the_stop_of_the_controller(tmp_path):
    with host(tmp_path) as (home, place):
        first, client = working(home, place, share=5000)
        check_first(home, place, first, client)
        kill_controller(home)  # the next one adopts the daemon, and a second job shares it
        second, other = working(home, place, share=2500)
        assert len(heard(place, "daemon")) == 1
        check_cancel(home, place, first, client)
        assert home.job(second)["mps"]["state"] == "used"
        check_death(home, place, second, other)
        check_stop(home, place)


def check_first(home: Home, place: Path, job: int, client: int) -> None:
    """The daemon runs as the user on one GPU, and the job is told of it."""
    [[_, _, uid, uuid, pipes]] = heard(place, "daemon")
    assert (int(uid), uuid) == (os.geteuid(), home.job(job)["allocated"][0]["uuid"])
    assert os.stat(pipes).st_mode & 0o777 == 0o700
    said = home.run("fgctl", "show", "job", str(job)).out
    assert re.findall("(?:Pacing|Enforce|Mps)=[^ \n]*", said) == ["Pacing=mps:50", "Enforce=shim,mps:50"]
    fd = region.open_region(home.paths.run / "job" / f"{job}.1" / "region")
    account = region.Account(fd, 0)
    account.read()
    os.close(fd)
    assert account.policy == COMPUTE_NONE, "it takes no turns"
    variables = Path(f"/proc/{client}/environ").read_text().split("\0")
    assert {line for line in variables if line.startswith(("CUDA_MPS", "CUDA_VISIBLE"))} == {
        f"CUDA_MPS_PIPE_DIRECTORY={pipes}",
        f"CUDA_MPS_LOG_DIRECTORY={pipes}",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M",
        "CUDA_VISIBLE_DEVICES=0",
    }


def check_cancel(home: Home, place: Path, job: int, client: int) -> None:
    """A cancel terminates the work of this job only, before SIGTERM."""
    home.run("fgcancel", str(job))
    assert home.wait(job)[0]["state"] == "CANCELLED"
    ends = [["terminated", str(client)], ["sigterm", str(client)]]
    assert heard(place, "terminated", "sigterm", "lost") == ends


def check_death(home: Home, place: Path, job: int, client: int) -> None:
    """A daemon that is killed is noticed. The job is told; the next job runs without MPS."""
    [[_, daemon, *_]] = heard(place, "daemon")
    (place / "mode").write_text("fails")
    kill(int(daemon))
    until(home.path, lambda: home.job(job)["mps"]["state"] == "lost")
    assert home.job(job)["warning"] == "MPS failed on GPU 0: its daemon has ended: exit status -9"
    os.kill(client, signal.SIGKILL)
    home.wait(job)
    use = home.job(home.ended(share=2500))["mps"]
    assert (use["state"], use["why"]) == ("refused", "its daemon has ended: exit status 3")


def check_stop(home: Home, place: Path) -> None:
    """A job and its daemon outlive the controller. A daemon that ignores its end is killed."""
    (place / "mode").write_text("stays")
    home.running(share=WHOLE)  # on GPU 0, where no daemon is tried again for a while
    job, _ = working(home, place, share=5000)
    daemon = int(heard(place, "daemon")[-1][1])
    home.run("fgsched", "stop")
    home.disconnect()
    assert home.job(job)["mps"]["state"] == "used"
    processes = [daemon, *(one.pid for one in descendants(daemon))]
    home.run("fgsched", "stop", "--kill")
    home.disconnect()
    for pid in processes:
        ended(pid)
