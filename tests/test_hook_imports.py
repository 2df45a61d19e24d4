"""The hook on memory that processes give to each other: counted once, and as long as one of them has it."""

import pytest

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, INVALID, OOM = 0, 1, 2
FREE, HALF = (OK, GIB, GIB), (OK, GIB // 2, GIB)
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}]
ids = {"ids": ["dlsym", "look-up"]}


def held(job):
    return job.region().gpus[0].held


@pytest.fixture
def pair(job):
    """Two processes of the job."""
    both = job.start(), job.start()
    yield both
    for process in both:
        process.end()


def given(process, *, block=False):
    """512 MiB that the process gives away; the key."""
    assert process.say("create 512M" if block else "alloc 512M") == (OK,)
    status, key, _ = process.say("export 0" if block else "ipc-give 0")
    assert status == OK
    return key


@pytest.mark.parametrize("way", WAYS, **ids)
def test_memory_that_is_opened_by_others_of_the_job_is_counted_once(job, driver, way):
    first, second = job.start(**way), job.start(**way)
    key = given(first)
    assert second.say(f"ipc-open {key}") == (OK,)
    assert held(job) == driver.used()[0] == GIB // 2
    assert second.say("alloc 512M") == (OK,)
    assert second.say("alloc 2M") == (OOM,)
    assert second.say("ipc-close 0") == (OK,)
    assert held(job) == GIB
    assert first.say("free 0") == (OK,)
    assert held(job) == driver.used()[0] == GIB // 2
    first.end()
    second.end()


@pytest.mark.parametrize("end", ["free 0", "kill 9", "reset-primary"])
def test_it_is_charged_as_long_as_anybody_of_the_job_has_it(job, driver, pair, end):
    first, second = pair
    assert second.say(f"ipc-open {given(first)}") == (OK,)
    first.tell(end)
    first.process.stdout.readline()
    assert job.run("info", "alloc 513M") == [HALF, (OOM,)]
    assert driver.used()[0] == GIB // 2
    assert second.say("ipc-close 0") == (OK,)
    assert job.run("info", "alloc 1G") == [FREE, (OK,)]


