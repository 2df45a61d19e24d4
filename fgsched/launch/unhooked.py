"""Find the processes of running jobs that do not have the hook, which only the watchdog can limit."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from fgsched.domain.job import Job
from fgsched.lifecycle.enforcement import is_hooked
from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.preloading import why_not_preloaded
from fgsched.system.process import maps, parents

HOOK = "libfgshim.so"
_MAX_AGE = 0.5  # seconds for which the list of processes is reused: a listing of jobs asks for each
_MOST_EXAMINED = 256  # processes of a job
_MOST_NAMED = 3


class Unhooked:
    """Describes the processes of a job without the hook."""

    def __init__(self, shepherd: Callable[[Job], Shepherd | None]) -> None:
        self._shepherd = shepherd
        self._listed_at = -_MAX_AGE  # monotonic seconds
        self._children: dict[int, list[int]] = {}

    def of(self, job: Job) -> str:
        """Return processes, programs and reasons; "" if all have the hook, or none is to have it."""
        if not (job.state.holds and job.holds and is_hooked(job.tier, has_cards=True)):
            return ""
        shepherd = self._shepherd(job)
        found = [text for pid in self._below(shepherd.pid) if (text := _described(pid))] if shepherd else []
        more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        return "; ".join(found[:_MOST_NAMED] + more)

    def _below(self, shepherd: int) -> Iterator[int]:
        """Yield the processes of a job that execute another program than its shepherd."""
        if time.monotonic() - self._listed_at >= _MAX_AGE:
            self._listed_at, self._children = time.monotonic(), _children()
        own, found = _program(shepherd), list(self._children.get(shepherd, ()))
        for at, pid in enumerate(found):
            found += self._children.get(pid, ()) if at < _MOST_EXAMINED else ()
        return (pid for pid in found[:_MOST_EXAMINED] if _program(pid) != own)


def _children() -> dict[int, list[int]]:
    children = defaultdict(list)
    for child, parent in parents().items():
        children[parent].append(child)
    return children


def _program(pid: int) -> str:
    """Return the path of the program of a process; "" if it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _described(pid: int) -> str:
    """Return the pid, the program and the reason of a process without the hook; "" if it has the hook."""
    if maps(pid, HOOK) is not False:
        return ""
    why = why_not_preloaded(pid) or "the reason is not known"
    return f"process {pid} ({os.path.basename(_program(pid)) or 'unknown program'}): {why}"
