"""Turns, crashes at every effect, and any order of events: what must hold after each."""

import sqlite3

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import GIB, World, a_demand, a_gpu, a_result, full_disk
from crashing import Power, power_cuts
from fgsched.config.load import Config
from fgsched.controller.containment import Containment
from fgsched.controller.jobtable import Slots
from fgsched.controller.turn import (
    ClientRequest,
    HostShort,
    JobEnded,
    JobStarted,
    SendReply,
    StartFailed,
    without_overtaken,
)
from fgsched.domain.errors import StorageError
from fgsched.domain.job import WHOLE, Demand, GpuState, HostLimits, Reading
from fgsched.domain.states import JobState, Reason
from fgsched.domain.waiting import Gate, gate_of
from fgsched.lifecycle.transitions import Shepherd
from fgsched.protocol import Cancel
from fgsched.store import StorageBroken
from site_fixture import Site


def cancel(world, job_id, uid=1):
    """What the desk does for fgcancel."""
    from fgsched.controller.caller import Caller
    from fgsched.controller.handlers.jobs import JobHandlers
    from fgsched.controller.handlers.submission import Rules

    handlers = JobHandlers(world.engine, Rules(max_script=2**20, default_time=0))
    caller = Caller(uid, uid, "ann", is_operator=uid == 0)

    replies = []

    def act(now):
        answer = handlers.cancel(caller, Cancel(ids=[job_id]), now)
        return SendReply(replies.append, answer)

    world.turn(ClientRequest(act, lambda error: None))


def end(world, job_id, status=0, attempt=1):
    world.host.finish(job_id, attempt, a_result(status))
    world.settle()


def test_a_job_is_reserved_run_and_recorded():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    assert world.job(1).state is JobState.RUNNING
    end(world, 1)
    assert world.job(1).state is JobState.COMPLETED
    assert world.holds() == []
    assert world.host.attempts == {}, "claim and result are gone once the end is committed"


def steps(world, job_id=1):
    return [(attempt, at, old, new) for attempt, at, old, new, _ in world.store.steps.of(job_id)]


def test_a_beginning_and_an_end_that_are_told_together_are_both_recorded():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    began = world.now
    world.host.finish(1, 1, a_result(started_at=began + 0.25, ended_at=began + 0.5))
    assert [type(event) for event in world.host.inbox] == [JobStarted, JobEnded]
    world.turn()
    assert world.job(1).state is JobState.COMPLETED
    assert steps(world) == [
        (1, began, "PENDING", "CONFIGURING"),
        (1, began + 0.25, "CONFIGURING", "RUNNING"),
        (1, world.now, "RUNNING", "COMPLETED"),
    ]


def test_an_attempt_that_never_ran_has_no_step_of_running():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.host.finish(1, 1, a_result(status=1, cause="launch", started_at=7.0))
    world.turn()
    assert [state for *_, state in steps(world)] == ["CONFIGURING", "FAILED"]


STARTED = JobStarted(1, 2, Shepherd(5, 5, "boot"))


@pytest.mark.parametrize(
    ("events", "taken"),
    [
        ([STARTED, JobEnded(1, 2)], [JobEnded(1, 2)]),
        ([STARTED, JobEnded(1)], [JobEnded(1)]),  # of the attempt that is under way
        ([STARTED, JobEnded(1, 1)], [STARTED, JobEnded(1, 1)]),
        ([STARTED, JobEnded(2, 2)], [STARTED, JobEnded(2, 2)]),
        ([STARTED], [STARTED]),
    ],
)
def test_a_start_that_arrives_with_the_end_of_its_attempt_is_no_step_of_its_own(events, taken):
    assert without_overtaken(events) == taken


def short_result(world):
    detail = "mkdir /run/fgsched/job/1.1: No space left on device"
    world.host.finish(1, world.job(1).attempt, a_result(127 << 8, cause="shortage", detail=detail))
    world.settle()
    return f"could not be started: {detail}"


def short_answer(world):
    why = "could not be started: Resource temporarily unavailable"
    world.turn(HostShort(1, world.job(1).attempt, why))
    return why


