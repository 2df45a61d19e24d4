"""Who makes room for whom: the choice, the steps, the crashes, and the same with real processes."""

import os
import signal
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import GIB, LIMITS, World, a_demand, a_gpu, a_job, a_result
from crashing import Power, kill_controller
from fgsched.config.load import check_preemption
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.jobs import RunningJobHandlers
from fgsched.controller.starting import _scene, outlook
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.job import WHOLE, Demand, Hold, Preemption
from fgsched.domain.policy import (
    CANCEL,
    MODES,
    OFF,
    REQUEUE,
    SUSPEND,
    Limits,
    Partition,
    Policy,
    PreemptRule,
    Qos,
    Weights,
)
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Outlook
from fgsched.lifecycle.transitions import finish, is_requeued
from fgsched.protocol import ResumeJobs
from fgsched.scheduling.limits import LimitedUser
from fgsched.scheduling.placement import HostRoom, rooms
from fgsched.scheduling.planner import Snapshot
from fgsched.scheduling.preemption import Occupant, candidates, victims, without
from fgsched.scheduling.queue import PriorityBasis, Queue, QueuedJob
from fgsched.scheduling.reservations import Running
from live_host import living

NOW = 10_000.0


def a_policy(mode=REQUEUE, *, grace=0, exempt=0, **more):
    """Jobs of day come before those of night, which make room in this way."""
    day = Partition(name="day", preempt=("night",), is_default=False)
    night = Partition(name="night", preempt_rule=PreemptRule(mode, grace, exempt), **more)
    return Policy(partitions=(day, night))


def a_scene(jobs, waits, *, policy=None, gpus=2, cpus=64):
    """`jobs`: (id, gpu, share, memory, started at, partition) of those that run."""
    host_gpus = [a_gpu(index) for index in range(gpus)]
    running = [
        Running(
            a_demand(share, memory), (Hold(gpu=gpu, share=share, memory=memory),), NOW + 9e5, where, id=one
        )
        for one, gpu, share, memory, _, where in jobs
    ]
    occupants = [Occupant(job, since, True) for job, (*_, since, _) in zip(running, jobs, strict=True)]
    free = rooms(host_gpus, [(job.holds[0], False) for job in running], {})
    host = HostRoom(cpus - len(jobs), 2**40)
    queue = Queue(waits, PriorityBasis(policy=policy or a_policy(), gpus=gpus * WHOLE))
    return Snapshot(queue, running, free, host, LIMITS, NOW), occupants


def ids(chosen):
    return [victim.job.id for victim in chosen]


def day(share=0, memory=0, job_id=99, **more):
    return QueuedJob(job_id, a_demand(share, memory, **more), partitions=("day",))


NIGHT = [
    (1, 0, 5000, GIB, NOW - 900, "night"),
    (2, 0, 5000, GIB, NOW - 100, "night"),
    (3, 1, 9000, GIB, NOW - 50, "night"),
    (4, 1, 1000, GIB, NOW - 800, "night"),
]


# -- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (day(5000, GIB), [3]),  # 45 GPU seconds are lost, and 50 by the other
        (day(1000, GIB), [3]),  # 45 again: the small one ran for long
        (day(WHOLE, GIB), [4, 3]),
        (day(WHOLE, GIB, gpus=2), [3, 2, 4, 1]),
    ],
)
def test_those_make_room_that_lose_least_and_no_more_of_them_than_needed(waits, expected):
    snapshot, occupants = a_scene(NIGHT, [waits])
    assert sorted(ids(victims(snapshot, waits, occupants))) == sorted(expected)


def test_of_those_that_lose_the_same_the_youngest_makes_room():
    waits = day(5000, GIB)
    jobs = [(1, 0, 5000, GIB, NOW - 100, "night"), (2, 0, 5000, GIB, NOW - 99, "night")]
    snapshot, occupants = a_scene([*jobs, (3, 1, WHOLE, GIB, NOW - 9000, "night")], [waits])
    assert ids(victims(snapshot, waits, occupants)) == [2]


def test_of_many_small_ones_those_make_room_that_lose_least():
    waits = day(5000, GIB)
    small = [(one, 0, 1500, GIB, NOW - 10 * (7 - one), "night") for one in range(1, 7)]
    snapshot, occupants = a_scene(small, [waits], gpus=1)
    assert ids(victims(snapshot, waits, occupants)) == [6, 5, 4]


