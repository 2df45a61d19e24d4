"""What is known of the states: what a reading says, which ended jobs are off them, what operators said."""

import pytest
from msgspec.structs import replace

from builders import Part, World, a_demand, a_gpu, a_job, a_result
from crashing import UNLIMITED, Power
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.turn import JobEnded, StartFailed
from fgsched.domain.job import Demand, GpuState, Hold, HostLimits, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.store import Store


class Looked(GpuStates):
    """Cards with a driver that a test plays."""

    def __init__(self, gpus, **more):
        self.asked = 0
        super().__init__(gpus, sampled=True, ask=self._count, **more)

    def _count(self):
        self.asked += 1

    def look(self, now, *there, **errors):
        """A reading that was asked for now and comes at once."""
        self.ask()
        readings = {
            gpu.index: Reading(gpu=gpu.index, used=0, error=errors.get(f"gpu{gpu.index}", ""))
            for gpu in self.gpus
        }
        self.use_readings(readings, listed_jobs=there, now=now)


def held_by(number, *gpus):
    """A job that has ended and held something of these states."""
    holds = tuple(Hold(gpu=gpu, share=100, memory=1) for gpu in gpus)
    return a_job(number, state=JobState.COMPLETING, holds=holds)


@pytest.fixture
def states():
    return Looked([a_gpu(0), a_gpu(1)], interval=5.0, clean_timeout=30.0)


def test_no_card_takes_jobs_before_it_was_looked_at(states):
    assert {gpu.state for gpu in states.gpus_for_planning(0)} == {GpuState.SUSPECT}
    states.look(10)
    assert {gpu.state for gpu in states.gpus_for_planning(15)} == {GpuState.OK}
    assert {gpu.state for gpu in states.gpus_for_planning(15.1)} == {GpuState.SUSPECT}


def test_a_clock_that_is_set_back_makes_no_reading_fresh(states):
    states.look(1000)
    assert states.is_fresh(1000)
    assert not states.is_fresh(400)


def test_an_ended_job_is_clean_once_a_later_reading_does_not_show_it(states):
    states.look(1)
    states.begin_cleaning(7, 2)
    assert states.cleaned(2) == {}, "that reading was older than the end"
    states.look(3, 7)
    assert states.cleaned(3) == {}
    states.look(4)
    assert states.cleaned(4) == {7: True}
    assert states.cleaned(5) == {}
    assert not states.is_cleaning


def test_a_reading_that_was_asked_for_before_a_job_ended_says_nothing_of_it(states):
    states.ask()
    states.begin_cleaning(7, 2)
    states.use_readings({}, listed_jobs=(), now=3)
    assert states.cleaned(3) == {}


def test_a_reading_of_an_earlier_attempt_says_nothing_of_the_next_one(states):
    states.begin_cleaning(7, 1)
    states.look(2)
    states.ask()
    assert states.cleaned(2) == {7: True}
    states.begin_cleaning(7, 3)  # it was requeued, and its next attempt has ended
    assert states.cleaned(3) == {}
    states.use_readings({}, listed_jobs=(), now=4)
    assert states.cleaned(4) == {}, "that reading was asked for before the attempt began"
    states.look(5)
    assert states.cleaned(5) == {7: True}


def test_of_several_readings_that_were_asked_for_each_says_what_was_asked_with_it(states):
    """A slow driver answers the older question first."""
    states.ask()
    states.begin_cleaning(7, 2)
    states.ask()
    states.use_readings({}, listed_jobs=(), now=3)
    assert states.cleaned(3) == {}
    states.use_readings({}, listed_jobs=(), now=4)
    assert states.cleaned(4) == {7: True}


