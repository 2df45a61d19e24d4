"""Jobs whose arbiter has ended keep the GPU to the windows of their shares; without any, to their budgets."""

import os
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgshim import region
from simulated import mean, windows

pytestmark = pytest.mark.compiler
MS = 1_000_000
SHARES = (1000, 2500, 5000, 7500, 9000)
ENDED = "ends=0"  # the arbiter gave each job its window, and ended


def had_by(rows):
    """Per cent of the GPU that each job had, without the first two seconds."""
    return [100 * mean(windows(rows, at, length=1)) for at in range(len(rows[0]))]


@pytest.mark.parametrize("mode", [ENDED, "budget"])
@pytest.mark.parametrize("kernel", [10, 100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("share", SHARES)
def test_a_hard_job_alone_has_its_share_and_no_more(take_turns, share, kernel, mode):
    rows, _ = take_turns(22, mode, f"{share},hard,1,{kernel}")
    assert share / 100 - 5 <= had_by(rows)[0] <= share / 100 + 1


@pytest.mark.parametrize("mode", [ENDED, "budget"])
@pytest.mark.parametrize(("processes", "least"), [(2, 19), (8, 6)])
@pytest.mark.parametrize("kernel", [10, 100, 1000, 20_000])
def test_the_processes_of_a_job_have_one_budget(take_turns, processes, least, kernel, mode):
    """They launch at once, and their budget pays for the changes between them."""
    rows, _ = take_turns(22, mode, f"2500,hard,{processes},{kernel}")
    assert least <= had_by(rows)[0] <= 26.5


SHORT = [
    ("2500,hard,1,171,sync=4", "7500,hard,1,171,sync=4"),
    ("1000,hard,1,100", "9000,hard,1,1000"),
    ("2500,hard,1,5", "7500,hard,1,496,sync=10"),
    ("2500,hard,1,200,streams=16", "2500,hard,1,50", "2500,hard,1,171,sync=4", "2500,hard,1,171"),
    ("7500,hard,1,5000", "2500,hard,1,50"),
]


@pytest.mark.parametrize("jobs", SHORT)
def test_jobs_of_an_arbiter_that_has_ended_have_the_gpu_one_after_another(take_turns, jobs):
    """By their budgets alone, 25 and 75 had 11 and 60 per cent: the GPU changes between them all the time."""
    rows, _ = take_turns(14, ENDED, *jobs)
    for part, job in zip(had_by(rows), jobs, strict=True):
        share = int(job.split(",")[0]) / 100
        assert share - 6 <= part <= share + 1


def test_the_end_of_the_arbiter_is_hardly_seen(take_turns):
    rows, _ = take_turns(14, "ends=7000", *SHORT[0])
    for row in rows[75:]:
        assert row[0] == pytest.approx(0.25, abs=0.06)
        assert row[1] == pytest.approx(0.75, abs=0.06)


def test_fair_jobs_of_an_arbiter_that_has_ended_have_what_no_job_was_given(take_turns):
    rows, _ = take_turns(14, ENDED, "5000,fair,1,171", "2500,fair,1,171")
    large, small = had_by(rows)
    assert large >= 60
    assert small >= 28
    rows, _ = take_turns(14, ENDED, "1000,fair,1,171")
    assert had_by(rows)[0] >= 95


@pytest.mark.parametrize("mode", [ENDED, "budget"])
def test_long_kernels_have_no_more_than_their_share(take_turns, mode):
    """Their windows pass while they run: they pay with later ones."""
    rows, _ = take_turns(62, mode, "5000,hard,1,500000", "5000,hard,1,171,sync=4")
    long, short = had_by(rows)
    assert 10 <= long <= 51
    assert 25 <= short <= 51


@pytest.mark.parametrize("mode", [ENDED, "budget"])
def test_a_program_that_pauses_has_most_of_its_share(take_turns, mode):
    rows, _ = take_turns(12, mode, "5000,hard,1,1000,sync=20,pause=5000")
    assert 42 <= had_by(rows)[0] <= 51


# -- the windows ----------------------------------------------------------------------------------------


@given(
    jobs=st.lists(st.tuples(st.sampled_from(["hard", "fair"]), st.integers(1, 9999)), min_size=1, max_size=8)
)
def test_the_windows_of_all_jobs_lie_one_behind_another_in_the_period(jobs):
    arbiter = region.Arbiter()
    places = [arbiter.join(policy, share) for policy, share in jobs]
    given_out, end = sum(share for _, share in jobs), 0
    for place, (_, share) in zip(places, jobs, strict=True):
        start, length = arbiter.window(place)
        assert start == end
        end = start + length
        assert length >= share * 10_000 // max(10_000, given_out)
    assert end <= 10_000
    if given_out <= 10_000 and any(policy == "fair" for policy, _ in jobs):
        assert end > 10_000 - len(jobs), "fair jobs divide the rest"


@given(start=st.integers(0, 9999), length=st.integers(1, 10_000), now=st.integers(0, 2**62))
def test_a_window_is_open_for_its_part_of_each_period(start, length, now):
    wait, left = region.window_wait(start, length, now)
    assert (wait == 0) == (left > 0)
    assert wait <= 20 * MS - length * 2000
    assert left <= length * 2000
    assert region.window_wait(start, length, now + wait)[0] == 0


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
def test_time_in_which_several_processes_have_work_counts_once_when_counted_in_order(intervals):
    budget, covered = region.Budget("hard", 5000), set()
    for start, length in sorted(intervals, key=sum):
        covered |= set(range(max(start, max(covered, default=-1) + 1), start + length))
        budget.count(start, start + length)
    assert budget.used == len(covered)


@given(
    share=st.integers(1, 9999),
    level=st.integers(-(2**63), 2**63 - 1),
    now=st.integers(0, 2**63),
    window=st.integers(0, 2**32 - 1),
)
def test_a_wait_is_never_longer_than_a_nap_whatever_the_region_and_the_page_say(share, level, now, window):
    budget = region.Budget("fair", share)
    budget.charge(max(-(2**62), min(2**62, level)))
    assert 0 <= budget.wait(now, window) <= 5 * MS


def test_a_hard_job_earns_no_more_than_its_share_whatever_its_page_says():
    budget = region.Budget("hard", 1000)
    budget.wait(MS)
    budget.charge(100 * MS)
    budget.wait(101 * MS, 10_000)
    assert budget.level == -90 * MS


@given(seed=st.integers())
def test_no_content_of_a_region_disturbs_who_reads_it(tmp_path_factory, seed):
    """The job can write to its account whatever it likes."""
    file = tmp_path_factory.mktemp("noise") / "region"
    head = region.pack(1, 1, [(0, f"GPU-{uuid.UUID(int=1)}", 1)], [("fair", 5000)])
    file.write_bytes(head + bytes(region.SIZE - len(head)))
    fd = region.open_region(file)
    try:
        with file.open("r+b") as region_file:
            region_file.seek(100)
            region_file.write(random.Random(seed).randbytes(len(head) - 100))
        account = region.Account(fd, 0)
        account.read()
        assert 0 <= account.flying(MS) <= 16
        assert account.policy in region.POLICIES
    finally:
        os.close(fd)


def test_a_share_that_was_scribbled_over_is_waited_for_and_no_more():
    budget = region.Budget("hard", 0)
    budget.charge(5)
    assert 0 < budget.wait(MS) <= 5 * MS
