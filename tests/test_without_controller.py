"""What is wrong in a command line is told where no controller runs, too."""

import sys
from pathlib import Path

import pytest

from fakehost import hosting, why_not
from fgsched.domain.errors import Exit

_WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")]
WRONG = [
    ("fgsub", "--gpus=many", "--wrap=true"),
    ("fgsub", "--time=soon", "--wrap=true"),
    ("fgsub", "--gpuss=1", "--wrap=true"),
    ("fgsub", "--array=5-1", "--wrap=true"),
    ("fgsub", "--gpus"),
    ("fgrun", "--gpus=many", "true"),
    ("fgq", "--states=XX"),
    ("fgcancel", "--signal=XX", "1"),
    ("fgacct", "--starttime=soon"),
    ("fgwait", "x"),
    ("fgctl", "update", "1", "time=soon"),
]


@pytest.fixture(scope="module")
def host():
    """A host whose controller is stopped."""
    with hosting() as host:
        host.stop()
        yield host


@pytest.mark.parametrize("line", WRONG, ids=" ".join)
def test_a_wrong_option_is_told_without_a_controller(host, line):
    done = host.run("alice", *line)
    assert done.status == Exit.USAGE, done.err
    assert "error: " in done.err


def test_the_native_fgsub_tells_it_too(host):
    program = Path(sys.executable).with_name("fgsub")
    done = host.do("alice", program, "--gpus=many", "--wrap=true")
    assert (done.status, done.err.partition(" is not a number")[0]) == (
        Exit.USAGE,
        "fgsub: error: --gpus=many",
    )


def test_a_right_line_says_that_no_controller_runs(host):
    done = host.run("alice", "fgsub", "--wrap=true")
    assert done.status == Exit.UNREACHABLE
    assert "the controller is not running" in done.err