def test_a_cheap_one_stays_where_dearer_ones_have_to_go_anyway():
    waits = day(9400, GIB)
    jobs = [(one, 0, 3000, GIB, NOW - 900 - one, "night") for one in (1, 2, 3)]
    snapshot, occupants = a_scene([*jobs, (4, 0, 500, GIB, NOW - 1, "night")], [waits], gpus=1)
    assert ids(victims(snapshot, waits, occupants)) == [1, 2, 3]


def test_nobody_leaving_for_a_job_that_starts_anyway():
    waits = day(5000, GIB)
    snapshot, occupants = a_scene(NIGHT[:2], [waits])
    assert victims(snapshot, waits, occupants) == ()


def test_nobody_leaving_for_a_job_that_would_not_start_even_so():
    waits = day(WHOLE, 15 * GIB)
    jobs = [(1, 0, 5000, GIB, NOW - 9, "night"), (2, 0, 100, 4 * GIB, NOW - 9, "day")]
    snapshot, occupants = a_scene(jobs, [waits], gpus=1)
    assert victims(snapshot, waits, occupants) == ()


def test_nobody_makes_room_where_another_would_take_it():
    policy = Policy(partitions=(Partition(name="first"), *a_policy().partitions))
    waits, before = day(5000, GIB), QueuedJob(7, a_demand(5000, GIB), partitions=("first",))
    snapshot, occupants = a_scene(NIGHT[:2], [before, waits], policy=policy, gpus=1)
    chosen = victims(snapshot, waits, occupants)
    assert sorted(ids(chosen)) == [] or len(chosen) == 2, "one half is the other's"


def test_a_job_that_a_limit_keeps_back_has_nobody_make_room():
    from fgsched.domain.policy import Limits

    policy = a_policy()
    policy = replace(
        policy, partitions=(replace(policy.partitions[0], total=Limits(running=1)), *policy.partitions[1:])
    )
    waits = day(5000, GIB)
    snapshot, occupants = a_scene([*NIGHT, (5, 0, 0, 0, NOW - 9, "day")], [waits], policy=policy)
    assert victims(snapshot, waits, occupants) == ()


@pytest.mark.parametrize(("exempt", "expected"), [(0, [3]), (60, [2]), (200, [1])])
def test_a_job_runs_undisturbed_for_as_long_as_its_partition_says(exempt, expected):
    waits = day(5000, GIB)
    jobs = [*NIGHT[:3], (4, 1, 1000, GIB, NOW - 10, "night")]
    snapshot, occupants = a_scene(jobs, [waits], policy=a_policy(exempt=exempt))
    assert ids(victims(snapshot, waits, occupants)) == expected


def test_jobs_that_are_not_to_make_room_do_not():
    waits = day(5000, GIB)
    snapshot, occupants = a_scene(NIGHT, [waits], policy=a_policy(OFF))
    assert victims(snapshot, waits, occupants) == ()


def test_a_job_that_may_not_run_again_is_cancelled():
    snapshot, occupants = a_scene(NIGHT, [day(5000, GIB)])
    found = candidates(
        snapshot, day(5000, GIB).kind, "day", [replace(one, may_requeue=False) for one in occupants]
    )
    assert {victim.mode for victim in found} == {CANCEL}


@pytest.mark.parametrize(("memory", "helps"), [(14 * GIB, True), (15 * GIB, False)])
def test_one_that_stands_still_keeps_its_memory_so_it_helps_only_where_that_is_enough(memory, helps):
    waits = day(5000, memory)
    snapshot, occupants = a_scene(
        [NIGHT[0], (2, 0, 5000, GIB, NOW - 1, "day")], [waits], policy=a_policy(SUSPEND), gpus=1
    )
    assert bool(victims(snapshot, waits, occupants)) is helps


def test_a_job_in_an_operators_reservation_leaving_for_nobody_outside_it():
    waits = day(5000, GIB)
    snapshot, occupants = a_scene(NIGHT, [waits])
    kept = [replace(one, job=one.job._replace(reservation="course")) for one in occupants]
    assert victims(snapshot, waits, kept) == ()


def test_cpus_are_made_free_too():
    waits = QueuedJob(99, Demand(cpus=2), partitions=("day",))
    snapshot, occupants = a_scene(NIGHT, [waits], cpus=len(NIGHT) + 1)
    assert len(victims(snapshot, waits, occupants)) == 1