@pytest.mark.parametrize("befall", [short_result, short_answer])
def test_a_job_whose_start_the_host_was_short_for_waits_and_is_not_blamed(befall):
    """As often as it takes: that counts neither as a failure nor as a restart."""
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    for attempt in range(1, 31):
        assert world.job(1).attempt == attempt
        why = befall(world)
        job = world.job(1)
        assert (job.state, job.warning, job.failures, job.restarts) == (JobState.PENDING, why, 0, 0)
        assert world.engine.jobtable.reason(job) is Reason.HOST_SHORTAGE
        assert job.not_before == world.now + 10
        assert gate_of(job, Reason.HOST_SHORTAGE) == Gate(
            reason=Reason.HOST_SHORTAGE, error=why, not_before=job.not_before
        )
        world.now += 10
        world.turn()
    assert (world.job(1).state, world.job(1).warning) == (JobState.STARTING, "")


def test_a_job_with_a_process_that_no_kill_ends_is_over_and_its_card_waits_for_an_operator():
    world = World([a_gpu(0), a_gpu(1)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    world.host.finish(1, 1, a_result(9, cause="timeout", survivor=4242))
    world.settle()
    note = "process 4242 of job 1 could not be ended"
    assert (world.job(1).state, world.job(1).holds) == (JobState.TIMEOUT, ())
    assert [(gpu.state, gpu.note) for gpu in world.engine.gpu_states.gpus] == [
        (GpuState.SUSPECT, note),
        (GpuState.OK, ""),
    ]
    world.submit([a_demand(WHOLE)])
    assert world.job(3).state is JobState.PENDING
    world.engine.gpu_states.resume(0, world.now)
    world.settle()
    assert world.job(3).state is JobState.RUNNING


def test_the_next_job_starts_in_the_turn_that_records_the_end():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    assert world.host.running == [(1, 1)]
    world.host.finish(1, 1, a_result())
    world.turn()
    assert world.host.running == [(2, 1)]


def test_a_pending_job_is_cancelled_at_once_and_a_running_one_by_its_shepherd():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    cancel(world, 2)
    assert world.job(2).state is JobState.CANCELLED
    cancel(world, 1)
    world.settle()
    assert world.job(1).state is JobState.CANCELLED
    assert world.job(1).cancelled_by == 1


def test_somebody_elses_job_is_not_cancelled():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    cancel(world, 1, uid=2)
    world.settle()
    assert world.job(1).state is JobState.RUNNING


def test_a_launch_that_never_arrived_is_repeated_with_a_new_attempt():
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None  # the spawner died with the message
    world.submit([a_demand(5000)])
    assert world.job(1).state is JobState.STARTING
    del world.host.start
    world.start()
    world.settle()
    assert (world.job(1).attempt, world.host.runs) == (2, [1])


def test_a_launch_that_arrives_after_its_attempt_was_given_up_does_nothing():
    world = World([a_gpu(0)])
    sent = []
    world.host.start = lambda job, given: sent.append((job, given))
    world.submit([a_demand(5000)])
    del world.host.start
    world.start()
    world.host.start(*sent[0])
    world.settle()
    assert world.host.runs == [1]
    assert world.job(1).attempt == 2


def test_a_crash_between_tombstone_and_commit_does_not_lose_the_job():
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)])
    del world.host.start
    world.host.seize(world.job(1))  # an earlier recovery got as far as this
    world.start()
    world.settle()
    assert world.host.runs == [1]


def test_a_job_whose_shepherd_and_result_are_gone_is_hunted_and_failed():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.host.lose_shepherd(1, 1)
    world.settle()
    assert (world.job(1).state, world.job(1).reason) == (JobState.FAILED, Reason.SYSTEM_FAILURE)
    assert world.job(1).supervisor_lost
    assert world.host.running == []


def test_a_job_of_an_earlier_boot_ends_as_node_fail():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)], requeue=False)
    world.settle()
    world.host.boot = "boot-2"
    world.host.attempts[1, 1].shepherd = False
    world.start()
    world.settle()
    assert world.job(1).state is JobState.NODE_FAIL
    assert world.host.runs == [1]


def test_the_charge_of_an_attempt_is_kept_when_its_job_is_requeued():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    charged = 0.0
    for boot in ("boot-2", "boot-3"):
        world.now += 100
        before = world.job(1)
        world.host.boot = boot
        world.host.attempts[1, before.attempt].shepherd = False
        world.start()
        charged += (world.now - before.started_at) / 2
        assert world.job(1).charged_before == pytest.approx(charged)
        world.now += 1000
        world.settle()
        assert world.job(1).state is JobState.RUNNING


