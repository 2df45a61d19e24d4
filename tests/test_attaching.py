"""fgctl attach: another terminal for a job on a terminal, and the output of other jobs."""

import os
import select
import signal
import socket
from contextlib import closing
from threading import Thread

import pytest

from awaiting import until_stopped
from fgsched.domain.errors import Exit
from fgsched.interactive import link
from fgsched.interactive.agent import CallerRelay, HeldTerminal
from fgsched.interactive.connected import Connected, ConnectionPlan, Detached
from fgsched.interactive.terminal import Signals
from interactive_driver import Typist, call, finish, last, start
from live_host import PATIENCE, living

SHELL = ("--pty", "env", "PS1=$ ", "bash", "--norc", "--noprofile", "-i")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("attach") / "home") as found:
        yield found


def test_the_output_and_errors_of_a_batch_job_are_followed_and_its_exit_code_is_returned(home):
    gate = home.path / "gate"
    os.mkfifo(gate)
    script = f"seq 20; echo wrong >&2; echo >{gate}; read line <{gate}; echo after; exit 3"
    job = home.run("fgsub", "--parsable", "-o", "out", "-e", "err", "--wrap", script).out.strip()
    gate.read_text()
    with start(home, "fgctl", "attach", job) as process:
        assert process.stdout.readline() == "11\n"
        gate.write_text("go\n")
        lines = "".join(f"{number}\n" for number in range(12, 21))
        assert (process.stdout.read(), process.stderr.read()) == (f"{lines}after\n", "wrong\n")
    assert process.returncode == 3


def test_ctrl_c_leaves_a_batch_job_running(home):
    job = home.running(share=0)
    process = start(home, "fgctl", "attach", str(job))
    (home.path / f"fg-{job}.out").write_text("seen\n")
    assert process.stdout.readline() == "seen\n"
    process.send_signal(signal.SIGINT)
    said = f"\nfgctl: detached from job {job}, which continues\n"
    assert finish(process) == (130, "", said)
    assert home.job(job)["state"] == "RUNNING"


def test_another_terminal_takes_the_place_of_the_first_one(home):
    first = Typist(home, "fgrun", *SHELL)
    first.until("$ ")
    job = last(home)["id"]
    second = Typist(home, "fgctl", "attach", str(job), rows=41, columns=120)
    why = f"another terminal was attached to job {job}, which continues; fgctl attach {job} returns to it"
    first.until(f"fgrun: {why}")
    assert first.end() == 0
    second.until("$ ")
    second.type("stty size; echo in-$FG_JOB_ID\n")
    second.until("41 120")
    second.until(f"in-{job}")
    second.type("exit 7\n")
    assert second.end() == 7
    assert last(home)["exit_code"] == 7


def test_a_terminal_that_is_lost_can_be_replaced_and_left(home):
    first = Typist(home, "fgrun", "--no-hangup", *SHELL)
    first.until("$ ")
    gate = home.path / "lost"
    os.mkfifo(gate)
    first.type(f"read line <{gate}; echo un''seen; echo done >{gate}\n")
    first.until("done")
    first.hang_up()
    assert first.end() == 129
    gate.write_text("go\n")
    assert gate.read_text() == "done\n"
    job = last(home)["id"]
    second = Typist(home, "fgctl", "attach", str(job))
    second.until("unseen")
    second.type("\x1c")
    second.until(f"fgctl: detached from job {job}, which continues; fgctl attach {job} returns to it")
    assert second.end() == 0
    third = Typist(home, "sattach", f"{job}.0")
    third.until("$ ")
    third.type("echo back-$((1+1)); exit 5\n")
    third.until("back-2")
    assert third.end() == 5


def test_a_terminal_without_no_hangup_is_hung_up_with_the_terminal_that_was_attached(home):
    first = Typist(home, "fgrun", *SHELL)
    first.until("$ ")
    job = last(home)["id"]
    second = Typist(home, "fgctl", "attach", str(job))
    assert first.end() == 0
    second.type("echo on-$((1+1))\n")
    second.until("on-2")
    second.hang_up()
    assert second.end() == 129
    assert home.wait(job)[0]["signal"] == signal.SIGHUP