@pytest.mark.parametrize(
    ("mine", "its", "yields"), [("high", "low", True), ("low", "high", False), ("high", "high", False)]
)
def test_qualities_of_service_make_room_in_their_order(mine, its, yields):
    low, high = Qos(name="low"), Qos(name="high", priority=5, preempt=("low",))
    policy = Policy(qos=(low, high))
    waits = replace(day(5000, GIB), partitions=("main",), owner=LimitedUser("ann", "", mine))
    snapshot, occupants = a_scene([(1, 0, WHOLE, GIB, NOW - 9, "main")], [waits], policy=policy, gpus=1)
    occupants = [Occupant(occupants[0].job._replace(owner=LimitedUser("bob", "", its)), NOW - 9, True)]
    snapshot = replace(snapshot, running=[occupants[0].job])
    assert bool(victims(snapshot, waits, occupants)) is yields


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            Policy(partitions=(Partition(name="a", preempt=("b",)),)),
            "partitions.a.preempt names b, which there is not",
        ),
        (
            Policy(partitions=(Partition(name="a"), Partition(name="b", preempt=("a",)))),
            "cannot preempt a, which",
        ),
        (Policy(partitions=(Partition(name="a", preempt=("a",)),)), "cannot preempt a, which"),
        (
            Policy(qos=(Qos(name="a", preempt=("b",)), Qos(name="b"))),
            "cannot preempt b, whose priority is not",
        ),
        (Policy(qos=(Qos(name="a", preempt=("c",)),)), "qos.a.preempt names c"),
        (
            replace(a_policy(), qos=(Qos(name="b"), Qos(name="a", priority=1, preempt=("b",)))),
            "and partitions do too",
        ),
    ],
)
def test_what_the_order_does_not_allow_is_refused(policy, says):
    with pytest.raises(BadUsage, match=says):
        check_preemption(policy)


RUNNING = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([500, 2500, 5000, WHOLE]),
        st.integers(1, 5),
        st.floats(NOW - 9999, NOW),
        st.sampled_from(["day", "night"]),
    ),
    max_size=14,
)


def packed(drawn):
    """Those of them that fit beside each other."""
    share, memory, found = [0] * 3, [0] * 3, []
    for number, (gpu, wide, gibs, since, where) in enumerate(drawn, 1):
        if share[gpu] + wide <= WHOLE and memory[gpu] + gibs <= 16:
            share[gpu], memory[gpu] = share[gpu] + wide, memory[gpu] + gibs
            found.append((number, gpu, wide, gibs * GIB, since, where))
    return found


@settings(max_examples=200, deadline=None)
@given(
    RUNNING,
    st.sampled_from([1000, 5000, WHOLE]),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from(MODES),
    st.booleans(),
)
def test_none_of_those_who_make_room_could_be_spared_and_the_job_starts(
    drawn, share, gibs, gpus, mode, returns
):
    waits = day(share, gibs * GIB, gpus=gpus)
    snapshot, occupants = a_scene(packed(drawn), [waits], gpus=3, policy=a_policy(mode))
    occupants = [replace(one, may_requeue=returns) for one in occupants]
    chosen = victims(snapshot, waits, occupants)
    assert {one.job.partition for one in chosen} <= {"night"}, "nobody of the same order"
    if not chosen:
        return
    after = without(snapshot, chosen)
    assert [start.job_id for start in after.plan().starts] == [99]
    assert all(0 <= room.share <= WHOLE and 0 <= room.memory <= room.gpu.usable for room in after.free)
    for one in chosen:
        fewer = without(snapshot, [other for other in chosen if other is not one])
        assert fewer.plan().starts == (), "one fewer is not enough"


def test_a_suspended_job_keeps_its_place_among_the_running_jobs():
    """A plan can depend on their order; else the job could be resumed and suspended again in each turn."""
    snapshot, occupants = a_scene(NIGHT, [day(5000, GIB)], policy=a_policy(SUSPEND))
    chosen = victims(snapshot, day(5000, GIB), occupants)
    assert len(chosen) == 1
    assert [job.id for job in without(snapshot, chosen).running] == [1, 2, 3, 4]
    snapshot, occupants = a_scene(NIGHT, [day(5000, GIB)], policy=a_policy(REQUEUE))
    assert [job.id for job in without(snapshot, victims(snapshot, day(5000, GIB), occupants)).running] == [
        1,
        2,
        4,
    ]


@settings(max_examples=100, deadline=None)
@given(RUNNING, st.sampled_from([1000, 5000, WHOLE]), st.integers(1, 12))
def test_no_single_job_and_no_pair_would_have_been_cheaper(drawn, share, gibs):
    waits = day(share, gibs * GIB)
    snapshot, occupants = a_scene(packed(drawn), [waits], gpus=3)
    chosen = victims(snapshot, waits, occupants)
    found = candidates(snapshot, waits.kind, "day", occupants)
    for one in found:
        if without(snapshot, [one]).plan().starts and not snapshot.plan().starts:
            assert sum(victim.loss for victim in chosen) <= one.loss
    assert not chosen or sum(victim.loss for victim in chosen) <= sum(victim.loss for victim in found)


