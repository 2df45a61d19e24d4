"""Programs of the site: prolog and epilog around jobs, what they are told, and what becomes of failures."""

import errno
import getpass
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from awaiting import until
from builders import Part, World, a_demand, a_gpu, a_job, a_result, full_disk
from crashing import Power, controller_of, kill, power_cuts
from fakehost import hosting, why_not
from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.submission import SubmitFilter
from fgsched.controller.hooking import environment, safe
from fgsched.controller.turn import EpilogDone, PrologFailed
from fgsched.domain.errors import Busy, FgschedError, Refused
from fgsched.domain.job import WHOLE, Gpu, GpuState, Job, Request
from fgsched.domain.states import JobState, Reason
from fgsched.hooks.filtering import Unusable, judged
from fgsched.hooks.process import HookRunner
from fgsched.hooks.programs import HookRun, Ran, refuse_unsafe_program
from fgsched.store import GpuAllocation
from fgsched.system.process import is_own_supervisor
from fgshim import spawner
from live_host import PATIENCE, Home, living

# -- decisions --------------------------------------------------------------------------------------


class Epilogs(Part):
    """An epilog that a test ends. It outlives no controller, as the real ones do not."""

    is_configured = True

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []  # (job, attempt) of each run, of all controllers
        self.running: dict[int, int] = {}

    def furnish(self) -> None:
        self.running.clear()
        self.world.engine.epilogs = self

    def runs(self, job_id: int) -> bool:
        return job_id in self.running

    def run(self, job: Job, given: object) -> None:
        self.asked.append((job.id, job.attempt))
        self.running[job.id] = job.attempt

    def end(self, why: str = "") -> None:
        running = dict(self.running)
        self.running.clear()
        self.world.turn(*(EpilogDone(job, attempt, why) for job, attempt in running.items()))


def with_epilogs(*gpus: Gpu) -> World:
    """Return a world of these GPUs, whose jobs have an epilog."""
    return World(gpus, epilogs=Epilogs())


def test_a_job_whose_end_fails_after_its_epilog_is_tried_again_and_ends():
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(5000)])
    world.settle()
    world.host.finish(1, 1, a_result())
    world.settle()
    world.engine._settle = lambda job, now: 1 // 0
    world.epilogs.end()
    assert (world.job(1).state, world.job(1).warning[:14]) == (JobState.COMPLETING, "internal error")
    assert world.engine.due(world.now) is not None
    del world.engine._settle
    world.turn()
    world.epilogs.end()
    world.settle()
    assert world.job(1).state is JobState.COMPLETED


def test_an_ended_job_keeps_its_holds_until_its_epilog_has_run():
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(WHOLE)])
    world.settle()
    world.host.finish(1, 1, a_result(3 << 8))
    world.settle()
    job = world.job(1)
    assert (job.state, job.outcome, job.reason) == (JobState.COMPLETING, JobState.FAILED, Reason.EXIT_CODE)
    assert [hold.gpu for hold in world.holds()] == [0]
    assert world.epilogs.asked == [(1, 1)]
    world.epilogs.end()
    job = world.job(1)
    assert (job.state, job.reason, job.ended.exit_code) == (JobState.FAILED, Reason.EXIT_CODE, 3)
    assert world.holds() == []
    assert world.engine.gpu_states.gpu(0).state is GpuState.OK


def test_a_failed_epilog_drains_the_gpus_of_its_job_only():
    world = with_epilogs(a_gpu(0), a_gpu(1))
    world.submit([a_demand(WHOLE)])
    world.settle()
    [hold] = world.holds()
    world.host.finish(1, 1, a_result())
    world.settle()
    world.epilogs.end("exited with status 1")
    gpu = world.engine.gpu_states.gpu(hold.gpu)
    assert (gpu.state, gpu.note) == (GpuState.DRAINED, "the epilog of job 1 exited with status 1 [hook]")
    assert world.engine.gpu_states.gpu(1 - hold.gpu).state is GpuState.OK
    assert world.job(1).state is JobState.COMPLETED