def run_for(world, seconds, *, later=0):
    """A job that is requeued: its first attempt ran for `seconds`, which is seen `later` seconds later."""
    world.submit([a_demand(5000)])
    world.settle()
    began = world.now
    job = world.job(1)
    world.engine.store.save(job, job.changed(wish="requeue"), now=world.now)
    world.engine.recover(world.now)
    world.now += seconds + later
    world.host.finish(1, 1, a_result(15, started_at=began, ended_at=began + seconds))


@pytest.mark.parametrize(("seconds", "later"), [(0, 1000), (100, 0), (100, 5000)])
def test_a_requeued_attempt_is_charged_to_the_end_of_its_run_everywhere(seconds, later):
    """Not until the end was noticed, for example by a controller that was started later."""
    world = World([a_gpu(0)])
    run_for(world, seconds, later=later)
    world.turn()
    assert world.job(1).attempt == 2
    assert world.job(1).charged_before == pytest.approx(seconds / 2)
    used = sum(usage.now(world.now, 1e12) for usage in world.engine.store.kept.usage().values())
    assert used == pytest.approx(seconds / 2, rel=0.01)


def test_an_attempt_that_the_host_was_short_for_is_charged_nothing():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.now += 50
    world.turn(HostShort(1, 1, "no memory"))
    assert world.job(1).charged_before == 0
    assert not sum(usage.now(world.now, 1e12) for usage in world.engine.store.kept.usage().values())


def test_a_full_disk_refuses_what_was_asked_and_keeps_what_has_happened():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    refused = []
    real = world.engine.store.save

    def full(*args, **kwargs):
        raise StorageError("the queue cannot be written: database or disk is full")

    world.engine.store.save = full
    world.host.finish(1, 1, a_result())
    world.turn(
        ClientRequest(
            lambda now: SendReply(refused.append, "acknowledged"), lambda error: refused.append(error.cause)
        )
    )
    assert refused == ["the queue cannot be written: database or disk is full"]
    assert world.job(1).state is JobState.RUNNING
    world.engine.store.save = real
    world.settle()
    assert world.job(1).state is JobState.COMPLETED
    assert world.job(2).state is JobState.RUNNING


def test_a_signal_is_delivered_on_a_full_disk_while_the_end_of_another_job_waits_to_be_stored():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 2)
    world.settle()
    world.host.finish(1, 1, a_result())
    answers = []
    with full_disk(world):
        for stores in (False, True):
            world.turn(
                ClientRequest(
                    lambda now: SendReply(answers.append, "sent"),
                    lambda error: answers.append("refused"),
                    stores=stores,
                )
            )
        assert world.engine.due(world.now) == 1.0
    assert answers == ["sent", "refused"]
    world.settle()
    assert world.job(1).state is JobState.COMPLETED


def test_a_controller_that_starts_on_a_full_disk_takes_the_jobs_over_when_there_is_space():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    world.host.finish(1, 1, a_result())
    with full_disk(world):
        world.start()
        refused = []
        world.turn(
            ClientRequest(
                lambda now: SendReply(refused.append, "done"), lambda why: refused.append(why.cause)
            )
        )
        assert refused == ["the queue cannot be written: database or disk is full"]
        assert [world.job(each).state for each in (1, 2)] == [JobState.RUNNING, JobState.PENDING]
        assert world.engine.due(world.now) == 1.0
    world.settle()
    assert [world.job(each).state for each in (1, 2)] == [JobState.COMPLETED, JobState.RUNNING]
    assert world.host.runs == [1, 2]


def test_a_failing_disk_refuses_what_was_asked_and_ends_the_controller():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    refused = []

    def broken(now):
        raise StorageBroken("the queue cannot be written: disk I/O error")

    world.turn(ClientRequest(broken, lambda error: refused.append(error.cause)))
    assert refused == ["the queue cannot be written: disk I/O error"]
    assert world.engine.is_broken
    world.start()
    world.settle()
    assert world.job(1).state is JobState.RUNNING


def test_a_queue_that_cannot_be_read_again_after_an_error_is_written_no_more(monkeypatch):
    """An error of one job repeats the round; the table of jobs is read again for it."""
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    world.settle()
    rounds, refused = [], []
    begin = Containment.begin_round
    counted = lambda self, settled: rounds.append(1) or begin(self, settled)  # noqa: E731
    monkeypatch.setattr(Containment, "begin_round", counted)

    def unreadable():
        raise sqlite3.OperationalError("disk I/O error")

    def blame(now):
        world.engine.containment.blame(1, ZeroDivisionError())

    monkeypatch.setattr(world.engine.store, "open_past", unreadable)
    world.turn(ClientRequest(blame, lambda error: refused.append(error.cause)))
    assert (len(rounds), refused, world.engine.is_broken) == (1, ["the queue cannot be read"], True)