# -- the steps ----------------------------------------------------------------------------------


def a_world(mode=REQUEUE, *, share=WHOLE, memory=0, **more):
    """One card that a job of night has; one of day waits for it. Yet to be decided."""
    world = World([a_gpu(0)])
    world.engine.site.policy = a_policy(mode, **more)
    world.submit([a_demand(share, memory)], partition="night")
    world.settle()
    assert world.job(1).state is JobState.RUNNING
    return world


def comes(world, share=WHOLE, memory=0, **more):
    world.submit([a_demand(share, memory)], partition="day", **more)
    world.settle()


def states(world, *jobs):
    return [world.job(one).state.value for one in jobs]


def test_a_job_of_night_is_requeued_for_one_of_day_and_runs_again_after_it():
    world = a_world()
    comes(world)
    assert states(world, 1, 2) == ["PENDING", "RUNNING"]
    assert (world.job(1).restarts, world.job(1).failures) == (1, 0)
    assert world.job(1).preemption.by == 2
    world.host.finish(2, 1, a_result())
    world.settle()
    assert states(world, 1, 2) == ["RUNNING", "COMPLETED"]


def test_a_job_that_may_not_run_again_ends_preempted():
    world = a_world(CANCEL)
    comes(world)
    assert states(world, 1, 2) == ["PREEMPTED", "RUNNING"]
    assert world.job(1).reason is Reason.PREEMPTED
    assert world.job(1).state.code == "PR"


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [("night,day", ["RUNNING", "PENDING"]), ("day,night", ["PENDING", "RUNNING"])],
)
def test_jobs_of_two_partitions_do_not_send_each_other_away_for_ever(partitions, expected):
    """It would start in the first of its partitions, so that is the one which has to come first."""
    world = a_world()
    world.host.finish(1, 1, a_result())
    world.submit([a_demand(WHOLE)], partition="night,day")
    world.settle()
    world.submit([a_demand(WHOLE)], partition=partitions)
    for _ in range(20):
        world.turn()
    assert states(world, 2, 3) == expected
    assert world.job(2).restarts + world.job(3).restarts <= 1


def three_tiers(*gpus):
    """Jobs of day come before those of evening, and these before those of night."""
    night = Partition(name="night", preempt_rule=PreemptRule(REQUEUE))
    evening = Partition(name="evening", preempt=("night",), preempt_rule=PreemptRule(REQUEUE))
    day = Partition(name="day", preempt=("evening",), is_default=False)
    world = World(gpus)
    world.engine.site.policy = Policy(partitions=(day, evening, night))
    return world


def let_end(world):
    """Ten turns, in which whoever makes room goes at once."""
    for _ in range(10):
        world.turn()
        for job in [job for job in world.engine.jobtable.holding.values() if job.is_being_preempted]:
            world.host.finish(job.id, job.attempt, a_result(15, "cancel"))


@pytest.mark.parametrize("first", ["night", "night,evening"])
def test_whoever_made_room_comes_after_the_one_it_made_it_for_though_another_requeued_for_it(first):
    world = three_tiers(a_gpu(0))
    for partition in (first, "evening", "day"):
        world.submit([a_demand(WHOLE)], partition=partition)
        let_end(world)
    assert states(world, 1, 2, 3) == ["PENDING", "PENDING", "RUNNING"]
    assert [world.job(one).restarts for one in (1, 2, 3)] == [1, 1, 0]


def test_who_had_its_room_and_is_sent_away_by_who_made_it_does_not_come_before_that_one():
    world = three_tiers(a_gpu(0))
    day, evening, night = world.engine.policy.partitions
    world.engine.site.policy = Policy(partitions=(day, replace(evening, state="down"), night))
    world.submit([a_demand(WHOLE)], partition="evening")
    world.submit([a_demand(WHOLE)], partition="night,day")
    let_end(world)
    world.engine.site.policy = Policy(partitions=(day, evening, night))
    let_end(world)
    assert states(world, 1, 2) == ["RUNNING", "PENDING"]
    world.engine.site.policy = Policy(partitions=(day, evening, replace(night, state="down")))
    let_end(world)
    assert states(world, 1, 2) == ["PENDING", "RUNNING"]
    assert [world.job(one).restarts for one in (1, 2)] == [1, 1]


