"""Start jobs: those that fit, then those that fit once others are preempted for them."""

from functools import partial
from typing import Protocol

from fgsched.controller.context import EngineContext
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.defragmentation import Defragmenter
from fgsched.controller.effects import AskGpus, Launch
from fgsched.controller.eligibility import Eligibility
from fgsched.controller.preemption import Preempter, claim_for_tasks
from fgsched.controller.usage import UsageCharges
from fgsched.domain.job import JobState, Reason
from fgsched.jobs.enforcement import MountPlan, is_hooked, tier_of
from fgsched.jobs.launchspec import Binding
from fgsched.scheduling.planner import Plan, Start


class StartHost(EngineContext, Protocol):
    """What starting a job needs of the engine."""

    charges: UsageCharges
    eligibility: Eligibility
    log: DecisionLog
    tier: str  # enforcement level of jobs that ask for none
    mounts: MountPlan
    binding: Binding


class Starter:
    """Starts what fits. The jobs have all that lasts; this only remembers what preemption waits for."""

    def __init__(self) -> None:
        self._preempter, self._defragmenter = Preempter(), Defragmenter()

    def start_what_fits(self, host: StartHost, now: float) -> None:
        """Start jobs, preempt for others, and start what fits then. `now`: seconds since the epoch."""
        self._preempter.resume(host, now)
        if not host.jobtable.waiting:
            return
        if not host.cards.is_fresh(now):
            host.then(AskGpus())
        host.charges.bring_up_to_date(host.jobtable, host.policy, host.cards.gpus, host.limits, now)
        decided = self._start_planned(host, now)
        if host.policy.preempts and self._preempter.preempt(host, now):
            decided = self._start_planned(host, now)
        if host.limits.defragment:
            self._defragmenter.make_room(host, decided, now)

    def _start_planned(self, host: StartHost, now: float) -> Plan:
        """Start what a plan starts. Before the GPUs were queried, only jobs without GPUs start."""
        plan = partial(host.jobtable.plan, readings=host.cards.readings, limits=host.limits, now=now)
        decided, is_fresh = plan(host.cards.gpus), host.cards.is_fresh(now)
        for start in decided.starts:
            if is_fresh or not start.holds:
                host.containment.run(start.job_id, partial(_start, host, start, now))
        decided = decided if is_fresh else plan(host.cards.gpus_for_planning(now))
        claim_for_tasks(host, decided, now)
        return decided


def _start(host: StartHost, start: Start, now: float) -> None:
    """Store what the job holds; it is launched once that is committed."""
    job = host.eligibility.task_of(host.jobtable.jobs[start.job_id])
    if job is None:
        return  # other rows of its array took the last places
    given = tuple(host.cards.allocation(hold) for hold in start.holds)
    tier = tier_of(job.request.tier, host.tier) if given else "none"
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
        mounts=host.mounts.of([one.uuid for one in given], hooked=is_hooked(tier, has_cards=bool(given))),
        cpus=host.binding.of(host.cards.near(start.holds), job.request.demand.cpus, host.jobtable.bound()),
    )
    if host.store.start(job, after, given):
        host.log.step(job, after)
        host.jobtable.put(after)
        host.jobtable.given[after.id] = given
        host.then(Launch(after, given))
