"""The hook on limits of a context that take device memory, and on what is told of them."""

import pytest

from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, INVALID, OOM, UNSUPPORTED = 0, 1, 2, 215
STACK, FIFO, HEAP, DEPTH, LAUNCHES, CACHE = 0, 1, 2, 3, 4, 6
THREADS = 16 * 2048
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}]
WAY = pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
NAMED = [(HEAP, 1032 << 20, GIB), (STACK, 33 << 10, GIB), (FIFO, 1025 << 20, GIB)]


@pytest.fixture
def job(driver, tmp_path, new_job):
    """A job that may hold 1 GiB of a card of 8 GiB with 32,768 threads."""
    gpu = Card(memory=8 * GIB, processors=16, threads=2048)
    return make_job(driver, tmp_path / "own", [(driver.gpus(gpu)[0], GIB)])


@WAY
@pytest.mark.parametrize(("limit", "size", "takes"), NAMED)
def test_a_limit_that_names_its_size_is_charged_and_the_next_byte_is_refused(
    job, driver, limit, size, takes, way
):
    said = job.run(f"limit {limit} {size}", "info", "alloc 1", **way)
    assert said == [(OK,), (OK, GIB - takes, GIB), (OOM,)]
    assert driver.high()[0] == takes
    assert job.region().gpus[0].peak == takes


@WAY
@pytest.mark.parametrize(("limit", "size", "takes"), NAMED)
def test_a_limit_beyond_the_jobs_is_refused_before_the_driver_takes_it(job, driver, limit, size, takes, way):
    """Three times the limit of the job, which the card has."""
    said = job.run(f"limit {limit} {3 * size}", "info", f"get-limit {limit}", "alloc 1G", **way)
    assert [status for status, *_ in said] == [OOM, OK, OK, OK]
    assert driver.high()[0] == GIB
    assert job.region().refusal.startswith("GPU 0: ")


def test_memory_that_is_held_counts_with_a_limit(job, driver):
    said = job.run("alloc 512M", "limit 2 521M", "limit 2 520M", "info", "alloc 1")
    assert said == [(OK,), (OOM,), (OK,), (OK, 0, GIB), (OOM,)]
    assert driver.high()[0] == GIB


@pytest.mark.parametrize(("limit", "size"), [(DEPTH, 9), (LAUNCHES, 1 << 20)])
def test_a_limit_whose_cost_is_not_known_is_measured_and_set_back_if_it_does_not_fit(
    job, driver, limit, size
):
    usual = job.run(f"get-limit {limit}")[0][1]
    said = job.run("alloc 512M", f"limit {limit} {size}", f"get-limit {limit}", "info", "alloc 512M")
    assert said == [(OK,), (OOM,), (OK, usual, 0), (OK, GIB // 2, GIB), (OK,)]
    assert job.run(f"limit {limit} {size}", "alloc 512M")[-1] == (OOM,)


@pytest.mark.parametrize(("limit", "size", "takes"), NAMED)
def test_a_lower_limit_gives_back(job, driver, limit, size, takes):
    usual = job.run(f"get-limit {limit}")[0][1]
    said = job.run(f"limit {limit} {size}", f"limit {limit} {usual}", "info", "alloc 1G")
    assert said == [(OK,), (OK,), (OK, GIB, GIB), (OK,)]
    assert driver.used()[0] == 0


def test_a_heap_that_the_driver_takes_with_the_next_module_is_reserved_until_then(job, driver):
    """As NVIDIA's programming guide has it. It is counted once."""
    late = {"FAKE_CUDA_HEAP_AT": "module"}
    job_takes = ["limit 2 520M", "info", "module data 64M", "function 0", "info", "alloc 448M", "alloc 1"]
    said = job.run(*job_takes, **late)
    assert said[1] == (OK, GIB // 2, GIB)
    assert said[4] == (OK, 448 * MIB, GIB)
    assert [status for status, *_ in said] == [OK] * 6 + [OOM]
    assert driver.high()[0] == GIB
    assert job.run("limit 2 520M", "limit 2 8M", "info", **late)[1:] == [(OK,), (OK, GIB, GIB)]


@pytest.mark.parametrize("end", ["reset-primary", "release-primary"])
@pytest.mark.parametrize(("limit", "size", "takes"), NAMED)
def test_the_end_of_a_context_gives_its_limits_back(job, driver, end, limit, size, takes):
    said = job.run(f"limit {limit} {size}", end, "primary", "info", "alloc 1G", "alloc 1")
    assert said[1:] == [(OK,), (OK,), (OK, GIB, GIB), (OK,), (OOM,)]
    assert driver.high()[0] == GIB


def test_a_context_of_its_own_is_charged_and_given_back(job, driver):
    live = job.start(FAKEJOB_BARE="1")
    for command in ("context", "limit 2 520M"):
        assert live.say(command) == (OK,)
    assert job.region().gpus[0].held == driver.used()[0] == 512 * MIB
    assert live.say("context-end 0") == (OK,)
    assert job.region().gpus[0].held == driver.used()[0] == 0
    live.end()


def test_another_process_of_the_job_is_told_of_it_at_once(job):
    first, second = job.start(), job.start()
    assert first.say("limit 2 520M") == (OK,)
    assert second.say("info") == (OK, GIB // 2, GIB)
    assert second.say("alloc 513M") == (OOM,)
    first.kill()
    assert second.say("alloc 1G") == (OK,)
    second.end()


def test_what_the_driver_refuses_is_not_charged_and_keeps_its_own_error(job, driver):
    said = job.run("limit 9 1", "limit -1 1", f"limit {CACHE} 1M", "info")
    assert said == [(UNSUPPORTED,), (INVALID,), (OK,), (OK, GIB, GIB)]
    hog = make_job(driver, job.folder.parent / "hog", [(driver_gpu(job), 8 * GIB)]).start()
    assert hog.say("alloc 7680M") == (OK,)
    assert job.run("limit 2 1000M", "limit 2 500M") == [(OOM,), (OK,)]
    hog.end()
    assert job.run("info") == [(OK, GIB, GIB)]


def driver_gpu(job):
    return Card(uuid=job.region().gpus[0].uuid)


def test_the_child_of_a_fork_does_not_count_its_parents_limits(job):
    said = job.run("limit 2 520M", "fork info", "info")
    assert said[-1] == (OK, GIB // 2, GIB)
