"""How a controller comes to be: from inside a job, from an odd shell, from a command that is killed."""

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from awaiting import until
from crashing import await_end, controller_of, kill, kill_controller
from fakehost import why_not
from fgsched.client import TimedOut, connect
from fgsched.system.ownhost import clear_start, show_start, starting
from fgsched.system.paths import taken
from fgsched.system.process import parents
from live_host import PATIENCE, living, without_waiting

pytestmark = pytest.mark.compiler
_COMMAND = f"{sys.executable} -m fgsched.cli"


def watched(pid):
    return os.pidfd_open(pid)


def ancestors(pid):
    above = parents()
    while (pid := above.get(pid, 0)) > 1:
        yield pid


class Fifo:
    """By which a job tells and is told."""

    def __init__(self, home, name):
        os.mkfifo(home.path / name)
        self.fd = os.open(home.path / name, os.O_RDWR)

    def line(self):
        said = b""
        while not said.endswith(b"\n"):
            assert select.select([self.fd], [], [], PATIENCE)[0], f"nothing after {said!r}"
            said += os.read(self.fd, 1)
        return said.decode().strip()

    def say(self, text="go"):
        os.write(self.fd, f"{text}\n".encode())


@pytest.fixture
def fifo(home):
    made = []

    def make(name):
        made.append(Fifo(home, name))
        return made[-1]

    yield make
    for one in made:
        os.close(one.fd)


# -- from inside a job ----------------------------------------------------------------------------


def status_and_errors(home, said):
    """The exit status of the command in the job, and its standard error."""
    return said.line(), without_waiting((home.path / "err").read_text())


def calling(home, command, then=""):
    """The script of a job that waits for a word, runs a command with its own variables, and tells of it.

    The last word comes by another FIFO: of two jobs, the faster one could read that of the other one.
    """
    variables = " ".join(f"{name}={value}" for name, value in home.environ.items())
    return (
        f"echo $PPID >said; read -r _ <go; env {variables} {_COMMAND}.{command} >out 2>err; "
        f"echo $? >said; read -r _ <leave; {then}"
    )


def test_a_controller_that_a_job_needs_is_none_of_the_job(home, fifo):
    said, go, leave, second = map(fifo, ("said", "go", "leave", "second"))
    first = home.submit(
        "CUDA_VISIBLE_DEVICES=0; TMPDIR=/nowhere; export CUDA_VISIBLE_DEVICES TMPDIR\n"
        + calling(home, "fgsub --parsable --gpus=0.5 --output=/dev/null --wrap 'read -r _ <second; exit 5'")
    )
    shepherd = int(said.line())
    before = controller_of(home)
    kill(before)
    go.say()
    assert status_and_errors(home, said) == ("0", "")
    job, now = int((home.path / "out").read_text()), controller_of(home)
    assert now != before
    assert shepherd not in ancestors(now)
    variables = Path(f"/proc/{now}/environ").read_bytes().split(b"\0")
    assert not any(
        one.startswith((b"FG_JOB", b"SLURM_", b"CUDA_", b"TMPDIR", b"LD_PRELOAD")) for one in variables
    )
    leave.say()
    assert home.wait(first)[0]["state"] == "COMPLETED"
    assert len(home.gpus()) == 2
    second.say()
    ended = home.wait(job)[0]
    assert (ended["state"], ended["exit_code"], ended["signal"]) == ("FAILED", 5, 0)
    assert controller_of(home) == now


def test_a_controller_that_a_job_needs_is_started_though_the_shepherd_of_the_job_was_killed(home, fifo):
    said, go, leave = map(fifo, ("said", "go", "leave"))
    job = home.submit(calling(home, "fgq -h"))
    kill(int(said.line()))
    kill(controller_of(home))
    go.say()
    assert status_and_errors(home, said) == ("0", "")
    leave.say()
    ended = home.wait(job)[0]
    assert (ended["state"], ended["exit_code"]) == ("COMPLETED", 0)


def test_fgsched_start_inside_a_job_starts_it_as_it_was_started_before(tmp_path):
    with living(tmp_path / "home") as home:
        assert home.run("fgsched", "start", "--gpus=sim:3x8G").status == 0
        said, go, leave = (Fifo(home, name) for name in ("said", "go", "leave"))
        home.submit(calling(home, "fgsched start"))
        said.line()
        kill(controller_of(home))
        go.say()
        assert status_and_errors(home, said) == ("0", "")
        assert len(home.gpus()) == 3
        leave.say()


def test_two_jobs_that_need_a_controller_at_once_get_one(home, fifo):
    said, go, leave = map(fifo, ("said", "go", "leave"))
    home.submit(calling(home, "fgq -h"), count=2)
    said.line(), said.line()
    kill(controller_of(home))
    go.say(), go.say()
    assert [said.line(), said.line()] == ["0", "0"]
    leave.say(), leave.say()
    assert home.client.ask("ping")["pid"] == controller_of(home)


