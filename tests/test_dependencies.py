"""What jobs wait for besides room: other jobs, a time, a deadline; and what the host's failures cost them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import ROOT, World, a_demand, a_gpu, a_result
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.dependencies import UnmetConditions
from fgsched.controller.jobtable import eligible
from fgsched.domain.errors import FgschedError, NotPermitted, Refused
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import BadValue
from fgsched.lifecycle.dependencies import (
    ConditionState,
    Dependency,
    TargetState,
    Term,
    for_task,
    judge,
    parse_dependency,
    unmet_part,
)
from test_arrays import outcomes

ANN = Caller(1, 1, "ann", is_operator=False)
BOB = Caller(2, 2, "bob", is_operator=False)

# -- what is written --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("12", "afterany:12"),
        ("12:13", "afterany:12,afterany:13"),
        ("afterok:12:13_4", "afterok:12,afterok:13_4"),
        ("after:12+5,singleton", "after:12+5,singleton"),
        ("afterok:12?afternotok:13", "afterok:12?afternotok:13"),
        ("afterok:last", "afterok:last"),
        ("afterok:12,afterok:12", "afterok:12"),
    ],
)
def test_a_dependency_has_one_form(text, written):
    assert str(parse_dependency(text)) == written
    assert str(parse_dependency(written)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "afterok",
        "afterok:",
        "afterok:x",
        "afterok:0",
        "before:3",
        "3,4?5",
        "afterok:3+5",
        "singleton:3",
        "3,",
    ],
)
def test_what_is_no_dependency_is_refused(text):
    with pytest.raises(BadValue):
        parse_dependency(text)


@pytest.mark.parametrize("target", ["9223372036854775808", "99999999999999999999", "99999999999999999999_3"])
def test_an_id_that_no_job_can_have_is_that_of_no_job(target):
    with pytest.raises(Refused, match=f"Job dependency problem: job {target} does not exist"):
        parse_dependency(f"afterok:{target}")


OVER, GONE_WRONG, RUNS, WAITS = (
    TargetState(True, False, 5.0),
    TargetState(True, True, 5.0),
    TargetState(False, False, 100.0),
    TargetState(False),
)


@pytest.mark.parametrize(
    ("kind", "over", "wrong", "runs", "waits"),
    [
        ("after", "met", "met", "met", "open"),
        ("afterany", "met", "met", "open", "open"),
        ("afterok", "met", "never", "open", "open"),
        ("afternotok", "never", "met", "open", "open"),
        ("aftercorr", "met", "never", "open", "open"),
    ],
)
def test_each_kind_says_what_the_manual_does(kind, over, wrong, runs, waits):
    found = [judge(Term(kind, 12), fact, 200.0).value for fact in (OVER, GONE_WRONG, RUNS, WAITS)]
    assert found == [over, wrong, runs, waits]


def test_after_waits_for_its_minutes():
    assert judge(Term("after", 12, minutes=2), RUNS, 219.0) is ConditionState.OPEN
    assert judge(Term("after", 12, minutes=2), RUNS, 220.0) is ConditionState.MET


def test_an_array_one_of_whose_tasks_failed_can_never_be_all_right():
    assert judge(Term("afterok", 12), TargetState(False, True), 0.0) is ConditionState.NEVER


@given(st.lists(st.sampled_from(ConditionState), min_size=1, max_size=6), st.booleans())
def test_what_is_left_is_what_is_open_unless_that_decides_nothing(standings, one_will_do):
    terms = tuple(Term("afterok", number) for number in range(1, len(standings) + 1))
    of = dict(zip(terms, standings, strict=True))
    still = unmet_part(Dependency(terms, one_will_do), of)
    decisive, fatal = (
        (ConditionState.MET, ConditionState.NEVER)
        if one_will_do
        else (ConditionState.NEVER, ConditionState.MET)
    )
    if decisive in standings:
        assert (still is None) is not one_will_do
    elif ConditionState.OPEN in standings:
        assert still is not None
        assert [of[term] for term in still.terms] == [ConditionState.OPEN] * standings.count(
            ConditionState.OPEN
        )
    else:
        assert set(standings) == {fatal}
        assert (still is None) is one_will_do


def test_a_task_of_an_array_corresponds_to_one_task():
    assert for_task("aftercorr:12,afterok:13", 4) == "aftercorr:12_4,afterok:13"
    assert for_task("", 4) == ""


# -- what happens -----------------------------------------------------------------------------------


def a_world(*demands, **more):
    world = World([a_gpu(0)])
    for demand in demands or (a_demand(2500),):
        world.submit([demand], **more)
    world.settle()
    return world


def end(world, job_id, status=0):
    job = world.job(job_id)
    world.host.finish(job_id, job.attempt, a_result(status))
    world.settle()


def state(world, job_id):
    job = world.job(job_id)
    return job.state.code, world.engine.jobtable.reason(job).value


def after(world, dependency, **more):
    world.submit([a_demand(100)], dependency=dependency, **more)
    world.settle()
    return world.store.last_id()


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("afterany", ("R", "None"), ("R", "None")),
        ("afterok", ("R", "None"), ("PD", "DependencyNeverSatisfied")),
        ("afternotok", ("PD", "DependencyNeverSatisfied"), ("R", "None")),
    ],
)
@pytest.mark.parametrize("status", [0, 256])
def test_a_job_goes_on_or_never_will_as_soon_as_the_other_ends(kind, good, bad, status):
    world = a_world()
    job = after(world, f"{kind}:1")
    assert state(world, job) == ("PD", "Dependency")
    end(world, 1, status)
    assert state(world, job) == (bad if status else good)


def test_a_job_that_can_never_start_is_cancelled_where_that_is_wanted():
    world = a_world()
    job = after(world, "afterok:1", kill_invalid="yes")
    end(world, 1, 256)
    assert (world.job(job).state, world.job(job).reason) == (JobState.CANCELLED, Reason.DEPENDENCY_NEVER)


def test_what_has_come_true_is_gone_from_what_is_left():
    world = a_world(a_demand(100), a_demand(100))
    job = after(world, "afterok:1,afterok:2")
    end(world, 1)
    assert world.job(job).depends == "afterok:2"
    assert world.job(job).request.dependency == "afterok:1,afterok:2"


def test_one_of_several_will_do():
    world = a_world(a_demand(100), a_demand(100))
    job = after(world, "afterok:1?afterok:2")
    end(world, 1, 256)
    assert (state(world, job), world.job(job).depends) == (("PD", "Dependency"), "afterok:2")
    end(world, 2)
    assert state(world, job)[0] == "R"


def test_an_old_job_counts_though_the_book_has_forgotten_it():
    world = a_world()
    end(world, 1)
    assert 1 not in world.engine.jobtable.jobs
    assert state(world, after(world, "afterok:1"))[0] == "R"
    assert state(world, after(world, "afternotok:1")) == ("PD", "DependencyNeverSatisfied")


def test_after_waits_until_the_job_has_been_started_and_then_for_its_minutes():
    world = a_world(a_demand(WHOLE), a_demand(WHOLE))
    job = after(world, "after:2+1")
    end(world, 1)
    assert (state(world, 2)[0], state(world, job)) == ("R", ("PD", "Dependency"))
    due = world.engine.jobtable.wait_index.next_due
    assert due == world.job(2).started_at + 60
    world.now = due
    world.settle()
    assert world.job(job).depends == ""


def test_the_minutes_after_an_array_begin_when_its_tasks_have_been_started():
    world = a_world(a_demand(100), array="0-1")
    job = after(world, "after:1+1")
    assert state(world, job) == ("PD", "Dependency")
    started = max(row.started_at for row in world.engine.jobtable.jobs.values() if row.started_at)
    for row in sorted(row for row, _ in world.host.running):
        end(world, row)
    assert world.engine.jobtable.wait_index.next_due == started + 60
    world.now = started + 60
    world.settle()
    assert world.job(job).depends == ""


def test_of_one_name_only_one_runs():
    world = a_world()
    first, second = after(world, "singleton"), after(world, "singleton")
    assert [state(world, job)[0] for job in (first, second)] == ["PD", "PD"]
    end(world, 1)
    assert [state(world, job)[0] for job in (first, second)] == ["R", "PD"]
    end(world, first)
    assert state(world, second)[0] == "R"


def unmet(world, job):
    return UnmetConditions(world.engine, world.now).text(world.job(job))


def test_slurm_s_names_show_the_state_of_each_condition():
    world = a_world(array="0-2")
    world.submit([a_demand(WHOLE)])
    other = world.store.last_id()
    job = after(
        world, f"afterok:1,afterok:1_2,after:{other}+5,afternotok:{other},singleton", kill_invalid="no"
    )
    waiting = f"after:{other}+5(unfulfilled),afternotok:{other}(unfulfilled),singleton(unfulfilled)"
    assert unmet(world, job) == f"afterok:1_*(unfulfilled),afterok:1_2(unfulfilled),{waiting}"
    end(world, world.store.tasks.get(1, 2).job.id, 256)
    assert state(world, job) == ("PD", "DependencyNeverSatisfied")
    assert unmet(world, job) == f"afterok:1_*(failed),afterok:1_2(failed),{waiting}"
    assert unmet(world, other) == ""
    one_of = after(world, f"afterok:1?afterany:{other}")
    assert unmet(world, one_of) == f"afterany:{other}(unfulfilled)"


def test_a_whole_array_is_waited_for():
    world = a_world(array="0-2")
    job = after(world, "afterok:1")
    for task in (0, 1):
        end(world, world.store.tasks.get(1, task).job.id)
        assert state(world, job) == ("PD", "Dependency")
    end(world, 1)
    assert state(world, job)[0] == "R"


def test_a_task_that_fails_decides_for_its_whole_array_at_once():
    world = a_world(array="0-2")
    job = after(world, "afterok:1")
    end(world, world.store.tasks.get(1, 1).job.id, 256)
    assert state(world, job) == ("PD", "DependencyNeverSatisfied")


def test_tasks_of_one_index_follow_each_other():
    world = a_world(array="0-2")
    array = after(world, "aftercorr:1", array="0-2")
    assert state(world, array) == ("PD", "Dependency")
    end(world, world.store.tasks.get(1, 1).job.id)
    assert world.store.tasks.get(array, 1).job.state is JobState.RUNNING
    end(world, world.store.tasks.get(1, 0).job.id, 256)
    never = world.store.tasks.get(array, 0).job
    assert (never.state, never.reason, never.depends) == (
        JobState.PENDING,
        Reason.DEPENDENCY_NEVER,
        "aftercorr:1_0",
    )
    end(world, 1)
    assert world.store.tasks.get(array, 2).job.state is JobState.RUNNING


def test_tasks_wait_for_a_job_that_is_no_array_as_a_whole():
    world = a_world()
    array = ask(world, ANN, "aftercorr:1", array="0-2")["first"]
    assert world.job(array).depends == "afterok:1"
    end(world, 1, 256)
    assert state(world, array) == ("PD", "DependencyNeverSatisfied")


@pytest.mark.parametrize("crash", [False, True])
def test_dependencies_are_what_they_were_for_the_next_controller(crash):
    world = a_world(array="0-2")
    array, job = after(world, "aftercorr:1", array="0-2"), after(world, "afterok:1")
    end(world, world.store.tasks.get(1, 1).job.id)
    if crash:
        world.start()
        world.settle()
    assert state(world, job) == ("PD", "Dependency")
    assert [past.job.task for past in world.store.tasks.of(array)] == [1, None]
    end(world, world.store.tasks.get(1, 0).job.id)
    assert [past.job.task for past in world.store.tasks.of(array)] == [0, 1, None]
    end(world, 1)
    assert [past.job.task for past in world.store.tasks.of(array)] == [0, 1, 2], "the last takes the row"


def test_an_end_has_only_its_dependants_looked_at():
    world = a_world(a_demand(100), a_demand(100))
    for _ in range(20):
        after(world, "afterok:2")
    looked = []
    real = world.engine.eligibility._look
    world.engine.eligibility._look = lambda job, now: (looked.append(job), real(job, now))
    end(world, 1)
    assert looked == []


# -- what is asked ----------------------------------------------------------------------------------


def ask(world, caller, dependency, **more):
    request = {"name": "x", "dependency": dependency, **more}
    message = {"key": f"key-{world.now}-0123456789", "scripts": ["#!/bin/sh\n"], "environments": [{}]}
    return world.ask(caller, "submit", requests=[request], jobs=[[0, 0, 0, False]], **message)


def test_a_job_that_there_is_not_is_refused():
    with pytest.raises(Refused, match="Job dependency problem: job 999 does not exist"):
        ask(a_world(), ANN, "afterok:999")


def test_a_job_of_somebody_else_is_nobodys_to_depend_on_and_is_not_named():
    with pytest.raises(NotPermitted, match="job 1 belongs to another user") as error:
        ask(a_world(), BOB, "afterok:1")
    assert "ann" not in str(error.value)


def test_a_task_that_the_array_has_not_is_refused():
    with pytest.raises(Refused, match="job 1 has no task 7"):
        ask(a_world(array="0-2"), ANN, "afterok:1_7")
    with pytest.raises(Refused, match="array 1 has no task 3"):
        ask(a_world(array="0-2"), ANN, "aftercorr:1", array="0-3")


def test_the_last_submission_has_a_name():
    world = a_world()
    made = ask(world, ANN, "afterok:last")["first"]
    assert world.job(made).depends == "afterok:1"


def test_a_cycle_is_refused_and_shown():
    world = a_world()
    second, third = after(world, "afterok:1"), after(world, "afterok:2")
    world.submit([a_demand(WHOLE)])
    with pytest.raises(Refused, match=f"cycle: {second} → {third} → {second}"):
        world.ask(ANN, "update", id=second, changes={"dependency": f"afterok:{third}"})
    with pytest.raises(Refused, match=f"cycle: {second} → {second}"):
        world.ask(ANN, "update", id=second, changes={"dependency": f"afterok:{second}"})
    assert world.job(second).depends == "afterok:1"


def test_another_dependency_gives_a_job_another_chance():
    world = a_world()
    job = after(world, "afternotok:1")
    end(world, 1)
    assert state(world, job)[1] == "DependencyNeverSatisfied"
    world.ask(ANN, "update", id=job, changes={"dependency": ""})
    world.settle()
    assert state(world, job)[0] == "R"


# -- time -------------------------------------------------------------------------------------------


def test_a_job_begins_no_sooner_than_it_was_to_and_the_loop_is_told_when():
    world = a_world(begin=5000)
    assert state(world, 1) == ("PD", "BeginTime")
    assert world.engine.jobtable.wait_index.next_due == 5000
    world.now = 4998.5
    world.turn()
    assert state(world, 1)[0] == "PD"
    world.turn()
    assert state(world, 1)[0] != "PD"


def test_a_job_is_eligible_from_when_nothing_but_room_keeps_it_back():
    world = a_world()
    late = after(world, "", begin=int(world.now) + 50)
    waits = after(world, "afterany:1")
    assert eligible(world.job(1)) == world.job(1).submitted_at
    assert eligible(world.job(late)) == world.job(late).request.begin
    assert eligible(world.job(waits)) is None
    end(world, 1)
    first = world.job(waits)
    assert first.submitted_at < eligible(first) == first.started_at
    assert outcomes(world, "requeue", waits) == [(waits, "requeued")]
    world.settle()
    assert first.started_at < eligible(world.job(waits)) <= world.job(waits).started_at


def test_a_job_that_was_held_is_eligible_from_its_release_and_stays_so_for_the_next_controller():
    world = a_world(a_demand(WHOLE))
    waits = after(world, "")
    outcomes(world, "hold", waits)
    assert eligible(world.job(waits)) is None
    assert outcomes(world, "release", waits) == [(waits, "released")]
    assert eligible(world.job(waits)) == world.now > world.job(waits).submitted_at
    world.start()
    assert eligible(world.engine.jobtable.jobs[waits]) == world.now


def test_a_dependency_that_is_taken_back_makes_a_job_eligible():
    world = a_world()
    waits = after(world, "afterok:1")
    world.ask(ROOT, "update", id=waits, changes={"dependency": ""})
    assert world.job(waits).submitted_at < eligible(world.job(waits)) == world.job(waits).started_at


def test_a_task_is_eligible_from_the_end_of_the_one_that_it_corresponds_to():
    world = a_world(a_demand(5000), array="0-1")
    array = after(world, "aftercorr:1", array="0-1")
    end(world, world.store.tasks.get(1, 1).job.id)
    task = world.store.tasks.get(array, 1).job
    assert task.opened_at == world.store.tasks.get(1, 1).job.ended_at


def test_a_job_that_is_cancelled_before_it_could_start_never_was_eligible():
    world = a_world(begin=5000)
    outcomes(world, "cancel", 1)
    assert eligible(world.job(1)) is None


def test_a_job_that_cannot_end_in_time_is_removed():
    world = a_world(a_demand(WHOLE))
    world.submit([a_demand(WHOLE)], deadline=2000, time_limit=600)
    world.now = 1399.0
    world.turn()
    assert (world.job(2).state, world.job(2).reason) == (JobState.DEADLINE, Reason.DEADLINE)


def test_a_job_that_is_ended_at_its_deadline_says_so():
    world = a_world(deadline=2000)
    assert world.job(1).deadline == 2000
    world.host.finish(1, 1, a_result(15, "timeout", ended_at=2000.5))
    world.settle()
    assert world.job(1).state is JobState.DEADLINE


def test_a_deadline_that_leaves_no_time_is_refused():
    with pytest.raises(Refused, match="cannot end before its deadline"):
        ask(a_world(), ANN, "", deadline=1500, time_limit=600)


# -- again ------------------------------------------------------------------------------------------


def reboot(world):
    world.host.boot += "x"
    for attempt in world.host.attempts.values():
        attempt.shepherd = attempt.alive = False
    world.start()
    world.settle()


def test_a_job_that_the_host_failed_runs_again_and_adds_to_its_output():
    world = a_world()
    reboot(world)
    job = world.job(1)
    assert (job.state, job.restarts, job.attempt) == (JobState.RUNNING, 1, 2)


def test_one_that_may_not_run_again_does_not():
    world = a_world(requeue=False)
    reboot(world)
    assert world.job(1).state is JobState.NODE_FAIL


def test_a_job_that_the_host_fails_again_and_again_has_to_wait_and_at_last_is_held():
    world = a_world()
    waits = []
    for _ in range(20):
        reboot(world)
        due = world.engine.jobtable.wait_index.next_due
        waits.append(world.job(1).not_before > world.now)
        world.now = max(world.now, due or 0)
        world.settle()
    assert waits[:2] == [False, False]
    assert True in waits
    assert state(world, 1) == ("PD", "JobHoldMaxRequeue")
    assert world.job(1).failures == 6
    outcomes(world, "release", 1)
    world.settle()
    assert world.job(1).failures == 0
    assert state(world, 1)[0] == "R"


def test_a_job_is_requeued_with_its_id_and_its_dependants_wait_on():
    world = a_world()
    job = after(world, "afterany:1")
    assert outcomes(world, "requeue", 1) == [(1, "requeued")]
    world.settle()
    assert (world.job(1).state, world.job(1).restarts, world.job(1).attempt) == (JobState.RUNNING, 1, 2)
    assert state(world, job) == ("PD", "Dependency")


def test_a_job_that_completes_before_it_is_ended_is_not_run_again():
    world = a_world()
    world.host.requeue = lambda job: True
    outcomes(world, "requeue", 1)
    end(world, 1)
    assert world.job(1).state is JobState.COMPLETED


def test_a_requeued_job_that_is_cancelled_stays_cancelled():
    world = a_world()
    world.host.requeue = lambda job: True
    outcomes(world, "requeue", 1)
    outcomes(world, "cancel", 1)
    world.settle()
    assert (world.job(1).state, world.job(1).attempt) == (JobState.CANCELLED, 1)


def test_a_job_is_requeued_though_the_power_failed_before_its_shepherd_was_told():
    world = a_world()
    world.host.requeue = lambda job: True
    outcomes(world, "requeue", 1)
    del world.host.requeue
    world.start()
    world.settle()
    assert (world.job(1).restarts, world.job(1).wish) == (1, "")


def test_a_job_is_put_back_and_held():
    world = a_world()
    outcomes(world, "requeue", 1, hold=True)
    world.settle()
    assert state(world, 1) == ("PD", "JobHeldAdmin")


def test_a_job_that_was_to_run_again_once_its_cards_are_clean_can_be_cancelled_until_then():
    world = a_world()
    states = world.engine.gpu_states
    states.needs_cleaning = True
    outcomes(world, "requeue", 1)
    world.settle()
    assert (world.job(1).state, world.job(1).outcome) == (JobState.COMPLETING, JobState.PENDING)
    assert outcomes(world, "cancel", 1) == [(1, "cancelled")]
    states.needs_cleaning = False
    world.settle()
    assert (world.job(1).state, world.job(1).cancelled_by) == (JobState.CANCELLED, 0)


@pytest.mark.parametrize("crash", [False, True])
def test_a_requeued_job_waits_until_its_cards_are_clean(crash):
    world = a_world()
    world.engine.gpu_states.needs_cleaning = True
    outcomes(world, "requeue", 1)
    world.settle()
    assert world.job(1).state is JobState.COMPLETING
    if crash:
        world.start()
    world.engine.gpu_states.needs_cleaning = False
    world.settle()
    assert (world.job(1).state, world.job(1).restarts, world.job(1).attempt) == (JobState.RUNNING, 1, 2)


def test_a_pending_job_and_one_that_is_over_are_not_requeued():
    world = a_world(a_demand(WHOLE), a_demand(WHOLE))
    assert outcomes(world, "requeue", 2) == [(2, "job 2 is pending already")]
    end(world, 1)
    assert outcomes(world, "requeue", 1) == [(1, "job 1 is already completing or completed")]


# -- standing still -----------------------------------------------------------------------------------


def test_a_suspended_job_keeps_its_share_and_its_time_stands_still():
    world = a_world(a_demand(WHOLE), time_limit=600)
    outcomes(world, "suspend", 1)
    assert (world.job(1).state, world.host.stopped) == (JobState.SUSPENDED, {(1, 1)})
    assert [hold.share for hold in world.holds()] == [WHOLE]
    before = world.job(1).deadline
    world.now += 50
    outcomes(world, "resume_jobs", 1)
    job = world.job(1)
    assert (job.state, world.host.stopped, job.suspended) == (JobState.RUNNING, set(), 51.0)
    assert job.deadline == before + 51


def test_only_an_operator_suspends():
    with pytest.raises(NotPermitted):
        a_world().ask(ANN, "suspend", ids=[1])


@pytest.mark.parametrize("resumed", [False, True])
def test_what_a_shepherd_was_not_told_it_is_told_by_the_next_controller(resumed):
    world = a_world()
    outcomes(world, "suspend", 1)
    if resumed:
        world.host.resume = lambda job: True
        outcomes(world, "resume_jobs", 1)
        del world.host.resume
    else:
        world.host.stopped.clear()
    world.start()
    world.settle()
    assert world.host.stopped == (set() if resumed else {(1, 1)})


def test_a_suspended_job_is_cancelled_and_requeued_as_a_running_one():
    world = a_world(a_demand(100), a_demand(100))
    outcomes(world, "suspend", 1, 2)
    outcomes(world, "cancel", 1)
    outcomes(world, "requeue", 2)
    world.settle()
    assert world.job(1).state is JobState.CANCELLED
    assert (world.job(2).state, world.job(2).suspended) == (JobState.RUNNING, 0.0)


def test_a_refusal_names_the_state():
    world = a_world()
    assert outcomes(world, "resume_jobs", 1) == [(1, "job 1 is RUNNING")]
    with pytest.raises(FgschedError):
        world.ask(ANN, "update", id=1, changes={"begin": 99})