@pytest.mark.parametrize("has_epilog", [False, True])
def test_a_failed_prolog_drains_the_gpus_and_holds_the_job_with_the_reason(has_epilog):
    world = with_epilogs(a_gpu(0)) if has_epilog else World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.host.inbox.clear()  # the prolog runs: nothing was launched
    world.host.attempts.clear()
    world.turn(PrologFailed(1, 1, "exited with status 7"))
    gpu = world.engine.gpu_states.gpu(0)
    assert (gpu.state, gpu.note) == (GpuState.DRAINED, "the prolog of job 1 exited with status 7 [hook]")
    if has_epilog:
        job = world.job(1)
        assert (job.state, job.reason) == (JobState.COMPLETING, Reason.PROLOG_FAILED)
        world.start()  # the reason survives a crash
        world.turn()
        world.epilogs.end()
        assert world.epilogs.asked == [(1, 1), (1, 1)]
    job = world.job(1)
    assert (job.state, job.held, job.reason) == (JobState.PENDING, "user", Reason.PROLOG_FAILED)
    assert job.warning == "the prolog exited with status 7"
    assert world.engine.jobtable.reason(job) is Reason.PROLOG_FAILED
    assert world.holds() == []


def test_an_attempt_that_is_withdrawn_has_an_epilog_and_runs_again():
    """The controller is killed during the prolog."""
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(WHOLE)])
    world.host.inbox.clear()
    world.host.attempts.clear()
    world.start()
    world.turn()
    assert (world.job(1).state, world.epilogs.asked) == (JobState.COMPLETING, [(1, 1)])
    world.epilogs.end()
    world.settle()
    assert (world.job(1).state, world.job(1).attempt) == (JobState.RUNNING, 2)
    assert (world.job(1).restarts, world.job(1).failures) == (0, 1)


def test_a_turn_that_is_rolled_back_starts_no_epilog_again():
    world = with_epilogs(a_gpu(0))
    world.submit([a_demand(WHOLE)])
    world.settle()
    world.host.finish(1, 1, a_result())
    world.settle()
    with full_disk(world):
        world.submit([a_demand()])
    world.settle()
    assert world.epilogs.asked == [(1, 1)]
    world.epilogs.end()
    assert world.job(1).state is JobState.COMPLETED


def epilog_campaign(effects: int) -> Power:
    """Two jobs, one of them requeued once, with a power cut after `effects` effects."""
    world = with_epilogs(a_gpu(0))
    power = Power(world, effects)
    power.step(partial(world.submit, [a_demand(2500), a_demand()], key="k"))
    for _ in range(2):
        power.step(world.settle)
        power.step(world.epilogs.end)
    for job_id, status in ((1, 0), (2, 1 << 8)):
        world.host.finish(job_id, world.job(job_id).attempt, a_result(status))
    for _ in range(3):
        power.step(world.settle)
        power.step(world.epilogs.end)
    assert [world.job(one).state for one in (1, 2)] == [JobState.COMPLETED, JobState.FAILED]
    for one in (1, 2):
        attempts = set(range(1, world.job(one).attempt + 1))
        assert {attempt for job, attempt in world.epilogs.asked if job == one} == attempts
    assert world.holds() == []
    return power


def test_no_power_cut_leaves_out_an_epilog():
    cuts = power_cuts(epilog_campaign, 45)
    assert cuts[0] == 1
    assert cuts[-1] == 0


# -- what a program is told -----------------------------------------------------------------------


def test_a_value_that_a_user_chose_reaches_no_shell_of_root():
    hostile = "$(id);`id` && \nLD_PRELOAD=/tmp/x 'é'"
    assert safe(hostile) == "__id___id______LD_PRELOAD=_tmp_x____"
    job = a_job(7, state=JobState.RUNNING)
    job = job.changed(request=job.request.__class__(name=hostile, account="a b", qos="-"))
    found = environment("prolog", job, (), "host")
    assert (found["FG_JOB_NAME"], found["SLURM_JOB_ACCOUNT"]) == (safe(hostile), "a_b")
    assert not [value for value in found.values() if set(value) & set("$`;&|<>()'\"\\ \n*?~#!")]


