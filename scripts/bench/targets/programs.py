"""T6, T19 and the simulated sites: benchmarks of their own, whose exit status is the verdict.

T19 takes the commit before this one (scripts/bench/upgrade); its size is the number of running jobs. T6
restarts the controller in four ways (scripts/bench/restart). "world" is scripts/bench/world: the size is
the number of histories.
"""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from targets.rows import Row

HERE = Path(__file__).parents[1]


def run(target: str, seed: int, size: int) -> list[Row]:
    row = Row(target, seed, 0)
    words = {
        "T6": ["restart", "--json", "--jobs", str(size)],
        "T19": ["upgrade", "--json", "--jobs", str(size)],
        "world": ["world", "--first", str(seed), "--seeds", str(size)],
    }[target]
    command = [sys.executable, str(HERE / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        row.findings.append((done.stdout + done.stderr)[-3000:])
        return [row]
    row.done = row.jobs = size
    if target == "T6":
        take(done.stdout, row)
    return [row]


def take(text: str, row: Row) -> None:
    """Take the rows of scripts/bench/restart."""
    with suppress(ValueError):
        for one in json.loads(text):
            row.lost += one["lost"]
            row.wrong += one["changed"] + one.get("wrong", 0)
            row.worst = max(row.worst, one["seconds"] * 1000)
