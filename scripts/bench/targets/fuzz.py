"""T14: mutated job scripts, requests and queue files.

Scripts: the header lines of a script are mutated and read as fgsub and sbatch do. The only exception
allowed is an error for the user, which names the script. Requests and flipped bits are those of
scripts/bench/contain and scripts/bench/flips.
"""

import random
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from targets.rows import Row

INTERNAL = "requests answered with an internal error"
HERE = Path(__file__).parents[1]
MORE = (
    *("--", "=", " ", "'", '"', "\\", "#", "\0", "\t", "%", "0", "-1", "9" * 30, "a:b", ",", "é", "\udcff"),
    *("[1-9]", "$HOME", "~", "\x1b[31m", "1e999", "nan", ".", "T", "K"),
)


def run(target: str, seed: int, size: int) -> list[Row]:
    kinds = {"T14 scripts": scripts, "T14 frames": frames, "T14 flips": flips}
    return [kinds[target](target, seed, size)]


class Here:
    """The surroundings of a submission in which every path is right."""

    def __init__(self, data: bytes) -> None:
        self.environ = {"PATH": "/bin", "HOME": "/", "USER": "ann"}
        self.cwd, self.umask, self.rlimits, self._data = "/", 0o22, (), data

    def account(self) -> tuple[str, str]:
        return "ann", "/"

    def script(self, word: str | None, directory: str) -> Any:
        from fgsched.lifecycle import jobscript
        from fgsched.submission.checks import Source

        jobscript.accept("job.sh", self._data)
        return Source(name="job.sh", data=self._data)

    def moment(self, text: str) -> tuple[float, str]:
        from fgsched.domain.times import parse_time

        return parse_time(text, 0.0), ""

    def job_directory(self, setting: Any) -> str:
        return "/"

    def check_output(self, *_: Any, **__: Any) -> None:
        return


def scripts(target: str, seed: int, size: int) -> Row:
    from fgsched.domain.errors import BadUsage, Refused
    from fgsched.submission import options
    from fgsched.submission.prepare import SubmissionPreparer

    row, luck = Row(target, seed, 0), random.Random(seed)
    site, headers, unplaced = options.SubmitContext(), examples(), list[str]()
    refused = 0
    for number in range(size):
        data = mutated(luck, headers)
        try:
            SubmissionPreparer(Here(data), site=site).prepare([], ["job.sh"])
        except Refused as error:
            refused += 1
            if not error.cause.startswith("Job dependency problem"):  # as a controller says it
                row.findings.append(f"script {number} {data!r}: {error.cause}")
        except BadUsage as error:
            refused += 1
            unplaced += [] if "job.sh" in error.cause else [f"{error.cause} <- {data!r}"]
        except Exception:
            row.findings.append(f"script {number} {data!r}: {traceback.format_exc(limit=-2)}")
            if len(row.findings) > 20:
                break
        row.done += 1
    row.notes |= {"scripts refused": refused, "errors that do not name the script": len(unplaced)}
    for text in unplaced[:5]:
        print(text, file=sys.stderr)
    return row


def examples() -> list[str]:
    """Return header lines that are right."""
    from fgsched.submission.table import BY_NAME

    values = ("1", "0.5", "8G", "1:30:00", "name", "a100:0.5", "now+1hour", "0-3%2", "%x.out", "afterok:1")
    return [
        f"#{family} --{name}={value}" for family in ("FG", "SBATCH") for name in BY_NAME for value in values
    ] + ["#FG -G1 -c 2", "#SBATCH -J x -o 'a b'", "#SBATCH --gres=gpu:2", "#SBATCH hetjob", "#FG"]


def mutated(luck: random.Random, headers: list[str]) -> bytes:
    lines = ["#!/bin/sh", *luck.choices(headers, k=luck.randrange(1, 5)), "true"]
    for _ in range(luck.choice((0, 1, 1, 2, 6))):
        place = luck.randrange(len(lines))
        at = luck.randrange(len(lines[place]) + 1)
        kept = lines[place][at + luck.randrange(4) :]
        lines[place] = lines[place][:at] + luck.choice(MORE) + kept
    if luck.random() < 0.1:
        luck.shuffle(lines)
    return "\n".join(lines).encode(errors="surrogateescape")[: luck.choice((10**6, 10**6, 40))]


def told(name: str, words: list[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(HERE / name), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def frames(target: str, seed: int, size: int) -> Row:
    """Run scripts/bench/contain, in whose rounds three of five mutations are requests."""
    words = ["--mutations", str(size * 5 // 3), "--each", "300", "--seed", str(seed)]
    done = told("contain", words)
    row = Row(target, seed, 0)
    count = {line[:48].strip(): line[48:].strip() for line in done.stdout.splitlines()}
    row.done = int(count.get("mutated requests", 0))
    names = ("mutated results", "mutated claims", "mutated columns of rows", INTERNAL)
    row.notes |= {name: float(count.get(name, 0)) for name in names}
    if done.returncode:
        row.findings.append((done.stderr + done.stdout)[-2000:])  # the failures are at the end of its output
    return row


def flips(target: str, seed: int, size: int) -> Row:
    """Run scripts/bench/flips: four fifths of the flips in the log, one fifth in the file."""
    of_file = size // 5
    words = ["--log", str(size - of_file), "--file", str(of_file), "--seed", str(seed)]
    done = told("flips", words)
    row = Row(target, seed, 0)
    for line in done.stdout.splitlines():
        if found := re.search(r"(\d+) flips: refused (\d+), harmless (\d+), BELIEVED (\d+)", line):
            flipped, refused, harmless, believed = map(int, found.groups())
            row.done += flipped
            row.wrong += believed
            row.notes["refused"] = row.notes.get("refused", 0) + refused
            row.notes["accepted, nothing changed"] = row.notes.get("accepted, nothing changed", 0) + harmless
    if done.returncode or not row.done:
        row.findings.append((done.stdout + done.stderr)[-2000:])
    return row
