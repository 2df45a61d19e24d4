"""Start jobs: update the eligibility of pending jobs, start the jobs that fit, then preempt for others."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from msgspec.structs import replace

from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.jobtable import JobTable, last_start
from fgsched.controller.turn import (
    AskGpus,
    EngineContext,
    LaunchAttempt,
    PreemptionHost,
    PreemptOrder,
    ResumeOrder,
    SuspendOrder,
)
from fgsched.controller.usage import UsageCharges
from fgsched.domain.job import Gpu, Hold, HostLimits, Job, MpsUse, Preemption, Readings
from fgsched.domain.policy import SUSPEND, Policy
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Note, Outlook, Preempting, preemption_of, suspension_of
from fgsched.lifecycle.dependencies import (
    ConditionState,
    Dependency,
    TargetState,
    Term,
    due,
    for_task,
    judge,
    parse_dependency,
    target_state,
    unmet_part,
)
from fgsched.lifecycle.enforcement import MountPlan, is_hooked, tier_of
from fgsched.lifecycle.launchspec import CpuBinding
from fgsched.lifecycle.transitions import suspended_seconds
from fgsched.protocol import Outcome
from fgsched.scheduling.planner import JobStart, Snapshot
from fgsched.scheduling.preemption import Occupant, Victim, may_preempt, preempt_rule_for, victims, without
from fgsched.scheduling.queue import JobClass, Queue, QueuedJob
from fgsched.store import GpuAllocation
from fgsched.store.store import Unreadable

# -- eligibility: begin times, deadlines, dependencies, arrays -------------------------------------

_CONDITIONS = 500  # of dependencies that are examined in one turn: 20 ms if all are read from the queue
_UNREADABLE = 30.0  # seconds after which a dependency on a job in unreadable accounts is examined again


class Eligibility:
    """Begin times, deadlines, dependencies and array tasks. Changes jobs through the engine."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._examined = 0  # conditions in this turn
        self._ended: dict[int, Job] | None = None  # jobs that `settle` has read from the queue

    def settle(self, now: float) -> None:
        """Update the eligibility of the jobs that may be affected by a change.

        Conditions that are too many for one turn are examined in the next, which is due at once.
        """
        jobtable = self._engine.jobtable
        contained = self._engine.containment.run
        for job_id in jobtable.wait_index.due(now):
            if (job := jobtable.jobs.get(job_id)) is not None and job.state is JobState.PENDING:
                contained(job_id, partial(self._examine_due, job, now))
        self._examined, self._ended = 0, {}
        try:
            self._examine(now)
        finally:
            self._ended = None

    def _examine(self, now: float) -> None:
        jobtable = self._engine.jobtable
        contained = self._engine.containment.run
        while jobtable.wait_index.to_evaluate or jobtable.wait_index.corresponding:
            while jobtable.wait_index.to_evaluate:
                if self._examined >= _CONDITIONS:
                    return
                job_id = jobtable.wait_index.to_evaluate.pop()
                contained(job_id, partial(self._look, job_id, now))
            pairs, jobtable.wait_index.corresponding = jobtable.wait_index.corresponding, set()
            for job_id, task in pairs:
                contained(job_id, partial(self._pair, job_id, task, now))

    def _examine_due(self, job: Job, now: float) -> None:
        if job.request.deadline and last_start(job) <= now:
            over = {"state": JobState.DEADLINE, "reason": Reason.DEADLINE, "ended_at": now}
            self._engine.change(job, now, **over)
            return
        if job.depends:
            self._engine.jobtable.wait_index.to_evaluate.add(job.id)
        self._engine.jobtable.offer(job)

    # -- dependencies ---------------------------------------------------------------------------

    def _look(self, job_id: int, now: float) -> None:
        """Store the unmet part of a job's dependency."""
        job = self._engine.jobtable.jobs.get(job_id)
        if job is None or job.state is not JobState.PENDING or not job.depends:
            return
        if job.reason is Reason.DEPENDENCY_NEVER:
            return
        dependency = parse_dependency(job.depends)
        self._examined += len(dependency.terms)
        standings = {term: self._standing(job, term, dependency, now) for term in dependency.terms}
        still = unmet_part(dependency, standings)
        if still is None:
            self._never(job, now)
        elif still != dependency:
            opened_at = job.opened_at if still.terms else now
            job = self._engine.change(job, now, depends=str(still), opened_at=opened_at)
        if still and job.is_rest and job.state is JobState.PENDING:
            self._open(job, still, now)

    def _standing(self, job: Job, term: Term, dependency: Dependency, now: float) -> ConditionState:
        if term.kind == "singleton":
            return ConditionState.MET if self._is_alone(job) else ConditionState.OPEN
        try:
            fact = self.fact(term)
        except Unreadable:  # it has moved; the accounts are looked at again later
            self._engine.jobtable.wait_index.schedule(now + _UNREADABLE, job.id)
            return ConditionState.OPEN
        if fact is None:
            return ConditionState.NEVER  # it was there when this was submitted
        if _corresponds(job, term, dependency):
            return ConditionState.MET if fact.is_over and not fact.has_failed else ConditionState.OPEN
        if term.kind == "after" and now < due(term, fact) < float("inf"):
            self._engine.jobtable.wait_index.schedule(due(term, fact), job.id)
        return judge(term, fact, now)

    def _is_alone(self, job: Job) -> bool:
        """Tell whether no other job of this name and user is running or was submitted earlier (singleton)."""
        jobtable = self._engine.jobtable
        namesakes = (
            jobtable.jobs[job_id] for job_id in jobtable.wait_index.with_same_name(job) if job_id != job.id
        )
        return not any(
            other.state.holds or other.id < job.id
            for other in namesakes
            if not (job.array and other.array == job.array)
        )

    def fact(self, term: Term) -> TargetState | None:
        """Return the state on which a condition depends; None if there is no such job."""
        store, jobtable = self._engine.store, self._engine.jobtable
        if term.task is not None:
            array = jobtable.arrays.get(term.job)
            if array is not None and array.pending_bits >> term.task & 1:
                return TargetState(is_over=False)
            if (task_record := store.tasks.get(term.job, term.task)) is not None:
                return target_state(task_record.job)
        job = jobtable.jobs.get(term.job) or self._past(term.job)
        if job is None or term.task is not None or job.array != job.id:
            return None if job is None else target_state(job)
        array_sum = store.tasks.sum(job.id)
        return TargetState(
            array_sum.over == array_sum.rows, array_sum.over > array_sum.completed, array_sum.started_at
        )

    def _past(self, job_id: int) -> Job | None:
        """Return a job that is not open, or None."""
        if self._ended is not None and job_id in self._ended:
            return self._ended[job_id]
        past = self._engine.store.past(job_id)
        if past is None:
            return None
        if self._ended is not None and past.job.state.is_final:
            self._ended[job_id] = past.job
        return past.job

    def _never(self, job: Job, now: float) -> None:
        """Mark a job whose dependency can never be met, or cancel it if that is configured."""
        over = {"state": JobState.CANCELLED, "ended_at": now} if job.request.kill_invalid == "yes" else {}
        self._engine.change(job, now, reason=Reason.DEPENDENCY_NEVER, **over)

    # -- tasks that correspond ------------------------------------------------------------------

    def _open(self, array_row: Job, dependency: Dependency, now: float) -> None:
        """Make the pending tasks eligible if their corresponding tasks have completed."""
        array = self._engine.jobtable.arrays.get(array_row.array)
        terms = [term for term in dependency.terms if _corresponds(array_row, term, dependency)]
        if array is None or array.is_examined or not terms:
            return
        try:
            ended = set().union(*(self._engine.store.tasks.ended(term.job) for term in terms))
        except Unreadable:
            self._engine.jobtable.wait_index.schedule(now + _UNREADABLE, array_row.id)
            return
        array.is_examined = True  # each later end is examined by itself
        for task in ended:
            self._pair(array_row.id, task, now)

    def _pair(self, job_id: int, task: int | None, now: float) -> None:
        """Update the task that corresponds to a task that has ended."""
        jobtable = self._engine.jobtable
        array_row = jobtable.jobs.get(job_id)
        if (
            array_row is None
            or not array_row.is_rest
            or not array_row.depends
            or array_row.state is not JobState.PENDING
        ):
            return
        if task is None:
            jobtable.wait_index.to_evaluate.add(job_id)
            return
        array, dependency = jobtable.arrays.get(array_row.array), parse_dependency(array_row.depends)
        terms = [term for term in dependency.terms if _corresponds(array_row, term, dependency)]
        if array is None or not terms or not array.pending_bits >> task & 1:
            return
        try:
            facts = [self.fact(Term(term.kind, term.job, task)) for term in terms]
        except Unreadable:
            array.is_examined = False
            jobtable.wait_index.schedule(now + _UNREADABLE, job_id)
            return
        if any(fact is None or fact.has_failed for fact in facts):
            self._never(self.split(array_row, task), now)
        elif all(fact.is_over for fact in facts if fact is not None):
            array.open |= 1 << task
            jobtable.offer(array_row)

    # -- rows of arrays -------------------------------------------------------------------------

    def split(self, array_row: Job, task: int, *, depends: str | None = None) -> Job:
        """Give one pending task its own row."""
        engine = self._engine
        is_last = engine.jobtable.remove_task(array_row, task)
        opened_at = self._opened(array_row, task) if array_row.depends and depends == "" else 0.0
        depends = for_task(array_row.depends, task) if depends is None else depends
        row = engine.store.tasks.make(array_row, task, is_last=is_last, depends=depends, opened_at=opened_at)
        assert row is not None, "what the book has waiting, the store has"
        engine.jobtable.put(row)
        return row

    def _opened(self, array_row: Job, task: int) -> float:
        """Return the end time of the last corresponding task."""
        terms = parse_dependency(array_row.depends).terms
        try:
            job_records = [self._engine.store.tasks.get(term.job, task) for term in terms]
        except Unreadable:
            return 0.0
        return max((past.job.ended_at or 0.0 for past in job_records if past), default=0.0)

    def task_of(self, job: Job) -> Job | None:
        """Return the job to start for an entry of the queue; None if its array is at its limit."""
        jobtable = self._engine.jobtable
        if not job.array:
            return job
        if not jobtable.arrays.ready(job):
            return None
        task = jobtable.arrays.next_task(job.array) if job.is_rest else None
        return job if task is None else self.split(job, task, depends="")


