"""A simulator of programs that share a GPU in time slices, in C: gpusim.c describes its arguments.

Its model: contexts in a ring, time slices, what a change of contexts costs, streams, copies, and
threads of the host with late wake-ups. Jobs take turns as fgshim/include/arbiter.h decides.
"""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import fgshim
from gpusim.mixes import Mix

SOURCE = Path(__file__).parent / "gpusim.c"
INCLUDE = Path(fgshim.__file__).parent / "include"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror")


@dataclass(frozen=True, kw_only=True)
class JobTime:
    """What a simulated job had."""

    gpu: float  # per cent of the time: it had the GPU and a kernel ran
    launches: float
    requests: float
    p50: float  # latency of its requests, milliseconds
    p99: float


@dataclass(frozen=True)
class Outcome:
    """What the jobs of a mix had, in the order of the mix."""

    jobs: tuple[JobTime, ...]

    @property
    def gpu(self) -> tuple[float, ...]:
        return tuple(job.gpu for job in self.jobs)


@dataclass(frozen=True)
class Simulator:
    """The compiled simulator."""

    program: Path

    @classmethod
    def build(cls, folder: Path) -> "Simulator":
        """Compile the simulator into a folder."""
        program = folder / "gpusim"
        subprocess.run(["gcc", *FLAGS, f"-I{INCLUDE}", SOURCE, "-o", program, "-lm"], check=True)
        return cls(program)

    def run(self, jobs: tuple[str, ...], **options: float) -> tuple[JobTime, ...]:
        """Simulate jobs beside each other; `options` and jobs as the head of gpusim.c describes them."""
        words = [f"{name}={value}" for name, value in options.items()]
        done = subprocess.run([self.program, *words, *jobs], check=True, capture_output=True, text=True)
        names = ("gpu", "launches", "requests", "p50", "p99")
        rows = [map(float, line.split()) for line in done.stdout.splitlines()]
        return tuple(JobTime(**dict(zip(names, row, strict=True))) for row in rows)

    def outcome(self, mix: Mix, seeds: Iterable[int], **options: float) -> Outcome:
        """Simulate a mix with each seed; return the means."""
        options = {"seconds": mix.seconds} | options
        runs = [self.run(mix.jobs, seed=seed, **options) for seed in seeds]
        return Outcome(tuple(_mean(job) for job in zip(*runs, strict=True)))


def _mean(runs: tuple[JobTime, ...]) -> JobTime:
    return JobTime(**{name: mean(getattr(run, name) for run in runs) for name in vars(runs[0])})
