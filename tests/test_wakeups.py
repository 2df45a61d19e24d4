"""Whatever makes a job able to start wakes a turn: a job on a quiet host does not wait for the next event."""

import pytest

from builders import World, a_demand, a_gpu, a_result, full_disk
from fgsched.controller.turn import HostShort
from fgsched.domain.job import WHOLE, Demand, HostLimits
from fgsched.domain.policy import Limits, Partition, Policy, PreemptRule, UserPolicy, Weights
from fgsched.domain.states import JobState
from fgsched.scheduling.preemption import REQUEUE

_MOST = 400  # turns
_PLAIN = Policy(weights=Weights(fairshare=0, age=0))


def a_host(cpus=4, *, policy=_PLAIN):
    world = World([a_gpu(0)], limits=HostLimits(cpus=cpus, host_memory=2**50))
    world.engine.site.policy = policy
    return world


def at_once(world, cpus, **more):
    """Submit a job and return its id."""
    world.submit([Demand(cpus=cpus)], **more)
    world.settle()
    return len(world.store.open_jobs())


def sleep(world):
    """Let the time pass until the engine asks for a turn; return the seconds."""
    pause = world.engine.due(world.now)
    assert pause is not None, "nothing wakes the controller"
    world.now += pause - 1  # a turn takes one second
    world.turn()
    return pause


def starts_by_itself(world, job_id, *, within):
    """Tell whether a job starts in the next `within` seconds although nothing happens."""
    latest = world.now + within
    for _ in range(_MOST):
        assert world.job(job_id).state is JobState.PENDING
        sleep(world)
        assert world.now <= latest + 1
        if world.job(job_id).state is not JobState.PENDING:
            return True
    return False


# -- what becomes true without an event: (host, job, seconds within which it starts) ---------------


def a_begin_time():
    world = a_host()
    return world, at_once(world, 1, begin=int(world.now) + 500), 500


def the_pause_after_a_shortage():
    world = a_host()
    world.submit([Demand(cpus=1)])
    world.turn(HostShort(1, 1, "no memory"))
    return world, 1, 500


def a_second_job_that_is_late():
    """The first waiting job counts on the end of one job; with a second one late, there is room beside it."""
    world = a_host()
    for limit in (50, 300, 0):
        at_once(world, 1, time_limit=limit)
    at_once(world, 2)
    waits = at_once(world, 1)
    return world, waits, 310


def an_age_that_counts_no_more():
    """The first waiting job has reached its greatest age, and the next one overtakes it."""
    policy = Policy(weights=Weights(fairshare=0, age=1000, max_age=2000))
    world = a_host(policy=policy)
    for _ in range(3):
        at_once(world, 1)
    at_once(world, 2, nice=300)
    world.now += 1000
    waits = at_once(world, 1)
    return world, waits, 1500


def a_fair_share_that_has_changed():
    """Bob has used the host, then Ann's running job uses more of it, and his job comes before hers."""
    policy = Policy(weights=Weights(fairshare=1000, age=0))
    world = a_host(policy=policy)
    world.submit([a_demand(WHOLE)], user="bob")
    world.settle()
    world.now += 600
    world.host.finish(1, 1, a_result(started_at=1002.0, ended_at=world.now))
    world.settle()
    world.submit([a_demand(WHOLE, cpus=1), Demand(cpus=1), Demand(cpus=1)])
    world.settle()
    world.submit([Demand(cpus=2)])
    world.settle()
    world.submit([Demand(cpus=1)], user="bob")
    world.settle()
    return world, 6, 700


def a_quota_of_which_the_use_decays():
    policy = Policy(
        weights=Weights(fairshare=0, age=0, half_life=1000),
        users=(UserPolicy(name="ann", limits=Limits(gpu_seconds=500)),),
    )
    world = a_host(policy=policy)
    world.submit([a_demand(WHOLE)], time_limit=400)
    world.settle()
    world.now += 400
    world.host.finish(1, 1, a_result(started_at=1002.0, ended_at=world.now))
    world.settle()
    world.submit([a_demand(WHOLE)], time_limit=300)
    world.settle()
    return world, 2, 1300


def two_partitions(*, exempt):
    night = Partition(name="night", preempt_rule=PreemptRule(REQUEUE, 0, exempt))
    day = Partition(name="day", preempt=("night",), is_default=False)
    return Policy(partitions=(day, night), weights=Weights(fairshare=0, age=0))


CAUSES = [
    a_begin_time,
    the_pause_after_a_shortage,
    a_second_job_that_is_late,
    an_age_that_counts_no_more,
    a_fair_share_that_has_changed,
    a_quota_of_which_the_use_decays,
]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_job_that_time_alone_makes_able_to_start_starts_without_an_event(cause):
    world, job_id, within = cause()
    assert starts_by_itself(world, job_id, within=within)


@pytest.mark.parametrize("cause", CAUSES)
def test_also_after_a_turn_that_could_not_be_stored(cause):
    """The index of times is made anew from the queue then."""
    world, job_id, within = cause()
    with full_disk(world):
        sleep(world)
    assert starts_by_itself(world, job_id, within=within)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_job_may_preempt_as_soon_as_the_time_that_exempts_the_other_is_over(is_full):
    world = a_host(1, policy=two_partitions(exempt=500))
    at_once(world, 1, partition="night")
    at_once(world, 1, partition="day")
    if is_full:
        with full_disk(world):
            world.turn()
    while world.job(1).preemption is None:
        assert world.now < 1510
        sleep(world)


def test_what_clients_ask_meanwhile_does_not_put_off_the_turn():
    world, _, _ = an_age_that_counts_no_more()
    first = world.engine.due(world.now)
    assert world.engine.due(world.now + 20) == first - 20
    assert world.engine.due(world.now - 3600) == first, "the clock was set back"


def test_a_host_on_which_only_jobs_of_one_class_wait_sleeps():
    world = a_host(1)
    at_once(world, 1)
    for _ in range(3):
        at_once(world, 1)
    assert world.engine.due(world.now) is None
