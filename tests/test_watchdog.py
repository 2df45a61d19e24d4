"""What the watchdog makes of what a card shows of a job, and of what the job's region tells."""

import pytest
from fgshim.region import Process
from hypothesis import given
from hypothesis import strategies as st

from builders import a_job
from fgsched.domain.job import Hold, OomReport, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.launch.regions import Slot
from fgsched.lifecycle.watchdog import (
    Fault,
    JobOnGpu,
    LastQuery,
    ProcessUse,
    WatchdogPolicy,
    judge,
    watchdog_changes,
)

MIB, GIB = 1 << 20, 1 << 30
KILL, WARN = WatchdogPolicy(tolerance=100), WatchdogPolicy(kills=False, tolerance=100)


def use(memory, tracked=0, *, pid=7):
    return ProcessUse(pid=pid, memory=memory, tracked=tracked)


def sight(*uses, limit=1000, **more):
    return JobOnGpu(gpu=0, limit=limit, uses=uses, **more)


def looks(*sights, tier="shim", policy=KILL):
    """The verdict on the last of several looks."""
    memory = LastQuery()
    for one in sights:
        verdict = judge(tier, [one], memory, policy)
        memory = verdict.memory
    return verdict


def test_a_job_inside_its_limit_is_left_alone():
    verdict = looks(sight(use(1000, 1000)))
    assert (verdict.warn, verdict.end, verdict.charges) == ((), None, {})


def test_a_context_is_charged_once_two_looks_have_shown_it():
    assert looks(sight(use(300, 0))).charges == {}
    assert looks(sight(use(300, 0)), sight(use(300, 0))).charges == {0: 300}


def test_what_was_charged_is_not_written_again():
    same = sight(use(300, 0))
    assert looks(same, same, same).charges == {}


def test_a_slot_reads_what_the_hook_counted_on_its_gpu():
    process = Process(
        **{"pid": 7, "start": 1, "image": 1, "slot": 0, "bytes": (1, 20), "given": (2, 300)},
        **{"past": (3, 4000), "contexts": (False, True), "marks": (4, 50_000)},
    )
    slot = Slot(process, 1)
    assert (slot.tracked, slot.past, slot.mark, slot.has_context) == (320, 4000, 50_000, True)


def slot(memory, tracked=0, *, past=0, mark=1, pid=7, has_context=True):
    return ProcessUse(pid=pid, memory=memory, tracked=tracked, past=past, mark=mark, has_context=has_context)


@pytest.mark.parametrize("guessed", [0, 200, 256, 400])
def test_what_a_slot_is_charged_for_contexts_becomes_what_two_looks_have_shown(guessed):
    one = sight(slot(500 + guessed, 500, past=256))
    assert looks(one).seen == {}
    assert looks(one, one).seen == ({} if guessed == 256 else {(0, 7): guessed})
    assert looks(one, one).charges == {}


def test_a_slot_is_charged_no_more_and_no_less_than_both_looks_agree_on():
    def between(first, second):
        return looks(sight(slot(first, past=256)), sight(slot(second, past=256))).seen

    assert between(300, 400) == between(400, 300) == {(0, 7): 300}
    assert between(100, 200) == between(200, 100) == {(0, 7): 200}
    assert between(200, 300) == between(300, 200) == {}


def test_where_the_driver_does_not_tell_what_a_process_holds_its_contexts_stay_charged():
    one = sight(slot(0, 500, past=256), slot(0, 0, past=256, pid=8))
    assert (looks(one, one).seen, looks(one, one).costs) == ({}, {})


def test_of_contexts_that_have_changed_between_two_looks_nothing_is_concluded():
    verdict = looks(sight(slot(300, past=256)), sight(slot(300, past=256, mark=2)))
    assert (verdict.seen, verdict.costs) == ({}, {})


def test_what_contexts_cost_is_learned_from_processes_that_hold_still():
    two = sight(slot(300, past=256), slot(280, past=256, pid=8), slot(90, pid=9, has_context=False))
    assert looks(two).costs == {}
    assert looks(two, two).costs == {0: 280}
    moved = sight(slot(300, past=256), slot(279, past=256, pid=8))
    assert looks(two, moved).costs == {0: 300}


