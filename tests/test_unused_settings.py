"""FG_DEVICES and FG_CONFIG of a shell beside a controller that was started with others."""

import pytest

from fgsched.domain.units import SubmitContext
from fgsched.submission.jobwarnings import about_variables
from terminals import on_terminal

OWN = SubmitContext(devices="sim:2x16G", config_file="/home/fgsched.toml")
OF_HOST = SubmitContext(own=False, config_file="/etc/fgsched/fgsched.toml")
REMEDY = "; fgsched stop, and the next command starts the controller with it"


@pytest.mark.parametrize(
    ("environ", "site", "warnings"),
    [
        ({}, OWN, []),
        ({"FG_DEVICES": "sim:2x16G"}, OWN, []),
        ({"FG_DEVICES": ""}, OWN, []),
        (
            {"FG_DEVICES": "1"},
            OWN,
            [f"FG_DEVICES=1 has no effect: the controller was started with FG_DEVICES=sim:2x16G{REMEDY}"],
        ),
        (
            {"FG_CONFIG": "/x"},
            OWN,
            [f"FG_CONFIG=/x has no effect: the controller reads /home/fgsched.toml{REMEDY}"],
        ),
        (
            {"FGSCHED_CONFIG": "/x", "FG_CONFIG": "/home/fgsched.toml"},
            OWN,
            [f"FGSCHED_CONFIG=/x has no effect: the controller reads /home/fgsched.toml{REMEDY}"],
        ),
        ({"FGSCHED_CONFIG": "/home/fgsched.toml", "FG_CONFIG": "/x"}, OWN, []),
        ({"FG_CONFIG": "/home/x/../fgsched.toml"}, OWN, []),
        (
            {"FG_DEVICES": "0", "FG_CONFIG": "/x"},
            OF_HOST,
            [
                "FG_DEVICES=0 has no effect: the controller was started with no FG_DEVICES",
                "FG_CONFIG=/x has no effect: the controller reads /etc/fgsched/fgsched.toml",
            ],
        ),
    ],
)
def test_a_variable_that_a_running_controller_does_not_have_is_named(environ, site, warnings):
    assert list(about_variables(environ, site)) == warnings


def test_a_controller_of_an_earlier_version_whose_variables_are_unknown_is_not_accused():
    assert list(about_variables({"FG_DEVICES": "0", "FG_CONFIG": "/x"}, SubmitContext())) == []


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
