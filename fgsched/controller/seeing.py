"""What a reading of the cards means for the jobs: whose each process is, and who has not left yet."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fgsched.gpus import external
from fgsched.model import Job, Reading
from fgsched.process import marked, parents

_PIDS = 1 << 22  # no process of this host has a higher number; a simulated stranger has


def understood(
    readings: Mapping[int, Reading], *, shepherds: Mapping[int, int], ended: Iterable[Job], run: str
) -> tuple[dict[int, Reading], set[int]]:
    """(readings with strangers' bytes, ended jobs that a card still lists).

    `shepherds`: {pid: job} of the running jobs. A process is a job's when its
    shepherd is above it. A process that a card lists and the host does not have
    any more is what the driver has not cleared away yet.
    """
    listed = {process.pid for reading in readings.values() for process in reading.processes}
    above = parents() if listed else {}
    ours = {pid for pid in listed if _is_below(pid, shepherds, above)}
    left = {pid for pid in listed if pid not in above and pid < _PIDS}
    there: set[int] = set()
    for job in ended:
        own = {one.pid for one in marked(f"{run}/job/{job.id}.{job.attempt}")} if listed else set()
        ours |= own
        for hold in job.holds:
            on_card = (
                {process.pid for process in readings[hold.gpu].processes} if hold.gpu in readings else set()
            )
            if on_card & (own | left):
                there.add(job.id)
    mine = ours | left if there else ours
    return {
        index: replace(reading, external=external(reading, mine)) for index, reading in readings.items()
    }, there


def _is_below(pid: int, shepherds: Mapping[int, int], above: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid in shepherds:
            return True
        pid = above.get(pid, 0)
    return False
