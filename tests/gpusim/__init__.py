"""A simulator of programs that share a GPU in time slices, in C: gpusim.c describes its arguments.

Its model: contexts in a ring, time slices, what a change of contexts costs, streams, copies, and
threads of the host with late wake-ups.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import fgshim

SOURCE = Path(__file__).parent / "gpusim.c"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True, kw_only=True)
class JobTime:
    """What a simulated job had."""

    gpu: float  # per cent of the time: it had the GPU and a kernel ran
    launches: int
    requests: int
    p50: float  # latency of its requests, milliseconds
    p99: float


@dataclass(frozen=True)
class Simulator:
    """The compiled simulator."""

    program: Path

    @classmethod
    def build(cls, folder: Path) -> "Simulator":
        """Compile the simulator into a folder."""
        program = folder / "gpusim"
        include = f"-I{Path(fgshim.__file__).parent / 'include'}"
        subprocess.run(["gcc", *FLAGS, include, SOURCE, "-o", program, "-lm"], check=True)
        return cls(program)

    def run(self, jobs: tuple[str, ...], **options: float) -> list[JobTime]:
        """Simulate jobs beside each other; `options` and jobs as the head of gpusim.c describes them."""
        words = [f"{name}={value}" for name, value in options.items()]
        done = subprocess.run([self.program, *words, *jobs], check=True, capture_output=True, text=True)
        rows = [line.split() for line in done.stdout.splitlines()]
        return [
            JobTime(
                gpu=float(gpu), launches=int(launches), requests=int(requests), p50=float(p50), p99=float(p99)
            )
            for gpu, launches, requests, p50, p99 in rows
        ]
