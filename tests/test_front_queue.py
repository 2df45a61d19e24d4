"""The native fgq: it prints what the Python command prints, and leaves the rest to that."""

import fcntl
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from fgsched.views.display import host_name
from live_host import PATIENCE, Home, living

pytestmark = pytest.mark.compiler
NATIVE = str(Path(sys.executable).with_name("fgq"))
BEHIND = (str(Path(sys.executable).with_name("fgsched-python")),)
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """Job 1 is over; 2 runs; 3 to 5 are held; 6 is an array whose tasks are held."""
    with living(tmp_path_factory.mktemp("queue") / "home") as home:
        home.ended("exit 3", name="over")
        home.running(name="train", share=5000)
        home.submit(name="evaluation", hold=True, share=7500, time_limit=3600)
        home.submit(name="odd\x1b]52;\a", hold=True, share=0)
        home.submit(name="übung", hold=True, share=5000)
        home.submit(name="sweep", hold=True, array="1-7:3", share=2500)
        yield home


def call(home: Home, *command: str, **env: str) -> subprocess.CompletedProcess:
    """Run a program with the environment of the home. If it starts an interpreter, stderr says so."""
    given = home.environ | {"LD_DEBUG": "files"} | env
    return subprocess.run(command, env=given, capture_output=True, timeout=PATIENCE)


def both(home: Home, name: str, *line: str, **env: str) -> tuple[tuple[int, bytes], tuple[int, bytes], bool]:
    """(status and output) of the native program and of the Python command; whether the former ran Python."""
    ours = call(home, NATIVE, f"--named={name}", *line, **env)
    theirs = call(home, *BEHIND, name, "", *line, **env)
    started = b"/python" in ours.stderr
    return (ours.returncode, ours.stdout), (theirs.returncode, theirs.stdout), started


ASCII = ("-n", "train,evaluation,sweep")
ANSWERED = {  # no line prints for how long a job has been running
    "all columns that do not depend on the reader": ("-o", "%i|%j|%T|%l|%C|%m|%D|%R|%b|%Q|%y|%N|%u"),
    "sorted backwards": ("-S", "-j,i", "-ho", "%i %j"),
    "by column names": ("-O", "JobID:8,Name:.20,State,GpuReason:0"),
    "one line for each task": ("-r", "-t", "pending"),
    "jobs by id": ("-j", "2,6_[4,7]", "--jobs=3", "-o", "%i %T"),
    "long rows": ("-l", "-t", "PD"),
    "pending jobs of one user": ("-u", ME, "-t", "PD", "-p", "main"),
    "own jobs": ("--me", "-ho", "%i %r"),
    "Slurm's columns": ("--slurm-columns", "-t", "PD"),
    "a sort key without a column": ("-S", "V", "--color=never", "-t", "PD"),
}


@pytest.mark.parametrize("line", ANSWERED.values(), ids=ANSWERED)
def test_the_rows_are_those_of_the_python_command_and_no_interpreter_starts(queue, line):
    ours, theirs, started = both(queue, "fgq", *ASCII, *line)
    assert ours == theirs
    assert (ours[0], started) == (0, False)


def test_squeue_takes_its_columns_from_the_variable_of_slurm(queue):
    ours, theirs, started = both(queue, "squeue", *ASCII, "-t", "PD")
    assert (ours, started) == (theirs, False)
    usual = {"SQUEUE_FORMAT": "%.9i %j"}
    assert both(queue, "squeue", *ASCII, **usual) == ((0, SLURMS), (0, SLURMS), False)
    assert both(queue, "fgq", *ASCII, **usual)[0][1] != SLURMS


def test_other_variables_of_squeue_are_left_to_the_python_command(queue):
    variables = {"SQUEUE_FORMAT": "%.9i %j", "SQUEUE_NAMES": "train"}
    train = b"    JOBID NAME\n        2 train\n"
    assert both(queue, "squeue", **variables) == ((0, train), (0, train), True)
    assert both(queue, "squeue", "-hn", "sweep", "-o", "%j", **variables)[0] == (0, b"sweep\n")


SLURMS = b"    JOBID NAME\n        3 evaluation\n6_[1-7:3] sweep\n        2 train\n"
LEFT = {
    "times, in the zone of the reader": (("-o", "%V"), 0),
    "reasons as sentences": (("-O", "Why:40"), 0),
    "text that is not ASCII": (("-n", "übung"), 0),
    "a job that has ended": (("-j", "1"), 0),
    "a job that does not exist": (("-j", "99"), 3),
    "another user": (("-u", "daemon"), 0),
    "an unknown user": (("-u", "nobody-of-that-name"), 2),
    "an unknown option": (("--nope",), 2),
    "a shortened option": (("--nohead",), 0),
    "an unknown column": (("-o", "%9"), 2),
    "an operand": (("7",), 2),
    "help": (("--help",), 0),
    "JSON": (("--json",), 0),
    "expected starts": (("--start",), 0),
    "reasons": (("--why", "3"), 0),
    "colours": (("--color=always",), 0),
}


@pytest.mark.parametrize(("line", "status"), LEFT.values(), ids=LEFT)
def test_what_depends_on_the_reader_or_is_wrong_is_left_to_the_python_command(queue, line, status):
    done = call(queue, NATIVE, *line)
    assert b"/python" in done.stderr
    assert done.returncode == status


def test_control_characters_in_a_name_are_not_printed(queue):
    ours, theirs, started = both(queue, "fgq", "-h", "-j", "4", "-o", "%j")
    assert (ours, started) == (theirs, False)
    assert b"\x1b" not in ours[1]


def test_a_closed_or_full_output_is_reported_as_by_the_python_command(queue):
    done = call(queue, "sh", "-c", f"{NATIVE} -h -j 2 >/dev/full", LD_DEBUG="")
    assert (done.returncode, done.stderr) == (
        6,
        b"fgq: error: cannot write the output: No space left on device\n",
    )
    done = call(queue, "sh", "-c", f"{NATIVE} -h -j 2 >&-", LD_DEBUG="")
    assert (done.returncode, done.stderr) == (
        6,
        b"fgq: error: cannot write the output: Bad file descriptor\n",
    )


def test_more_rows_than_a_pipe_holds_are_printed_whole(queue):
    queue.submit(name="wide", hold=True, array="0-1999")
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    line = [NATIVE, "-h", "-r", "-n", "wide", "-o", "%F_%K %j"]
    child = subprocess.Popen(line, env=queue.environ, stdout=writing)
    os.close(writing)
    with open(reading, "rb") as rows:
        found = rows.read().splitlines()
    assert child.wait() == 0
    assert size == 4096
    assert [row.split(b"_")[1] for row in found] == [b"%d wide" % task for task in range(2000)]


def test_it_starts_a_controller_where_none_runs(tmp_path):
    with living(tmp_path / "home") as home:
        done = call(home, NATIVE, "-h")
        assert (done.returncode, done.stdout) == (0, b"")
        assert b"/python" in done.stderr


def test_a_pending_job_is_on_no_node(queue):
    name = host_name()
    for words in (("-w", name), (f"--nodelist={name}",), ("-w", name, "-t", "all")):
        ours, theirs, _ = both(queue, "squeue", "-h", "-o", "%i %T", *words)
        assert ours == theirs
        assert b"RUNNING" in ours[1]
        assert b"PENDING" not in ours[1]