def test_a_job_that_does_not_leave_a_card_in_time_makes_it_suspect_until_it_does(states):
    states.begin_cleaning(7, 0)
    states.look(30, 7)
    assert states.cleaned(30) == {}
    assert states.cleaned(30.1) == {7: False}
    states.left_dirty(held_by(7, 1), 31)
    assert [gpu.state for gpu in states.gpus] == [GpuState.OK, GpuState.SUSPECT]
    assert states.gpu(1).note == "processes of job 7 have not left it"
    states.look(32, 7)
    assert states.gpu(1).state is GpuState.SUSPECT
    states.look(33)
    assert states.gpu(1).state is GpuState.OK


def test_a_gpu_that_an_earlier_attempt_did_not_leave_stays_suspect_after_a_later_attempt_stayed_elsewhere(
    states,
):
    states.left_dirty(replace(held_by(7, 0), attempt=1), 31)
    states.left_dirty(replace(held_by(7, 1), attempt=2), 62)
    states.look(63, 7)
    assert [gpu.state for gpu in states.gpus] == [GpuState.SUSPECT, GpuState.SUSPECT]
    assert [job.attempt for job in states.overdue_attempts] == [1, 2]
    states.look(64)
    assert [gpu.state for gpu in states.gpus] == [GpuState.OK, GpuState.OK]
    assert states.watched == frozenset()


def test_a_reading_that_was_asked_for_before_the_end_of_a_job_returns_no_card_to_service(states):
    states.ask()
    states.begin_cleaning(7, 0)
    assert states.cleaned(30.1) == {7: False}
    states.left_dirty(held_by(7, 1), 31)
    states.use_readings({index: Reading(gpu=index, used=0) for index in (0, 1)}, listed_jobs=(), now=32)
    assert states.gpu(1).state is GpuState.SUSPECT, "that reading was older than the end"
    states.look(33)
    assert states.gpu(1).state is GpuState.OK


def test_a_card_with_a_process_that_cannot_be_ended_waits_for_an_operator(states):
    states.look(30)
    states.left_alive(held_by(7, 1), 4242, 31)
    states.look(32)
    note = "process 4242 of job 7 could not be ended"
    assert [(gpu.state, gpu.note) for gpu in states.gpus] == [(GpuState.OK, ""), (GpuState.SUSPECT, note)]
    later = Looked([a_gpu(0), a_gpu(1)])
    later.restore({gpu.uuid: (gpu.state, gpu.note, gpu.noted_at) for gpu in states.gpus})
    later.look(33)
    assert later.gpus == states.gpus
    later.resume(1, 34)
    later.look(35)
    assert later.gpu(1).state is GpuState.OK


def test_the_time_to_leave_a_card_ends_also_when_the_clock_is_set_back(states):
    states.begin_cleaning(7, 1000)
    assert states.cleaned(100) == {}
    assert states.cleaned(131) == {7: False}


def test_a_card_that_does_not_answer_is_suspect_until_it_does(states):
    states.look(1, gpu0="fell off the bus")
    assert (states.gpu(0).state, states.gpu(0).note) == (GpuState.SUSPECT, "fell off the bus")
    states.look(2)
    assert states.gpu(0).state is GpuState.OK
    assert [gpu.index for gpu in states.changed()] == [0]
    assert states.changed() == []


def test_a_card_that_the_driver_does_not_list_is_suspect(states):
    states.use_readings({0: Reading(gpu=0, used=0)}, listed_jobs=(), now=1)
    assert [gpu.state for gpu in states.gpus] == [GpuState.OK, GpuState.SUSPECT]


def health(states, now, **about):
    """A reading of card 0 with this of its health."""
    states.use_readings(
        {0: Reading(gpu=0, used=0, **about), 1: Reading(gpu=1, used=0)}, listed_jobs=(), now=now
    )
    return states.gpu(0)


def test_a_card_that_fell_off_the_bus_is_down_until_it_answers_again(states):
    lost = health(states, 1, error="GPU is lost", is_lost=True)
    assert (lost.state, lost.note) == (GpuState.DOWN, "it fell off the bus: GPU is lost")
    assert health(states, 2, error="GPU is lost", is_lost=True).state is GpuState.DOWN
    assert states.gpu(1).state is GpuState.OK
    assert health(states, 3).state is GpuState.OK


