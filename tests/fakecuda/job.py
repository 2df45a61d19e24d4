"""A job without a controller: a region, the hook beside it, and programs with that hook preloaded."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fgshim
from fakecuda import Card, FakeDriver
from fgshim import region

# What fakejob goes through to have called every family once.
HISTORY = [
    *("alloc 256M", "alloc 256M", "free 0", "async 16M", "afree 2", "create 16M", "map 3", "release 3"),
    *("pool", "from 5 16M", "pool-destroy 5", "afree 6", "array 1024 1024 0 32 4 0", "array-end 7"),
    *("alloc 2M", "ipc-give 8", "free 8", "create 2M", "export 9", "release 9", "context", "alloc 2M"),
    *("context-end 10", "primary", "stream", "capture", "async 16M", "afree 12", "graph", "instantiate 13"),
    *("launch 14", "exec-end 14", "trim-graphs", "alloc 2G", "reset-primary"),
]


def answers(output: str) -> list[tuple[int, ...]]:
    """(status, figures…) of each line that fakejob printed."""
    return [tuple(int(word) for word in line.split()[1:]) for line in output.splitlines()]


@dataclass(slots=True)
class Live:
    """A fakejob that waits for the next command."""

    process: subprocess.Popen

    def say(self, command: str) -> tuple[int, ...]:
        """What it answers, once it has obeyed."""
        print(command, file=self.process.stdin, flush=True)
        return answers(self.process.stdout.readline())[0]

    def tell(self, command: str) -> None:
        """For a command that has no answer."""
        print(command, file=self.process.stdin, flush=True)

    def end(self) -> int:
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.end()


@dataclass(slots=True)
class Job:
    """A job's directory, and the environment of its processes."""

    driver: FakeDriver
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def region_file(self) -> Path:
        return self.folder / "region"

    def region(self) -> region.Region:
        return region.read(self.region_file)

    def environment(self, **extra: str) -> dict[str, str]:
        preload = {"LD_PRELOAD": str(self.folder / "libfgshim.so")}
        return {**os.environ, **self.driver.env, **preload, **self.env, **extra}

    def run(self, *commands: str, program: Path | None = None, **extra: str) -> list[tuple[int, ...]]:
        """Let one process do all of it; a minute is for ever."""
        words = [program or self.driver.program, *commands]
        done = subprocess.run(
            words, env=self.environment(**extra), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stderr == ""
        return answers(done.stdout)

    def start(self, **extra: str) -> Live:
        """A process that is told what to do line by line."""
        words, env = [self.driver.program, "-"], self.environment(**extra)
        pipe = subprocess.PIPE
        return Live(subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True))


def make_job(
    driver: FakeDriver,
    folder: Path,
    limits: Sequence[tuple[Card, int]],
    *,
    job: int = 1,
    pacing: Sequence[tuple[str, int]] = (),
    contexts: Sequence[int] = (),
    is_measured: bool = True,
) -> Job:
    """A fresh job that may hold so many bytes on these cards, and have so much of their time.

    `contexts`: what a process's contexts are taken to cost on each; `is_measured`: because that was measured.
    """
    folder.mkdir()
    gpus = [(index, gpu.uuid, limit) for index, (gpu, limit) in enumerate(limits)]
    head = region.pack(job, 1, gpus, pacing, [(size, is_measured) for size in contexts])
    (folder / "region").write_bytes(head + bytes(region.SIZE - len(head)))
    (folder / "libfgshim.so").symlink_to(fgshim.library())
    return Job(driver, folder)
