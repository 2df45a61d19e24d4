"""The hook on contexts: with one goes everything that was taken in it, and nothing else."""

import pytest

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, INVALID, OOM = 0, 1, 2
FREE = (OK, GIB, GIB)
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}]
TAKE = [
    "alloc 128M",
    "managed 128M",
    "pitch 1048576 128",
    "array 4096 2048 0 32 4 0",
    "mipmap 4096 2048 0 32 4 0 1",
]
HELD = (OK, GIB - 640 * MIB, GIB)


def test_a_reset_gives_back_everything_and_the_device_is_used_on(job, driver):
    said = job.run(*TAKE, "info", "reset-primary", "primary", "info", "alloc 1G", "alloc 1")
    assert said[5:] == [HELD, (OK,), (OK,), FREE, (OK,), (OOM,)]
    assert driver.high()[0] == GIB


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
def test_only_the_last_release_of_the_primary_context_gives_back(job, way):
    said = job.run(*TAKE, "primary", "release-primary", "info", "release-primary", "primary", "info", **way)
    assert said[6:] == [(OK,), HELD, (OK,), (OK,), FREE]


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
def test_a_destroyed_context_takes_along_what_is_its_own_only(job, way):
    said = job.run("alloc 256M", "context", "alloc 512M", "info", "context-end 1", "primary", "info", **way)
    assert said[3:] == [(OK, 256 * MIB, GIB), (OK,), (OK,), (OK, 768 * MIB, GIB)]


@pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
def test_the_last_to_leave_a_context_takes_its_memory_along(job, driver, way):
    """cuCtxAttach and cuCtxDetach, from before there were primary contexts."""
    said = job.run(
        "context", "alloc 512M", "attach", "detach 0", "info", "detach 0", "primary", "info", **way
    )
    assert said[2:] == [(OK,), (OK,), (OK, GIB // 2, GIB), (OK,), (OK,), FREE]
    assert driver.used()[0] == 0


def test_memory_of_a_context_that_is_no_more_is_not_given_back_twice(job):
    said = job.run(
        "context", "alloc 512M", "context-end 0", "primary", "alloc 1G", "free 1", "free 2", "info"
    )
    assert said[4:] == [(OK,), (INVALID,), (OK,), FREE]


def test_what_other_threads_took_goes_too(job):
    live = job.start()
    assert live.say("race-hold 4 16M") == (OK,)
    assert job.region().gpus[0].held == 64 * MIB
    assert live.say("reset-primary") == (OK,)
    assert job.region().gpus[0].held == 0
    live.end()


def test_blocks_and_pools_belong_to_no_context(job, driver):
    live = job.start()
    for command in ("create 256M", "threshold 1G", "async 256M", "reset-primary"):
        assert live.say(command)[0] == OK
    assert job.region().gpus[0].held == driver.used()[0] == 512 * MIB
    live.end()


def test_memory_of_a_green_context_is_its_primary_contexts(job):
    said = job.run("green", "alloc 512M", "primary", "info", "green-end 0", "info", "release-primary")
    half = (OK, GIB // 2, GIB)
    assert said[3:] == [half, (OK,), half, (OK,)]
    said = job.run(
        "green",
        "alloc 512M",
        "primary",
        "release-primary",
        "release-primary",
        "green-end 0",
        "primary",
        "info",
    )
    assert said[-1] == FREE
