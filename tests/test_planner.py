"""Who starts, who waits, who may overtake."""

import math

from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, LIMITS, a_demand, a_gpu
from fgsched.domain.job import WHOLE, Demand, Hold, HostLimits
from fgsched.domain.policy import Partition, Policy
from fgsched.domain.states import Reason
from fgsched.scheduling.placement import HostRoom, rooms
from fgsched.scheduling.planner import JobClass, JobStart, Queue, QueuedJob, Running, plan
from fgsched.scheduling.queue import PriorityBasis
from fgsched.scheduling.reservations import reserve

PLENTY = HostRoom(cpus=1000, memory=2**50)
ONE_PARTITION = Policy()


def decide(queue, *, gpus=1, running=(), host=PLENTY, limits=LIMITS, now=0.0, policy=ONE_PARTITION):
    free = rooms([a_gpu(index) for index in range(gpus)], [(h, False) for r in running for h in r.holds], {})
    return plan(Queue(queue, PriorityBasis(policy=policy)), running, free, host, limits=limits, now=now)


def started(decided):
    return {start.job_id: [hold.gpu for hold in start.holds] for start in decided.starts}


def pending(*shares, limit=0):
    return [QueuedJob(number, a_demand(share), limit) for number, share in enumerate(shares, 1)]


def in_order(queue):
    """[(share, ids in order)] of each kind."""
    return [(group.kind.demand.share, [one for _, one in group.in_order()]) for group in queue.groups]


def running(share, *, gpu=0, until=math.inf):
    return Running(a_demand(share), (Hold(gpu=gpu, share=share, memory=share),), until)


def test_three_halves_on_two_cards_take_0_0_and_1():
    assert started(decide(pending(5000, 5000, 5000), gpus=2)) == {1: [0], 2: [0], 3: [1]}


def test_of_four_times_0_3_three_start_on_one_card():
    decided = decide(pending(3000, 3000, 3000, 3000))
    assert started(decided) == {1: [0], 2: [0], 3: [0]}
    assert decided.shortfall(JobClass(a_demand(3000), 0)).reason is Reason.RESOURCES


def test_each_partition_places_by_its_own_rule():
    policy = Policy(partitions=(Partition(name="main"), Partition(name="wide", placement="spread")))
    for partition, gpu in (("main", 0), ("wide", 1)):
        queue = [QueuedJob(1, a_demand(2500), partitions=(partition,))]
        assert started(decide(queue, gpus=2, running=[running(5000, gpu=0)], policy=policy)) == {1: [gpu]}


def test_a_job_without_gpus_waits_for_cpus_only():
    queue = [QueuedJob(number, Demand(cpus=2)) for number in (1, 2, 3)]
    decided = decide(queue, gpus=0, host=HostRoom(cpus=4, memory=0))
    assert started(decided) == {1: [], 2: []}
    assert decided.shortfall(JobClass(Demand(cpus=2), 0)).what == "cpus"


def test_a_small_job_passes_a_large_one_that_it_does_not_delay():
    decided = decide(pending(WHOLE, 2500), gpus=2, running=[running(5000, gpu=0), running(5000, gpu=1)])
    assert started(decided) == {2: [1]}, "the first is reserved one card; the other is free for all"


def test_a_stream_of_quarters_does_not_starve_a_whole_card_job():
    decided = decide(pending(WHOLE, 2500), running=[running(5000)])
    assert started(decided) == {}
    assert decided.shortfall(JobClass(a_demand(2500), 0)).reason is Reason.RESERVED_FOR_TOP


def test_a_job_that_ends_before_the_reservation_may_use_it():
    queue = [
        QueuedJob(1, a_demand(WHOLE)),
        QueuedJob(2, a_demand(2500), 50),
        QueuedJob(3, a_demand(2500), 150),
    ]
    decided = decide(queue, running=[running(5000, until=100.0)])
    assert started(decided) == {2: [0]}


