"""fgrun: a job in the foreground has the caller's streams or a terminal, its signals, and its fate."""

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from fgsched.interactive import link, terminal
from fgsched.interactive.connected import Connected, ConnectionPlan
from fgsched.interactive.terminal import Signals
from interactive_driver import Typist, call, finish, last, start
from live_host import PATIENCE, living

WAITING = "trap 'echo got INT; exit 5' INT; trap 'echo got HUP >>hup; exit 6' HUP; echo ready; "
WAITING += "while :; do sleep 1000 & wait $!; done"
RESIZED = (
    "import os, signal; told = [signal.SIGWINCH]; signal.pthread_sigmask(signal.SIG_BLOCK, told); "
    'size = lambda: "{1}x{0}".format(*os.get_terminal_size()); '
    'print("before", size(), flush=True); signal.sigwait(told); print("after", size())'
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("fgrun") / "home") as found:
        yield found


def ended(home):
    """How the newest job ended."""
    return home.wait(last(home)["id"])[0]


# -- streams and exit codes ----------------------------------------------------------------------------


def test_a_job_has_the_streams_of_the_caller_and_its_exit_code_is_returned(home):
    said = call(home, "fgrun", "sh", "-c", "cat; echo to err >&2; exit 3", text="from in\n")
    assert said == (3, "from in\n", "to err\n")
    assert (last(home)["state"], last(home)["request"]["name"]) == ("FAILED", "sh")


def test_a_job_reads_and_writes_the_callers_files_themselves(home):
    (home.path / "in").write_text("x")
    with open(home.path / "in") as reading, open(home.path / "out", "w") as writing:
        command = "readlink /proc/self/fd/0 /proc/self/fd/1"
        assert finish(start(home, "fgrun", *command.split(), stdin=reading, stdout=writing))[0] == 0
    assert (home.path / "out").read_text() == f"{home.path}/in\n{home.path}/out\n"


def test_a_job_that_a_signal_ends_returns_128_and_the_signal(home):
    assert call(home, "fgrun", "sh", "-c", "kill -9 $$") == (137, "", "")


def test_a_command_that_does_not_exist_is_reported(home):
    assert call(home, "fgrun", "nosuch") == (127, "", "fgsched: nosuch: No such file or directory\n")


def test_the_job_is_an_ordinary_one_within_its_limits(home):
    script = "echo $FG_GPU_FRACTION $FG_GPU_MEM_MB; case $LD_PRELOAD in *libfgshim.so) echo hooked; esac"
    assert call(home, "fgrun", "--gpus=0.25", "sh", "-c", script) == (0, "0.25 4096\nhooked\n", "")


def test_a_time_limit_ends_the_command_and_is_reported(home):
    status, out, err = call(home, "fgrun", "--time=3s", "sh", "-c", "echo begun; exec sleep 1000")
    assert out in ("begun\n", ""), "on a busy host it ends before its command begins"
    assert err == f"fgrun: job {last(home)['id']} ended as TIMEOUT\n"
    assert status == 143


def test_streams_that_options_name_are_files(home):
    assert call(home, "fgrun", "-o", "%x.log", "-J", "me", "sh", "-c", "echo a; echo b >&2") == (0, "", "")
    assert (home.path / "me.log").read_text() == "a\nb\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "fgrun: error: name a command, or --pty for a shell\n"),
        (("--array=1-2", "true"), "fgrun: error: --array is for batch jobs\nSubmit it with fgsub.\n"),
        (("--pty", "-o", "x", "true"), "fgrun: error: --output and --pty exclude each other\n"),
        (("--gpus=9", "true"), None),
    ],
)
def test_what_cannot_run_in_the_foreground_is_refused(home, words, why):
    status, out, err = call(home, "fgrun", *words)
    assert (status, out) == (2 if why else 1, "")
    assert err == why if why else err.startswith("fgrun: error: ")


# -- waiting -------------------------------------------------------------------------------------------


def occupied(home):
    return home.running(demand={"gpus": 2, "share": 10000})


def test_a_job_that_waits_says_so_and_then_runs(home):
    blocker = occupied(home)
    process = start(home, "fgrun", "--gpus=1", "echo", "done")
    line = process.stderr.readline()
    job = last(home)["id"]
    assert line == f"fgrun: job {job} queued and waiting for resources\n"
    home.run("fgcancel", str(blocker))
    assert finish(process) == (0, "done\n", f"fgrun: job {job} has been allocated resources\n")


