"""The share of compute on a simulated card, in virtual time: kernels of all lengths, rivals, idle time."""

import os
import random
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgshim import region
from simulated import error, mean, windows

pytestmark = pytest.mark.compiler
MS = 1_000_000
SHARES = (1000, 2500, 5000, 7500, 9000)


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("kernel", [10, 100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("share", SHARES)
def test_a_job_has_its_share_and_loses_nothing_of_it(simulate, share, kernel, measured_by):
    rows = simulate(22, measured_by, f"{share},hard,1,{kernel}")
    assert error(rows, 0, share) <= 3
    assert mean(windows(rows, 0)) >= 0.95 * share / 10_000


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("kernel", [10, 1000, 10_000])
@pytest.mark.parametrize("share", SHARES)
def test_it_is_there_within_two_seconds_and_stays(simulate, share, kernel, measured_by):
    rows = simulate(12, measured_by, f"{share},hard,1,{kernel}")
    for part in windows(rows, 0, length=1):
        assert abs(part - share / 10_000) <= 0.05


@pytest.mark.parametrize("processes", [2, 4, 8])
@pytest.mark.parametrize("kernel", [10, 100, 1000, 20_000])
def test_the_processes_of_a_job_have_one_budget(simulate, processes, kernel):
    rows = simulate(22, "nvml", f"2500,hard,{processes},{kernel}")
    assert error(rows, 0, 2500) <= 3
    assert mean(windows(rows, 0)) >= 0.95 * 0.25


def test_hard_jobs_leave_idle_what_nobody_was_given(simulate):
    jobs = ("1000,hard,1,1000", "2500,hard,1,100", "5000,hard,2,3000")
    rows = simulate(42, "nvml", *jobs)
    for at, share in enumerate((1000, 2500, 5000)):
        assert error(rows, at, share) <= 3


def test_fair_jobs_are_lent_what_nobody_was_given_by_their_shares(simulate):
    rows = simulate(42, "nvml", "1000,fair,1,1000", "2500,fair,1,100", "5000,fair,2,3000")
    had = [mean(windows(rows, at)) for at in range(3)]
    assert sum(had) >= 0.95
    for part, share in zip(had, (1000, 2500, 5000), strict=True):
        assert abs(part - share / 8500) <= 0.03


def test_a_fair_job_that_is_alone_has_the_card(simulate):
    rows = simulate(12, "events", "1000,fair,1,1000")
    assert min(windows(rows, 0, length=1)) >= 0.99


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("kernel", [10, 100, 1000, 10_000])
def test_what_was_lent_is_given_back_within_a_tenth_of_a_second(simulate, kernel, measured_by):
    owner = f"5000,fair,1,{kernel},wake=5000,to=9000"
    rows = simulate(12, measured_by, f"5000,fair,1,{kernel}", owner)
    before, after = [row[0] for row in rows[40:50]], [row[0] for row in rows[51:90]]
    assert min(before) >= 0.95, "while its neighbour sleeps"
    assert max(after) <= 0.75, "the hundred milliseconds after the neighbour woke are over"
    assert mean(after) <= 0.55
    assert min(row[0] for row in rows[92:]) >= 0.9, "the neighbour is gone"


@pytest.mark.parametrize("policy", ["hard", "fair"])
@pytest.mark.parametrize("idle", ["gap=90", "sync=20,gap=5000"])
def test_a_program_that_asks_for_less_than_its_share_is_not_held_back(simulate, policy, idle):
    kernel = 10 if idle == "gap=90" else 1000
    paced = simulate(12, "nvml", f"5000,{policy},1,{kernel},{idle}")
    free = simulate(12, "nvml", f"5000,none,1,{kernel},{idle}")
    assert mean(windows(paced, 0, length=1)) >= 0.99 * mean(windows(free, 0, length=1))


def test_short_and_long_kernels_of_one_program_come_to_its_share(simulate):
    rows = simulate(42, "nvml", "5000,hard,1,50,mix=20000")
    assert error(rows, 0, 5000) <= 3


# -- the budget by itself -------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(0, 50 * MS), st.integers(0, 30 * MS)), max_size=40)


@given(share=st.integers(1, 9999), steps=spans)
def test_no_more_is_granted_than_is_earned_and_saved(share, steps):
    """Whatever is launched and when: where launches wait their turn, the debt is at most one launch."""
    budget, now, most = region.Budget("hard", share), MS, 0
    for pause, cost in steps:
        now += pause
        if budget.wait(now) == 0:
            budget.charge(cost)
            most = max(most, cost)
        assert -most <= budget.level <= 10 * MS


@given(intervals=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100)), max_size=30))
def test_time_that_streams_share_counts_once_when_told_in_order(intervals):
    budget, covered = region.Budget("hard", 5000), set()
    for start, length in sorted(intervals, key=sum):
        covered |= set(range(max(start, max(covered, default=-1) + 1), start + length))
        budget.settle(start, start + length, 0, 10 * MS)
    assert budget.used == len(covered)