def test_an_answer_of_the_spawner_that_comes_twice_does_no_harm():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.turn(
        JobStarted(1, 1, Shepherd(1, 1, "boot-1")),
        JobEnded(1),
        JobEnded(1),
        JobStarted(1, 0, Shepherd(9, 9, "boot-1")),
    )
    world.settle()
    assert world.job(1).state is JobState.RUNNING
    end(world, 1)
    world.turn(JobEnded(1))
    assert world.job(1).state is JobState.COMPLETED


def test_a_late_notice_of_an_earlier_attempt_leaves_the_next_its_claim():
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)])
    world.host.seize(world.job(1))
    world.turn(JobEnded(1, 1))
    assert (world.job(1).state, world.job(1).attempt) == (JobState.STARTING, 2)
    world.turn(JobEnded(1, 1))
    assert (world.job(1).state, world.job(1).attempt) == (JobState.STARTING, 2)
    assert not world.host.attempt(world.job(1)).claim


# -- a crash at every effect --------------------------------------------------------------------


def three_jobs(effects):
    """Three jobs: one is cancelled, two end; the power fails after some effects."""
    world = World([a_gpu(0)])
    power = Power(world, effects)
    for key, share in (("first", 5000), ("second", 5000), ("third", WHOLE)):
        power.step(lambda key=key, share=share: world.submit([a_demand(share)], key=f"key-{key}-0123456789"))
    power.step(world.settle)
    power.step(lambda: cancel(world, 1))
    power.step(world.settle)
    for job, status in ((2, 3 << 8), (3, 0)):
        running = dict(world.host.running)
        if job in running:
            world.host.finish(job, running[job], a_result(status))
        power.step(world.settle)
    power.step(world.settle)
    return power


EFFECTS = 48


@pytest.mark.parametrize("effects", range(EFFECTS))
def test_a_crash_at_any_effect_costs_no_job_and_starts_none_twice(effects):
    world = three_jobs(effects).world
    assert [world.job(number).state for number in (1, 2, 3)] == [
        JobState.CANCELLED,
        JobState.FAILED,
        JobState.COMPLETED,
    ]
    assert world.store.last_id() == 3, "a repeated submission is the same one"
    assert [number for number in world.host.runs if number != 1] == [2, 3]
    assert world.host.runs.count(1) <= 1
    assert world.holds() == []
    assert world.host.running == []
    assert [key for key, attempt in world.host.attempts.items() if attempt.claim == "P"] == []


def test_the_crashes_above_really_reach_from_the_first_effect_to_the_last():
    cuts = power_cuts(three_jobs, EFFECTS)
    assert sum(cuts) >= 25
    assert three_jobs(10**6).cuts == 0
    assert cuts[-1] == 0, "there are no more effects than crashes were injected at"


# -- any order of events ------------------------------------------------------------------------

GPUS = [a_gpu(0), a_gpu(1, memory=40 * GIB)]


