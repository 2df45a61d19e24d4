"""Identity of a process, with real processes."""

import os
import signal
import subprocess
import sys

import pytest
from msgspec.structs import replace

from fgsched.domain.job import FENCE_DIR
from fgsched.launch import fence
from fgsched.system import process


@pytest.fixture
def sleeper():
    """Starts a program that waits for its stdin to close; ends them all afterwards."""
    started = []

    def start(*command, **options):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen(command or ("cat",), **pipes, **options)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def zombie(child):
    """Ends a child and waits until it is one, without reaping it."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_process_is_its_pid_its_start_and_its_boot(sleeper):
    child = sleeper()
    identity = process.identify(child.pid)
    assert identity.pid == child.pid
    assert identity.start >= process.identify(os.getpid()).start
    assert identity.boot == process.boot_id()
    assert len(identity.boot) == 36
    assert process.is_alive(identity)


def test_a_name_with_brackets_and_blanks_does_not_confuse_the_reader(sleeper, tmp_path):
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/cat")
    child = sleeper(str(odd))
    assert process.parents()[child.pid] == os.getpid()


def test_a_zombie_counts_as_dead(sleeper):
    child = sleeper()
    identity = process.identify(child.pid)
    zombie(child)
    assert process.identify(child.pid) is None
    assert not process.is_alive(identity)
    assert child.pid not in process.parents()
    assert process.open_pidfd(identity) is None
    assert not process.kill(identity, signal.SIGTERM)


def test_a_pid_that_nobody_has_is_nobody(sleeper):
    child = sleeper()
    identity = process.identify(child.pid)
    child.kill()
    child.wait()
    assert process.identify(child.pid) is None
    assert process.open_pidfd(identity) is None


@pytest.mark.parametrize("change", [{"start": 1}, {"boot": "another"}])
def test_another_process_with_the_same_pid_gets_no_signal(sleeper, change):
    child = sleeper()
    earlier = replace(process.identify(child.pid), **change)
    assert not process.is_alive(earlier)
    assert not process.kill(earlier, signal.SIGKILL)
    child.communicate()
    assert child.returncode == 0


@pytest.mark.parametrize("pid", [0, -1])
def test_no_identity_means_a_group_of_processes(pid):
    nobody = process.Identity(pid, 0, process.boot_id())
    assert not process.kill(nobody, signal.SIGKILL)
    assert process.identify(pid) is None


def test_a_signal_reaches_the_process_it_is_meant_for(sleeper):
    child = sleeper()
    assert process.kill(process.identify(child.pid), signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


def test_no_descriptor_is_left_open(sleeper):
    child = sleeper()
    before = len(os.listdir("/proc/self/fd"))
    process.kill(process.identify(child.pid), 0)
    process.kill(process.Identity(child.pid, 1, ""), 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_descendants_are_found_through_generations(sleeper):
    child = sleeper("sh", "-c", "sh -c 'echo $$; cat; true'; true")
    grandchild = int(child.stdout.readline())
    found = [identity.pid for identity in process.descendants(child.pid)]
    assert found[0] == grandchild
    assert child.pid not in found
    assert set(found) <= {identity.pid for identity in process.descendants(os.getpid())}


def test_a_process_that_left_its_session_is_found_by_its_mark(sleeper, tmp_path):
    mark = {"FG_JOB_DIR": str(tmp_path)}
    script = "import os, sys; os.setsid(); print(flush=True); sys.stdin.read()"
    child = sleeper(sys.executable, "-c", script, env=os.environ | mark)
    child.stdout.readline()
    neighbour = sleeper(env={"FG_JOB_DIR": f"{tmp_path}2", "NOTE": f"FG_JOB_DIR={tmp_path}"})
    found = process.processes_of_job(tmp_path)
    assert found == [process.identify(child.pid)]
    assert neighbour.pid not in {identity.pid for identity in found}


def test_the_programs_of_a_fence_are_those_with_its_variable_and_those_below_its_first(tmp_path):
    words, environ = ["sh", "-c", "sleep 1000000 & echo started; wait"], {"PATH": os.environ["PATH"]}
    with (
        subprocess.Popen(words, env=environ, stdout=subprocess.PIPE) as first,
        subprocess.Popen(
            ["sleep", "1000000"], env={"PATH": os.environ["PATH"], FENCE_DIR: str(tmp_path)}
        ) as other,
    ):
        first.stdout.readline()
        below = {pid for pid, parent in process.parents().items() if parent == first.pid}
        try:
            assert len(below) == 1
            assert fence.members(tmp_path, first.pid) == {first.pid, other.pid, *below}
            assert fence.members(tmp_path, 0) == {other.pid}
        finally:
            for pid in (first.pid, other.pid, *below):
                os.kill(pid, signal.SIGKILL)
