"""Requeue running jobs that can start elsewhere, so that a pending job fits on one GPU."""

import logging
import math
from collections.abc import Iterable

from fgsched.controller.context import EngineContext
from fgsched.controller.effects import Requeue
from fgsched.controller.gpustate import GpuStates
from fgsched.domain.job import WHOLE, Job, JobState
from fgsched.scheduling.backfill import BackfillReservation
from fgsched.scheduling.fragmentation import Movable, Place, moves
from fgsched.scheduling.placement import charged
from fgsched.scheduling.planner import JobClass, Plan

log = logging.getLogger(__name__)


class Defragmenter:
    """Moves each job at most once, and none while another move is in progress."""

    def __init__(self) -> None:
        self._moved: set[int] = set()

    def make_room(self, host: EngineContext, decided: Plan, now: float) -> None:
        """Requeue jobs so that the first pending job of a partition can start after their end."""
        self._moved &= host.jobtable.jobs.keys()
        if any(
            job.wish or job.is_being_preempted or job.state is JobState.COMPLETING
            for job in host.jobtable.holding.values()
        ):
            return
        for partition, backfill in decided.reserved.items():
            if backfill.pool:
                continue
            chosen = self._choose(host, partition, backfill, now)
            for job in chosen:
                self._moved.add(job.id)
                asked = host.change(host.jobtable.jobs[job.id], now, wish="requeue")
                host.then(Requeue(asked))
                log.info("job %d: requeued to make room in %s, after %.0f GPU s", job.id, partition, job.loss)
            if chosen:
                return

    def _choose(
        self, host: EngineContext, partition: str, backfill: BackfillReservation, now: float
    ) -> Iterable[Movable]:
        """Return jobs that lose less than the pending job gains, within the limit of the site."""
        there = host.policy.partition(partition)
        if there is None:
            return ()
        snapshot = host.jobtable.snapshot(
            host.cards.gpus_for_planning(now), host.cards.readings, limits=host.limits, now=now
        )
        free = tuple(snapshot.capacity().rooms_for(JobClass(backfill.demand, 0, (partition,)), partition))
        limits = there.limits(host.limits)
        gains = (backfill.at - now) * sum(hold.share for hold in backfill.holds) / WHOLE
        movable = [
            Movable(job.id, job.request.demand, job.holds, self._loss(job, host.cards, now))
            for job in host.jobtable.holding.values()
            if self._may_move(job, partition)
        ]
        place = Place(free, host.jobtable.host(host.limits), limits)
        return moves(backfill.demand, movable, place, most=min(gains, host.limits.defragment))

    def _may_move(self, job: Job, partition: str) -> bool:
        return (
            job.state is JobState.RUNNING
            and job.request.requeue
            and not job.is_to_end
            and not job.request.reservation
            and job.partition == partition
            and job.id not in self._moved
        )

    def _loss(self, job: Job, cards: GpuStates, now: float) -> float:
        if job.started_at is None:
            return math.inf
        share = sum(charged(hold, cards.gpu(hold.gpu).usable) for hold in job.holds)
        return (now - job.started_at) * share / WHOLE
