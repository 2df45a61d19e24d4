"""What can never run here is refused, with the nearest that could."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, a_demand, a_gpu
from fgsched.domain.errors import BadUsage, FgschedError, Refused
from fgsched.domain.job import WHOLE, Demand, GpuState, HostLimits
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.admission import check_demand
from fgsched.scheduling.placement import place, rooms

SMALL = HostLimits(cpus=4, host_memory=8 * GIB, share_step=1250)
CARDS = (a_gpu(0), a_gpu(1, memory=40 * GIB, model="NVIDIA A100"))


def refusal(demand, *, gpus=CARDS, limits=SMALL):
    with pytest.raises(FgschedError) as error:
        check_demand(demand, gpus, limits)
    return error.value


POSSIBLE = [
    Demand(),
    Demand(cpus=4, host_memory=8 * GIB),
    a_demand(1250),
    a_demand(WHOLE, gpus=2),
    a_demand(memory=40 * GIB),
    a_demand(memory=16 * GIB, gpus=2),
    a_demand(memory_part=WHOLE, gpus=1),
    a_demand(WHOLE, gpu_type="a100"),
]


@pytest.mark.parametrize("demand", POSSIBLE, ids=range(len(POSSIBLE)))
def test_what_just_fits_is_taken(demand):
    check_demand(demand, CARDS, SMALL)
    assert not isinstance(place(demand, rooms(CARDS, [], {}), SMALL), Shortfall)


REFUSED = [
    (Demand(cpus=5), "5 CPUs of 4", "at most 4: --cpus-per-task times --ntasks"),
    (Demand(host_memory=8 * GIB + 1), "of host memory", "--mem=8192M"),
    (a_demand(memory=40 * GIB + 1), "40960M on GPU 1", "--gpu-mem=40960M"),
    (a_demand(memory=16 * GIB + 1, gpus=2), "16384M on GPU 0", "--gpu-mem=16384M"),
    (a_demand(WHOLE, gpus=3), "this host has 2 GPUs", "--gpus=2"),
    (a_demand(WHOLE, gpus=2, gpu_type="a100"), "this host has 1 a100 GPU", "--gpus=1"),
    (a_demand(WHOLE, gpu_type="h100"), "no GPU of type 'h100'", "NVIDIA A100, Simulated"),
]


@pytest.mark.parametrize(("demand", "cause", "remedy"), REFUSED, ids=range(len(REFUSED)))
def test_what_never_fits_is_refused_with_what_would(demand, cause, remedy):
    error = refusal(demand)
    assert isinstance(error, Refused)
    assert cause in error.cause
    assert remedy in error.remedy


MALFORMED = [
    Demand(share=1250),
    Demand(memory=1),
    Demand(memory_part=1),
    Demand(gpus=1),
    Demand(gpus=2, share=1250),
    a_demand(1251),
]


@pytest.mark.parametrize("demand", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_demand_is_wrong_usage(demand):
    assert isinstance(refusal(demand), BadUsage)


def test_the_neighbours_of_a_share_off_the_step_are_named():
    assert refusal(a_demand(3000)).remedy == "Use 0.25 or 0.375."


def test_a_host_without_cards_says_so():
    assert "the host has no GPUs" in refusal(a_demand(1250), gpus=()).cause


def test_a_drained_card_counts():
    drained = [a_gpu(0, state=GpuState.DRAINED)]
    check_demand(a_demand(1250), drained, SMALL)
    assert isinstance(place(a_demand(1250), rooms(drained, [], {}), SMALL), Shortfall)


def test_a_card_of_which_nothing_is_usable_is_no_card():
    nothing = a_gpu(0, headroom=16 * GIB)
    refusal(a_demand(memory_part=5000, gpus=1), gpus=[nothing])
    found = place(a_demand(memory_part=5000, gpus=1), rooms([nothing], [], {}), SMALL)
    assert isinstance(found, Shortfall)


@given(
    demand=st.builds(
        Demand,
        gpus=st.integers(0, 3),
        share=st.sampled_from([0, 1250, 5000, WHOLE]),
        memory=st.sampled_from([0, GIB, 16 * GIB, 17 * GIB, 41 * GIB]),
        memory_part=st.sampled_from([0, 1, 5000, WHOLE]),
        gpu_type=st.sampled_from(["", "a100"]),
    )
)
def test_what_is_taken_is_what_an_empty_host_can_place(demand):
    try:
        check_demand(demand, CARDS, SMALL)
    except BadUsage:
        return
    except Refused:
        assert isinstance(place(demand, rooms(CARDS, [], {}), SMALL), Shortfall)
        return
    assert not isinstance(place(demand, rooms(CARDS, [], {}), SMALL), Shortfall)
