"""Read and update the regions of running jobs, in which the hook accounts GPU memory.

A user can write to the region of the user's job, so its contents are not trusted."""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import fgshim.region as region
from msgspec import Struct

from fgsched.domain.job import Job
from fgsched.lifecycle.enforcement import is_hooked
from fgsched.lifecycle.launchspec import job_dir
from fgsched.lifecycle.transitions import Shepherd
from fgsched.system.preloading import why_not_preloaded
from fgsched.system.process import maps, parents, program_of

log = logging.getLogger(__name__)
HOOK = "libfgshim.so"
_MAX_AGE = 0.5  # seconds for which the list of processes is reused: a listing of jobs asks for each
_MOST_EXAMINED = 256  # processes of a job
_MOST_NAMED = 3


class Slot(Struct, frozen=True):
    """A living process of a job on one GPU, as the region records it."""

    process: region.Process
    position: int  # of the GPU in the region

    @property
    def tracked(self) -> int:
        """Return the bytes counted by the hook that the driver also counts for this process."""
        return int(self.process.bytes[self.position] + self.process.given[self.position])

    @property
    def past(self) -> int:
        """Return the bytes beyond the hook's count that are charged to the process."""
        return int(self.process.past[self.position])

    @property
    def mark(self) -> int:
        """Return a tag that changes with each correction of the bytes beyond the count."""
        return int(self.process.marks[self.position])

    @property
    def has_context(self) -> bool:
        """Return whether the process has a context on the GPU."""
        return bool(self.process.contexts[self.position])


def slots(run: str, job: Job) -> dict[int, dict[int, Slot]]:
    """Return {GPU: {pid: slot}} of a job's living processes; {} if there is no readable region.

    Args:
        run: the directory of the queue.
    """
    try:
        content = region.read(_path(run, job), owner=job.uid)
    except (OSError, ValueError):
        return {}  # just ended, or damaged by its user: then all its memory counts as beyond the hook
    return {
        gpu.index: {process.pid: Slot(process, at) for process in content.processes}
        for at, gpu in enumerate(content.gpus)
    }


def refusal(run: str, job: Job) -> str:
    """Describe the last allocation that the hook refused a running job; "" if there is none."""
    if not (job.state.holds and job.holds):
        return ""
    try:
        return str(region.read(_path(run, job), owner=job.uid).refusal)
    except (OSError, ValueError):
        return ""


def charged(run: str, job: Job) -> dict[int, int]:
    """Return {GPU: bytes beyond the hook's count} charged to a job, possibly by an earlier controller."""
    try:
        content = region.read(_path(run, job), owner=job.uid)
    except (OSError, ValueError):
        return {}
    return {gpu.index: gpu.untracked for gpu in content.gpus}


def charge(run: str, job: Job, charges: Mapping[int, int]) -> None:
    """Charge a job memory beyond the hook's count.

    Args:
        charges: {GPU: bytes}.
    """
    positions = {hold.gpu: at for at, hold in enumerate(job.holds)}
    for gpu, size in charges.items():
        with suppress(OSError, ValueError):
            region.set_untracked(_path(run, job), positions[gpu], size, owner=job.uid)
            log.info("job %d: charged %d bytes on GPU %d beyond the hook's count", job.id, size, gpu)


def set_outside_memory(run: str, job: Job, slot: Slot, size: int) -> None:
    """Set the memory of a process outside the hook's count, replacing the earlier estimate or measurement.

    Args:
        size: bytes.
    """
    with suppress(OSError, ValueError):
        region.set_seen(_path(run, job), slot.process, slot.position, size, owner=job.uid)
        log.info("job %d: process %d has %d bytes beyond the hook's count", job.id, slot.process.pid, size)


def is_of_another_build(path: Path) -> bool:
    """Return whether a region has a layout that this build cannot read."""
    try:
        region.read(path)
    except OSError:
        return False
    except ValueError as error:
        return "another build" in str(error) or "not as long" in str(error)
    return False


def _path(run: str, job: Job) -> str:
    return f"{job_dir(run, job.id, job.attempt)}/region"


class Unhooked:
    """Describes the processes of a job without the hook."""

    def __init__(self, shepherd: Callable[[Job], Shepherd | None]) -> None:
        self._shepherd = shepherd
        self._listed_at = -_MAX_AGE  # monotonic seconds
        self._children: dict[int, list[int]] = {}

    def of(self, job: Job) -> str:
        """Return processes, programs and reasons; "" if all have the hook, or none is to have it."""
        if not (job.state.holds and job.holds and is_hooked(job.tier, has_gpus=True)):
            return ""
        shepherd = self._shepherd(job)
        descriptions = (
            [text for pid in self._below(shepherd.pid) if (text := _described(pid))] if shepherd else []
        )
        more = [f"and {len(descriptions) - _MOST_NAMED} more"] if len(descriptions) > _MOST_NAMED else []
        return "; ".join(descriptions[:_MOST_NAMED] + more)

    def _below(self, shepherd: int) -> Iterator[int]:
        """Yield the processes of a job that execute another program than its shepherd."""
        if time.monotonic() - self._listed_at >= _MAX_AGE:
            self._listed_at, self._children = time.monotonic(), _children()
        program, descendants = _program(shepherd), list(self._children.get(shepherd, ()))
        for at, pid in enumerate(descendants):
            descendants += self._children.get(pid, ()) if at < _MOST_EXAMINED else ()
        return (pid for pid in descendants[:_MOST_EXAMINED] if _program(pid) != program)


def _children() -> dict[int, list[int]]:
    children = defaultdict(list)
    for child, parent in parents().items():
        children[parent].append(child)
    return children


def _program(pid: int) -> str:
    """Return the path of the program of a process; "" if it cannot be read."""
    try:
        return program_of(pid)
    except OSError:
        return ""


def _described(pid: int) -> str:
    """Return the pid, the program and the reason of a process without the hook; "" if it has the hook."""
    if maps(pid, HOOK) is not False:
        return ""
    why = why_not_preloaded(pid) or "the reason is not known"
    return f"process {pid} ({os.path.basename(_program(pid)) or 'unknown program'}): {why}"
