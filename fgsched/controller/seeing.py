"""What a reading of the cards means for the jobs: whose each process is, and who has not left yet."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fgsched.domain.job import Job, Reading
from fgsched.gpus import external
from fgsched.jobs.launchcontext import job_dir
from fgsched.system.process import marked, parents, started_with

_PIDS = 1 << 22  # no process of this host has a higher number; a simulated stranger has


@dataclass(frozen=True, slots=True)
class Seen:
    """A reading, understood."""

    readings: dict[int, Reading]  # with the bytes of strangers
    there: set[int]  # ended jobs that a card still lists
    owners: dict[int, int]  # pid -> running job
    unresolved: frozenset[int] = frozenset()  # pids that a card lists and no process here has


def understood(
    readings: Mapping[int, Reading],
    *,
    shepherds: Mapping[int, int],
    ended: Iterable[Job],
    run: str,
    stayed: Iterable[Job] = (),
    running: Mapping[int, Job] | None = None,
) -> Seen:
    """Whose each process is. `shepherds`: {pid: job} of the running jobs; `ended`: the jobs whose shares wait
    for their processes to leave; `stayed`: those that did not wait for that any longer, and hold nothing.

    A process is a job's when its shepherd is above it, or when it is its user's and was started with the
    job's environment. A process that a card lists and the host does not have any more is what the driver
    has not cleared away yet.
    """
    listed = {process.pid for reading in readings.values() for process in reading.processes}
    above = parents() if listed else {}
    owners = _owners(listed, shepherds, above, _by_directory(run, running or {}))
    ours = set(owners)
    left = {pid for pid in listed if pid not in above and pid < _PIDS}
    there: set[int] = set()
    for job, is_held in [*((job, True) for job in ended), *((job, False) for job in stayed)]:
        own = {one.pid for one in marked(job_dir(run, job.id, job.attempt), job.uid)} if listed else set()
        ours |= own if is_held else set()
        if any(_is_on(readings.get(hold.gpu), own | left) for hold in job.holds):
            there.add(job.id)
    mine = ours | left if there else ours
    return Seen(
        {index: replace(reading, external=external(reading, mine)) for index, reading in readings.items()},
        there,
        owners,
        frozenset(left),
    )


def _is_on(reading: Reading | None, pids: set[int]) -> bool:
    """Whether one of these is on a card: of a silent one nobody knows, on a lost one nobody is."""
    if reading is None or reading.is_lost:
        return False
    return bool(reading.error) or any(process.pid in pids for process in reading.processes)


def _owners(
    listed: Iterable[int],
    shepherds: Mapping[int, int],
    above: Mapping[int, int],
    directories: Mapping[str, Job],
) -> dict[int, int]:
    """{pid: job} of the processes that are a running job's."""
    found = {}
    for pid in listed:
        job = _shepherded(pid, shepherds, above)
        if job is None and pid in above:
            job = _of_environment(pid, directories)
        if job is not None:
            found[pid] = job
    return found


def _shepherded(pid: int, shepherds: Mapping[int, int], above: Mapping[int, int]) -> int | None:
    while pid > 1:
        if pid in shepherds:
            return shepherds[pid]
        pid = above.get(pid, 0)
    return None


def _by_directory(run: str, running: Mapping[int, Job]) -> dict[str, Job]:
    return {job_dir(run, job.id, job.attempt): job for job in running.values()}


def _of_environment(pid: int, directories: Mapping[str, Job]) -> int | None:
    """Nobody can pass off a process of his as another user's job."""
    job = directories.get(started_with(pid, "FG_JOB_DIR"))
    try:
        return job.id if job and os.stat(f"/proc/{pid}").st_uid == job.uid else None
    except OSError:
        return None
