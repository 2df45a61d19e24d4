"""Who starts, who waits, who may overtake."""

import math

from hypothesis import given
from hypothesis import strategies as st

from fgsched.model import WHOLE, Demand, Hold, Limits, Reason
from fgsched.placement import Host, rooms
from fgsched.planner import Pending, Queue, Running, Start, plan
from worlds import GIB, LIMITS, a_demand, a_gpu

PLENTY = Host(cpus=1000, memory=2**50)


def decide(queue, *, gpus=1, running=(), host=PLENTY, limits=LIMITS, now=0.0):
    cards = rooms([a_gpu(index) for index in range(gpus)], [(h, False) for r in running for h in r.holds], {})
    return plan(Queue(queue), running, cards, host, limits=limits, now=now)


def started(decided):
    return {start.job_id: [hold.gpu for hold in start.holds] for start in decided.starts}


def pending(*shares, limit=0):
    return [Pending(number, a_demand(share), limit) for number, share in enumerate(shares, 1)]


def running(share, *, gpu=0, until=math.inf):
    return Running(a_demand(share), (Hold(gpu=gpu, share=share, memory=share),), until)


def test_three_halves_on_two_cards_take_0_0_and_1():
    assert started(decide(pending(5000, 5000, 5000), gpus=2)) == {1: [0], 2: [0], 3: [1]}


def test_of_four_times_0_3_three_start_on_one_card():
    decided = decide(pending(3000, 3000, 3000, 3000))
    assert started(decided) == {1: [0], 2: [0], 3: [0]}
    assert decided.waits[a_demand(3000), 0].reason is Reason.RESOURCES


def test_a_job_without_gpus_waits_for_cpus_only():
    queue = [Pending(number, Demand(cpus=2)) for number in (1, 2, 3)]
    decided = decide(queue, gpus=0, host=Host(cpus=4, memory=0))
    assert started(decided) == {1: [], 2: []}
    assert decided.waits[Demand(cpus=2), 0].what == "cpus"


def test_a_small_job_passes_a_large_one_that_it_does_not_delay():
    decided = decide(pending(WHOLE, 2500), gpus=2, running=[running(5000, gpu=0), running(5000, gpu=1)])
    assert started(decided) == {2: [1]}, "the first is reserved one card; the other is free for all"


def test_a_stream_of_quarters_does_not_starve_a_whole_card_job():
    decided = decide(pending(WHOLE, 2500), running=[running(5000)])
    assert started(decided) == {}
    assert decided.waits[a_demand(2500), 0].reason is Reason.RESERVED_FOR_TOP


def test_a_job_that_ends_before_the_reservation_may_use_it():
    queue = [Pending(1, a_demand(WHOLE)), Pending(2, a_demand(2500), 50), Pending(3, a_demand(2500), 150)]
    decided = decide(queue, running=[running(5000, until=100.0)])
    assert started(decided) == {2: [0]}


def test_what_fits_beside_the_reserved_job_may_start():
    queue = [Pending(1, a_demand(7500)), Pending(2, a_demand(2500)), Pending(3, a_demand(2500))]
    decided = decide(queue, running=[running(5000)])
    assert started(decided) == {2: [0]}, "a quarter fits beside three quarters, two do not"


def test_jobs_of_one_kind_start_in_order():
    decided = decide([Pending(7, a_demand(5000)), Pending(3, a_demand(5000)), Pending(5, a_demand(5000))])
    assert [start.job_id for start in decided.starts] == [3, 5]


def test_a_removed_job_is_not_planned_and_may_come_back():
    queue = Queue(pending(5000, 5000))
    queue.remove(1)
    assert len(queue) == 1
    queue.add(Pending(1, a_demand(5000)))
    cards = rooms([a_gpu(0)], [], {})
    decided = plan(queue, [], cards, PLENTY, limits=LIMITS, now=0)
    assert [start.job_id for start in decided.starts] == [1, 2]


sizes = st.one_of(
    st.builds(a_demand, st.integers(1, WHOLE)),
    st.builds(lambda n: a_demand(WHOLE, gpus=n), st.integers(1, 3)),
    st.builds(lambda gib: a_demand(memory=gib * GIB), st.integers(1, 16)),
    st.builds(lambda cpus: Demand(cpus=cpus), st.integers(1, 4)),
)


@given(demands=st.lists(sizes, max_size=25), gpus=st.integers(1, 4), cpus=st.integers(1, 12))
def test_every_plan_stays_within_the_host_and_leaves_nobody_without_a_decision(demands, gpus, cpus):
    queue = [Pending(number, demand) for number, demand in enumerate(demands, 1)]
    decided = decide(queue, gpus=gpus, host=Host(cpus, 2**50), limits=Limits(cpus=cpus, host_memory=2**50))
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
    assert all(job.id in ids or (job.demand, 0) in decided.waits for job in queue)


@given(demands=st.lists(sizes, min_size=1, max_size=12), gpus=st.integers(1, 3))
def test_the_first_job_that_fits_an_empty_host_always_starts(demands, gpus):
    queue = [Pending(number, demand) for number, demand in enumerate(demands, 1)]
    decided = decide(queue, gpus=gpus)
    possible = demands[0].gpus <= gpus
    assert any(isinstance(start, Start) and start.job_id == 1 for start in decided.starts) is possible