def test_a_program_has_exactly_the_documented_variables():
    job = a_job(7, state=JobState.COMPLETING, attempt=2, outcome=JobState.FAILED, array=5, task=3)
    given = (
        GpuAllocation(0, "GPU-0", "A100", 2500, 1, 2500),
        GpuAllocation(2, "GPU-2", "A100", 2500, 1, 2500),
    )
    found = environment("epilog", job, given, "gpu1")
    manual = (Path(__file__).parent.parent / "man" / "fgsched.toml.5").read_text()
    assert [name for name in found if name not in manual] == []
    assert (
        found
        | {
            "FG_HOOK": "epilog",
            "FG_JOB_ID": "7",
            "SLURM_JOB_ID": "7",
            "FG_JOB_UID": "1",
            "FG_JOB_USER": "ann",
            "FG_JOB_GPUS": "0,2",
            "SLURM_JOB_GPUS": "0,2",
            "FG_GPU_UUIDS": "GPU-0,GPU-2",
            "FG_GPU_FRACTION": "0.5",
            "FG_JOB_STATE": "FAILED",
            "FG_ARRAY_TASK_ID": "3",
            "SLURM_SCRIPT_CONTEXT": "epilog_slurmd",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        == found
    )


# -- permissions ----------------------------------------------------------------------------------


def program(path: Path, text: str = "exit 0") -> Path:
    new = path.with_name(f"{path.name}.new")  # the old one may be running
    new.write_text(f"#!/bin/sh\n{text}\n")
    new.chmod(0o755)
    return new.rename(path)


def a_group_can_write(path: Path) -> str:
    path.parent.chmod(0o777)
    return str(path)


def is_a_link(path: Path) -> str:
    link = path.with_name("link")
    link.symlink_to(path)
    return str(link)


def is_missing(path: Path) -> str:
    return f"{path}.old"


def is_no_program(path: Path) -> str:
    path.chmod(0o644)
    return str(path)


@pytest.mark.parametrize("spoil", [a_group_can_write, is_a_link, is_missing, is_no_program])
def test_a_program_that_others_could_replace_is_refused_with_its_path(tmp_path, spoil: Callable[[Path], str]):
    place = tmp_path / "hooks"
    place.mkdir(mode=0o755)
    path = program(place / "prolog")
    refuse_unsafe_program("[hooks] prolog", str(path), os.geteuid())
    spoiled = spoil(path)
    with pytest.raises(Refused, match="prolog") as refused:
        refuse_unsafe_program("[hooks] prolog", spoiled, os.geteuid())
    assert spoiled in refused.value.cause


# -- a controller with programs -------------------------------------------------------------------

PROLOG = """
echo "$FG_HOOK $FG_JOB_ID $FG_ATTEMPT" >>{log}
env >{log}.env
case $FG_JOB_NAME in
fails) echo secret words >&2; exit 3 ;;
hangs) exec sleep 1000 ;;
esac
"""
EPILOG = 'echo "$FG_HOOK $FG_JOB_ID $FG_ATTEMPT $FG_JOB_STATE" >>{log}'


TASK = """
case $FG_JOB_NAME in
task) echo "export ONE=1"; echo "export TWO=a=b c"; echo "unset ONE"; echo ignored
      echo "print hello from $SLURM_SCRIPT_CONTEXT" ;;
task-fails) exit 9 ;;
task-hangs) exec sleep 1000 ;;
esac
"""
FILTER = """#!{python} -IS
import json, sys
asked = json.load(sys.stdin)
request = asked["request"]
if request["name"] == "broken":
    sys.exit("secret words")
if request["name"] == "wrong":
    print("{{'")
if request["name"] == "refused":
    print(f"{{asked['user']}} may not, with {{asked['script'].split()[-1]}}")
    sys.exit(1)
if request["name"] == "unknown":
    print(json.dumps({{"request": {{"nosuch": 1}}}}))
if request["name"] == "elsewhere":
    print(json.dumps({{"request": {{"partition": "nowhere"}}}}))
if request["name"] == "changed":
    print(json.dumps({{"request": {{"comment": "by the site", "demand": {{"share": 5000}}}}}}))
"""


@pytest.fixture(scope="module")
def hooked(tmp_path_factory):
    path = tmp_path_factory.mktemp("hooked")
    log = path / "log"
    prolog = program(path / "prolog", PROLOG.format(log=log))
    epilog = program(path / "epilog", EPILOG.format(log=log))
    asked = program(path / "filter")
    asked.write_text(FILTER.format(python=Path(sys.executable).resolve()))
    task = program(path / "task", TASK)
    named = {"task_prolog": task, "submit_filter": asked, "prolog": prolog, "epilog": epilog}
    hooks = "\n".join(["[hooks]", *(f'{name} = "{place}"' for name, place in named.items())])
    hooks += "\nprolog_time = 5\ntask_prolog_time = 5\n"  # a busy host may need a second for a program
    with living(path / "home", config=Home.config + hooks) as home:
        home.log = log
        yield home


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("[" * 100_000, "it has too many levels"),
        ("this is not json", "Expecting value: line 1 column 1 (char 0); it begins with 'this is not json'"),
        ("[1]", "it begins with '[1]'"),
        ('{"request":{"\\ud800":1}}', "a text has a NUL, or half of a surrogate pair"),
        ('{"request":{"nosuch":1}}', "request: Object contains unknown field `nosuch`"),
        ('{"request":{"time_limit":"abc"}}', "request: Expected `int`, got `str` - at `$.time_limit`"),
        ('{"request":7}', "request is no JSON object"),
        ('{"reqest":{}}', "'reqest' is none of request, refuse, version"),
    ],
)
def test_an_answer_of_the_submit_filter_that_cannot_be_used_refuses_and_the_administrator_sees_why(
    answer, why
):
    with pytest.raises(Unusable) as refused:
        judged(Request(name="one"), Ran(number=1, status=0, output=answer))
    assert refused.value.cause.startswith("the submit filter of this site gave an answer that ")
    assert refused.value.remedy == "The administrator finds the reason in the log of the controller."
    assert refused.value.why.startswith(why)