def test_whoever_made_room_has_others_make_room_and_still_comes_after_the_one_it_made_it_for():
    world = three_tiers(a_gpu(0), a_gpu(1), a_gpu(2))
    world.host.preempt = lambda job: True
    world.submit([a_demand(WHOLE)], partition="night")
    world.submit([a_demand(WHOLE)] * 2, partition="evening")
    world.settle()
    world.submit([a_demand(WHOLE, gpus=2)], partition="day")
    world.settle()
    world.host.finish(2, 1, a_result(15, "cancel"))
    world.settle()
    assert [world.job(one).preemption.by for one in (1, 2, 3)] == [2, 4, 4]
    world.host.finish(3, 1, a_result(15, "cancel"))
    world.settle()
    assert states(world, 1, 2, 3, 4) == ["RUNNING", "PENDING", "PENDING", "RUNNING"]


def test_a_job_that_starts_elsewhere_uses_its_room_claim_though_the_preempted_job_still_runs():
    """A claim of an earlier start would have it start before the job that it was preempted for."""
    world = three_tiers(a_gpu(0), a_gpu(1))
    world.host.preempt = lambda job: True
    world.submit([a_demand(WHOLE)], partition="night")
    world.submit([a_demand(WHOLE)], partition="day")
    world.settle()
    world.submit([a_demand(WHOLE)], partition="evening")
    world.settle()
    world.host.finish(2, 1, a_result())
    world.settle()
    assert states(world, 1, 3) == ["RUNNING", "RUNNING"]
    assert (world.job(1).preemption.by, world.job(1).preemption.used) == (3, True)
    world.submit([a_demand(WHOLE, gpus=2)], partition="day")
    world.settle()
    for one in (1, 3):
        world.host.finish(one, 1, a_result(15, "cancel"))
    world.settle()
    assert states(world, 1, 3, 4) == ["PENDING", "PENDING", "RUNNING"]


def test_nobody_leaving_for_one_that_would_start_beside_them_once_its_room_is_kept():
    """Until then the last place in evening is kept for the first that waits for it, and it would start in
    day; then in evening, as whoever made room and is of its own kind: that was sent away again, for ever.
    """
    world = three_tiers(a_gpu(0))
    day, evening, night = world.engine.policy.partitions
    one = replace(evening, per_user=Limits(running=1))
    world.engine.site.policy = Policy(partitions=(day, one, night), weights=Weights(partition=0, size=500))
    for partition, share, limit in [
        ("day", 5000, 9999),
        ("evening,day", 5000, 300),
        ("evening", WHOLE, 0),
        ("evening,day", 5000, 300),
    ]:
        world.submit([a_demand(share)], partition=partition, time_limit=limit)
        let_end(world)
    assert states(world, 1, 2, 3, 4) == ["RUNNING", "RUNNING", "PENDING", "PENDING"]
    assert world.job(2).restarts == 0


def test_a_job_of_night_never_preempts():
    world = a_world()
    comes(world)
    world.submit([a_demand(WHOLE)], partition="night")
    world.settle()
    assert states(world, 2, 3) == ["RUNNING", "PENDING"]


def a_full_world():
    """Two jobs of the night have the two cards; who is asked to make room is noted, and does not."""
    world = World([a_gpu(0), a_gpu(1)])
    world.engine.site.policy = a_policy()
    asked = []
    world.host.preempt = lambda job: asked.append(job) is None
    world.submit([a_demand(WHOLE)] * 2, partition="night")
    world.settle()
    return world, asked


def test_while_one_is_on_its_way_no_other_is_chosen_and_nobody_takes_its_room():
    world, asked = a_full_world()
    comes(world)
    world.turn()
    world.submit([a_demand(5000)], partition="night")
    world.turn()
    assert len(asked) == 1
    del world.host.preempt
    world.host.preempt(asked[0])
    world.settle()
    assert states(world, 3, 4) == ["RUNNING", "PENDING"]


def test_what_the_first_leaves_alone_once_others_make_room_for_it_is_given_out_in_the_same_turn():
    """Until then it had its reservation on the other card, on which the second fits."""
    world = World([a_gpu(0), a_gpu(1)])
    world.engine.site.policy = a_policy(grace=7)
    world.host.preempt = lambda job: True
    world.submit([a_demand(1000, GIB), a_demand(1000, 12 * GIB)], partition="day")
    world.submit([a_demand(WHOLE, GIB)], partition="night")
    world.settle()
    world.submit([a_demand(1000, 4 * GIB), a_demand(1000, GIB)], partition="day")
    assert (world.job(3).is_being_preempted, world.job(3).preemption.by) == (True, 4)
    assert states(world, 4, 5) == ["PENDING", "CONFIGURING"]