def test_what_fits_beside_the_reserved_job_may_start():
    queue = [QueuedJob(1, a_demand(7500)), QueuedJob(2, a_demand(2500)), QueuedJob(3, a_demand(2500))]
    decided = decide(queue, running=[running(5000)])
    assert started(decided) == {2: [0]}, "a quarter fits beside three quarters, two do not"


def test_jobs_of_one_kind_start_in_order():
    decided = decide(
        [QueuedJob(7, a_demand(5000)), QueuedJob(3, a_demand(5000)), QueuedJob(5, a_demand(5000))]
    )
    assert [start.job_id for start in decided.starts] == [3, 5]


def test_a_removed_job_is_not_planned_and_may_come_back():
    queue = Queue(pending(5000, 5000))
    queue.remove(1)
    assert len(queue) == 1
    queue.add(QueuedJob(1, a_demand(5000)))
    gpus = rooms([a_gpu(0)], [], {})
    decided = plan(queue, [], gpus, PLENTY, limits=LIMITS, now=0)
    assert [start.job_id for start in decided.starts] == [1, 2]


sizes = st.one_of(
    st.builds(a_demand, st.integers(1, WHOLE)),
    st.builds(lambda n: a_demand(WHOLE, gpus=n), st.integers(1, 3)),
    st.builds(lambda gib: a_demand(memory=gib * GIB), st.integers(1, 16)),
    st.builds(lambda cpus: Demand(cpus=cpus), st.integers(1, 4)),
)


@given(demands=st.lists(sizes, max_size=25), gpus=st.integers(1, 4), cpus=st.integers(1, 12))
def test_every_plan_stays_within_the_host_and_leaves_nobody_without_a_decision(demands, gpus, cpus):
    queue = [QueuedJob(number, demand) for number, demand in enumerate(demands, 1)]
    decided = decide(
        queue, gpus=gpus, host=HostRoom(cpus, 2**50), limits=HostLimits(cpus=cpus, host_memory=2**50)
    )
    share = dict.fromkeys(range(gpus), 0)
    memory = dict.fromkeys(range(gpus), 0)
    for start in decided.starts:
        cpus -= demands[start.job_id - 1].cpus
        for hold in start.holds:
            share[hold.gpu] += hold.share
            memory[hold.gpu] += hold.memory
    assert cpus >= 0
    assert all(value <= WHOLE for value in share.values())
    assert all(value <= 16 * GIB for value in memory.values())
    ids = {start.job_id for start in decided.starts}
    assert all(job.id in ids or decided.shortfall(job.kind) is not None for job in queue)


@given(demands=st.lists(sizes, min_size=1, max_size=12), gpus=st.integers(1, 3))
def test_the_first_job_that_fits_an_empty_host_always_starts(demands, gpus):
    queue = [QueuedJob(number, demand) for number, demand in enumerate(demands, 1)]
    decided = decide(queue, gpus=gpus)
    possible = demands[0].gpus <= gpus
    assert any(isinstance(start, JobStart) and start.job_id == 1 for start in decided.starts) is possible


# -- the reservation ----------------------------------------------------------------------------


def test_what_is_let_past_is_taken_off_what_is_spare_only_once():
    queue = [QueuedJob(1, a_demand(7500)), *(QueuedJob(number, a_demand(1000)) for number in (2, 3, 4))]
    decided = decide(queue, running=[running(5000)])
    assert started(decided) == {2: [0], 3: [0]}


def test_a_job_that_ends_with_the_reservation_may_use_it_and_one_that_ends_later_may_not():
    for limit, goes in ((100, True), (101, False)):
        queue = [QueuedJob(1, a_demand(WHOLE)), QueuedJob(2, a_demand(5000), limit)]
        decided = decide(queue, running=[running(5000, until=100.0)])
        assert (2 in started(decided)) is goes