@pytest.mark.parametrize("command", ["fgq -h", "fgsched start", "fgsched start --gpus=2", "fgsched run"])
def test_where_no_spawner_can_start_it_a_job_is_told_so(home, fifo, tmp_path, command):
    said, go, leave = map(fifo, ("said", "go", "leave"))
    other = tmp_path / "other"
    text = calling(home, command).replace(f"FG_HOME={home.path}", f"FG_HOME={other}")
    job = home.submit(text)
    said.line()
    go.say()
    assert said.line() == "5"
    assert (
        "a controller cannot be started from inside a job: it would end with the job"
        in (home.path / "err").read_text()
    )
    leave.say()
    home.wait(job)


# -- from an odd shell ----------------------------------------------------------------------------


def start(home, *, limits=(), prepare=lambda: None, **more):
    """`fgsched start` from a process that has such limits."""

    def before():
        for limit, soft, hard in limits:
            resource.setrlimit(limit, (soft, hard))
        prepare()

    return home.run("fgsched", "start", preexec_fn=before, **more)


@pytest.mark.parametrize(
    ("limit", "hard", "said"),
    [
        (resource.RLIMIT_CPU, 20, "CPU time (ulimit -t) of this shell: 20, and it needs 3600 s"),
        (resource.RLIMIT_NOFILE, 20, "open files (ulimit -n) of this shell: 20, and it needs 256"),
        (resource.RLIMIT_AS, 500 << 20, "virtual memory (ulimit -v) of this shell: 524288000"),
        (resource.RLIMIT_FSIZE, 1 << 20, "file size (ulimit -f) of this shell: 1048576"),
        (resource.RLIMIT_NPROC, 20, "processes of the user (ulimit -u) of this shell: 20, and it needs 64"),
    ],
)
def test_hard_limits_of_the_shell_that_would_harm_a_controller_are_refused(home, limit, hard, said):
    done = start(home, limits=[(limit, hard, hard)])
    assert (done.status, done.out) == (1, "")
    assert f"the controller cannot run with the hard limit of {said}" in done.err
    assert not home.paths.socket.exists()


def test_soft_limits_of_the_shell_are_raised_to_the_hard_ones(home):
    names = (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)
    small = [(name, 1 << 28, resource.getrlimit(name)[1]) for name in names]
    assert start(home, limits=[*small, (resource.RLIMIT_NOFILE, 64, 1024)]).status == 0
    found = [resource.prlimit(controller_of(home), name)[0] for name in (*names, resource.RLIMIT_NOFILE)]
    assert found == [*(hard for _, _, hard in small), 1024]


def test_signals_that_a_shell_ignores_or_blocks_reach_the_controller(home):
    def prepare():
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

    assert start(home, prepare=prepare).status == 0
    gone = watched(controller_of(home))
    os.kill(controller_of(home), signal.SIGTERM)
    await_end(gone)


# -- a command that is killed ---------------------------------------------------------------------


@pytest.mark.parametrize("delay", range(8))
def test_a_killed_command_leaves_a_controller_or_none(home, delay):
    """Interrupted with its group, after so many tenths of what it takes to start a controller."""
    words = [sys.executable, "-m", "fgsched.cli.fgq"]
    with subprocess.Popen(
        words,
        env=home.environ,
        cwd=home.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as command:
        select.select([], [], [], 0.08 * delay)
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGINT)
    # Executed, not forked: a forked one overtakes a controller that is importing, which then outlives it.
    assert subprocess.run(words, env=home.environ, cwd=home.path, capture_output=True).returncode == 0
    log = home.paths.log.read_text()
    assert "Traceback" not in log
    assert log.count("event=controller-start ") == 1


def test_whoever_waits_for_a_controller_may_be_gone_when_it_is_ready(home):
    ours, theirs = os.pipe()
    with open(home.path / "log", "wb") as log:
        home.path.chmod(0o700)
        words = [sys.executable, "-I", "-m", "fgsched.controller", str(theirs)]
        os.close(ours)  # as if it had been killed
        one = subprocess.Popen(words, env=home.environ, pass_fds=[theirs], stdout=log, stderr=log)
    os.close(theirs)
    until(home.path, home.paths.run.exists)  # a command would start another one
    until(home.paths.run, home.paths.socket.exists)
    try:
        assert home.run("fgq", "-h").status == 0
        assert controller_of(home) == one.pid
    finally:
        home.leave()
        assert one.wait(PATIENCE) == 0
        home._client = None


# -- a controller whose start takes long ----------------------------------------------------------


@pytest.fixture
def slow(home):
    """A controller, played by the test, that has its lock and is starting: what it answers last of all."""
    home.paths.prepare(os.geteuid())
    with ExitStack() as held:
        held.enter_context(taken(home.paths))
        show_start(home.paths.socket)
        held.callback(clear_start, home.paths.socket)
        yield held
    if home.paths.socket.is_socket() and home.paths.lock.read_text() == f"{os.getpid()}\n":
        home.paths.socket.unlink()  # the home would stop the process that the lock names


