"""The log of a user's controller when it is moved, removed or large."""

import errno
import fcntl
import logging
import os
import pty
import re
import select
import signal
import socket
import termios
import time
from contextlib import contextmanager

import pytest

from fgsched.controller import decisionlog
from fgsched.controller.decisionlog import (
    INFO,
    MOST,
    WARNING,
    DecisionLine,
    LogFile,
    LogHandler,
    handler,
    writer,
)


@pytest.fixture
def log(tmp_path):
    """A logger, and the descriptor that it writes to."""
    path = tmp_path / "fgsched.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    one = logging.Logger("log")
    one.addHandler(LogFile(path, descriptor))
    yield one
    os.close(descriptor)


def test_a_log_that_was_renamed_or_removed_is_opened_again(log, tmp_path):
    path = tmp_path / "fgsched.log"
    log.info("one")
    path.rename(tmp_path / "fgsched.log.old")
    log.info("two")
    path.unlink()
    log.info("three")
    assert (tmp_path / "fgsched.log.old").read_text() == "one\n"
    assert path.read_text() == "three\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_large_log_is_moved_away_and_one_older_is_kept(log, tmp_path, monkeypatch):
    monkeypatch.setattr(decisionlog, "MOST", 1000)
    for number in range(100):
        log.info("line %d %s", number, "x" * 90)
    names = sorted(path.name for path in tmp_path.iterdir())
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert (names, max(sizes) < 1200, MOST) == (["fgsched.log", "fgsched.log.1"], True, 8 << 20)
    assert (tmp_path / "fgsched.log").read_text().splitlines()[-1].startswith("line 99")


@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), lambda path: path.mkdir()]
)
def test_what_is_no_file_is_not_written_to_and_stops_nothing(log, tmp_path, put):
    path = tmp_path / "fgsched.log"
    path.rename(tmp_path / "kept")
    put(path)
    log.info("here")
    assert (tmp_path / "kept").read_text() == "here\n"


def test_a_full_disk_and_odd_text_stop_nothing(tmp_path):
    full = os.open("/dev/full", os.O_WRONLY)
    one = logging.Logger("log")
    one.addHandler(LogFile(tmp_path / "none" / "fgsched.log", full))
    one.info("lost")
    with (tmp_path / "space").open("w") as space:
        os.dup2(space.fileno(), full)
    one.info("text \udce9")
    os.close(full)
    assert (tmp_path / "space").read_text() == "text \\udce9\n"


def test_a_log_that_cannot_be_moved_away_goes_on(log, tmp_path, monkeypatch):
    monkeypatch.setattr(decisionlog, "MOST", 10)
    (tmp_path / "fgsched.log.1").mkdir()
    log.info("the first line")
    log.info("the second line")
    assert (tmp_path / "fgsched.log").read_text() == "the first line\nthe second line\n"