def _corresponds(job: Job, term: Term, dependency: Dependency) -> bool:
    """Tell whether a condition applies to each task of an array separately."""
    return job.is_rest and term.kind == "aftercorr" and term.task is None and not dependency.one_will_do


# -- the start -------------------------------------------------------------------------------------


class MpsUses(Protocol):
    """Decides whether jobs use MPS."""

    def use_of(self, job: Job, given: Sequence[GpuAllocation], policy: Policy, now: float) -> MpsUse | None:
        """Return how a job that starts uses MPS; None: its GPUs have none."""


class StartHost(EngineContext, Protocol):
    """The interface of the engine for starting jobs."""

    charges: UsageCharges
    eligibility: Eligibility
    log: DecisionLog
    tier: str  # default enforcement level
    mounts: MountPlan
    binding: CpuBinding

    @property
    def mps(self) -> MpsUses: ...


class Starter:
    """Start jobs.

    All durable state is in the jobs; this object only stores the time of the next check of preemption.
    """

    def __init__(self) -> None:
        self._preempter = Preempter()

    def start_what_fits(self, host: StartHost, now: float) -> None:
        """Start jobs, preempt for others, and start the jobs that fit then.

        `now`: seconds since the epoch.
        """
        self._preempter.resume(host, now)
        if not host.jobtable.waiting:
            return
        if not host.gpu_states.is_fresh(now):
            host.then(AskGpus())
        host.charges.bring_up_to_date(host.jobtable, host.policy, host.gpu_states.gpus, host.limits, now)
        self._start_planned(host, now)
        if host.policy.preempts and self._preempter.preempt(host, now):
            self._start_planned(host, now)

    def _start_planned(self, host: StartHost, now: float) -> None:
        """Start the jobs of a plan. Before the first reading of the GPUs, only jobs without GPUs start."""
        plan = partial(host.jobtable.plan, readings=host.gpu_states.readings, limits=host.limits, now=now)
        decided, is_fresh = plan(host.gpu_states.gpus), host.gpu_states.is_fresh(now)
        for start in decided.starts:
            if is_fresh or not start.holds:
                host.containment.run(start.job_id, partial(begin, host, start, now))
        if not is_fresh:
            plan(host.gpu_states.gpus_for_planning(now))  # for the reasons that the queue shows