class Queue(RuleBasedStateMachine):
    """The queue under any order of submissions, cancels, ends, crashes and restarts."""

    @initialize()
    def begin(self):
        self.world = World(GPUS)
        self.finals = {}

    @rule(share=st.integers(1, WHOLE), memory=st.sampled_from([0, GIB, 10 * GIB]))
    def submit(self, share, memory):
        self.world.submit([a_demand(share, memory)])

    @rule(count=st.integers(1, 2))
    def submit_whole(self, count):
        self.world.submit([a_demand(WHOLE, gpus=count)])

    @rule(memory=st.integers(1, 40 * GIB))
    def submit_bytes(self, memory):
        self.world.submit([a_demand(memory=memory)])

    @rule()
    def turn(self):
        self.world.turn()

    @precondition(lambda self: self.world.host.running)
    @rule(data=st.data(), status=st.sampled_from([0, 256, 9]))
    def finish(self, data, status):
        job, attempt = data.draw(st.sampled_from(self.world.host.running))
        self.world.host.finish(job, attempt, a_result(status))

    @precondition(lambda self: self.world.acknowledged)
    @rule(data=st.data())
    def cancel(self, data):
        cancel(self.world, data.draw(st.sampled_from(self.world.acknowledged)))

    @precondition(lambda self: self.world.host.running)
    @rule(data=st.data())
    def kill_shepherd(self, data):
        self.world.host.lose_shepherd(*data.draw(st.sampled_from(self.world.host.running)))

    @rule()
    def restart(self):
        self.world.start()

    @rule(left=st.integers(0, 6), share=st.integers(1, WHOLE))
    def crash_in_a_turn(self, left, share):
        power = Power(self.world, left)
        power.step(lambda: (self.world.submit([a_demand(share)]), self.world.turn()), again=False)
        power.restore()

    @invariant()
    def holds_never_exceed_a_gpu(self):
        for gpu in GPUS:
            on_it = [hold for hold in self.world.holds() if hold.gpu == gpu.index]
            assert sum(hold.share for hold in on_it) <= WHOLE
            assert sum(hold.memory for hold in on_it) <= gpu.usable

    @invariant()
    def whole_and_shared_never_mix(self):
        for gpu in GPUS:
            shares = [hold.share for hold in self.world.holds() if hold.gpu == gpu.index]
            assert WHOLE not in shares or shares == [WHOLE]

    @invariant()
    def nothing_runs_twice(self):
        assert len(set(self.world.host.runs)) == len(self.world.host.runs)

    @invariant()
    def no_end_is_ever_taken_back(self):
        for job_id in self.world.acknowledged:
            state = self.world.job(job_id).state
            assert self.finals.setdefault(job_id, state) is state if state.is_final else True

    @invariant()
    def no_process_of_an_ended_job_is_alive(self):
        for job_id, _ in self.world.host.running:
            assert not self.world.job(job_id).state.is_final

    def teardown(self):
        """Every acknowledged job ends, exactly once."""
        if not hasattr(self, "world"):
            return
        for _ in range(len(self.world.store.open_jobs()) + 2):
            self.world.settle()
            for job, attempt in self.world.host.running:
                self.world.host.finish(job, attempt, a_result())
        self.world.settle()
        assert self.world.store.open_jobs() == []
        assert all(self.world.job(job_id).state.is_final for job_id in self.world.acknowledged)
        assert self.world.holds() == []


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_task_whose_time_comes_again_because_the_clock_was_set_back_starts_then():
    """The limit of its array kept it when its time came for the first time."""
    world = World([a_gpu(0)])
    begin = int(world.now) + 100
    world.submit([a_demand(2500)], array="0-1", throttle=1, begin=begin)
    world.now = begin + 1.0
    world.settle()
    ((job, attempt),) = world.host.running
    world.now = begin - 50.0
    world.settle()
    world.host.finish(job, attempt, a_result())
    world.settle()
    assert world.host.running == []
    assert 0 < world.engine.due(world.now) <= 50
    world.now = float(begin)
    world.settle()
    assert len(world.host.running) == 1


# -- a disk that is full for one turn -----------------------------------------------------------


def test_a_turn_that_cannot_be_stored_is_repeated_after_a_second_and_not_at_once():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)], begin=int(world.now) + 100)
    world.now += 200
    with full_disk(world):
        world.turn()
        assert world.engine.due(world.now) == 1.0
        assert world.engine.due(world.now + 0.75) == 0.25
        assert world.engine.due(world.now - 3600) == 300.0, "the clock was set back"
    world.settle()
    assert world.job(1).state is JobState.RUNNING


@pytest.mark.parametrize("edge", ["start", "end"])
def test_a_reservation_that_begins_or_ends_right_after_a_turn_causes_another_one(edge):
    """The process may be delayed between a turn and the moment at which it looks for what is due."""
    site = Site([a_gpu(0)], Config(), sampled=False)
    period = {"start": int(site.world.now) + 100, "end": int(site.world.now) + 200}
    about = {"name": "talk", "share": WHOLE, "gpus": [0], "flags": [], "users": ["ann"]}
    assert site.ask("create_reservation", **about, **period) == {"reservation": "talk"}
    site.world.now = period[edge] - 0.001
    site.world.turn()
    assert site.world.engine.due(period[edge] + 0.5) == 0.0
    assert site.world.engine.due(period["start"] - 1.0) == 1.0, "the clock was set back"
    site.world.now = period[edge] + 0.5
    site.world.turn()
    assert site.world.engine.due(site.world.now) == (99.5 if edge == "start" else None)


