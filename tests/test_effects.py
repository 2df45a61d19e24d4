"""What a turn decides, as values, and how the executor carries each of them out."""

import pytest

from builders import Part, World, a_demand, a_gpu, a_job, a_result
from fgsched.controller.turn import (
    CancelOrder,
    Executor,
    Follow,
    Forget,
    JobStarted,
    LaunchAttempt,
    PreemptOrder,
    RelimitOrder,
    RequeueOrder,
    ResendOrders,
    ResumeOrder,
    SendReply,
    SendSignal,
    SuspendOrder,
    job_to_mark,
    pending_orders,
)
from fgsched.domain.job import WHOLE, Preemption
from fgsched.domain.states import JobState
from fgsched.lifecycle.transitions import Shepherd, suspended_seconds
from fgsched.protocol import Outcome

UNREACHABLE = "job 1: not delivered: the job's supervisor cannot be reached"


class Effects(Part):
    """The effects of the turns, which the engine carries out as well."""

    def furnish(self):
        self.performed = []
        perform = self.world.engine.perform
        self.world.engine.perform = lambda effect: (self.performed.append(effect), perform(effect))


def kinds(world):
    """Return the kind and the job of each effect since the last call."""
    effects, world.effects.performed[:] = list(world.effects.performed), []
    return [(type(effect).__name__, effect.job.id) for effect in effects if not isinstance(effect, SendReply)]


def test_a_turn_leaves_its_effects_as_values_in_order():
    world = World([a_gpu(0)], effects=Effects())
    world.submit([a_demand(WHOLE)] * 2)
    assert kinds(world) == [("LaunchAttempt", 1)]
    world.settle()
    assert kinds(world) == [("Follow", 1)]
    world.host.finish(1, 1, a_result())
    world.turn()
    assert kinds(world) == [("Forget", 1), ("LaunchAttempt", 2)]


def test_a_launch_has_the_job_as_it_was_committed():
    world = World([a_gpu(0)], effects=Effects())
    world.submit([a_demand(WHOLE)])
    (launch,) = [effect for effect in world.effects.performed if isinstance(effect, LaunchAttempt)]
    assert launch == LaunchAttempt(world.engine.jobtable.jobs[1], world.engine.jobtable.allocations[1])
    assert (launch.job.state, world.job(1).state) == (JobState.STARTING, JobState.STARTING)


def test_a_job_whose_end_came_with_its_beginning_is_not_followed():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    followed = []
    world.host.follow = lambda job, shepherd: followed.append(job.id)
    begun, *_ = world.host.inbox
    world.host.finish(1, 1, a_result())
    world.turn()
    assert isinstance(begun, JobStarted)
    assert (world.job(1).state, followed) == (JobState.COMPLETED, [])


@pytest.mark.parametrize(
    ("changes", "orders"),
    [
        ({}, []),
        ({"relimited": True}, [RelimitOrder]),
        ({"cancelled_by": 0}, [CancelOrder]),
        ({"wish": "requeue"}, [RequeueOrder]),
        ({"state": JobState.SUSPENDED, "suspended_at": 2.0}, [SuspendOrder]),
        ({"suspended": 5.0}, [ResumeOrder]),
        ({"suspended": 5.0, "cancelled_by": 0, "relimited": True}, [RelimitOrder, CancelOrder]),
        (
            {"preemption": Preemption(by=2, at=1.0, mode="requeue", attempt=1, grace=0, until=2.0)},
            [PreemptOrder],
        ),
    ],
)
def test_the_store_has_the_orders_that_a_new_shepherd_gets(changes, orders):
    job = a_job(state=JobState.RUNNING).changed(**changes)
    assert pending_orders(job) == [order(job) for order in orders]


@pytest.mark.parametrize("now", [7.0, 5.0, 3.0])
def test_the_order_to_resume_is_stored_however_short_the_suspension_was(now):
    stands = a_job(state=JobState.SUSPENDED, suspended_at=5.0)
    job = stands.advance(JobState.RUNNING, suspended=suspended_seconds(stands, now), suspended_at=None)
    assert pending_orders(job) == [ResumeOrder(job)]


def test_an_order_that_is_not_delivered_is_kept_and_its_answer_says_so():
    world = World([a_gpu(0)])
    job, answer = a_job(state=JobState.RUNNING), Outcome(id=1, outcome="resumed")
    world.host.resume = lambda job: False
    Executor(world.engine).perform(ResumeOrder(job, answer))
    assert world.engine.undelivered == {1: 0.0}
    assert (answer.outcome, answer.error.cause) == ("", UNREACHABLE)


def test_an_order_to_a_job_that_is_starting_waits_for_its_shepherd():
    world = World([a_gpu(0)])
    Executor(world.engine).perform(CancelOrder(a_job(state=JobState.STARTING)))
    assert world.engine.undelivered == {}


def test_an_order_that_fails_for_want_of_descriptors_is_kept():
    world = World([a_gpu(0)])

    def fails(job):
        raise OSError("too many open files")

    world.host.cancel = fails
    Executor(world.engine).perform(CancelOrder(a_job(state=JobState.RUNNING)))
    assert world.engine.undelivered == {1: 0.0}


def test_a_signal_that_is_not_delivered_is_not_kept():
    world = World([a_gpu(0)])
    answer = Outcome(id=1, outcome="signalled")
    Executor(world.engine).perform(SendSignal(a_job(state=JobState.RUNNING), 10, "all", answer))
    assert world.engine.undelivered == {}
    assert answer.error.remedy == "Repeat the command."


def test_what_fails_for_a_launch_marks_its_job_and_what_fails_for_an_answer_marks_none():
    job = a_job(state=JobState.RUNNING)
    marked = [
        LaunchAttempt(job, ()),
        Follow(job, Shepherd(1, 1, "boot-1")),
        ResendOrders(job),
        Forget(job, marks=True),
    ]
    assert [job_to_mark(one) for one in marked] == [job] * 4
    assert [job_to_mark(one) for one in (Forget(job), CancelOrder(job), SendReply(print))] == [None] * 3
