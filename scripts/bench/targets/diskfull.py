"""T13: a full disk, in blocks or in inodes, while jobs are submitted, run and end; at times with a kill.

The state directory is a small tmpfs. While it is full, submissions may be refused; running jobs go on.
When it has space again, the next submission must be accepted at once. Every acknowledged job must end
with its exit code.
"""

import os
import random
import secrets
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import bench

from targets.faults import judge
from targets.layer import Layer
from targets.rows import Row

CONFIG = "[host]\ncpus = 64\n[jobs]\nmax_requeue = 1000\n"
SCRIPT = "#!/bin/sh\necho $FG_JOB_ID >>{witness}\n{wait}\nexit {code}\n"
WAIT = "while [ ! -e {go} ]; do sleep 0.05; done"
RETRIED = {"Unreachable", "ConnectionError", "StorageError", "TimedOut"}
RESUMES = 1000.0  # milliseconds after which submissions are accepted again at most
PATIENCE = 60


class Trial:
    """One home on a small disk, and everything that was acknowledged there."""

    def __init__(self, it: bench.Home, disk: Path, outside: Path, luck: random.Random) -> None:
        self.it, self.disk, self.outside, self.luck = it, disk, outside, luck
        self.expected: dict[int, int] = {}
        self.refused = self.accepted = 0
        self.findings: list[str] = []
        self.worst = 0.0

    def play(self, number: int) -> None:
        """Fill the disk while two jobs run, submit, let the jobs end, remove the filler."""
        go, kind = self.outside / f"go{number}", self.luck.choice(("blocks", "blocks", "inodes"))
        kills = self.luck.random() < 0.3
        told = f"trial {number} ({kind}{', with a kill' * kills})"
        running = self.submit(2, WAIT.format(go=go), PATIENCE)
        self.fill(kind)
        key = self.while_full()
        go.touch()
        time.sleep(self.luck.uniform(0, 0.5))
        if kills:
            with suppress(OSError, ValueError):
                os.kill(self.it.pid, signal.SIGKILL)
            self.submit(1, "", 0.5)
        self.make_room()
        begun = time.monotonic()
        after = self.submit(1, "", PATIENCE, key)
        took = (time.monotonic() - begun) * 1000
        self.worst = max(self.worst, 0.0 if kills else took)
        if not after or (took > RESUMES and not kills):
            self.findings.append(f"{told}: submissions are accepted after {took:.0f} ms")
        if not self.ended([*running, *after]):
            self.findings.append(f"{told}: jobs do not end: {[*running, *after]}")

    def while_full(self) -> str:
        """Submit large scripts until one is refused; return the key of the refused submission."""
        for _ in range(400):
            key = secrets.token_hex(16)
            if not self.submit(1, "#" + "x" * 30_000, 0, key):
                self.refused += 1
                return ""
            self.accepted += 1
        return ""

    def submit(self, count: int, wait: str, seconds: float, key: str = "") -> list[int]:
        """Return the ids of accepted jobs; try again for a time."""
        codes = [self.luck.randrange(7) for _ in range(count)]
        request = bench.submission(self.it, "", 1, share=0)
        request["requests"][0]["output"] = "/dev/null"  # type: ignore[index]
        witness = self.it.path / "witness"
        scripts = [SCRIPT.format(witness=witness, wait=wait, code=code) for code in codes]
        jobs = [[0, place, 0, False] for place in range(count)]
        request |= {"key": key or secrets.token_hex(16), "scripts": scripts, "jobs": jobs}
        until = time.monotonic() + seconds
        while True:
            try:
                with self.it.client() as client:
                    answer = client.ask("submit", patience=10, **request)
                break
            except Exception as error:
                if type(error).__name__ not in RETRIED:
                    raise
                if time.monotonic() > until:
                    return []
                time.sleep(0.02)
        ids = list(range(answer["first"], answer["first"] + answer["count"]))
        self.expected.update(zip(ids, codes, strict=True))
        return ids

    def fill(self, kind: str) -> None:
        if kind == "inodes":
            with suppress(OSError):
                for number in range(10**6):
                    (self.disk / f"filler{number}").touch()
            return
        with suppress(OSError), (self.disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        for one in self.disk.glob("filler*"):
            one.unlink()

    def ended(self, ids: list[int]) -> bool:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with suppress(Exception), self.it.client() as client:
                client.ask("wait", ids=ids, patience=until - time.monotonic())
                return True
            time.sleep(0.02)
        return False


@contextmanager
def small_disk() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="fgfull-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,nr_inodes=200", "none", place], check=True)
    before = os.environ.get("FG_BENCH_DIR")
    os.environ["FG_BENCH_DIR"] = str(place)
    try:
        yield place
    finally:
        os.environ.pop("FG_BENCH_DIR")
        if before:
            os.environ["FG_BENCH_DIR"] = before
        subprocess.run(["umount", place], check=False)
        place.rmdir()


class Judged:
    """What `judge` of the fault sweep needs."""

    layer: Layer | None = None

    def __init__(self, it: Any, expected: dict[int, int]) -> None:
        self.it, self.expected = it, expected


def run(target: str, seed: int, size: int) -> list[Row]:
    row = Row(target, seed, 0)
    if os.geteuid():
        row.findings.append("not run: a small disk needs root")
        return [row]
    outside = tempfile.TemporaryDirectory(prefix="fgoutside-")
    with outside as name, small_disk() as disk, bench.home(config=CONFIG) as it:
        witness = Path(name, "witness")
        witness.touch()
        (it.path / "witness").symlink_to(witness)
        trial = Trial(it, disk, Path(name), random.Random(seed))
        for number in range(size):
            trial.play(number)
            row.done += 1
        judge(Judged(it, trial.expected), row)  # type: ignore[arg-type]
    counts = Counter(accepted=trial.accepted, refused=trial.refused)
    row.findings += trial.findings
    row.worst = trial.worst
    row.notes |= {f"submissions {what} while full": float(count) for what, count in counts.items()}
    return [row]
