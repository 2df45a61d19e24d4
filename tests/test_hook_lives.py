"""The hook through everything that can happen to a process: fork, exec, exit, SIGKILL at any instruction."""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import fakecuda
import fgshim
from fakecuda import Card
from fakecuda.job import HISTORY, make_job
from fgshim import region
from live_host import ROOT

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM, NOT_INITIALIZED = 0, 2, 3
FREE = (OK, GIB, GIB)


def slots_in_use(job):
    """Return how many slots of the region have a process, alive or not."""
    data, at = job.region_file.read_bytes(), region.SLOTS_AT + region.SLOT_SIZE - 40  # of the first pid
    return sum(any(data[at + number * region.SLOT_SIZE :][:4]) for number in range(256))


def test_an_allocation_frees_the_slots_of_processes_that_ended(job):
    """Each call adds up all slots, so those of ended processes would make every later call slower."""
    live = job.start()
    many = [job.start() for _ in range(12)]
    assert [process.say("alloc 2M") for process in [live, *many]] == [(OK,)] * 13
    assert slots_in_use(job) == 13
    for process in many:
        process.kill()
    assert live.say("alloc 2M") == (OK,)
    assert slots_in_use(job) == 1
    assert job.region().gpus[0].held == 4 * MIB
    live.end()


@pytest.mark.parametrize(
    ("count", "mib", "living", "is_marked"),
    [(16, 2, 0, False), (100, 2, 0, False), (200, 4, 1, False), (100, 2, 0, True)],
)
def test_each_view_after_many_ends_counts_the_living_alone(job, count, mib, living, is_marked):
    """A mark is what the shepherd writes where processes have ended: it needs no look at /proc."""
    many = [job.start() for _ in range(count)]
    assert [process.say(f"alloc {mib}M") for process in many] == [(OK,)] * count
    for process in many[living:]:
        process.kill()
    if is_marked:
        mark_all_slots_as_ended(job)
    viewer = job.start()
    expected = (OK, GIB - living * mib * MIB, GIB)
    assert [viewer.say("info") for _ in range(7)] == [expected] * 7
    for process in [viewer, *many[:living]]:
        process.end()


def mark_all_slots_as_ended(job):
    """In each slot of the region that a process has."""
    data = bytearray(job.region_file.read_bytes())
    with job.region_file.open("r+b") as file:
        for at in range(region.SLOTS_AT + region.SLOT_SIZE - 40, len(data) - 12, region.SLOT_SIZE):
            if any(data[at : at + 4]):
                file.seek(at + 8)  # pid, generation, ended
                file.write(data[at + 4 : at + 8])


@pytest.mark.parametrize("end", ["kill 9", "kill 6", "_exit 0", "exit 0"])
def test_what_an_ended_process_held_is_there_at_the_next_allocation(job, end):
    live = job.start()
    assert live.say("alloc 1G") == (OK,)
    live.tell(end)
    live.end()
    assert job.run("alloc 1G") == [(OK,)]
    assert job.region().gpus[0].refusals == 0


