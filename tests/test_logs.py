"""The controller's log as users and operators read it."""

import os
import pwd
import subprocess
import sys

import pytest

from fgsched.cli import logs
from fgsched.domain.errors import Exit, Refused
from fgsched.system.paths import Paths

pytestmark = pytest.mark.compiler
SECRET = "correct-horse-battery-staple"


def lines_of(done):
    """The lines without their times."""
    return [line.split(" ", 1)[1] for line in done.lines]


def test_a_job_is_in_the_log_from_its_submission_to_its_end(home):
    job = home.ended("exit 3", share=2500)
    other = home.submit(hold=True)
    home.run("fgctl", "release", str(other))
    me = pwd.getpwuid(os.geteuid()).pw_name
    (submitted, started, ended) = lines_of(home.run("fgsched", "logs", "--job", str(job)))
    assert submitted == f"info job={job} user={me} event=submit"
    assert started == f"info job={job} user={me} event=start attempt=1 gpu=0 share=0.25"
    assert ended.startswith(f"info job={job} user={me} event=end state=FAILED attempt=1 exit=3 cpu=")
    assert ended.endswith(" reason=NonZeroExitCode")
    assert f"info job={other} user={me} event=release by={me}" in lines_of(home.run("fgsched", "logs"))
    assert lines_of(home.run("fgctl", "show", "log", str(job))) == [submitted, started, ended]


def test_start_and_stop_of_the_controller_are_in_the_log_and_it_is_read_without_a_controller(home):
    home.run("fgq")
    home.run("fgsched", "stop")
    lines = lines_of(home.run("fgsched", "logs"))
    assert lines[0].startswith("info event=controller-start pid=")
    assert lines[-1].startswith("info event=controller-stop pid=")
    assert lines[-1].endswith('why="asked by a command"')
    assert home.run("fgsched", "status").status == Exit.UNREACHABLE


def test_nothing_secret_is_in_the_log(home):
    job = home.ended(
        f"echo {SECRET}; exit 1",
        name=SECRET,
        comment=SECRET,
        output=str(home.path / f"{SECRET}.out"),
    )
    home.run("fgsub", "--parsable", "--wrap", "true", "-J", SECRET, env={"TOKEN": SECRET})
    home.run("fgcancel", "--reason", SECRET, str(home.submit(hold=True)))
    home.run("fgsub", "--parsable", "-o", f"{home.path}/{SECRET}/x/y", "--wrap", "true")
    home.wait(job)
    assert SECRET not in home.paths.log.read_text()
    assert "event=end" in home.paths.log.read_text()


def test_the_last_lines_and_those_about_an_array_are_chosen(home):
    array = home.run("fgsub", "--parsable", "--array=0-2", "-o", "/dev/null", "--wrap", "true").out.strip()
    home.run("fgwait", array)
    own = lines_of(home.run("fgsched", "logs", "--job", array))
    assert [line.split("event=")[1].split()[0] for line in own].count("start") == 3
    assert lines_of(home.run("fgsched", "logs", "--job", array, "-n", "1")) == own[-1:]
    assert home.run("fgsched", "logs", "-n", "0").out == ""


def test_a_log_that_is_followed_shows_what_comes_in_the_file_that_follows_a_rotated_one(home):
    job = home.ended()
    command = [sys.executable, "-m", "fgsched.cli.fgsched", "logs", "-f", "-n", "1"]
    with subprocess.Popen(command, env=home.environ, stdout=subprocess.PIPE, text=True) as reader:
        assert "event=end" in reader.stdout.readline()
        home.submit(hold=True)
        assert "event=submit" in reader.stdout.readline()
        os.rename(home.paths.log, f"{home.paths.log}.1")
        home.run("fgcancel", str(job + 1))
        assert "event=cancel" in reader.stdout.readline()
        reader.terminate()
        reader.wait()


