"""Files of /proc of processes of other users, which root reads without waiting for these users."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import silent
from awaiting import PATIENCE, rest, state_of
from fgsched.gpus.processes import ProcessNames
from fgsched.launch import regions
from fgsched.launch.launcher import started_below
from fgsched.system import process, processfiles
from fgsched.system.preloading import why_not_preloaded
from fgsched.system.processfiles import ProcessFiles, read_bounded

ANN, BOB = 4001, 4002
needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0")

_LONG = "x" * 20_000


@contextmanager
def running(*command, uid, **variables):
    """Run a program of a user until the end of the block."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(command, **pipes, user=uid, env={"PAD": _LONG, **variables})
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def hanging(file, *, uid, **variables):
    """Run a program whose variables cannot be read while the file system is mounted: until the block ends."""
    program = (sys.executable, "-c", silent.MAPS, str(file.place), str(uid))
    with running(*program, uid=0, **variables) as child:
        assert child.stdout.readline() == b"opened\n"
        with running("cat", file.place, uid=0):
            assert file.is_read.wait(PATIENCE)
            child.stdin.write(b"\n")
            child.stdin.flush()
            while state_of(child.pid) != "D":
                rest()
            try:
                yield child
            finally:
                file.release()


@pytest.fixture
def unread(tmp_path, monkeypatch):
    """A file whose reads are never answered, and a reader without a memory of other tests."""
    files = ProcessFiles()
    monkeypatch.setattr(process, "_of_others", files)
    path = tmp_path / "unread"
    path.write_bytes(b"")
    with silent.unread(path) as file:
        yield file
    files.close()


@pytest.mark.root
@needs_users
@silent.needs_fuse
def test_root_finds_the_processes_of_others_beside_one_whose_variables_are_never_read(unread):
    with (
        hanging(unread, uid=ANN, FG_JOB_DIR="/run/job/1.1") as silent_one,
        running("sleep", "1000000", uid=BOB, FG_JOB_DIR="/run/job/2.1") as sleeper,
    ):
        began = time.monotonic()
        assert process.started_with(silent_one.pid, "FG_JOB_DIR") == ""
        assert [each.pid for each in process.processes_of_job("/run/job/2.1", BOB)] == [sleeper.pid]
        assert [each.pid for each in process.processes_of_job("/run/job/2.1")] == [sleeper.pid]
        assert [each.pid for each in started_below("/run/job/2")["/run/job/2.1"]] == [sleeper.pid]
        assert process.processes_of_job("/run/job/1.1", ANN) == []
        assert time.monotonic() - began < 30, "one helper hangs for a user, whoever asks"
        assert process._of_others.is_hanging(ANN)
        assert not process._of_others.is_hanging(BOB)


@pytest.mark.root
@needs_users
@silent.needs_fuse
def test_what_a_silent_process_on_a_gpu_is_called_and_lacks_is_told_without_waiting(unread):
    with hanging(unread, uid=ANN) as child:
        people = ProcessNames().of([child.pid])
        assert people[child.pid].uid == ANN
        assert people[child.pid].command.startswith("python")
        assert process.maps(child.pid, "libfgshim.so") is None
        assert why_not_preloaded(child.pid) == ""
        assert not process.is_own_supervisor(child.pid)


@pytest.mark.root
@pytest.mark.compiler
@needs_users
@silent.needs_fuse
def test_root_waits_for_no_process_that_waits_inside_an_execution(unread, tmp_path):
    program = shutil.copy(silent.executing_program(), tmp_path / "executing")
    tmp_path.chmod(0o711)
    with (
        running(program, unread.place, str(ANN), uid=0, FG_JOB_DIR="/run/job/1.1") as holder,
        running("sleep", "1000000", uid=BOB, FG_JOB_DIR="/run/job/2.1") as sleeper,
    ):
        pid = int(holder.stdout.readline())
        with running("cat", unread.place, uid=0):
            try:
                assert unread.is_read.wait(PATIENCE)
                holder.stdin.write(b"\n")
                holder.stdin.flush()
                silent.until_it_waits(pid)
                began = time.monotonic()
                assert process.parents()[pid] == holder.pid
                assert process.ancestry(pid)[holder.pid] == os.getpid()
                identity = process.identify(pid)
                assert process.is_alive(identity)
                assert [each.pid for each in process.descendants(holder.pid)] == [pid]
                assert [each.pid for each in process.processes_of_job("/run/job/2.1")] == [sleeper.pid]
                assert not process.is_own_supervisor(pid)
                assert regions._described(pid) == ""
                assert process.use_of([pid, sleeper.pid]).rss > 0
                assert ProcessNames().of([pid])[pid].uid == ANN
                assert process.kill(identity, signal.SIGKILL)
                assert time.monotonic() - began < 60
            finally:
                os.kill(pid, signal.SIGKILL)
                unread.release()


