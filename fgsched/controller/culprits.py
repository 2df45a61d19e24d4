"""Find the jobs for which planning fails, by planning each job class alone."""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from fgsched.controller.jobtable import JobTable
from fgsched.domain.job import Gpu, HostLimits, Readings
from fgsched.scheduling.planner import Queue, Snapshot
from fgsched.scheduling.queue import QueuedJob


def culprits(
    jobtable: JobTable, gpus: Iterable[Gpu], readings: Readings, limits: HostLimits, now: float
) -> list[int]:
    """Return the ids of jobs for which a plan fails even alone; [] if only several together make it fail."""
    running = [job.id for job in jobtable.holding.values() if _fails(partial(jobtable.running, job, now))]
    if running:
        return running
    try:
        snapshot = jobtable.snapshot(gpus, readings, limits=limits, now=now)
    except Exception:
        return []
    found = []
    for group in list(snapshot.queue.groups):
        first = next(group.in_order())[1]
        entry = snapshot.queue.entry(first)
        if entry is not None and _fails(partial(_plan_alone, snapshot, entry)):
            found += [job_id for _, job_id in group.in_order()]
    return found


def _plan_alone(snapshot: Snapshot, entry: QueuedJob) -> None:
    alone = Queue([entry], order=snapshot.queue.order)
    plan = replace(snapshot, queue=alone, running=[]).plan()
    _ = plan.reserved, plan.shortfall(entry.kind)


def _fails(act: Callable[[], object]) -> bool:
    try:
        act()
    except Exception:
        return True
    return False
