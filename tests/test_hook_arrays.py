"""The hook on arrays: their real size, whatever their shape."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.compiler
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
OK, INVALID, OOM, INVALID_HANDLE = 0, 1, 2, 400
FREE = (OK, GIB, GIB)
U8, U16, U32, HALF, FLOAT = 0x01, 0x02, 0x03, 0x10, 0x20
LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x01, 0x04, 0x40, 0x80
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}]

SHAPES = {
    # what is made: what it takes
    f"array 1048576 0 0 {FLOAT} 4 0": 16 * MIB,
    f"array 4096 4096 0 {U8} 1 0": 16 * MIB,
    f"array 4096 4096 0 {U16} 2 0": 64 * MIB,
    f"array 1000 1000 0 {FLOAT} 1 0": 4032 * 1000 // (64 * KIB) * 64 * KIB + 64 * KIB,
    f"array 256 256 256 {HALF} 4 0": 128 * MIB,
    f"array 512 512 6 {FLOAT} 4 {LAYERED | CUBEMAP}": 24 * MIB,
    f"array 65536 0 100 {U32} 1 {LAYERED}": 25 * MIB,
    f"array 4096 4096 4096 {FLOAT} 4 {SPARSE}": 0,
    f"array 4096 4096 0 {FLOAT} 4 {DEFERRED}": 0,
    f"mipmap 4096 4096 0 {FLOAT} 1 0 1": 64 * MIB,
    f"mipmap 1024 1024 0 {FLOAT} 4 0 3": 21 * MIB,
    f"mipmap 4096 4096 0 {FLOAT} 4 {SPARSE} 12": 0,
}


def end_of(shape):
    return f"{shape.split()[0]}-end 0"


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
@pytest.mark.parametrize(("shape", "size"), SHAPES.items())
def test_an_array_is_charged_by_its_real_size(job, driver, shape, size, way):
    live = job.start(**way)
    assert live.say(shape) == (OK,)
    assert (job.region().gpus[0].held, driver.used()[0]) == (size, size)
    assert live.say(end_of(shape)) == (OK,)
    assert job.region().gpus[0].held == 0
    live.end()


@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_driver_that_cannot_say_never_less_is_charged(job, shape):
    live = job.start(FAKE_CUDA_OLD="1")
    assert live.say(shape) == (OK,)
    held, size = job.region().gpus[0].held, SHAPES[shape]
    assert size <= held <= size * 1.1
    assert live.say(end_of(shape)) == (OK,)
    assert job.region().gpus[0].held == 0
    live.end()


@pytest.mark.parametrize(
    "verb", ["array 8192 8192 0 3 4 0", "array 1024 1024 64 3 4 0", "mipmap 8192 8192 0 3 4 0 1"]
)
def test_arrays_fill_exactly_the_limit(job, driver, verb):
    assert job.run(verb, "alloc 1", end_of(verb), "alloc 1", verb) == [(OK,), (OOM,), (OK,), (OK,), (OOM,)]
    assert driver.high()[0] == GIB


def test_an_array_of_a_size_past_all_counting_is_refused(job):
    said = job.run("array 0xffffffffffffffff 0xffffffffffffffff 0xffffffffffffffff 32 4 0", "info")
    assert said == [(OOM,), FREE]


def test_what_the_driver_does_not_make_is_not_charged(job):
    assert job.run("array 64 64 0 99 1 0", "array 0 0 0 32 1 0", "array-end 0", "info") == [
        (INVALID,),
        (INVALID,),
        (INVALID_HANDLE,),
        FREE,
    ]


def test_an_array_is_no_memory_to_be_freed_by_address(job):
    said = job.run("array 4096 4096 0 32 1 0", "free 0", "info", "array-end 0", "info")
    assert said == [(OK,), (INVALID,), (OK, GIB - 64 * MIB, GIB), (OK,), FREE]


OLDEST = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, array, words = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32
print(cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
flat, deep = (words * 4)(8192, 8192, 0x20, 2), (words * 6)(1024, 1024, 64, 0x20, 2, 0)
print(cuda.cuArrayCreate(ctypes.byref(array), flat), cuda.cuArray3DCreate(ctypes.byref(array), deep))
print(cuda.cuArrayDestroy(array), cuda.cuArray3DCreate(ctypes.byref(array), deep), cuda.cuCtxDestroy(context))
print(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), cuda.cuArrayCreate(ctypes.byref(array), flat))
"""


def test_the_calls_of_2007_are_counted_too_and_end_with_their_context(job, driver):
    """512 MiB each, all of the limit twice; a third is refused."""
    words = [sys.executable, "-c", f"{OLDEST}print(cuda.cuArray3DCreate(ctypes.byref(array), deep), *THIRD)"]
    words[-1] = words[-1].replace("*THIRD", "cuda.cuArrayCreate(ctypes.byref(array), flat)")
    done = subprocess.run(words, env=job.environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "0", "0", "0", "0", "0", "0", "0", "0", "2"]
    assert driver.high()[0] == GIB
