"""Check that concurrent allocations of one job never exceed its limit, even if processes are killed."""

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import bench

from fakecuda import Card, FakeDriver
from fakecuda.job import Job, Live, make_job

MIB = 1 << 20
LIMIT = 1 << 30
PROCESSES, THREADS, ROUNDS = 16, 8, 120


@dataclass(slots=True)
class Tally:
    """What the campaign has seen so far."""

    batches: int = 0
    ended: int = 0
    killed: int = 0
    given: int = 0
    refused: int = 0
    wrong: int = 0
    over: int = 0
    lost: int = 0
    pauses: list[float] = field(default_factory=list)


def campaign(table: bench.Table, driver: FakeDriver, folder: Path, asked: argparse.Namespace) -> None:
    """Run batches until the requested number of allocations was made."""
    luck, usage_count, length = random.Random(asked.seed), Tally(), 0.5
    [gpu] = driver.gpus(Card(memory=8 << 30))
    while usage_count.given + usage_count.refused < asked.allocations:
        job = make_job(driver, folder / f"race{usage_count.batches}", [(gpu, LIMIT)])
        begun = time.monotonic()
        batch(job, usage_count, luck, length)
        length = time.monotonic() - begun
        check(job, driver, usage_count)
        usage_count.batches += 1
    report(table, usage_count, asked.seed)


def batch(job: Job, usage_count: Tally, luck: random.Random, length: float) -> None:
    """Run processes concurrently; kill a third of them at a random time."""
    racers = [job.start(FAKE_CUDA_POOL_STEP=str(luck.choice((2, 32)) * MIB)) for _ in range(PROCESSES)]
    for racer in racers:
        family = luck.choice(("race", "race", "race-async"))
        racer.tell(f"{family} {THREADS} {ROUNDS} {luck.choice((1, 3, 8)) * MIB}")
    doomed = sorted(
        (luck.random() * length, racer.process.pid, racer) for racer in luck.sample(racers, PROCESSES // 3)
    )
    begun = time.monotonic()
    for when, _, racer in doomed:
        time.sleep(max(0.0, begun + when - time.monotonic()))
        racer.process.kill()
    for racer in racers:
        collect(racer, usage_count)


def collect(racer: Live, usage_count: Tally) -> None:
    """Add the final report of a process to the totals, unless the process was killed before."""
    said = racer.process.stdout.readline().split()
    if racer.end() == 0 and said:
        _, wrong, *figures = map(int, ["0", *said[1:]])
        refused, taken = (*figures, 0, 0)[:2]
        usage_count.wrong += wrong
        usage_count.refused += refused
        usage_count.given += taken - refused
        usage_count.ended += 1
    else:
        usage_count.killed += 1


def check(job: Job, driver: FakeDriver, usage_count: Tally) -> None:
    """Check that the limit was never exceeded, and that the whole limit can be allocated afterwards."""
    usage_count.over = max(usage_count.over, driver.high()[0] - LIMIT)
    begun = time.monotonic()
    whole = job.run(f"alloc {LIMIT}", "free 0")
    usage_count.pauses.append(time.monotonic() - begun)
    usage_count.lost += job.region().gpus[0].held + sum(driver.used()) + (whole[0] != (0,)) * LIMIT


def report(table: bench.Table, usage_count: Tally, seed: int) -> None:
    """One line a figure."""
    shape = f"{PROCESSES} processes of {THREADS} threads, seed {seed}"
    table.add(
        "racing allocations, a third of them from pools", usage_count.given + usage_count.refused, "", shape
    )
    table.add("  of these refused at the limit", usage_count.refused, "")
    table.add("batches", usage_count.batches, "", "a fresh job each")
    table.add("processes that ended by themselves", usage_count.ended, "")
    table.add(
        "processes that were killed during a batch",
        usage_count.killed,
        "",
        "their allocations not counted above",
    )
    table.add("calls with another answer than success or out of memory", usage_count.wrong, "")
    table.add(
        "most bytes over the limit at any moment",
        max(0, usage_count.over),
        "bytes",
        "by the driver's own count",
    )
    table.add("bytes lost", usage_count.lost, "bytes", "still counted after the end of all processes")
    if usage_count.over > 0 or usage_count.lost or usage_count.wrong:
        table.end()
        sys.exit("the limit did not hold")
