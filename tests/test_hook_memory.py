"""The hook on linear memory: what is charged, refused and given back."""

import subprocess
import sys

import pytest

from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, INVALID, OOM, INVALID_DEVICE = 0, 1, 2, 101
WAYS = [{"FAKEJOB_VIA": "dlsym"}, {"FAKEJOB_VIA": "lookup"}, {"FAKEJOB_VIA": "lookup", "FAKEJOB_TWINS": "1"}]


@pytest.fixture(params=["dlsym", "cuGetProcAddress", "per-thread twins", "linked"])
def program(request, driver):
    """fakejob, by each way in which programs find the driver."""
    ways = dict(zip(("dlsym", "cuGetProcAddress", "per-thread twins"), WAYS, strict=True))
    own = driver.linked if request.param == "linked" else driver.program
    return {"program": own, **ways.get(request.param, {})}


def test_memory_up_to_the_limit_is_given_and_one_byte_more_is_not(job, program):
    assert job.run(f"alloc {GIB}", "alloc 1", "free 0", f"alloc {GIB + 1}", **program) == [
        (OK,),
        (OOM,),
        (OK,),
        (OOM,),
    ]
    [gpu] = job.region().gpus
    assert (gpu.held, gpu.peak, gpu.refusals) == (0, GIB, 2)


@pytest.mark.parametrize("verb", ["alloc", "managed", "create", "async"])
def test_each_family_fills_exactly_the_limit(job, program, verb):
    take = [f"{verb} 256M"] * 5
    assert job.run(*take, "info", **program) == [(OK,)] * 4 + [(OOM,), (OK, 0, GIB)]
    assert job.region().gpus[0].peak == GIB


def test_the_families_count_together(job, program):
    commands = ["alloc 256M", "managed 256M", "create 256M", "async 256M", "alloc 1", "info"]
    assert job.run(*commands, **program) == [(OK,)] * 4 + [(OOM,), (OK, 0, GIB)]


def test_a_pitched_area_is_charged_by_the_pitch_it_got(job):
    assert job.run("pitch 1000 4096", "info") == [(OK,), (OK, GIB - 4096 * 1024, GIB)]


@pytest.mark.parametrize("call", ["alloc", "managed"])
@pytest.mark.parametrize(
    ("size", "count", "chunks"), [(1, 4096, 1), (1, 4097, 2), ("700K", 3, 2), ("512K", 8, 2), ("1M", 4, 2)]
)
def test_small_allocations_are_charged_by_the_chunks_that_they_take(job, driver, call, size, count, chunks):
    """The driver packs them into chunks of 2 MiB, and gives 512 bytes at least."""
    live = job.start()
    assert {live.say(f"{call} {size}") for _ in range(count)} == {(OK,)}
    assert live.say("info") == (OK, GIB - chunks * 2 * MIB, GIB)
    assert driver.used()[0] == chunks * 2 * MIB
    for at in range(count):
        live.say(f"free {at}")
    assert live.say("info") == (OK, GIB, GIB)
    live.end()


def test_a_chunk_stays_charged_until_its_last_allocation_is_freed(job, driver):
    commands = [*["alloc 512K"] * 8, *(f"free {at}" for at in range(8) if at % 4), "info"]
    assert job.run(*commands)[-1] == (OK, GIB - 4 * MIB, GIB)


@pytest.mark.parametrize(("size", "most"), [(1, 28673), ("700K", 15)])
def test_small_allocations_never_exceed_the_limit(new_job, driver, size, most):
    """The driver does not say whether the next one needs another chunk, so room for one is kept."""
    job = new_job(16 * MIB)
    said = job.run(*[f"alloc {size}"] * (most + 8))
    assert said == [(OK,)] * most + [(OOM,)] * 8
    assert driver.high()[0] <= 16 * MIB


def test_small_allocations_of_a_context_end_with_it(job):
    assert job.run("context", "alloc 700K", "alloc 700K", "alloc 700K", "info", "context-end 0", "info")[
        -3:
    ] == [
        (OK, GIB - 4 * MIB, GIB),
        (OK,),
        (OK, GIB, GIB),
    ]


def test_a_size_past_all_counting_is_refused(job):
    huge = ["alloc 0xffffffffffffffff", "pitch 0xffffffffffffffff 2", f"pitch {1 << 40} {1 << 40}", "info"]
    assert job.run("alloc 2M", *huge) == [(OK,)] + [(OOM,)] * 3 + [(OK, GIB - 2 * MIB, GIB)]


def test_nothing_and_nowhere_get_the_drivers_own_answer(job):
    assert job.run("alloc 0", "alloc-null 2M", "info-null", "info") == [(INVALID,)] * 3 + [(OK, GIB, GIB)]


def test_what_the_driver_refuses_is_not_charged(job, driver, new_job):
    stranger = new_job(8 * GIB)
    other = stranger.start()
    assert other.say(f"alloc {8 * GIB - 2 * MIB}") == (OK,)
    assert job.run("alloc 4M", "info") == [(OOM,), (OK, 2 * MIB, GIB)]  # what the other has left
    other.end()
    [gpu] = job.region().gpus
    assert (gpu.peak, gpu.refusals) == (0, 0)


