"""FG_DEVICES and FG_CONFIG of a shell beside a controller that was started with others."""

import os
import subprocess
from pathlib import Path

import pytest

from fgsched.client import unused_settings
from fgsched.system.paths import Paths
from terminals import on_terminal


def notes(mode, pid, environ):
    place = Path("/nowhere")
    paths = Paths.find({"FG_HOME": str(place)}, 1)
    assert paths.mode == "user"
    return unused_settings(paths, pid, environ)


@pytest.fixture
def controller():
    """A process with the variables of a controller."""
    environ = {"PATH": os.environ["PATH"], "FG_DEVICES": "sim:2x16G"}
    process = subprocess.Popen(["sh", "-c", "read line"], env=environ, stdin=subprocess.PIPE)
    yield process.pid
    process.stdin.close()
    process.wait()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, []),
        ({"FG_DEVICES": "sim:2x16G"}, []),
        ({"FG_DEVICES": ""}, []),
        (
            {"FG_DEVICES": "sim:4x80G"},
            ["FG_DEVICES=sim:4x80G has no effect: the controller was started with"],
        ),
        ({"FG_CONFIG": "/x"}, ["FG_CONFIG=/x has no effect: the controller was started without FG_CONFIG."]),
        ({"FGSCHED_CONFIG": "/x"}, ["FGSCHED_CONFIG=/x has no effect: the controller was started without"]),
    ],
)
def test_a_variable_that_a_running_controller_does_not_have_is_named(controller, environ, said):
    found = notes("user", controller, environ)
    assert len(found) == len(said)
    for text, beginning in zip(found, said, strict=True):
        assert text.startswith(beginning)
        assert "fgsched stop" in text


def test_a_controller_whose_variables_cannot_be_read_is_not_accused():
    assert notes("user", 2**22 + 1, {"FG_DEVICES": "sim:4x80G"}) == []


def on_screen(home, command, *words, **env):
    return [line for line in on_terminal(home, command, *words, env=env) if "has no effect" in line]


@pytest.mark.parametrize(
    "words", [("fgq",), ("fginfo",), ("fgsub", "--hold", "--wrap=true"), ("fgsched", "status")]
)
def test_every_command_says_so_once_on_a_terminal(home, words):
    assert home.run("fgq").status == 0  # it starts the controller
    other = "sim:3x24G"
    assert home.environ["FG_DEVICES"] != other
    [line] = on_screen(home, *words, FG_DEVICES=other)
    assert f"FG_DEVICES={other} has no effect" in line
    assert on_screen(home, *words) == []
    done = home.run(*words, env={"FG_DEVICES": other})
    says = words[0] in ("fgsub", "fgsched")  # in a file as well: about jobs, and about the controller
    assert (done.status, "has no effect" in done.out + done.err) == (0, says)