def test_a_terminal_shows_why_a_job_waits_and_ctrl_c_cancels_it(home):
    blocker = occupied(home)
    person = Typist(home, "fgrun", "--gpus=1", "true")
    job_line = person.until("queued and waiting for resources")
    person.until("needs one whole GPU; GPU")
    person.type("\x03")
    assert person.end() == 130
    assert job_line.endswith(f"fgrun: job {last(home)['id']} ")
    assert last(home)["state"] == "CANCELLED"
    home.run("fgcancel", str(blocker))


def test_a_job_whose_caller_has_gone_does_not_run(home):
    blocker = occupied(home)
    process = start(home, "fgrun", "--gpus=1", "touch", "ran")
    process.stderr.readline()
    process.kill()
    finish(process)
    home.run("fgcancel", str(blocker))
    assert (ended(home).get("exit_code"), (home.path / "ran").exists()) == (129, False)


# -- signals -------------------------------------------------------------------------------------------


def running(home, *words):
    process = start(home, "fgrun", *words, "sh", "-c", WAITING)
    assert process.stdout.readline() == "ready\n"
    return process


def test_an_interrupt_reaches_the_job(home):
    process = running(home)
    process.send_signal(signal.SIGINT)
    job = last(home)["id"]
    said = f"fgrun: interrupt sent to job {job} (one more within 1 sec to cancel it)\n"
    assert finish(process) == (5, "got INT\n", said)


def test_a_second_interrupt_cancels_the_job(home):
    process = start(home, "fgrun", "sh", "-c", "trap '' INT; echo ready; exec sleep 1000")
    assert process.stdout.readline() == "ready\n"
    job = last(home)["id"]
    process.send_signal(signal.SIGINT)
    while "one more within 1 sec" in (line := process.stderr.readline()):
        process.send_signal(signal.SIGINT)  # on a busy host it may come too late, as a first one
    assert line == f"fgrun: job {job} is being cancelled\n"
    assert (
        process.stderr.read() == f"fgrun: job {job} ended as CANCELLED\n"
    )  # `finish` skips what is buffered
    assert finish(process) == (143, "", "")
    assert last(home)["state"] == "CANCELLED"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_job_is_hung_up_when_its_caller_ends(home, number):
    (home.path / "hup").unlink(missing_ok=True)
    process = running(home)
    process.send_signal(number)
    assert finish(process)[0] == (129 if number == signal.SIGHUP else -9)
    assert ended(home)["exit_code"] == 6
    assert (home.path / "hup").read_text() == "got HUP\n"


def test_a_job_with_no_hangup_outlives_its_caller(home):
    process = running(home, "--no-hangup")
    process.kill()
    process.wait()
    home.run("fgcancel", "--batch", "--signal=INT", str(last(home)["id"]))
    assert ended(home)["exit_code"] == 5
    assert finish(process) == (-9, "got INT\n", "")


def test_a_cancelled_job_ends_its_caller(home):
    process = running(home)
    home.run("fgcancel", str(last(home)["id"]))
    assert finish(process)[0] != 0
    assert last(home)["state"] == "CANCELLED"