@contextmanager
def begun(home, *words):
    words = [sys.executable, "-m", f"fgsched.cli.{words[0]}", *words[1:]]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=home.environ, cwd=home.path, **piped) as command:
        try:
            yield command
        finally:
            command.kill()


def test_a_command_waits_for_a_controller_that_is_starting_and_says_so(home, slow):
    with begun(home, "fgq", "-h") as command:
        said = command.stderr.readline()
        assert said == f"fgq: waiting: the controller (pid {os.getpid()}) is starting\n"
        slow.close()  # it ends without having answered, and the command starts another one
        assert (command.communicate(timeout=PATIENCE), command.returncode) == (("", ""), 0)


def test_a_controller_that_listens_and_reads_its_queue_is_awaited_as_well(home, slow):
    with socket.socket(socket.AF_UNIX) as door, begun(home, "fgq", "-h") as command:
        door.bind(str(home.paths.socket))
        door.listen(1)
        assert "is starting" in command.stderr.readline()
        clear_start(home.paths.socket)
        with door.accept()[0] as line, line.makefile("rb") as requests:
            while b'"op":"queue"' not in (asked := requests.readline()):
                assert asked, "it asks for something else"
            line.sendall(b'{"v":2,"ok":{"jobs":[]}}\n')
            assert (command.communicate(timeout=PATIENCE), command.returncode) == (("", ""), 0)


def test_the_time_limit_of_a_command_includes_the_start_of_the_controller(home, slow):
    done = home.run("fgwait", "--timeout=0.1", "1")
    assert (done.status, done.err) == (124, "fgwait: error: some jobs have not ended after 0.1 seconds\n")


def test_the_status_names_a_controller_that_is_starting(home, slow):
    with pytest.raises(TimedOut) as told:
        connect(home.paths, may_start=False, until=0.0)
    assert told.value.cause == f"the controller (pid {os.getpid()}) is still starting"


def test_a_controller_that_was_killed_while_it_started_is_not_awaited(home):
    home.running()
    kill_controller(home)
    assert home.run("fgq", "-h", env={"FG_CRASH_AT": "controller_in_recovery"}).status == 5
    mark = home.paths.socket.with_name("starting")
    assert (mark.is_symlink(), starting(home.paths.socket)) == (True, 0)
    assert home.run("fgq", "-h").status == 0
    assert not mark.is_symlink()


# -- a place that cannot be written ---------------------------------------------------------------


def test_files_that_cannot_be_written_are_named(home):
    (home.path / "starting.lock").mkdir()
    done = home.run("fgq", "-h")
    assert done.status == 6
    assert done.err.startswith(f"fgq: error: cannot write {home.path}/starting.lock: ")
    (home.path / "starting.lock").rmdir()
    home.paths.log.mkdir()
    done = home.run("fgq", "-h")
    assert (done.status, done.err) == (
        6,
        f"fgq: error: cannot write {home.paths.log}: {os.strerror(errno.EISDIR)}\n",
    )
    home.paths.log.rmdir()
    os.mkfifo(home.paths.log)
    done = home.run("fgq", "-h")
    assert (done.status, done.err) == (
        6,
        f"fgq: error: cannot write {home.paths.log}: {os.strerror(errno.ENXIO)}\n",
    )
    home.paths.log.unlink()


def test_a_command_without_standard_streams_starts_a_controller(home):
    command = f"exec {_COMMAND}.fgq -h <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], env=home.environ, cwd=home.path, timeout=PATIENCE)
    assert done.returncode == 6  # it cannot write its output
    assert home.client.ask("ping")["pid"] == controller_of(home)


@pytest.mark.mounts
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("inodes", range(3, 12))
def test_a_file_system_without_room_is_told_wherever_it_is_noticed(home, inodes):
    full = f"mount -t tmpfs -o nr_inodes={inodes},mode=700 none {home.path} && cd / && "
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{full}{_COMMAND}.fgq"]
    done = subprocess.run(words, env=home.environ, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (6, "")
    assert "Traceback" not in done.stderr


@pytest.mark.mounts
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize(
    ("options", "said"),
    [("size=64k", "0M are left"), ("nr_inodes=1", "no new file")],
)
def test_the_doctor_finds_a_full_file_system(home, options, said):
    full = f"mount -t tmpfs -o {options},mode=700 none {home.path} && cd / && "
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{full}{_COMMAND}.fgsched doctor"]
    done = subprocess.run(words, env=home.environ, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, f"FAIL disk        {said}" in done.stdout) == (1, True), done.stdout


@pytest.mark.mounts
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("made", [False, True])
def test_a_read_only_file_system_is_told_by_every_command(home, made):
    if made:
        assert home.run("fgq", "-h").status == 0
        home.leave()
        home._client = None
    read_only = f"mount --bind {home.path} {home.path} && mount -o remount,bind,ro {home.path} && cd / && "
    for command in ("fgsub --wrap true", "fgq", "fgsched start"):
        words = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{read_only}{_COMMAND}.{command}"]
        done = subprocess.run(words, env=home.environ, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stdout) == (6, "")
        assert "Read-only file system" in done.stderr
        assert str(home.path) in done.stderr