@pytest.mark.root
@needs_users
@silent.needs_fuse
def test_a_user_is_read_again_when_the_hanging_helper_has_exited_and_a_minute_is_over(tmp_path, unread):
    now = [time.monotonic()]
    files = ProcessFiles(clock=lambda: now[0])
    with hanging(unread, uid=ANN) as child, running("sleep", "1000000", uid=ANN, A="b") as sleeper:
        owners = {child.pid: ANN, sleeper.pid: ANN}
        assert files.read(owners, "environ", bytes) == {}
        now[0] += 3600
        unread.release()
        files._hanging[ANN][0].wait(60)
        assert b"A=b" in files.read({sleeper.pid: ANN}, "environ", bytes)[sleeper.pid].split(b"\0")
    files.close()


@pytest.mark.root
@needs_users
def test_of_a_process_only_a_bounded_part_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_of_others", files := ProcessFiles())
    with running("sleep", "1000000", uid=ANN) as child:
        assert len(files.read({child.pid: ANN}, "environ", bytes, size=1000)[child.pid]) == 1000
        assert files.read({child.pid: ANN}, "environ", bytes, 4, 3) == {child.pid: b"xxx"}
    assert files.read({child.pid: ANN}, "environ", bytes) == {}, "it has ended"
    files.close()


def test_more_files_than_fit_into_a_pipe_are_read_and_those_that_cannot_be_are_left_out():
    files = ProcessFiles()
    owners = {os.getpid(): 0} | dict.fromkeys(range(10_000_000, 10_002_000), 0)
    assert files.read(owners, "comm", bytes) == {os.getpid(): read_bounded("/proc/self/comm")}
    files.close()


def test_a_helper_that_ends_at_a_question_is_replaced_and_its_user_is_left_out_for_a_minute():
    now = [0.0]
    broken = [sys.executable, "-I", "-S", "-c", "import os; os.write(1, b'\\n'); os.read(0, 100)"]
    files = ProcessFiles(broken, lambda: now[0])
    assert files.read({1: ANN, 2: BOB}, "environ", bytes) == {}
    assert [files.is_hanging(uid) for uid in (ANN, BOB)] == [True, True]
    now[0] = processfiles._PAUSE
    for helper, _ in files._hanging.values():
        helper.wait()
    assert not files.is_hanging(ANN)
    files.close()


def test_a_helper_answers_where_a_thousand_descriptors_are_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files, opened = ProcessFiles(), [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert files.read({os.getpid(): 0}, "comm", bytes) == {os.getpid(): read_bounded("/proc/self/comm")}
    finally:
        for descriptor in opened:
            os.close(descriptor)
        files.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_after_an_error_among_the_answers_the_next_question_has_its_own():
    def refuse(variables):
        raise MemoryError

    files, others = ProcessFiles(), dict.fromkeys((os.getpid(), os.getppid()), 0)
    with pytest.raises(MemoryError):
        files.read(others, "environ", refuse)
    (dropped,) = files._dropped
    dropped.wait()
    assert files.read({os.getpid(): 0}, "comm", bytes) == {os.getpid(): read_bounded("/proc/self/comm")}
    files.close()


def test_where_no_helper_can_be_started_nothing_is_read_and_no_user_is_blamed():
    files = ProcessFiles(["/nowhere/python"])
    assert files.read({1: ANN}, "environ", bytes) == {}
    assert not files.is_hanging(ANN)


def test_a_long_answer_is_taken_in_one_piece_and_its_rest_is_kept():
    unread = bytearray(b"5\nab")
    assert processfiles._taken(unread) is None
    unread += b"cde-1\n3\nx"
    assert processfiles._taken(unread) == b"abcde"
    assert processfiles._taken(unread) is processfiles._NONE
    assert processfiles._taken(unread) is None
    assert unread == b"3\nx"
