"""Frameworks on the fake driver: a job on a large card, and a bare card of the job's size beside it."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import frameworks
from fakecuda import Card, FakeDriver
from fakecuda.job import Job, make_job

MIB = 1 << 20
CLIENTS = Path(__file__).parent / "clients"
LIMIT, LARGE, CONTEXT = 1024 * MIB, 4096 * MIB, 300 * MIB
PATIENCE = 180  # seconds, on a busy host


@dataclass(slots=True)
class Said:
    """What a program printed, and its exit status."""

    status: int
    out: str
    err: str


@dataclass(slots=True)
class FrameworkHost:
    """A folder with a fake driver, in which programs of one framework run."""

    group: str
    folder: Path
    driver: FakeDriver
    libraries: tuple[Path, ...] = ()  # further folders of the library path
    made: list[Job] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        path = ":".join(str(folder) for folder in (self.driver.folder, *self.libraries))
        return {"PYTHONPATH": str(frameworks.folder(self.group)), "LD_LIBRARY_PATH": path}

    def gpu(self, memory: int = LARGE) -> Card:
        """Put one card into the host, and take the others out."""
        [gpu] = self.driver.gpus(Card(memory=memory, context=CONTEXT))
        return gpu

    def job(self, gpu: Card, limit: int = LIMIT, **options) -> Job:
        """A job that may hold so much of the card and that knows what a context costs."""
        self.made.append(
            make_job(
                self.driver,
                self.folder / f"job{len(self.made)}",
                [(gpu, limit)],
                job=len(self.made) + 1,
                contexts=[CONTEXT],
                **options,
            )
        )
        self.made[-1].env = self.environment()
        return self.made[-1]

    def job_of(self, *limits: tuple[Card, int]) -> Job:
        """A job that may hold so many bytes of several cards."""
        job = make_job(self.driver, self.folder / "job", limits, contexts=[CONTEXT] * len(limits))
        job.env = self.environment() | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(limits))))}
        return job

    def in_job(self, job: Job, client: str, *words: str, **extra: str) -> Said:
        return self.run(job.environment(**extra), client, *words)

    def bare(self, client: str, *words: str, **extra: str) -> Said:
        """The same program without the hook."""
        env = {**os.environ, **self.driver.env, **self.environment(), **extra}
        return self.run(env, client, *words)

    def run(self, env: dict[str, str], client: str, *words: str) -> Said:
        done = subprocess.run(
            command(client, *words), env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def high(self) -> float:
        """The most MiB that were ever in use on the card, by the driver's own count."""
        return self.driver.high()[0] / MIB


def command(client: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(CLIENTS / f"{client}.py"), *words]