def competing():
    """Two halves of low quality on one card, a job on the other; then one of high quality comes."""
    world = World([a_gpu(0), a_gpu(1)])
    high, low = Qos(name="high", priority=5, preempt=("low",)), Qos(name="low", priority=1)
    world.engine.site.policy = Policy(qos=(Qos(), low, high), weights=Weights(qos=0))
    asked = []
    world.host.preempt = lambda job: asked.append(job) is None
    world.submit([a_demand(5000)] * 2, qos="low", time_limit=7200)
    world.submit([a_demand(WHOLE)], time_limit=3600)
    world.submit([a_demand(WHOLE, gpus=2)], time_limit=100)
    world.settle()
    world.submit([a_demand(WHOLE)], qos="high", time_limit=60)
    world.submit([a_demand(5000)], time_limit=60)
    world.settle()
    assert sorted(job.id for job in asked) == [1, 2]
    return world


def test_nobody_slips_into_what_was_made_free_not_even_who_made_room():
    world = competing()
    world.host.finish(1, 1, a_result(15, "cancel"))
    world.settle()
    assert states(world, 1, 5, 6) == ["PENDING", "PENDING", "PENDING"]
    world.host.finish(2, 1, a_result(15, "cancel"))
    world.settle()
    assert states(world, 1, 2, 5) == ["PENDING", "PENDING", "RUNNING"], "though they wait for longer"


def test_whoever_requeued_for_a_task_of_an_array_made_it_for_no_other_task():
    world = World([a_gpu(0)])
    world.engine.site.policy = Policy(partitions=(Partition(name="first"), *a_policy().partitions))
    world.submit([a_demand(WHOLE)], partition="night")
    world.settle()
    comes(world, array="0-2", throttle=1)
    world.submit([a_demand(WHOLE)], partition="first")
    world.settle()
    assert states(world, 1, 2, 3, 4) == ["PENDING", "PENDING", "RUNNING", "PENDING"]
    assert (world.job(1).preemption.by, world.job(1).preemption.used) == (2, True)
    world.host.finish(3, 1, a_result())
    world.settle()
    assert states(world, 1, 2, 4) == ["PENDING", "PENDING", "RUNNING"], "its next task has to wait"


def test_two_that_wait_have_two_make_room_at_once():
    world, asked = a_full_world()
    world.submit([a_demand(WHOLE)] * 2, partition="day")
    world.turn()
    assert sorted(job.id for job in asked) == [1, 2]
    assert {job.preemption.by for job in asked} == {3, 4}


def test_one_that_stands_still_hands_over_its_compute_and_goes_on_when_the_other_ends():
    world = a_world(SUSPEND, memory=4 * GIB)
    comes(world, memory=8 * GIB)
    assert states(world, 1, 2) == ["SUSPENDED", "RUNNING"]
    assert world.job(1).reason is Reason.PREEMPTED
    assert sorted((hold.share, hold.memory) for hold in world.holds()) == [(0, 4 * GIB), (WHOLE, 8 * GIB)]
    assert world.host.stopped == {(1, 1)}
    world.host.finish(2, 1, a_result())
    world.settle()
    assert states(world, 1, 2) == ["RUNNING", "COMPLETED"]
    assert [(hold.share, hold.memory) for hold in world.holds()] == [(WHOLE, 4 * GIB)]
    assert world.host.stopped == set()


def test_nobody_stands_still_for_one_that_needs_the_memory():
    world = a_world(SUSPEND, memory=9 * GIB)
    comes(world, memory=8 * GIB)
    assert states(world, 1, 2) == ["RUNNING", "PENDING"]


def test_one_that_stands_still_does_not_go_on_before_the_next_of_day():
    world = a_world(SUSPEND, memory=4 * GIB)
    comes(world, memory=4 * GIB)
    comes(world, memory=4 * GIB)
    world.host.finish(2, 1, a_result())
    world.settle()
    assert states(world, 1, 2, 3) == ["SUSPENDED", "COMPLETED", "RUNNING"]
    steps = [new for _, _, _, new, _ in world.store.steps.of(1)]
    assert steps.count("SUSPENDED") == 1, "nor is it woken for a moment"


def test_an_operator_cannot_have_it_go_on_while_the_other_has_its_part():
    world = a_world(SUSPEND, memory=4 * GIB)
    comes(world, memory=4 * GIB)
    root = Caller(0, 0, "root", is_operator=True)
    with world.store.write():
        answer = RunningJobHandlers(world.engine).resume_jobs(root, ResumeJobs(ids=[1]), world.now)
    assert "job 1 is preempted by job 2" in str(answer)
    assert states(world, 1, 2) == ["SUSPENDED", "RUNNING"]


