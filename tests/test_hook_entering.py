"""The hook on contexts that are made: what one costs is reserved before it is made, and counted once."""

import subprocess
import sys

import pytest

from fakecuda import Card
from fakecuda.job import make_job
from fgshim import region

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, NOT_INITIALIZED, OOM = 0, 3, 2
COST = 256 * MIB
PROCESSORS, THREADS = 132, 2048
STACKS = PROCESSORS * THREADS << 10  # of an H100
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}]
MAKE = ["primary", "green", *(f"context {abi}" for abi in (1, 2, 3, 4, 5, 6, 7, 8))]


@pytest.fixture
def job_of(driver, tmp_path, new_job):
    """job_of(limit, …, taken=…) -> a job on as many cards, where contexts cost COST and count as `taken`."""
    gpus = driver.gpus(*[Card(memory=8 * GIB, context=COST) for _ in range(2)])
    made = []

    def make(*limits, taken=COST):
        made.append(1)
        given = list(zip(gpus, limits, strict=False))
        return make_job(driver, tmp_path / f"own{len(made)}", given, contexts=[taken] * len(given))

    return make


@pytest.fixture
def first_job(driver, tmp_path, new_job):
    """first_job(limit, …) -> a job on a GPU model whose contexts, of 518 MiB, were not measured yet."""

    def make(limit, *, taken=COST, is_measured=False, processors=PROCESSORS, threads=THREADS):
        gpu = Card(memory=8 * GIB, context=518 * MIB, processors=processors, threads=threads)
        given = [(driver.gpus(gpu)[0], limit)]
        return make_job(driver, tmp_path / "first", given, contexts=[taken], is_measured=is_measured)

    return make


def held(job):
    return [gpu.held for gpu in job.region().gpus]


def see(job, *sizes):
    """What the controller does once it has looked: each living process has so much past the calls."""
    for process, size in zip(job.region().processes, sizes, strict=False):
        region.set_seen(job.region_file, process, 0, size)


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
def test_a_context_counts_from_its_first_moment_and_nothing_goes_over_the_limit(job_of, driver, way):
    job = job_of(GIB)
    said = job.run("info", "alloc 768M", "info", "alloc 2M", **way)
    assert said == [(OK, GIB - COST, GIB), (OK,), (OK, 0, GIB), (OOM,)]
    assert driver.high()[0] == GIB
    assert job.region().gpus[0].peak == GIB


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
@pytest.mark.parametrize("made", MAKE)
def test_a_context_that_does_not_fit_is_out_of_memory_before_the_driver_makes_it(job_of, driver, made, way):
    job = job_of(COST - 1)
    assert job.run(made, FAKEJOB_BARE="1", **way) == [(OOM,)]
    assert driver.high()[0] == 0
    assert job.region().refusal.startswith(
        "GPU 0: a CUDA context, taken to cost 256.0 MiB, refused to process "
    )
    assert "0.0 MiB of 256.0 MiB held" in job.region().refusal


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
@pytest.mark.parametrize("made", MAKE)
def test_of_several_contexts_in_a_process_the_first_is_charged_and_the_last_gives_back(job_of, made, way):
    job, found = job_of(GIB), []
    live = job.start(FAKEJOB_BARE="1", **way)
    ends = {"primary": "release-primary", "green": "green-end 0"}.get(made, "context-end 0")
    for command in (made, "context", "primary", "release-primary", ends, "context-end -1"):
        command = command.replace("-1", "0" if made == "primary" else "1")
        assert live.say(command)[0] == OK
        found.append(held(job)[0])
    assert found == [COST, COST, COST, COST, COST, 0]
    live.end()


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
def test_a_primary_context_that_is_released_and_retained_again_is_charged_again(job_of, way):
    job = job_of(GIB)
    live = job.start(**way)
    found = []
    for command in (
        "info",
        "release-primary",
        "primary",
        "primary",
        "release-primary",
        "reset-primary",
        "primary",
    ):
        live.say(command)
        found.append(held(job)[0])
    live.end()
    assert found == [COST, 0, COST, COST, COST, 0, COST]