def test_a_job_that_cannot_be_attached_to_is_refused_with_what_to_do(home):
    waiting, ended = home.submit(hold=True), home.ended()
    assert call(home, "fgctl", "attach", str(waiting)) == (
        Exit.REFUSED,
        "",
        f"fgctl: error: job {waiting} is pending\nfgtail -F {waiting} waits for it and follows its output.\n",
    )
    assert call(home, "fgctl", "attach", str(ended)) == (
        Exit.REFUSED,
        "",
        f"fgctl: error: job {ended} has ended: it is COMPLETED\nfgtail {ended} prints its output.\n",
    )
    home.run("fgcancel", str(waiting))
    process = start(home, "fgrun", "sh", "-c", "echo ready; exec sleep 1000")
    assert process.stdout.readline() == "ready\n"
    job = last(home)["id"]
    assert call(home, "fgctl", "attach", str(job)) == (
        Exit.REFUSED,
        "",
        f"fgctl: error: job {job} has no terminal, and its output goes to the fgrun that started it\n"
        f"fgrun --jobid={job} --pty bash opens a shell in the job.\n",
    )
    home.run("fgcancel", str(job))
    finish(process)


# -- the moment at which another caller takes a terminal ---------------------------------------------------


@pytest.fixture
def terminal():
    """The two sides of a terminal: of the callers, and of the job."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)  # as a caller makes it, for all others too
    yield ours, theirs
    for side in (ours, theirs):
        os.close(side)


def readable(source, seconds=0.0):
    return bool(select.select([source], [], [], seconds)[0])


def test_a_caller_whose_terminal_was_taken_reads_no_output_that_is_for_the_next_one(terminal):
    ours, theirs = terminal
    watcher, caller = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with watcher, caller, Signals() as signals:
        link.send_terminal(watcher, ours)
        watcher.send(link.TAKEN)
        os.write(theirs, b"output")
        connected = Connected(
            caller, signals, ConnectionPlan(name="fgctl", terminal=True), print, lambda: None
        )
        with pytest.raises(Detached) as left:
            connected.attach()
    assert left.value.is_taken
    assert readable(ours, PATIENCE)
    assert os.read(ours, 100) == b"output"


def test_a_terminal_is_given_to_another_caller_when_the_former_one_has_left_it(terminal, monkeypatch):
    monkeypatch.setattr("fgsched.interactive.agent._HANDOVER", PATIENCE)
    name = link.new_name()
    held = HeldTerminal(name, terminal[0])
    ours, former = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(held.listener), ours, former:
        relay = CallerRelay(ours, 0, -1)
        with link.connect(link.attach_name(name)) as caller:
            change = Thread(target=relay._change_caller, args=[held])
            change.start()
            assert former.recv(64) == link.TAKEN
            assert not readable(caller)
            former.close()
            assert readable(caller, PATIENCE)
            master, _ = link.take_terminal(caller)
            os.close(master)
            change.join()
        relay._caller.close()


def test_output_that_another_caller_has_read_first_does_not_end_a_terminal(terminal):
    held = HeldTerminal(link.new_name(), terminal[0])
    with closing(held.listener):
        held.keep_output()  # there is none
        os.write(terminal[1], b"output")
        assert terminal[0] in held.reads(is_watched=False)
        held.keep_output()
        assert held._output == b"output"


def test_a_stopped_caller_does_not_keep_another_one_from_the_terminal(home):
    first = Typist(home, "fgrun", *SHELL)
    first.until("$ ")
    first.signal(signal.SIGSTOP)
    try:
        until_stopped(first.pid)
        second = Typist(home, "fgctl", "attach", str(last(home)["id"]))
        second.until("$ ")
        second.type("exit 8\n")
        assert second.end() == 8
    finally:
        first.signal(signal.SIGCONT)
    assert first.end() == 0