def test_a_dead_process_that_nobody_has_waited_for_holds_nothing(job):
    live = job.start()
    assert live.say("alloc 1G") == (OK,)
    os.kill(live.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, live.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now, until the end of the test
    assert job.run("info") == [FREE]
    live.end()


def test_the_program_that_a_process_executes_next_holds_nothing(job):
    live = job.start()
    assert live.say("alloc 1G") == (OK,)
    live.tell("exec echo 1 2; read line")
    assert live.process.stdout.readline() == "1 2\n"  # the shell runs now, under the pid that held it all
    assert job.run("alloc 1G") == [(OK,)]
    live.end()


def test_a_process_that_executes_itself_anew_starts_from_nothing(job, driver):
    live = job.start()
    assert live.say("alloc 1G") == (OK,)
    live.tell(f"exec exec {driver.program} -")
    assert live.say("info") == FREE
    assert live.say("alloc 1G") == (OK,)
    live.end()


def test_without_random_addresses_a_process_still_starts_from_nothing(job, driver):
    setarch = ["setarch", "-R", "true"]
    if subprocess.run(setarch, capture_output=True, check=False).returncode:
        pytest.skip("setarch -R is not allowed here")
    live = job.start()
    live.tell(f"exec exec setarch -R {driver.program} -")
    assert live.say("alloc 1G") == (OK,)
    live.tell(f"exec exec {driver.program} -")
    assert live.say("alloc 1G") == (OK,)
    live.end()


def test_the_child_of_a_fork_does_not_own_what_its_parent_holds(job):
    said = job.run("alloc 512M", "fork free 0", "fork alloc 2M", "info", "free 0", "info")
    half = (OK, GIB // 2, GIB)
    assert said == [(OK,), (NOT_INITIALIZED,), (0,), (NOT_INITIALIZED,), (0,), half, (OK,), FREE]


def test_a_child_cannot_give_back_what_its_parent_holds(job):
    """Even where the driver, as the fake does, lets it release a handle that it only knows by name."""
    assert job.run("create 512M", "fork release 0", "info")[-1] == (OK, GIB // 2, GIB)


def test_a_child_that_uses_the_driver_first_has_a_slot_of_its_own(job):
    assert job.run("fork alloc 1G", "alloc 1G", "info") == [(OK,), (0,), (OK,), (OK, 0, GIB)]


def test_a_parent_that_dies_first_leaves_its_child_nothing_to_answer_for(job):
    live = job.start()
    assert live.say("alloc 1G") == (OK,)
    live.tell("forget hold")
    assert live.process.stdout.readline() == "forget 0\n"
    live.process.kill()
    live.process.wait()
    assert job.run("alloc 1G") == [(OK,)]
    live.end()


SLOT = "<IIIIQQQ"  # behind the mutex: pid, generation, ended, reserved, start, image, pid namespace
SLOT_FIELDS = region.SLOT_SIZE - struct.calcsize(SLOT)
SLOTS_IN_USE = 5072  # offset in the region


def own_slot(start=0):
    """Return the fields of a slot that this process might have; `start`: added to its start time."""
    begun = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return struct.pack(SLOT, os.getpid(), 1, 0, 0, begun + start, 0, Path("/proc/self/ns/pid").stat().st_ino)


def test_processes_beyond_the_slots_are_refused_and_slots_of_the_dead_are_taken_again(job):
    content = bytearray(job.region_file.read_bytes())
    for at in range(256):
        offset = region.SLOTS_AT + at * region.SLOT_SIZE + SLOT_FIELDS
        content[offset : offset + len(own_slot())] = own_slot()
    struct.pack_into("<I", content, SLOTS_IN_USE, 256)
    job.region_file.write_bytes(content)
    assert len(job.region().processes) == 256
    assert job.run("alloc 2M") == [(OOM,)]
    assert "256 processes of the job use GPUs already" in job.region().refusal
    offset = region.SLOTS_AT + 77 * region.SLOT_SIZE + SLOT_FIELDS
    content[offset : offset + len(own_slot())] = own_slot(start=1)  # an earlier process of this pid
    job.region_file.write_bytes(content)
    assert job.run("alloc 2M") == [(OK,)]


@pytest.mark.parametrize("kind", ["view", "refusal", "memory"])
def test_views_and_refusals_make_no_system_call_whatever_processes_hold_memory(job, tmp_path, kind):
    """So they read nothing in /proc, and hold no process up. The kernel ends the program at a system call."""
    holders = [job.start() for _ in range(12)]
    assert [holder.say("alloc 2M") for holder in holders] == [(OK,)] * 12
    calls = fakecuda.compile_c([ROOT / "scripts/bench/calls.c"], tmp_path / "calls", "-ldl")
    words = [calls, kind, "1000", "strict"]
    env = job.environment(FAKE_CUDA_NO_PROC="1")
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n")
    for holder in holders:
        holder.end()


def test_a_process_stays_counted_when_the_thread_that_allocated_first_ends(job):
    """The kernel marks the slot then. The process lives, and takes it again at its next allocation."""
    live = job.start(FAKEJOB_BARE="1")
    assert live.say("race-hold 1 600M") == (OK,)
    assert job.run("info", "alloc 600M") == [(OK, GIB - 600 * MIB, GIB), (OOM,)]
    assert live.say("alloc 2M")[0] != OOM
    live.kill()
    assert job.run("alloc 1G") == [(OK,)]


def test_racing_processes_and_kills_never_pass_the_limit_and_lose_nothing(job, driver):
    racers = [job.start() for _ in range(8)]
    for racer in racers:
        racer.tell(f"race 4 1500 {8 * MIB}")
    for racer in racers[:3]:  # in the midst of it
        racer.kill()
    for racer in racers[3:]:
        wrong, *_ = [int(word) for word in racer.process.stdout.readline().split()[1:]]
        assert wrong == 0
    assert job.run("info", "alloc 1G") == [FREE, (OK,)]
    for racer in racers[3:]:
        racer.end()
    assert driver.high()[0] <= GIB
    assert job.region().gpus[0].peak == GIB


EVERY = [(1, 1201, 9000, "")] + [(at, 1501, 4600, "") for at in range(5, len(HISTORY), 5)]


@pytest.mark.parametrize(("at", "step", "most", "where"), [*EVERY, (1, 89, 700, "under the lock")])
def test_a_kill_at_any_instruction_blocks_nobody_and_leaves_the_exact_count(
    job, driver, at, step, most, where
):
    """Counted from a command on; each time another process finds all of the limit free, at once."""
    extra = {"STEPKILL_LOCK": str(job.region_file)} if where else {}
    commands = [*HISTORY[:at], "kill 19", *HISTORY[at:]]
    for n in range(1, most, step):
        words = [driver.stepkill, str(n), driver.program, *commands]
        done = subprocess.run(words, env=job.environment(**extra), stdout=subprocess.DEVNULL, check=False)
        if done.returncode == 2:
            pytest.skip("a program may not be traced here")
        assert job.run("alloc 1G", "free 0", "info") == [(OK,), (OK,), FREE], n


@pytest.mark.parametrize(
    "harm",
    [
        lambda whole: b"",
        lambda whole: whole[:100],
        lambda whole: whole + b"\0",
        lambda whole: bytes(len(whole)),
        lambda whole: whole[:8] + b"\7" + whole[9:],
        lambda whole: whole[:28] + b"\xff\xff\xff\xff" + whole[32:],
        lambda whole: whole[:32] + bytes(64) + whole[96:],
        lambda whole: whole[:32] + b"\xee" * 64 + whole[96:],
        lambda whole: random.Random(3).randbytes(len(whole)),
    ],
    ids=["empty", "short", "long", "zeros", "version", "gpus", "lock-lost", "lock-torn", "noise"],
)
def test_a_region_that_is_not_whole_means_no_device_memory(job, harm):
    job.region_file.write_bytes(harm(job.region_file.read_bytes()))
    assert job.run("alloc 1", "managed 1", "create 2M", "async 1", "info", "total") == [(OOM,)] * 4 + [
        (OK,),
        (OK,),
    ]


def test_without_a_region_there_is_no_device_memory(job):
    job.region_file.unlink()
    assert job.run("alloc 1") == [(OOM,)]
    job.region_file.mkdir()
    assert job.run("alloc 1") == [(OOM,)]


def test_counts_that_are_scribbled_over_refuse_and_do_not_crash(job):
    live = job.start()
    assert live.say("alloc 256M") == (OK,)
    with open(job.region_file, "r+b") as file:
        file.seek(96)
        file.write(b"\xff" * (region.SIZE - 96))
    assert live.say("alloc 2M") == (OOM,)
    assert live.say("free 0") == (OK,)
    assert live.say("info")[0] == OK
    live.end()


@pytest.mark.parametrize("command", [["ls", "/"], [sys.executable, "-c", "import ctypes; ctypes.CDLL(None)"]])
def test_a_program_on_a_host_without_a_driver_runs_as_ever(tmp_path, command):
    if not fgshim.library().exists():
        pytest.skip("the hook is not built")
    env = {**os.environ, "LD_PRELOAD": str(fgshim.library())}
    without, with_hook = (
        subprocess.run(command, env=e, capture_output=True, check=False) for e in (None, env)
    )
    assert (with_hook.returncode, with_hook.stdout, with_hook.stderr) == (0, without.stdout, b"")


SAME_PID = """
import os, subprocess, sys
from pathlib import Path
program, other = sys.argv[1], sys.argv[2:]
pipe = subprocess.PIPE
first = subprocess.Popen([program, "-"], stdin=pipe, stdout=pipe, text=True)
print("alloc 1G", file=first.stdin, flush=True)
print(first.stdout.readline().split()[1])
first.kill(), first.wait()
Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
second = subprocess.Popen(other, stdin=pipe, stdout=pipe, text=True)
print(second.pid == first.pid)
if other == ["cat"]:
    print(subprocess.run([program, "alloc 1G"], stdout=pipe, text=True).stdout.split()[1])
else:
    print("alloc 1G", file=second.stdin, flush=True)
    print(second.stdout.readline().split()[1])
second.kill(), second.wait()
"""


@pytest.mark.root
@pytest.mark.parametrize("hooked", [False, True], ids=["another", "one-of-the-job"])
def test_a_pid_that_is_given_out_again_does_not_answer_for_the_dead(job, hooked):
    """In a pid namespace, where the next pid can be chosen: at once, so within the same tick of the clock."""
    space = ["unshare", "--fork", "--pid", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    other = [job.driver.program, "-"] if hooked else ["cat"]
    words = [*space, sys.executable, "-c", SAME_PID, job.driver.program, *other]
    done = subprocess.run(words, env=job.environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "0"]


@pytest.mark.parametrize("before", ["total", "pid"])  # the region is attached already, or not yet
@pytest.mark.parametrize("command", ["alloc 16M", "async 16M", "context"])
def test_a_thread_that_is_cancelled_ends_when_a_call_is_over_and_keeps_no_lock(
    driver, tmp_path, command, before
):
    bare = {"FAKEJOB_BARE": "1"} if command == "context" else {}
    cost = 64 * MIB if bare else 0  # else the first context takes the slot
    (gpu,) = driver.gpus(Card(memory=2 * GIB, context=cost))
    job = make_job(driver, tmp_path / "own", [(gpu, GIB)], contexts=[cost])
    assert job.run(before, f"cancelled {command}", command, **bare)[1:] == [(OK,), (OK,)]
