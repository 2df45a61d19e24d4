"""fgrun --jobid and srun --jobid: a command inside a running job has what the job has, and ends with it."""

import os
import signal

import pytest

from fgsched.domain.errors import Refused
from fgsched.domain.states import JobState
from fgsched.interactive.connected import ConnectionPlan
from fgsched.interactive.session import join
from fgsched.protocol import JobInfo
from interactive_driver import Typist, call, finish, start
from live_host import living

SHELL = ("env", "PS1=$ ", "HISTFILE=", "bash", "--norc", "-i")
LOOP = "echo ready; while :; do sleep 1000 & wait $!; done"
PROPERTIES = "readlink /proc/self/ns/mnt; grep Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup; "
PROPERTIES += "ulimit -n; umask; id -u; env | grep -E '^(FG_|CUDA|LD_PRELOAD|TMPDIR|PATH)' | sort"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("join") / "home") as found:
        yield found


def test_a_command_in_a_job_has_its_limits_and_variables_and_returns_its_code(home):
    gate = home.path / "properties"
    os.mkfifo(gate)
    words = ("--parsable", "--gpus=0.25", "-c2", "-o", "/dev/null", "--wrap")
    job = home.run("fgsub", *words, f"({PROPERTIES}) >{gate}; exec sleep 1000").out.strip()
    mine = gate.read_text()
    status, out, err = call(home, "fgrun", f"--jobid={job}", "sh", "-c", f"{PROPERTIES}; exit 5")
    assert (status, err) == (5, "")
    assert out == mine
    assert "libfgshim.so" in out
    home.run("fgcancel", job)


def test_a_step_in_a_job_has_its_tasks_input_and_number(home):
    job = str(home.running(demand={"gpus": 1, "share": 2500, "cpus": 2}))
    words = ("-n2", "-l", "sh", "-c", "cat; echo $SLURM_JOB_ID.$SLURM_STEP_ID; exit 3")
    status, out, _ = call(home, "srun", f"--jobid={job}", "--overlap", *words, text="in\n")
    assert status == 3
    assert sorted(out.splitlines()) == [f"{task}: {line}" for task in (0, 1) for line in (f"{job}.0", "in")]
    person = Typist(home, "srun", f"--jobid={job}", "--overlap", "--pty", *SHELL, rows=29)
    assert "no job control" not in person.until("$ ")
    person.type("stty size; echo in-$FG_JOB_ID\n")
    person.until("29 100")
    person.until(f"in-{job}")
    person.type("exit 4\n")
    assert person.end() == 4
    assert home.job(int(job))["state"] == "RUNNING"
    home.run("fgcancel", job)


def test_signals_reach_the_command_and_the_end_of_the_job_ends_it(home):
    job = str(home.running(share=2500))
    process = start(home, "fgrun", f"--jobid={job}", "sh", "-c", f"trap 'echo got; exit 7' INT; {LOOP}")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert finish(process)[:2] == (7, "got\n")
    process = start(home, "fgrun", f"--jobid={job}", "sh", "-c", "echo ready; exec sleep 1000")
    assert process.stdout.readline() == "ready\n"
    home.run("fgcancel", job)
    assert finish(process)[0] in (1, 143)  # 1: its agent was killed first
    home.wait(int(job))


def test_a_command_is_hung_up_when_its_caller_is_killed(home):
    job = str(home.running(share=2500))
    reading, writing = os.pipe()
    script = f"trap 'echo hup; exit' HUP; {LOOP}"
    process = start(home, "fgrun", f"--jobid={job}", "sh", "-c", script, stdout=writing)
    os.close(writing)
    with open(reading) as said:
        assert said.readline() == "ready\n"
        process.kill()
        assert said.readline() == "hup\n"
    finish(process)
    home.run("fgcancel", job)


@pytest.mark.parametrize(
    ("command", "words", "status", "message"),
    [
        ("fgrun", ("--jobid=9999", "true"), 3, "fgrun: error: "),
        ("fgrun", ("--jobid=1", "--gpus=1", "true"), 2, "fgrun: error: --gpus and --jobid exclude"),
        (
            "srun",
            ("--jobid=9999", "true"),
            1,
            "srun: error: Unable to confirm allocation for job 9999: Invalid job id specified\n",
        ),
        ("srun", ("--jobid=x", "true"), 1, 'srun: error: Invalid numeric value "x" for --jobid.\n'),
    ],
)
def test_a_job_that_cannot_be_joined_is_refused(home, command, words, status, message):
    found = call(home, command, *words)
    assert found[:2] == (status, "")
    assert found[2].startswith(message)


class Starting:
    """A client that shows a job which starts and has then ended."""

    def __init__(self):
        self.states = [JobState.STARTING, JobState.STARTING, JobState.COMPLETED]

    def call(self, call):
        return JobInfo(id=7, state=self.states.pop(0))


def test_a_job_that_is_starting_is_waited_for():
    with pytest.raises(Refused, match="job 7 is not running: it is COMPLETED"):
        join(Starting(), 7, ConnectionPlan(name="fgrun"), ("true",))


def test_a_pending_job_cannot_be_joined(home):
    job = home.submit(hold=True)
    why = f"job {job} is not running: it is PENDING"
    assert call(home, "srun", f"--jobid={job}", "true") == (
        1,
        "",
        f"srun: error: Unable to create step for job {job}: {why}\n",
    )
    home.run("fgcancel", str(job))