def test_the_cpus_of_the_reserved_job_are_kept_too():
    queue = [QueuedJob(1, Demand(cpus=3)), QueuedJob(2, Demand(cpus=1)), QueuedJob(3, Demand(cpus=1))]
    busy = [Running(Demand(cpus=3), (), 100.0)]
    decided = decide(queue, gpus=0, running=busy, host=HostRoom(cpus=1, memory=0))
    assert started(decided) == {2: []}, "one of four is spare beside three"
    decided = decide(queue, gpus=0, running=busy, host=HostRoom(cpus=1, memory=0), limits=LIMITS)
    assert decided.shortfall(JobClass(Demand(cpus=1), 0)).what == "cpus"


def test_the_reservation_is_made_where_the_job_fits_soonest():
    busy = [running(WHOLE, gpu=0, until=200.0), running(WHOLE, gpu=1, until=100.0)]
    queue = [QueuedJob(1, a_demand(WHOLE)), QueuedJob(2, a_demand(5000), 150)]
    decided = decide(queue, gpus=3, running=[*busy, running(5000, gpu=2, until=300.0)])
    assert started(decided) == {2: [2]}, "card 1 is the reserved one"


def test_a_reservation_waits_for_all_that_end_at_one_time():
    busy = [running(5000, until=100.0), running(5000, until=100.0)]
    decided = decide([QueuedJob(1, a_demand(WHOLE)), QueuedJob(2, Demand(cpus=1))], running=busy)
    assert started(decided) == {2: []}


def test_only_the_first_job_that_cannot_start_reserves():
    queue = [
        QueuedJob(1, a_demand(WHOLE, gpus=2)),
        QueuedJob(2, a_demand(WHOLE)),
        QueuedJob(3, a_demand(5000), 10),
    ]
    decided = decide(
        queue, gpus=2, running=[running(5000, gpu=0, until=20.0), running(2500, gpu=1, until=5.0)]
    )
    assert started(decided) == {3: [0]}


def test_jobs_are_let_past_in_the_order_of_the_queue_whatever_their_kind():
    queue = [QueuedJob(number, a_demand(2500), number % 3) for number in range(1, 10)]
    decided = decide(queue)
    assert [start.job_id for start in decided.starts] == [1, 2, 3, 4]


jobs = st.lists(
    st.tuples(
        st.one_of(
            st.builds(a_demand, st.sampled_from([1000, 2500, 5000, 7500, WHOLE])),
            st.builds(lambda n: a_demand(WHOLE, gpus=n), st.integers(1, 2)),
            st.builds(lambda cpus: Demand(cpus=cpus), st.integers(1, 4)),
        ),
        st.integers(1, 50),
    ),
    min_size=2,
    max_size=14,
)


@given(jobs=jobs, gpus=st.integers(2, 3))
def test_the_first_job_that_waits_starts_no_later_than_was_reserved_for_it(jobs, gpus):
    """A whole queue is run to its end; every job takes exactly its time limit."""
    host_gpus, cpus = [a_gpu(index) for index in range(gpus)], 6
    limits = HostLimits(cpus=cpus, host_memory=2**50)
    waiting = {number: QueuedJob(number, demand, limit) for number, (demand, limit) in enumerate(jobs, 1)}
    promised, busy, now = {}, {}, 0.0
    while waiting:
        free = rooms(host_gpus, [(hold, False) for job in busy.values() for hold in job.holds], {})
        host = HostRoom(cpus - sum(job.demand.cpus for job in busy.values()), 2**50)
        for start in plan(
            Queue(waiting.values()), list(busy.values()), free, host, limits=limits, now=now
        ).starts:
            job = waiting.pop(start.job_id)
            assert now <= promised.get(job.id, math.inf)
            busy[job.id] = Running(job.demand, start.holds, now + job.time_limit)
        if waiting:
            first = min(waiting)
            free = rooms(host_gpus, [(hold, False) for job in busy.values() for hold in job.holds], {})
            host = HostRoom(cpus - sum(job.demand.cpus for job in busy.values()), 2**50)
            backfill = reserve(waiting[first].demand, list(busy.values()), free, host, limits=limits)
            promised.setdefault(first, backfill.at)
            now = min(job.until for job in busy.values())
            busy = {number: job for number, job in busy.items() if job.until > now}


