"""Every reason why a job waits, what lifts it, what to ask for instead, and when it will start."""

import math
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import GIB, LIMITS, a_demand, a_gpu
from fgsched.domain.job import WHOLE, Demand, Hold, HostLimits
from fgsched.domain.policy import Limits, Partition, Policy
from fgsched.domain.states import Reason
from fgsched.domain.steps import finish
from fgsched.scheduling import explain
from fgsched.scheduling.explain import blockers
from fgsched.scheduling.limits import NO_OWNER, LimitedUser
from fgsched.scheduling.placement import HostRoom, rooms
from fgsched.scheduling.planner import Queue, QueuedJob, Running, Snapshot
from fgsched.scheduling.queue import PriorityBasis
from fgsched.scheduling.runtimes import CompletedRun, RunHistory, work_of_line

PLENTY = HostRoom(cpus=1000, memory=2**50)


def snapshot(queue, running=(), *, gpus=1, host=PLENTY, limits=LIMITS, policy=None, now=0.0):
    free = rooms([a_gpu(index) for index in range(gpus)], [(h, False) for r in running for h in r.holds], {})
    order = PriorityBasis(policy=policy) if policy else PriorityBasis()
    return Snapshot(Queue(queue, order), list(running), free, host, limits, now)


def running(share, job, *, gpu=0, until=math.inf, owner=NO_OWNER):
    return Running(a_demand(share), (Hold(gpu=gpu, share=share, memory=share),), until, "main", owner, job)


def _never(at):
    return math.inf if at is None else at


def advice(*given, **more):
    return finish(explain.advice(*given, **more))


def forecast(*given):
    return finish(explain.forecast(*given))


def _starts(*given):
    return forecast(*given).starts


def reasons(found):
    return [each.cause.reason for each in found]


def test_a_job_that_starts_has_no_blocker():
    one = QueuedJob(1, a_demand(5000))
    assert blockers(snapshot([one]), one) == []


def test_a_full_card_is_left_by_its_jobs_and_the_last_that_has_to_end_tells_when():
    one = QueuedJob(9, a_demand(WHOLE))
    there = snapshot([one], [running(2500, 3, until=500.0), running(2500, 4, until=700.0)])
    (only,) = blockers(there, one)
    assert only.cause.reason is Reason.RESOURCES
    assert (only.lift.jobs, only.lift.at) == ((3, 4), 700.0)


def test_only_the_jobs_in_the_way_are_named():
    one = QueuedJob(9, a_demand(7500))
    there = snapshot([one], [running(5000, 3, until=500.0), running(5000, 4, gpu=1, until=100.0)], gpus=2)
    (only,) = blockers(there, one)
    assert (only.lift.jobs, only.lift.at) == ((4,), 100.0)


def test_nobody_can_say_when_a_job_without_a_limit_ends():
    one = QueuedJob(9, a_demand(7500))
    (only,) = blockers(snapshot([one], [running(5000, 3)]), one)
    assert (only.lift.jobs, only.lift.at) == ((3,), None)


def test_everything_that_is_short_is_told_and_the_binding_one_first():
    one = QueuedJob(9, replace(a_demand(7500), cpus=4, host_memory=8 * GIB))
    there = snapshot([one], [running(5000, 3, until=50.0)], host=HostRoom(cpus=2, memory=GIB))
    found = blockers(there, one)
    assert [each.cause.what for each in found] == ["cpus", "host memory", "share"]


def test_the_reservation_of_a_job_before_it_is_a_blocker_that_ends_with_its_start():
    top, small = QueuedJob(1, a_demand(WHOLE)), QueuedJob(2, a_demand(2500))
    there = snapshot([top, small], [running(5000, 3, until=900.0)])
    (only,) = blockers(there, small)
    assert only.cause.reason is Reason.RESERVED_FOR_TOP
    assert (only.lift.jobs, only.lift.at, only.lift.is_start) == ((1,), 900.0, True)


def limited(**caps):
    return Policy(partitions=(Partition(name="main", per_user=Limits(**caps)),))


def test_a_limit_is_lifted_by_the_first_end_of_those_that_fill_it():
    ann, bob = LimitedUser("ann"), LimitedUser("bob")
    one = QueuedJob(9, a_demand(1000), owner=ann)
    jobs = [running(1000, 3, until=70.0, owner=ann), running(1000, 4, until=60.0, owner=ann)]
    jobs.append(running(1000, 5, until=10.0, owner=bob))
    (only,) = blockers(snapshot([one], jobs, policy=limited(running=2)), one)
    assert only.cause.reason is Reason.MAX_JOBS_PER_USER
    assert (only.lift.jobs, only.lift.at) == ((4,), 60.0)


def test_a_smaller_share_is_advised_as_large_as_it_can_be():
    one = QueuedJob(9, a_demand(7500))
    (found,) = advice(snapshot([one], [running(4600, 3)]), one)
    assert (found.change.option, found.change.before, found.change.after) == ("gpus", 7500, 5400)
    assert [hold.gpu for hold in found.start.holds] == [0]


