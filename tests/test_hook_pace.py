"""The hook on launches: each way to put work on a card waits for the job's turn, and nothing else does."""

import os
import subprocess
import time

import pytest

from awaiting import PATIENCE
from fakecuda import Card
from fakecuda.job import answers, make_job
from fgshim import region

pytestmark = pytest.mark.compiler
GIB = 1 << 30
OK = 0
TWO_MS = "2000000"
PLAIN = ("kernel", "ex", "cooperative", "graph")
ONLY_LEGACY = ("many", "grid", "gridasync", "one")
LOOKUP = {"LAUNCHER_VIA": "lookup"}
TWINS = {"LAUNCHER_TWINS": "1"}


@pytest.fixture
def paced_job(driver, tmp_path):
    """paced_job(policy, share) -> a Job of one card."""
    [gpu] = driver.gpus(Card(memory=8 * GIB))

    def make(policy, share, name="paced"):
        return make_job(driver, tmp_path / name, [(gpu, GIB)], pacing=[(policy, share)])

    return make


def launch(job, *words, **extra):
    """(status, launches that the driver saw, microseconds that it took)."""
    command = [job.driver.launcher, *map(str, words)]
    done = subprocess.run(
        command, env=job.environment(**extra), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    return answers(f"launcher {done.stdout}")[0]


@pytest.mark.parametrize("way", [*PLAIN, *ONLY_LEGACY])
@pytest.mark.parametrize("found", [{}, LOOKUP])
def test_every_launch_of_a_paced_job_takes_its_turn(paced_job, way, found):
    status, seen, took = launch(paced_job("hard", 2000), way, TWO_MS, 20, **found)
    assert (status, seen) == (OK, 20)
    assert took > 100_000, "40 ms of kernels in a fifth of the time, less what is saved up"


@pytest.mark.parametrize("way", PLAIN)
@pytest.mark.parametrize("found", [TWINS, TWINS | LOOKUP])
def test_the_per_thread_twins_take_their_turns_too(paced_job, way, found):
    status, seen, took = launch(paced_job("hard", 2000), way, TWO_MS, 20, **found)
    assert (status, seen) == (OK, 20)
    assert took > 100_000


@pytest.mark.parametrize("way", [*PLAIN, *ONLY_LEGACY])
def test_a_job_that_is_not_paced_launches_as_without_the_hook(job, way):
    status, seen, took = launch(job, way, TWO_MS, 20)
    assert (status, seen) == (OK, 20)
    assert took >= 40_000


def test_a_launch_that_waits_goes_to_the_driver_exactly_once(paced_job):
    assert launch(paced_job("hard", 1000), "kernel", 100_000, 100)[:2] == (OK, 100)


@pytest.mark.parametrize("share", [5000, 9000])
def test_a_kernel_that_runs_until_a_later_launch_does_not_stop_that_launch(paced_job, share):
    """A persistent kernel, or one that waits for a flag. The launches come late, and all of them come."""
    job = paced_job("hard", share)
    assert launch(job, "kernel", 1000, 6, LAUNCHER_UNTIL="5")[:2] == (OK, 6)


def test_a_process_that_ended_amid_such_a_kernel_leaves_the_next_one_able_to_launch(paced_job):
    job = paced_job("hard", 5000)
    words = [job.driver.launcher, "kernel", "1000", "4"]
    first = subprocess.Popen(words, env=job.environment(LAUNCHER_UNTIL="9"), stdout=subprocess.DEVNULL)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(timeout=4)  # it waits for the kernel
    first.kill()
    first.wait()
    assert launch(job, "kernel", 1000, 3)[:2] == (OK, 3)


def test_what_is_recorded_does_not_wait(paced_job):
    """A thousand kernels of a second each, in a graph, cost no time until the graph is launched."""
    status, seen, _ = launch(paced_job("hard", 1), "kernel", 10**9, 1000, LAUNCHER_CAPTURE="1")
    assert (status, seen) == (OK, 1000)


@pytest.mark.parametrize(("share", "quiet"), [(5000, False), (10_000, True)])
def test_neighbours_are_told_that_a_job_launches_which_nobody_paces(paced_job, share, quiet):
    job = paced_job("none", share)
    assert launch(job, "kernel", 10_000, 100)[0] == OK
    before = time.monotonic_ns() - 1_000_000_000
    fd = region.open_region(job.region_file)
    try:
        account = region.Account(fd, 0)
        account.read()
        assert account.flying(before) == (0 if quiet else 1)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("policy", "share"), [("none", 1), ("hard", 10_000), ("fair", 10_000)])
def test_a_whole_card_and_the_policy_none_are_not_paced(paced_job, policy, share):
    status, seen, took = launch(paced_job(policy, share), "kernel", 10_000, 100, 1)
    assert (status, seen) == (OK, 100)
    assert took >= 1000


def test_two_processes_share_one_budget(paced_job):
    """Eighty milliseconds of kernels in a quarter of the time: it does not matter how many launch them."""
    job = paced_job("hard", 2500)
    command, env = [job.driver.launcher, "kernel", TWO_MS, "20"], job.environment()
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0].split() for process in both]
    assert [int(words[0]) for words in said] == [OK, OK]
    assert max(int(words[2]) for words in said) > 120_000
