"""Which cards a job of several gets, by how near they are to each other."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import GIB, LIMITS, a_demand, a_gpu
from fgsched.domain.job import WHOLE, Hold, Near
from fgsched.scheduling.placement import nearest, place, rooms


def linked(count, *ties):
    """Cards of which some are joined: (one, other, how near)."""
    near = {index: {} for index in range(count)}
    for one, other, how in ties:
        near[one][other] = near[other][one] = int(how)
    return [replace(a_gpu(index), links=tuple(sorted(near[index].items()))) for index in near]


def group(number, *indices, how=Near.NVLINK):
    return [(one, other, how) for one in indices for other in indices if one < other][: number or None]


def given_to(gpus, count, held=()):
    found = place(a_demand(count * WHOLE if count == 1 else WHOLE, gpus=count), free(gpus, held), LIMITS)
    return [hold.gpu for hold in found]


def free(gpus, held=()):
    return rooms(gpus, [(Hold(gpu=index, share=WHOLE, memory=16 * GIB), False) for index in held], {})


def test_without_links_cards_are_given_in_order():
    assert given_to(linked(4), 2) == [0, 1]


def test_two_cards_that_nvlink_joins_are_given_together():
    assert given_to(linked(4, (1, 3, Near.NVLINK)), 2) == [1, 3]


def test_nvlink_is_nearer_than_a_switch_and_a_switch_than_a_socket():
    gpus = linked(6, (0, 1, Near.SOCKET), (2, 3, Near.SWITCH), (4, 5, Near.NVLINK))
    assert given_to(gpus, 2) == [4, 5]
    assert given_to(gpus, 2, held=[5]) == [2, 3]
    assert given_to(gpus, 2, held=[5, 2]) == [0, 1]


def test_the_slowest_way_counts_first():
    gpus = linked(6, (0, 1, Near.NVLINK), *group(0, 3, 4, 5, how=Near.SWITCH))
    assert given_to(gpus, 3) == [3, 4, 5]


def test_one_slow_way_spoils_two_fast_ones():
    gpus = linked(6, (0, 1, Near.NVLINK), (0, 2, Near.NVLINK), *group(0, 3, 4, 5, how=Near.SOCKET))
    assert nearest(gpus, 3) == [3, 4, 5]


def test_of_equal_groups_the_one_with_the_fewest_other_ties_is_taken():
    gpus = linked(5, *group(0, 0, 1, 2), (3, 4, Near.NVLINK))
    assert nearest(gpus, 2) == [3, 4]


def test_a_pair_is_not_taken_out_of_a_group_of_four_if_there_is_a_pair():
    gpus = linked(6, *group(0, 0, 1, 2, 3), (4, 5, Near.NVLINK))
    assert given_to(gpus, 2) == [4, 5]
    assert given_to(gpus, 4) == [0, 1, 2, 3]


def test_one_whole_card_is_not_taken_out_of_a_pair_if_there_is_a_single_one():
    gpus = linked(4, (0, 1, Near.NVLINK), (2, 3, Near.NVLINK))
    assert given_to(gpus, 1, held=[3]) == [2]


def test_a_link_to_a_card_that_the_host_does_not_give_out_is_nothing():
    gpus = [replace(a_gpu(0), links=((7, 3),)), a_gpu(1), a_gpu(2)]
    assert nearest(gpus, 2) == [0, 1]


ties = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from(Near)).filter(
        lambda tie: tie[0] != tie[1]
    )
)


@given(ties=ties, number=st.integers(1, 8))
def test_every_group_has_as_many_different_cards_as_were_asked_for(ties, number):
    found = nearest(linked(7, *ties), number)
    assert len(found) == len(set(found)) == min(number, 7)


@given(ties=ties)
def test_no_two_other_cards_are_nearer_than_the_two_that_are_given(ties):
    gpus = linked(7, *ties)
    near = {gpu.index: dict(gpu.links) for gpu in gpus}
    one, other = nearest(gpus, 2)
    assert near[one].get(other, 0) == max(max(by.values(), default=0) for by in near.values())