def test_the_smallest_change_comes_first():
    one = QueuedJob(9, replace(a_demand(7500), cpus=10))
    there = snapshot([one], [running(1000, 3)], host=HostRoom(cpus=9, memory=0))
    assert [each.change.option for each in advice(there, one)] == ["cpus-per-task"]


def test_a_time_limit_that_ends_before_the_reservation_is_advised():
    top, small = QueuedJob(1, a_demand(WHOLE)), QueuedJob(2, a_demand(2500), 7200)
    found = advice(snapshot([top, small], [running(5000, 3, until=1000.0)]), small)
    assert [(each.change.option, each.change.after) for each in found] == [("time", 960)]


def test_fewer_cards_are_advised_where_some_are_free():
    one = QueuedJob(9, a_demand(WHOLE, gpus=3))
    found = advice(snapshot([one], [running(WHOLE, 3)], gpus=3), one)
    assert ("gpus", 2) in [(each.change.option, each.change.job.demand.gpus) for each in found]


def test_nothing_is_advised_where_nothing_helps():
    one = QueuedJob(9, a_demand(2500))
    assert advice(snapshot([one], [running(WHOLE, 3)]), one) == []


def test_a_question_leaves_the_queue_as_it_was():
    jobs = [
        QueuedJob(1, a_demand(WHOLE)),
        QueuedJob(2, a_demand(2500), 600, since=3.0),
        QueuedJob(4, a_demand(1), 9, 5),
    ]
    there = snapshot(jobs, [running(5000, 3, until=100.0)])
    blockers(there, jobs[1])
    advice(there, jobs[1])
    forecast(there, lambda job: 10.0, lambda job: job.until, {1, 2, 4})
    assert [there.queue.entry(job.id) for job in jobs] == jobs
    assert len(there.queue) == 3


def test_jobs_start_one_after_the_other_as_those_before_them_end():
    queue = [QueuedJob(number, a_demand(WHOLE), 100) for number in (1, 2, 3)]
    there = snapshot(queue, [running(5000, 9, until=50.0)], now=10.0)
    found = forecast(there, lambda job: job.time_limit, lambda job: job.until, {1, 2, 3})
    assert {job: one.at for job, one in found.starts.items()} == {1: 50.0, 2: 150.0, 3: 250.0}
    assert found.over[: found.starts[2].before] == [9, 1]


def test_the_memory_of_a_forecast_grows_with_the_jobs_and_not_with_their_square():
    """Each start has the number of the jobs that end before it; their ids are kept once."""
    there = snapshot([QueuedJob(number, a_demand(500), 100) for number in range(1, 4001)])
    tracemalloc.start()
    try:
        found = forecast(there, lambda job: 100.0, lambda job: job.until, set(range(1, 4001)))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.starts) == 4000
    assert most < 10 * 2**20, "63 MiB if each start has the ids"


def test_an_array_starts_as_many_at_a_time_as_fit():
    there = snapshot([QueuedJob(1, a_demand(5000), 100, 4), QueuedJob(2, a_demand(WHOLE), 100)])
    found = _starts(there, lambda job: 100.0, lambda job: job.until, {1, 2})
    assert (found[1].at, found[2].at) == (0.0, 200.0)


def test_nothing_is_foretold_behind_a_job_that_never_ends():
    there = snapshot([QueuedJob(1, a_demand(WHOLE))], [running(5000, 9)])
    assert _starts(there, lambda job: 1.0, lambda job: job.until, {1}) == {}


def test_the_limit_of_a_user_counts_in_the_forecast_too():
    ann = LimitedUser("ann")
    queue = [QueuedJob(number, a_demand(1000), 100, owner=ann) for number in (1, 2)]
    there = snapshot(queue, policy=limited(running=1))
    found = _starts(there, lambda job: 100.0, lambda job: job.until, {1, 2})
    assert (found[1].at, found[2].at) == (0.0, 100.0)


def test_what_is_likely_is_the_middle_of_what_was_used_of_the_limit():
    runs = [CompletedRun(1, "train", elapsed, 100) for elapsed in (10, 20, 50)]
    history = RunHistory(runs)
    assert history.likely((1, "train"), 1000) == 200
    assert history.likely((1, "train"), 1000, 0.9) == 500
    assert history.likely((1, "train"), 0) == 20
    assert history.likely((1, "other"), 1000) is None


def test_a_run_that_the_present_one_has_outlived_is_no_evidence():
    history = RunHistory([CompletedRun(1, "train", elapsed, 0) for elapsed in (10, 20, 30, 40, 50)])
    assert history.likely((1, "train"), 0, elapsed=15) == 40
    assert history.likely((1, "train"), 0, elapsed=25) == 40
    assert history.likely((1, "train"), 0, elapsed=35) is None
    assert history.likely((1, "train"), 0, elapsed=1000) is None


def test_two_runs_are_not_enough_for_a_forecast():
    history = RunHistory([CompletedRun(1, "train", elapsed, 0) for elapsed in (10, 20)])
    assert history.likely((1, "train"), 0) is None


