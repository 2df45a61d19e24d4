"""Shares of compute among rivals on a simulated card, by the driver's measure and without it."""

import random

import pytest

from simulated import error, mean, windows

pytestmark = pytest.mark.compiler
SHARES = (1000, 2500, 5000, 7500, 9000)
TWO_SECONDS = 2_000_000
MEASURES = ["nvml", "events", "eager"]

PAIRS = [
    ("5000,hard,1,1000", "5000,hard,1,1000"),
    ("3000,hard,1,1000", "7000,hard,1,1000"),
    ("3000,fair,1,10", "7000,fair,1,10"),
    ("1000,hard,1,1000", "9000,hard,1,1000"),
    ("5000,fair,1,10000", "5000,fair,1,10"),
    ("5000,fair,8,500", "5000,fair,1,500"),
    ("2500,hard,8,500", "7500,hard,1,500"),
    ("5000,hard,1,3000", "5000,hard,1,3000"),
]

CHANGES_COST = "switch=250"  # µs, as on an H100
ON_A_CARD = [  # a small share, a large one, and the least that both have together there
    ("2500,hard,1,171,sync=4", "7500,hard,1,171,sync=4", 0.75),
    ("2500,hard,1,496,sync=10", "7500,hard,1,496,sync=10", 0.9),
    ("1000,hard,1,100", "9000,hard,1,1000", 0.95),
    ("1000,fair,1,10", "9000,fair,1,10", 0.95),
]

A_TURN_OR_TWO = [  # kernels as long as a turn of the card or two: 2 ms
    ("5000,hard,1,2000", "5000,hard,1,3000"),
    ("7000,hard,1,2000", "2000,hard,2,100000"),
    ("7000,hard,1,5000", "2000,hard,1,100000"),
    ("2500,hard,2,2000", "5000,hard,2,5000"),
    ("2500,hard,1,2000", "5000,hard,8,3000"),
    ("6000,hard,4,5000", "4000,hard,1,2000"),
    ("2000,hard,1,100", "6000,hard,2,1500"),
    ("1000,hard,8,10000", "7000,hard,1,3000", "2000,hard,4,2000"),
]


def share_of(job):
    return int(job.split(",")[0])


@pytest.mark.parametrize("measured_by", MEASURES)
@pytest.mark.parametrize("jobs", PAIRS)
def test_two_jobs_that_compete_have_their_shares(simulate, jobs, measured_by):
    rows = simulate(42, measured_by, *jobs)
    for at, job in enumerate(jobs):
        assert error(rows, at, share_of(job)) <= 1


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize(("small", "large", "least"), ON_A_CARD)
def test_a_small_share_is_had_and_few_changes_between_the_jobs_are_paid_for(
    simulate, small, large, least, measured_by
):
    """The large share pays for them: the card gives equal turns to those that have work."""
    rows = simulate(32, measured_by, CHANGES_COST, small, large)
    had = [mean(windows(rows, at)) for at in range(2)]
    assert abs(had[0] - share_of(small) / 10_000) <= 0.01
    assert had[1] <= share_of(large) / 10_000 + 0.01
    assert sum(had) >= least


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("other", [10, 100, 1000, 10_000])
@pytest.mark.parametrize("kernel", [10, 100, 1000, 10_000])
def test_kernels_of_any_two_lengths_have_their_shares_and_hard_ones_no_more(
    simulate, kernel, other, measured_by
):
    for share in (1000, 2500, 5000):
        rows = simulate(22, measured_by, f"{share},hard,1,{kernel}", f"{10_000 - share},hard,1,{other}")
        for at, wanted in enumerate((share, 10_000 - share)):
            assert error(rows, at, wanted) <= 2
            assert max(windows(rows, at)) <= wanted / 10_000 + 0.03
            assert mean(windows(rows, at)) >= 0.95 * wanted / 10_000


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("jobs", A_TURN_OR_TWO)
def test_kernels_of_a_turn_or_two_have_their_shares_and_hard_ones_no_more(simulate, jobs, measured_by):
    rows = simulate(42, measured_by, *jobs)
    for at, job in enumerate(jobs):
        assert error(rows, at, share_of(job)) <= 3
        assert max(windows(rows, at)) <= share_of(job) / 10_000 + 0.03
        assert mean(windows(rows, at)) >= share_of(job) / 10_000 - 0.03


