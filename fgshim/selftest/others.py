"""Checks with a second process of a job: it allocates more, is killed, or runs without LD_PRELOAD."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fgshim.selftest import BEYOND, OUT_OF_MEMORY, command
from fgshim.selftest.ways import linear


@contextmanager
def _other(size: int, env: dict[str, str] | None = None) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """Start a process of the job that allocates `size` bytes: (its status, the process)."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command("take", size), stdin=pipe, stdout=pipe, env=env, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        try:
            yield int(said) if said.strip().lstrip("-").isdigit() else -1, process
        finally:
            process.kill()


def _second(library: ctypes.CDLL, limit: int) -> str:
    size = limit * 6 // 10
    with _other(size) as (status, _):
        if status:
            return f"another process could not take {size >> 20} MiB: status {status}"
        status, give_back = linear(library, size)
        if not status:
            give_back()
            return f"two processes had {2 * size >> 20} MiB together; the limit is {limit >> 20} MiB"
    return ""


def _killed(library: ctypes.CDLL, limit: int) -> str:
    size = limit * 6 // 10
    with _other(size) as (_, process):
        process.kill()
        process.wait()
    status, give_back = linear(library, size)
    if status:
        return f"what a killed process held stays charged: {size >> 20} MiB got status {status}"
    give_back()
    return ""


def _bare() -> dict[str, str]:
    """Return the environment without LD_PRELOAD and without the variables of fgsched."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and name[:3] != "FG_"}


def _cleared(library: ctypes.CDLL, limit: int) -> str:
    with _other(limit + BEYOND, _bare()) as (status, _):
        return "" if status == OUT_OF_MEMORY else f"a process without LD_PRELOAD got status {status}"


OTHERS: dict[str, Callable[[ctypes.CDLL, int], str]] = {
    "second process": _second,
    "SIGKILL": _killed,
    "env -i": _cleared,
}