def begin(host: StartHost, start: JobStart, now: float) -> None:
    """Store the allocation of a job, which is launched after the commit."""
    job = host.eligibility.task_of(host.jobtable.jobs[start.job_id])
    if job is None:
        return  # other rows of its array use the last free places
    gpu_allocations = tuple(host.gpu_states.allocation(hold) for hold in start.holds)
    gpus = [(host.gpu_states.gpu(hold.gpu), hold.share) for hold in start.holds]
    tier = tier_of(job.request.tier, host.tier, gpus) if gpu_allocations else "none"
    after = job.advance(
        JobState.STARTING,
        attempt=job.attempt + 1,
        holds=start.holds,
        partition=start.partition,
        resources=host.jobtable.pick(job.request.demand),
        slot=host.jobtable.free_slot(),
        reason=Reason.NONE,
        warning="",
        boot=host.launcher.boot,
        started_at=now,
        tier=tier,
        mounts=host.mounts.of(
            [gpu_allocation.uuid for gpu_allocation in gpu_allocations],
            hooked=is_hooked(tier, has_gpus=bool(gpu_allocations)),
        ),
        cpus=host.binding.of(
            host.gpu_states.near(start.holds), job.request.demand.cpus, host.jobtable.bound()
        ),
    )
    if host.store.start(job, after, gpu_allocations):
        host.log.step(job, after)
        host.jobtable.put(after)
        host.jobtable.allocations[after.id] = gpu_allocations
        use_claims(host, start.job_id, now)
        use = host.mps.use_of(after, gpu_allocations, host.policy, now)
        if use != after.mps:  # the last attempt may have used it
            after = host.change(after, now, mps=use)
        if use is None or use.state == "refused":
            host.then(LaunchAttempt(after, gpu_allocations))


