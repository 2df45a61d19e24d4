"""Jobs of the check, submitted to a controller of its own."""

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck.place import decoded
from gpucheck.sheet import NotHere

_PAUSE = 0.05  # seconds between two looks for a file


@dataclass(frozen=True)
class Wanted:
    """A job: a line of the shell and what it asks for. @OUT@ in the line is the file for what it prints."""

    line: str
    gpus: int = 1
    share: float = 1.0
    compute: str = ""
    tier: str = ""


@dataclass(frozen=True)
class Submitted:
    """Jobs that were submitted together."""

    client: Any
    ids: tuple[int, ...]
    outs: tuple[Path, ...]

    def pacing(self) -> str:
        """Return by what the compute shares are held once all jobs run; "ended" for a job that has ended."""
        jobs = self.shown()
        while any(job.started_at is None for job in jobs):
            time.sleep(_PAUSE)
            jobs = self.shown()
        return "/".join(sorted({job.pacing or "ended" for job in jobs}))

    def shown(self) -> list[Any]:
        """Return the records of the jobs."""
        from fgsched import protocol

        return [self.client.call(protocol.ShowJob(id=job)) for job in self.ids]

    def wait(self, patience: float) -> None:
        """Wait for the end of all jobs."""
        from fgsched import protocol

        self.client.call(protocol.Wait(ids=list(self.ids)), patience=patience)

    def until_printed(self, patience: float) -> None:
        """Wait until every job has printed a line. Raises NotHere if one fails, or after that time."""
        until = time.monotonic() + patience
        while not all(out.exists() and out.stat().st_size for out in self.outs):
            states = [job.state.value for job in self.shown()]
            if "FAILED" in states or time.monotonic() > until:
                raise NotHere(f"the jobs were not ready in {patience:.0f} s: {', '.join(states)}")
            time.sleep(_PAUSE)

    def said(self) -> list[dict[str, Any]]:
        """Return the last JSON that each job printed. Raises ValueError if one printed none, or NotHere."""
        return [decoded(out.read_text() if out.exists() else "") for out in self.outs]


def submit(client: Any, home: Path, jobs: Sequence[Wanted]) -> Submitted:
    """Submit jobs together."""
    from fgsched import protocol
    from fgsched.domain.job import Demand, Request

    run = secrets.token_hex(4)
    outs = tuple(home / f"{run}-{at}.json" for at in range(len(jobs)))
    lines = [job.line.replace("@OUT@", str(out)) for job, out in zip(jobs, outs, strict=True)]
    requests = [
        Request(
            name="gpu-check",
            chdir=str(home),
            gpu_compute=job.compute,
            tier=job.tier,
            demand=Demand(gpus=job.gpus, share=int(job.share * 10_000)),
        )
        for job in jobs
    ]
    call = protocol.Submit(
        key=secrets.token_hex(16),
        scripts=[f"#!/bin/sh\n{line}\n" for line in lines],
        requests=requests,
        environments=[dict(os.environ)],
        jobs=[(at, at, 0, False) for at in range(len(jobs))],
    )
    first = client.call(call).first
    return Submitted(client, tuple(range(first, first + len(jobs))), outs)


@contextmanager
def gate(home: Path) -> Iterator[Path]:
    """Yield a pipe that holds the jobs which read it, until the end of the block."""
    path = home / f"gate-{secrets.token_hex(4)}"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield path
    finally:
        os.close(descriptor)
