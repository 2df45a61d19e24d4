"""Orders reach a job whose shepherd was killed, under whatever controller, or are refused."""

import os
import resource
import select
import signal

import pytest

from awaiting import state_of, until, until_stopped
from crashing import await_end, controller_of, crashing, kill, shepherd_of
from fgsched.domain.errors import Unreachable
from live_host import PATIENCE

pytestmark = pytest.mark.compiler
TELLS = (  # a job that writes a word for each signal, and ends at TERM
    "exec 3<>told; trap 'echo asked >&3; exit 9' TERM; trap 'echo heard >&3' USR1; "
    "echo $$ >&3; while :; do sleep 1000 & wait; done"
)
GOES_ON = "exec 3<>told; trap 'echo went-on >&3' CONT; " + TELLS


class Told:
    """The FIFO in which a job says what has happened to it."""

    def __init__(self, home):
        path = home.path / "told"
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR)

    def word(self):
        said = b""
        while not said.endswith(b"\n"):
            assert select.select([self.fd], [], [], PATIENCE)[0], f"nothing after {said!r}"
            said += os.read(self.fd, 1)
        return said.decode().strip()


@pytest.fixture
def told(home):
    one = Told(home)
    yield one
    os.close(one.fd)


def lose_supervisors(home, job):
    """The shepherd is killed, then the controller; another one takes its place, with another spawner."""
    kill(shepherd_of(home, job))
    kill(controller_of(home))
    assert home.run("fgq", "-h").status == 0


def script_of(home, told, job):
    """The pid of a script that has begun; its controller knows that it runs, and takes orders for it."""
    pid = int(told.word())
    home.until_running(job)
    return pid


def standing(home, job):
    return home.job(job)["state"]


def test_a_signal_reaches_a_job_whose_shepherd_and_controller_were_killed(home, told):
    job = home.submit(TELLS)
    told.word()
    lose_supervisors(home, job)
    assert home.run("fgcancel", "-s", "USR1", str(job)).status == 0
    assert told.word() == "heard"


def test_a_suspended_job_goes_on_though_its_shepherd_and_its_controller_were_killed(home, told):
    job = home.submit(GOES_ON)
    pid = script_of(home, told, job)
    assert home.run("fgctl", "suspend", str(job)).status == 0
    until_stopped(pid)
    lose_supervisors(home, job)
    assert standing(home, job) == "SUSPENDED"
    assert home.run("fgctl", "resume", str(job)).status == 0
    assert told.word() == "went-on"
    assert standing(home, job) == "RUNNING"


def test_a_job_whose_shepherd_and_controller_were_killed_as_it_began_runs_and_hears(home, told):
    home.run("fgq", "-h", env={"FG_CRASH_AT": "controller_after_launch"})
    job = home.submit(f"kill -9 $PPID; {TELLS}")
    told.word()
    assert home.run("fgq", "-h").status == 0
    until(home.path, lambda: standing(home, job) == "RUNNING")
    assert home.run("fgcancel", "-s", "USR1", str(job)).status == 0
    assert told.word() == "heard"


def test_a_job_is_suspended_though_its_shepherd_and_its_controller_were_killed(home, told):
    job = home.submit(TELLS)
    pid = int(told.word())
    lose_supervisors(home, job)
    assert home.run("fgctl", "suspend", str(job)).status == 0
    until_stopped(pid)
    assert standing(home, job) == "SUSPENDED"


def test_another_time_limit_holds_for_a_job_whose_shepherd_and_controller_were_killed(home, told):
    job = home.submit(TELLS)
    told.word()
    lose_supervisors(home, job)
    assert home.run("fgctl", "update", f"job={job}", "timelimit=1s").status == 0
    assert told.word() == "asked"
    assert home.wait(job)[0]["state"] == "TIMEOUT"