def test_memory_that_was_given_back_between_driver_and_region_is_not_charged():
    assert looks(sight(use(300, 300)), sight(use(900, 300)), sight(use(300, 300))).charges == {}


def test_the_charge_goes_with_the_process():
    two = sight(use(300, 0), use(200, 0, pid=8))
    assert looks(two, two, sight(use(200, 0, pid=8))).charges == {0: 200}
    assert looks(two, two, sight()).charges == {0: 0}


def test_of_a_card_that_does_not_answer_all_stays_as_it_was():
    context, over = sight(use(300, 0)), sight(use(1101, 1101))
    for one in (context, over):
        before = looks(one, one).memory
        verdict = judge("shim", [], before, KILL, silent={0})
        assert (verdict.memory, verdict.charges, verdict.end) == (before, {}, None)
    assert judge("shim", [sight()], looks(context, context).memory, KILL).charges == {0: 0}
    assert judge("shim", [over], looks(over).memory.of({0}), KILL).end.reason is Reason.GPU_OVER_LIMIT
    assert judge("shim", [], looks(over).memory, KILL, silent={1}).memory == LastQuery()


def test_a_job_may_exceed_its_limit_by_the_tolerance_however_many_processes_it_has():
    assert looks(sight(use(550, 500), use(550, 500, pid=8))).warn == ()
    (fault,) = looks(sight(use(551, 500), use(550, 500, pid=8))).warn
    assert (fault.reason, fault.held, fault.limit) == (Reason.GPU_OVER_LIMIT, 1101, 1000)


@pytest.mark.parametrize("count", [2, 8, 16])
def test_processes_without_a_slot_that_exceed_the_limit_together_end_the_job(count):
    uses = [use(570, pid=pid) for pid in range(count)]
    assert looks(*[sight(*uses)] * 2).end.reason is Reason.GPU_OVER_LIMIT


def test_what_was_charged_to_processes_without_a_slot_uses_up_the_tolerance():
    over = sight(use(1050))
    assert looks(over).warn == ()
    assert [fault.reason for fault in looks(over, over).warn] == [Reason.GPU_OVER_LIMIT]
    assert looks(over, over, over).end.reason is Reason.GPU_OVER_LIMIT
    assert looks(over, over, over, tier="watchdog").end is None


def test_memory_of_a_slot_outside_the_calls_does_not_use_up_the_tolerance():
    """Code that is loaded after all of the limit was allocated; the hook refuses the next allocation."""
    over = sight(slot(1050, 800, past=250))
    assert looks(over, over, over).end is None


FAULTS = [
    (sight(use(1101, 1000)), Reason.GPU_OVER_LIMIT),
    (sight(use(5, 5), limit=None), Reason.GPU_NOT_GIVEN),
    (sight(use(5, None)), Reason.GPU_UNHOOKED),
    (sight(is_lost=True), Reason.GPU_LOST),
]


@pytest.mark.parametrize(("seen", "reason"), FAULTS)
def test_a_fault_is_warned_of_at_the_first_look_and_ended_at_the_second(seen, reason):
    first = looks(seen)
    assert ([fault.reason for fault in first.warn], first.end) == ([reason], None)
    second = looks(seen, seen)
    assert (second.warn, second.end.reason) == ((), reason)


@pytest.mark.parametrize(("seen", "reason"), FAULTS)
def test_a_fault_that_is_gone_at_the_next_look_is_forgiven(seen, reason):
    assert looks(seen, sight(use(5, 5)), seen).end is None


@pytest.mark.parametrize(("seen", "reason"), FAULTS)
def test_where_the_policy_is_to_warn_only_a_lost_card_ends_a_job(seen, reason):
    assert bool(looks(seen, seen, policy=WARN).end) is (reason is Reason.GPU_LOST)


