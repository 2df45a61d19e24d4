"""Which jobs planning fails for: each is tried by itself, since a plan is made of all of them at once."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from fgsched.controller.jobtable import Book
from fgsched.domain.job import Gpu, Limits, Readings
from fgsched.scheduling.planner import Queue
from fgsched.scheduling.queue import Pending
from fgsched.scheduling.snapshot import Scene


def culprits(book: Book, gpus: Iterable[Gpu], readings: Readings, limits: Limits, now: float) -> list[int]:
    """Return the ids of the jobs for which a plan raises though they are alone; [] if it needs several."""
    running = [job.id for job in book.holding.values() if _fails(partial(book.running, job, now))]
    if running:
        return running
    try:
        scene = book.scene(gpus, readings, limits=limits, now=now)
    except Exception:
        return []
    found = []
    for group in list(scene.queue.groups):
        first = next(group.in_order())[1]
        entry = scene.queue.entry(first)
        if entry is not None and _fails(partial(_plan_alone, scene, entry)):
            found += [job_id for _, job_id in group.in_order()]
    return found


def _plan_alone(scene: Scene, entry: Pending) -> None:
    alone = Queue([entry], order=scene.queue.order)
    plan = replace(scene, queue=alone, running=[]).plan()
    _ = plan.reserved, plan.short(entry.kind)


def _fails(act: Callable[[], object]) -> bool:
    try:
        act()
    except Exception:
        return True
    return False