def test_an_unknown_address_and_a_second_free_are_the_drivers_affair(job):
    commands = ["free-address 12345", "alloc 2M", "free 0", "free 0", "free-address 0", "info"]
    assert job.run(*commands) == [(INVALID,), (OK,), (OK,), (INVALID,), (OK,), (OK, GIB, GIB)]


def test_memory_that_is_freed_on_the_way_out_is_the_drivers_as_ever(job, driver):
    assert job.run("alloc 512M", "managed 16M", "at-exit") == [(OK,)] * 5
    assert driver.used()[0] == 0


def test_a_refusal_leaves_errno_alone(job):
    assert job.run("errno 2M", "errno 2G", "errno 2G") == [(OK, 77, 0), (OOM, 77, 0), (OOM, 77, 0)]


def test_each_card_has_its_own_limit_and_others_have_none(new_job):
    job, stranger = new_job(GIB, 2 * GIB), new_job(GIB, GIB, GIB)
    assert job.run("device 1", "alloc 2G", "alloc 1", "total") == [(OK,), (OK,), (OOM,), (OK, 2 * GIB, 0)]
    assert job.run("device 2", "alloc 1") == [(OK,), (INVALID_DEVICE,)]
    theirs = stranger.region().gpus[2].uuid
    assert job.run("alloc 1", CUDA_VISIBLE_DEVICES=theirs) == [(OOM,)]


def test_a_card_is_known_by_its_uuid_whatever_its_ordinal(new_job):
    job = new_job(GIB, 2 * GIB)
    assert job.run("total", CUDA_VISIBLE_DEVICES="1,0") == [(OK, 2 * GIB, 0)]
    uuid = job.region().gpus[1].uuid
    assert job.run("total", "alloc 2G", "info", CUDA_VISIBLE_DEVICES=uuid) == [
        (OK, 2 * GIB, 0),
        (OK,),
        (OK, 0, 2 * GIB),
    ]


def test_processes_of_a_job_share_one_limit(job):
    first = job.start()
    assert first.say("alloc 768M") == (OK,)
    assert job.run("info", "alloc 257M", "alloc 256M") == [(OK, 256 * MIB, GIB), (OOM,), (OK,)]
    first.end()
    assert job.run("info", "alloc 1G") == [(OK, GIB, GIB), (OK,)]


def test_untracked_memory_counts_as_held(job):
    from fgshim import region

    region.set_untracked(job.region_file, 0, 256 * MIB)
    assert job.run("info", "alloc 769M", "alloc 768M") == [(OK, 768 * MIB, GIB), (OOM,), (OK,)]
    assert job.region().gpus[0].peak == GIB


def test_two_jobs_do_not_know_of_each_other(new_job):
    one, two = new_job(GIB), new_job(2 * GIB)
    first = one.start()
    assert first.say("alloc 1G") == (OK,)
    assert two.run("info", "alloc 2G") == [(OK, 2 * GIB, 2 * GIB), (OK,)]
    first.end()


OLD = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
here, size, other = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32()
context, by = ctypes.c_void_p(), ctypes.byref
def say(status, *figures):
    print(status, *(figure.value >> 20 for figure in figures))
    return here.value
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(by(context), 0), cuda.cuCtxSetCurrent(context)
say(cuda.cuDeviceTotalMem(by(size), 0), size)
first = say(cuda.cuMemAlloc(by(here), 600 << 20))
say(cuda.cuMemAlloc(by(here), 600 << 20))
say(cuda.cuMemGetInfo(by(size), by(other)), size, other)
second = say(cuda.cuMemAllocPitch(by(here), by(size), 300 << 10, 1024, 4))
say(cuda.cuMemAllocPitch(by(here), by(size), 300 << 10, 1024, 4))
say(cuda.cuMemFree(second)), say(cuda.cuMemFree(second))
say(cuda.cuMemFree_v2(ctypes.c_uint64(first)))
say(cuda.cuMemGetInfo(by(size), by(other)), size, other)
"""


def test_the_calls_with_addresses_of_32_bits_count_like_the_others(job):
    words = [sys.executable, "-c", OLD]
    done = subprocess.run(words, env=job.environment(), check=True, capture_output=True, text=True)
    said = ["0 1024", "0", "2", "0 424 1024", "0", "2", "0", "1", "0", "0 1024 1024"]
    assert done.stdout.splitlines() == said


def test_free_memory_that_is_asked_alone_is_what_the_card_has_at_most(driver, tmp_path, new_job):
    """A limit above the card's size, and no place for the total."""
    job = make_job(driver, tmp_path / "large", [(driver.gpus(Card(memory=GIB))[0], 4 * GIB)])
    assert job.run("alloc 256M", "info-free", "info") == [(OK,), (OK, 768 * MIB, 0), (OK, 768 * MIB, GIB)]


def test_the_memory_of_a_suspended_process_stays_counted(job, driver):
    """A checkpoint moves it to the host, and a restore brings it back."""
    said = job.run("alloc 512M", "checkpoint", "info", "restore", "info", "alloc 512M", "alloc 1")
    half = (OK, GIB // 2, GIB)
    assert said == [(OK,), (OK,), half, (OK,), half, (OK,), (OOM,)]
    assert driver.high()[0] == GIB