def test_who_leaves_a_context_last_gives_it_back(job_of):
    job = job_of(GIB)
    live = job.start()
    for command in ("context", "release-primary", "attach", "detach 0"):
        assert live.say(command) == (OK,)
    assert held(job) == [COST]
    assert live.say("detach 0") == (OK,)
    assert held(job) == [0]
    live.end()


def test_a_context_that_the_driver_refuses_is_not_charged(job_of, driver, new_job):
    job = job_of(8 * GIB)
    other = job_of(8 * GIB, taken=0)
    hog = other.start()
    assert hog.say("alloc 7936M") == (OK,)
    live = job.start()
    assert live.say("info") == (OOM,)
    assert held(job) == [0]
    assert job.region().refusal == ""
    hog.end()
    assert live.say("info") == (OK, 8 * GIB - COST, 8 * GIB)
    live.end()


@pytest.mark.parametrize("seen", [0, 100 * MIB, 700 * MIB])
def test_what_was_seen_takes_the_place_of_what_was_reserved(job_of, seen):
    job = job_of(GIB)
    live = job.start()
    assert live.say("alloc 128M") == (OK,)
    see(job, seen)
    assert held(job) == [128 * MIB + seen]
    assert live.say("info") == (OK, GIB - 128 * MIB - seen, GIB)
    live.end()


def test_what_was_seen_of_contexts_that_are_no_more_does_not_count(job_of):
    job = job_of(GIB)
    live = job.start()
    live.say("info")
    before = job.region().processes[0]
    see(job, 700 * MIB)
    live.say("reset-primary")
    assert held(job) == [0]
    region.set_seen(job.region_file, before, 0, 600 * MIB)  # a look that comes late
    assert held(job) == [0]
    live.say("primary")
    assert held(job) == [COST]
    assert live.say("info") == (OK, GIB - COST, GIB)
    live.end()


def test_what_was_seen_of_one_process_does_not_count_for_the_next_in_its_slot(job_of):
    job = job_of(GIB)
    first = job.start()
    first.say("info")
    before = job.region().processes[0]
    see(job, 700 * MIB)
    first.kill()
    job.run("info")  # whose look at the job frees the slot
    second = job.start()
    assert second.say("info") == (OK, GIB - COST, GIB)
    assert job.region().processes[0].slot == before.slot
    region.set_seen(job.region_file, before, 0, 700 * MIB)
    assert second.say("info") == (OK, GIB - COST, GIB)
    assert held(job) == [COST]
    second.end()


def test_each_process_of_a_job_has_its_own_context_charged(job_of, driver):
    job = job_of(3 * COST - MIB)
    lives = [job.start() for _ in range(3)]
    assert [live.say("info")[0] for live in lives] == [OK, OK, OOM]
    assert held(job) == [2 * COST]
    see(job, 100 * MIB, 100 * MIB)
    assert lives[2].say("info")[0] == OK
    assert held(job) == [200 * MIB + COST]
    for live in lives:
        live.end()
    assert driver.high()[0] == 3 * COST  # what was seen was less than the truth


def test_a_killed_process_gives_its_context_back(job_of):
    job = job_of(COST)
    first, second = job.start(), job.start()
    assert first.say("info") == (OK, 0, COST)
    assert second.say("info") == (OOM,)
    first.kill()
    assert held(job) == [0]
    assert second.say("info") == (OK, 0, COST)
    second.end()


def test_a_program_that_executes_another_gives_its_context_back(job_of, driver):
    job = job_of(COST)
    said = job.run("info", f"exec {driver.program} info")
    assert said == [(OK, 0, COST), (OK, 0, COST)]


FORKING = """
import ctypes, os
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context, handle, memory = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
def used():
    nvml.nvmlDeviceGetMemoryInfo(handle, memory)
    return memory[2]
said = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
if child := os.fork():
    os.waitpid(child, 0)
    print(*said, used(), flush=True)
else:
    print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), used(), flush=True)
    os._exit(0)
"""