def test_a_card_that_was_down_from_the_start_does_not_come_up_by_itself():
    states = Looked([a_gpu(0, state=GpuState.DOWN), a_gpu(1)])
    assert health(states, 1).state is GpuState.DOWN


def test_errors_in_a_cards_memory_drain_it_when_they_grow(states):
    assert health(states, 1, ecc=3).state is GpuState.OK, "older than this controller"
    drained = health(states, 2, ecc=4)
    assert (drained.state, drained.note) == (
        GpuState.DRAINED,
        "errors in its memory that could not be corrected: 4 [watchdog]",
    )
    states.resume(0, 3)
    assert health(states, 4, ecc=4).state is GpuState.OK


@pytest.mark.parametrize("remap", ["pending", "failed"])
def test_bad_rows_drain_a_card_until_an_operator_resumes_it(states, remap):
    drained = health(states, 1, remap=remap)
    assert (drained.state, remap in drained.note) == (GpuState.DRAINED, True)
    states.resume(0, 2)
    assert health(states, 3, remap=remap).state is GpuState.OK


def test_an_error_of_the_drivers_list_drains_a_card_and_others_do_not():
    states = Looked([a_gpu(0), a_gpu(1)], fatal=(48, 79))
    assert health(states, 1, xids=(31, 94)).state is GpuState.OK, "these are the jobs' own faults"
    drained = health(states, 2, xids=(31, 48, 48, 79))
    assert (drained.state, drained.note) == (GpuState.DRAINED, "the driver told of Xid 48, 79 [watchdog]")
    assert states.gpu(1).state is GpuState.OK
    assert (states.failed_since([0], 2), states.failed_since([0], 3), states.failed_since([1], 0)) == (
        1,
        0,
        0,
    )
    states.drain(1, "fan [ann]", 4)
    assert not states.failed_since([1], 0), "an operator's word says nothing of its jobs"
    states.resume(0, 5)
    assert health(states, 6).state is GpuState.OK


def test_an_error_drains_a_card_that_does_not_answer_any_more():
    states = Looked([a_gpu(0), a_gpu(1)], fatal=(119,))
    assert health(states, 1, xids=(119,), error="timeout").state is GpuState.DRAINED


def test_what_an_operator_says_stays(states):
    states.drain(0, "fan", 1)
    states.look(2, gpu0="dead")
    assert (states.gpu(0).state, states.gpu(0).note) == (GpuState.DRAINED, "fan")
    states.look(3)
    assert states.gpu(0).state is GpuState.DRAINED
    states.left_dirty(held_by(7, 0), 4)
    assert states.gpu(0).state is GpuState.DRAINED
    states.resume(0, 5)
    assert (states.gpu(0).state, states.gpu(0).note) == (GpuState.OK, "")


def test_a_card_that_is_gone_since_a_job_held_it_is_passed_over(states):
    states.left_dirty(held_by(7, 1, 5), 1)
    assert states.gpu(1).state is GpuState.SUSPECT


def test_a_drained_card_is_drained_wherever_it_is_put_next():
    store = Store(":memory:")
    first, second = a_gpu(0), a_gpu(1)
    with store.write():
        store.put_gpus([first, second])
        states = GpuStates([first, second])
        states.drain(0, "fan", 1)
        store.mark_gpu(states.gpu(0))
    for swapped in ([replace(second, index=0), replace(first, index=1)], [first, second]):
        with store.write():
            marks = store.gpu_marks()
            store.put_gpus(swapped)
            states = GpuStates(swapped)
            states.restore(marks)
            for gpu in states.changed():
                store.mark_gpu(gpu)
        assert {gpu.uuid for gpu in states.gpus if gpu.state is GpuState.DRAINED} == {first.uuid}
        assert store.gpu_marks()[first.uuid][0] is GpuState.DRAINED
        assert store.gpu_marks()[second.uuid][0] is GpuState.OK
    store.close()


