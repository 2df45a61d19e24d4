"""Who is considered first."""

from hypothesis import given
from hypothesis import strategies as st

from builders import ROOT, Part, World, a_demand, a_gpu
from fgsched.controller.handlers.priority import PriorityHandlers
from fgsched.domain.job import WHOLE, HostLimits
from fgsched.domain.policy import Partition, Policy, Qos, Weights
from fgsched.scheduling.limits import LimitedUser
from fgsched.scheduling.placement import HostRoom, rooms
from fgsched.scheduling.planner import JobClass, Queue, QueuedJob, plan
from fgsched.scheduling.queue import PriorityBasis

PARTITIONS = tuple(Partition(name=name, is_default=name == "a") for name in ("a", "b", "c", "d"))
NO_WEIGHTS = {"partition": 0, "qos": 0, "fairshare": 0, "age": 0, "size": 0}


def order(policy=None, **weights):
    policy = policy or Policy(partitions=PARTITIONS, weights=Weights(**NO_WEIGHTS | weights))
    return PriorityBasis(policy=policy, shares={("", "ann"): 0.25, ("", "bob"): 1.0}, gpus=4 * WHOLE, cpus=8)


def factors(kind=None, *, since=0.0, now=0.0, **about):
    return order(**about).factors(kind or JobClass(a_demand(WHOLE), partitions=("a",)), since, now)


def test_the_first_partition_has_all_of_its_weight_and_of_several_the_best_counts():
    places = [
        factors(JobClass(a_demand(1), partitions=names), partition=100).priority
        for names in (("a",), ("b",), ("d",), ("d", "b"), ("gone",))
    ]
    assert places == [100, 75, 25, 75, 0]


def test_age_grows_until_it_has_all_of_its_weight():
    ages = [factors(now=now, age=100, max_age=50).age for now in (0.0, 25.0, 50.0, 500.0)]
    assert ages == [0, 50, 100, 100]
    assert factors(since=9.0, now=5.0, age=100).age == 0, (
        "a clock that was set back makes nobody younger than new"
    )


def test_large_jobs_or_small_ones_are_favoured_by_the_part_of_the_host():
    kinds = [JobClass(a_demand(WHOLE, gpus=2)), JobClass(a_demand(5000)), JobClass(a_demand(cpus=2))]
    assert [factors(kind, size=1000).size for kind in kinds] == [500, 125, 250]
    assert [factors(kind, size=1000, favor_small=True).size for kind in kinds] == [500, 875, 750]


def test_who_used_less_has_more_and_who_is_not_known_all():
    found = [
        factors(JobClass(a_demand(1), owner=LimitedUser(user)), fairshare=100).fairshare
        for user in ("ann", "bob", "eve")
    ]
    assert found == [25, 100, 100]


def test_the_highest_quality_of_service_has_all_of_its_weight():
    qualities = (Qos(name="normal"), Qos(name="high", priority=50), Qos(name="urgent", priority=200))
    policy = Policy(qos=qualities, weights=Weights(**NO_WEIGHTS | {"qos": 100}))
    found = [
        order(policy).factors(JobClass(a_demand(1), owner=LimitedUser(qos=name)), 0, 0).qos
        for name in ("", "high", "urgent", "gone")
    ]
    assert found == [0, 25, 100, 0]


def test_nice_is_taken_off():
    assert factors(JobClass(a_demand(1), nice=30)).priority == -30
    assert factors(JobClass(a_demand(1), nice=-30)).priority == 30


def test_by_default_nothing_outweighs_the_order_of_the_partitions():
    """But an operator's nice."""
    weights = Weights()
    below = weights.qos + weights.fairshare + weights.age + weights.size
    assert weights.partition / 8 > below, "with up to eight partitions"


jobs = st.lists(
    st.builds(
        QueuedJob,
        st.integers(1, 10**6),
        st.just(a_demand(WHOLE)),
        partitions=st.sampled_from([("a",), ("b",), ("c", "a")]),
        owner=st.builds(LimitedUser, st.sampled_from(["ann", "bob"])),
        nice=st.integers(-20, 20),
        since=st.integers(0, 200).map(float),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda job: job.id,
)


@given(jobs=jobs, now=st.integers(200, 400).map(float))
def test_the_highest_priority_starts_and_among_equals_who_waits_longer(jobs, now):
    """However the queue groups them, and whenever they came in."""
    decides = order(partition=30, fairshare=25, age=40, max_age=100)
    free, host, limits = (
        rooms([a_gpu(0)], [], {}),
        HostRoom(99, 2**50),
        HostLimits(cpus=99, host_memory=2**50),
    )
    decided = plan(Queue(jobs, decides), [], free, host, limits=limits, now=now)
    (start,) = decided.starts
    best = min(jobs, key=lambda job: (-decides.factors(job.kind, job.since, now).priority, job.since, job.id))
    assert start.job_id == best.id


@given(
    first=st.integers(0, 100), later=st.integers(0, 100), now=st.integers(0, 1000), more=st.integers(0, 1000)
)
def test_time_alone_never_turns_the_order_of_two_alike_round(first, later, now, more):
    decides, kind = order(age=1000, max_age=300), JobClass(a_demand(1))
    low, high = sorted((first, later))

    def lead(moment):
        return decides.factors(kind, low, moment).age - decides.factors(kind, high, moment).age

    assert lead(now) >= 0
    assert lead(now + more) >= 0


def test_a_queue_that_is_ordered_anew_goes_by_the_new_order():
    waiting = [
        QueuedJob(1, a_demand(WHOLE), owner=LimitedUser("ann")),
        QueuedJob(2, a_demand(WHOLE), owner=LimitedUser("bob")),
    ]
    queue = Queue(waiting, order())
    free, host, limits = (
        rooms([a_gpu(0)], [], {}),
        HostRoom(99, 2**50),
        HostLimits(cpus=99, host_memory=2**50),
    )
    policy = Policy(weights=Weights(**NO_WEIGHTS | {"fairshare": 9}))
    assert plan(queue, [], free, host, limits=limits, now=0.0).starts == ()  # there is no partition main
    queue.reorder(PriorityBasis(policy=policy, shares={("", "ann"): 0.1, ("", "bob"): 0.9}))
    assert [start.job_id for start in plan(queue, [], free, host, limits=limits, now=0.0).starts] == [2]


class Priorities(Part):
    """The handlers of priorities."""

    def handlers(self):
        return [PriorityHandlers(self.world.engine)]


def test_a_job_is_put_before_the_other_jobs_of_its_owner_and_account():
    world = World([a_gpu(0)], priorities=Priorities())
    world.submit([a_demand(WHOLE)])
    for account in ("lab", "", ""):
        world.submit([a_demand(WHOLE)], account=account)
    world.settle()
    assert world.ask(ROOT, "top", id=4) == {"id": 4, "lowered": 1}
    nice = {job.id: job.request.nice for job in world.store.open_jobs()}
    assert [nice[job] > 0 for job in (2, 3, 4)] == [False, True, False]