class Waiting:
    """A connection."""

    is_waiting = is_closed = False


class Filters:
    """The desk and the loop of a filter that never answers."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.written: list[object] = []

    def refuse_to_wait(self, connection: Waiting) -> None:
        pass

    def filter(self, question: str, owner, done: object) -> None:
        self.asked.append(done)

    def finish(self, connection: Waiting, answer: object) -> None:
        pass

    def write(self, connection: Waiting, act: object, name: str) -> None:
        self.written.append(act)


def test_one_user_cannot_fill_the_submit_filter():
    there = Filters()
    asks = SubmitFilter(there, there, lambda caller, call, now: None)
    one = {"requests": [Request(name="one")], "scripts": ["x"], "environments": [], "jobs": [(0, 0, 0)]}
    call = protocol.Submit(key="k" * 16, **one)
    ann, bob = (Caller(uid, uid, "name", is_operator=False) for uid in (1, 2))
    connections = [Waiting() for _ in range(32)]
    for connection in connections:
        asks.ask(connection, ann, call)
    with pytest.raises(Busy):
        asks.ask(Waiting(), ann, call)
    asks.ask(Waiting(), bob, call)
    connections[0].is_closed, connections[1].is_waiting = True, False
    asks.ask(later := Waiting(), ann, call)
    assert len(there.asked) == 33
    there.asked[1](Ran(number=1, status=0))
    assert len(there.asked) == 34
    assert later.is_waiting


def test_the_submit_filter_is_not_asked_for_those_who_have_gone():
    there = Filters()
    asks = SubmitFilter(there, there, lambda caller, call, now: None)
    one = {"requests": [Request(name="one")], "scripts": ["x"], "environments": [], "jobs": [(0, 0, 0)]}
    call, ann = protocol.Submit(key="k" * 16, **one), Caller(1, 1, "name", is_operator=False)
    for _ in range(1000):
        asks.ask(gone := Waiting(), ann, call)
        gone.is_closed = True
    assert len(there.asked) == 32
    assert sum(map(len, asks._later.values())) <= 1
    asks.ask(Waiting(), ann, call)
    there.asked[0](Ran(number=1, status=0))
    assert len(there.asked) == 33
    for answered in there.asked[1:]:
        answered(Ran(number=1, status=1, output="no"))
    assert len(there.asked) == 33
    assert not asks._later
    assert not asks._asking


def test_a_submission_of_a_client_who_went_while_the_filter_ran_is_not_made():
    there = Filters()
    asks = SubmitFilter(there, there, lambda caller, call, now: None)
    one = {"requests": [Request(name="one")], "scripts": ["x"], "environments": [], "jobs": [(0, 0, 0)]}
    call, ann = protocol.Submit(key="k" * 16, **one), Caller(1, 1, "name", is_operator=False)
    for client in (Waiting(), gone := Waiting()):
        asks.ask(client, ann, call)
    gone.is_closed = True
    for answered in there.asked:
        answered(Ran(number=1, status=0))
    assert len(there.written) == 1


class Unstarted(HookRunner):
    """The controller's end alone; a test is the runner."""

    def _start(self, now) -> None:
        pass

    def tell(self, *outcomes: Ran) -> None:
        self._theirs.sendall(b"".join(msgspec.json.encode(one) + b"\n" for one in outcomes))


