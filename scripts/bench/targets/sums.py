"""T17: the CPU time of each job in the accounts, beside the time that its processes measured themselves.

Each job burns a known time in some processes, waits for them, and writes its own getrusage(2) into a
file. Some controllers are killed meanwhile. Every job must be in the accounts once, within 1 % and 10 ms
of its own time.
"""

import os
import random
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import bench

from targets.rows import Row

CONFIG = '[host]\ncpus = 64\n[jobs]\nmax_requeue = 1000\n[accounting]\nmove_after = "0"\n'
PART, MORE = 0.01, 0.010  # of the time, and seconds: the allowed difference


def run(target: str, seed: int, size: int) -> list[Row]:
    row, luck = Row(target, seed, 0), random.Random(seed)
    with bench.home(config=CONFIG) as it:
        program = it.path / "burner"
        source = Path(__file__).with_name("burner.c")
        subprocess.run([os.environ.get("CC", "cc"), "-O1", "-static", "-o", program, source], check=True)
        ids: list[int] = []
        while len(ids) < size:
            ids += submit(it, program, luck, min(10, size - len(ids)))
            if luck.random() < 0.3:
                with suppress(OSError, ValueError):
                    os.kill(it.pid, signal.SIGKILL)
            wait(it, ids[-10:])
        judge(it, ids, row)
    return [row]


def submit(it: bench.Home, program: Path, luck: random.Random, count: int) -> list[int]:
    used = it.path / "used"
    request = bench.submission(it, "", 1, share=0)
    request["requests"][0]["output"] = "/dev/null"  # type: ignore[index]
    amounts = [(luck.choice((0, 5, 30, 150)), luck.choice((0, 1, 4))) for _ in range(count)]
    scripts = [f"#!/bin/sh\nexec {program} {used} {time} {children}\n" for time, children in amounts]
    jobs = [[0, place, 0, False] for place in range(count)]
    answer = tried(it, "submit", **request | {"key": secrets.token_hex(16), "scripts": scripts, "jobs": jobs})
    return list(range(answer["first"], answer["first"] + answer["count"]))


def wait(it: bench.Home, ids: list[int]) -> None:
    tried(it, "wait", ids=ids, patience=60)


def tried(it: bench.Home, name: str, **words: Any) -> Any:
    until = time.monotonic() + 60
    while True:
        try:
            with it.client() as client:
                return client.ask(name, **words)
        except Exception as error:
            if type(error).__name__ not in ("Unreachable", "ConnectionError") or time.monotonic() > until:
                raise
            time.sleep(0.02)


def judge(it: bench.Home, ids: list[int], row: Row) -> None:
    """Wait until all jobs are in the accounts; compare their times."""
    from fgsched.accounting.ledger import LedgerReader

    until, found = time.monotonic() + 120, []
    while len(found) < len(ids) and time.monotonic() < until:
        time.sleep(1)
        with suppress(Exception):
            reader = LedgerReader(it.paths.accounts)
            found = list(reader.jobs(0, 1e12))
            reader.close()
    lines = [line.split() for line in (it.path / "used").read_text().splitlines()]
    own = {int(job): float(seconds) for job, seconds in lines}
    accounts = {job.id: job for job in found}
    row.done, row.jobs = len(found), len(ids)
    row.lost = len(set(ids) - accounts.keys())
    row.twice = len(found) - len(accounts) + len(lines) - len(own)
    row.never = len(set(ids) - own.keys())
    sums = [0.0, 0.0]
    for job, seconds in own.items():
        if job not in accounts:
            continue
        told = float(accounts[job].row.get("cpu_seconds", 0.0))
        sums[0], sums[1] = sums[0] + told, sums[1] + seconds
        row.worst = max(row.worst, abs(told - seconds) * 1000)
        if abs(told - seconds) > PART * seconds + MORE:
            row.wrong += 1
            row.findings.append(f"job {job}: {told:.3f} s in the accounts, {seconds:.3f} s by itself")
    row.notes |= {"CPU seconds in the accounts": sums[0], "CPU seconds of the jobs": sums[1]}