@pytest.mark.parametrize(
    ("name", "line", "work"),
    [
        ("train", "fgsub --job-name=train a.sh", "train"),
        ("wrap", "fgsub -J wrap a.sh", "wrap"),
        ("wrap", "fgsub --wrap true", "/d\nfgsub --wrap true"),
        ("a.sh", "fgsub -t 5 jobs/a.sh 7", "/d\nfgsub -t 5 jobs/a.sh 7"),
        ("python3", "fgrun python3 x.py", "/d\nfgrun python3 x.py"),
        ("bash", "fgrun bash", ""),
        ("sbatch", "sbatch", ""),
        ("wrap", "", ""),
    ],
)
def test_a_default_name_is_no_evidence(name, line, work):
    assert work_of_line(name, line, "/d") == work


def test_no_run_is_thought_to_pass_its_limit():
    history = RunHistory([CompletedRun(1, "train", 120, 100)] * 3 + [CompletedRun(1, "old", 500, 0)] * 3)
    assert history.likely((1, "train"), 60) == 60
    assert history.likely((1, "old"), 60) == 60


demands = (
    st.builds(
        Demand,
        gpus=st.sampled_from([0, 1, 1, 1, 2]),
        share=st.sampled_from([1000, 2500, 3000, 5000, 7500, WHOLE]),
        cpus=st.integers(1, 4),
        host_memory=st.sampled_from([0, GIB, 4 * GIB]),
    )
    .map(lambda one: one if one.gpus else replace(one, share=0))
    .map(lambda one: replace(one, share=WHOLE) if one.gpus > 1 else one)
)
waiting = st.lists(
    st.tuples(demands, st.sampled_from([0, 60, 600, 7200]), st.integers(1, 3)), min_size=1, max_size=8
)


def settled(queue, gpus):
    """A scene in which everything that can start has: the rest waits."""
    there = snapshot(
        queue,
        gpus=gpus,
        host=HostRoom(cpus=8, memory=8 * GIB),
        limits=HostLimits(cpus=8, host_memory=8 * GIB),
    )
    for _ in range(20):
        starts = there.plan().starts
        if not starts:
            return there
        for start in starts:
            entry = there.queue.entry(start.job_id)
            until = entry.time_limit or math.inf
            there.running.append(Running(entry.demand, start.holds, until, "main", id=entry.id))
            if entry.count > 1:
                there.queue.add(replace(entry, count=entry.count - 1))
            else:
                there.queue.remove(entry.id)
        held = [(hold, False) for job in there.running for hold in job.holds]
        used = [job.demand for job in there.running]
        left = HostRoom(8 - sum(one.cpus for one in used), 8 * GIB - sum(one.host_memory for one in used))
        there = replace(there, free=rooms([a_gpu(i) for i in range(gpus)], held, {}), host=left)
    raise AssertionError("it goes on starting")


@settings(max_examples=150, deadline=None)
@given(waiting, st.integers(1, 3))
def test_every_job_that_waits_has_a_blocker_and_every_advice_starts_it(jobs, gpus):
    queue = [QueuedJob(number, demand, limit, count) for number, (demand, limit, count) in enumerate(jobs, 1)]
    queue = [job for job in queue if job.demand.gpus <= gpus]
    there = settled(queue, gpus)
    decided = there.plan()
    for job in [entry for one in queue if (entry := there.queue.entry(one.id))]:
        found = blockers(there, job, decided)
        assert found
        assert found[0].cause == decided.shortfall(job.kind)
        for each in advice(there, job, decided):
            with there.with_job(each.change.job):
                assert each.start in there.plan().starts
            assert each.change.size > 0


@settings(max_examples=100, deadline=None)
@given(waiting, st.integers(1, 3))
def test_a_forecast_never_starts_a_job_before_its_blockers_can_be_lifted(jobs, gpus):
    queue = [QueuedJob(number, demand, limit or 300) for number, (demand, limit, _) in enumerate(jobs, 1)]
    queue = [job for job in queue if job.demand.gpus <= gpus]
    there = settled(queue, gpus)
    left = [entry for one in queue if (entry := there.queue.entry(one.id))]
    found = _starts(there, lambda job: job.time_limit, lambda job: job.until, {job.id for job in left})
    assert set(found) == {job.id for job in left}, "every job has a limit: each will start"
    for job in left:
        by_ends = [each.lift for each in blockers(there, job) if not each.lift.is_start and each.lift.jobs]
        assert found[job.id].at >= max((_never(lift.at) for lift in by_ends), default=0.0)


def test_an_answer_makes_fewer_plans_where_many_kinds_wait():
    few = snapshot([QueuedJob(1, a_demand(WHOLE))])
    many = snapshot([QueuedJob(number, Demand(cpus=number)) for number in range(1, 2001)])
    assert (few.plans(400), many.plans(400)) == (400, 50)


def test_no_more_changes_are_tried_than_may_be():
    one = QueuedJob(9, a_demand(7500))
    there = snapshot([one, QueuedJob(10, a_demand(5000))], [running(4600, 3)])
    assert advice(there, one, most=0) == []
