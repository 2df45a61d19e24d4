"""A submission that had no answer is repeated without a second job; equal ones that had an answer are two."""

import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asking import AskingClient
from awaiting import rest, state_of, until
from crashing import controller_of
from fgsched.client import TimedOut
from fgsched.system.unanswered import VALID, Unanswered, new_key
from live_host import PATIENCE

pytestmark = pytest.mark.compiler
LINE = "--output=/dev/null --wrap true\n"


def keys(home):
    there = home.paths.run / "unanswered"
    return sorted(os.listdir(there)) if there.exists() else []


def history(home):
    return [job["id"] for job in home.history()]


@pytest.fixture
def batch(home):
    """A list of submissions that a command waits for, once it knows that there is a controller."""
    path = home.path / "list"
    os.mkfifo(path)
    return path


def begin(home, batch):
    """fgsub --batch; the controller is stopped before the command knows what to submit."""
    words = [sys.executable, "-m", "fgsched.cli.fgsub", "--parsable", f"--batch={batch}"]
    command = subprocess.Popen(
        words, env=home.environ, cwd=home.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with open(batch, "w") as file:  # until it reads
        os.kill(controller_of(home), signal.SIGSTOP)
        file.write(LINE)
    until(home.paths.run, lambda: (home.paths.run / "unanswered").exists())
    until(home.paths.run / "unanswered", lambda: keys(home))
    while state_of(command.pid) != "S":  # it waits for the answer: nothing else lets it sleep from here on
        assert command.poll() is None
        rest()
    return command


def repeat(home, batch):
    words = [sys.executable, "-m", "fgsched.cli.fgsub", "--parsable", f"--batch={batch}"]
    with subprocess.Popen(
        words, env=home.environ, cwd=home.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        batch.write_text(LINE)
        out, err = command.communicate(timeout=PATIENCE)
    return command.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_was_interrupted_and_is_repeated_queues_one_job(home, batch, number):
    home.run("fgq", "-h")
    command = begin(home, batch)
    command.send_signal(number)
    _, said = command.communicate(timeout=PATIENCE)
    if number == signal.SIGINT:
        assert (command.returncode, said) == (
            130,
            "fgsub: interrupted. It may have been queued all the same. Repeat the same command within 10 "
            "minutes: it is queued only once.\n",
        )
    os.kill(controller_of(home), signal.SIGCONT)
    assert repeat(home, batch) == (0, "1\n", "")
    assert history(home) == [1]
    assert keys(home) == []


def test_a_moment_that_is_counted_from_now_is_the_same_when_the_command_is_repeated(home, batch, monkeypatch):
    monkeypatch.setitem(globals(), "LINE", f"--begin=now+1hour {LINE}")
    home.run("fgq", "-h")
    command = begin(home, batch)
    command.kill()
    command.communicate()
    os.kill(controller_of(home), signal.SIGCONT)
    now = int(time.time())
    while int(time.time()) == now:  # the moment is told in seconds
        rest()
    assert repeat(home, batch) == (0, "1\n", "")
    assert (history(home), keys(home)) == ([1], [])


def test_equal_submissions_that_were_answered_are_two_jobs(home):
    command = ("--parsable", "--output=/dev/null", "--wrap", "true")
    assert [home.run("fgsub", *command).out for _ in range(2)] == ["1\n", "2\n"]
    assert history(home) == [1, 2]
    assert keys(home) == []


def test_equal_submissions_at_the_same_time_are_as_many_jobs(home):
    home.run("fgq", "-h")
    words = [sys.executable, "-m", "fgsched.cli.fgsub", "--parsable", "--output=/dev/null", "--wrap", "true"]
    running = [
        subprocess.Popen(words, env=home.environ, cwd=home.path, stdout=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    said = sorted(int(one.communicate(timeout=PATIENCE)[0]) for one in running)
    assert said == history(home) == [1, 2, 3, 4, 5]


def test_a_submission_that_was_refused_leaves_no_key(home):
    done = home.run("fgsub", "--output=/dev/null", "--gpus=64", "--wrap", "true")
    assert done.status == 1
    assert keys(home) == []


def test_a_submission_that_had_no_answer_is_said_to_be_maybe_queued(home):
    assert home.client.ask("ping")
    request = {
        "scripts": ["#!/bin/sh\n"],
        "environments": [{}],
        "requests": [{"name": "job", "chdir": str(home.path)}],
        "jobs": [[0, 0, 0, True]],
    }
    key = Unanswered(home.paths.run / "unanswered", b"request", time.time())
    os.kill(controller_of(home), signal.SIGSTOP)
    try:
        with AskingClient(home.paths) as client, pytest.raises(TimedOut) as told:
            client.ask("submit", patience=0.2, key=key.value, **request)
        assert "Nothing was changed" not in told.value.remedy
    finally:
        os.kill(controller_of(home), signal.SIGCONT)
    assert home.client.ask("submit", key=key.value, **request) == {"first": 1, "count": 1}
    assert history(home) == [1]


@pytest.mark.parametrize(
    ("operation", "more", "advice"),
    [
        ("jobs", {"id": 1}, "Nothing was changed; it is safe to repeat the command."),
        (
            "cancel",
            {"ids": []},
            "It may have been carried out all the same; it is safe to repeat the command.",
        ),
        (
            "signal",
            {"ids": [], "signal": 10},
            "It may have been carried out all the same: look with fgq before you repeat it.",
        ),
    ],
)
def test_what_is_said_of_a_request_without_an_answer_is_true_of_it(home, operation, more, advice):
    assert home.client.ask("ping")
    os.kill(controller_of(home), signal.SIGSTOP)
    try:
        with AskingClient(home.paths) as client, pytest.raises(TimedOut) as told:
            client.ask(operation, patience=0.2, **more)
    finally:
        os.kill(controller_of(home), signal.SIGCONT)
    assert told.value.remedy == advice


# -- the keys -------------------------------------------------------------------------------------


@given(st.integers(0, 2**43), st.integers(1, 2**40))
def test_a_later_key_sorts_behind_an_earlier_one_and_behind_keys_of_hexadecimal_digits(milliseconds, more):
    # a quarter of a millisecond more, since a time in seconds is rounded
    earlier, later = (new_key((at + 0.25) / 1000) for at in (milliseconds, milliseconds + more))
    assert "f" * 32 < earlier < later
    assert len(earlier) == len(later) == 32
    assert "-" not in earlier, "it is a part of a file name"


def a_key(path, request):
    return Unanswered(path / "keys", request, time.time())


def of_a_dead_command(directory, request):
    """Its key."""
    code = (
        "import sys, time; from pathlib import Path; from fgsched.system.unanswered import Unanswered; "
        "print(Unanswered(Path(sys.argv[1]), sys.argv[2].encode(), time.time()).value)"
    )
    words = [sys.executable, "-c", code, str(directory), request.decode()]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_the_key_of_a_command_that_is_gone_is_taken_over_once(tmp_path):
    key = of_a_dead_command(tmp_path / "keys", b"one")
    one, other = a_key(tmp_path, b"one"), a_key(tmp_path, b"one")
    assert one.value == key != other.value
    assert (one.is_kept, other.is_kept) == (True, True)


def test_the_key_of_another_request_is_left_alone(tmp_path):
    key = of_a_dead_command(tmp_path / "keys", b"one")
    assert a_key(tmp_path, b"another").value != key
    assert a_key(tmp_path, b"one").value == key


def test_a_key_that_is_old_is_removed(tmp_path):
    key = of_a_dead_command(tmp_path / "keys", b"one")
    (file,) = (tmp_path / "keys").iterdir()
    os.utime(file, (0, time.time() - VALID - 1))
    assert a_key(tmp_path, b"one").value != key
    assert not file.exists()


def test_where_no_key_can_be_kept_there_is_one_all_the_same(tmp_path):
    tmp_path.chmod(0o777)
    key = a_key(tmp_path, b"one")
    assert (key.is_kept, len(key.value)) == (False, 32)
    key.answered()
