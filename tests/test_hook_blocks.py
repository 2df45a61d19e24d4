"""The hook on virtual memory management and on stream-ordered pools."""

import bisect
import ctypes
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fakecuda
import fgshim
from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, INVALID, OOM = 0, 1, 2
FULL = (OK, 0, GIB)
FREE = (OK, GIB, GIB)
HOST, DOMAIN = 3, 6  # location types: of host memory, and of a part of a card's


def test_a_block_lives_until_its_last_handle_and_its_last_mapping_are_gone(job):
    commands = ["create 1G", "map 0", "release 0", "info", "create 2M", "unmap 1", "info"]
    assert job.run(*commands) == [(OK,)] * 3 + [FULL, (OOM,), (OK,), FREE]


def test_the_other_order_is_as_good(job):
    assert job.run("create 1G", "map 0", "unmap 1", "info", "release 0", "info") == [(OK,)] * 3 + [
        FULL,
        (OK,),
        FREE,
    ]


def test_creating_mapping_and_releasing_in_a_loop_does_not_get_past_the_limit(job):
    loop = [command for at in range(0, 10, 2) for command in ("create 256M", f"map {at}", f"release {at}")]
    assert job.run(*loop)[:12] == [(OK,)] * 12
    assert job.run(*loop, "info")[12] == (OOM,)