# -- the queue ----------------------------------------------------------------------------------


def test_a_job_that_comes_back_with_another_demand_is_planned_by_that():
    queue = Queue(pending(5000, 5000))
    queue.remove(1)
    queue.add(QueuedJob(1, a_demand(2500)))
    queue.remove(1)
    queue.add(QueuedJob(1, a_demand(5000)))
    queue.add(QueuedJob(1, a_demand(5000)))
    assert in_order(queue) == [(5000, [1, 2])]
    decided = plan(queue, [], rooms([a_gpu(0)], [], {}), PLENTY, limits=LIMITS, now=0)
    assert [start.job_id for start in decided.starts] == [1, 2]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.sampled_from([1000, 2000])), max_size=40))
def test_the_queue_holds_what_was_last_said_of_each_job(steps):
    queue, expected = Queue(), {}
    for is_added, job_id, share in steps:
        queue.remove(job_id)
        expected.pop(job_id, None)
        if is_added:
            queue.add(QueuedJob(job_id, a_demand(share)))
            expected[job_id] = share
    decided = plan(queue, [], rooms([a_gpu(0)], [], {}), PLENTY, limits=LIMITS, now=0)
    assert [start.job_id for start in decided.starts] == sorted(expected)
    assert {start.job_id: start.holds[0].share for start in decided.starts} == expected
    assert len(queue) == len(expected)


def test_holding_and_releasing_a_job_again_and_again_leaves_one_place_in_the_queue():
    queue = Queue(pending(*[5000] * 10))
    for _ in range(100):
        queue.remove(9)
        queue.add(QueuedJob(9, a_demand(5000)))
    assert [len(ids) for _, ids in in_order(queue)] == [10]


def test_a_job_that_was_passed_over_once_may_still_come_back():
    queue = Queue(pending(5000, 5000))
    queue.remove(1)
    assert in_order(queue) == [(5000, [2])]
    queue.add(QueuedJob(1, a_demand(5000)))
    assert in_order(queue) == [(5000, [1, 2])]


# -- limits and figures -------------------------------------------------------------------------

FEW = HostLimits(cpus=4, host_memory=GIB, max_jobs_per_gpu=2)


def test_no_plan_puts_more_jobs_on_a_card_than_the_site_allows():
    decided = decide(pending(1000, 1000, 1000), limits=FEW)
    assert started(decided) == {1: [0], 2: [0]}
    assert decided.shortfall(JobClass(a_demand(1000), 0)).reason is Reason.GPU_MAX_JOBS


def test_a_job_that_waits_for_another_to_leave_the_card_is_reserved_its_place():
    busy = [running(1000, until=50.0), running(1000, until=100.0)]
    queue = [QueuedJob(1, a_demand(1000)), QueuedJob(2, a_demand(500), 10)]
    decided = decide(queue, running=busy, limits=FEW)
    assert started(decided) == {}
    assert reserve(a_demand(1000), busy, rooms([a_gpu(0)], held(busy), {}), PLENTY, limits=FEW).at == 50.0


def held(busy):
    return [(hold, False) for job in busy for hold in job.holds]


def test_host_memory_is_handed_out_once_and_told_in_figures():
    queue = [QueuedJob(1, Demand(host_memory=GIB)), QueuedJob(2, Demand(host_memory=1))]
    decided = decide(queue, host=HostRoom(4, GIB), limits=FEW)
    assert started(decided) == {1: []}
    shortfall = decided.shortfall(JobClass(Demand(host_memory=1), 0))
    assert (shortfall.what, shortfall.need, shortfall.remaining, shortfall.total) == (
        "host memory",
        1,
        0,
        GIB,
    )


