"""What jobs are charged: once, with the step that gives back what they held, whatever happens between."""

import pytest

from builders import World, a_demand, a_gpu, a_result
from crashing import Power
from fgsched.domain.job import WHOLE
from fgsched.domain.policy import Policy, Weights
from fgsched.domain.states import JobState
from fgsched.scheduling.queue import Usage

OWNER = ("", "ann")


@pytest.fixture
def world():
    """A job of a whole card that has run for some seconds."""
    world = World([a_gpu(0), a_gpu(1)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    return world


def a_result_after(world, job_id, seconds):
    """The time passes as well: no job is charged for what is still to come."""
    started = world.job(job_id).started_at
    world.now = started + seconds
    return a_result(started_at=started, ended_at=started + seconds)


def charged(world):
    return world.store.kept.usage().get(OWNER, Usage())


def test_a_job_that_runs_counts_and_is_written_down_when_it_ends(world):
    started = world.job(1).started_at
    world.now = started + 100
    assert charged(world) == Usage()
    used = world.engine.charges.used(world.engine.jobtable, Policy(), world.now)
    assert used[OWNER] == pytest.approx(100, rel=0.001), "a little of it has decayed"
    world.host.finish(1, 1, a_result_after(world, 1, 100))
    world.turn()
    assert charged(world).seconds == pytest.approx(100, rel=0.001)
    assert charged(world).at == world.now, "decayed to the turn that charges"


def test_half_a_card_is_charged_by_half_and_no_card_not_at_all():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000), a_demand(cpus=2)])
    world.settle()
    for job_id in (1, 2):
        world.host.finish(job_id, 1, a_result_after(world, job_id, 100))
    world.turn()
    assert charged(world).seconds == pytest.approx(50, rel=0.001)


def test_memory_counts_where_it_is_more_than_the_share():
    world = World([a_gpu(0)])
    usable = a_gpu(0).usable
    world.submit([a_demand(1000, usable // 2)])
    world.settle()
    world.host.finish(1, 1, a_result_after(world, 1, 100))
    world.turn()
    assert charged(world).seconds == pytest.approx(50, rel=0.001)


@pytest.mark.parametrize("effects", range(4))
def test_a_crash_around_the_end_charges_once(world, effects):
    world.host.finish(1, 1, a_result_after(world, 1, 100))
    Power(world, effects).step(world.settle)
    assert world.job(1).state is JobState.COMPLETED
    assert charged(world).seconds == pytest.approx(100, rel=0.001)
    used = world.engine.charges.used(world.engine.jobtable, Policy(), charged(world).at)
    assert used[OWNER] == charged(world).seconds


def test_who_used_the_cards_comes_after_who_did_not():
    world = World([a_gpu(0)])
    world.engine.site.policy = Policy(weights=Weights(age=0, interval=1))
    world.submit([a_demand(WHOLE)])
    world.settle()
    jobtable = world.engine.jobtable
    world.engine.charges.bring_up_to_date(
        jobtable, world.engine.policy, world.gpus, world.limits, world.now + 500
    )
    assert jobtable.order.shares == {OWNER: 0.5}, "alone, she used just what is hers"
    assert jobtable.order.used["user", "ann"] > 400
