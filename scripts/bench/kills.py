"""Kill processes at random instructions, and check that others are not blocked and that counts are exact."""

import argparse
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import bench

import arbiter
from fakecuda import Card, FakeDriver
from fakecuda.job import HISTORY, Job, Live, make_job

LIMIT = 1 << 30
A_JOB = 250  # kills in one job
GRAPH = ("alloc 1", "stream", "capture", "async 16M", "afree 1", "graph", "instantiate 2")
STEPS, STEPS_LOCKED = 2500, 250  # instructions after a command at most; of those under the region's lock


@dataclass(slots=True)
class Tally:
    """What the campaign has seen so far."""

    killed: int = 0
    ended: int = 0
    locked: int = 0
    refused: int = 0
    inexact: int = 0
    waits: list[float] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)  # of a neighbour, with turns
    work: float = 0  # the longest of both without the waits of threads for a processor


def campaign(table: bench.Table, driver: FakeDriver, folder: Path, asked: argparse.Namespace) -> None:
    """Run jobs one after the other, each with one process that is never killed."""
    luck, usage_count, jobs = random.Random(asked.seed), Tally(), 0
    [gpu] = driver.gpus(Card(memory=8 << 30))
    with arbiter.Arbiter(folder / f"lock{asked.seed}") as turns:
        while usage_count.killed < asked.kills:
            job, other = (in_turns(driver, folder, gpu, turns, 2 * jobs + at) for at in (0, 1))
            survivor, neighbour = job.start(), other.start()
            survivor.say("alloc 1")
            survivor.say("free 0")
            for command in GRAPH:
                neighbour.say(command)
            for at in range(min(A_JOB, asked.kills - usage_count.killed)):
                kill_one(job, luck, usage_count)
                look(survivor, at + 1, usage_count)
                launch(neighbour, usage_count, [turns.process.pid])
            survivor.end()
            neighbour.end()
            for number in (2 * jobs, 2 * jobs + 1):
                turns.remove(number)
            jobs += 1
    report(table, usage_count, asked.seed)


def in_turns(driver: FakeDriver, folder: Path, gpu: Card, turns: arbiter.Arbiter, number: int) -> Job:
    """Create a job with half of the GPU that takes turns with another one."""
    job = make_job(driver, folder / f"kills{number}", [(gpu, LIMIT)], job=number, pacing=[("fair", 5000)])
    path = turns.add(number, job.folder, "fair", 5000)
    while not path.exists():
        time.sleep(0.01)
    return job


def waited_for_a_processor(pids: list[int]) -> float:
    """Return the seconds for which threads of this program and of others were ready and did not run."""
    threads = [path for pid in [os.getpid(), *pids] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[1]) for path in threads) / 1e9


def timed(process: Live, command: str, usage_count: Tally, helpers: list[int]) -> tuple[list[int], float]:
    """Return the answer to a command, and the seconds that it took by the clock."""
    pids = [process.process.pid, *helpers]
    ready, begun = waited_for_a_processor(pids), time.monotonic()
    answer = process.say(command)
    took = time.monotonic() - begun
    usage_count.work = max(usage_count.work, took - (waited_for_a_processor(pids) - ready))
    return answer, took


def launch(neighbour: Live, usage_count: Tally, helpers: list[int]) -> None:
    """Launch in the other job: a process that was killed in its turn must not hold it."""
    usage_count.launches.append(timed(neighbour, "launch 3", usage_count, helpers)[1])


def kill_one(job: Job, luck: random.Random, usage_count: Tally) -> None:
    """Run a process through every family of calls, and kill it within a random command."""
    is_locked = luck.random() < 1 / 3
    at = luck.randrange(is_locked, len(HISTORY))  # the first call runs long before it takes the lock
    steps = luck.randrange(1, STEPS_LOCKED if is_locked else STEPS)
    extra = {"STEPKILL_LOCK": str(job.region_file)} if is_locked else {}
    words = [job.driver.stepkill, str(steps), job.driver.program, *HISTORY[:at], "kill 19", *HISTORY[at:]]
    env = job.environment(**extra)
    done = subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode == 2:
        sys.exit("a program may not be traced here")
    usage_count.killed += done.returncode == 0
    usage_count.ended += done.returncode == 1
    usage_count.locked += is_locked and done.returncode == 0


def look(survivor: Live, at: int, usage_count: Tally) -> None:
    """Check that the whole limit can be allocated, and that nothing is counted afterwards."""
    [status], took = timed(survivor, f"alloc {LIMIT}", usage_count, [])
    usage_count.waits.append(took)
    usage_count.refused += status != 0
    if status == 0:
        survivor.say(f"free {at}")
    usage_count.inexact += survivor.say("info") != (0, LIMIT, LIMIT)


def report(table: bench.Table, usage_count: Tally, seed: int) -> None:
    """One line a figure."""
    table.add("processes killed at a random instruction", usage_count.killed, "", f"seed {seed}")
    table.add("  of these by counting instructions under the region's lock", usage_count.locked, "")
    table.add("  that had ended before", usage_count.ended, "", "not counted above")
    table.add("next allocations of all of the limit that were refused", usage_count.refused, "")
    table.add("counts that were not exact after it", usage_count.inexact, "")
    table.add("longest such allocation", max(usage_count.waits) * 1000, "ms", "of the clock, on this host")
    table.add("longest launch of another job", max(usage_count.launches) * 1000, "ms", "in turns with these")
    table.add("longest of both without waits for a processor", usage_count.work * 1000, "ms")
    if usage_count.refused or usage_count.inexact:
        table.end()
        sys.exit("a dead process was in the way")
