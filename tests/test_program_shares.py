"""The programs of a site that run at a time are shared among the users for whom they run."""

from hypothesis import given
from hypothesis import strategies as st

from fgsched.hooks.programs import HookRun
from fgsched.hooks.runner import MOST, WaitingRequests


def a_run(owner, number=0):
    return HookRun(path="/prolog", seconds=60, environment={}, owner=owner, number=number)


def started(waiting):
    runs = []
    while run := waiting.next():
        runs.append(run)
    return runs


def test_a_user_with_many_slow_programs_leaves_slots_for_another_user():
    waiting = WaitingRequests()
    for number in range(150):
        waiting.add(a_run(1, number))
    assert [run.number for run in started(waiting)] == list(range(MOST // 2))
    waiting.add(a_run(2))
    assert [run.owner for run in started(waiting)] == [2]
    waiting.end(1)
    assert started(waiting) == [], "the first user has more than a fair share"


def test_a_user_who_comes_when_all_slots_are_taken_starts_at_once():
    waiting = WaitingRequests()
    for owner in range(1, 6):
        for _ in range(150):
            waiting.add(a_run(owner))
        started(waiting)
    waiting.add(a_run(6))
    assert [run.owner for run in started(waiting)] == [6]


def test_the_programs_of_a_user_start_in_their_order_and_all_of_them_start():
    waiting = WaitingRequests()
    for number in range(150):
        waiting.add(a_run(1, number))
    numbers = []
    while runs := started(waiting):
        numbers += [run.number for run in runs]
        for run in runs:
            waiting.end(run.owner)
    assert numbers == list(range(150))


@given(st.lists(st.integers(1, 9), max_size=400), st.data())
def test_nobody_with_a_few_programs_waits_while_the_reserve_lasts(owners, data):
    waiting, running = WaitingRequests(), []
    for owner in owners:
        waiting.add(a_run(owner))
        running += started(waiting)
        assert len(running) <= MOST + MOST // 2
        if running and data.draw(st.booleans()):
            waiting.end(running.pop(0).owner)
    while running:
        waiting.end(running.pop(0).owner)
        running += started(waiting)
    assert waiting.next() is None
