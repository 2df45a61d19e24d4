"""The hook where processes of one job are in several pid namespaces, as in sandboxes and containers."""

import os
import select
import struct
import subprocess
from pathlib import Path

import pytest

import fgshim
from fakecuda.job import Job, Live
from fgshim import region

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM = 0, 2
OWN_PROC = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc")
OUTER_PROC = ("unshare", "--fork", "--kill-child", "--pid")  # /proc stays that of the outer namespace
BY_A_USER = ("unshare", "--user", "--map-root-user", *OWN_PROC[1:])


@pytest.fixture(params=[OWN_PROC, OUTER_PROC, BY_A_USER], ids=["own-proc", "outer-proc", "user"])
def inside(request):
    """Return the words before a command that run it as process 1 of a pid namespace."""
    words = request.param
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        tried = 1
    if tried:
        pytest.skip("no pid namespace can be made here")
    return words


def start(job: Job, *words: str) -> Live:
    """Start a process of the job that takes commands, after `words`."""
    # The hook belongs to the program, not to unshare.
    preload = {"LD_PRELOAD": job.environment()["LD_PRELOAD"]}
    env = {name: value for name, value in job.environment().items() if name != "LD_PRELOAD"}
    command = [
        *words,
        "env",
        *(f"{name}={value}" for name, value in preload.items()),
        job.driver.program,
        "-",
    ]
    pipe = subprocess.PIPE
    return Live(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True))


def child_of(live: Live) -> int:
    """Return the pid of the process inside, which is the child of unshare."""
    pid = live.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def test_an_inner_process_counts_what_an_outer_one_holds(job, inside):
    outer, inner = start(job), start(job, *inside)
    assert outer.say("alloc 1000M") == (OK,)
    assert inner.say("alloc 64M") == (OOM,)
    assert inner.say("info") == (OK, 24 * MIB, GIB)
    inner.end()
    outer.end()


def test_an_outer_process_counts_what_an_inner_one_holds(job, inside):
    outer, inner = start(job), start(job, *inside)
    assert inner.say("alloc 1000M") == (OK,)
    assert outer.say("alloc 64M") == (OOM,)
    assert outer.say("info") == (OK, 24 * MIB, GIB)
    inner.end()
    outer.end()


def test_first_processes_of_three_namespaces_have_three_slots(job, inside):
    """Each of them is process 1."""
    three = [start(job, *inside) for _ in range(3)]
    assert [one.say("alloc 500M") for one in three] == [(OK,), (OK,), (OOM,)]
    assert [one.say("info") for one in three] == [(OK, 24 * MIB, GIB)] * 3
    assert sum(process.bytes[0] for process in job.region().processes) == 1000 * MIB
    for one in three:
        one.end()


def test_the_region_names_an_inner_process_by_its_pid_outside(job, inside):
    inner = start(job, *inside)
    assert inner.say("alloc 600M") == (OK,)
    (process,) = job.region().processes
    assert process.pid == child_of(inner)
    assert process.bytes == (600 * MIB,)
    fd = region.open_region(job.region_file)
    assert region.pids(fd) == [process.pid]
    os.close(fd)
    inner.end()


def test_slots_of_an_ended_namespace_are_freed_once_the_shepherd_has_seen_its_end(job, inside):
    """The test stands for the shepherd: it writes the generation to the slot."""
    outer, inner = start(job), start(job, *inside)
    assert inner.say("alloc 1000M") == (OK,)
    ending = os.pidfd_open(child_of(inner))
    inner.kill()
    select.select([ending], [], [])
    os.close(ending)
    assert outer.say("alloc 64M") == (OOM,)
    ended = region.SLOTS_AT + region.SLOT_SIZE - struct.calcsize("<IIQQQ")
    with open(job.region_file, "r+b") as file:
        for slot in range(2):
            file.seek(ended - 4 + slot * region.SLOT_SIZE)
            generation = file.read(4)
            if slot == 0:  # the inner process came first
                file.write(generation)
    assert outer.say("info") == (OK, GIB, GIB)
    assert outer.say("alloc 1G") == (OK,)
    outer.end()


def test_a_shepherd_sees_the_end_of_a_process_in_another_namespace(job, inside, spawner, tmp_path):
    """Its job waits until the memory of the ended process is free."""
    command = f"LD_PRELOAD=${{0%/*}}/libfgshim.so {job.driver.program}"
    inner = f"{' '.join(inside)} env {command} 'alloc 1000M'"
    until = f"until {command} 'alloc 1G' | grep -q 'alloc 0'; do sleep 0.1; done"
    gone = spawner.launch(
        f"#!/bin/sh\n{inner}\n{command} 'alloc 1G'\n{until}\necho over\n",
        env={**os.environ, **job.driver.env},
        hook=str(fgshim.library()),
        region=job.region_file.read_bytes()[: region.SLOTS_AT],
        region_size=region.SIZE,
        cwd=str(tmp_path),
        stderr="/dev/null",
    )
    gone.over()
    said = (tmp_path / "out").read_text().split()
    assert said[3] in ("2", "0"), "the shepherd may be faster than the second program"
    assert said[:3] + said[4:] == ["alloc", "0", "alloc", "over"]


def test_an_inner_process_judges_its_own_kind(job, inside):
    """The next process there has the memory of an ended one, if /proc shows that namespace."""
    script = f'printf "alloc 1G\\n" | {job.driver.program} - && {job.driver.program} "alloc 1G"'
    words = [*inside, "env", f"LD_PRELOAD={job.environment()['LD_PRELOAD']}", "sh", "-c", script]
    env = {name: value for name, value in job.environment().items() if name != "LD_PRELOAD"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    expected = [OK, OOM] if inside is OUTER_PROC else [OK, OK]
    assert [int(line.split()[1]) for line in done.stdout.splitlines()] == expected
