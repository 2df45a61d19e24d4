"""The regions of running jobs, read and charged by the controller. Users may have put anything there."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import fgshim.region as region

from fgsched.domain.job import Job
from fgsched.jobs.launchcontext import job_dir

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Slot:
    """One living process of a job on one card, as the region has it."""

    process: region.Process
    position: int  # of the card in the region

    @property
    def tracked(self) -> int:
        """Bytes that the hook counts, of those that the driver has in this process's figure."""
        return int(self.process.bytes[self.position] + self.process.given[self.position])

    @property
    def past(self) -> int:
        """Bytes beside these that are charged to it."""
        return int(self.process.past[self.position])

    @property
    def mark(self) -> int:
        return int(self.process.marks[self.position])

    @property
    def has_context(self) -> bool:
        return bool(self.process.contexts[self.position])


def slots(run: str, job: Job) -> dict[int, dict[int, Slot]]:
    """{card: {pid: slot}} of a job's living processes; {} where there is no region."""
    try:
        found = region.read(_path(run, job), owner=job.uid)
    except (OSError, ValueError):
        return {}  # it has just ended, or its user tampers with it: then all that it holds is past the hook
    return {
        gpu.index: {process.pid: Slot(process, at) for process in found.processes}
        for at, gpu in enumerate(found.gpus)
    }


def refusal(run: str, job: Job) -> str:
    """The last allocation that the hook refused a running job, as a line; "": none, or there is no region."""
    if not (job.state.holds and job.holds):
        return ""
    try:
        return str(region.read(_path(run, job), owner=job.uid).refusal)
    except (OSError, ValueError):
        return ""


def charged(run: str, job: Job) -> dict[int, int]:
    """{card: bytes past the hook that are charged to a job}: an earlier controller may have done so."""
    try:
        found = region.read(_path(run, job), owner=job.uid)
    except (OSError, ValueError):
        return {}
    return {gpu.index: gpu.untracked for gpu in found.gpus}


def charge(run: str, job: Job, charges: Mapping[int, int]) -> None:
    """Let so many bytes on each of these cards count as held."""
    positions = {hold.gpu: at for at, hold in enumerate(job.holds)}
    for gpu, size in charges.items():
        with suppress(OSError, ValueError):
            region.set_untracked(_path(run, job), positions[gpu], size, owner=job.uid)
            log.info("job %d: %d bytes on GPU %d past the hook's calls are charged to it", job.id, size, gpu)


def see(run: str, job: Job, slot: Slot, size: int) -> None:
    """Let a process count as having so much past the hook, instead of what was reserved or seen before."""
    with suppress(OSError, ValueError):
        region.set_seen(_path(run, job), slot.process, slot.position, size, owner=job.uid)
        log.info("job %d: process %d has %d bytes past the hook's calls", job.id, slot.process.pid, size)


def _path(run: str, job: Job) -> str:
    return f"{job_dir(run, job.id, job.attempt)}/region"