def test_a_line_that_was_torn_by_a_full_disk_is_not_continued(log, tmp_path, monkeypatch):
    write, room = os.write, [5]

    def filling(descriptor, data):
        if not room:
            raise OSError(errno.ENOSPC, "no space")
        return write(descriptor, data[: room.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", filling)
        log.info("torn line")
        log.info("lost")
    log.info("whole")
    log.info("next")
    assert (tmp_path / "fgsched.log").read_text() == "torn \nwhole\nnext\n"


def a_pipe():
    return os.pipe()


def a_stream():
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def a_terminal():
    return pty.openpty()


@contextmanager
def at_most(seconds):
    """Fail if the body blocks."""

    def late(number, frame):
        raise RuntimeError("it blocked")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def taken(descriptor):
    """What can be read from a descriptor at once."""
    found = b""
    while select.select([descriptor], [], [], 0.1)[0]:
        found += os.read(descriptor, 1 << 16)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("make", [a_pipe, a_stream, a_terminal])
@pytest.mark.parametrize("width", [50, 87, 5000])
def test_a_reader_that_does_not_read_delays_nothing_and_learns_its_loss(tmp_path, make, width):
    reader, descriptor = make()
    one = handler(tmp_path / "other", {}, descriptor)
    write = writer([one])
    with at_most(10):
        for number in range(1000):
            write([DecisionLine(0.0, INFO, f"job={number} {'x' * width} end") for _ in range(2)])
        lines = taken(reader).splitlines()
        write([DecisionLine(0.0, INFO, "job=0 last end")])
        lines += taken(reader).splitlines()
    whole = [line for line in lines if line.endswith(" end")]
    told = [
        int(line.split()[2]) for line in lines if re.search("lines? of the log (was|were) dropped$", line)
    ]
    assert (len(whole) + sum(told), told[-1] > 100) == (2001, True)
    assert [line.split(" ", 1)[1] for line in lines[-2:]] == [
        f"warning {told[-1]} lines of the log were dropped",
        "info job=0 last end",
    ]
    assert os.get_blocking(descriptor)
    os.close(reader)
    write([DecisionLine(0.0, INFO, "nobody reads")])
    os.close(descriptor)


def test_a_pipe_with_little_room_gets_whole_lines(tmp_path):
    reader, descriptor = os.pipe()
    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 2 * select.PIPE_BUF)
    os.write(descriptor, b"x" * select.PIPE_BUF)
    write = writer([handler(tmp_path / "other", {}, descriptor)])
    write([DecisionLine(0.0, INFO, f"job={number} {'x' * 1500} end") for number in range(6)])
    lines = taken(reader)[select.PIPE_BUF :].splitlines()
    assert [line.endswith(" end") for line in lines] == [True, True]
    os.close(reader)
    os.close(descriptor)


def test_a_terminal_that_is_stopped_delays_nothing(tmp_path):
    reader, descriptor = a_terminal()
    one = handler(tmp_path / "other", {}, descriptor)
    termios.tcflow(descriptor, termios.TCOOFF)
    with at_most(10):
        writer([one])([DecisionLine(0.0, INFO, "job=1 event=start")])
        termios.tcflow(descriptor, termios.TCOON)
        writer([one])([DecisionLine(0.0, INFO, "job=1 event=end")])
    assert [line.split(" ", 1)[1] for line in taken(reader).splitlines()] == [
        "warning 1 line of the log was dropped",
        "info job=1 event=end",
    ]
    os.close(reader)
    os.close(descriptor)


def test_standard_error_that_is_another_file_stays_as_it_is(tmp_path):
    path = tmp_path / "fgsched.log"
    assert type(handler(path, {})) is LogHandler
    path.touch()
    assert type(handler(path, {})) is LogHandler
    with path.open("a") as file:
        assert type(handler(path, {}, file.fileno())) is LogFile


def written(tmp_path, environ_of=lambda file: {}):
    """What two decisions, a message and a failure leave in a file."""
    with (tmp_path / "stderr").open("a") as file:
        one = handler(tmp_path / "other", environ_of(os.fstat(file.fileno())), file.fileno())
        writer([one])(
            [DecisionLine(1.5, INFO, "job=1 event=start"), DecisionLine(2.0, WARNING, "job=1 event=warn")]
        )
        logger = logging.Logger("log")
        logger.addHandler(one)
        logger.error("forged\n%s", "job=1 event=end")
        try:
            raise ValueError("of a job:\njob=1 event=end")
        except ValueError:
            logger.exception("failed")
    return (tmp_path / "stderr").read_text().splitlines()


def test_a_line_has_time_and_level_and_no_message_or_traceback_looks_like_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    lines = written(tmp_path)
    monkeypatch.undo()
    time.tzset()
    assert lines[:2] == [
        "1970-01-01T05:30:01.500+05:30 info job=1 event=start",
        "1970-01-01T05:30:02.000+05:30 warning job=1 event=warn",
    ]
    assert [line.split(" ", 1)[1] for line in lines[2:5]] == [
        "error forged",
        "error   | job=1 event=end",
        "error failed",
    ]
    assert not [line for line in lines[2:] if line.split(" ", 2)[2].startswith("job=")]


def test_the_journal_gets_each_line_with_its_level_and_no_time(tmp_path):
    lines = written(tmp_path, lambda found: {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
    assert lines[:4] == [
        "<6>job=1 event=start",
        "<4>job=1 event=warn",
        "<3>forged",
        "<3>  | job=1 event=end",
    ]
    assert all(line.startswith("<3>") for line in lines[2:])


def test_a_controller_goes_on_in_a_new_file_after_its_log_was_renamed(home):
    home.ended()
    log = home.paths.log
    log.rename(f"{log}.old")
    os.kill(int(home.paths.lock.read_text()), signal.SIGHUP)
    home.ended()
    assert "event=reconfigure by=SIGHUP changed=nothing" in log.read_text()
