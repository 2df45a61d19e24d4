"""The hook on managed memory that is larger than the GPU: allowed on a whole GPU, not in a part of one."""

import pytest

from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM = 0, 2
WHOLE, HALF = 10_000, 5_000
POOLS = ["pool 1 2", "managed-pool 0", "managed-pool 1"]


@pytest.fixture
def job_of(driver, tmp_path, new_job):
    """job_of(share, limit) -> a job on a card of 8 GiB."""
    gpu = driver.gpus(Card(memory=8 * GIB))[0]
    made = []

    def make(share, limit=8 * GIB, policy="hard"):
        made.append(share)
        folder = tmp_path / f"own{len(made)}"
        return make_job(driver, folder, [(gpu, limit)], pacing=[(policy, share)])

    return make


@pytest.mark.parametrize("policy", ["hard", "fair", "none"])
@pytest.mark.parametrize("limit", [8 * GIB, 8 * GIB - 256 * MIB])
def test_a_job_with_a_whole_gpu_has_managed_memory_larger_than_it_as_on_a_bare_one(job_of, policy, limit):
    """What the driver reserves may be missing from the limit."""
    said = job_of(WHOLE, limit, policy).run("managed 32G", "alloc 7G", "info", "free 0", "free 1", "info")
    assert [status for status, *_ in said] == [OK] * 6
    assert said[2] == (OK, 0, limit)  # what is left of the GPU has managed memory in it
    assert said[-1] == (OK, limit, limit)


def test_other_memory_pushes_managed_memory_to_the_host_and_the_driver_decides_what_fits(job_of, driver):
    said = job_of(WHOLE).run("managed 32G", "alloc 4G", "create 3G", "async 512M", "alloc 4G", "info")
    assert said[:5] == [(OK,), (OK,), (OK,), (OK,), (OOM,)]
    assert driver.high()[0] <= 8 * GIB


@pytest.mark.parametrize("made", POOLS)
def test_pools_of_managed_memory_are_as_large_there(job_of, made):
    said = job_of(WHOLE).run(made, "managed 16G", "from 0 4G", "free 2", "info")
    assert said == [(OK,), (OK,), (OK,), (OK,), (OK, 4 * GIB, 8 * GIB)]


@pytest.mark.parametrize("share", [HALF, 1])
def test_in_a_part_of_a_gpu_managed_memory_is_held_to_the_limit(job_of, driver, share):
    """It would push the memory of other jobs off the GPU, and no interface limits what of it is there."""
    said = job_of(share, 4 * GIB).run("managed 32G", "managed 5G", "managed 4G", "alloc 1", "info")
    assert said == [(OOM,), (OOM,), (OK,), (OOM,), (OK, 0, 4 * GIB)]
    assert driver.high()[0] == 4 * GIB


def test_a_whole_gpu_with_a_lower_limit_of_memory_is_held_to_it(job_of):
    said = job_of(WHOLE, 4 * GIB).run("managed 5G", "managed 4G", "alloc 1")
    assert said == [(OOM,), (OK,), (OOM,)]


def test_without_larger_managed_memory_a_whole_gpu_is_counted_as_any_other(job_of):
    job = job_of(WHOLE, 8 * GIB - 256 * MIB)
    said = job.run("managed 4G", "alloc 3840M", "alloc 1", "info")
    assert said == [(OK,), (OK,), (OOM,), (OK, 0, 8 * GIB - 256 * MIB)]
    assert job.region().refusal