def made_up(seed):
    """Two to four hard jobs, whose shares are no more than the card, with kernels of 10 µs to 100 ms."""
    choose, left, jobs = random.Random(seed), 100, []
    count = choose.choice([2, 2, 2, 3, 4])
    for more in range(count - 1, -1, -1):
        share = choose.choice(
            [one for one in (10, 20, 25, 30, 40, 50, 60, 70, 80, 90) if one <= left - 10 * more]
        )
        left -= share
        kernel = choose.choice(
            [10, 30, 100, 300, 700, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 100_000]
        )
        jobs.append(f"{share * 100},hard,{choose.choice([1, 1, 1, 2, 4, 8])},{kernel}")
    return jobs


@pytest.mark.parametrize(
    ("measured_by", "most", "part"), [("nvml", 0.4, 0.99), ("events", 0.4, 0.98), ("eager", 0.4, 0.98)]
)
def test_most_jobs_of_forty_hosts_made_up_are_within_three_points(simulate, measured_by, most, part):
    errors = []
    for seed in range(40):
        jobs = made_up(seed)
        rows = simulate(42, measured_by, *jobs)
        errors += [error(rows, at, share_of(job)) for at, job in enumerate(jobs)]
    assert mean(errors) <= most
    assert sum(one <= 3 for one in errors) >= part * len(errors)


def nearest(kernel, share):
    """The least mean error, in points, over windows of ten seconds anywhere: kernels at even distances."""
    period, steps = kernel / share, 1000
    apart = 0.0
    for step in range(steps):
        begin = period * step / steps
        had = [moment // period * kernel + min(moment % period, kernel) for moment in (begin, begin + 10)]
        apart += abs((had[1] - had[0]) / 10 - share)
    return apart / steps * 100


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("share", SHARES)
def test_kernels_of_two_seconds_are_as_near_to_their_share_as_they_can_be(simulate, share, measured_by):
    had = [row[0] for row in simulate(402, measured_by, f"{share},hard,1,{TWO_SECONDS}")]
    at_any_moment = [mean(had[at : at + 100]) for at in range(20, len(had) - 100)]
    apart = mean([abs(part * 100 - share / 100) for part in at_any_moment])
    assert apart <= nearest(2, share / 10_000) + 0.3
    assert abs(mean(had) * 10_000 - share) <= 100, "what one window has too much the others have less"


@pytest.mark.parametrize("share", SHARES)
def test_no_second_kernel_starts_before_the_first_one_is_paid_for(simulate, share):
    """Nobody knows how long the first one takes while it runs."""
    had = [row[0] for row in simulate(42, "events", f"{share},hard,1,{TWO_SECONDS}")]
    for end in range(20, len(had)):
        assert sum(had[:end]) * 0.1 <= end * 0.1 * share / 10_000 + 2.05


@pytest.mark.parametrize("measured_by", ["nvml", "events", "eager"])
@pytest.mark.parametrize("kernel", [10, 100, 1000])
def test_short_kernels_have_their_share_beside_a_job_that_nobody_paces(simulate, kernel, measured_by):
    rows = simulate(42, measured_by, f"2500,hard,1,{kernel}", "5000,none,1,10000")
    assert error(rows, 0, 2500) <= 1


@pytest.mark.parametrize("measured_by", ["nvml", "events"])
@pytest.mark.parametrize("kernel", [2000, 3000, 10_000])
def test_long_kernels_have_their_share_beside_a_job_that_nobody_paces(simulate, kernel, measured_by):
    rows = simulate(42, measured_by, f"2500,hard,1,{kernel}", "5000,none,1,10000")
    assert error(rows, 0, 2500) <= 1


@pytest.mark.parametrize("measured_by", MEASURES)
def test_long_kernels_have_no_more_beside_a_job_that_nobody_paces_and_that_does_nothing(
    simulate, measured_by
):
    rows = simulate(22, measured_by, "2500,hard,1,10000", "5000,none,1,10000,wake=99000")
    assert error(rows, 0, 2500) <= 1


def test_a_kernel_that_is_mostly_short_does_not_hide_that_it_is_sometimes_long(simulate):
    """One in eight takes a hundred times as long: among rivals the events alone tell that only roughly."""
    rows = simulate(62, "events", "2500,hard,1,50,tail=5000", "5000,hard,1,1000")
    assert mean(windows(rows, 0)) <= 0.33
    assert error(rows, 1, 5000) <= 1


def test_caps_of_one_to_nine_come_out_as_one_to_eight_at_least(simulate):
    rows = simulate(42, "events", "1000,hard,1,1000", "9000,hard,1,1000")
    assert mean(windows(rows, 1)) >= 8 * mean(windows(rows, 0))