def test_a_block_mapped_twice_is_charged_once(job):
    commands = ["create 512M", "map 0", "map 0", "info", "release 0", "unmap 1", "info", "unmap 2", "info"]
    half = (OK, GIB // 2, GIB)
    assert job.run(*commands) == [(OK,)] * 3 + [half, (OK,), (OK,), half, (OK,), FREE]


@pytest.mark.parametrize("released", ["before", "after"])
def test_a_retained_handle_keeps_the_block(job, released):
    early, late = (["release 0"], []) if released == "before" else ([], ["release 0"])
    commands = ["create 1G", "map 0", *early, "retain 1", "unmap 1", "info", "release 2", *late, "info"]
    said = job.run(*commands)
    assert said.count(FULL) == 1
    assert said[-1] == FREE
    assert all(status == OK for status, *_ in said)


def test_a_handle_that_is_given_out_again_is_not_the_old_block(job):
    """The driver uses handles again at once: the first block still lives, by its mapping, under no handle."""
    commands = ["create 256M", "map 0", "release 0", "create 512M", "release 2", "info", "unmap 1", "info"]
    assert job.run(*commands) == [(OK,)] * 5 + [(OK, 768 * MIB, GIB), (OK,), FREE]


@pytest.mark.parametrize("gpus", [1, 2])
def test_memory_in_a_locality_domain_is_its_cards(driver, tmp_path, gpus):
    """CUDA 13.5: a part of a card's memory, whose number stands beside the device's."""
    all_of_them = driver.gpus(*[Card(str(number)) for number in range(gpus)])
    job = make_job(driver, tmp_path / "two", [(gpu, GIB) for gpu in all_of_them])
    device = f"device {gpus - 1}"
    assert job.run(device, f"create 1G {DOMAIN}", "info", f"create 2M {DOMAIN}", "release 0", "info")[1:] == [
        (OK,), (OK, 0, GIB), (OOM,), (OK,), FREE,
    ]  # fmt: skip


def test_host_memory_is_not_charged(job):
    assert job.run(f"create 4G {HOST}", "info", "release 0", "info") == [(OK,), FREE, (OK,), FREE]


SPARSE = "array 4096 4096 0 32 4 64"


@pytest.mark.parametrize(
    "way", [{}, {"FAKEJOB_VIA": "lookup"}, {"FAKEJOB_VIA": "lookup", "FAKEJOB_TWINS": "1"}]
)
@pytest.mark.parametrize("end", ["unmap-part 0 7", "array-end 0"])
def test_a_part_of_a_sparse_array_keeps_the_block_that_it_is_mapped_to(job, driver, end, way):
    said = job.run(SPARSE, "create 1G", "map-part 0 7 1", "release 1", "info", "alloc 1", end, "info", **way)
    assert said == [(OK,)] * 4 + [FULL, (OOM,), (OK,), FREE]


def test_a_part_that_is_mapped_anew_lets_go_of_what_it_had(job):
    commands = [SPARSE, "create 512M", "create 256M", "map-part 0 7 1", "release 1", "map-part 0 7 2", "info"]
    assert job.run(*commands, "release 2", "map-part 0 8 2", "unmap-part 0 7", "info")[-5:] == [
        (OK, 768 * MIB, GIB),
        (OK,),
        (OK,),
        (OK,),
        FREE,
    ]


def test_an_unknown_handle_is_the_drivers_affair(job):
    assert job.run("alloc 2M", "release 0", "unmap 0", "info") == [
        (OK,),
        (INVALID,),
        (INVALID,),
        (OK, GIB - 2 * MIB, GIB),
    ]


VERBS = st.sampled_from(["create", "map", "retain", "release", "unmap"])
MOVES = st.lists(st.tuples(VERBS, st.integers(0, 9)), max_size=40)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(moves=MOVES)
def test_hook_and_driver_agree_on_every_history_of_blocks(job, driver, moves):
    commands, made = [], 0
    for verb, which in moves:
        commands.append("create 2M" if verb == "create" else f"{verb} {which % max(made, 1)}")
        made += verb in ("create", "map", "retain")
    live = job.start()
    for command in commands:
        live.say(command)
    live.say("alloc 0")
    seen, driven = sum(gpu.held for gpu in job.region().gpus), driver.used()[0]
    live.end()
    assert seen == driven


def test_a_pool_is_charged_for_what_it_reserves(job):
    commands = ["threshold 1G", "async 256M", "afree 0", "sync", "info", "async 256M", "info"]
    kept = (OK, 768 * MIB, GIB)
    assert job.run(*commands) == [(OK, GIB, 0), (OK,), (OK,), (OK,), kept, (OK,), kept]


def test_without_a_threshold_the_memory_is_back_after_the_stream_was_waited_for(job):
    commands = ["async 256M", "afree 0", "info", "sync", "info"]
    assert job.run(*commands) == [(OK,), (OK,), (OK, 768 * MIB, GIB), (OK,), FREE]


def test_memory_that_a_pool_only_keeps_is_given_up_before_a_refusal(job):
    commands = ["threshold 1G", "async 1G", "afree 0", "sync", "alloc 1G", "info"]
    assert job.run(*commands)[-2:] == [(OK,), FULL]
    assert job.region().gpus[0].refusals == 0


def test_a_full_pool_serves_again_what_it_has(job):
    commands = ["threshold 1G", "async 1G", "afree 0", "async 512M", "async 512M", "async 2M"]
    assert job.run(*commands)[1:] == [(OK,)] * 4 + [(OOM,)]


def test_memory_of_a_pool_may_be_freed_at_once(job):
    assert job.run("async 256M", "free 0", "sync", "info") == [(OK,), (OK,), (OK,), FREE]


def test_plain_memory_may_be_freed_in_stream_order(job):
    assert job.run("alloc 256M", "afree 0", "info") == [(OK,), (OK,), FREE]


@pytest.mark.parametrize(
    "way", [{}, {"FAKEJOB_VIA": "lookup"}, {"FAKEJOB_VIA": "lookup", "FAKEJOB_TWINS": "1"}]
)
def test_what_is_recorded_for_a_graph_takes_no_memory_yet(job, way):
    commands = ["stream", "capture", "async 4G", "afree 0", "end-capture", "async 2M", "info"]
    assert job.run(*commands, **way) == [(OK,)] * 6 + [(OK, GIB - 2 * MIB, GIB)]


def test_only_the_twin_records_on_the_threads_own_stream(job):
    """Had the twin been answered by the other call, the allocation would have been charged."""
    way = {"FAKEJOB_VIA": "lookup", "FAKEJOB_TWINS": "1"}
    assert job.run("capture", "async 4G", "end-capture", "info", **way) == [(OK,)] * 3 + [FREE]


_INDEX = """#include <sys/mman.h>
#include "address_index.c"
#define EXPORT __attribute__((visibility("default")))
void *fg_pages(size_t size) {
    return mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
EXPORT int add(uint64_t at) { return fg_index_add(at); }
EXPORT void removed(uint64_t at) { fg_index_remove(at); }
EXPORT uint64_t first_from(uint64_t at) { return fg_index_from(at); }
EXPORT uint64_t last_until(uint64_t at) { return fg_index_until(at); }
"""


def test_the_index_of_addresses_agrees_with_a_sorted_list(tmp_path):
    """It finds a mapping without a walk through the table of entries. 20,000 changes, several leaves."""
    native = Path(fgshim.__file__).parent
    (tmp_path / "index.c").write_text(_INDEX)
    include = (f"-I{native / 'hook'}", f"-I{native / 'include'}", f"-I{native}")
    library = fakecuda.compile_c([tmp_path / "index.c"], tmp_path / "index.so", "-shared", "-fPIC", *include)
    index = ctypes.CDLL(str(library))
    for name in ("add", "removed", "first_from", "last_until"):
        getattr(index, name).argtypes = [ctypes.c_uint64]
        getattr(index, name).restype = ctypes.c_uint64
    chance, kept = random.Random(5), []
    for change in range(20_000):
        address = chance.randrange(6000)
        at = bisect.bisect_left(kept, address)
        known = at < len(kept) and kept[at] == address
        if chance.random() < (0.7 if change < 12_000 else 0.3):
            assert index.add(address)
            kept[at:at] = [] if known else [address]
        else:
            index.removed(address)
            del kept[at : at + known]
        asked = chance.randrange(6000)
        below, above = bisect.bisect_right(kept, asked), bisect.bisect_left(kept, asked)
        assert index.first_from(asked) == (kept[above] if above < len(kept) else 2**64 - 1)
        assert index.last_until(asked) == (kept[below - 1] if below else 2**64 - 1)
