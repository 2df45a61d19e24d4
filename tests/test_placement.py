"""Where one request goes, and why it goes nowhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import GIB, LIMITS, a_demand, a_gpu
from fgsched.domain.job import WHOLE, GpuState, Hold, HostLimits, Reading
from fgsched.domain.states import Reason
from fgsched.domain.waiting import Shortfall
from fgsched.scheduling.placement import Room, charged, cost, is_of_type, place, rooms
from fgsched.views.wording import why


def free(*gpus, holds=(), readings=None):
    return rooms(gpus, [(hold, False) for hold in holds], readings or {})


def test_a_job_fills_the_gpu_that_is_fuller_already():
    gpus = free(a_gpu(0), a_gpu(1), holds=[Hold(gpu=1, share=3000, memory=GIB)])
    assert place(a_demand(2000), gpus, LIMITS) == (Hold(gpu=1, share=2000, memory=16 * GIB // 5),)


def test_spread_takes_the_emptiest_card():
    gpus = free(a_gpu(0), a_gpu(1), holds=[Hold(gpu=0, share=3000, memory=GIB)])
    spread = HostLimits(cpus=1, host_memory=1, spread=True)
    assert place(a_demand(2000), gpus, spread)[0].gpu == 1


def test_whole_cards_are_given_in_order():
    holds = place(a_demand(WHOLE, gpus=2), free(a_gpu(0), a_gpu(1), a_gpu(2)), LIMITS)
    assert [hold.gpu for hold in holds] == [0, 1]


def test_a_whole_job_never_shares_a_card():
    held = [Hold(gpu=0, share=1, memory=1)]
    found = place(a_demand(WHOLE), free(a_gpu(0), holds=held), LIMITS)
    assert found == Shortfall(
        Reason.RESOURCES, "share", gpu=0, need=WHOLE, remaining=WHOLE - 1, total=WHOLE - 1
    )


def test_a_job_of_several_whole_cards_is_told_how_many_are_free():
    held = [Hold(gpu=0, share=1, memory=1)]
    found = place(a_demand(WHOLE, gpus=2), free(a_gpu(0), a_gpu(1), holds=held), LIMITS)
    assert why(found) == "needs 2 whole GPUs; 1 of 2 are free"


def test_a_fraction_never_spans_two_cards():
    held = [Hold(gpu=index, share=5000, memory=GIB) for index in (0, 1)]
    found = place(a_demand(7500), free(a_gpu(0), a_gpu(1), holds=held), LIMITS)
    assert found.reason is Reason.GPU_FRAGMENTED
    assert why(found) == "needs 0.75 of one GPU; 1 is free in total, at most 0.5 on one GPU"


def test_memory_alone_decides_the_share_rounded_up_to_the_step():
    assert cost(a_demand(memory=6 * GIB, gpus=1), a_gpu(0)).share == 3750
    assert cost(a_demand(memory=6 * GIB + 1, gpus=1), a_gpu(0), step=1250).share == 5000


def test_a_share_alone_decides_the_memory_rounded_down():
    assert cost(a_demand(3333), a_gpu(0, memory=10)).memory == 3


def test_accounting_charges_the_larger_of_share_and_memory():
    assert charged(Hold(gpu=0, share=1000, memory=8 * GIB), 16 * GIB) == 5000
    assert charged(Hold(gpu=0, share=6000, memory=8 * GIB), 16 * GIB) == 6000


def test_memory_that_does_not_fit_is_told_in_figures():
    held = [Hold(gpu=0, share=3750, memory=6 * GIB)] * 2
    found = place(a_demand(memory=6 * GIB), free(a_gpu(0), holds=held), LIMITS)
    assert found.reason is Reason.GPU_MEMORY
    assert why(found) == "needs 6144M of GPU memory; GPU 0 has 4096M left"


def test_strangers_memory_is_taken_off_and_named():
    seen = {0: Reading(gpu=0, used=12 * GIB, external=12 * GIB)}
    found = place(a_demand(5000), free(a_gpu(0), readings=seen), LIMITS)
    assert found.reason is Reason.GPU_EXTERNAL_USE
    assert why(found) == (
        "needs 8192M of GPU memory; GPU 0 has 4096M left, because processes outside fgsched hold 12288M"
    )


def test_a_type_is_any_part_of_the_model_whatever_its_dashes():
    gpus = free(a_gpu(0, model="Tesla V100-SXM2"), a_gpu(1, model="NVIDIA A100 80GB"))
    assert place(a_demand(5000, gpu_type="a100_80"), gpus, LIMITS)[0].gpu == 1
    assert place(a_demand(5000, gpu_type="v100 sxm"), gpus, LIMITS)[0].gpu == 0


def test_a_drained_card_takes_nobody():
    found = place(a_demand(5000), free(a_gpu(0, state=GpuState.DRAINED)), LIMITS)
    assert found == Shortfall(Reason.GPU_DRAINED, "cards", need=1, remaining=0, total=1)


def test_no_more_jobs_on_a_card_than_the_site_allows():
    held = [Hold(gpu=0, share=1000, memory=GIB)] * 4
    few = HostLimits(cpus=9, host_memory=1, max_jobs_per_gpu=4)
    found = place(a_demand(1000), free(a_gpu(0), holds=held), few)
    assert found.reason is Reason.GPU_MAX_JOBS


def test_a_card_being_cleaned_is_the_reason_when_it_is():
    cleaning = rooms([a_gpu(0)], [(Hold(gpu=0, share=5000, memory=GIB), True)], {})
    assert place(a_demand(WHOLE), cleaning, LIMITS).reason is Reason.GPU_CLEANING


shares = st.integers(1, WHOLE)


@given(asked=st.lists(st.tuples(shares, st.integers(0, 16 * GIB)), max_size=30), gpus=st.integers(1, 5))
def test_no_card_is_ever_given_out_twice(asked, gpus):
    left = free(*(a_gpu(index) for index in range(gpus)))
    for share, memory in asked:
        found = place(a_demand(share, memory), left, LIMITS)
        if isinstance(found, Shortfall):
            continue
        left = [room.less(found[0]) if room.gpu.index == found[0].gpu else room for room in left]
    assert all(room.share >= 0 and room.memory >= 0 for room in left)


@given(share=shares, taken=st.lists(shares, min_size=1, max_size=4))
def test_what_is_refused_really_does_not_fit(share, taken):
    gpus = [Room(a_gpu(index), WHOLE - one, 16 * GIB) for index, one in enumerate(taken)]
    found = place(a_demand(share), gpus, LIMITS)
    fits = any(room.share >= share for room in gpus)
    assert isinstance(found, Shortfall) is not fits


@pytest.mark.parametrize("state", [GpuState.SUSPECT, GpuState.DOWN])
def test_cards_in_doubt_take_nobody(state):
    assert isinstance(place(a_demand(1), free(a_gpu(0, state=state)), LIMITS), Shortfall)


def test_a_stranger_is_blamed_only_where_the_bytes_would_fit_without_him():
    seen = {0: Reading(gpu=0, used=GIB, external=GIB)}
    gpus = free(a_gpu(0), holds=[Hold(gpu=0, share=100, memory=10 * GIB)], readings=seen)
    assert place(a_demand(100, 6 * GIB), gpus, LIMITS).reason is Reason.GPU_EXTERNAL_USE
    assert place(a_demand(100, 7 * GIB), gpus, LIMITS).reason is Reason.GPU_MEMORY


def test_whoever_asks_for_bytes_that_are_there_lacks_the_share_and_no_stranger_is_blamed():
    gpus = [Room(a_gpu(0, memory=40 * GIB), 1500, 15 * GIB), Room(a_gpu(1), 0, 0)]
    found = place(a_demand(memory=8 * GIB), gpus, LIMITS)
    assert (found.reason, found.what, found.gpu) == (Reason.RESOURCES, "share", 0)
    assert why(found) == "needs 0.2 of one GPU; GPU 0 has 0.15 left"


def test_cleaning_is_blamed_only_where_it_would_help():
    held = [(Hold(gpu=0, share=5000, memory=GIB), True), (Hold(gpu=1, share=5000, memory=GIB), False)]
    gpus = rooms([a_gpu(0), a_gpu(1)], held, {})
    assert place(a_demand(WHOLE), gpus, LIMITS).reason is Reason.GPU_CLEANING
    assert place(a_demand(WHOLE, gpus=2), gpus, LIMITS).reason is Reason.RESOURCES


def test_a_whole_card_is_never_called_scattered():
    held = [Hold(gpu=0, share=5000, memory=GIB), Hold(gpu=1, share=2500, memory=GIB)]
    found = place(a_demand(WHOLE), free(a_gpu(0), a_gpu(1), holds=held), LIMITS)
    assert (found.reason, found.gpu, found.remaining, found.total) == (Reason.RESOURCES, 1, 7500, 12_500)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("", [0, 1, 2]),
        ("a100", [0, 1]),
        ("a100&nvlink", [0]),
        ("nv_link|v100", [0, 2]),
        ("h100|a100&pcie", []),
    ],
)
def test_a_type_can_be_terms_of_models_and_features(wanted, expected):
    gpus = [
        a_gpu(0, model="NVIDIA A100 80GB", features=("nvlink",)),
        a_gpu(1, model="NVIDIA A100 80GB"),
        a_gpu(2, model="Tesla V100"),
    ]
    assert [gpu.index for gpu in gpus if is_of_type(gpu, wanted)] == expected