def test_a_failure_with_one_outcome_loses_no_other(tmp_path):
    told = []

    def fails(ran: Ran) -> None:
        raise RuntimeError

    with closing(Unstarted(tmp_path / "lock", lambda pidfd, ended: None)) as runner:
        for done in (fails, told.append):
            runner.request(HookRun(path="/bin/true", seconds=1, environment={}), done)
        runner.tell(Ran(number=1), Ran(number=2))
        with pytest.raises(RuntimeError):
            runner.receive()
        assert runner.due(0.0) == 0.0
        runner.look(0.0)
    assert told == [Ran(number=2)]


def test_a_runner_that_cannot_be_watched_is_started_again_with_its_programs(tmp_path, monkeypatch):
    watched, told = [], []

    def refused(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with closing(HookRunner(tmp_path / "lock", lambda pidfd, ended: watched.append(pidfd))) as runner:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", refused)
            program = str(Path("/bin/true").resolve())
            runner.request(HookRun(path=program, seconds=60, environment={}), told.append)
        assert runner.due(time.monotonic()) is not None
        runner.look(time.monotonic() + PATIENCE)
        while not told:
            assert select.select([runner], [], [], PATIENCE)[0]
            runner.receive()
    os.close(*watched)
    assert (told[0].problem, told[0].status) == ("", 0), told


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("#!/bin/sh\n", 0o644, "program of the site: {} is not an executable file (-rw-r--r--)."),
        (
            "#!/no/sh\n",
            0o755,
            "program of the site: {}: its interpreter /no/sh does not exist, which its first line names.",
        ),
        ("no program", 0o755, "{}: Exec format error (errno 8)"),
    ],
)
def test_a_program_that_cannot_be_executed_is_logged_with_the_reason(disk, text, mode, why):
    program, told = disk / "prolog", []
    program.write_text(text)
    program.chmod(mode)
    with closing(HookRunner(disk / "lock", lambda pidfd, ended: os.close(pidfd))) as runner:
        runner.request(HookRun(path=str(program), seconds=60, environment={}), told.append)
        while not told:
            assert select.select([runner], [], [], PATIENCE)[0]
            runner.receive()
    assert (told[0].problem, told[0].said) == ("could not be executed", why.format(program))


