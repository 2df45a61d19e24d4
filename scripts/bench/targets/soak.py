"""T18: a soak. Jobs are submitted at a fixed rate for minutes or hours; what grows meanwhile is measured.

Every few seconds memory, descriptors, zombies, log, write-ahead log and run directory are read. Slopes
are of the second half of the time, by least squares, per hour. The size of a round is its length in
minutes.
"""

import os
import secrets
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import bench

from targets.rows import Row

RATE = 50  # jobs per second
CONFIG = '[host]\ncpus = 64\n[accounting]\nmove_after = "3m"\n'
SCRIPT = "#!/bin/sh\nexit {code}\n"
STUCK = "max looks in a row with a zombie"
PAUSE = 5.0  # seconds between two looks
MOST_MEMORY = 1.0  # MiB per hour
MOST_LOG = 64.0  # MiB of the write-ahead log


class Submitter(threading.Thread):
    """Submits ten jobs at a time at the rate, each with an exit code that follows from its place."""

    def __init__(self, it: bench.Home, seconds: float) -> None:
        super().__init__(daemon=True)
        self.it, self.seconds = it, seconds
        self.submitted = 0
        self.worst = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            begun = time.monotonic()
            with self.it.client() as client:
                while (now := time.monotonic() - begun) < self.seconds:
                    if self.submitted > now * RATE:
                        time.sleep(0.01)
                        continue
                    asked = time.monotonic()
                    client.ask("submit", patience=60, **self.request())
                    self.worst = max(self.worst, (time.monotonic() - asked) * 1000)
                    self.submitted += 10
        except BaseException as error:  # told at the end
            self.error = error

    def request(self) -> dict[str, Any]:
        request = bench.submission(self.it, "", 1)
        request["requests"][0]["output"] = "/dev/null"  # type: ignore[index]
        scripts = [SCRIPT.format(code=code % 7) for code in range(10)]
        jobs = [[0, place, 0, False] for place in range(10)]
        return request | {"key": secrets.token_hex(16), "scripts": scripts, "jobs": jobs}


def looked(it: bench.Home, pid: int) -> dict[str, float]:
    """Return the figures that must not grow."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    entries = sum(len(files) + len(dirs) for _, dirs, files in os.walk(it.paths.run))
    return {
        "memory MiB": memory / 1024,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "zombies": float(zombies(pid)),
        "log KiB": size(it.paths.log) / 1024,
        "write-ahead log MiB": size(it.paths.state / "queue.db-wal") / 2**20,
        "queue MiB": size(it.paths.state / "queue.db") / 2**20,
        "accounts MiB": size(it.paths.state / "accounts.db") / 2**20,
        "entries of the run directory": float(entries),
    }


def size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def zombies(parent: int) -> int:
    """Count zombies among the children of the controller and of its spawner."""
    from fgsched.system.process import parents

    known = parents()
    above = {parent, *(pid for pid, one in known.items() if one == parent)}
    count = 0
    for pid in (one for one, its in known.items() if its in above):
        with suppress(OSError):
            count += Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return count


def slope(points: list[tuple[float, float]]) -> float:
    """Return the growth per hour of (second, figure), by least squares."""
    x, y = (sum(one[axis] for one in points) / len(points) for axis in (0, 1))
    spread = sum((one[0] - x) ** 2 for one in points)
    return sum((one[0] - x) * (one[1] - y) for one in points) / spread * 3600 if spread else 0.0


def run(target: str, seed: int, size: int) -> list[Row]:
    row = Row(target, seed, size)
    with bench.home(config=CONFIG) as it:
        submitter = Submitter(it, size * 60)
        submitter.start()
        begun, pid, looks, stuck = time.monotonic(), it.pid, [], 0
        while submitter.is_alive():
            submitter.join(PAUSE)
            figures = looked(it, pid)
            looks.append((time.monotonic() - begun, figures))
            stuck = stuck + 1 if figures["zombies"] else 0
            row.notes[STUCK] = max(row.notes.get(STUCK, 0), stuck)
        judge(it, submitter, row)
        row.findings += [] if it.pid == pid else ["the controller is another one"]
    tell(looks, row)
    row.worst = submitter.worst
    if row.notes["slope memory MiB"] > MOST_MEMORY and size >= 120:
        row.findings.append(f"memory grows by {row.notes['slope memory MiB']:.2f} MiB per hour")
    if row.notes["max write-ahead log MiB"] > MOST_LOG:
        row.findings.append("the write-ahead log is longer than 64 MiB")
    return [row]


def judge(it: bench.Home, submitter: Submitter, row: Row) -> None:
    """Wait until the queue is empty; compare the exit codes with those of the submissions."""
    until = time.monotonic() + 120
    with it.client() as client:
        while client.ask("queue", fields=["id"])["jobs"] and time.monotonic() < until:
            time.sleep(0.5)
        codes: Counter[int] = Counter()
        after: int | None = 0
        while after is not None:
            page = client.ask("history", since=0, after=after, fields=["id", "exit_code"], patience=60)
            codes.update(job.get("exit_code", 0) for job in page["jobs"])
            after = page.get("next")
    expected = Counter({code: submitter.submitted // 10 * (2 if code < 3 else 1) for code in range(7)})
    row.jobs = submitter.submitted
    row.lost = submitter.submitted - codes.total()
    row.wrong = sum((codes - expected).values())
    row.notes["jobs per second"] = round(submitter.submitted / submitter.seconds, 1)
    row.findings += [f"submitter: {submitter.error!r}"] if submitter.error else []


def tell(looks: list[tuple[float, dict[str, float]]], row: Row) -> None:
    later = looks[len(looks) // 2 :]
    for name in looks[0][1]:
        row.notes[f"max {name}"] = round(max(figures[name] for _, figures in looks), 2)
        row.notes[f"slope {name}"] = round(slope([(at, figures[name]) for at, figures in later]), 2)
