"""All of a site at once, in any order of events: what must hold whenever nothing is left to do."""

import math
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant
from msgspec.structs import replace

from fgsched.controller.handlers.fields import count_rows, shown_state
from fgsched.controller.jobtable import JobTable, pending
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState, Reason
from oracle import Truth
from oracle_reasons import Reasons
from site_machine import BOB, NAMES, Happenings


class Scheduling(Happenings):
    def __init__(self):
        super().__init__()
        self.held = set()  # what each attempt holds
        self.promise = None  # (the first of the queue, when it starts at the latest)
        self.preemptions = set()
        self.finals = {}

    def look(self):
        """Whenever nothing is left to do at a moment."""
        truth = Truth(self.site)
        held = {(job.id, job.attempt, sum(hold.share for hold in job.holds)): job for job in truth.busy}
        fresh = [held[key] for key in held.keys() - self.held]
        began = {key[:2] for key in self.held}
        self.held = set(held)
        self.limits_are_kept(truth, fresh, [job for job in fresh if (job.id, job.attempt) not in began])
        self.nobody_is_let_past_who_delays_the_first(truth, fresh)

    def limits_are_kept(self, truth, fresh, started):
        """By every job that holds more than at the last look."""
        for job in fresh:
            if not job.is_suspended_by_preemption:
                assert list(truth.passed(job)) == [], job
        for job in started:
            partition = self.policy.partition(job.partition)
            assert partition.starts
            assert len(job.holds) == job.request.demand.gpus
            assert not partition.most.time or 0 < job.request.time_limit <= partition.most.time
            assert all(not partition.gpus or hold.gpu in partition.gpus for hold in job.holds)
        for index in truth.gpus:
            here = [job for job in started if any(hold.gpu == index for hold in job.holds)]
            most = [
                self.policy.partition(job.partition).limits(truth.limits).max_jobs_per_gpu for job in here
            ]
            assert not most or 0 in most or len(truth.on(index)) <= max(most), (
                "the last to come minds its own"
            )

    @property
    def policy(self):
        return self.site.world.engine.policy

    def first(self):
        """The first of the queue, if nothing else has an influence on when it starts; else None."""
        jobtable = self.site.world.engine.jobtable
        if jobtable._queue.claims or not len(jobtable._queue):
            return None
        return min((jobtable._queue.entry(job_id) for job_id in jobtable._queue._group_of), key=self.place)

    def place(self, entry):
        order = self.site.world.engine.jobtable.order
        return (-order.factors(entry.kind, entry.since, self.site.world.now).priority, entry.since, entry.id)

    def nobody_is_let_past_who_delays_the_first(self, truth, fresh):
        """Its promise is only ever made better, as long as nothing happens but ends, and it is kept."""
        jobtable, first, before = self.site.world.engine.jobtable, self.first(), self.promise
        at = next(
            (one.at for one in jobtable._decided.reserved.values() if first and one.job == first.id), None
        )
        late = any(truth.until(job) <= truth.now for job in truth.holding)
        preemptions = {(job.id, job.preemption.attempt) for job in truth.jobs if job.preemption}
        if preemptions - self.preemptions or any(
            self.place(pending(job)) < self.place(first) for job in fresh if first
        ):
            late = True  # others make room, or whoever comes before it came back or was kept back
        if first and jobtable.reason(self.site.world.job(first.id)) is Reason.ACCOUNT_GPU_MINUTES:
            late = True  # jobs without a limit have used them up
        self.preemptions = preemptions
        array = jobtable.arrays.get(first.id) if first else None
        who = first and (first.id, array and array.pending_bits)  # of an array, the task that is next
        if before is not None and before[0] == who and self.site.is_calm and not late:
            assert at is not None, f"{first} has a reservation no more"
            assert at <= before[1], f"{first} is put off"
        self.site.is_calm = not late
        self.promise = (who, at) if at is not None and at < math.inf else None

    @invariant()
    def no_gpu_is_over_held_and_whole_and_shared_never_mix(self):
        truth = Truth(self.site)
        for index, gpu in truth.gpus.items():
            shares = [hold.share for hold in truth.on(index)]
            assert WHOLE not in shares or not [share for share in shares if 0 < share < WHOLE]
            assert sum(shares) <= WHOLE
            assert sum(hold.memory for hold in truth.on(index)) <= gpu.usable
        assert truth.cpus() >= 0

    @invariant()
    def what_is_promised_is_there_when_it_is_promised(self):
        """On the cards of each reservation, beside all that runs then and what is promised besides."""
        truth = Truth(self.site)
        backfills = self.site.world.engine.jobtable._decided.reserved.values()
        for backfill in (one for one in backfills if truth.now < one.at):
            left = truth.left(backfill.at)
            for hold in (hold for one in backfills if one.at <= backfill.at for hold in one.holds):
                share, memory = left[hold.gpu]
                left[hold.gpu] = share - hold.share, memory - hold.memory
            assert all(left[hold.gpu][0] >= 0 for hold in backfill.holds), backfill

    @invariant()
    def every_job_that_waits_has_a_reason_that_is_true(self):
        truth, jobtable = Reasons(self.site), self.site.world.engine.jobtable
        for job in self.waiting():
            reason, shortfall = jobtable.reason(job), jobtable.shortfall(job)
            assert truth.is_true(job, reason, shortfall), (reason, shortfall, job)

    @invariant()
    def rows_are_counted_as_they_are_listed(self):
        jobtable = self.site.world.engine.jobtable
        for caller in (BOB, replace(BOB, is_confined=True)):
            seen = filter(caller.may_see, jobtable.jobs.values())
            listed = Counter((job.partition or job.request.partition, shown_state(job).value) for job in seen)
            assert count_rows(jobtable, caller) == listed

    @invariant()
    def a_turn_in_which_nothing_happens_changes_nothing(self):
        """Whatever could be started was started: nobody would wake the controller for it."""
        if self.policy.weights.fairshare:
            return
        before = dict(self.site.world.engine.jobtable.jobs)
        self.site.settle()
        assert self.site.world.engine.jobtable.jobs == before

    @invariant()
    def those_stand_still_that_should(self):
        stands = {
            (job.id, job.attempt)
            for job in self.site.world.store.open_jobs()
            if job.state is JobState.SUSPENDED
        }
        assert self.site.host.stopped & set(self.site.host.running) == stands & set(self.site.host.running)

    @invariant()
    def nothing_ran_more_often_than_it_was_to_and_no_end_is_taken_back(self):
        for job_id in self.site.world.acknowledged:
            job = self.site.world.job(job_id)
            assert self.site.host.runs.count(job_id) <= job.restarts + 1
            assert self.finals.setdefault(job_id, job.state) is job.state if job.state.is_final else True

    @invariant()
    def the_book_is_what_the_store_would_make_of_it(self):
        there = JobTable(self.site.world.store.open_jobs(), self.site.world.store.tasks.made).jobs
        assert self.site.world.engine.jobtable.jobs == there

    def teardown(self):
        """Once nobody comes any more and all is open, every job starts and ends, or says why it never can."""
        if not hasattr(self, "site"):
            return
        site = self.site
        site.lost.clear(), site.strangers.clear(), site.lingering.clear()
        for name in NAMES:
            site.ask("update_partition", name=name, values={"state": "up", "maxtime": "", "devices": "0,1,2"})
        for index in range(3):
            site.ask("resume", gpu=index)
        for name in self.booked():
            site.ask("delete_reservation", name=name)
        for _ in range(300):
            jobs = site.world.store.open_jobs()
            if not [job for job in jobs if site.world.engine.jobtable.reason(job).value not in _FOR_EVER]:
                break
            site.ask("release", ids=[job.id for job in jobs])
            site.ask("resume_jobs", ids=[job.id for job in jobs if job.state is JobState.SUSPENDED])
            for key in self.alive():
                site.end(*key, 0)
            site.advance(1000)
        truth = Reasons(site)
        for job in truth.jobs:
            reason = site.world.engine.jobtable.reason(job)
            assert job.state is JobState.PENDING
            assert reason.value in _FOR_EVER, (reason, job)
            assert truth.is_true(job, reason, site.world.engine.jobtable.shortfall(job)), (reason, job)
        assert site.world.holds() == []


_FOR_EVER = {
    *("DependencyNeverSatisfied", "Dependency", "PartitionTimeLimit", "Reservation"),
    *("QOSGrpGRES", "QOSMaxGRESPerUser", "AssocGrpGRES", "AssocGrpGRESMinutes"),
}

TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
