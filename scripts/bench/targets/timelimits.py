"""T8: time limits while the controller is dead and while its clock is moved by an hour or a year.

Each job notes when SIGTERM comes; its end is seen by its process. Jobs obey SIGTERM, ignore it, or leave
children that ignore it. A thread that only sleeps measures how late this host wakes a process meanwhile:
a delay is a failure if it is longer than 100 ms and this.
"""

import os
import random
import select
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import bench

from targets.rows import Row

GRACE = 5  # seconds, the least that the settings allow
CONFIG = f"[host]\ncpus = 64\n[jobs]\nkill_wait = {GRACE}\n"
LATE = 100.0  # milliseconds
AT_ONCE = 8
SHIFTS = (0, 3600, -3600, 86400 * 365, -86400 * 365)
KINDS = {
    "obeys": "trap 'cat /proc/uptime >term; exit 0' TERM",
    "ignores": "trap 'cat /proc/uptime >term' TERM",
    "leaves": "(trap '' TERM; while :; do sleep 1000; done) & trap 'cat /proc/uptime >term; exit 0' TERM",
}
SCRIPT = """#!/bin/sh
cd {place}
{trap}
echo $$ >pid
cat /proc/uptime >start
while :; do sleep 1000 & wait $!; done
"""


@dataclass
class Watched:
    """A job with a limit: its directory, and when its process ended."""

    kind: str
    limit: int
    place: Path
    job: int = 0
    submitted: float = 0.0
    ended: float = 0.0

    def at(self, name: str) -> float:
        return float((self.place / name).read_text().split()[0])


class Sleeper(threading.Thread):
    """Sleeps 5 ms again and again; `worst` is the longest delay in milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.worst, self.is_over = 0.0, False

    def run(self) -> None:
        while not self.is_over:
            begun = time.monotonic()
            time.sleep(0.005)
            self.worst = max(self.worst, (time.monotonic() - begun) * 1000 - 5)


def run(target: str, seed: int, size: int) -> list[Row]:
    row, luck = Row(target, seed, 0), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fgclock-") as name:
        library, clock = Path(name, "fakeclock.so"), Path(name, "clock")
        source = bench.ROOT / "tests" / "fakeclock.c"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True)
        clock.write_text("0")
        os.environ |= {"FAKE_CLOCK": str(clock), "LD_PRELOAD": str(library)}
        with bench.home(config=CONFIG) as it:
            while row.done < size:
                batch(it, clock, luck, min(AT_ONCE, size - row.done), row)
        for variable in ("LD_PRELOAD", "FAKE_CLOCK"):
            del os.environ[variable]
    return [row]


def batch(it: bench.Home, clock: Path, luck: random.Random, count: int, row: Row) -> None:
    """Run some jobs at once; kill the controller and move its clock while they run."""
    sleeper = Sleeper()
    sleeper.start()
    jobs = [begin(it, luck, row.done + number) for number in range(count)]
    pidfds = {os.pidfd_open(wait_for(job)): job for job in jobs}
    is_dead = luck.random() < 0.7
    if is_dead:
        with suppress(OSError, ValueError):
            os.kill(it.pid, signal.SIGKILL)
    clock.write_text(str(luck.choice(SHIFTS)))
    while pidfds:
        ready = select.select(list(pidfds), [], [], 60)[0]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not ready:
            row.findings += [f"job {job.job} does not end" for job in pidfds.values()]
            break
        for one in ready:
            pidfds.pop(one).ended = now
            os.close(one)
    sleeper.is_over = True
    row.notes["max delay of a sleeper ms"] = max(row.notes.get("max delay of a sleeper ms", 0), sleeper.worst)
    with it.client() as client:
        client.ask("wait", ids=[job.job for job in jobs], patience=60)
        found = client.ask("history", ids=[job.job for job in jobs], fields=["id", "state"])["jobs"]
    states = {one["id"]: one.get("state") for one in found}
    for job in jobs:
        judge(job, str(states.get(job.job)), sleeper.worst, row)


def begin(it: bench.Home, luck: random.Random, number: int) -> Watched:
    job = Watched(luck.choice(list(KINDS)), luck.choice((1, 2, 3)), it.path / f"limit{number}")
    job.place.mkdir()
    request = bench.submission(it, SCRIPT.format(place=job.place, trap=KINDS[job.kind]), 1, share=0)
    request["requests"][0] |= {"output": "/dev/null", "time_limit": job.limit}  # type: ignore[index]
    job.submitted = time.clock_gettime(time.CLOCK_BOOTTIME)
    with it.client() as client:
        job.job = client.ask("submit", **request)["first"]
    return job


def wait_for(job: Watched) -> int:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with suppress(OSError, ValueError, IndexError):
            job.at("start")
            return int((job.place / "pid").read_text())
        time.sleep(0.005)
    raise TimeoutError(f"job {job.job} does not start")


def judge(job: Watched, state: str, sleeper: float, row: Row) -> None:
    """Compare the times of the signals, in hundredths of a second as /proc/uptime has them."""
    row.done, row.jobs = row.done + 1, row.jobs + 1
    told = f"job {job.job} ({job.kind}, limit {job.limit} s)"
    if state != "TIMEOUT":
        row.wrong += 1
        row.findings.append(f"{told}: {state}")
    try:
        late = {"SIGTERM": (job.at("term") - job.at("start") - job.limit) * 1000}
        if job.kind == "ignores":
            late["SIGKILL"] = (job.ended - job.at("term") - GRACE) * 1000
    except (OSError, IndexError):
        row.findings.append(f"{told}: no SIGTERM")
        return
    if job.at("term") < job.submitted + job.limit - 0.01:
        row.findings.append(f"{told}: SIGTERM before the limit")
    for name, delay in late.items():
        row.worst = max(row.worst, delay)
        row.notes[f"max delay of {name} ms"] = max(row.notes.get(f"max delay of {name} ms", 0), delay)
        if delay > LATE + sleeper:
            row.findings.append(f"{told}: {name} {delay:.0f} ms late (a sleeper: {sleeper:.0f} ms)")