@pytest.mark.parametrize(
    ("exempt", "expected"), [(0, Outlook(victims=(1,))), (600, Outlook(not_before=1601.0))]
)
def test_an_outlook_names_the_jobs_that_would_make_room_or_the_time_from_which_one_would(exempt, expected):
    world = a_world(exempt=exempt)
    scene, entry = _scene(world.engine, world.now), day(WHOLE)
    queue = Queue([entry], PriorityBasis(policy=world.engine.policy, gpus=WHOLE))
    assert outlook(world.engine, replace(scene, queue=queue), entry) == [expected]


def test_one_that_stands_still_can_be_cancelled():
    world = a_world(SUSPEND, memory=4 * GIB)
    comes(world, memory=4 * GIB)
    world.host.finish(1, 1, a_result(15, "cancel"))
    world.settle()
    assert [hold.memory for hold in world.holds()] == [4 * GIB]


def test_what_a_job_did_in_its_grace_is_no_end_of_its_own():
    warned = Preemption(by=2, at=100.0, mode=REQUEUE, attempt=1, grace=60, until=190.0)
    job = a_job(state=JobState.RUNNING, preemption=warned)
    saved = finish(job, a_result(0, ended_at=120.0))
    assert saved.state is JobState.PREEMPTED
    assert is_requeued(job, saved)
    assert finish(job, a_result(0, ended_at=99.0)).state is JobState.COMPLETED, "before it was warned"
    assert finish(replace(job, cancelled_by=1), a_result(15, "cancel")).state is JobState.CANCELLED
    at_once = replace(job, preemption=replace(warned, grace=0))
    assert finish(at_once, a_result(0, ended_at=120.0)).state is JobState.COMPLETED, "nobody had told it"


@pytest.mark.parametrize("mode", [REQUEUE, CANCEL, SUSPEND])
@pytest.mark.parametrize("effects", range(0, 12))
def test_a_crash_at_any_effect_changes_nothing_of_how_it_comes_out(mode, effects):
    world = a_world(mode, memory=4 * GIB)
    policy = world.engine.policy

    def preempts():
        comes(world, memory=4 * GIB, key="key-of-the-submission")
        world.host.finish(2, 1, a_result())
        world.settle()

    Power(world, effects).lasts(preempts)
    world.start()
    world.engine.site.policy = policy
    with suppress(KeyError):
        comes(world, memory=4 * GIB, key="key-of-the-submission")
    if world.job(2).state is JobState.RUNNING:
        world.host.finish(2, world.job(2).attempt, a_result())
    world.settle()
    expected = {REQUEUE: "RUNNING", CANCEL: "PREEMPTED", SUSPEND: "RUNNING"}[mode]
    assert states(world, 1, 2) == [expected, "COMPLETED"]
    assert world.host.runs.count(2) == 1
    assert world.host.stopped == set()
    assert len(world.holds()) == (0 if mode == CANCEL else 1)


# -- on a host ----------------------------------------------------------------------------------

SITE = """
[host]
cpus = 64
[jobs]
kill_wait = 5
[partitions.day]
preempt = ["night"]
[partitions.night]
preempt_mode = "{mode}"
preempt_grace = {grace}
"""


def site(mode=REQUEUE, grace=0):
    return {"config": SITE.format(mode=mode, grace=grace), "devices": "sim:1x16G"}


def job(home, job_id):
    return home.job(job_id)


def test_a_job_is_ended_and_queued_again_and_everybody_tells_of_it(tmp_path):
    with living(tmp_path / "home", **site()) as home:
        low = home.running(partition="night", share=WHOLE, name="low", output="low.out")
        high = home.running(partition="day", share=WHOLE)
        found = job(home, low)
        assert (found["state"], found["restarts"], found["eviction"]["by"]) == ("PENDING", 1, high)
        assert "DUE TO PREEMPTION" in (home.path / "low.out").read_text()
        shown = home.run("fgctl", "show", "job", str(low)).out
        assert f"PreemptedBy={high}" in shown
        assert "PreemptMode=REQUEUE" in shown
        assert (
            "Preempt=night  PreemptMode=REQUEUE  GraceTime=0"
            in home.run("fgctl", "show", "partition", "day").out
        )
        assert f"preempted by job {high} at" in home.run("fgq", "--why", str(low)).out
        home.client.ask("cancel", ids=[low, high])
        home.wait(high)