# -- jobs for which planning fails -----------------------------------------------------------------


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
    job_ids = []
    for group in list(snapshot.queue.groups):
        first = next(group.in_order())[1]
        entry = snapshot.queue.entry(first)
        if entry is not None and _fails(partial(_plan_alone, snapshot, entry)):
            job_ids += [job_id for _, job_id in group.in_order()]
    return job_ids


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


# -- preemption ------------------------------------------------------------------------------------


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
            victim_ids = {victim.job.id for victim in chosen}
            occupants = [occupant for occupant in occupants if occupant.job.id not in victim_ids]
            snapshot = without(snapshot, chosen)
            starts, served = snapshot.plan().starts, served + 1
        return served > 0

    def _look_again(
        self, host: PreemptionHost, snapshot: Snapshot, entry: QueuedJob, occupants: list[Occupant]
    ) -> None:
        """Note when a job's preempt_exempt ends, because no event reports it."""
        for occupant in occupants:
            for name in entry.partitions:
                rule = preempt_rule_for(host.policy, entry.kind, name, occupant.job)
                exempt_until = occupant.since + rule.exempt if rule is not None else 0.0
                if exempt_until > snapshot.now:
                    host.jobtable.wait_index.schedule(exempt_until, entry.id)

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
        Victim(running_job, jobs[running_job.id].preempt_mode)
        for running_job in snapshot.running
        if jobs[running_job.id].is_being_preempted
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
    return tuple(gpu_allocation.hold for gpu_allocation in host.jobtable.allocations.get(job.id, ()))


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
    running = next(candidate for candidate in snapshot.running if candidate.id == job.id)
    return kind is not None and preempt_rule_for(host.policy, kind, start.partition, running) is not None


def _with(snapshot: Snapshot, host: PreemptionHost, job: Job) -> Snapshot:
    """Return the snapshot with the job resumed."""
    share_of = Counter({hold.gpu: hold.share for hold in _whole(host, job)})
    free = [replace(room, share=room.share - share_of[room.gpu.index]) for room in snapshot.free]
    cpus = snapshot.host.cpus - job.request.demand.cpus
    return replace(snapshot, free=free, host=replace(snapshot.host, cpus=cpus))


def go_on(host: PreemptionHost, job: Job, now: float, outcome: Outcome | None = None) -> None:
    """Resume a suspended job with its whole allocation.

    `outcome` is the outcome for a request, if there is one.
    """
    changes: dict[str, object] = {"suspended": suspended_seconds(job, now), "suspended_at": None}
    if (preemption := job.suspending_preemption) is not None:
        over = replace(preemption, attempt=0)
        changes |= {"holds": _whole(host, job), "preemption": over, "reason": Reason.NONE}
    after = job.advance(JobState.RUNNING, **changes)
    host.step(job, after, now)
    host.then(ResumeOrder(after, outcome))


def preemption_notes(jobtable: JobTable, job: Job) -> list[Note]:
    """Return the preemptions in which a job is the preempted or the preempting job."""
    if job.is_suspended_by_preemption:
        return [suspension_of(job)]
    if (preemption := preemption_of(job)) is not None:
        return [preemption]
    going = [
        (holder.id, order.until)
        for holder in jobtable.holding.values()
        if (order := holder.ending_preemption) is not None and order.by == job.id
    ]
    if not going or job.state is not JobState.PENDING:
        return []
    return [Preempting(jobs=tuple(job_id for job_id, _ in going), until=max(until for _, until in going))]


def outlook(host: PreemptionHost, snapshot: Snapshot, entry: QueuedJob) -> list[Note]:
    """Return the possible effect of preemption for a job of the snapshot's queue, or None."""
    if not may_preempt(host.policy, entry.kind):
        return []
    occupants = _occupants(host, snapshot)
    if chosen := victims(snapshot, entry, occupants):
        return [Outlook(victims=tuple(victim.job.id for victim in chosen))]
    free_at = [
        occupant.since + rule.exempt
        for occupant in occupants
        for name in entry.partitions
        if (rule := preempt_rule_for(host.policy, entry.kind, name, occupant.job)) is not None
    ]
    if not free_at:
        return [Outlook(no_candidates=True)]
    return [Outlook(not_before=min(free_at) if min(free_at) > snapshot.now else None)]