def test_the_exit_code_arrives_although_the_controller_was_stopped(home):
    process = start(home, "fgrun", "sh", "-c", "echo ready; read line; exit 7", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    home.disconnect()
    assert home.run("fgsched", "stop").status == 0
    assert finish(process, "go\n")[0] == 7


# -- terminals -----------------------------------------------------------------------------------------


def test_a_shell_on_a_terminal_has_job_control_window_size_and_exit_code(home):
    person = Typist(home, "fgrun", "--pty", "bash", "--norc", "--noprofile", "-i", rows=33, columns=111)
    greeting = person.until("$ ")
    assert "no job control" not in greeting
    person.type("stty size; tty -s && echo is-$((1+1))-tty\n")
    person.until("33 111")
    person.until("is-2-tty")
    person.type(f"{sys.executable} -c '{RESIZED}'\n")
    person.until("before 33x111")
    person.resize(44, 122)
    person.until("after 44x122")
    person.type("sh -c 'echo be''gun; exec sleep 1000'\n")
    person.until("begun")
    person.type("\x03")
    person.until("$ ")
    person.type("exit 9\n")
    assert person.end() == 9
    assert last(home)["exit_code"] == 9


def test_what_was_typed_before_the_terminal_is_switched_is_kept():
    keyboard, screen = os.openpty()
    os.write(keyboard, b"early\n")
    assert select.select([screen], [], [], PATIENCE)[0]
    with terminal.raw(screen):
        assert select.select([screen], [], [], 0)[0]
        assert os.read(screen, 100) == b"early\n"
    os.close(keyboard)
    os.close(screen)


def test_the_end_of_the_callers_terminal_hangs_up_the_job(home):
    """The kernel and the watcher both say so: the second signal may come before the job has ended."""
    (home.path / "hup").unlink(missing_ok=True)
    person = Typist(home, "fgrun", "--pty", "sh", "-c", WAITING)
    person.until("ready")
    person.hang_up()
    assert person.end() == 129
    assert ended(home)["exit_code"] == 6
    assert set((home.path / "hup").read_text().splitlines()) == {"got HUP"}


def test_a_request_to_end_hangs_up_a_shell_on_a_terminal_which_ignores_that_request(home):
    person = Typist(home, "fgrun", "--pty", "bash", "--norc", "--noprofile", "-i")
    person.until("$ ")
    person.signal(signal.SIGTERM)
    assert person.end() == 143
    assert ended(home)["signal"] == signal.SIGHUP


def test_a_cancelled_shell_on_a_terminal_is_hung_up_at_once(home):
    person = Typist(home, "fgrun", "--pty", "bash", "--norc", "--noprofile", "-i")
    person.until("$ ")
    home.run("fgcancel", str(last(home)["id"]))
    assert person.end() == 129
    assert (last(home)["state"], ended(home)["signal"]) == ("CANCELLED", signal.SIGHUP)


def test_a_job_that_was_told_to_end_is_completing(home):
    process = start(home, "fgrun", "sh", "-c", "trap '' TERM; echo ready; exec sleep 1000")
    assert process.stdout.readline() == "ready\n"
    job = str(last(home)["id"])
    home.run("fgcancel", job)
    assert home.run("fgq", "-h", "-j", job, "-o", "%t %T").out == "CG COMPLETING\n"
    home.run("fgcancel", "-s", "KILL", job)
    assert finish(process)[0] != 0


def test_a_shell_ends_at_the_end_of_an_input_that_is_no_terminal(home):
    """The first end of input may come before the shell reads its terminal."""
    assert call(home, "fgrun", "--pty", "bash", "--norc", "--noprofile", "-i", text="")[0] == 0


def test_input_that_the_job_does_not_read_does_not_stop_its_output(home):
    program = "import sys; sys.stdout.write('x' * 300000); data = sys.stdin.read(); print(len(data))"
    text = "y\n" * 50000
    status, out, _ = call(home, "fgrun", "--pty", sys.executable, "-c", program, text=text)
    assert (status, out.count("x")) == (0, 300000)
    assert out.splitlines()[-1].endswith("100000")


def test_what_is_typed_reaches_a_job_without_a_terminal(home):
    person = Typist(home, "fgrun", "sh", "-c", "read line; echo got-$line; tty; cat; exit 4")
    person.type("word\n")
    person.until("got-word")
    person.until("not a tty")
    person.type("more\n\x04")
    person.until("more")
    assert person.end() == 4


def test_a_caller_in_the_background_does_not_read_the_terminal():
    ours, theirs = os.openpty()
    assert terminal.in_foreground(theirs)  # not the terminal of this process
    os.close(ours)
    os.close(theirs)


# -- the connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_job_that_has_ended_before_it_was_greeted_is_over(is_terminal):
    """As at a short time limit: the agent has connected, and is killed."""
    caller, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.close()
    plan = ConnectionPlan(name="fgrun", terminal=is_terminal)
    with caller, Signals() as signals:
        assert Connected(caller, signals, plan, print, lambda: None).run() is None


@contextmanager
def as_another_user():
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_process_of_another_user_is_neither_accepted_nor_connected_to():
    name, other = link.new_name(), link.new_name()
    with link.listen(name) as listener:
        with as_another_user(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(listener.addresses[0])
        assert listener.accept() is None
    with as_another_user():
        squatter = link.listen(other)
    with squatter, pytest.raises(link.CallerGone):
        link.connect(other)
