"""T16: one user with 10,000 connections, or with endless submissions, and the times of other users.

The floods are those of scripts/bench/floods. They are compared with a user who only uses a processor as
the floods do. Submissions of others must be answered within 100 ms (99 of 100), or twice the time
without a flood where this host needs longer. Their jobs must end within 100 ms, too.
"""

import json
import subprocess
import sys
from pathlib import Path

from targets.rows import Row

SECONDS = 10
LATE = 100.0  # milliseconds


def run(target: str, seed: int, size: int) -> list[Row]:
    """Run the floods; the seed has no effect, because the kernel orders the connections."""
    row = Row(target, seed, 0)
    words = [
        "--json",
        "--seconds",
        str(max(SECONDS, size // 1000)),
        "--only",
        "spins",
        "--only",
        "crowd",
        "--only",
        "submits",
    ]
    command = [sys.executable, str(Path(__file__).parents[1] / "floods"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        _, base, *floods = json.loads(done.stdout)
    except ValueError:
        row.findings.append(done.stderr[-2000:] or f"exit status {done.returncode}")
        return [row]
    row.done = floods[0]["connections"]
    row.notes["max connections at once"] = floods[0]["open at once"]
    row.notes["max p99 of a submission without a flood ms"] = base["submit"]["p99"]
    row.notes["max median of a job without a flood ms"] = base["run"]["p50"]
    for flood in floods:
        kind, p99, median = flood["flood"], flood["submit"]["p99"], flood["run"]["p50"]
        row.jobs += flood["run"]["n"]
        row.worst = max(row.worst, p99)
        row.notes[f"max p99 of a submission during {kind} ms"] = p99
        row.notes[f"max median of a job during {kind} ms"] = median
        row.notes[f"max memory of the controller during {kind} MiB"] = flood["memory"]
        if p99 > max(LATE, 2 * base["submit"]["p99"]):
            row.findings.append(f"{kind}: a submission of another user takes {p99} ms")
        if median > max(LATE, 2 * base["run"]["p50"]):
            row.findings.append(f"{kind}: a job of another user takes {median} ms")
        row.findings += [f"{kind}: {answer}" for answer in flood["wrong"]]
    return [row]
