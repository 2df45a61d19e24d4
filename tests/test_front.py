"""The native fgsub: what it submits is what the Python command submits, and it leaves the rest to that."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from awaiting import rest
from crashing import controller_of, crashing
from fgsched import protocol
from fgsched.domain.errors import Exit
from fgsched.lifecycle.jobscript import command_line
from fgsched.system.unanswered import new_key
from live_host import PATIENCE, Home, living

pytestmark = pytest.mark.compiler
NATIVE = str(Path(sys.executable).with_name("fgsub"))
PYTHON = (str(Path(sys.executable).with_name("fgsched-python")), "fgsub", "")
SCRIPT = "#!/bin/sh\n#FG --gpus=0.5 --time=10\n#FG --comment=from-the-header\nexit 0\n"
OF_SLURM = "#!/bin/bash\n#SBATCH -c 2\n#SBATCH --mail-type=FAIL\n#SBATCH --nodelist=n1\nexit 0\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with living(tmp_path_factory.mktemp("front") / "home", config="[host]\ncpus = 4\n") as home:
        assert home.run("fgsub", "--hold", "--wrap", "true").status == 0  # for a dependency on its name
        labelled = ("--hold", "-A", "lab", "--wrap", "true")  # the warning about the account comes once
        assert home.run("fgsub", *labelled).status == 0
        (home.path / "train.sh").write_text(SCRIPT)
        (home.path / "slurm.sh").write_text(OF_SLURM)
        (home.path / "logs").mkdir()
        yield home


def call(home: Home, *command: str, env: dict[str, str] | None = None, **more) -> subprocess.CompletedProcess:
    """Run a program with the environment of the home; LC_ALL is the same for both."""
    given = {"capture_output": True, "cwd": home.path, "timeout": PATIENCE}
    return subprocess.run(command, env=home.environ | (env or {}), **(given | more))


LINES = {
    "a script": ("train.sh",),
    "a script with arguments": ("train.sh", "a b", "", "--gpus=3", 'é\n\t"\\'),
    "options of the command line win": ("--gpus=0.25", "-J", "näme", "-t", "5", "train.sh"),
    "options in one word and in two": ("-c2", "--mem", "2G", "--hold", "--wrap", "true"),
    "a script of Slurm": ("slurm.sh", "x"),
    "files below a directory": ("-o", "logs/%j.out", "--error=logs/%x.err", "train.sh"),
    "a directory of the job": ("--chdir=logs", "--wrap=pwd"),
    "a list of variables": ("--export=A=1,HOME,NOT_THERE", "train.sh"),
    "an array": ("--array=0-7%2", "train.sh"),
    "an array with one file for all": ("--array=0-1", "-o", "logs/same", "train.sh"),
    "a dependency": ("--dependency=singleton", "--wrap", "true"),
    "terse": ("--parsable", "train.sh"),
    "a directory that the job makes": ("-o", "new/%j/out", "train.sh"),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_makes_the_job_that_the_python_command_makes_of_it(site, line):
    env = {"FGSUB_ACCOUNT": "lab", "SBATCH_TIMELIMIT": "7", "SBATCH_HINT": "x"}
    ours = call(site, NATIVE, "--hold", *line, env=env)
    theirs = call(site, *PYTHON, "--hold", *line, env=env)
    assert (ours.returncode, theirs.returncode) == (0, 0), (ours.stderr, theirs.stderr)
    assert ours.stderr == theirs.stderr
    first, second = (int(done.stdout.split()[-1]) for done in (ours, theirs))
    assert second == first + len(site.history(first)), "no third submission"
    assert facts(site, first) == facts(site, second)


OF_PYTHON = {
    **LINES,
    "a time of day in the time zone of the caller": ("--begin=18:00", "--deadline=2039-01-01", "train.sh"),
    "a directory that is made": ("--mkdir", "-o", "made/%j.out", "train.sh"),
    "a file that is read": ("--input=train.sh", "train.sh"),
    "a name of the user database": ("-o", "%u-%j.out", "train.sh"),
    "a program in PATH": ("--gpus=0", "sort", "-u", "train.sh"),
    "an interpreter that env finds": ("found.sh",),
    "a long script": ("long.sh", "x"),
    "a long argument": ("train.sh", "x" * 5000),
    "many arguments": ("train.sh", *map(str, range(2000))),
    "a long option": ("--comment", "y" * 4090, "train.sh"),
    "words that are no scripts": ("train.sh", "logs", "fifo", "/dev/null", "socket", ".", "-", "no\udcff"),
    "a long command": ("--gpus=0", f"--wrap=true {'z' * 5000}"),
}


@pytest.mark.parametrize("line", OF_PYTHON.values(), ids=OF_PYTHON)
def test_a_line_that_the_controller_reads_makes_the_job_of_a_list_with_this_line(site, line, tmp_path):
    """A list is read by the command itself."""
    (site.path / "found.sh").write_text("#!/usr/bin/env found\n")
    (site.path / "long.sh").write_text(SCRIPT + "# more\n" * 20_000)
    (tmp_path / "found").write_text("#!/bin/sh\n")
    with suppress(FileExistsError):
        os.mkfifo(site.path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):
        listener.bind(str(site.path / "socket"))
    (tmp_path / "found").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {"TZ": "Asia/Tokyo", "FGSUB_ACCOUNT": "lab", "PATH": path}
    words = ["--hold", *(word for word in line if word != "--parsable")]
    (site.path / "jobs.txt").write_bytes(os.fsencode(command_line(words).replace("\n", " ") + "\n"))
    words = [word.replace("\n", " ") for word in words]
    read = call(site, *PYTHON, *words, env=env)
    listed = call(site, *PYTHON, "--batch=jobs.txt", env=env)
    assert (read.returncode, listed.returncode) == (0, 0), (read.stderr, listed.stderr)
    assert read.stderr == listed.stderr
    first, second = (int(done.stdout.split()[-1]) for done in (read, listed))
    assert second == first + len(site.history(first)), "no third submission"
    assert facts(site, first) == facts(site, second)


def facts(home, job):
    """What a job is, but for its number and time."""
    found = home.history(job)[0]
    own = {"id", "array", "job_id", "array_job_id", "priority", "submit_time", "submit_time_iso"}
    own |= {"submitted_at", "submitted_at_iso"}
    script = home.client.call(protocol.ShowScript(id=job)).script
    kept = {name: value for name, value in found.items() if name not in own}
    names = [name for name in kept if name.startswith("std_")]
    files = {name: str(kept[name]).removeprefix(str(home.path)).replace(str(job), "%j") for name in names}
    return {**kept, **files, "script": script}


def test_a_job_has_the_variables_that_the_python_command_gives_it(site):
    env = {
        "ODD": os.fsdecode(b"\xff\xc3\xa9\xed\xa0\x80\xf4\x90\x80\x80"),
        "FUNCTION": "() {  a;\n}",
        "EMPTY": "",
    }
    line = ("--gpus=0", "--parsable", "-o", "%j.env", "--wrap", "exec env -0")
    jobs = []
    for command in ((NATIVE,), PYTHON):  # one after the other: a slot has a TMPDIR
        jobs.append(int(call(site, *command, *line, env=env).stdout))
        site.wait(jobs[-1])
    first, second = (variables(site.path / f"{job}.env") for job in jobs)
    assert first == second
    assert {name: first[name] for name in env} == env


def variables(file):
    pairs = (one.partition("=") for one in os.fsdecode(file.read_bytes()).split("\0"))
    return {name: value for name, _, value in pairs if not name.startswith(("FG_", "LD_"))}


REFUSED = {
    "no such option": ("--nope", "train.sh"),
    "no such script": ("missing.sh",),
    "too much": ("--gpus=64", "train.sh"),
    "no such directory": ("-o", "missing/%j.out", "train.sh"),
    "a wrong value": ("--gpus=half", "train.sh"),
    "a directory as file": ("-o", "logs", "train.sh"),
    "no directory to run in": ("-D", "train.sh", "--wrap", "true"),
    "no such partition": ("-p", "nowhere", "train.sh"),
    "help": ("--help",),
}


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_that_of_the_python_command(site, line):
    before = len(site.history())
    ours, theirs = call(site, NATIVE, *line), call(site, *PYTHON, *line)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)
    assert len(site.history()) == before


def test_a_script_on_standard_input_is_read_by_the_python_command(site):
    done = call(site, NATIVE, "--parsable", input=SCRIPT.encode())
    assert site.job(int(done.stdout))["request"]["comment"] == "from-the-header"


def test_the_names_of_slurm_use_it_and_refuse_in_the_words_of_slurm(site):
    accepted = call(site, NATIVE, "--named=sbatch", "--switches=1", "train.sh")
    assert accepted.stdout.startswith(b"Submitted batch job ")
    assert accepted.stderr == b""
    warned = site.job(int(accepted.stdout.split()[-1]))["request"]["warnings"]
    assert warned == "ignored, without effect here: --switches"
    plain = call(site, NATIVE, "--named=sbatch", "--parsable", "--hold", "--wrap=true")
    assert site.job(int(plain.stdout))["request"]["output"] == "slurm-%j.out"
    done = call(site, NATIVE, "--named=sbatch", "--test-only", "--wrap=true")
    assert (done.returncode, done.stderr[:11]) == (0, b"sbatch: Job")
    done = call(site, NATIVE, "--named=sbatch", "--wait", "-Q", "--wrap=kill $$")
    assert done.returncode == 1
    done = call(site, NATIVE, "--named=squeue", "--help")
    assert done.stdout.endswith(b"The whole manual: man fgq\n")
    done = call(site, NATIVE, "--named=sbatch", "--nope", "train.sh")
    assert (done.returncode, done.stderr.splitlines()[0][:14]) == (255, b"sbatch: error:")


def scancel(home: Home, *words: str, **env: str) -> subprocess.CompletedProcess:
    native = Path(NATIVE).with_name("fgq")
    return call(home, str(native), "--named=scancel", *words, env={"LD_DEBUG": "files"} | env)


def test_filters_of_scancel_in_variables_are_read_by_the_python_command(site):
    job = site.submit(hold=True)
    done = scancel(site, str(job), SCANCEL_STATE="RUNNING")
    assert (done.returncode, b"/python" in done.stderr) == (0, True)
    assert site.job(job)["state"] == "PENDING"
    assert scancel(site, str(job)).returncode == 0


def test_scancel_of_numbers_starts_no_interpreter(site):
    jobs = [site.submit(hold=True), site.submit(hold=True), site.submit(hold=True, array="0-2")]
    done = scancel(site, *map(str, jobs))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert {site.history(job)[0]["state"] for job in jobs} == {"CANCELLED"}


@pytest.mark.parametrize(
    "words", [("99999",), ("{job}", "99999"), ("{job}_0",), ("-v", "{job}"), ("0{job}",)]
)
def test_what_scancel_reports_comes_from_the_python_command(site, words):
    job = site.submit(hold=True)
    done = scancel(site, *(word.format(job=job) for word in words))
    assert b"/python" in done.stderr
    assert (b"Terminating" in done.stderr) == ("-v" in words)
    assert (site.history(job)[0]["state"] == "CANCELLED") == (words[0] in ("{job}", "-v", "0{job}"))


def test_a_full_disk_of_the_output_does_not_hide_that_a_job_was_submitted(site):
    with open("/dev/full", "wb") as full:
        done = call(site, NATIVE, "train.sh", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    last = site.history()[-1]["id"]
    said = f"fgsub: error: submitted batch job {last}, and No space left on device on stdout\n"
    assert (done.returncode, done.stderr.decode()) == (6, said)


def test_it_starts_a_controller_where_none_runs(tmp_path):
    begun = new_key(time.time())
    with living(tmp_path / "home") as home:
        assert call(home, NATIVE, "--gpus=0", "--wrap", "true").stdout == b"Submitted batch job 1\n"
        assert call(home, *PYTHON, "--gpus=0", "--wrap", "true").stdout == b"Submitted batch job 2\n"
    with closing(sqlite3.connect(home.paths.queue)) as queue:
        keys = [key for (key,) in queue.execute("SELECT key FROM submission ORDER BY first")]
    times = [key[:12] for key in (begun, *keys, new_key(time.time()))]
    assert times == sorted(times), "both commands begin a key with the time"
    assert [len(key) for key in keys] == [32, 32]


def test_a_job_whose_controller_dies_before_the_answer_is_queued_once(tmp_path):
    with crashing(tmp_path, "controller_after_commit:1", config="[host]\ncpus = 4\n") as home:
        done = call(home, NATIVE, "--parsable", "--wrap", "true")
        assert (done.returncode, done.stdout) == (0, b"1\n"), done.stderr
        home.run("fgwait", "1")
        assert len(home.history()) == 1


@contextmanager
def hanging_up(home: Home) -> Iterator[list[dict]]:
    """In the place of the controller: a socket that takes requests and answers none."""
    home.paths.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    requests = []

    def serve() -> None:
        with suppress(OSError):  # the listener is shut down
            while True:
                with listener.accept()[0] as line:
                    requests.append(json.loads(line.makefile("rb").readline() or b"{}"))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home.paths.socket))
        listener.listen()
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()
    home.paths.socket.unlink()


def until_blocked(pid: int, number: int) -> None:
    """Wait until a process blocks a signal, of which nothing tells."""
    end = time.monotonic() + PATIENCE
    while (
        not int(Path(f"/proc/{pid}/status").read_text().split("SigBlk:")[1].split()[0], 16) >> number - 1 & 1
    ):
        assert time.monotonic() < end, "it does not block the signal"
        rest()


def keys(home: Home) -> list[str]:
    """The keys in the queue of a controller that has ended."""
    with closing(sqlite3.connect(home.paths.queue)) as queue:
        return [key for (key,) in queue.execute("SELECT key FROM submission ORDER BY first")]


def kept(home: Home) -> list[str]:
    """The keys of submissions without an answer."""
    return [name.split("-")[1] for name in os.listdir(home.paths.run / "unanswered")]


@pytest.mark.parametrize("name", ["fgsub", "sbatch"])
def test_a_key_that_was_sent_is_used_again_whatever_prevented_an_answer(tmp_path, name):
    line = (
        NATIVE,
        *(("--named=sbatch",) if name == "sbatch" else ()),
        "--parsable",
        "--gpus=0",
        "--wrap=true",
    )
    with living(tmp_path / "home") as home:
        with hanging_up(home) as requests:
            done = call(home, *line)
        key = requests[0]["key"]
        assert done.returncode != 0
        assert b"Nothing was changed" not in done.stderr
        assert b"Repeat the same command within 10 minutes: it is queued only once." in done.stderr
        assert kept(home) == [key]
        call(home, *line, "--job-name=another")  # has a key of its own
        assert call(home, *line).stdout == b"2\n"
        assert call(home, *line).stdout == b"3\n"  # the earlier one was answered
        assert kept(home) == []
    assert [one == key for one in keys(home)] == [False, True, False]


def test_a_command_that_is_interrupted_before_the_answer_keeps_its_key(tmp_path):
    with living(tmp_path / "home") as home:
        home.run("fgq", "-h")
        os.kill(controller_of(home), signal.SIGSTOP)
        try:
            words = (NATIVE, "--parsable", "--gpus=0", "--wrap=true")
            command = subprocess.Popen(words, env=home.environ, cwd=home.path, stderr=subprocess.PIPE)
            until_blocked(command.pid, signal.SIGINT)
            command.send_signal(signal.SIGINT)
            said = command.communicate(timeout=PATIENCE)[1]
        finally:
            os.kill(controller_of(home), signal.SIGCONT)
        assert command.returncode == 130
        assert b"interrupted. It may have been queued all the same" in said
        (key,) = kept(home)
        assert call(home, *words).stdout == b"1\n"
        assert kept(home) == []
    assert keys(home) == [key]


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("program", [(NATIVE, "--gpus=0", "--wrap=true"), (NATIVE.replace("fgsub", "fgq"),)])
def test_no_socket_takes_the_place_of_a_closed_stream(site, program, closed):
    before = len(site.history())
    done = call(site, "sh", "-c", '"$@" ' + " ".join(f"{one}>&-" for one in closed), "sh", *program)
    assert done.returncode == (6 if 1 in closed else 0), done.stderr
    assert bool(done.stdout) == (1 not in closed)
    if closed == (1,):
        assert b"Bad file descriptor" in done.stderr
    assert len(site.history()) == before + ("--wrap=true" in program)


def test_it_sends_nothing_to_a_controller_below_a_directory_that_others_can_write(site):
    site.paths.run.chmod(0o777)
    try:
        done = call(site, NATIVE, "train.sh")
    finally:
        site.paths.run.chmod(0o700)
    assert done.returncode == Exit.UNREACHABLE
    assert b"can be changed by others" in done.stderr


def test_after_a_submission_without_an_answer_the_python_command_decides_whether_to_repeat_it(site):
    kept = site.paths.run / "unanswered"
    kept.mkdir(exist_ok=True)
    (kept / "a-key-of-another").touch()
    try:
        done = call(site, NATIVE, "--parsable", "train.sh", env={"LD_DEBUG": "files"})
    finally:
        (kept / "a-key-of-another").unlink()
    assert done.returncode == 0
    assert b"/python" in done.stderr, "no interpreter ran"
