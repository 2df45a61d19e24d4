"""Preempt running jobs for jobs of higher rank, and resume suspended jobs."""

import logging
from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from fgsched.controller.jobtable import JobTable
from fgsched.controller.turn import PreemptionHost, PreemptOrder, ResumeOrder, SuspendOrder
from fgsched.domain.job import Hold, Job, Preemption
from fgsched.domain.policy import SUSPEND
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Note, Outlook, Preempting, preemption_of, suspension_of
from fgsched.lifecycle.transitions import suspended_seconds
from fgsched.protocol import Outcome
from fgsched.scheduling.planner import JobStart, Snapshot
from fgsched.scheduling.preemption import Occupant, Victim, may_preempt, preempt_rule_for, victims, without
from fgsched.scheduling.queue import JobClass, QueuedJob

log = logging.getLogger(__name__)
_MOST = 16  # preempting jobs in one turn
_LOOKED_AT = 32  # waiting jobs for which that is tried


class Preempter:
    """Preempt jobs.

    Preemptions in progress are recorded in the jobs, the times of the next checks in the wait index.
    """

    def preempt(self, host: PreemptionHost, now: float) -> bool:
        """Preempt jobs for pending jobs of higher rank; return whether any is preempted."""
        snapshot = _scene(host, now)
        occupants, leaving = _occupants(host, snapshot), _leaving(host, snapshot)
        starts: tuple[JobStart, ...] = ()
        if leaving:  # jobs that start after their end use their capacity
            snapshot = without(snapshot, leaving)
            starts = snapshot.plan().starts
        served = 0
        vain: set[JobClass] = set()  # classes for which preemption does not help
        for entry in islice(_waiting(snapshot), _LOOKED_AT):
            if not occupants or served == _MOST:
                break
            if entry.kind in vain or any(start.job_id == entry.id for start in starts):
                continue
            chosen = victims(snapshot, entry, occupants, starts)
            if not chosen:
                vain.add(entry.kind)
                self._look_again(host, snapshot, entry, occupants)
                continue
            for victim in chosen:
                _preempt(host, victim, entry.id, now)
            gone = {victim.job.id for victim in chosen}
            occupants = [occupant for occupant in occupants if occupant.job.id not in gone]
            snapshot = without(snapshot, chosen)
            starts, served = snapshot.plan().starts, served + 1
        return served > 0

    def _look_again(
        self, host: PreemptionHost, snapshot: Snapshot, entry: QueuedJob, occupants: list[Occupant]
    ) -> None:
        """Note when a job's preempt_exempt ends, because no event reports it."""
        for occupant in occupants:
            for name in entry.partitions:
                how = preempt_rule_for(host.policy, entry.kind, name, occupant.job)
                when = occupant.since + how.exempt if how is not None else 0.0
                if when > snapshot.now:
                    host.jobtable.wait_index.ring(when, entry.id)

    # -- going on -------------------------------------------------------------------------------

    def resume(self, host: PreemptionHost, now: float) -> None:
        """Resume suspended jobs where there is capacity and no preempting job needs it."""
        aside = [job for job in host.jobtable.holding.values() if job.is_suspended_by_preemption]
        for job in sorted(aside, key=lambda job: (job.start_time, job.id)):
            if has_room(host, job, now) and not _is_in_the_way(host, job, now):
                go_on(host, job, now)


def use_claims(host: PreemptionHost, job_id: int, now: float) -> None:
    """End the room claims of a job, or of an array of which a task has started."""
    for job, preemption in host.jobtable.claimed_by(job_id):
        host.change(job, now, preemption=replace(preemption, used=True))


def _scene(host: PreemptionHost, now: float) -> Snapshot:
    gpus = host.gpu_states.gpus_for_planning(now)
    return host.jobtable.snapshot(gpus, host.gpu_states.readings, limits=host.limits, now=now)


def _occupants(host: PreemptionHost, snapshot: Snapshot) -> list[Occupant]:
    """Return the running jobs that are not ending. An adopted process is never preempted."""
    jobs = host.jobtable.holding
    return [
        Occupant(running, job.start_time, job.request.requeue)
        for running in snapshot.running
        if (job := jobs.get(running.id)) is not None  # a question may have begun before its end
        and job.state is JobState.RUNNING
        and job.adopted is None
        and not (job.is_to_end or job.is_being_preempted or job.wish)
    ]


def _leaving(host: PreemptionHost, snapshot: Snapshot) -> list[Victim]:
    """Return the jobs that are being preempted."""
    jobs = host.jobtable.holding
    return [
        Victim(one, jobs[one.id].preempt_mode) for one in snapshot.running if jobs[one.id].is_being_preempted
    ]


def _waiting(snapshot: Snapshot) -> Iterator[QueuedJob]:
    """Yield the pending jobs that may preempt, in order."""
    policy = snapshot.queue.order.policy
    groups = [group for group in snapshot.queue.groups if may_preempt(policy, group.kind)]
    for group in sorted(groups, key=lambda group: (-group.standing, *group.first)):
        for _, job_id in islice(group.in_order(), _MOST):
            entry = snapshot.queue.entry(job_id)
            if entry is not None:
                yield entry


