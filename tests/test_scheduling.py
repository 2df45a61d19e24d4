"""Reservations of those that wait: whom they keep back, when they are kept, and that nobody starves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import GIB, a_demand, a_gpu
from fgsched.domain.job import WHOLE, Hold, HostLimits
from fgsched.domain.policy import ChargeAccount, Limits, Partition, Policy, Weights
from fgsched.domain.states import Reason
from fgsched.scheduling.limits import LimitedUser
from fgsched.scheduling.placement import HostRoom, rooms
from fgsched.scheduling.planner import Queue, QueuedJob, Running, plan
from fgsched.scheduling.queue import PriorityBasis

LIMITS = HostLimits(cpus=12, host_memory=2**50)


# -- reservations -------------------------------------------------------------------------------


class Timeline:
    """Jobs on two cards in two partitions, in virtual time; they end when they end, before their limits."""

    def __init__(self, jobs, policy):
        self.jobs = jobs  # [(arrives, demand, limit, lasts, partition)]
        self.policy = policy
        self.started = {}
        self.promised = {}

    def run(self):
        queue, running, now = Queue([], PriorityBasis(policy=self.policy, gpus=2 * WHOLE, cpus=100)), {}, 0.0
        coming = sorted(enumerate(self.jobs, 1), key=lambda one: one[1][0])
        while coming or len(queue):
            for number, (arrives, demand, limit, _, partition) in coming:
                if arrives <= now:
                    queue.add(QueuedJob(number, demand, limit, partitions=(partition,), since=arrives))
            coming = [one for one in coming if one[1][0] > now]
            self.tick(queue, running, now)
            moments = [end for _, end in running.values()] + [one[1][0] for one in coming]
            if not moments:
                break
            now = min(moments)
            for number in [number for number, (_, end) in running.items() if end <= now]:
                del running[number]
        return self

    def tick(self, queue, running, now):
        free = rooms(
            [a_gpu(0), a_gpu(1)], [(hold, False) for job, _ in running.values() for hold in job.holds], {}
        )
        busy = [job for job, _ in running.values()]
        limits = HostLimits(cpus=100, host_memory=2**50)
        decided = plan(queue, busy, free, HostRoom(100 - len(busy), 2**50), limits=limits, now=now)
        for start in decided.starts:
            _, demand, limit, lasts, partition = self.jobs[start.job_id - 1]
            running[start.job_id] = (Running(demand, start.holds, now + limit, partition), now + lasts)
            self.started[start.job_id] = now
            queue.remove(start.job_id)
        for backfill in decided.reserved.values():
            self.promised.setdefault(backfill.job, []).append(backfill.at)


ONE = Policy(partitions=(Partition(name="only"),), weights=Weights(age=1000, max_age=10**6))
small = st.tuples(
    st.integers(0, 60),
    st.builds(a_demand, st.sampled_from([1000, 2500, 5000, 7500, WHOLE])),
    st.integers(1, 50),
    st.integers(1, 50),
    st.just("only"),
).map(lambda job: (*job[:3], min(job[2], job[3]), job[4]))
large = st.tuples(
    st.integers(0, 60), st.just(a_demand(WHOLE, gpus=2)), st.just(20), st.just(20), st.just("only")
)


@settings(max_examples=200, deadline=None)
@given(jobs=st.lists(st.one_of(small, large), max_size=25))
def test_backfill_never_delays_a_reservation(jobs):
    run = Timeline(jobs, ONE).run()
    assert run.started.keys() == set(range(1, len(jobs) + 1)), "nobody starves"
    for job, promises in run.promised.items():
        assert promises == sorted(promises, reverse=True), "a promise is only ever made better"
        assert run.started[job] <= promises[0]


# Many that come all the time, and now and then one for which a card has to be empty.
stream = st.tuples(
    st.lists(small, min_size=20, max_size=60).map(lambda jobs: [(n, *job[1:]) for n, job in enumerate(jobs)]),
    st.lists(large, min_size=1, max_size=3),
).map(lambda both: [*both[0], *both[1]])


@settings(max_examples=100, deadline=None)
@given(jobs=stream)
def test_whoever_waits_is_overtaken_for_no_longer_than_those_before_him_may_take(jobs):
    """Each of those that wait before it, and it itself, is at the head for the longest limit at most."""
    started = Timeline(jobs, ONE).run().started
    assert len(started) == len(jobs)
    for number, (arrives, _, _, _, _) in enumerate(jobs, 1):
        before = [other for other, job in enumerate(jobs, 1) if (job[0], other) < (arrives, number)]
        waiting = sum(started[other] > arrives for other in before)
        assert started[number] - arrives <= (waiting + 1) * 50


def test_two_whole_cards_are_had_within_the_longest_limit_of_an_endless_stream_of_quarters():
    stream = [(second / 2, a_demand(2500), 40, 40, "only") for second in range(400)]
    run = Timeline([*stream, (50, a_demand(WHOLE, gpus=2), 10, 10, "only")], ONE).run()
    assert run.started[401] <= 50 + 40 + max(0, _waiting_at(50, run, stream))


def _waiting_at(moment, run, stream):
    """How much longer those take that were there first: they come before it."""
    first = [number for number, job in enumerate(stream, 1) if job[0] <= moment]
    return max(run.started[number] for number in first) - moment


def test_a_whole_card_job_in_a_later_partition_does_not_starve_behind_one_that_cannot_use_its_card():
    policy = Policy(
        partitions=(Partition(name="a", gpus=(0,)), Partition(name="b", gpus=(1,), is_default=False))
    )
    stream = [(second, a_demand(5000), 30, 30, "a") for second in range(200)]
    others = [(second, a_demand(5000), 30, 30, "b") for second in range(100)]
    run = Timeline([*stream, *others, (10, a_demand(WHOLE), 10, 10, "b")], policy).run()
    last = max(run.started[number] for number in range(201, 212))
    assert run.started[301] <= last + 30


def test_a_job_without_limit_that_a_card_runs_does_not_keep_a_whole_card_job_from_another():
    jobs = [
        (0, a_demand(2500), 10**6, 10**6, "only"),
        *((n, a_demand(2500), 20, 20, "only") for n in range(60)),
    ]
    run = Timeline([*jobs, (5, a_demand(WHOLE), 10, 10, "only")], ONE).run()
    assert run.started[62] <= 60


def test_a_job_that_a_limit_keeps_back_reserves_nothing_and_keeps_nobody_back():
    policy = Policy(partitions=(Partition(name="only", per_user=Limits(running=1)),))
    busy = [Running(a_demand(2500), (), 100.0, "only", LimitedUser("ann"))]
    jobs = [
        QueuedJob(1, a_demand(WHOLE), 50, partitions=("only",), owner=LimitedUser("ann")),
        QueuedJob(2, a_demand(WHOLE), 500, partitions=("only",), owner=LimitedUser("bob")),
    ]
    free, order = rooms([a_gpu(0)], [], {}), PriorityBasis(policy=policy)
    decided = plan(Queue(jobs, order), busy, free, HostRoom(9, 2**50), limits=LIMITS, now=0.0)
    assert [start.job_id for start in decided.starts] == [2]
    assert decided.shortfall(jobs[0].kind).reason is Reason.MAX_JOBS_PER_USER
    assert decided.reserved == {}


@pytest.mark.parametrize(
    ("what", "most", "starts"),
    [
        *(("running", 2, [3]), ("running", 3, [2, 3])),
        *(("share", 24_999, [3]), ("share", 25_000, [2, 3])),
        *(("gpu_seconds", 24, [3]), ("gpu_seconds", 25, [2, 3])),
    ],
)
def test_nobody_takes_the_place_within_a_limit_that_the_first_job_needs(what, most, starts):
    """Else that limit keeps it back, and others have its room for as long as such jobs come."""
    lab = ChargeAccount(name="lab", limits=Limits(**{what: most}))
    policy = Policy(partitions=(Partition(name="main"),), accounts=(lab,))
    held = (Hold(gpu=0, share=2500, memory=1),)
    busy = [Running(a_demand(2500), held, 10.0, "main", LimitedUser("bob", "lab"))]
    first = QueuedJob(1, a_demand(WHOLE, gpus=2), 10, owner=LimitedUser("ann", "lab"))
    small = QueuedJob(2, a_demand(2500), 8, owner=LimitedUser("bob", "lab"), since=1.0)
    other = QueuedJob(3, a_demand(2500), 8, owner=LimitedUser("bob"), since=1.0)
    decided = decide([first, small, other], busy, policy)
    assert decided.reserved["main"].job == 1
    assert [start.job_id for start in decided.starts] == starts
    if 2 not in starts:
        assert decided.shortfall(small.kind).reason is Reason.RESERVED_FOR_TOP


def decide(jobs, busy, policy, *, gpus=2):
    host_gpus = [a_gpu(index) for index in range(gpus)]
    free = rooms(host_gpus, [(hold, False) for job in busy for hold in job.holds], {})
    return plan(
        Queue(jobs, PriorityBasis(policy=policy)), busy, free, HostRoom(99, 2**50), limits=LIMITS, now=0.0
    )


def test_the_first_of_each_partition_has_a_reservation_beside_those_before_it():
    policy = Policy(partitions=(Partition(name="a"), Partition(name="b", is_default=False)))
    busy = [
        Running(a_demand(5000), (Hold(gpu=0, share=5000, memory=1),), 100.0, "a"),
        Running(a_demand(5000), (Hold(gpu=1, share=5000, memory=1),), 200.0, "a"),
    ]
    jobs = [
        QueuedJob(number, a_demand(WHOLE), 50, partitions=(name,)) for number, name in ((1, "a"), (2, "b"))
    ]
    kept = decide(jobs, busy, policy).reserved
    assert {name: (one.job, one.at, [hold.gpu for hold in one.holds]) for name, one in kept.items()} == {
        "a": (1, 100.0, [0]),
        "b": (2, 200.0, [1]),
    }


def test_whoever_can_never_start_does_not_take_the_reservation_of_the_next():
    policy = Policy(partitions=(Partition(name="main"),))
    busy = [Running(a_demand(7500), (Hold(gpu=0, share=7500, memory=1),), 100.0)]
    never = [QueuedJob(number, a_demand(WHOLE, gpus=2), 50) for number in (1, 2, 3)]
    jobs = [
        *never,
        QueuedJob(4, a_demand(WHOLE), 50, since=1.0),
        QueuedJob(5, a_demand(2500), 500, since=2.0),
    ]
    decided = decide(jobs, busy, policy, gpus=1)
    assert decided.reserved["main"].job == 4
    assert decided.starts == ()


def test_the_share_of_a_job_that_names_memory_is_counted_as_the_card_gives_it():
    """An eighth of the large card, half of the small one."""
    policy = Policy(partitions=(Partition(name="main", per_user=Limits(share=4000)),))
    gpus = [a_gpu(0, memory=16 * GIB), a_gpu(1, memory=64 * GIB)]
    job = QueuedJob(1, a_demand(memory=8 * GIB), 50)
    whole = [
        Running(
            a_demand(WHOLE), (Hold(gpu=1, share=WHOLE, memory=64 * GIB),), 9.0, "main", LimitedUser("bob")
        )
    ]
    for busy, starts in (([], 1), (whole, 0)):
        free = rooms(gpus, [(hold, False) for one in busy for hold in one.holds], {})
        order = PriorityBasis(policy=policy)
        decided = plan(Queue([job], order), busy, free, HostRoom(9, 2**50), limits=LIMITS, now=0.0)
        if busy:
            assert decided.starts == ()
            assert decided.shortfall(job.kind).reason is Reason.MAX_GPUS_PER_USER
        else:
            assert len(decided.starts) == starts


def test_a_job_starts_on_the_card_that_leaves_the_first_job_its_place_within_a_limit():
    """Half of the small card is too much beside the first job, an eighth of the large one is not."""
    policy = Policy(partitions=(Partition(name="main", total=Limits(share=14_000)),))
    held = (Hold(gpu=0, share=2500, memory=GIB), Hold(gpu=1, share=2500, memory=GIB))
    busy = [Running(a_demand(1, gpus=2), held, 100.0, "other")]
    jobs = [QueuedJob(1, a_demand(WHOLE), 50), QueuedJob(2, a_demand(memory=8 * GIB), 50, since=1.0)]
    decided = mixed(jobs, busy, policy, memories=(16, 64))
    assert [(start.job_id, start.holds[0].gpu) for start in decided.starts] == [(2, 1)]


def mixed(jobs, busy, policy, *, memories):
    """A plan for GPUs of these sizes (GiB)."""
    gpus = [a_gpu(index, memory=size * GIB) for index, size in enumerate(memories)]
    free = rooms(gpus, [(hold, False) for job in busy for hold in job.holds], {})
    order = PriorityBasis(policy=policy)
    return plan(Queue(jobs, order), busy, free, HostRoom(12, 2**50), limits=LIMITS, now=0.0)


by_memory = st.tuples(
    st.integers(1, 3), st.sampled_from([0, 2500, 6000, WHOLE]), st.sampled_from([4, 8, 16, 30])
)


@settings(max_examples=300, deadline=None)
@given(
    wishes=st.lists(
        st.tuples(by_memory, st.integers(1, 60), st.sampled_from(["a", "b"])), min_size=2, max_size=8
    ),
    limits=st.builds(
        Limits,
        running=st.sampled_from([0, 3]),
        share=st.sampled_from([0, 8000, 12_000, 17_000]),
        gpu_seconds=st.sampled_from([0, 20, 60]),
    ),
    taken=st.lists(st.sampled_from([0, 2000, 5000]), min_size=4, max_size=4),
)
def test_every_job_that_a_plan_does_not_start_has_a_reason(wishes, limits, taken):
    """Whatever the plan started after it had refused the job."""
    policy = Policy(partitions=(Partition(name="a", total=limits), Partition(name="b", is_default=False)))
    memories = (16, 16, 40, 64)
    busy = [
        Running(
            a_demand(share),
            (Hold(gpu=gpu, share=share, memory=memories[gpu] * GIB * share // WHOLE),),
            30.0,
            "b",
        )
        for gpu, share in enumerate(taken)
        if share
    ]
    jobs = [
        QueuedJob(
            number, a_demand(share, size * GIB, gpus=gpus), seconds, partitions=(name,), since=float(number)
        )
        for number, ((gpus, share, size), seconds, name) in enumerate(wishes, 1)
    ]
    decided = mixed(jobs, busy, policy, memories=memories)
    started = {start.job_id for start in decided.starts}
    assert not [job for job in jobs if job.id not in started and decided.shortfall(job.kind) is None]


def test_a_reservation_is_made_only_where_somebody_behind_has_to_mind_it():
    policy = Policy(partitions=(Partition(name="main"),))
    busy = [Running(a_demand(5000), (Hold(gpu=0, share=5000, memory=1),), 100.0)]
    alike = [QueuedJob(number, a_demand(WHOLE), 50) for number in (1, 2, 3)]
    decided = decide(alike, busy, policy, gpus=1)
    assert decided._after.backfills == {}, "making one costs more than all else in a plan"
    assert decided.reserved["main"].job == 1, "and it is there for whoever asks"
    other = QueuedJob(4, a_demand(2500), 500, since=1.0)
    decided = decide([*alike, other], busy, policy, gpus=1)
    assert decided._after.backfills["main"].job == 1
    assert decided.shortfall(other.kind).reason is Reason.RESERVED_FOR_TOP
