"""What a job is told about device memory that it was refused: one line, and none by the hook itself."""

import struct

import pytest

from fgshim import region
from spawner_driver import spawning

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM = 0, 2


def test_the_last_refusal_says_who_asked_what_and_who_held_it(job):
    one, two = job.start(), job.start()
    assert (one.say("alloc 640M"), two.say("alloc 128M")) == ((OK,), (OK,))
    assert job.region().refusal == ""
    assert (two.say("alloc 512M"), two.say("alloc 257M")) == ((OOM,), (OOM,))
    asked = f"GPU 0: 258.0 MiB refused to process {two.process.pid}: 768.0 MiB of 1024.0 MiB held"
    holders = f"by process {one.process.pid} 640.0 MiB, process {two.process.pid} 128.0 MiB"
    assert job.region().refusal == f"{asked}, {holders}; 2 refusals in all"
    one.end()
    two.end()


def test_of_many_holders_the_four_largest_are_named(job):
    live = [job.start() for _ in range(6)]
    for at, process in enumerate(live):
        assert process.say(f"alloc {2 * (at + 1)}M") == (OK,)
    assert job.run("alloc 1G") == [(OOM,)]
    told = job.region().refusal
    assert [f"process {process.process.pid} " in told for process in live] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert told.endswith(" and 2 more")
    for process in live:
        process.end()


FAMILIES = ["async 2G", "create 2G", "managed 2G", "pitch 1048576 2048", "array 16384 16384 0 32 4 0"]


@pytest.mark.parametrize("verb", FAMILIES)
def test_every_family_leaves_its_line(job, verb):
    assert job.run(verb) == [(OOM,)]
    assert job.region().refusal.startswith("GPU 0: ")
    assert "0.0 MiB of 1024.0 MiB held" in job.region().refusal


@pytest.fixture
def spawner(tmp_path):
    with spawning(tmp_path) as one:
        yield one


def refused_region():
    """A region as it is after a refusal."""
    head = bytearray(region.pack(1, 1, [(3, f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}", GIB)]))
    gpu = 104
    refusal = gpu + 16 * 80  # behind the cards
    struct.pack_into("<Q", head, gpu + 40, 2)  # refusals
    struct.pack_into("<QQQIIII", head, refusal, 512 * MIB, 768 * MIB, GIB, 0, 77, 1, 0)
    struct.pack_into("<QI", head, refusal + 40, 768 * MIB, 55)
    return bytes(head)


ASKED = "GPU 3: 512.0 MiB refused to process 77: 768.0 MiB of 1024.0 MiB held"
LINE = f"{ASKED}, by process 55 768.0 MiB; 2 refusals in all"


def test_the_shepherd_writes_the_line_at_the_end_of_the_jobs_stderr(spawner):
    job = spawner.launch("#!/bin/sh\necho done >&2\n", region=refused_region(), region_size=region.SIZE)
    result = job.result()
    assert result.detail == LINE
    assert job.output() == f"done\nfgsched: {LINE}\n"


def test_a_job_that_was_refused_nothing_has_no_such_line(spawner):
    head = region.pack(1, 1, [(3, f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}", GIB)])
    job = spawner.launch("#!/bin/sh\necho done >&2\n", region=head, region_size=region.SIZE)
    assert job.result().detail == ""
    assert job.output() == "done\n"
