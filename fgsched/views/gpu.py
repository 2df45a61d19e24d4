"""The present state of a GPU and of its jobs, as every view shows it: fgtop, wall page, reports, metrics."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fgsched.domain.job import WHOLE, GpuState
from fgsched.domain.states import JobState
from fgsched.protocol import GpuInfo, JobInfo

FIELDS = ("id", "state", "allocated", "now")  # attributes of JobInfo that these functions read


class ChargedPart(NamedTuple):
    """The part of a GPU that a job is charged."""

    job: JobInfo
    part: float  # from 0 to 1 of the GPU


class GpuParts(NamedTuple):
    """The charged parts of a GPU; their sum is at most 1."""

    jobs: list[ChargedPart]  # by id
    hidden: float  # of jobs that the site hides from the reader

    @property
    def charged(self) -> float:
        """The charged part of the GPU, from 0 to 1."""
        return min(1.0, sum(part for _, part in self.jobs) + self.hidden)


def parts_of(info: GpuInfo, jobs: Iterable[JobInfo]) -> GpuParts:
    """Return the charged parts of a GPU. Charges above it are reduced in proportion, as in the accounts."""
    charges = [
        (job, allocation.charged)
        for job in jobs
        if job.state.holds
        for allocation in job.allocated
        if allocation.gpu == info.gpu.index
    ]
    whole = max(WHOLE, sum(charge for _, charge in charges) + info.hidden)
    parts = sorted(
        (ChargedPart(job, charge / whole) for job, charge in charges), key=lambda part: part.job.id
    )
    return GpuParts(parts, info.hidden / whole)


def charged_gpus(infos: Iterable[GpuInfo], jobs: Sequence[JobInfo]) -> float:
    """Return the number of charged GPUs, to ten-thousandths of a GPU."""
    return sum(round(parts_of(info, jobs).charged * WHOLE) for info in infos) / WHOLE


def is_measured(info: GpuInfo) -> bool:
    """Tell whether the driver answered for a GPU: without an answer its use is unknown, and not 0."""
    return info.seen is not None and not info.seen.error


def memory_in_use(info: GpuInfo) -> int | None:
    """Return the bytes in use by all processes; None: not measured."""
    return info.seen.used if info.seen is not None and is_measured(info) else None


def outside_memory(info: GpuInfo) -> int | None:
    """Return the bytes in use by processes outside of jobs; None: not measured."""
    return info.external if is_measured(info) else None


def job_memory(info: GpuInfo) -> int | None:
    """Return the bytes in use by jobs; None: not measured."""
    used = memory_in_use(info)
    return None if used is None else max(0, used - info.external)


def sm_share(info: GpuInfo, jobs: Iterable[JobInfo]) -> float | None:
    """Return the SM share of a GPU, from 0 to 1: the driver's, else that of its jobs together."""
    if info.seen is not None and info.seen.utilisation is not None:
        return info.seen.utilisation / 100
    own = [on_gpu.busy for job in jobs for on_gpu in job.now if on_gpu.gpu == info.gpu.index]
    busy = [share for share in own if share is not None]
    return min(1.0, sum(busy) / WHOLE) if busy else None


def why_down(info: GpuInfo) -> tuple[str, str]:
    """Return the state of a GPU that takes no jobs, and the reason or ""; ("", "") if it takes jobs."""
    if not info.is_down:
        return "", ""
    word = info.gpu.state.value if info.gpu.state is not GpuState.OK else "no answer"
    return word, info.gpu.note or (info.seen.error if info.seen else "")


def job_counts(jobs: Iterable[JobInfo]) -> tuple[int, int]:
    """Return the numbers of jobs with an allocation and of pending rows; a pending array is one row."""
    states = [job.state for job in jobs]
    return sum(state.holds for state in states), sum(state is JobState.PENDING for state in states)
