"""Use that decays, and what shares make of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgsched.domain.policy import ChargeAccount, Policy, UserPolicy
from fgsched.scheduling.queue import Usage, accrued, by_scope, factors, standings

WEEK = 604_800.0
times = st.floats(0, 1e7)


def test_after_a_half_life_half_is_left():
    used = Usage(100.0, at=50.0)
    assert used.now(50.0, WEEK) == 100
    assert used.now(50.0 + WEEK, WEEK) == pytest.approx(50)
    assert used.now(0.0, WEEK) == 100, "a clock that was set back makes nothing grow"
    assert used.plus(25.0, 50.0 + WEEK, WEEK) == Usage(75.0, at=50.0 + WEEK)


def test_what_is_used_evenly_decays_while_it_is_used():
    """As the sum of many short pieces does."""
    pieces = sum(Usage(2.0 * 0.1, at=second / 10).now(200.0, 100.0) for second in range(500, 1500))
    assert accrued(2.0, 50.0, 150.0, now=200.0, half_life=100.0) == pytest.approx(pieces, rel=0.001)


@given(start=times, lasts=times, later=times, gpus=st.floats(0, 64))
def test_use_is_never_more_than_was_used_and_nothing_before_it_begins(start, lasts, later, gpus):
    end = start + lasts
    used = accrued(gpus, start, end, now=end + later, half_life=WEEK)
    assert 0 <= used <= gpus * lasts * (1 + 1e-9) + 1e-3
    assert accrued(gpus, start, end, now=start, half_life=WEEK) == 0


@given(start=times, first=times, second=times, rest=times)
def test_a_job_that_is_charged_in_two_parts_is_charged_the_same(start, first, second, rest):
    middle, end = start + first, start + first + second
    whole = accrued(1.0, start, end, now=end + rest, half_life=WEEK)
    parts = accrued(1.0, start, middle, now=end + rest, half_life=WEEK) + accrued(
        1.0, middle, end, now=end + rest, half_life=WEEK
    )
    assert math.isclose(whole, parts, rel_tol=1e-6, abs_tol=1e-3)


def factor(used, policy=None, owners=()):
    return factors(standings(used, owners, policy or Policy()))


def test_equal_users_with_equal_use_have_used_just_their_part():
    found = factor({("", "ann"): 10.0, ("", "bob"): 10.0})
    assert found == {("", "ann"): 0.5, ("", "bob"): 0.5}


def test_who_used_nothing_has_all_and_who_used_all_has_least():
    found = factor({("", "ann"): 10.0}, owners=[("", "bob")])
    assert found == {("", "ann"): 0.25, ("", "bob"): 1.0}


def test_twice_the_shares_bear_twice_the_use():
    policy = Policy(users=(UserPolicy(name="ann", shares=2),))
    found = factor({("", "ann"): 20.0, ("", "bob"): 10.0}, policy)
    assert found == pytest.approx({("", "ann"): 0.5, ("", "bob"): 0.5})


def test_an_account_that_used_much_lowers_all_its_users():
    policy = Policy(accounts=(ChargeAccount(name="lab"), ChargeAccount(name="shop")))
    used = {("lab", "ann"): 100.0, ("lab", "eve"): 0.0, ("shop", "bob"): 10.0}
    found = factor(used, policy)
    assert found["shop", "bob"] > found["lab", "eve"] > found["lab", "ann"]


def test_an_account_stands_before_its_users_and_is_their_sum():
    rows = standings({("lab", "bob"): 30.0, ("lab", "ann"): 10.0}, [("", "eve")], Policy())
    assert [(row.account, row.user, row.seconds) for row in rows] == [
        ("", "", 0),
        ("", "eve", 0),
        ("lab", "", 40),
        ("lab", "ann", 10),
        ("lab", "bob", 30),
    ]
    assert by_scope({("lab", "bob"): 30.0, ("", "bob"): 1.0}) == {
        **{("account", "lab"): 30, ("user", "bob"): 31},
        ("account", ""): 1,
    }


uses = st.dictionaries(
    st.tuples(st.sampled_from(["", "lab"]), st.sampled_from(["ann", "bob", "eve"])),
    st.floats(0, 1e9),
    min_size=1,
)


@given(used=uses, more=st.floats(1, 1e9), owner=st.sampled_from([("", "ann"), ("lab", "bob")]))
def test_a_factor_is_from_0_to_1_and_more_use_never_raises_it(used, more, owner):
    before = factor(used, owners=[owner])
    after = factor(used | {owner: used.get(owner, 0.0) + more}, owners=[owner])
    assert all(0 <= one <= 1 for one in (*before.values(), *after.values()))
    assert after[owner] <= before[owner] + 1e-9
