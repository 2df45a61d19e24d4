"""What jobs wait for besides room: other jobs, a time, a deadline; and what the host's failures cost them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_demand, a_gpu, a_result
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.unmet import UnmetConditions
from fgsched.controller.waitindex import eligible
from fgsched.domain.errors import FgschedError, NotPermitted, Refused
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import BadValue
from fgsched.lifecycle.dependencies import (
    ConditionState,
    Dependency,
    Fact,
    Term,
    for_task,
    judge,
    left,
    parse_dependency,
)
from test_arrays import Hall

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
    Fact(True, False, 5.0),
    Fact(True, True, 5.0),
    Fact(False, False, 100.0),
    Fact(False),
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
    assert judge(Term("afterok", 12), Fact(False, True), 0.0) is ConditionState.NEVER


@given(st.lists(st.sampled_from(ConditionState), min_size=1, max_size=6), st.booleans())
def test_what_is_left_is_what_is_open_unless_that_decides_nothing(standings, one_will_do):
    terms = tuple(Term("afterok", number) for number in range(1, len(standings) + 1))
    of = dict(zip(terms, standings, strict=True))
    still = left(Dependency(terms, one_will_do), of)
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


def a_hall(*demands, **more):
    hall = Hall([a_gpu(0)])
    for demand in demands or (a_demand(2500),):
        hall.submit([demand], **more)
    hall.settle()
    return hall


def end(hall, job_id, status=0):
    job = hall.job(job_id)
    hall.host.finish(job_id, job.attempt, a_result(status))
    hall.settle()


def state(hall, job_id):
    job = hall.job(job_id)
    return job.state.code, hall.engine.jobtable.reason(job).value


def after(hall, dependency, **more):
    hall.submit([a_demand(100)], dependency=dependency, **more)
    hall.settle()
    return hall.store.last_id()


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
    hall = a_hall()
    job = after(hall, f"{kind}:1")
    assert state(hall, job) == ("PD", "Dependency")
    end(hall, 1, status)
    assert state(hall, job) == (bad if status else good)


def test_a_job_that_can_never_start_is_cancelled_where_that_is_wanted():
    hall = a_hall()
    job = after(hall, "afterok:1", kill_invalid="yes")
    end(hall, 1, 256)
    assert (hall.job(job).state, hall.job(job).reason) == (JobState.CANCELLED, Reason.DEPENDENCY_NEVER)


def test_what_has_come_true_is_gone_from_what_is_left():
    hall = a_hall(a_demand(100), a_demand(100))
    job = after(hall, "afterok:1,afterok:2")
    end(hall, 1)
    assert hall.job(job).depends == "afterok:2"
    assert hall.job(job).request.dependency == "afterok:1,afterok:2"


def test_one_of_several_will_do():
    hall = a_hall(a_demand(100), a_demand(100))
    job = after(hall, "afterok:1?afterok:2")
    end(hall, 1, 256)
    assert (state(hall, job), hall.job(job).depends) == (("PD", "Dependency"), "afterok:2")
    end(hall, 2)
    assert state(hall, job)[0] == "R"


def test_an_old_job_counts_though_the_book_has_forgotten_it():
    hall = a_hall()
    end(hall, 1)
    assert 1 not in hall.engine.jobtable.jobs
    assert state(hall, after(hall, "afterok:1"))[0] == "R"
    assert state(hall, after(hall, "afternotok:1")) == ("PD", "DependencyNeverSatisfied")


def test_after_waits_until_the_job_has_been_started_and_then_for_its_minutes():
    hall = a_hall(a_demand(WHOLE), a_demand(WHOLE))
    job = after(hall, "after:2+1")
    end(hall, 1)
    assert (state(hall, 2)[0], state(hall, job)) == ("R", ("PD", "Dependency"))
    due = hall.engine.jobtable.wait_index.next_due
    assert due == hall.job(2).started_at + 60
    hall.now = due
    hall.settle()
    assert hall.job(job).depends == ""


def test_of_one_name_only_one_runs():
    hall = a_hall()
    first, second = after(hall, "singleton"), after(hall, "singleton")
    assert [state(hall, job)[0] for job in (first, second)] == ["PD", "PD"]
    end(hall, 1)
    assert [state(hall, job)[0] for job in (first, second)] == ["R", "PD"]
    end(hall, first)
    assert state(hall, second)[0] == "R"


def unmet(hall, job):
    return UnmetConditions(hall.engine, hall.now).text(hall.job(job))


def test_slurm_s_names_show_the_state_of_each_condition():
    hall = a_hall(array="0-2")
    hall.submit([a_demand(WHOLE)])
    other = hall.store.last_id()
    job = after(
        hall, f"afterok:1,afterok:1_2,after:{other}+5,afternotok:{other},singleton", kill_invalid="no"
    )
    waiting = f"after:{other}+5(unfulfilled),afternotok:{other}(unfulfilled),singleton(unfulfilled)"
    assert unmet(hall, job) == f"afterok:1_*(unfulfilled),afterok:1_2(unfulfilled),{waiting}"
    end(hall, hall.store.tasks.get(1, 2).job.id, 256)
    assert state(hall, job) == ("PD", "DependencyNeverSatisfied")
    assert unmet(hall, job) == f"afterok:1_*(failed),afterok:1_2(failed),{waiting}"
    assert unmet(hall, other) == ""
    one_of = after(hall, f"afterok:1?afterany:{other}")
    assert unmet(hall, one_of) == f"afterany:{other}(unfulfilled)"


def test_a_whole_array_is_waited_for():
    hall = a_hall(array="0-2")
    job = after(hall, "afterok:1")
    for task in (0, 1):
        end(hall, hall.store.tasks.get(1, task).job.id)
        assert state(hall, job) == ("PD", "Dependency")
    end(hall, 1)
    assert state(hall, job)[0] == "R"


def test_a_task_that_fails_decides_for_its_whole_array_at_once():
    hall = a_hall(array="0-2")
    job = after(hall, "afterok:1")
    end(hall, hall.store.tasks.get(1, 1).job.id, 256)
    assert state(hall, job) == ("PD", "DependencyNeverSatisfied")


def test_tasks_of_one_index_follow_each_other():
    hall = a_hall(array="0-2")
    array = after(hall, "aftercorr:1", array="0-2")
    assert state(hall, array) == ("PD", "Dependency")
    end(hall, hall.store.tasks.get(1, 1).job.id)
    assert hall.store.tasks.get(array, 1).job.state is JobState.RUNNING
    end(hall, hall.store.tasks.get(1, 0).job.id, 256)
    never = hall.store.tasks.get(array, 0).job
    assert (never.state, never.reason, never.depends) == (
        JobState.PENDING,
        Reason.DEPENDENCY_NEVER,
        "aftercorr:1_0",
    )
    end(hall, 1)
    assert hall.store.tasks.get(array, 2).job.state is JobState.RUNNING


def test_tasks_wait_for_a_job_that_is_no_array_as_a_whole():
    hall = a_hall()
    array = ask(hall, ANN, "aftercorr:1", array="0-2")["first"]
    assert hall.job(array).depends == "afterok:1"
    end(hall, 1, 256)
    assert state(hall, array) == ("PD", "DependencyNeverSatisfied")


@pytest.mark.parametrize("crash", [False, True])
def test_dependencies_are_what_they_were_for_the_next_controller(crash):
    hall = a_hall(array="0-2")
    array, job = after(hall, "aftercorr:1", array="0-2"), after(hall, "afterok:1")
    end(hall, hall.store.tasks.get(1, 1).job.id)
    if crash:
        hall.start()
        hall.settle()
    assert state(hall, job) == ("PD", "Dependency")
    assert [past.job.task for past in hall.store.tasks.of(array)] == [1, None]
    end(hall, hall.store.tasks.get(1, 0).job.id)
    assert [past.job.task for past in hall.store.tasks.of(array)] == [0, 1, None]
    end(hall, 1)
    assert [past.job.task for past in hall.store.tasks.of(array)] == [0, 1, 2], "the last takes the row"


def test_an_end_has_only_its_dependants_looked_at():
    hall = a_hall(a_demand(100), a_demand(100))
    for _ in range(20):
        after(hall, "afterok:2")
    looked = []
    real = hall.engine.eligibility._look
    hall.engine.eligibility._look = lambda job, now: (looked.append(job), real(job, now))
    end(hall, 1)
    assert looked == []


# -- what is asked ----------------------------------------------------------------------------------


def ask(hall, caller, dependency, **more):
    request = {"name": "x", "dependency": dependency, **more}
    message = {"key": f"key-{hall.now}-0123456789", "scripts": ["#!/bin/sh\n"], "environments": [{}]}
    return hall.ask("submit", caller, requests=[request], jobs=[[0, 0, 0, False]], **message)


def test_a_job_that_there_is_not_is_refused():
    with pytest.raises(Refused, match="Job dependency problem: job 999 does not exist"):
        ask(a_hall(), ANN, "afterok:999")


def test_a_job_of_somebody_else_is_nobodys_to_depend_on_and_is_not_named():
    with pytest.raises(NotPermitted, match="job 1 belongs to another user") as error:
        ask(a_hall(), BOB, "afterok:1")
    assert "ann" not in str(error.value)


def test_a_task_that_the_array_has_not_is_refused():
    with pytest.raises(Refused, match="job 1 has no task 7"):
        ask(a_hall(array="0-2"), ANN, "afterok:1_7")
    with pytest.raises(Refused, match="array 1 has no task 3"):
        ask(a_hall(array="0-2"), ANN, "aftercorr:1", array="0-3")


def test_the_last_submission_has_a_name():
    hall = a_hall()
    made = ask(hall, ANN, "afterok:last")["first"]
    assert hall.job(made).depends == "afterok:1"


def test_a_cycle_is_refused_and_shown():
    hall = a_hall()
    second, third = after(hall, "afterok:1"), after(hall, "afterok:2")
    hall.submit([a_demand(WHOLE)])
    with pytest.raises(Refused, match=f"cycle: {second} → {third} → {second}"):
        hall.ask("update", ANN, id=second, changes={"dependency": f"afterok:{third}"})
    with pytest.raises(Refused, match=f"cycle: {second} → {second}"):
        hall.ask("update", ANN, id=second, changes={"dependency": f"afterok:{second}"})
    assert hall.job(second).depends == "afterok:1"


def test_another_dependency_gives_a_job_another_chance():
    hall = a_hall()
    job = after(hall, "afternotok:1")
    end(hall, 1)
    assert state(hall, job)[1] == "DependencyNeverSatisfied"
    hall.ask("update", ANN, id=job, changes={"dependency": ""})
    hall.settle()
    assert state(hall, job)[0] == "R"


# -- time -------------------------------------------------------------------------------------------


def test_a_job_begins_no_sooner_than_it_was_to_and_the_loop_is_told_when():
    hall = a_hall(begin=5000)
    assert state(hall, 1) == ("PD", "BeginTime")
    assert hall.engine.jobtable.wait_index.next_due == 5000
    hall.now = 4998.5
    hall.turn()
    assert state(hall, 1)[0] == "PD"
    hall.turn()
    assert state(hall, 1)[0] != "PD"


def test_a_job_is_eligible_from_when_nothing_but_room_keeps_it_back():
    hall = a_hall()
    late = after(hall, "", begin=int(hall.now) + 50)
    waits = after(hall, "afterany:1")
    assert eligible(hall.job(1)) == hall.job(1).submitted_at
    assert eligible(hall.job(late)) == hall.job(late).request.begin
    assert eligible(hall.job(waits)) is None
    end(hall, 1)
    first = hall.job(waits)
    assert first.submitted_at < eligible(first) == first.started_at
    assert hall.outcomes("requeue", waits) == [(waits, "requeued")]
    hall.settle()
    assert first.started_at < eligible(hall.job(waits)) <= hall.job(waits).started_at


def test_a_job_that_was_held_is_eligible_from_its_release_and_stays_so_for_the_next_controller():
    hall = a_hall(a_demand(WHOLE))
    waits = after(hall, "")
    hall.outcomes("hold", waits)
    assert eligible(hall.job(waits)) is None
    assert hall.outcomes("release", waits) == [(waits, "released")]
    assert eligible(hall.job(waits)) == hall.now > hall.job(waits).submitted_at
    hall.start()
    assert eligible(hall.engine.jobtable.jobs[waits]) == hall.now


def test_a_dependency_that_is_taken_back_makes_a_job_eligible():
    hall = a_hall()
    waits = after(hall, "afterok:1")
    hall.ask("update", id=waits, changes={"dependency": ""})
    assert hall.job(waits).submitted_at < eligible(hall.job(waits)) == hall.job(waits).started_at


def test_a_task_is_eligible_from_the_end_of_the_one_that_it_corresponds_to():
    hall = a_hall(a_demand(5000), array="0-1")
    array = after(hall, "aftercorr:1", array="0-1")
    end(hall, hall.store.tasks.get(1, 1).job.id)
    task = hall.store.tasks.get(array, 1).job
    assert task.opened_at == hall.store.tasks.get(1, 1).job.ended_at


def test_a_job_that_is_cancelled_before_it_could_start_never_was_eligible():
    hall = a_hall(begin=5000)
    hall.outcomes("cancel", 1)
    assert eligible(hall.job(1)) is None


def test_a_job_that_cannot_end_in_time_is_removed():
    hall = a_hall(a_demand(WHOLE))
    hall.submit([a_demand(WHOLE)], deadline=2000, time_limit=600)
    hall.now = 1399.0
    hall.turn()
    assert (hall.job(2).state, hall.job(2).reason) == (JobState.DEADLINE, Reason.DEADLINE)


def test_a_job_that_is_ended_at_its_deadline_says_so():
    hall = a_hall(deadline=2000)
    assert hall.job(1).deadline == 2000
    hall.host.finish(1, 1, a_result(15, "timeout", ended_at=2000.5))
    hall.settle()
    assert hall.job(1).state is JobState.DEADLINE


def test_a_deadline_that_leaves_no_time_is_refused():
    with pytest.raises(Refused, match="cannot end before its deadline"):
        ask(a_hall(), ANN, "", deadline=1500, time_limit=600)


# -- again ------------------------------------------------------------------------------------------


def reboot(hall):
    hall.host.boot += "x"
    for attempt in hall.host.attempts.values():
        attempt.shepherd = attempt.alive = False
    hall.start()
    hall.settle()


def test_a_job_that_the_host_failed_runs_again_and_adds_to_its_output():
    hall = a_hall()
    reboot(hall)
    job = hall.job(1)
    assert (job.state, job.restarts, job.attempt) == (JobState.RUNNING, 1, 2)


def test_one_that_may_not_run_again_does_not():
    hall = a_hall(requeue=False)
    reboot(hall)
    assert hall.job(1).state is JobState.NODE_FAIL


def test_a_job_that_the_host_fails_again_and_again_has_to_wait_and_at_last_is_held():
    hall = a_hall()
    waits = []
    for _ in range(20):
        reboot(hall)
        due = hall.engine.jobtable.wait_index.next_due
        waits.append(hall.job(1).not_before > hall.now)
        hall.now = max(hall.now, due or 0)
        hall.settle()
    assert waits[:2] == [False, False]
    assert True in waits
    assert state(hall, 1) == ("PD", "JobHoldMaxRequeue")
    assert hall.job(1).failures == 6
    hall.outcomes("release", 1)
    hall.settle()
    assert hall.job(1).failures == 0
    assert state(hall, 1)[0] == "R"


def test_a_job_is_requeued_with_its_id_and_its_dependants_wait_on():
    hall = a_hall()
    job = after(hall, "afterany:1")
    assert hall.outcomes("requeue", 1) == [(1, "requeued")]
    hall.settle()
    assert (hall.job(1).state, hall.job(1).restarts, hall.job(1).attempt) == (JobState.RUNNING, 1, 2)
    assert state(hall, job) == ("PD", "Dependency")


def test_a_job_that_completes_before_it_is_ended_is_not_run_again():
    hall = a_hall()
    hall.host.requeue = lambda job: True
    hall.outcomes("requeue", 1)
    end(hall, 1)
    assert hall.job(1).state is JobState.COMPLETED


def test_a_requeued_job_that_is_cancelled_stays_cancelled():
    hall = a_hall()
    hall.host.requeue = lambda job: True
    hall.outcomes("requeue", 1)
    hall.outcomes("cancel", 1)
    hall.settle()
    assert (hall.job(1).state, hall.job(1).attempt) == (JobState.CANCELLED, 1)


def test_a_job_is_requeued_though_the_power_failed_before_its_shepherd_was_told():
    hall = a_hall()
    hall.host.requeue = lambda job: True
    hall.outcomes("requeue", 1)
    del hall.host.requeue
    hall.start()
    hall.settle()
    assert (hall.job(1).restarts, hall.job(1).wish) == (1, "")


def test_a_job_is_put_back_and_held():
    hall = a_hall()
    hall.outcomes("requeue", 1, hold=True)
    hall.settle()
    assert state(hall, 1) == ("PD", "JobHeldAdmin")


def test_a_job_that_was_to_run_again_once_its_cards_are_clean_can_be_cancelled_until_then():
    hall = a_hall()
    cards = hall.engine.cards
    cards.needs_cleaning = True
    hall.outcomes("requeue", 1)
    hall.settle()
    assert (hall.job(1).state, hall.job(1).outcome) == (JobState.COMPLETING, JobState.PENDING)
    assert hall.outcomes("cancel", 1) == [(1, "cancelled")]
    cards.needs_cleaning = False
    hall.settle()
    assert (hall.job(1).state, hall.job(1).cancelled_by) == (JobState.CANCELLED, 0)


@pytest.mark.parametrize("crash", [False, True])
def test_a_requeued_job_waits_until_its_cards_are_clean(crash):
    hall = a_hall()
    hall.engine.cards.needs_cleaning = True
    hall.outcomes("requeue", 1)
    hall.settle()
    assert hall.job(1).state is JobState.COMPLETING
    if crash:
        hall.start()
    hall.engine.cards.needs_cleaning = False
    hall.settle()
    assert (hall.job(1).state, hall.job(1).restarts, hall.job(1).attempt) == (JobState.RUNNING, 1, 2)


def test_a_pending_job_and_one_that_is_over_are_not_requeued():
    hall = a_hall(a_demand(WHOLE), a_demand(WHOLE))
    assert hall.outcomes("requeue", 2) == [(2, "job 2 is pending already")]
    end(hall, 1)
    assert hall.outcomes("requeue", 1) == [(1, "job 1 is already completing or completed")]


# -- standing still -----------------------------------------------------------------------------------


def test_a_suspended_job_keeps_its_share_and_its_time_stands_still():
    hall = a_hall(a_demand(WHOLE), time_limit=600)
    hall.outcomes("suspend", 1)
    assert (hall.job(1).state, hall.host.stopped) == (JobState.SUSPENDED, {(1, 1)})
    assert [hold.share for hold in hall.holds()] == [WHOLE]
    before = hall.job(1).deadline
    hall.now += 50
    hall.outcomes("resume_jobs", 1)
    job = hall.job(1)
    assert (job.state, hall.host.stopped, job.suspended) == (JobState.RUNNING, set(), 51.0)
    assert job.deadline == before + 51


def test_only_an_operator_suspends():
    with pytest.raises(NotPermitted):
        a_hall().ask("suspend", ANN, ids=[1])


@pytest.mark.parametrize("resumed", [False, True])
def test_what_a_shepherd_was_not_told_it_is_told_by_the_next_controller(resumed):
    hall = a_hall()
    hall.outcomes("suspend", 1)
    if resumed:
        hall.host.resume = lambda job: True
        hall.outcomes("resume_jobs", 1)
        del hall.host.resume
    else:
        hall.host.stopped.clear()
    hall.start()
    hall.settle()
    assert hall.host.stopped == (set() if resumed else {(1, 1)})


def test_a_suspended_job_is_cancelled_and_requeued_as_a_running_one():
    hall = a_hall(a_demand(100), a_demand(100))
    hall.outcomes("suspend", 1, 2)
    hall.outcomes("cancel", 1)
    hall.outcomes("requeue", 2)
    hall.settle()
    assert hall.job(1).state is JobState.CANCELLED
    assert (hall.job(2).state, hall.job(2).suspended) == (JobState.RUNNING, 0.0)


def test_a_refusal_names_the_state():
    hall = a_hall()
    assert hall.outcomes("resume_jobs", 1) == [(1, "job 1 is RUNNING")]
    with pytest.raises(FgschedError):
        hall.ask("update", ANN, id=1, changes={"begin": 99})