def test_a_submit_filter_changes_a_request(hooked):
    job_id = hooked.submit(name="changed", hold=True)
    job = hooked.client.call(protocol.ShowJob(id=job_id))
    assert (job.comment, job.share) == ("by the site", 5000)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "the submit filter of this site exited with status 1"),
        ("wrong", "the submit filter of this site gave an answer that is no JSON object"),
        ("unknown", "the submit filter of this site gave an answer that cannot be used"),
    ],
)
def test_no_job_passes_a_submit_filter_that_fails(hooked, name, why):
    with pytest.raises(Refused) as refused:
        hooked.submit(name=name)
    assert refused.value.cause == why
    log = hooked.paths.log.read_text()
    assert "submit filter" in log.splitlines()[-1]


def test_a_user_whose_changed_request_is_refused_is_shown_what_the_submit_filter_changed(hooked):
    with pytest.raises(FgschedError) as refused:
        hooked.submit(name="elsewhere")
    assert "nowhere" in refused.value.cause
    assert refused.value.remedy.endswith("The submit filter of this site had changed: partition.")


def test_the_user_sees_the_refusal_of_a_submit_filter(hooked):
    (hooked.path / "job.sh").write_text("#!/bin/sh\ntrue last\n")
    done = hooked.run("fgsub", "-J", "refused", "job.sh")
    assert (done.status, done.out) == (1, "")
    refusal = f"fgsub: error: Batch job submission failed: {getpass.getuser()} may not, with last"
    assert done.err.splitlines()[0] == refusal


SHOW = 'echo "$0 $1: ${ONE-none}, $TWO, ${FG_TASK_PROLOG-none}, ${SLURM_SCRIPT_CONTEXT-none}"'


def test_a_task_prolog_changes_variables_and_prints_as_that_of_slurm(hooked):
    job_id = hooked.submit(SHOW, name="task", args=["x"], output="task.out")
    hooked.wait(job_id)
    assert (hooked.path / "task.out").read_text().splitlines() == [
        "hello from prolog_task",
        f"{hooked.job_dir(job_id)}/script x: none, a=b c, none, none",
    ]


def test_a_job_that_runs_its_task_prolog_is_taken_for_no_supervisor(tmp_path):
    gate = tmp_path / "started"
    os.mkfifo(gate)
    task = program(tmp_path / "task", f"echo $PPID >{gate}; exec sleep 1000")
    config = f'{Home.config}\n[hooks]\ntask_prolog = "{task}"\ntask_prolog_time = {int(PATIENCE)}\n'
    with living(tmp_path / "home", config=config) as home:
        job_id = home.submit()
        pid = int(gate.read_text())
        command = Path(f"/proc/{pid}/cmdline")
        until(home.path, lambda: command.read_bytes().split(b"\0")[1] == b"task")
        assert not is_own_supervisor(pid)
        home.client.ask("cancel", ids=[job_id])
        home.wait(job_id)


