"""The shepherds of running jobs are followed: one pidfd each, whatever number of jobs they have."""

import os
import select
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from fgsched.launch.shepherds import Following, send_to
from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.process import identify


class Watching:
    """Watches as the loop does, and remembers who was told."""

    def __init__(self):
        self.ended, self.gone = {}, []
        self.following = Following(self.ended.__setitem__, self.gone.append)

    def hear(self):
        """Wait until one of them ends, and hear of it."""
        poll = select.poll()
        for pidfd in self.ended:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(10_000):
            self.ended.pop(pidfd)()


@pytest.fixture
def watching():
    return Watching()


@pytest.fixture
def processes():
    running = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    yield running
    for one in running:
        one.kill()
        one.wait()


@pytest.fixture
def shepherds(processes):
    return [shepherd(one.pid) for one in processes]


def shepherd(pid):
    found = identify(pid)
    return Shepherd(found.pid, found.start, found.boot)


def descriptors():
    return {
        name: os.readlink(name) for name in map(str, Path("/proc/self/fd").iterdir()) if os.path.islink(name)
    }


def test_one_descriptor_serves_all_jobs_of_a_shepherd(watching, shepherds):
    for job in (1, 2, 3):
        watching.following.follow(job, shepherds[0])
        watching.following.leave(job)
    watching.following.follow(4, shepherds[0])
    assert len(watching.ended) == 1
    assert watching.following.pidfd(4) in watching.ended
    assert watching.following.pidfd(3) is None


def test_the_jobs_that_a_shepherd_has_are_told_of_and_no_others(watching, processes, shepherds):
    following = watching.following
    following.follow(1, shepherds[0])
    following.leave(1)
    following.follow(2, shepherds[0])
    following.follow(3, shepherds[1])
    pidfd = following.pidfd(2)
    processes[0].kill()
    watching.hear()
    assert watching.gone == [2]
    assert following.pidfd(2) is None, "whoever commands it turns to the spawner"
    assert following.pidfd(3) in watching.ended
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)


def test_a_shepherd_that_ends_without_a_job_concerns_nobody(watching, processes, shepherds):
    watching.following.follow(1, shepherds[0])
    watching.following.leave(1)
    processes[0].kill()
    watching.hear()
    assert watching.gone == []
    assert watching.ended == {}


def test_a_job_whose_shepherd_is_gone_already_is_told_of_at_once(watching, processes, shepherds):
    processes[0].kill()
    processes[0].wait()
    watching.following.follow(7, shepherds[0])
    assert watching.gone == [7]
    assert watching.ended == {}


def test_another_process_with_its_pid_is_not_its_shepherd(watching, shepherds):
    before = descriptors()
    watching.following.follow(7, replace(shepherds[0], start=shepherds[0].start - 1))
    assert watching.gone == [7]
    assert descriptors().keys() == before.keys(), "and no descriptor stays open"


def test_a_job_that_starts_again_is_followed_with_its_new_shepherd(watching, processes, shepherds):
    watching.following.follow(1, shepherds[0])
    watching.following.follow(1, shepherds[1])
    processes[0].kill()
    watching.hear()
    assert watching.gone == []
    processes[1].kill()
    watching.hear()
    assert watching.gone == [1]


def test_a_command_to_a_shepherd_that_has_ended_is_not_delivered():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        shepherd = identify(process.pid)
    assert not send_to(shepherd, 1, 1, 0)