def test_a_lost_job_whose_end_could_not_be_stored_still_ends():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.host.lose_shepherd(1, 1)
    world.turn()
    with full_disk(world):
        for _ in range(5):
            world.turn()
    world.settle()
    assert world.job(1).state is JobState.FAILED


def test_a_card_whose_cleaning_could_not_be_stored_is_still_given_back():
    world = World([a_gpu(0)])
    world.engine.gpu_states.needs_cleaning = True
    world.engine.gpu_states.use_readings({0: Reading(gpu=0, used=0)}, listed_jobs=(), now=1001)
    world.submit([a_demand(5000)])
    world.settle()
    end(world, 1)
    assert world.engine.jobtable.jobs[1].state is JobState.COMPLETING
    world.engine.gpu_states.needs_cleaning = False
    with full_disk(world):
        world.turn()
    assert world.engine.jobtable.jobs[1].state is JobState.COMPLETING
    world.turn()
    assert world.job(1).state is JobState.COMPLETED


def test_nobody_overtakes_a_job_with_a_gpu_while_the_cards_have_not_been_looked_at():
    world = World([a_gpu(0)], limits=HostLimits(cpus=4, host_memory=2**50))
    states = world.engine.gpu_states
    states.needs_cleaning = True
    states.use_readings({0: Reading(gpu=0, used=0)}, listed_jobs=(), now=world.now)
    world.submit([Demand(cpus=4), Demand(cpus=1), a_demand(5000, cpus=3), Demand(cpus=2)])
    world.now += 100
    world.host.finish(1, 1, a_result())
    world.settle()
    assert [world.job(number).state.code for number in (2, 3, 4)] == ["R", "PD", "PD"]
    states.use_readings({0: Reading(gpu=0, used=0)}, listed_jobs=(), now=world.now)
    world.settle()
    assert [world.job(number).state.code for number in (2, 3, 4)] == ["R", "R", "PD"]


def test_nothing_is_launched_or_answered_when_the_commit_fails():
    world = World([a_gpu(0)])
    said = []
    with full_disk(world):
        world.submit([a_demand(5000)])
        world.turn(
            ClientRequest(
                lambda now: SendReply(said.append, "done"), lambda error: said.append(error.exit_code)
            )
        )
    world.settle()
    assert (world.host.runs, world.acknowledged, said) == ([], [], [6])
    world.submit([a_demand(5000)])
    assert world.host.runs == [1]


def test_a_job_is_never_launched_before_its_hold_is_stored():
    world = World([a_gpu(0)])
    seen = []
    real = world.host.start
    world.host.start = lambda job, given: (seen.append(world.store._db.in_transaction), real(job, given))
    world.submit([a_demand(5000)])
    assert seen == [False]


def test_traces_are_removed_only_after_the_end_is_stored():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    seen = []
    real = world.host.forget
    world.host.forget = lambda job: (seen.append(world.store._db.in_transaction), real(job))
    end(world, 1)
    assert seen == [False]


@pytest.mark.parametrize("may", [True, False])
def test_a_job_that_never_gets_to_run_is_tried_at_once_and_held_or_given_up_after_twenty_more(may):
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)], requeue=may)
    for _ in range(100):
        world.start()
        world.turn()
    job = world.job(1)
    assert (job.state, job.attempt) == (JobState.PENDING if may else JobState.FAILED, 21)
    assert world.holds() == []
    if may:
        assert world.engine.jobtable.reason(job) is Reason.HELD_MAX_REQUEUE


def test_a_job_that_did_not_run_and_was_cancelled_meanwhile_does_not_come_back():
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)])
    cancel(world, 1)
    world.start()
    world.settle()
    assert (world.job(1).state, world.job(1).attempt) == (JobState.CANCELLED, 1)


def test_running_jobs_have_numbers_of_their_own_and_the_lowest_is_used_again():
    world = World([a_gpu(0)])
    world.submit([a_demand(2500)] * 4)
    world.settle()
    assert sorted(job.slot for job in world.store.open_jobs()) == [0, 1, 2, 3]
    end(world, 2)
    world.start()
    world.submit([a_demand(2500)])
    assert world.job(5).slot == 1