def test_what_is_opened_twice_is_closed_twice(job, pair):
    first, second = pair
    key = given(first)
    assert [second.say(f"ipc-open {key}") for _ in range(2)] == [(OK,)] * 2
    assert first.say("free 0") == (OK,)
    assert (second.say("ipc-close 0"), held(job)) == ((OK,), GIB // 2)
    assert (second.say("ipc-close 0"), held(job)) == ((OK,), 0)
    assert second.say("ipc-close 0") == (INVALID,)


def test_opened_memory_is_not_freed_by_its_address_and_goes_with_its_context(job, pair):
    first, second = pair
    key = given(first)
    assert second.say(f"ipc-open {key}") == (OK,)
    assert second.say("free 0") == (INVALID,)
    assert second.say("reset-primary") == (OK,)
    assert first.say("free 0") == (OK,)
    assert held(job) == 0


def test_memory_of_another_job_is_charged_to_whoever_opens_it(new_job, driver):
    theirs, ours = new_job(2 * GIB), new_job(GIB)
    first, second = theirs.start(), ours.start()
    key = given(first)
    assert second.say("alloc 768M") == (OK,)
    assert second.say(f"ipc-open {key}") == (OOM,)
    assert second.say("free 0") == (OK,)
    assert second.say(f"ipc-open {key}") == (OK,)
    assert (held(theirs), held(ours)) == (GIB // 2, GIB // 2)
    assert second.say("ipc-close 2") == (OK,)
    assert (held(ours), driver.used()[0]) == (0, GIB // 2)
    first.end()
    second.end()


@pytest.mark.parametrize("way", WAYS, **ids)
def test_an_imported_block_of_the_job_is_counted_once(job, driver, way):
    first, second = job.start(**way), job.start(**way)
    key = given(first, block=True)
    assert second.say(f"import {key} 512M") == (OK,)
    assert second.say("map 0") == (OK,)
    assert held(job) == driver.used()[0] == GIB // 2
    assert second.say("release 0") == (OK,)
    assert first.say("release 0") == (OK,)
    assert held(job) == driver.used()[0] == GIB // 2
    assert second.say("unmap 1") == (OK,)
    assert held(job) == driver.used()[0] == 0
    first.end()
    second.end()


def test_a_block_outlives_the_process_that_exported_it(job, driver, pair):
    first, second = pair
    assert second.say(f"import {given(first, block=True)} 512M") == (OK,)
    assert second.say("map 0") == (OK,)
    first.process.kill()
    first.process.wait()
    assert job.run("info", "alloc 513M") == [HALF, (OOM,)]
    assert driver.used()[0] == GIB // 2


def test_a_block_that_a_process_imports_from_itself_is_counted_once(job, driver):
    live = job.start()
    key = given(live, block=True)
    assert live.say(f"import {key} 512M") == (OK,)
    assert live.say("map 1") == (OK,)
    assert held(job) == GIB // 2
    assert [live.say("release 0"), live.say("release 1")] == [(OK,)] * 2
    assert held(job) == driver.used()[0] == GIB // 2
    assert live.say("unmap 2") == (OK,)
    assert held(job) == driver.used()[0] == 0
    live.end()


def test_a_block_of_another_job_is_charged_when_it_is_mapped(new_job):
    theirs, ours = new_job(2 * GIB), new_job(GIB)
    first, second = theirs.start(), ours.start()
    key = given(first, block=True)
    assert second.say("alloc 768M") == (OK,)
    assert second.say(f"import {key} 512M") == (OK,)
    assert second.say("map 1") == (OOM,)
    assert second.say("free 0") == (OK,)
    assert second.say("map 1") == (OK,)
    assert held(ours) == GIB // 2
    assert [second.say("release 1"), second.say("unmap 3")] == [(OK,)] * 2
    assert held(ours) == 0
    first.end()
    second.end()


def test_a_block_of_another_job_is_charged_for_its_part_that_is_mapped_and_then_for_the_rest(new_job):
    theirs, ours = new_job(2 * GIB), new_job(GIB)
    first, second = theirs.start(), ours.start()
    assert second.say(f"import {given(first, block=True)} 512M") == (OK,)
    parts = []
    for command in ("map 0 2M", "map 0 256M", "map 0 128M", "alloc 600M", "map 0", "free 4", "map 0"):
        parts.append((second.say(command), held(ours) // MIB))
    assert parts == [
        *(((OK,), 2), ((OK,), 256), ((OK,), 256), ((OK,), 856)),
        *(((OOM,), 856), ((OK,), 256), ((OK,), 512)),
    ]
    assert [second.say(f"unmap {at}") for at in (1, 2, 3, 6)] == [(OK,)] * 4
    assert (second.say("release 0"), held(ours)) == ((OK,), 0)
    first.end()
    second.end()


def test_blocks_of_one_size_are_told_apart_by_how_many_have_them(job, driver):
    live = [job.start() for _ in range(3)]
    keys = []
    for at in range(2):
        assert live[0].say("create 256M") == (OK,)
        keys.append(live[0].say(f"export {at}")[1])
    for process, key in zip(live[1:], keys, strict=True):
        assert process.say(f"import {key} 256M") == (OK,)
        assert process.say("map 0") == (OK,)
    live[0].end()
    assert job.run("info") == [HALF]
    assert driver.used()[0] == GIB // 2
    for process in live[1:]:
        process.end()


def test_external_memory_and_multicast_handles_are_the_drivers_affair(job):
    said = job.run("external 4G", "info", "free 0", "multicast", "release 1", "release 1", "info")
    assert said == [(OK,), FREE, (OK,), (OK,), (OK,), (OK,), FREE]


def test_three_hundred_pieces_of_shared_memory_are_counted_once(job, driver, pair):
    first, second = pair
    for at in range(300):
        assert first.say("alloc 2M") == (OK,)
        status, key, _ = first.say(f"ipc-give {at}")
        assert (status, second.say(f"ipc-open {key}")) == (OK, (OK,))
    assert held(job) == driver.used()[0] == 600 * MIB


def test_shares_are_used_again(job):
    live = job.start()
    for at in range(300):
        assert live.say("alloc 2M") == (OK,)
        assert live.say(f"ipc-give {at}")[0] == OK
        assert live.say(f"free {at}") == (OK,)
    assert held(job) == 0
    live.end()
