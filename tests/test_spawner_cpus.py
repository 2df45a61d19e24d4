"""fgspawn binds a job to CPUs: the job alone, never more than is allowed, and no later job."""

import errno
import os
import shutil

import pytest

from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import HEAD, spawning
from test_spawner_rest import pair

pytestmark = NEEDS_SPAWNER
HERE = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(HERE) < 2, reason="only one CPU may be used here")
TELL = "#!/bin/sh\ngrep Cpus_allowed: /proc/self/status\n"
PATH = {"PATH": os.environ["PATH"]}
MOST = 8192  # CPUs that a message can name


def words(*cpus):
    return sum(1 << cpu for cpu in cpus).to_bytes((max(cpus) // 64 + 1) * 8, "little")


def told(job):
    """The CPUs that the last line of a job's output allows."""
    mask = int(job.output().split()[-1].replace(",", ""), 16)
    return [cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1]


def bound(spawner, cpus, **fields):
    job = spawner.launch(TELL, cpus=cpus, env=PATH, **fields)
    assert job.result().exit_code == 0
    return told(job)


@needs_two_cpus
def test_a_job_runs_on_the_cpus_it_is_bound_to(spawner):
    assert bound(spawner, words(HERE[1])) == [HERE[1]]


def test_a_job_without_a_binding_runs_wherever_the_controller_may(spawner):
    assert bound(spawner, b"") == HERE


@needs_two_cpus
def test_cpus_that_are_not_there_are_left_out(spawner):
    assert bound(spawner, words(HERE[0], MOST - 1)) == [HERE[0]]


@pytest.mark.parametrize("cpus", [words(MOST - 1), bytes(8), bytes(MOST // 8)])
def test_where_no_cpu_is_left_the_job_runs_on_all(spawner, cpus):
    assert bound(spawner, cpus) == HERE


def test_the_longest_mask_of_all_cpus_binds_to_those_that_are_there(spawner):
    assert bound(spawner, b"\xff" * (MOST // 8)) == HERE


@needs_two_cpus
def test_what_the_controller_may_not_use_no_job_is_bound_to(tmp_path):
    if not shutil.which("taskset"):
        pytest.skip("there is no taskset")
    with spawning(tmp_path, before=["taskset", "-c", str(HERE[0])]) as spawner:
        assert bound(spawner, words(HERE[1])) == [HERE[0]]
        assert bound(spawner, words(*HERE), job=2) == [HERE[0]]


@needs_two_cpus
def test_a_shepherd_is_not_bound_with_its_job(spawner, gate, go):
    job = spawner.launch("#!/bin/sh\necho $$ >gate; read -r line <go\n", cpus=words(HERE[0]))
    assert os.sched_getaffinity(gate.number()) == {HERE[0]}
    assert sorted(os.sched_getaffinity(job.answer.pid)) == HERE
    os.write(go.fd, b"go\n")
    job.over()


@needs_two_cpus
@pytest.mark.parametrize("is_bound", [False, True])
def test_the_next_job_of_a_shepherd_is_bound_as_its_own_message_says(spawner, is_bound):
    cpus = {"cpus": words(HERE[1])} if is_bound else {}
    _, two = pair(spawner, TELL, before_fields={"cpus": words(HERE[0])}, env=PATH, **cpus)
    two.over()
    assert told(two) == (HERE[1:2] if is_bound else HERE)


@pytest.mark.parametrize("count", [MOST // 64 + 1, 2**32 - 1])
def test_more_cpus_than_any_kernel_has_are_refused(spawner, count):
    wish = spawner.launch("#!/bin/sh\n").wish
    fields = list(HEAD.unpack_from(wish.pack()))
    fields[1], fields[2], fields[23] = fields[1] + MOST // 8 + 8, 9, count
    spawner.socket.sendall(HEAD.pack(*fields) + bytes(MOST // 8 + 8) + wish.pack()[HEAD.size :])
    answer = spawner.answer()
    assert (answer.job, answer.pid, answer.errno) == (9, 0, errno.EINVAL)
    spawner.expected = b"fgspawn: job 9: launch refused: Invalid argument\n"


def test_a_mask_that_ends_with_the_message_is_refused(spawner):
    wish = spawner.launch("#!/bin/sh\n").wish
    fields = list(HEAD.unpack_from(wish.pack()))
    fields[2], fields[23] = 9, MOST // 64
    spawner.socket.sendall(HEAD.pack(*fields) + wish.pack()[HEAD.size :])
    assert spawner.answer().errno == errno.EINVAL
    spawner.expected = b"fgspawn: job 9: launch refused: Invalid argument\n"