@pytest.mark.parametrize(
    ("tier", "ended"),
    [
        ("shim", {Reason.GPU_OVER_LIMIT, Reason.GPU_NOT_GIVEN, Reason.GPU_UNHOOKED, Reason.GPU_LOST}),
        ("driver", {Reason.GPU_OVER_LIMIT, Reason.GPU_NOT_GIVEN, Reason.GPU_LOST}),
        ("watchdog", {Reason.GPU_OVER_LIMIT, Reason.GPU_NOT_GIVEN, Reason.GPU_LOST}),
        ("none", {Reason.GPU_NOT_GIVEN, Reason.GPU_LOST}),
    ],
)
def test_what_a_job_must_not_do_depends_on_its_tier(tier, ended):
    assert {reason for seen, reason in FAULTS if looks(seen, seen, tier=tier).end} == ended


def test_memory_past_the_hook_counts_for_the_job_as_a_context_does():
    past = sight(use(50, None), use(400, 300, pid=8))
    assert looks(past, past, policy=WARN).charges == {0: 150}


def test_nothing_is_charged_where_nothing_is_counted():
    past = sight(use(300, None))
    assert looks(past, past, tier="none").charges == {}


def test_the_words_say_what_was_seen():
    (fault,) = looks(sight(use(3 * GIB, GIB), limit=GIB)).warn
    assert str(fault) == "it holds 3072M on GPU 0, and its limit is 1024M"
    (fault,) = looks(sight(use(GIB, None), limit=4 * GIB)).warn
    assert str(fault) == "process 7 holds 1024M on GPU 0 without the hook"
    static = ProcessUse(pid=7, memory=GIB, tracked=None, why_bare="it is statically linked")
    fault = looks(sight(static, limit=GIB)).warn[0]
    assert str(fault) == "process 7 holds 1024M on GPU 0 without the hook: it is statically linked"


sizes = st.integers(0, 2000)
uses = st.builds(use, sizes, st.none() | sizes, pid=st.integers(1, 5))
many = st.lists(uses, max_size=4, unique_by=lambda one: one.pid)


@given(st.lists(many, min_size=2, max_size=6))
def test_a_charge_is_never_more_than_what_two_looks_in_a_row_left_unexplained(history):
    memory, unexplained = LastQuery(), []
    for seen in history:
        verdict = judge("shim", [sight(*seen)], memory, WARN)
        memory = verdict.memory
        unexplained.append(sum(max(0, one.memory - (one.tracked or 0)) for one in seen))
        assert 0 <= memory.charged.get(0, 0) <= min(unexplained[-2:]), history
    assert looks(sight(*history[-1])).charges in ({}, {0: 0})


@given(many)
def test_a_job_is_never_ended_at_first_sight(seen):
    assert looks(sight(*seen)).end is None


def test_a_job_that_is_ended_for_its_memory_has_a_record_of_all_memory_of_its_gpu():
    holds = (Hold(gpu=0, share=5000, memory=8 * GIB), Hold(gpu=1, share=5000, memory=8 * GIB))
    job, other = (a_job(number, state=JobState.RUNNING, holds=holds) for number in (1, 2))
    over = Fault(reason=Reason.GPU_OVER_LIMIT, gpu=1, held=9 * GIB, limit=8 * GIB)
    readings = {1: Reading(gpu=1, used=20 * GIB, external=3 * GIB)}
    changes = watchdog_changes(job, (), over, [job, other], readings=readings)
    assert (changes["condemned"], changes["reason"]) == (Reason.GPU_OVER_LIMIT, Reason.GPU_OVER_LIMIT)
    assert changes["post_mortem"] == OomReport(
        **{"gpu": 1, "asked": 0, "held": 9 * GIB, "limit": 8 * GIB, "jobs": ((2, 8 * GIB),)},
        strangers=3 * GIB,
    )
    lost = watchdog_changes(job, (), Fault(reason=Reason.GPU_LOST, gpu=1), [job, other], readings=readings)
    assert (lost["condemned"], "post_mortem" in lost) == (Reason.GPU_LOST, False)
