"""The sentences on why a job waits, from the facts."""

import pytest
from msgspec.structs import replace

from builders import a_job
from fgsched.domain.job import Hold, Preemption
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import (
    Blocker,
    Gate,
    Outlook,
    Preempted,
    Preempting,
    Shortfall,
    Unblock,
    gate_of,
    preemption_of,
    suspension_of,
)
from fgsched.views.wording import note, remedy, unknown_start, why

GATES = [
    *(Reason.HELD_USER, Reason.HELD_ADMIN, Reason.HELD_MAX_REQUEUE, Reason.INTERNAL_ERROR),
    *(Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER, Reason.BEGIN_TIME, Reason.ARRAY_TASK_LIMIT),
    Reason.HOST_SHORTAGE,
]
AT = 1_700_000_000.0


@pytest.mark.parametrize("reason", GATES)
def test_every_gate_has_a_sentence(reason):
    assert " " in why(gate_of(a_job(depends="afterok:3"), reason))


def test_failures_of_the_host_are_counted_in_words():
    once = replace(a_job(), failures=1)
    said = "held: the host failed it {}; its owner can release it"
    assert why(gate_of(once, Reason.HELD_MAX_REQUEUE)) == said.format("once")
    assert why(gate_of(replace(once, failures=2), Reason.HELD_MAX_REQUEUE)) == said.format("2 times")


def test_a_limit_is_told_with_its_figures():
    short = Shortfall(Reason.MAX_JOBS_PER_USER, "running", need=1, remaining=-1, total=2, scope="ann")
    assert why(short) == "limit reached: ann already has 3 running jobs (limit 2)"


def test_a_suspended_job_tells_what_it_keeps_and_a_preempted_job_who_preempted_it():
    found = Preemption(by=7, at=AT, mode="suspend", attempt=1)
    job = a_job(state=JobState.SUSPENDED, attempt=1, preemption=found)
    job = replace(job, holds=(Hold(gpu=0, share=0, memory=4 << 30),))
    assert note(suspension_of(job)) == "suspended: preempted by job 7; keeps 4096M on GPU 0"
    over = replace(job, state=JobState.PREEMPTED, preemption=replace(found, mode="cancel"))
    assert preemption_of(over) == Preempted(by=7, mode="cancel", at=AT)
    assert note(preemption_of(over)).startswith("preempted by job 7 at 2023-11-1")


def test_preemption_has_a_sentence_for_each_outcome():
    assert [
        note(Outlook(victims=(3, 4))),
        note(Outlook(no_candidates=True)),
        note(Outlook()),
        note(Outlook(not_before=AT)).partition(" before ")[0],
        note(Preempting(jobs=(3,), until=AT)).partition(" and ")[0],
    ] == [
        "would preempt jobs 3-4",
        "preemption would not help: it may not preempt any running job",
        "preemption would not help: even preempting all lower-priority jobs would not free enough for it",
        "may not preempt other jobs",
        "job 3 is being preempted for it",
    ]


def test_what_removes_a_blocker_is_told_with_the_name_of_the_job():
    assert remedy(Blocker(Gate(reason=Reason.HELD_USER)), "12_3") == "with fgctl release 12_3"
    gone = Blocker(Shortfall(Reason.RESERVATION, "gone", scope="exam"))
    assert remedy(gone, 4) == "without the reservation: fgctl update job=4 reservation="
    ends = Blocker(Shortfall(Reason.RESOURCES, "share"), Unblock(jobs=(3, 4)))
    assert remedy(ends, 4) == "when jobs 3-4 end (they have no time limit)"


def test_a_start_that_is_not_known_has_a_reason_where_one_is_known():
    behind = Blocker(Shortfall(Reason.RESOURCES, "share"), Unblock(jobs=(3,)))
    down = Blocker(Shortfall(Reason.PARTITION_DOWN, scope="main"))
    unlimited, many = "a job ahead of it has no time limit", "too many jobs are ahead of it"
    assert unknown_start([behind], is_behind_too_many=False) == f"start time unknown: {unlimited}"
    assert unknown_start([behind], is_behind_too_many=True) == f"start time unknown: {many}"
    assert unknown_start([down], is_behind_too_many=False) == "start time unknown"


def test_a_job_above_a_limit_is_told_that_no_end_of_another_job_helps():
    short = Shortfall(
        Reason.MAX_GPUS_PER_USER, need=40000, remaining=0, total=20000, scope="ann in partition main"
    )
    beyond = Blocker(short, Unblock(jobs=(3,), at=AT))
    assert why(short) == "limit exceeded: needs 4 of a GPU; ann in partition main may use at most 2"
    assert remedy(beyond, 4) == "with fewer GPUs, or in another partition"
    unknown = "start time unknown: it requests more than a limit allows"
    assert unknown_start([beyond], is_behind_too_many=False) == unknown
