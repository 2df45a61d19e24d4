"""A command whose standard streams were closed, as by a daemon or by cron: told or done without, no bug."""

import subprocess
import sys

import pytest

from fgsched.domain.errors import Exit


@pytest.fixture
def run(home):
    """run("2>&-", "fgq", …): a command with its streams changed by the shell."""

    def with_streams(changed, command, *words):
        start = [sys.executable, "-m", f"fgsched.cli.{command}", *map(str, words)]
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {changed}', "sh", *start],
            cwd=home.path, env=home.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip

    return with_streams


def test_an_id_that_cannot_be_printed_is_told(home, run):
    assert home.client  # a controller runs: the command says nothing of its start
    for number, form in enumerate(("--parsable", "--json"), 1):
        done = run(">&-", "fgsub", form, "--wrap", "true")
        assert (done.returncode, done.stderr) == (
            Exit.STORAGE,
            f"fgsub: error: submitted batch job {number}, and Bad file descriptor on stdout\n",
        )
    assert run(">&-", "fgsub", "--quiet", "--wrap", "true").returncode == 0
    assert len(home.history()) == 3


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *(("fgtail", ()), ("fgctl", ("write", "batch_script")), ("fgq", ())),
        *(("fgq", ("--version",)), ("fgctl", ("show", "job", "--help"))),
    ],
)
def test_what_cannot_be_printed_is_no_bug(home, run, command, words):
    job = home.ended()
    more = {"fgtail": (job,), "fgctl": (job, "-")}.get(command, ())
    done = run(">&-", command, *words, *more)
    assert (done.returncode, done.stderr) == (
        Exit.STORAGE,
        f"{command}: error: cannot write the output: Bad file descriptor\n",
    )


def test_who_cannot_be_told_how_far_jobs_are_waits_all_the_same(home, run):
    job = home.submit("exit 3")
    assert run("2>&-", "fgwait", job).returncode == 3
    assert run("2>&-", "fgsub", "--wait", "--wrap", "exit 4").returncode == 4


def test_a_log_is_not_read_from_where_nothing_is(run):
    done = run("<&-", "fgsched", "simulate", "-")
    assert (done.returncode, "internal error" in done.stderr) == (Exit.USAGE, False)