def test_the_child_of_a_fork_does_not_count_its_parents_contexts_again(job_of):
    job = job_of(GIB)
    words = [sys.executable, "-c", FORKING]
    done = subprocess.run(words, env=job.environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{NOT_INITIALIZED} {COST}", f"{OK} {OK} {COST}"]


def test_each_card_has_its_own(job_of):
    job = job_of(GIB, COST - 1)
    live = job.start()
    assert live.say("info") == (OK, GIB - COST, GIB)
    assert live.say("device 1") == (OK,)
    assert live.say("primary") == (OOM,)
    assert held(job) == [COST, 0]
    assert job.region().refusal.startswith("GPU 1: a CUDA context")
    live.end()
    job = job_of(GIB, GIB)
    live = job.start()
    for command in ("info", "device 1", "primary"):
        live.say(command)
    assert held(job) == [COST, COST]
    live.say("reset-primary")
    assert held(job) == [COST, 0]
    live.end()


def test_where_nothing_is_known_of_what_a_context_costs_none_is_charged(job_of):
    job = job_of(COST // 2, taken=0)
    assert job.run("info") == [(OK, COST // 2, COST // 2)]


def test_a_pool_is_emptied_before_a_context_is_refused(job_of):
    job = job_of(GIB)
    live = job.start()
    assert live.say("threshold 1G")[0] == OK
    see(job, 0)
    for command in ("async 1G", "afree 0", "sync", "release-primary"):
        assert live.say(command)[0] == OK
    assert held(job) == [GIB]
    assert live.say("primary") == (OK,)
    assert held(job) == [COST]
    live.end()


@pytest.mark.parametrize("made", MAKE)
def test_until_a_context_was_measured_the_stacks_of_the_gpus_threads_are_charged_with_it(first_job, made):
    job = first_job(2 * GIB)
    live = job.start(FAKEJOB_BARE="1")
    assert live.say(made)[0] == OK
    assert held(job) == [COST + STACKS]
    live.end()


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
def test_the_first_job_on_a_gpu_model_does_not_exceed_its_limit_by_its_contexts(first_job, driver, way):
    job = first_job(2 * GIB)
    first, second = job.start(**way), job.start(**way)
    rest = 2 * GIB - 2 * (COST + STACKS)
    assert first.say("info") == (OK, 2 * GIB - COST - STACKS, 2 * GIB)
    assert second.say("info") == (OK, rest, 2 * GIB)
    assert first.say(f"alloc {rest}") == (OK,)
    assert second.say("alloc 2M") == (OOM,)
    assert 2 * GIB - 4 * MIB <= driver.high()[0] <= 2 * GIB
    first.end()
    second.end()


@pytest.mark.parametrize(
    ("limit", "charge"),
    [
        (2 * (COST + STACKS), COST + STACKS),
        (1000 * MIB, 500 * MIB),
        (2 * COST, COST),
        (300 * MIB, COST),
        (COST, COST),
    ],
)
def test_assumed_stacks_take_at_most_half_of_the_limit_and_exclude_no_job(first_job, limit, charge):
    job = first_job(limit)
    assert job.run("info") == [(OK, limit - charge, limit)]


@pytest.mark.parametrize(
    "about",
    [{"processors": 0}, {"threads": 0}, {"is_measured": True}],
    ids=["no multiprocessors", "no threads", "measured"],
)
def test_what_was_measured_or_is_not_known_is_charged_without_stacks(first_job, about):
    job = first_job(2 * GIB, **about)
    assert job.run("info") == [(OK, 2 * GIB - COST, 2 * GIB)]


def test_where_nothing_is_to_be_reserved_no_stacks_are_charged_either(first_job):
    job = first_job(2 * GIB, taken=0)
    assert job.run("info") == [(OK, 2 * GIB, 2 * GIB)]
