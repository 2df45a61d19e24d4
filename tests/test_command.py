"""How every command fails: one cause, one remedy, one exit status, and never a traceback."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fgsched.cli import start
from fgsched.cli.command import Command
from fgsched.domain.errors import Exit, Refused


def a_command(act):
    """A command called `it` whose body is `act`."""

    @click.command("it", cls=Command, epilog="it --now")
    def it():
        """Do it at once."""
        return act()

    return it


def run(act, *words, **env):
    return CliRunner().invoke(a_command(act), list(words), env={"FG_DEBUG": None, **env})


def failing(error):
    def act():
        raise error

    return act


@pytest.mark.parametrize(("result", "status"), [(None, 0), (0, 0), (3, 3)])
def test_what_a_command_returns_is_its_exit_status(result, status):
    assert run(lambda: result).exit_code == status


def test_a_refusal_is_its_cause_and_its_remedy():
    done = run(failing(Refused("no card is that large", "Ask for less.")))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "it: error: no card is that large\nAsk for less.\n"


def test_wrong_usage_is_2_and_points_to_the_help():
    done = run(lambda: 0, "--nonsense")
    assert done.exit_code == 2
    assert done.stderr.startswith("it: error: No such option")
    assert done.stderr.endswith("it --help lists the options.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("words", "status"), [((), Exit.USAGE), (("abc",), Exit.USAGE), (("1",), Exit.UNREACHABLE)]
)
def test_the_exit_status_is_the_same_where_standard_error_takes_nothing(tmp_path, words, status):
    (tmp_path / "run").touch()
    command = [sys.executable, "-m", "fgsched.cli.fgcancel", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stderr=full, env={**os.environ, "FG_HOME": str(tmp_path)})
    assert done.returncode == status


def test_wrong_usage_is_told_in_one_line_even_if_there_is_a_choice():
    @click.command("it", cls=Command)
    @click.argument("what", type=click.Choice(["job", "gpu"]))
    def it(what):
        """Do it at once."""

    done = CliRunner().invoke(it, [])
    assert done.stderr.splitlines()[1:] == ["it --help lists the options."]


def test_a_bug_of_ours_is_one_line_and_7():
    done = run(failing(ZeroDivisionError("twice\nover")))
    assert done.exit_code == 7
    assert done.stderr.splitlines()[0] == "it: error: internal error: ZeroDivisionError: twice"
    assert "Traceback" not in done.stderr


def test_a_bug_of_ours_shows_where_when_asked():
    done = run(failing(ZeroDivisionError("twice")), FG_DEBUG="1")
    assert isinstance(done.exception, ZeroDivisionError)


def test_a_file_that_is_not_there_is_no_full_disk():
    assert run(failing(FileNotFoundError(2, "No such file", "x"))).exit_code == 7


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_says_nothing(error):
    done = run(failing(error))
    assert (done.exit_code, done.stderr) == (130, "")


def test_the_help_begins_with_what_it_does_and_ends_with_the_manual():
    lines = run(lambda: 0, "--help").stdout.splitlines()
    assert lines[0] == "Do it at once."
    assert lines[-2:] == ["Example: it --now", "The whole manual: man it"]


def test_the_version_is_that_of_the_package():
    assert run(lambda: 0, "--version").stdout.startswith("fgsched ")


def test_garbage_is_not_looked_for_while_a_command_is_imported(monkeypatch):
    is_enabled = []

    def function_of(name):
        is_enabled.append(gc.isenabled())
        return lambda: is_enabled.append(gc.isenabled())

    monkeypatch.setattr(start, "_named_command", lambda: "fgq")
    monkeypatch.setattr(start, "_function", function_of)
    start.main()
    assert is_enabled == [False, True]