def test_the_clock_of_a_suspended_job_stands_still_over_both_deaths_and_then_goes_on(home, told):
    job = home.submit(TELLS, time_limit=8)
    pid = script_of(home, told, job)
    home.client.ask("suspend", ids=[job])
    until_stopped(pid)
    lose_supervisors(home, job)
    assert home.run("fgctl", "resume", str(job)).status == 0
    assert told.word() == "asked"
    assert home.wait(job)[0]["state"] == "TIMEOUT"


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_a_job_whose_shepherd_and_controller_were_killed_is_asked_before_it_is_ended(
    home, told, cancelled_first
):
    job = home.submit(TELLS)
    told.word()
    if cancelled_first:
        os.kill(shepherd_of(home, job), signal.SIGSTOP)  # it never hears of it
        home.client.ask("cancel", ids=[job])
    lose_supervisors(home, job)
    if not cancelled_first:
        assert home.run("fgcancel", str(job)).status == 0
    assert told.word() == "asked"
    ended = home.wait(job)[0]
    assert (ended["state"], ended["exit_code"]) == ("CANCELLED", 9)


def test_a_requeue_reaches_a_job_whose_shepherd_and_controller_were_killed(home, told):
    job = home.submit(TELLS)
    told.word()
    lose_supervisors(home, job)
    assert home.run("fgctl", "requeuehold", str(job)).status == 0
    assert told.word() == "asked"


def test_a_job_that_was_suspended_is_stopped_though_its_shepherd_never_heard_of_it(home, told):
    job = home.submit(TELLS)
    pid = script_of(home, told, job)
    os.kill(shepherd_of(home, job), signal.SIGSTOP)
    home.client.ask("suspend", ids=[job])
    kill(shepherd_of(home, job))
    until_stopped(pid)
    assert home.job(job)["state"] == "SUSPENDED"


def test_a_suspend_is_given_before_it_is_answered(tmp_path):
    with crashing(tmp_path, "controller_before_answer:2") as home:  # the first is the submission
        told = Told(home)
        watched = os.pidfd_open(controller_of(home))
        job = home.submit(TELLS)
        script = script_of(home, told, job)
        with pytest.raises(Unreachable):
            home.client.ask("suspend", ids=[job])
        await_end(watched)  # the controller died before it answered
        until_stopped(script)
        assert home.run("fgq", "-h").status == 0
        os.close(told.fd)


def test_an_order_that_is_not_delivered_is_said_to_be_so_and_given_again(home, told):
    job = home.submit(TELLS)
    pid = script_of(home, told, job)
    shepherd = shepherd_of(home, job)
    before = resource.prlimit(shepherd, resource.RLIMIT_SIGPENDING)
    resource.prlimit(shepherd, resource.RLIMIT_SIGPENDING, (0, before[1]))
    done = home.run("fgcancel", "-s", "USR1", str(job))
    assert (done.status, done.err) == (
        1,
        f"fgcancel: error: Signal job error on job id {job}: "
        f"job {job}: not delivered: the job's supervisor cannot be reached\n",
    )
    done = home.run("fgctl", "suspend", str(job))
    assert (done.status, done.err) == (
        1,
        f"fgctl: error: job {job}: not delivered: the job's supervisor cannot be reached\n"
        "The order is kept and given again until the job has heard of it.\n",
    )
    assert state_of(pid) != "T"
    resource.prlimit(shepherd, resource.RLIMIT_SIGPENDING, before)
    until_stopped(pid)


CLEARED = (
    "exec 3<>told 4<>go; exec env -i /bin/sh -c '"
    'trap "echo heard >&3" USR1; echo $$ >&3; until read -r status <&4; do :; done; exit $status'
    "'"
)


@pytest.mark.parametrize("restarts", [False, True], ids=["the same controller", "another controller"])
def test_a_job_without_its_environment_goes_on_after_its_shepherd_was_killed(home, told, restarts):
    os.mkfifo(home.path / "go")
    go = os.open(home.path / "go", os.O_RDWR)
    job = home.submit(CLEARED)
    told.word()
    if restarts:
        lose_supervisors(home, job)
    else:
        kill(shepherd_of(home, job))
    assert home.run("fgwait", "--timeout=3", str(job)).status == 124, (
        "after more time than a lost job is given"
    )
    assert standing(home, job) == "RUNNING"
    assert home.run("fgcancel", "-s", "USR1", str(job)).status == 0
    assert told.word() == "heard"
    os.write(go, b"7\n")
    os.close(go)
    (over,) = home.wait(job)
    assert (over["state"], over["exit_code"]) == ("FAILED", 7)
    assert not (home.paths.run / f"claim/{job}.1").is_symlink()