def test_a_job_that_is_cancelled_so_is_preempted_in_the_books(tmp_path):
    with living(tmp_path / "home", **site("CANCEL")) as home:
        low = home.running(partition="night", share=WHOLE)
        high = home.running(partition="day", share=WHOLE)
        (ended,) = home.wait(low)
        assert ended["state"] == "PREEMPTED"
        said = home.run("fgacct", "-j", str(low), "-n", "-P", "-o", "JobID,State,Reason,PreemptedBy").out
        assert said == f"{low}|PREEMPTED|Preempted|{high}\n"
        assert home.run("fgq", "-t", "PR", "-h").status == 0


def test_a_job_is_warned_with_its_own_signal_and_has_its_grace_to_save(tmp_path):
    text = "trap 'echo saved; exit 0' USR1; echo >started; while :; do sleep 0.05; done"
    early = {"signal": int(signal.SIGUSR1), "before": 60, "target": "all"}
    with living(tmp_path / "home", **site(REQUEUE, 600)) as home:
        fifo = home.path / "started"
        os.mkfifo(fifo)
        saves = home.submit(
            f"echo >>tries; [ $(wc -l <tries) = 1 ] || exit 0; {text}",
            partition="night",
            share=WHOLE,
            early_signal=early,
            output="out",
        )
        fifo.read_text()
        high = home.submit("exit 0", partition="day", share=WHOLE)
        home.wait(high, saves)
        assert "saved" in (home.path / "out").read_text()
        found = job(home, saves)
        assert (found["state"], found["restarts"]) == ("COMPLETED", 1)


def test_a_grace_holds_while_no_controller_runs(tmp_path):
    with living(tmp_path / "home", **site(CANCEL, 2)) as home:
        text = "trap '' TERM; echo >started; while :; do sleep 0.05; done"
        fifo = home.path / "started"
        os.mkfifo(fifo)
        low = home.submit(text, partition="night", share=WHOLE)
        fifo.read_text()
        high = home.submit("exit 0", partition="day", share=WHOLE)
        kill_controller(home)
        home.wait(low, high)
        assert job(home, low)["state"] == "PREEMPTED"


def test_a_job_tells_which_job_is_being_preempted_for_it(tmp_path):
    with living(tmp_path / "home", **site(CANCEL, 600)) as home:
        fifo = home.path / "started"
        os.mkfifo(fifo)
        text = "trap '' TERM; echo >started; while :; do sleep 0.05; done"
        low = home.submit(text, partition="night", share=WHOLE)
        fifo.read_text()
        high = home.submit("exit 0", partition="day", share=WHOLE)
        why = home.run("fgq", "--why", str(high)).out
        assert f"job {low} is being preempted for it" in why


def test_one_that_stands_still_says_what_it_keeps(tmp_path):
    with living(tmp_path / "home", **site("SUSPEND")) as home:
        demand = {"gpus": 1, "share": WHOLE, "memory": 4 * GIB}
        low = home.running(partition="night", demand=demand)
        high = home.running(partition="day", demand=demand)
        found = job(home, low)
        assert (found["state"], found["reason"]) == ("SUSPENDED", "Preempted")
        assert home.why(low) == f"suspended: preempted by job {high}; keeps 4096M on GPU 0"
        done = home.run("fgctl", "resume", str(low))
        assert done.status != 0
        assert f"is preempted by job {high}" in done.err
        home.client.ask("cancel", ids=[high])
        home.wait(high)
        assert job(home, low)["state"] == "RUNNING"


def test_a_wrong_order_is_refused_with_its_line(tmp_path):
    text = '[partitions.day]\n[partitions.night]\npreempt = ["day"]\n'
    (tmp_path / "home").mkdir()
    with living(tmp_path / "home", **site()) as home:
        (home.path / "wrong.toml").write_text(text)
        done = home.run("fgsched", "config", "--check", env={"FGSCHED_CONFIG": str(home.path / "wrong.toml")})
        assert done.status == Exit.USAGE
        assert "wrong.toml:3: partition night cannot preempt day" in done.err


def test_who_asks_what_would_be_is_told_who_would_make_room(tmp_path):
    with living(tmp_path / "home", **site()) as home:
        (home.path / "job.sh").write_text("#!/bin/sh\nexit 0\n")

        def said(partition):
            return home.run("fgsub", "--test-only", "-p", partition, "--gpus=1", "job.sh").err

        busy = home.running(partition="day", share=5000)
        assert "preemption would not help: it may not preempt any running job" in said("day")
        low = home.running(partition="night", share=5000)
        assert "would not free enough" in said("day")
        home.client.ask("cancel", ids=[busy])
        home.wait(busy)
        assert f"would preempt job {low}" in said("day")
        assert "preempt" not in said("night")
