"""Where the cgroups of jobs lie, with cgroups of version 2: beside the controller's, as below a systemd."""

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from fgsched.system import cgroups
from hierarchies import NEEDS_UNIFIED, UNIFIED

OFFERED = (UNIFIED / "cgroup.controllers").read_text().split() if UNIFIED else []
pytestmark = [
    *NEEDS_UNIFIED,
    pytest.mark.skipif(not OFFERED, reason="cgroup v2 has no controller here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
PROGRAM = f"""
import os, sys
from pathlib import Path
from fgsched.system import cgroups
Path(sys.argv[1], "cgroup.procs").write_text("0")
os.umask(0o077)
print(cgroups.of_queue("abcdefgh", {OFFERED[:1]}[0]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def unit():
    """The group of a unit, in a slice; as below systemd, the slice offers controllers and has no process."""
    above = UNIFIED / f"fg-slice-{os.getpid()}"
    own, control = above / "fgsched.service", UNIFIED / "cgroup.subtree_control"
    had = OFFERED[0] in control.read_text().split()
    control.write_text(f"+{OFFERED[0]}")
    own.mkdir(parents=True)
    yield own
    for group in (own, *above.glob("fgsched-*"), above):
        with suppress(FileNotFoundError):
            group.rmdir()
    if not had:
        with suppress(OSError):  # another user of the hierarchy needs it now
            control.write_text(f"-{OFFERED[0]}")


@pytest.fixture
def within(unit):
    """A function that starts a process in the unit."""
    begun = []

    def start(*words):
        enter = ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(unit), *words]
        begun.append(subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for one in begun:
        one.communicate()


def test_the_jobs_are_beside_the_unit_which_can_be_started_again_while_they_run(unit, within):
    shepherd = within("sh", "-c", "echo started; read line")
    assert shepherd.stdout.readline() == "started\n"
    controller = within(sys.executable, "-c", PROGRAM, str(unit))
    queue = unit.parent / "fgsched-abcdefgh"
    assert controller.stdout.readline() == f"{queue}\n"
    assert (queue.stat().st_mode & 0o777, (queue / "cgroup.subtree_control").read_text().split()) == (
        0o755,
        OFFERED[:1],
    )
    job = queue / "fgsched-1.1"
    job.mkdir()
    (job / "cgroup.procs").write_text(str(shepherd.pid))
    again = within("sh", "-c", "echo started; read line")
    assert again.stdout.readline() == "started\n"
    cgroups.remove_if_empty(queue)
    assert queue.exists()
    (unit / "cgroup.procs").write_text(str(shepherd.pid))
    job.rmdir()
    cgroups.remove_if_empty(queue)
    assert not queue.exists()


def test_a_probe_leaves_nothing():
    before = set(UNIFIED.iterdir())
    cgroups.probe()
    assert {path for path in set(UNIFIED.iterdir()) - before if str(os.getpid()) in path.name} == set()