def test_the_cpus_that_just_suffice_are_not_what_is_short():
    decided = decide([QueuedJob(1, Demand(cpus=4, host_memory=2))], host=HostRoom(4, 1), limits=FEW)
    assert decided.shortfall(JobClass(Demand(cpus=4, host_memory=2), 0)).what == "host memory"


def test_neither_share_nor_bytes_of_what_is_spare_are_given_twice():
    queue = [
        QueuedJob(1, a_demand(7500, 8 * GIB)),
        QueuedJob(2, a_demand(3000, 1)),
        QueuedJob(3, a_demand(1000, 9 * GIB)),
    ]
    busy = [Running(a_demand(5000), (Hold(gpu=0, share=5000, memory=GIB),), 100.0)]
    assert started(decide(queue, running=busy)) == {}


def test_cpus_that_were_let_past_are_no_longer_spare():
    queue = [QueuedJob(1, Demand(cpus=3)), *(QueuedJob(number, Demand(cpus=1)) for number in (2, 3))]
    busy = [Running(Demand(cpus=2), (), 100.0)]
    decided = decide(queue, gpus=0, running=busy, host=HostRoom(cpus=2, memory=0))
    assert started(decided) == {2: []}


def test_what_starts_now_counts_for_the_reservation():
    queue = [
        QueuedJob(1, a_demand(WHOLE), 100),
        QueuedJob(2, a_demand(WHOLE)),
        QueuedJob(3, Demand(cpus=1), 50),
    ]
    decided = decide(queue, host=HostRoom(cpus=3, memory=0))
    assert started(decided) == {1: [0], 3: []}
    queue = [
        QueuedJob(1, a_demand(5000), 100),
        QueuedJob(2, a_demand(WHOLE)),
        QueuedJob(3, a_demand(2500), 150),
    ]
    assert started(decide(queue)) == {1: [0]}, "it would be in the way at 100"


def test_what_ends_at_the_same_time_is_spare_together():
    busy = [running(3000, until=100.0) for _ in range(3)]
    decided = decide([QueuedJob(1, a_demand(4000)), QueuedJob(2, a_demand(1000))], running=busy)
    assert started(decided) == {2: [0]}


def test_one_that_never_fits_reserves_nothing():
    queue = [QueuedJob(1, a_demand(WHOLE, gpus=9)), QueuedJob(2, a_demand(5000))]
    assert started(decide(queue, running=[running(2500)])) == {2: [0]}


def test_equal_demands_with_different_limits_wait_for_the_same():
    queue = [QueuedJob(number, a_demand(WHOLE), number) for number in range(1, 5)]
    decided = decide(queue, running=[running(5000)])
    reasons = [decided.shortfall(JobClass(a_demand(WHOLE), number)).reason for number in range(1, 5)]
    assert reasons == [Reason.RESOURCES] * 4


def test_nobody_is_let_past_who_would_be_one_job_too_many_on_the_card_of_the_first():
    """Its partition allows two jobs on a card, and that of the other any number."""
    running = [
        Running(a_demand(2500), (Hold(gpu=0, share=2500, memory=GIB),), until, "day") for until in (100, 900)
    ]
    policy = Policy(partitions=(Partition(name="night", max_jobs_per_gpu=2), Partition(name="day")))
    first = QueuedJob(1, a_demand(1000), 300, partitions=("night",))
    later = QueuedJob(2, a_demand(1000), 300, partitions=("day",))
    decided = decide([first, later], running=running, policy=policy)
    assert decided.reserved["night"].at == 100
    assert started(decided) == {}
    soon = QueuedJob(2, a_demand(1000), 100, partitions=("day",))
    assert started(decide([first, soon], running=running, policy=policy)) == {2: [0]}
