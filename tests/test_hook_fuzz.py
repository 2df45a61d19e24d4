"""A hostile or torn region: the hook refuses, and never crashes, hangs or lifts the limit."""

import random
import shutil
import struct
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fgshim
from awaiting import PATIENCE
from fakecuda.job import answers
from fgshim import region

pytestmark = pytest.mark.compiler
GIB = 1 << 30
OK, OOM = 0, 2
# Written once, but for the lock and the counts; the slots come behind it.
HEAD = region.SLOTS_AT
LOCK = range(32, 96)
OWNER_DIED = 0x40000000  # of a futex that is robust
TAKE = ["alloc 512M", "managed 256M", "create 256M", "async 256M", "alloc 2M", "array 4096 4096 0 32 4 0"]


def fuzzed(job, whole, driver):
    """Whether a program under this region is given anything: never more than the limit."""
    job.region_file.write_bytes(whole)
    said = job.run(*TAKE, "info", "total")
    assert len(said) == len(TAKE) + 2  # it lives to its end
    assert driver.high()[0] <= GIB
    assert {status for status, *_ in said[: len(TAKE)]} <= {OK, OOM}
    return any(status == OK for status, *_ in said[: len(TAKE)])


def at_any_byte(low, high):
    return st.lists(st.tuples(st.integers(low, high - 1), st.integers(0, 255)), min_size=1, max_size=40)


WORDS = st.lists(
    st.tuples(st.integers(HEAD, region.SIZE - 8), st.binary(min_size=8, max_size=8)), max_size=30
)
same_job = {
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    "deadline": None,
}


@settings(max_examples=25, **same_job)
@given(harm=at_any_byte(0, region.SIZE) | at_any_byte(0, HEAD))
def test_a_region_with_any_bytes_changed_gives_nothing_if_they_were_sealed(job, driver, harm):
    whole = bytearray(job.region_file.read_bytes())
    fresh = region.pack(1, 1, [(0, job_gpu(job, whole), GIB)])
    whole[: len(fresh)] = fresh
    for at, value in harm:
        whole[at] = value
    is_broken = any(whole[at] != fresh[at] for at in sealed_places())
    assert not (fuzzed(job, whole, driver) and is_broken)


def job_gpu(job, whole):
    """The UUID of the job's card, as it was at first."""
    if not job.env.get("CARD"):
        raw = whole[104:120].hex()
        job.env["CARD"] = "GPU-" + "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    return job.env["CARD"]


@settings(max_examples=15, **same_job)
@given(length=st.integers(0, region.SIZE - 1))
def test_a_region_that_was_torn_off_anywhere_gives_nothing(job, driver, length):
    whole = job.region_file.read_bytes()
    assert not fuzzed(job, (whole + bytes(region.SIZE))[:length], driver)
    job.region_file.write_bytes(whole)


IS_ASSUMED = range(104 + 54, 104 + 56)  # whether the charge of a context is without stacks
BY_POSITION, SEAL = 88, 96


def fnv(*parts):
    """The checksum of a seal."""
    seal = 0xCBF29CE484222325
    for byte in b"".join(parts):
        seal = (seal ^ byte) * 0x100000001B3 % 2**64
    return seal


def test_a_region_of_a_release_that_sealed_less_is_accepted(job, driver):
    """A job that runs on across an upgrade."""
    old = bytearray(job.region_file.read_bytes())
    pace = 1488
    struct.pack_into("<I", old, BY_POSITION, 0)
    places = [(0, 32), (104, 120), (120, 128), (152, 156), (176, 184), (pace, pace + 4), (pace + 4, pace + 8)]
    struct.pack_into("<Q", old, SEAL, fnv(*(old[begin:end] for begin, end in places)))
    assert fuzzed(job, old, driver)


def sealed_places():
    """Every byte that the seal covers, of the head and of the one card."""
    gpu = 104
    return [*range(32), *range(gpu, gpu + 16), *range(gpu + 16, gpu + 24), *range(gpu + 48, gpu + 56)]


def test_no_changed_byte_of_what_is_sealed_gives_anything(job, driver):
    """The limit, the card, the size, the version, how its contexts are charged: one byte at a time."""
    whole = job.region_file.read_bytes()
    for at in [*random.Random(7).sample(sealed_places(), 20), *IS_ASSUMED]:
        harmed = bytearray(whole)
        harmed[at] ^= 1 << random.Random(at).randrange(8)
        assert not fuzzed(job, harmed, driver), at


@pytest.mark.parametrize("word", [1, 0x3FFFFFFF, 0x40000001, 0x80000001, 0xC0000000, 0xFFFFFFFF])
def test_a_lock_that_is_held_by_nobody_is_given_up(job, driver, word):
    """In a moment, and no hang; and what it keeps is refused, unless the kernel says that its holder died."""
    whole = bytearray(job.region_file.read_bytes())
    struct.pack_into("<I", whole, LOCK.start, word)
    assert fuzzed(job, whole, driver) == bool(word & OWNER_DIED)


def test_a_limit_that_is_raised_behind_our_back_is_not_lifted(job, driver):
    live = job.start()
    assert live.say("alloc 512M") == (OK,)
    with job.region_file.open("r+b") as file:
        file.seek(120)
        file.write(b"\xff" * 8)
    assert live.say("alloc 1G") == (OOM,)
    assert live.say("alloc 512M") == (OK,)
    live.end()
    assert job.run("alloc 2M") == [(OOM,)]


@settings(max_examples=10, **same_job)
@given(
    noise=st.lists(
        st.tuples(st.integers(HEAD, region.SIZE - 8), st.binary(min_size=8, max_size=8)), max_size=30
    )
)
def test_a_process_whose_slots_are_scribbled_over_still_keeps_within_its_limit(job, driver, noise):
    live = job.start()
    live.say("alloc 256M")
    with job.region_file.open("r+b") as file:
        for at, value in noise:
            file.seek(at)
            file.write(value)
    for command in (*TAKE, *TAKE, "free 0", "info"):
        assert live.say(command)[0] in (OK, OOM)
    assert live.end() == 0
    assert driver.high()[0] <= GIB
    with job.region_file.open("r+b") as file:
        file.seek(HEAD)
        file.write(bytes(region.SIZE - HEAD))


FULL = """
head -c {head} {region} >{keep} && mount -t tmpfs -o size=64k none {folder}
ln -s {hook} {folder}/libfgshim.so
cat {keep} >{folder}/region && truncate -s {size} {folder}/region && cat /dev/zero >{folder}/rest 2>/dev/null
LD_PRELOAD={folder}/libfgshim.so exec {program} 'alloc 1M' info
"""


def test_a_region_whose_file_system_is_full_is_none(job, driver, tmp_path):
    """What of it was never written has no place yet: touching it would be the end of the program."""
    space = ["unshare", "-Urm"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], check=False).returncode:
        pytest.skip("no mounts of one's own can be made here")
    script = FULL.format(
        **{"head": HEAD, "size": region.SIZE, "region": job.region_file, "keep": tmp_path / "head"},
        **{"folder": job.folder, "hook": fgshim.library(), "program": driver.program},
    )
    env = {name: value for name, value in job.environment().items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [*space, "sh", "-c", script], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert answers(done.stdout) == [(OOM,), (OK,)]