@given(share=st.integers(1, 9999), level=st.integers(-(2**63), 2**63 - 1), now=st.integers(0, 2**63))
def test_a_wait_is_never_longer_than_a_nap_whatever_the_region_says(share, level, now):
    budget = region.Budget("fair", share)
    budget.charge(max(-(2**62), min(2**62, level)))
    assert 0 <= budget.wait(now) <= 5 * MS


@given(seed=st.integers(), percent=st.integers(0, 10_000), start=st.integers(0, 10**9))
def test_no_content_of_a_region_disturbs_who_lends(tmp_path_factory, seed, percent, start):
    """The job can write to its budget whatever it likes."""
    noise = random.Random(seed)
    file = tmp_path_factory.mktemp("noise") / "region"
    head = region.pack(1, 1, [(0, f"GPU-{uuid.UUID(int=1)}", 1)], [("fair", 5000)])
    file.write_bytes(head + bytes(region.SIZE - len(head)))
    fd = region.open_region(file)
    borrowers = [region.Borrower(fd, 0), region.Borrower(fd, 1)]
    try:
        for turn in range(4):
            os.pwrite(fd, noise.randbytes(len(head) - 100), 100)
            for one in borrowers:
                one.look(start + turn * 25 * MS)
                one.measured(percent, start, start + turn * 25 * MS)
            region.lend(borrowers, start + turn * 25 * MS)
            assert all(0 <= one.lent <= 10_000 and 0 < one.scale <= 40_000 for one in borrowers)
    finally:
        os.close(fd)


def test_a_share_that_was_scribbled_over_is_waited_for_and_no_more():
    budget = region.Budget("hard", 0)
    budget.charge(5)
    assert 0 < budget.wait(MS) <= 5 * MS


def test_a_loan_ends_with_its_lease():
    budget = region.Budget("fair", 1000)
    budget.wait(MS)
    budget.charge(100 * MS)
    budget.lend(9000, 51 * MS)
    budget.wait(51 * MS)
    assert budget.level == -50 * MS
    budget.wait(101 * MS)
    assert budget.level == -45 * MS


def count(fd, head, used):
    """Write the ns that a fair job with half of the card has used. A budget begins with policy and share."""
    os.pwrite(fd, struct.pack("<Q", used), head.index(struct.pack("<II", 2, 5000)) + 72)


def test_a_measurement_of_time_in_which_others_used_the_card_is_ignored(tmp_path):
    """The driver gives each of its samples to one process, so it may name a job that had a half with all."""
    file = tmp_path / "region"
    head = region.pack(1, 1, [(0, f"GPU-{uuid.UUID(int=1)}", 1)], [("fair", 5000)])
    file.write_bytes(head + bytes(region.SIZE - len(head)))
    fd = region.open_region(file)
    try:
        for shared, mechanism in ((False, "nvml"), (True, "events")):
            borrower = region.Borrower(fd, 0)
            for step in range(1, 60):
                now = step * 25 * MS
                count(fd, head, now // 2)
                borrower.look(now)
                if shared and step == 30:
                    borrower.shared(now)
                if step % 12 == 0:
                    borrower.measured(9900, now - 300 * MS, now)
                region.lend([borrower], now)
            assert borrower.mechanism == mechanism
            assert (borrower.scale > 10_000) is not shared
    finally:
        os.close(fd)
