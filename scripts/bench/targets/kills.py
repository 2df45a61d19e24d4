"""T1, T2, T3: random kills of controller, spawner and shepherds under load, by scripts/bench/crash."""

import json
import subprocess
import sys
from pathlib import Path

from targets.rows import Row

CRASH = Path(__file__).parents[1] / "crash"
_ASKED = {  # kills of (controller, spawner, shepherd) for each kill of the target
    "T1": (1.0, 0.05, 0.05),
    "T2": (1.6, 1.0, 0.3),
    "T3": (1.6, 0.3, 1.0),
}


def run(target: str, seed: int, size: int) -> list[Row]:
    """Run one campaign of kills; return a row for each target that it serves."""
    kills = [max(1, round(size * part)) for part in _ASKED[target]]
    words = ["--kills", kills[0], "--spawner-kills", kills[1], "--shepherd-kills", kills[2], "--seed", seed]
    done = subprocess.run(
        [sys.executable, str(CRASH), *map(str, words), "--json"], capture_output=True, text=True, check=False
    )
    try:
        return rows(json.loads(done.stdout))
    except ValueError:
        return [Row(target, seed, 0, findings=[f"crash ended with {done.returncode}: {done.stderr[-2000:]}"])]


def rows(report: dict[str, int | str]) -> list[Row]:
    """Return the rows of T1, T2 and T3 for one report of scripts/bench/crash; T1 has the counts of jobs."""
    count = {name: value for name, value in report.items() if isinstance(value, int)}
    findings = [
        f"{name}: {count[name]}"
        for name in ("orders answered and not obeyed", "jobs still open after 120 s", "clients that failed")
        if count[name]
    ]
    if report["integrity of the queue file"] != "ok":
        findings.append(f"integrity: {report['integrity of the queue file']}")
    shared = {
        "jobs": count["jobs acknowledged"],
        "lost": count["acknowledged and lost"],
        "twice": count["run twice"],
        "never": count["never run"],
        "wrong": count["wrong status"] + count["of killed shepherds: called COMPLETED wrongly"],
        "orphaned": count["orphaned processes"],
        "left": count["claims, results and directories left"],
        "findings": findings,
    }
    unknown = {"status unknown": float(count["of killed shepherds: status unknown"])}
    what = {"T1": "controller", "T2": "the spawner", "T3": "a shepherd"}
    what["T1"] = "the controller"
    return [
        Row(target, count["seed"], count[f"kill -9 of {name}"], notes=dict(unknown), **shared)
        for target, name in what.items()
    ]
