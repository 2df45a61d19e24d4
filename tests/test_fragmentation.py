"""What the usual requests could no longer use of a host, and where a job goes because of it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, LIMITS, a_demand, a_gpu
from fgsched.domain.job import WHOLE, Demand, GpuState, Hold, HostLimits
from fgsched.scheduling.placement import Fragmentation, HostRoom, Recent, place, rooms

WHOLE_CARDS = 126  # that 1000 requests are thought to be accompanied by


def free(*shares, gpus=None):
    """Cards of which these shares are left, and the bytes that go with them."""
    gpus = gpus or [a_gpu(index) for index in range(len(shares))]
    held = [
        (Hold(gpu=gpu.index, share=WHOLE - left, memory=gpu.usable * (WHOLE - left) // WHOLE), False)
        for gpu, left in zip(gpus, shares, strict=True)
    ]
    return rooms(gpus, [one for one in held if one[0].share], {})


def waste(measure, gpus, cpus=100):
    return measure.host(cpus, [measure.gpu(room) for room in gpus])


def only(demand, **weights):
    return Fragmentation([(demand, 1)], **weights)


def test_what_is_left_where_the_usual_request_does_not_fit_is_out_of_reach():
    assert waste(only(a_demand(5000), fill=0), free(4000, 6000)) == 4000


def test_what_the_usual_request_would_leave_of_a_full_host_is_left_over():
    assert waste(only(a_demand(3000), reach=0), free(WHOLE, 7000, 2000)) == 1000 + 1000 + 2000


def test_nothing_of_a_host_is_in_reach_once_its_cpus_are_gone():
    half = a_demand(5000, cpus=4)
    assert waste(only(half, fill=0), free(WHOLE, WHOLE), cpus=3) == 2 * WHOLE
    assert waste(only(half, reach=0), free(WHOLE, WHOLE), cpus=9) == WHOLE, "CPUs for two halves"


def test_cards_that_are_too_few_for_the_usual_request_are_out_of_reach():
    pair = a_demand(WHOLE, gpus=2)
    assert waste(only(pair, fill=0), free(WHOLE, 5000)) == 15_000
    assert waste(only(pair, fill=0), free(WHOLE, WHOLE, 5000)) == 5000
    assert waste(only(pair, reach=0), free(WHOLE, WHOLE, WHOLE)) == WHOLE, "the third card has no partner"


def test_one_card_never_serves_a_request_for_two_however_small():
    small = a_demand(memory=4 * GIB, gpus=2)
    assert waste(only(small, fill=0), free(WHOLE)) == WHOLE
    assert waste(only(small, reach=0), free(WHOLE, WHOLE)) == 15_000


def test_bytes_that_are_gone_leave_a_share_idle_that_nobody_can_use():
    held = [(Hold(gpu=0, share=1000, memory=12 * GIB), False)]
    assert waste(only(a_demand(2500), fill=0), rooms([a_gpu(0)], held, {})) == 0
    assert waste(only(a_demand(5000), fill=0), rooms([a_gpu(0)], held, {})) == 2500


def test_cards_of_another_type_are_out_of_reach():
    gpus = [a_gpu(0, model="V100"), a_gpu(1, model="A100")]
    assert waste(only(a_demand(5000, gpu_type="a100"), fill=0), free(WHOLE, WHOLE, gpus=gpus)) == WHOLE


def test_a_card_that_takes_no_jobs_counts_for_nothing():
    gpus = [a_gpu(0, state=GpuState.DRAINED), a_gpu(1)]
    assert waste(only(a_demand(5000), fill=0), free(4000, 4000, gpus=gpus)) == 4000


def test_requests_count_as_often_as_they_were_made():
    mix = [(a_demand(5000), 3), (a_demand(1000), 1)]
    assert waste(Fragmentation(mix, fill=0), free(4000)) == 3 * 4000


# -- where jobs go ------------------------------------------------------------------------------


def put(share, gpus, mix, **more):
    host = HostRoom(100, 2**50, Fragmentation([(a_demand(one), 1) for one in mix]))
    return [hold.gpu for hold in place(a_demand(share, **more), gpus, LIMITS, host)]


def test_a_job_goes_where_the_usual_requests_lose_least():
    gpus = free(5000, 8000)
    assert place(a_demand(3000), gpus, LIMITS)[0].gpu == 0, "best fit knows nothing of them"
    assert put(3000, gpus, [5000]) == [1], "a half still fits on both"


def test_of_places_that_waste_alike_the_fullest_is_taken():
    assert put(2500, free(WHOLE, 5000), [2500]) == [1]


def test_spread_does_not_look_at_waste():
    spread = HostLimits(cpus=9, host_memory=2**50, spread=True)
    host = HostRoom(100, 2**50, only(a_demand(5000)))
    assert place(a_demand(5000), free(5000, 8000), spread, host)[0].gpu == 1


def test_the_usual_requests_are_the_last_ones():
    recent = Recent()
    for _ in range(1000):
        recent.add(a_demand(2500))
    before = waste(recent.measure(1), free(4000))
    assert before == 1000 * 1500 + WHOLE_CARDS * 8000
    for _ in range(1000):
        recent.add(a_demand(5000))
    assert waste(recent.measure(1), free(4000)) == (1000 + WHOLE_CARDS) * 8000


def test_whole_cards_are_kept_free_even_where_nobody_asked_for_one_lately():
    recent = Recent()
    for _ in range(4):
        recent.add(a_demand(3000))
    host = HostRoom(100, 2**50, recent.measure(1))
    assert place(a_demand(3000), free(4000, WHOLE), LIMITS, host)[0].gpu == 0


def test_a_few_new_requests_do_not_make_the_measure_anew():
    recent = Recent()
    for _ in range(80):
        recent.add(a_demand(2500))
    before = recent.measure(1)
    for _ in range(10):
        recent.add(a_demand(5000))
    assert recent.measure(1) is before
    for _ in range(10):
        recent.add(a_demand(5000))
    assert recent.measure(1) is not before


def test_jobs_without_cards_are_no_part_of_the_mix():
    recent = Recent()
    before = waste(recent.measure(1), free(4000))
    for _ in range(100):
        recent.add(Demand(cpus=4))
    assert waste(recent.measure(1), free(4000)) == before


def test_a_measure_that_has_seen_very_much_is_replaced():
    recent = Recent()
    recent.add(a_demand(2500))
    first = recent.measure(1)
    for cpus in range(20_001):
        waste(first, free(4000), cpus)
    assert recent.measure(1) is not first


# -- what must always hold ----------------------------------------------------------------------

shares = st.integers(0, 10).map(lambda tenth: tenth * 1000)
kinds = st.one_of(
    st.builds(a_demand, st.integers(1, 10).map(lambda tenth: tenth * 1000), cpus=st.integers(1, 4)),
    st.builds(lambda gpus: a_demand(WHOLE, gpus=gpus), st.integers(2, 3)),
)


def _slow(demand, left, cpus):
    """(out of reach, left over) by trying: what the measure says in one formula."""
    need, idle = demand.share, sum(left)
    fitting = [one for one in left if one >= need]
    if len(fitting) < demand.gpus or cpus < demand.cpus:
        return idle, idle
    rest = sorted(left, reverse=True)
    while cpus >= demand.cpus and sum(1 for one in rest if one >= need) >= demand.gpus:
        cpus -= demand.cpus
        chosen = [index for index, one in enumerate(rest) if one >= need][: demand.gpus]
        rest = [one - need if index in chosen else one for index, one in enumerate(rest)]
    return sum(one for one in left if one < need), sum(rest)


@given(left=st.lists(shares, min_size=1, max_size=5), demand=kinds, cpus=st.integers(0, 12))
def test_the_measure_is_what_trying_comes_to(left, demand, cpus):
    reach, fill = _slow(demand, left, cpus)
    assert waste(only(demand, fill=0), free(*left), cpus) == reach
    assert waste(only(demand, reach=0), free(*left), cpus) == fill


@given(
    left=st.lists(shares, min_size=1, max_size=5), mix=st.lists(kinds, max_size=5), cpus=st.integers(0, 12)
)
def test_no_more_is_wasted_than_is_idle(left, mix, cpus):
    measure = Fragmentation(Counter(mix).items())
    assert 0 <= waste(measure, free(*left), cpus) <= 2 * len(mix) * sum(left)


@given(
    left=st.lists(shares, min_size=1, max_size=6),
    mix=st.lists(kinds, max_size=5),
    share=st.integers(1, WHOLE),
    spread=st.booleans(),
)
def test_whatever_the_mix_a_job_that_fits_gets_a_card_that_has_room(left, mix, share, spread):
    gpus = free(*left)
    host = HostRoom(100, 2**50, Fragmentation(Counter(mix).items()))
    found = place(a_demand(share), gpus, HostLimits(cpus=9, host_memory=1, spread=spread), host)
    assert isinstance(found, tuple) is (max(left) >= share)
    if isinstance(found, tuple):
        assert left[found[0].gpu] >= share


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_in_which_cards_are_told_does_not_matter(order):
    gpus = free(5000, 6000, 4000)
    measure = only(a_demand(4500))
    assert waste(measure, [gpus[one] for one in order]) == waste(measure, gpus)