def test_jobs_that_no_card_is_left_for_wait_and_are_told_so():
    world = World([a_gpu(0), a_gpu(1)])
    world.submit([a_demand(WHOLE, gpus=2), a_demand(WHOLE, gpus=2), a_demand(2500, gpu_type="sim")])
    world.settle()
    world.gpus = world.gpus[:1]
    world.start()
    end(world, 1)
    assert world.job(2).state is JobState.PENDING
    assert world.engine.jobtable.reason(world.engine.jobtable.jobs[2]) is Reason.GPU_DRAINED
    assert world.job(3).state is JobState.RUNNING, "one that can never run keeps nothing for itself"
    assert [hold.gpu for hold in world.holds()] == [0]


def test_the_jobs_that_wait_are_counted_in_each_scope_of_limits():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 3)
    world.settle()
    keys = [("user", "ann"), ("user", "bob"), ("qos", "normal")]
    assert [world.engine.jobtable.waiting_in(key) for key in keys] == [2, 0, 2]


def test_where_several_kinds_of_jobs_wait_a_turn_is_due_after_the_interval_of_priorities():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE), a_demand(5000)])
    world.settle()
    assert world.engine.due(world.now) == world.engine.policy.weights.interval


def test_the_cpus_of_a_job_are_counted_until_it_ends():
    world = World([a_gpu(0)], limits=HostLimits(cpus=3, host_memory=GIB))
    world.submit([Demand(cpus=2), Demand(cpus=2, host_memory=GIB), Demand(cpus=1)])
    world.settle()
    assert [job.state.code for job in world.store.open_jobs()] == ["R", "PD", "R"], "beside the second"
    end(world, 1)
    assert [job.state.code for job in world.store.open_jobs()] == ["R", "R"]


# -- one event of an attempt --------------------------------------------------------------------


def a_world_that_tries_again():
    """Its first attempt was given up; the second has been sent off."""
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)])
    world.start()
    world.turn()
    assert (world.job(1).state, world.job(1).attempt) == (JobState.STARTING, 2)
    return world


def test_what_is_said_of_an_earlier_attempt_is_not_taken_for_the_present_one():
    world = a_world_that_tries_again()
    world.turn(JobStarted(1, 1, Shepherd(9, 9, "boot-1")), StartFailed(1, 1, "too late"))
    assert (world.job(1).state, world.job(1).attempt) == (JobState.STARTING, 2)


def test_a_job_ends_with_the_times_of_its_result():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.host.finish(1, 1, a_result(started_at=5.0, ended_at=6.0))
    world.turn()
    assert (world.job(1).started_at, world.job(1).ended_at) == (5.0, 6.0)
    (ended,) = world.engine.ended
    assert (ended.id, ended.state, ended.holds) == (1, JobState.COMPLETED, ())


def test_a_job_that_never_ran_keeps_the_time_at_which_it_was_tried():
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)])
    world.turn(StartFailed(1, 1, "no such interpreter"))
    assert world.job(1).started_at == 1001.0
    assert world.job(1).ended_at == 1002.0
    assert world.job(1).reason is Reason.LAUNCH_FAILURE


def test_a_running_job_is_followed_by_each_controller():
    world = World([a_gpu(0)])
    followed = []
    world.host.follow = lambda job, shepherd: followed.append((job.id, shepherd.pid))
    world.submit([a_demand(5000)])
    world.settle()
    world.start()
    assert followed == [(1, 1), (1, 1)]


def test_a_job_that_begins_and_ends_in_one_turn_is_not_followed_but_one_that_only_begins_is():
    world = World([a_gpu(0)])
    followed = []
    world.host.follow = lambda job, shepherd: followed.append((job.id, job.attempt))
    world.submit([a_demand(5000), a_demand(5000)])
    world.host.finish(1, 1, a_result())
    world.host.inbox[-1] = JobEnded(1, 1)  # its shepherd rests
    world.turn()
    assert followed == [(2, 1)]
    assert world.job(1).state is JobState.COMPLETED


def test_a_new_attempt_is_not_taken_for_the_one_that_begins_and_ends_in_its_turn():
    world = World([a_gpu(0)])
    followed = []
    world.host.follow = lambda job, shepherd: followed.append((job.id, job.attempt))
    world.submit([a_demand(5000)])
    world.host.finish(1, 1, a_result(cause="launch", lost=True))
    world.turn()
    assert world.job(1).attempt == 2
    assert followed == []
    world.turn()
    assert followed == [(1, 2)]