def test_only_what_operators_said_outlives_the_controller(states):
    marks = {a_gpu(0).uuid: (GpuState.SUSPECT, "x", 1.0), a_gpu(1).uuid: (GpuState.DRAINED, "y", 2.0)}
    states.restore(marks)
    assert [(gpu.state, gpu.note, gpu.noted_at) for gpu in states.gpus] == [
        (GpuState.OK, "", 0.0),
        (GpuState.DRAINED, "y", 2.0),
    ]


# -- with the conductor -------------------------------------------------------------------------


class GpuLooks(Part):
    """GPUs that are sampled when a test says so."""

    def gpu_states(self):
        return Looked(self.world.gpus, clean_timeout=30.0)

    def started(self):
        self.see()

    def see(self, *jobs):
        """Sample the GPUs: these jobs have processes on them."""
        self.world.engine.gpu_states.look(self.world.now, *jobs)
        self.world.turn()


def sampled(*gpus, **more):
    """Return a world whose GPUs are sampled."""
    return World(gpus, looks=GpuLooks(), **more)


@pytest.fixture
def world():
    world = sampled(a_gpu(0))
    world.submit([a_demand(5000), a_demand(10_000)])
    world.settle()
    world.host.finish(1, 1, a_result(3 << 8))
    world.turn()
    return world


def test_an_ended_job_holds_its_share_until_the_card_is_clean(world):
    ended = world.engine.jobtable.jobs[1]
    assert (ended.state, ended.reason) == (JobState.COMPLETING, Reason.GPU_CLEANING)
    assert len(world.holds()) == 1
    world.looks.see(1)
    assert world.job(2).state is JobState.PENDING
    assert world.engine.jobtable.reason(world.engine.jobtable.jobs[2]) is Reason.GPU_CLEANING
    world.looks.see()
    assert (world.job(1).state, world.job(1).reason) == (JobState.FAILED, Reason.EXIT_CODE)
    assert world.job(2).state is JobState.STARTING
    assert world.job(1).ended_at == 2.0, "the time at which it ended, not that at which it was clean"


@pytest.mark.parametrize("may", [True, False])
def test_a_job_that_failed_on_a_card_that_went_bad_meanwhile_runs_again_elsewhere(may):
    world = sampled(a_gpu(0), a_gpu(1))
    world.submit([a_demand(5000)] * 2, requeue=may)
    world.settle()
    world.looks.see()
    for job, status in ((1, 1 << 8), (2, 0)):
        world.host.finish(job, 1, a_result(status))
    world.turn()
    world.engine.gpu_states.ask()
    sick = {0: Reading(gpu=0, used=0, ecc=1, remap="pending"), 1: Reading(gpu=1, used=0)}
    world.engine.gpu_states.use_readings(sick, listed_jobs=(), now=world.now)
    world.turn()
    world.settle()
    first, second = world.job(1), world.job(2)
    assert second.state is JobState.COMPLETED, "it has done its work"
    if may:
        assert (first.attempt, first.restarts, [hold.gpu for hold in world.holds()]) == (2, 1, [1])
        assert first.condemned is Reason.NONE
    else:
        assert (first.state, first.reason) == (JobState.NODE_FAIL, Reason.GPU_UNHEALTHY)


def test_a_job_whose_processes_stay_is_over_in_time_and_its_card_is_suspect(world):
    world.now += 31
    world.looks.see(1)
    assert world.job(1).state is JobState.FAILED
    assert world.holds() == []
    assert next(iter(world.store.gpu_marks().values()))[0] is GpuState.SUSPECT
    assert world.job(2).state is JobState.PENDING


def test_a_controller_that_starts_goes_on_cleaning(world):
    world.start()
    world.looks.see()
    assert world.job(1).state is JobState.FAILED


@pytest.mark.parametrize("effects", range(4))
def test_no_files_of_a_job_are_left_if_the_controller_dies_as_the_cleaning_of_its_cards_begins(effects):
    world = sampled(a_gpu(0))
    world.submit([a_demand(5000)])
    world.settle()
    world.host.finish(1, 1, a_result(0))
    Power(world, effects).step(world.turn, again=False)
    world.engine.left = UNLIMITED
    world.looks.see()
    assert (world.job(1).state, world.host.attempts) == (JobState.COMPLETED, {})