def _preempt(host: PreemptionHost, victim: Victim, by: int, now: float) -> None:
    """Record a preemption, then send the order."""
    job = host.jobtable.jobs[victim.job.id]
    until = now + victim.grace + host.limits.kill_wait
    preemption = Preemption(
        by=by, at=now, mode=victim.mode, attempt=job.attempt, grace=victim.grace, until=until
    )
    log.info("job %d: preempted for job %d (%s), after %.0f GPU s", job.id, by, victim.mode, victim.loss)
    if victim.mode != SUSPEND:
        change = host.change(job, now, preemption=preemption)
        host.then(PreemptOrder(change))
        return
    aside = job.advance(
        JobState.SUSPENDED,
        suspended_at=now,
        holds=tuple(replace(hold, share=0) for hold in job.holds),
        preemption=preemption,
        reason=Reason.PREEMPTED,
    )
    host.step(job, aside, now)
    host.then(SuspendOrder(aside))


def _whole(host: PreemptionHost, job: Job) -> tuple[Hold, ...]:
    """Return the allocation of the job before its suspension."""
    return tuple(gpu_allocation.hold for gpu_allocation in host.jobtable.given.get(job.id, ()))


def has_room(host: PreemptionHost, job: Job, now: float) -> bool:
    """Tell whether the compute share of a suspended job is free."""
    free = {room.gpu.index: room.share for room in _scene(host, now).free}
    cpus = host.jobtable.host(host.limits).cpus
    return cpus >= job.request.demand.cpus and all(
        hold.share <= free.get(hold.gpu, 0) for hold in _whole(host, job)
    )


def _is_in_the_way(host: PreemptionHost, job: Job, now: float) -> bool:
    """Tell whether resuming would prevent the start of a job that may preempt this one."""
    snapshot = _scene(host, now)
    starts = snapshot.plan().starts if len(snapshot.queue) else ()
    before = {start.job_id for start in starts if _comes_first(host, snapshot, start, job)}
    if not before:
        return False
    after = {start.job_id for start in _with(snapshot, host, job).plan().starts}
    return not before <= after


def _comes_first(host: PreemptionHost, snapshot: Snapshot, start: JobStart, job: Job) -> bool:
    kind = snapshot.queue.kind(start.job_id)
    running = next(one for one in snapshot.running if one.id == job.id)
    return kind is not None and preempt_rule_for(host.policy, kind, start.partition, running) is not None


def _with(snapshot: Snapshot, host: PreemptionHost, job: Job) -> Snapshot:
    """Return the snapshot with the job resumed."""
    taken = {hold.gpu: hold.share for hold in _whole(host, job)}
    free = [replace(room, share=room.share - taken.get(room.gpu.index, 0)) for room in snapshot.free]
    cpus = snapshot.host.cpus - job.request.demand.cpus
    return replace(snapshot, free=free, host=replace(snapshot.host, cpus=cpus))


def go_on(host: PreemptionHost, job: Job, now: float, said: Outcome | None = None) -> None:
    """Resume a suspended job with its whole allocation.

    `said` is the outcome for a request, if there is one.
    """
    changes: dict[str, object] = {"suspended": suspended_seconds(job, now), "suspended_at": None}
    if (found := job.suspending_preemption) is not None:
        over = replace(found, attempt=0)
        changes |= {"holds": _whole(host, job), "preemption": over, "reason": Reason.NONE}
    after = job.advance(JobState.RUNNING, **changes)
    host.step(job, after, now)
    host.then(ResumeOrder(after, said))


def preemption_notes(jobtable: JobTable, job: Job) -> list[Note]:
    """Return the preemptions in which a job is the preempted or the preempting job."""
    if job.is_suspended_by_preemption:
        return [suspension_of(job)]
    if (preemption := preemption_of(job)) is not None:
        return [preemption]
    going = [
        (one.id, order.until)
        for one in jobtable.holding.values()
        if (order := one.ending_preemption) is not None and order.by == job.id
    ]
    if not going or job.state is not JobState.PENDING:
        return []
    return [Preempting(jobs=tuple(one for one, _ in going), until=max(until for _, until in going))]


def outlook(host: PreemptionHost, snapshot: Snapshot, entry: QueuedJob) -> list[Note]:
    """Return the possible effect of preemption for a job of the snapshot's queue, or None."""
    if not may_preempt(host.policy, entry.kind):
        return []
    occupants = _occupants(host, snapshot)
    if chosen := victims(snapshot, entry, occupants):
        return [Outlook(victims=tuple(victim.job.id for victim in chosen))]
    free_at = [
        occupant.since + how.exempt
        for occupant in occupants
        for name in entry.partitions
        if (how := preempt_rule_for(host.policy, entry.kind, name, occupant.job)) is not None
    ]
    if not free_at:
        return [Outlook(no_candidates=True)]
    return [Outlook(not_before=min(free_at) if min(free_at) > snapshot.now else None)]