def test_a_script_that_cannot_be_executed_is_interpreted(tmp_path):
    """As in a run directory that is mounted noexec."""
    script = tmp_path / "script"
    script.write_text("#! /bin/sh -u\necho $0 $# $-\n")
    done = subprocess.run(
        [spawner(), "task", "0", script, "a b", "c"], env={}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{script} 2 u\n")


@pytest.mark.parametrize(
    ("name", "code", "why"), [("fails", 9, "exited with status 9"), ("hangs", 1, "did not end within 5 s")]
)
def test_a_job_whose_task_prolog_fails_has_failed(hooked, name, code, why):
    job_id = hooked.submit("echo never", name=f"task-{name}", output="failed.out")
    [end] = hooked.wait(job_id)
    assert (end["state"], end["exit_code"]) == ("FAILED", code)
    said = (hooked.path / "failed.out").read_text()
    assert said == f"fgsched: task prolog {hooked.log.parent}/task: {why}\n"


@pytest.mark.parametrize(
    ("text", "mode", "step", "why", "seen"),
    [
        (None, 0, "task prolog", "No such file or directory", ": No such file or directory."),
        (
            "#!/bin/sh\n",
            0o644,
            "task prolog",
            "Permission denied",
            " is not an executable file (-rw-r--r--).",
        ),
        (
            *("#!/no/sh -u\n", 0o755, "interpreter of task prolog", "No such file or directory"),
            ": its interpreter /no/sh does not exist, which its first line names.",
        ),
        ("no program", 0o755, "task prolog", "Exec format error", ""),
    ],
)
def test_a_task_prolog_that_cannot_be_executed_fails_the_launch_and_the_administrator_sees_why(
    hooked, text, mode, step, why, seen
):
    task = hooked.log.parent / "task"
    hooked.run("fgq")  # starts the controller, which would be refused with such a program
    task.unlink()
    try:
        if text is not None:
            task.write_text(text)
            task.chmod(mode)
        job_id = hooked.submit("echo never", output="unstarted.out")
        [end] = hooked.wait(job_id)
        doctor = hooked.run("fgsched", "doctor").out
    finally:
        program(task, TASK)
    assert (end["state"], end["exit_code"]) == ("FAILED", 127)
    shown = hooked.run("fgctl", "show", "job", str(job_id)).out
    assert "Reason=JobLaunchFailure" in shown
    assert f"Detail=exec {step} {task}: {why}" in shown
    said = f"fgsched: job {job_id}: could not be started: exec {step} {task}: {why}\n"
    assert (hooked.path / "unstarted.out").read_text() == said
    logged = [line for line in hooked.paths.log.read_text().splitlines() if f"job={job_id} " in line]
    assert logged[-1].endswith(f'event=refuse-launch attempt=1 why="exec {step} …: {why}"')
    assert (f"FAIL settings    [hooks] task_prolog: {task}{seen}" in doctor) == bool(seen)


def told(home: Home, job_id: int) -> list[str]:
    return [line for line in home.log.read_text().splitlines() if line.split()[1] == str(job_id)]


def test_a_job_runs_between_its_prolog_and_its_epilog(hooked):
    job_id = hooked.submit(f"echo job {'$FG_JOB_ID'} >>{hooked.log}")
    hooked.wait(job_id)
    assert told(hooked, job_id) == [f"prolog {job_id} 1", f"job {job_id}", f"epilog {job_id} 1 COMPLETED"]
    names = {line.partition("=")[0] for line in Path(f"{hooked.log}.env").read_text().splitlines()}
    assert not names & {"LD_PRELOAD", "FG_HOME", "PYTHONPATH", "FG_DEBUG"}


@pytest.mark.parametrize(
    ("name", "why"), [("fails", "exited with status 3"), ("hangs", "did not end within 5 s")]
)
def test_a_job_whose_prolog_fails_is_held_and_its_gpu_is_drained(hooked, name, why):
    job_id = hooked.submit("echo never", name=name)
    until(hooked.path, lambda: hooked.job(job_id)["state"] == "PENDING" and hooked.job(job_id)["held"])
    job = hooked.job(job_id)
    assert (job["state"], job["warning"]) == ("PENDING", f"the prolog {why}")
    assert told(hooked, job_id) == [f"prolog {job_id} 1", f"epilog {job_id} 1 PENDING"]
    [gpu] = [one for one in hooked.gpus() if one["state"] == "drained"]
    assert gpu["note"] == f"the prolog of job {job_id} {why} [hook]", "the output is for the log only"
    assert "secret" not in hooked.why(job_id)
    hooked.client.ask("cancel", ids=[job_id])
    assert hooked.run("fgctl", "resume", f"gpu={gpu['index']}").status == 0


def test_a_kill_of_the_runner_repeats_its_programs(hooked):
    gate = hooked.path / "killed"
    kill = f"test -e {gate} || {{ touch {gate}; kill -KILL $PPID; exec sleep 100; }}"
    program(hooked.log.parent / "prolog", f'echo "$FG_HOOK $FG_JOB_ID" >>{hooked.log}; {kill}')
    job_id = hooked.submit(f"echo job {'$FG_JOB_ID'} >>{hooked.log}")
    hooked.wait(job_id)
    assert told(hooked, job_id)[:3] == [f"prolog {job_id}", f"prolog {job_id}", f"job {job_id}"]


def spawner_of(home: Home) -> int:
    """The spawner of a home's controller."""
    pid = controller_of(home)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(one) for one in children if Path(f"/proc/{one}/comm").read_text() == "fgspawn\n")