def test_a_shepherd_that_ended_before_it_was_followed_is_not_waited_for():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.host.finish(1, 1, a_result())
    world.host.inbox.pop()
    world.settle()
    assert world.job(1).state is JobState.COMPLETED


def test_a_lost_jobs_true_end_is_taken_when_the_spawner_brings_it():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.host.kill_remaining = lambda job: True
    world.host.lose_shepherd(1, 1)
    world.turn()
    assert 1 in world.engine.orphans
    world.host.attempts[1, 1].result = a_result(3 << 8, lost=True)
    world.host.attempts[1, 1].alive = False
    world.turn()
    assert (world.job(1).state, world.job(1).reason) == (JobState.FAILED, Reason.EXIT_CODE)
    assert world.engine.orphans == {}


def test_a_spawner_has_a_second_to_bring_a_lost_jobs_end():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.host.lose_shepherd(1, 1)
    world.host.kill_remaining = lambda job: True
    world.engine.turn([JobEnded(1)], 2000.0)
    world.engine.turn([], 2000.9)
    assert world.job(1).state is JobState.RUNNING
    world.engine.turn([], 2001.0)
    assert world.job(1).state is JobState.FAILED


def test_a_lost_job_that_is_still_there_is_hunted_until_it_is_not():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.settle()
    world.host.lose_shepherd(1, 1)
    world.host.kill_remaining = lambda job: False
    for _ in range(5):
        world.turn()
    assert world.job(1).state is JobState.RUNNING
    del world.host.kill_remaining
    world.settle()
    assert world.job(1).state is JobState.FAILED


def test_a_job_whose_start_was_never_reported_runs_while_processes_of_it_do():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000)])
    world.host.inbox.clear()
    world.host.has_supervisor = lambda job: True
    world.host.kill_remaining = lambda job: False
    world.host.lose_shepherd(1, 1)
    world.turn()
    assert (world.job(1).state, world.job(1).warning) == (JobState.RUNNING, "")


def test_traces_of_ended_attempts_are_swept_by_the_next_controller():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000), a_demand(5000)])
    world.settle()
    world.host.forget = lambda job: None
    end(world, 1)
    assert (1, 1) in world.host.attempts
    del world.host.forget
    world.start()
    assert set(world.host.attempts) == {(2, 1)}


def test_what_a_job_was_given_is_known_to_each_controller():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000), Demand()])
    world.settle()
    before = dict(world.engine.jobtable.allocations)
    assert [(one.gpu, one.share, one.charged) for one in before[1]] == [(0, 5000, 5000)]
    world.start()
    assert world.engine.jobtable.allocations == before
    assert (world.job(1).tier, world.job(2).tier) == ("shim", "none")
    end(world, 1)
    assert 1 not in world.engine.jobtable.allocations


def test_a_job_that_is_tried_again_gives_back_what_it_was_given():
    world = World([a_gpu(0)])
    world.host.start = lambda job, given: None
    world.submit([a_demand(5000)])
    world.engine.gpu_states.drain(0, "fan", 1)
    world.host.seize(world.job(1))
    world.turn(JobEnded(1))
    assert (world.job(1).state, world.job(1).holds) == (JobState.PENDING, ())
    assert world.engine.jobtable.allocations == {}
    assert world.engine.jobtable.free_slot() == 0


def test_every_change_of_the_book_is_another_revision():
    world = World([a_gpu(0)])
    seen = [world.engine.jobtable.revision]
    world.submit([a_demand(5000)])
    seen.append(world.engine.jobtable.revision)
    world.settle()
    seen.append(world.engine.jobtable.revision)
    end(world, 1)
    seen.append(world.engine.jobtable.revision)
    assert seen == sorted(set(seen))


def test_the_numbers_of_running_jobs_survive_the_controller_with_their_gaps():
    slots = Slots()
    slots.take(2)
    assert slots.lowest() == 0
    slots.take(0)
    assert slots.lowest() == 1
    slots.release(2)
    slots.release(2)
    slots.take(1)
    assert slots.lowest() == 2


def test_a_job_past_its_limit_is_expected_to_end_now():
    jobtable = World([a_gpu(0)])
    jobtable.submit([a_demand(5000)], time_limit=10)
    jobtable.settle()
    jobtable.now += 100
    jobtable.submit([a_demand(WHOLE)])
    jobtable.submit([a_demand(2500)], time_limit=50)
    assert jobtable.job(3).state is JobState.PENDING, "it would end after the first, which is overdue"
