"""fgtail: what it prints of a job's output, and when it ends."""

import os
import subprocess
import sys

import pytest

from fgsched.cli import fgtail
from fgsched.domain.errors import Exit, Refused
from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from live_host import PATIENCE


def following(home, *words):
    """fgtail under way."""
    command = [sys.executable, "-m", "fgsched.cli.fgtail", *words]
    return subprocess.Popen(command, env=home.environ, cwd=home.path, stdout=subprocess.PIPE, text=True)


def gated(home, before, after, **more):
    """A job that writes `before`, and `after` once somebody writes to the gate."""
    gate = home.path / "gate"
    os.mkfifo(gate)
    return gate, home.submit(f"echo {before}; read line <{gate}; echo {after}", **more)


def test_all_that_a_job_wrote_is_printed(home):
    one = home.ended("echo first; echo second >&2")
    assert home.run("fgtail", str(one)).out == "first\nsecond\n"


def test_a_running_job_is_followed_to_its_end(home):
    gate, one = gated(home, "before", "after")
    with following(home, str(one)) as tail:
        assert tail.stdout.readline() == "before\n"
        gate.write_text("go\n")
        assert tail.stdout.read() == "after\n"
        assert tail.wait(PATIENCE) == 0


class Looks:
    """A watch of a job that makes its file after so many looks."""

    def __init__(self, path, left):
        self.path, self.left = path, left

    def is_over(self, timeout):
        self.left -= 1
        if not self.left:
            self.path.write_text("late")
        return self.left < -100


def test_the_file_of_a_job_that_is_starting_is_awaited_as_long_as_it_starts(tmp_path):
    job = JobInfo(state=JobState.STARTING)
    with fgtail.opened(str(tmp_path / "out"), job, Looks(tmp_path / "out", 1000)) as file:
        assert file.read() == b"late"
    job = JobInfo(state=JobState.RUNNING)
    with pytest.raises(Refused, match="No such file"):
        fgtail.opened(str(tmp_path / "removed"), job, Looks(tmp_path / "removed", 1000))


def test_without_following_it_prints_what_is_there(home):
    gate, one = gated(home, "before", "after")
    with following(home, str(one)) as tail:
        assert tail.stdout.readline() == "before\n"
        assert home.run("fgtail", "--no-follow", str(one)).out == "before\n"
        gate.write_text("go\n")


@pytest.mark.parametrize(("lines", "said"), [(0, ""), (1, "3\n"), (2, "2\n3\n"), (9, "1\n2\n3\n")])
def test_the_last_lines_are_counted_from_the_end(home, lines, said):
    one = home.ended("echo 1; echo 2; echo 3")
    assert home.run("fgtail", "-n", str(lines), str(one)).out == said


def test_a_line_without_an_end_is_a_line(home):
    one = home.ended("printf '1\\n2\\n3'")
    assert home.run("fgtail", "-n", "2", str(one)).out == "2\n3"


def test_lines_are_counted_through_many_pieces_of_a_file(home):
    one = home.ended("seq 100000")
    assert home.run("fgtail", "-n", "50000", str(one)).out == "".join(
        f"{n}\n" for n in range(50_001, 100_001)
    )


def test_errors_have_their_own_file_where_the_job_says_so(home):
    one = home.ended("echo out; echo err >&2", error="%x-%j.err", name="train")
    assert home.run("fgtail", "-e", str(one)).out == "err\n"
    assert home.run("fgtail", str(one)).out == "out\n"


def test_a_pending_job_has_written_nothing(home):
    done = home.run("fgtail", str(home.submit(hold=True)))
    assert (done.status, done.out) == (Exit.REFUSED, "")
    assert "is pending" in done.err


def test_a_pending_job_is_waited_for_when_asked(home):
    gate, one = gated(home, "before", "after", hold=True)
    with following(home, "-F", str(one)) as tail:
        home.client.ask("release", ids=[one])
        assert tail.stdout.readline() == "before\n"
        gate.write_text("go\n")
        assert tail.stdout.read() == "after\n"


def test_a_job_that_never_starts_ends_the_wait(home):
    one = home.submit(hold=True)
    with following(home, "-F", str(one)) as tail:
        home.client.ask("cancel", ids=[one])
        assert tail.wait(PATIENCE) == Exit.REFUSED


def test_a_file_that_is_gone_is_told(home):
    one = home.ended()
    (home.path / f"fg-{one}.out").unlink()
    done = home.run("fgtail", str(one))
    assert done.status == Exit.REFUSED
    assert "No such file or directory; the job is COMPLETED" in done.err


def test_a_fifo_is_not_waited_for(home):
    one = home.ended(output="/dev/null")
    done = home.run("fgtail", str(one))
    assert (done.status, "is not a regular file" in done.err) == (Exit.REFUSED, True)


@pytest.mark.parametrize("words", [["1-2"], ["abc"], [], ["-n", "-1", "1"]])
def test_bad_usage_is_told(home, words):
    assert home.run("fgtail", *words).status == Exit.USAGE


def test_a_reader_that_goes_away_ends_it_quietly(home):
    one = home.ended("seq 100000")
    tail = subprocess.Popen(
        [sys.executable, "-m", "fgsched.cli.fgtail", str(one)],
        env=home.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tail.stdout.readline() == b"1\n"
    tail.stdout.close()
    assert tail.stderr.read() == b""
    tail.stderr.close()
    tail.wait(PATIENCE)