WAITS = """
echo "$FG_HOOK $FG_JOB_ID $FG_ATTEMPT $$" >>{log}
test $FG_HOOK.$FG_JOB_ID = {stops} && ! test -e {gate}.passed || exit 0
touch {gate}.passed
echo >{gate}
exec sleep 1000
"""


@pytest.mark.parametrize(
    ("hook", "victim", "expected"),
    [
        ("prolog", controller_of, ["prolog 1", "epilog 1", "prolog 2", "job", "epilog 2"]),
        ("prolog", spawner_of, ["prolog 1", "epilog 1", "prolog 2", "job", "epilog 2"]),
        ("epilog", controller_of, ["prolog 1", "job", "epilog 1", "epilog 1"]),
    ],
)
def test_a_kill_during_a_program_leaves_out_none_and_overlaps_none(hooked, hook, victim, expected):
    job_id = hooked.submit("exit 0") + 1
    gate = hooked.path / f"gate-{job_id}"
    os.mkfifo(gate)
    with closing(open(os.open(gate, os.O_RDWR), "rb", buffering=0)) as waiting:
        for name in ("prolog", "epilog"):
            text = WAITS.format(log=hooked.log, stops=f"{hook}.{job_id}", gate=gate)
            program(hooked.log.parent / name, text)
        assert hooked.submit(f"echo job {'$FG_JOB_ID'} >>{hooked.log}") == job_id
        assert select.select([waiting], [], [], PATIENCE)[0]
        kill(victim(hooked))
        hooked.disconnect()
        hooked.run("fgq")
        hooked.wait(job_id)
    lines = [line.split() for line in told(hooked, job_id)]
    assert [" ".join([line[0], *line[2:3]]) for line in lines] == expected
    assert not any(Path(f"/proc/{line[3]}").exists() for line in lines if line[0] != "job")


# -- a host with users ------------------------------------------------------------------------------


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_on_a_shared_host_the_prolog_is_roots_and_the_task_prolog_is_the_users():
    hostile = [
        "-J",
        "$(touch /x);`id`",
        "--export=ALL,LD_PRELOAD=/x.so,BASH_ENV=/x,ENV=/x,PATH=/evil:/usr/bin:/bin",
    ]
    with hosting() as host:
        etc, said = host.path / "etc/fgsched", host.root / "var/lib/fgsched/said"
        prolog = program(etc / "prolog", "exec >/var/lib/fgsched/said; id -u; env")
        program(etc / "task", 'echo "print $(id -un)"')
        with open(etc / "fgsched.toml", "a") as settings:
            settings.write('[hooks]\nprolog = "/etc/fgsched/prolog"\ntask_prolog = "/etc/fgsched/task"\n')
        done = host.run("root", "fgctl", "reconfigure")
        assert done.status == 0, done.err
        assert host.ended("alice", "echo ran", *hostile)["state"] == "COMPLETED"
        assert [line for line in host.output("alice") if "ld.so" not in line] == ["alice", "ran"]
        uid, *variables = said.read_text().splitlines()
        assert uid == "0"
        assert "FG_JOB_USER=alice" in variables
        assert "FG_JOB_NAME=__touch__x___id_" in variables
        assert not [one for one in variables if "evil" in one or one.startswith(("LD_", "BASH_ENV", "ENV="))]
        (etc / "task").chmod(0o700)
        done = host.run("root", "fgctl", "reconfigure")
        assert (done.status, "users cannot execute /etc/fgsched/task" in done.err) == (1, True), done
        (etc / "task").chmod(0o755)
        prolog.chmod(0o757)
        done = host.run("root", "fgctl", "reconfigure")
        assert done.status != 0
        assert "/etc/fgsched/prolog can be written by others (mode 0757)" in done.err
