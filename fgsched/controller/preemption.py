"""Running jobs make room for one that comes before them; those that stood still for it go on afterwards."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from fgsched.controller.jobtable import Book
from fgsched.controller.telling import tell
from fgsched.controller.turning import Giving
from fgsched.domain.job import Eviction, Hold, Job, JobState, Reason
from fgsched.domain.policy import SUSPEND
from fgsched.domain.times import format_time
from fgsched.domain.units import format_indices
from fgsched.jobs.endings import stood_still
from fgsched.scheduling.explain.explain import leaving, standing_still
from fgsched.scheduling.planner import Plan, Start
from fgsched.scheduling.preemption import Occupant, Victim, may_preempt, terms, victims, without
from fgsched.scheduling.priority import Kind
from fgsched.scheduling.queue import Pending
from fgsched.scheduling.snapshot import Scene

log = logging.getLogger(__name__)
_MOST = 16  # jobs for which others make room in one turn
_LOOKED_AT = 32  # waiting jobs for which that is tried


class Preempter:
    """What is on its way is in the jobs themselves. Remembers only when to look again."""

    def __init__(self) -> None:
        self._rung: set[tuple[float, int]] = set()

    # -- making room ----------------------------------------------------------------------------

    def decide(self, host: Giving, start: Callable[[float], Plan], now: float) -> Plan:
        """Start what fits, have jobs make room for what does not, and start what fits then.

        Whoever others make room for leaves alone what it had reserved before, though these take their time.
        """
        decided = self._started(host, start, now)
        if host.policy.preempts and self.make_room(host, now):
            return self._started(host, start, now)
        return decided

    def _started(self, host: Giving, start: Callable[[float], Plan], now: float) -> Plan:
        """Whoever made room for an array made it for the task that starts then: the next one has no claim."""
        decided = start(now)
        for one in decided.starts:
            for job in host.book.made_room_for(one.job_id):
                there = host.book.holding.values()
                tasks = (other for other in there if other.array == one.job_id and other.started_at == now)
                last = max((other.id for other in tasks), default=one.job_id)
                if job.eviction is not None and last != one.job_id:
                    host.change(job, now, eviction=replace(job.eviction, by=last))
        return decided

    def make_room(self, host: Giving, now: float) -> bool:
        """Have jobs make room for those that wait and come first; whether any has to."""
        scene = _scene(host, now)
        occupants, leaving = _occupants(host, scene), _leaving(host, scene)
        starts: tuple[Start, ...] = ()
        if leaving:  # whatever starts once they have gone has its room then
            scene = without(scene, leaving)
            starts = scene.plan().starts
        served = 0
        vain: set[Kind] = set()  # nobody makes room for one of these, so nobody does for the next
        for entry in islice(_waiting(scene), _LOOKED_AT):
            if not occupants or served == _MOST:
                break
            if entry.kind in vain or any(start.job_id == entry.id for start in starts):
                continue
            chosen = victims(scene, entry, occupants, starts)
            if not chosen:
                vain.add(entry.kind)
                self._look_again(host, scene, entry, occupants)
                continue
            for victim in chosen:
                _evict(host, victim, entry.id, now)
            gone = {victim.job.id for victim in chosen}
            occupants = [one for one in occupants if one.job.id not in gone]
            scene = without(scene, chosen)
            starts, served = scene.plan().starts, served + 1
        return served > 0

    def _look_again(self, host: Giving, scene: Scene, entry: Pending, occupants: list[Occupant]) -> None:
        """Nothing tells by itself that the time is over for which a job runs undisturbed."""
        for one in occupants:
            for name in entry.partitions:
                how = terms(host.policy, entry.kind, name, one.job)
                when = one.since + how.exempt if how is not None else 0.0
                if when > scene.now and (when, entry.id) not in self._rung:
                    self._rung = {known for known in self._rung if known[0] > scene.now} | {(when, entry.id)}
                    host.book.gates.ring(when, entry.id)

    # -- going on -------------------------------------------------------------------------------

    def resume(self, host: Giving, now: float) -> None:
        """Let those go on that stood still for others, where there is room and no such other needs it now."""
        aside = [job for job in host.book.holding.values() if job.is_laid_aside]
        for job in sorted(aside, key=lambda job: (job.started_at or 0.0, job.id)):
            if has_room(host, job, now) and not _is_in_the_way(host, job, now):
                go_on(host, job, now)


def _scene(host: Giving, now: float) -> Scene:
    gpus = host.cards.gpus_for_planning(now)
    return host.book.scene(gpus, host.cards.readings, limits=host.limits, now=now)


def _occupants(host: Giving, scene: Scene) -> list[Occupant]:
    """The running jobs, but for those that are to end anyway."""
    jobs = host.book.holding
    return [
        Occupant(running, scene.now if job.started_at is None else job.started_at, job.request.requeue)
        for running in scene.running
        if (job := jobs[running.id]).state is JobState.RUNNING
        and not (job.is_to_end or job.leaves or job.wish)
    ]


def _leaving(host: Giving, scene: Scene) -> list[Victim]:
    """Those that make room already."""
    jobs = host.book.holding
    return [Victim(one, jobs[one.id].evicted) for one in scene.running if jobs[one.id].leaves]


def _waiting(scene: Scene) -> Iterator[Pending]:
    """The jobs that others may have to make room for, in order."""
    policy = scene.queue.order.policy
    groups = [group for group in scene.queue.groups if may_preempt(policy, group.kind)]
    for group in sorted(groups, key=lambda group: (-group.standing, *group.first)):
        for _, job_id in islice(group.in_order(), _MOST):
            entry = scene.queue.entry(job_id)
            if entry is not None:
                yield entry


def _evict(host: Giving, victim: Victim, by: int, now: float) -> None:
    """Write down that a job makes room, and then tell it."""
    job = host.book.jobs[victim.job.id]
    until = now + victim.grace + host.limits.kill_wait
    found = Eviction(by=by, at=now, mode=victim.mode, attempt=job.attempt, grace=victim.grace, until=until)
    log.info("job %d: makes room for job %d (%s), after %.0f GPU s", job.id, by, victim.mode, victim.loss)
    _settle_debts(host, job, by, now)
    if victim.mode != SUSPEND:
        asked = host.change(job, now, eviction=found)
        host.then(tell(host, asked, lambda: host.launcher.preempt(asked)))
        return
    aside = job.advance(
        JobState.SUSPENDED,
        suspended_at=now,
        holds=tuple(replace(hold, share=0) for hold in job.holds),
        eviction=found,
        reason=Reason.PREEMPTED,
    )
    host.step(job, aside, now)
    host.then(tell(host, aside, lambda: host.launcher.suspend(aside)))


def _settle_debts(host: Giving, job: Job, by: int, now: float) -> None:
    """A job that is sent away had what others made free for it: it comes before none of them any more."""
    for one in host.book.made_room_for(job.id):
        if one.eviction is not None:
            host.change(one, now, eviction=replace(one.eviction, attempt=0))
    for one in host.book.makes_room_for(job.id):
        if one.eviction is not None:
            host.change(one, now, eviction=replace(one.eviction, by=by))


def _whole(host: Giving, job: Job) -> tuple[Hold, ...]:
    """What it held before it was laid aside."""
    return tuple(one.hold for one in host.book.given.get(job.id, ()))


def has_room(host: Giving, job: Job, now: float) -> bool:
    """Whether its part of the compute is free."""
    free = {room.gpu.index: room.share for room in _scene(host, now).free}
    cpus = host.book.host(host.limits).cpus
    return cpus >= job.request.demand.cpus and all(
        hold.share <= free.get(hold.gpu, 0) for hold in _whole(host, job)
    )


def _is_in_the_way(host: Giving, job: Job, now: float) -> bool:
    """Whether a job that it would have to make room for starts now, and would not if it went on."""
    scene = _scene(host, now)
    starts = scene.plan().starts if len(scene.queue) else ()
    before = {start.job_id for start in starts if _comes_first(host, scene, start, job)}
    if not before:
        return False
    after = {start.job_id for start in _with(scene, host, job).plan().starts}
    return not before <= after


def _comes_first(host: Giving, scene: Scene, start: Start, job: Job) -> bool:
    kind = scene.queue.kind(start.job_id)
    running = next(one for one in scene.running if one.id == job.id)
    return kind is not None and terms(host.policy, kind, start.partition, running) is not None


def _with(scene: Scene, host: Giving, job: Job) -> Scene:
    """The scene in which it has gone on."""
    taken = {hold.gpu: hold.share for hold in _whole(host, job)}
    free = [replace(room, share=room.share - taken.get(room.gpu.index, 0)) for room in scene.free]
    cpus = scene.host.cpus - job.request.demand.cpus
    return replace(scene, free=free, host=replace(scene.host, cpus=cpus))


def go_on(host: Giving, job: Job, now: float, said: dict[str, Any] | None = None) -> None:
    """A job that stood still goes on, with all that it held before. `said`: what is answered to who asked."""
    changes: dict[str, object] = {"suspended": stood_still(job, now), "suspended_at": None}
    if job.is_laid_aside and job.eviction is not None:
        over = replace(job.eviction, attempt=0)
        changes |= {"holds": _whole(host, job), "eviction": over, "reason": Reason.NONE}
    after = job.advance(JobState.RUNNING, **changes)
    host.step(job, after, now)
    host.then(tell(host, after, lambda: host.launcher.resume(after), said))


def room_made(book: Book, job: Job) -> list[str]:
    """For whom a job makes room or has made it, and who makes room for it, in sentences."""
    if job.is_laid_aside:
        return [standing_still(job)]
    if said := leaving(job):
        return [said]
    going = [
        one for one in book.holding.values() if one.leaves and one.eviction and one.eviction.by == job.id
    ]
    if not going or job.state is not JobState.PENDING:
        return []
    who = _named([one.id for one in going])
    until = max(one.eviction.until for one in going if one.eviction)
    return [f"{who} {'makes' if len(going) == 1 else 'make'} room for it: gone by {format_time(until)}"]


def outlook(host: Giving, scene: Scene, entry: Pending) -> list[str]:
    """Whether running jobs would make room for a job of the scene's queue, in a sentence."""
    if not may_preempt(host.policy, entry.kind):
        return []
    occupants = _occupants(host, scene)
    if chosen := victims(scene, entry, occupants):
        return [f"{_named([victim.job.id for victim in chosen])} would make room for it"]
    free_at = [
        one.since + how.exempt
        for one in occupants
        for name in entry.partitions
        if (how := terms(host.policy, entry.kind, name, one.job)) is not None
    ]
    if not free_at:
        return ["may have others make room, and no such job runs"]
    if min(free_at) > scene.now:
        return [f"may have others make room, not before {format_time(min(free_at))}"]
    return ["may have others make room, and that of all who have to would not be enough or not its own"]


def _named(ids: Sequence[int]) -> str:
    return ("job " if len(ids) == 1 else "jobs ") + format_indices(ids)
