"""One job, what is seen of it, and what is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import BOOT, a_job, a_result
from fgsched.accounting.records import Owner
from fgsched.cli import terminal
from fgsched.domain.job import IllegalStep, NotStarted, Preemption, Refusal, Request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import gate_of
from fgsched.lifecycle.transitions import (
    Alive,
    Finish,
    KillRemaining,
    RequeueUnstarted,
    Shepherd,
    ShepherdGone,
    Unclaimed,
    WatchShepherd,
    complete,
    due,
    finish,
    lost,
    parse_claim,
    parse_result,
    reason_of,
    recover,
    requeue,
    settle,
)
from fgsched.reports.facts import JobTotals
from fgsched.reports.incidents import kind_of

SHEPHERD = Shepherd(7, 70, BOOT)
ENDS = [
    (a_result(0), JobState.COMPLETED, Reason.NONE),
    (a_result(3 << 8), JobState.FAILED, Reason.EXIT_CODE),
    (a_result(9), JobState.FAILED, Reason.SIGNALED),
    (a_result(15, "timeout"), JobState.TIMEOUT, Reason.TIME_LIMIT),
    (a_result(0, "timeout"), JobState.TIMEOUT, Reason.TIME_LIMIT),
    (a_result(15, "cancel"), JobState.CANCELLED, Reason.NONE),
    (a_result(0, "launch", detail="exec /bin/bsh"), JobState.FAILED, Reason.LAUNCH_FAILURE),
    (a_result(9, oom_kills=1), JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    (a_result(0, oom_kills=1), JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    (a_result(0, oom_kills=1, refusals=1), JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    (a_result(15, "cancel", oom_kills=1), JobState.CANCELLED, Reason.NONE),
    (a_result(1 << 8, refusals=2), JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY),
    (a_result(0, refusals=2), JobState.COMPLETED, Reason.NONE),
]


@pytest.mark.parametrize(("result", "state", "reason"), ENDS)
def test_the_end_follows_from_the_result(result, state, reason):
    found = finish(a_job(state=JobState.RUNNING), result)
    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(
    ("status", "shown"),
    [(0, (0, 125)), (9, (0, 9)), (137 << 8, (137, 0))],
    ids=["survived", "killed", "told"],
)
def test_a_job_of_which_a_process_was_killed_for_memory_never_ends_with_0(status, shown):
    """Its own status is kept if it is one of failure; else it is that of Slurm, 0:125."""
    ended = finish(a_job(state=JobState.RUNNING), a_result(status, oom_kills=2)).ended
    assert ((ended.exit_code, ended.signal), ended.oom_kills) == (shown, 2)


def test_the_reason_is_still_host_memory_after_the_card_was_cleaned():
    end = finish(a_job(state=JobState.RUNNING), a_result(0, oom_kills=1, refusals=3))
    assert reason_of(complete(a_job(state=JobState.RUNNING), end, 9.0)) is Reason.OUT_OF_MEMORY


def requeued(job, *, after, mode="wish"):
    """The job after a run of some seconds that was ended by an order to requeue it."""
    begun = job.changed(state=JobState.RUNNING, started_at=1000.0, attempt=job.attempt + 1, held="")
    ordered = begun.changed(wish="requeue")
    if mode == "preemption":
        preemption = Preemption(by=2, at=1.0, mode="requeue", attempt=begun.attempt)
        ordered = begun.changed(preemption=preemption)
    how = finish(ordered, a_result(15, "cancel", started_at=1000.0, ended_at=1000.0 + after))
    return settle(complete(ordered, how, 1000.0 + after), 1000.0 + after, max_requeue=5)


def test_a_job_that_requeues_itself_at_once_waits_longer_each_time_and_is_held_in_the_end():
    job, pauses = a_job(), []
    for _ in range(5):
        job = requeued(job, after=5)
        pauses.append(job.not_before and job.not_before - 1005)
    assert pauses == [0, 10, 20, 40, 80]
    assert job.held == ""
    job = requeued(job, after=5)
    assert (job.held, job.reason) == ("user", Reason.HELD_MAX_REQUEUE)
    assert gate_of(job, job.reason).repeats == 6


def test_a_job_that_saves_its_state_and_requeues_itself_goes_on_for_ever():
    job = a_job()
    for _ in range(200):
        job = requeued(job, after=60)
        assert (job.held, job.not_before, job.repeats) == ("", 0, 0)


@pytest.mark.parametrize(("wish", "has_run"), [("", True), ("requeue", False)])
def test_only_a_run_that_was_requeued_on_order_counts_as_a_short_one(wish, has_run):
    job = a_job(state=JobState.RUNNING, started_at=1000.0, repeats=2, wish=wish)
    assert requeue(job, 1001.0, max_requeue=5, has_run=has_run).repeats == 2


def test_a_longer_run_ends_the_count_of_short_ones():
    job = a_job()
    for after in (5, 5, 5, 3600, 5):
        job = requeued(job, after=after)
    assert (job.repeats, job.not_before) == (1, 0)


def test_a_job_that_is_preempted_again_and_again_waits_and_is_never_held():
    job = a_job()
    for _ in range(20):
        job = requeued(job, after=1, mode="preemption")
    assert (job.held, job.not_before) == ("", 1001 + 640)


def test_a_job_that_ended_by_itself_before_the_cancel_reached_it_is_not_cancelled():
    assert finish(a_job(state=JobState.RUNNING, cancelled_by=1), a_result(0)).state is JobState.COMPLETED


def test_a_cancelled_job_whose_shepherd_was_killed_is_cancelled():
    found = finish(a_job(state=JobState.RUNNING, cancelled_by=1), a_result(15, lost=True))
    assert found.state is JobState.CANCELLED


def test_a_job_whose_shepherd_was_killed_before_it_ran_is_started_again():
    killed = a_result(127 << 8, "launch", lost=True)
    assert due(a_job(state=JobState.STARTING), killed) == RequeueUnstarted()
    tired = a_job(state=JobState.STARTING, failures=20)
    fresh = replace(tired, failures=19, request=replace(tired.request, requeue=False))
    assert due(fresh, killed) == RequeueUnstarted()
    assert due(tired, killed) == RequeueUnstarted()
    stays = replace(tired, request=replace(tired.request, requeue=False))
    assert due(stays, killed).state is JobState.FAILED


def test_an_unknown_end_is_never_called_completed():
    assert lost(a_job(state=JobState.RUNNING)).state is JobState.FAILED


RECOVERIES = [
    (JobState.STARTING, Unclaimed(), RequeueUnstarted()),
    (JobState.STARTING, Alive(SHEPHERD), WatchShepherd(SHEPHERD)),
    (JobState.STARTING, ShepherdGone(), KillRemaining()),
    (JobState.RUNNING, Alive(SHEPHERD), WatchShepherd(SHEPHERD)),
    (JobState.RUNNING, ShepherdGone(), KillRemaining()),
    (JobState.RUNNING, Unclaimed(), KillRemaining()),
]


@pytest.mark.parametrize(("state", "seen", "due"), RECOVERIES)
def test_a_starting_controller_takes_up_what_it_finds(state, seen, due):
    assert recover(a_job(state=state), seen, boot=BOOT) == due


@pytest.mark.parametrize("seen", [Unclaimed(), ShepherdGone(), Alive(SHEPHERD)])
def test_a_job_of_another_boot_is_never_run_again_by_itself(seen):
    found = recover(a_job(state=JobState.RUNNING), seen, boot="boot-2")
    assert isinstance(found, Finish)
    assert found.state is JobState.NODE_FAIL


def test_a_result_of_another_boot_still_counts():
    found = recover(a_job(state=JobState.RUNNING), a_result(0), boot="boot-2")
    assert isinstance(found, Finish)
    assert found.state is JobState.COMPLETED


def test_a_final_state_has_no_step_out_of_it():
    with pytest.raises(IllegalStep, match="job 1: COMPLETED cannot become RUNNING"):
        a_job(state=JobState.COMPLETED).advance(JobState.RUNNING)


def test_only_a_job_that_was_started_has_a_start_time():
    assert a_job(state=JobState.RUNNING).start_time == 1.0
    with pytest.raises(NotStarted, match="job 1 is PENDING and has no start time"):
        _ = a_job().start_time


def test_a_result_is_read_field_by_field():
    found = parse_result(
        "R4 256 exit 1000000000 2500000000 1000000 500000 10 77 3 1 8 9 0 1 0 2 0 0 exec /bin/b sh"
    )
    assert (found.status, found.cause, found.started_at, found.ended_at) == (256, "exit", 1.0, 2.5)
    assert (found.cpu_seconds, found.max_rss, found.gpu_peak, found.refusals) == (1.5, 10240, 77, 3)
    assert (found.oom_kills, found.lost, found.errno, found.detail) == (0, True, 2, "exec /bin/b sh")
    assert found.refusal == Refusal(gpu=1, asked=8, held=9)


def test_a_result_has_the_input_and_output_of_the_job():
    begin = "256 exit 1000000000 2500000000 1000000 500000 10 77 3 1 8 9 0 1 2"
    found = parse_result(f"R4 {begin} 5 4096 512 exec /bin/b sh")
    assert (found.survivor, found.errno, found.detail) == (2, 5, "exec /bin/b sh")
    assert (found.disk_read, found.disk_written) == (4096, 512)


CONDEMNED = [
    (Reason.GPU_OVER_LIMIT, JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY),
    (Reason.GPU_NOT_GIVEN, JobState.FAILED, Reason.GPU_NOT_GIVEN),
    (Reason.GPU_UNHOOKED, JobState.FAILED, Reason.GPU_UNHOOKED),
    (Reason.GPU_LOST, JobState.NODE_FAIL, Reason.GPU_LOST),
]


@pytest.mark.parametrize(("why", "state", "reason"), CONDEMNED)
def test_the_end_of_a_job_that_the_watchdog_ended_says_why(why, state, reason):
    job = a_job(state=JobState.RUNNING, condemned=why)
    found = finish(job, a_result(15, "cancel"))
    assert (found.state, found.reason) == (state, reason)
    assert lost(job).reason is reason
    over = job.advance(JobState.COMPLETING, outcome=state, ended=found.ended)
    assert reason_of(over) is reason


def test_what_somebody_wanted_goes_before_what_the_watchdog_wanted():
    job = a_job(state=JobState.RUNNING, condemned=Reason.GPU_UNHOOKED, cancelled_by=1)
    assert finish(job, a_result(15, "cancel")).state is JobState.CANCELLED


@pytest.mark.parametrize(("result", "state", "reason"), ENDS)
def test_the_reason_of_an_end_that_waits_for_the_cards_is_the_same(result, state, reason):
    job = a_job(state=JobState.RUNNING)
    found = finish(job, result)
    over = job.advance(JobState.COMPLETING, reason=Reason.GPU_CLEANING, outcome=state, ended=found.ended)
    assert reason_of(over) is reason or reason is Reason.LAUNCH_FAILURE


@given(st.text(max_size=60))
def test_anything_else_is_no_result_and_no_claim(text):
    with pytest.raises(ValueError, match=r".*"):
        parse_result(text)
    if text != "T" and not text.startswith(("P:", "H:")):
        with pytest.raises(ValueError, match=r".*"):
            parse_claim(text)


def test_a_claim_names_its_shepherd_and_a_tombstone_nobody():
    assert parse_claim("P:7:70:boot-1") == SHEPHERD
    assert parse_claim("H:7:70:boot-1") == SHEPHERD
    assert parse_claim("T") is None


def test_a_job_that_ended_well_while_nobody_watched_was_not_cancelled():
    job = a_job(state=JobState.RUNNING, cancelled_by=1)
    assert finish(job, a_result(0, lost=True)).state is JobState.COMPLETED


def test_a_lost_job_that_somebody_cancelled_is_cancelled():
    assert lost(a_job(state=JobState.RUNNING, cancelled_by=1)).state is JobState.CANCELLED


def test_a_job_that_could_not_be_launched_is_not_started_again():
    assert due(a_job(state=JobState.STARTING), a_result(127 << 8, "launch")).state is JobState.FAILED


def test_what_a_result_tells_is_kept():
    found = finish(a_job(state=JobState.RUNNING), a_result(0, lost=True, max_rss=7, gpu_peak=8, detail="x"))
    assert (found.started_at, found.ended_at, found.lost) == (1.0, 2.0, True)
    assert (found.ended.cpu_seconds, found.ended.max_rss, found.ended.gpu_peak) == (0.5, 7, 8)
    assert (found.ended.refusals, found.ended.detail) == (0, "x")


def test_a_job_that_failed_by_itself_before_the_cancel_reached_it_has_failed():
    assert finish(a_job(state=JobState.RUNNING, cancelled_by=1), a_result(256)).state is JobState.FAILED


@pytest.mark.parametrize(
    ("limit", "deadline", "end"),
    [(600, 0, 700.0), (0, 400, 400.0), (600, 400, 400.0), (600, 900, 700.0), (0, 0, None)],
)
def test_a_run_ends_at_the_earlier_of_its_limit_and_its_deadline(limit, deadline, end):
    request = Request(name="x", time_limit=limit, deadline=deadline)
    job = a_job(state=JobState.RUNNING, started_at=100.0, request=request)
    assert job.deadline == end
    assert job.changed(suspended=50.0).deadline == (None if end is None else end + 50.0)
    assert job.changed(started_at=None).deadline is None


@pytest.mark.parametrize(("ended_at", "state"), [(399.9, JobState.TIMEOUT), (400.0, JobState.DEADLINE)])
def test_a_run_that_its_time_has_ended_is_at_its_deadline_from_that_second_on(ended_at, state):
    job = a_job(state=JobState.RUNNING, request=Request(name="x", time_limit=600, deadline=400))
    assert finish(job, a_result(15, "timeout", ended_at=ended_at)).state is state


# -- states --------------------------------------------------------------------------------------------


def test_a_failure_is_a_final_state_and_red_in_tables_and_counted_by_reports():
    failures = [state for state in JobState if state.is_failure]
    owner = Owner(uid=1, user="ann")
    assert JobState.FAILED in failures
    assert all(state.is_final for state in failures)
    assert {terminal.of_state(state) for state in failures} == {terminal.RED}
    for state in failures:
        total = JobTotals(owner=owner, model="", state=state.word, oom="", jobs=1, charged=0.0)
        assert total.has_failed
        assert kind_of(total)