def test_a_log_that_is_not_there_or_not_ones_own_is_an_error(home):
    assert home.run("fgsched", "logs").status == Exit.REFUSED
    home.run("fgq")
    assert home.run("fgctl", "show", "log", "1", "2").status == Exit.USAGE
    done = home.run("fgctl", "show", "log", "99")
    assert (done.status, done.out) == (Exit.NO_SUCH_JOB, "")
    assert done.err.startswith("fgctl: error: the controller has no line about job 99\n")
    done = home.run("fgsched", "logs", "--job", "99")
    assert (done.status, done.out) == (Exit.NO_SUCH_JOB, "")
    assert done.err.startswith(f"fgsched: error: {home.paths.log} has no line about job 99\n")


def test_to_show_the_log_starts_no_controller(home):
    assert home.run("fgctl", "show", "log").status == Exit.UNREACHABLE
    assert not home.paths.socket.exists()


@pytest.mark.parametrize(
    ("line", "is_about"),
    [
        ("2026-11-22T15:30:01.123+01:00 info job=12 user=ann event=start attempt=1", True),
        ("2026-11-22T15:30:01.123+01:00 info job=15 array=12 task=3 user=ann event=start attempt=1", True),
        ('2026-11-22T15:30:01.123+01:00 info job=10 user="a b" event=submit count=3', True),
        ("2026-11-22T15:30:01.123+01:00 info job=10 user=ann event=submit count=2", False),
        ("2026-11-22T15:30:01+0100 host fgsched[77]: job=12 user=ann event=start attempt=1", True),
        ('2026-11-22T15:30:01.123+01:00 info job=1 user="x job=12 user=y" event=start', False),
        ("2026-11-22T15:30:01.123+01:00 error   | info job=12 user=ann event=start", False),
        ("2026-11-22T15:30:01.123+01:00 info event=preempt for=12", False),
        ("", False),
    ],
)
def test_a_line_is_about_the_job_that_it_begins_with(line, is_about):
    assert logs.is_about(line, 12) is is_about


JOURNAL = """#!/bin/sh
echo "$*" >"$0.asked"
echo '2026-11-22T15:30:01+0100 host fgsched[77]: job=1 user=ann event=start attempt=1'
echo '2026-11-22T15:30:02+0100 host fgsched[77]: job=2 user=bob event=start attempt=1'
echo '2026-11-22T15:30:03+0100 host fgsched[77]: job=1 user=ann event=end exit=0'
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """The paths of a host's controller that logs to the journal, with a journalctl that knows three lines."""
    reader = tmp_path / "bin" / "journalctl"
    reader.parent.mkdir()
    reader.write_text(JOURNAL)
    reader.chmod(0o755)
    monkeypatch.setenv("PATH", f"{reader.parent}:{os.environ['PATH']}")
    return Paths(mode="system", home=tmp_path, state=tmp_path, run=tmp_path, config_file=tmp_path / "none")


def test_the_log_of_a_service_is_read_from_the_journal(system, capsys):
    logs.show(system, job=1)
    assert [line.rpartition("event=")[2] for line in capsys.readouterr().out.splitlines()] == [
        "start attempt=1",
        "end exit=0",
    ]
    logs.show(system, lines=1)
    assert capsys.readouterr().out.endswith("job=1 user=ann event=end exit=0\n")
    asked = (system.home / "bin/journalctl.asked").read_text()
    assert asked == "--unit=fgsched.service --output=short-iso --no-pager --quiet\n"


def test_without_a_journal_to_read_the_error_says_so(system, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Refused) as caught:
        logs.show(system)
    assert "journalctl" in caught.value.cause


def test_the_log_file_of_the_hosts_controller_is_read_where_there_is_one(system, capsys):
    system.log.write_text("2026-11-22T15:30:01.123+01:00 info event=controller-start pid=1\n")
    logs.show(system)
    assert capsys.readouterr().out == system.log.read_text()