def test_a_controller_that_cannot_look_any_more_calls_ended_jobs_clean(world):
    world.parts = ()
    world.start()
    world.settle()
    assert (world.job(1).state, world.holds()[0].share) == (JobState.FAILED, 10_000)


def test_an_ended_job_whose_card_is_gone_is_over_in_time(world):
    world.gpus = []
    world.start()
    world.now += 31
    world.turn()
    assert world.job(1).state is JobState.FAILED
    assert world.job(2).state is JobState.PENDING
    assert world.engine.jobtable.reason(world.engine.jobtable.jobs[2]) is not Reason.NONE


def test_a_job_that_failed_to_launch_leaves_nothing_to_clean(world):
    world.looks.see()
    world.turn(StartFailed(2, 1, "no such interpreter"))
    assert (world.job(2).state, world.job(2).reason) == (JobState.FAILED, Reason.LAUNCH_FAILURE)
    assert world.job(2).ended.detail == "no such interpreter"


ENDS = [
    (a_result(0), JobState.COMPLETED, Reason.NONE),
    (a_result(9), JobState.FAILED, Reason.SIGNALED),
    (a_result(15, "timeout"), JobState.TIMEOUT, Reason.TIME_LIMIT),
    (a_result(9, oom_kills=1), JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
    (a_result(256, refusals=1), JobState.OUT_OF_MEMORY, Reason.GPU_OUT_OF_MEMORY),
]


@pytest.mark.parametrize(("result", "state", "reason"), ENDS)
def test_the_reason_of_an_end_outlives_the_cleaning(result, state, reason):
    world = sampled(a_gpu(0))
    world.submit([a_demand(5000)])
    world.settle()
    world.host.finish(1, 1, result)
    world.turn()
    world.looks.see()
    assert (world.job(1).state, world.job(1).reason) == (state, reason)


def test_a_lost_jobs_reason_outlives_the_cleaning():
    world = sampled(a_gpu(0))
    world.submit([a_demand(5000)])
    world.settle()
    world.host.lose_shepherd(1, 1)
    world.settle()
    world.looks.see()
    assert (world.job(1).state, world.job(1).reason) == (JobState.FAILED, Reason.SYSTEM_FAILURE)
    assert world.engine.gpu_states.asked > 0


def test_a_stale_look_is_asked_for_when_a_job_waits(world):
    world.now += 60
    before = world.engine.gpu_states.asked
    world.turn()
    assert world.engine.gpu_states.asked == before + 1


def test_an_echo_of_a_job_that_is_being_cleaned_up_changes_nothing(world):
    world.turn(JobEnded(1), StartFailed(1, 1, "echo"))
    assert world.engine.orphans == {}
    assert world.engine.jobtable.jobs[1].outcome is JobState.FAILED
    world.looks.see()
    assert (world.job(1).state, world.job(1).reason) == (JobState.FAILED, Reason.EXIT_CODE)


def test_nobody_is_let_past_onto_a_card_that_is_only_being_cleaned(world):
    world.submit([a_demand(2500)], time_limit=1000)
    world.looks.see(1)
    assert world.job(3).state is JobState.PENDING


def test_a_job_that_is_clean_at_last_is_clean_however_long_it_took(states):
    states.begin_cleaning(7, 0)
    states.look(40)
    assert states.cleaned(40) == {7: True}


def test_a_job_that_is_only_being_cleaned_up_needs_no_cpus():
    world = sampled(a_gpu(0), limits=HostLimits(cpus=1, host_memory=0))
    world.submit([a_demand(5000), Demand()])
    world.settle()
    world.host.finish(1, 1, a_result())
    world.settle()
    assert [job.state.code for job in world.store.open_jobs()] == ["CG", "R"]
