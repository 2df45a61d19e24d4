"""The requests that change something: in each state of a job, by each kind of person, right or wrong."""

import pytest

from asking import as_call
from builders import ROOT, World, a_demand, a_gpu, a_result
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.jobs import JobHandlers
from fgsched.controller.handlers.submission import Rules
from fgsched.domain.errors import BadUsage, FgschedError, StorageError
from fgsched.domain.job import WHOLE, GpuState
from fgsched.domain.policy import DOWN, Partition, PerJobLimits, Policy
from fgsched.domain.states import JobState, Reason
from fgsched.protocol import MAX_IDS

ANN = Caller(1, 1, "ann", is_operator=False)
BOB = Caller(2, 2, "bob", is_operator=False)


def update(world, caller=ANN, job_id=1, **changes):
    return world.ask(caller, "update", id=job_id, changes=changes)


@pytest.fixture
def world():
    """One job that has the card, one that waits for it."""
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    return world


def a_submission(**more):
    base = {"key": "k" * 16, "scripts": ["#!/bin/sh\n"], "environments": [{}], "requests": [{"name": "x"}]}
    return base | {"jobs": [[0, 0, 0, False]]} | more


# -- submit -------------------------------------------------------------------------------------


def test_a_submission_gets_consecutive_ids_and_its_key_gets_the_same_again(world):
    sent = a_submission(jobs=[[0, 0, 0, False], [0, 0, 0, True]])
    assert world.ask(ANN, "submit", **sent) == {"first": 3, "count": 2}
    assert world.ask(ANN, "submit", **sent) == {"first": 3, "count": 2}
    assert world.ask(BOB, "submit", **sent) == {"first": 5, "count": 2}, "keys are each user's own"
    assert [world.job(number).held for number in (3, 4)] == ["", "user"]
    assert world.job(5).uid == 2


WRONG = [
    {"key": "short"},
    {"key": "k" * 129},
    {"key": "\udcff" * 16},
    {"key": 7},
    {"more": 1},
    {"jobs": []},
    {"jobs": {}},
    {"jobs": [[0, 0, 0]]},
    {"jobs": [[0, 0, 1, False]]},
    {"jobs": [[-1, 0, 0, False]]},
    {"jobs": [[True, 0, 0, False]]},
    {"jobs": [7]},
    {"jobs": [[0, 0, 0, False]] * 20_001},
    {"requests": [{"name": "x", "demand": None}]},
    {"requests": [{"name": "x", "demand": {"gpus": 2, "share": WHOLE}}]},
    {"scripts": [7]},
    {"scripts": ["no script"]},
    {"scripts": ["#!/bin/sh\n\0"]},
    {"scripts": ["#!" + "x" * 999]},
    {"environments": [[]]},
    {"environments": [{"A=B": "1"}]},
    {"environments": [{"": "1"}]},
    {"environments": [{"A": 1}]},
    {"environments": [{"A": "\0"}]},
    {"environments": [{"A": "x" * 2**20}]},
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_wrong_submission_is_refused_whole(world, wrong):
    with pytest.raises(FgschedError):
        world.ask(ANN, "submit", **a_submission(**wrong))
    assert world.store.last_id() == 2


def test_a_script_of_just_the_longest_length_is_taken(world):
    assert world.ask(ANN, "submit", **a_submission(scripts=["#!" + "x" * 998]))["first"] == 3


def test_a_name_that_is_no_utf_8_is_kept_byte_for_byte(world):
    world.ask(ANN, "submit", **a_submission(requests=[{"name": "caf\udce9"}]))
    update(world, name="th\udce9")
    assert world.job(3).request.name == "caf\udce9"
    assert world.job(1).request.name == "th\udce9"


def test_a_job_without_a_time_limit_gets_the_sites():
    world = World([a_gpu(0)])
    world.job_handlers.rules = Rules(max_script=1000, default_time=60)
    both = a_submission(
        requests=[{"name": "x"}, {"name": "y", "time_limit": 5}], jobs=[[0, 0, 0, False], [1, 0, 0, False]]
    )
    world.ask(ANN, "submit", **both)
    assert [world.job(number).request.time_limit for number in (1, 2)] == [60, 5]


def test_nobody_has_more_jobs_than_the_limit(world):
    world.job_handlers.rules = Rules(max_script=1000, default_time=0, max_jobs=3)
    world.ask(ANN, "submit", **a_submission())
    with pytest.raises(FgschedError, match="ann has 3 jobs already"):
        world.ask(ANN, "submit", **a_submission(key="l" * 16))
    world.ask(BOB, "submit", **a_submission())


def test_what_was_admitted_once_is_asked_again_of_another_person_or_another_site():
    world = World([a_gpu(0)])
    handlers = JobHandlers(world.engine, world.job_handlers.rules)
    request = {"name": "x", "nice": -5}

    def limit_of(caller, key):
        (job,) = handlers._read(caller, as_call("submit", **a_submission(key=key * 16, requests=[request])))
        return job.request.time_limit

    assert limit_of(ROOT, "a") == 0
    with pytest.raises(FgschedError, match="only operators"):
        limit_of(ANN, "b")
    handlers.rules = Rules(max_script=1000, default_time=60)
    assert limit_of(ROOT, "c") == 60
    world.engine.site.policy = Policy(partitions=(Partition(name="other", is_default=True),))
    (job,) = handlers._read(ROOT, as_call("submit", **a_submission(requests=[request])))
    assert job.request.partition == "other"


def test_waiting_running_and_split_off_jobs_of_a_user_are_all_counted():
    world = World([a_gpu(0)])

    def open_of(user):
        return world.engine.jobtable.open_of(user)

    array = {"name": "x", "array": "0-4", "demand": {"gpus": 1, "share": 5000}}
    world.ask(ANN, "submit", **a_submission(requests=[array]))
    world.ask(BOB, "submit", **a_submission(jobs=[[0, 0, 0, True]]))
    assert (open_of("ann"), open_of("bob"), open_of("eve")) == (5, 1, 0)
    world.settle()
    assert len(world.engine.jobtable.holding) == 2
    assert open_of("ann") == 5
    world.host.finish(3, 1, a_result())
    world.settle()
    world.ask(ANN, "hold", ids=["1_4"])
    assert open_of("ann") == 4
    world.start()
    assert (open_of("ann"), open_of("bob")) == (4, 1)
    world.ask(ANN, "cancel", ids=[1])
    assert open_of("ann") == len(world.engine.jobtable.holding)


# -- cancel and signal --------------------------------------------------------------------------


def test_a_cancel_is_outlived_by_nobody(world):
    assert world.outcome(ANN, "cancel", 2) == "cancelled"
    assert world.outcome(ANN, "cancel", 1) == "cancelled"
    assert world.job(1).cancelled_by == 1, "the wish is stored before the first signal"
    world.settle()
    assert [world.job(number).state for number in (1, 2)] == [JobState.CANCELLED] * 2
    assert world.ask(ANN, "cancel", ids=[1])["jobs"] == [{"id": 1, "outcome": "over", "state": "CANCELLED"}]


def test_who_cancelled_first_is_remembered_and_the_signal_is_sent_again(world):
    world.host.cancel = lambda job: world.host.signals.append(job.id) is None
    world.outcome(ROOT, "cancel")
    world.outcome(ANN, "cancel")
    assert world.job(1).cancelled_by == 0
    assert world.host.signals == [1, 1]


def test_a_job_that_is_cancelled_before_its_shepherd_is_known_is_cancelled_when_it_is():
    world = World([a_gpu(0)])
    started = []
    world.host.start = lambda job, given: started.append((job, given))
    world.submit([a_demand(WHOLE)])
    assert world.outcome(ANN, "cancel") == "cancelled"
    del world.host.start
    world.host.start(*started[0])
    world.settle()
    assert world.job(1).state is JobState.CANCELLED


@pytest.mark.parametrize("operation", ["cancel", "hold", "uhold", "release"])
def test_what_is_somebody_elses_is_left_alone(world, operation):
    assert world.outcome(BOB, operation, 2) == "job 2 belongs to another user"
    assert world.job(2).state is JobState.PENDING


@pytest.mark.parametrize("job_id", [0, -1, 3, 2**63, 2**64, "1"])
def test_an_id_that_is_none_is_that_ids_error_only(world, job_id):
    first, second = world.ask(ANN, "cancel", ids=[job_id, 2])["jobs"]
    assert first["error"]["exit"] in {2, 3}
    assert second["outcome"] == "cancelled"


@pytest.mark.parametrize("ids", [None, 7, {}, "12"])
def test_what_is_no_list_of_ids_is_refused(world, ids):
    with pytest.raises(BadUsage, match=r"Expected `array`.* - at `\$\.ids"):
        world.ask(ANN, "cancel", ids=ids)


def test_too_many_ids_are_refused_with_their_limit(world):
    with pytest.raises(BadUsage, match=r"ids has more than 100000 values \(at `\$\.ids`\)"):
        world.ask(ANN, "cancel", ids=[1] * (MAX_IDS + 1))


@pytest.mark.parametrize("job_id", [True, None, [], 1.0])
def test_what_cannot_be_an_id_is_refused_by_its_place(world, job_id):
    with pytest.raises(BadUsage, match=r"Expected `int \| str`, got `\w+` - at `\$\.ids\[1\]`"):
        world.ask(ANN, "cancel", ids=[2, job_id])
    assert world.job(2).state is JobState.PENDING


@pytest.mark.parametrize(
    ("number", "target"), [(0, "all"), (65, "all"), (True, "all"), (9, "some"), (9, []), (9, None)]
)
def test_what_is_no_signal_is_refused(world, number, target):
    with pytest.raises(FgschedError, match=r"\$\.(signal|target)"):
        world.ask(ANN, "signal", ids=[1], signal=number, target=target)
    assert world.host.signals == []


def test_only_running_jobs_are_sent_signals(world):
    assert world.outcome(ANN, "signal", 1, signal=64) == "signalled"
    assert world.outcome(ANN, "signal", 2, signal=1, target="shell") == "job 2 is not running"
    assert world.outcome(BOB, "signal", 1, signal=1) == "job 1 belongs to another user"
    assert world.host.signals == [1]
    world.host.finish(1, 1, a_result())
    world.settle()
    assert world.outcome(ANN, "signal", 1, signal=1) == "over"


# -- hold and release ---------------------------------------------------------------------------


def test_a_held_job_does_not_start_until_it_is_released(world):
    assert world.outcome(ANN, "hold", 2) == "held"
    world.host.finish(1, 1, a_result())
    world.settle()
    assert world.job(2).state is JobState.PENDING
    assert world.engine.jobtable.reason(world.engine.jobtable.jobs[2]) is Reason.HELD_USER
    assert world.outcome(ANN, "release", 2) == "released"
    assert world.job(2).state is not JobState.PENDING


def test_what_an_operator_holds_its_owner_does_not_release(world):
    world.outcome(ROOT, "hold", 2)
    assert world.job(2).held == "admin"
    assert world.engine.jobtable.reason(world.engine.jobtable.jobs[2]) is Reason.HELD_ADMIN
    assert world.outcome(ANN, "release", 2) == "job 2 is held by an operator"
    assert world.outcome(ANN, "uhold", 2) == "job 2 is held by an operator"
    assert world.outcome(ANN, "hold", 2) == "held"
    assert world.job(2).held == "admin"
    assert world.outcome(ROOT, "uhold", 2) == "held"
    assert world.outcome(ANN, "release", 2) == "released"


@pytest.mark.parametrize("operation", ["hold", "uhold", "release"])
def test_a_running_job_is_neither_held_nor_released(world, operation):
    assert world.outcome(ANN, operation) == "job 1 is no longer pending"


# -- update -------------------------------------------------------------------------------------


def test_a_smaller_demand_is_planned_at_once():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000), a_demand(WHOLE)])
    world.settle()
    update(world, job_id=2, demand={"share": 5000})
    assert world.job(2).request.demand == a_demand(5000)
    assert world.job(2).state is JobState.STARTING


def test_a_changed_job_is_planned_by_what_it_asks_for_now():
    world = World([a_gpu(0)])
    world.submit([a_demand(5000), a_demand(WHOLE)])
    update(world, job_id=2, demand={"share": 7500})
    update(world, job_id=2, demand={"share": WHOLE})
    world.host.finish(1, 1, a_result())
    world.settle()
    assert [hold.share for hold in world.holds()] == [WHOLE]


def test_an_impossible_change_changes_nothing(world):
    with pytest.raises(FgschedError, match="this host has 1 GPU"):
        update(world, job_id=2, demand={"gpus": 2})
    assert world.job(2).request.demand == a_demand(WHOLE)


@pytest.mark.parametrize("field", ["account", "reservation", "qos", "partition"])
def test_a_name_with_control_characters_is_refused_by_a_change_too(world, field):
    with pytest.raises(BadUsage, match="is not UTF-8, or has control characters"):
        update(world, job_id=2, **{field: "a\x1b[31m"})


@pytest.mark.parametrize(
    "changes", [{"demand": {}}, {}, [], None, {"uid": 0}, {"demand": None}, {"demand": []}, {"name": 1}]
)
def test_a_change_that_is_none_is_refused(world, changes):
    with pytest.raises(FgschedError):
        world.ask(ANN, "update", id=2, changes=changes)


# -- another time limit for a job under way ---------------------------------------------------------


def limits(world, job_id=1):
    """(in the store, in the book, with the shepherd)."""
    shepherd = world.host.attempts[job_id, world.job(job_id).attempt].limit
    jobtable = world.engine.jobtable.jobs[job_id]
    return world.job(job_id).request.time_limit, jobtable.request.time_limit, shepherd


def test_an_owner_lowers_the_limit_of_a_running_job_and_operators_raise_it(world):
    update(world, time_limit=500)
    update(world, time_limit=400, name="short")
    assert limits(world) == (400, 400, 400)
    for longer in (401, 0, -1):
        with pytest.raises(FgschedError, match="under way with a time limit of 6:40: only an operator"):
            update(world, time_limit=longer)
    assert limits(world) == (400, 400, 400)
    update(world, ROOT, time_limit=9000)
    assert limits(world) == (9000, 9000, 9000)
    update(world, ROOT, time_limit=-1)
    assert limits(world) == (0, 0, 0)


def test_only_the_time_limit_of_what_was_asked_for_may_change_under_way(world):
    with pytest.raises(FgschedError, match="partition stays"):
        update(world, time_limit=5, partition="main")
    with pytest.raises(FgschedError, match=r"at `\$.time_limit`"):
        update(world, ROOT, time_limit=400 * 86_400)
    with pytest.raises(FgschedError, match=r"at `\$.changes.time_limit`"):
        update(world, time_limit="5")
    with pytest.raises(FgschedError, match="belongs to another user"):
        update(world, BOB, time_limit=5)
    assert limits(world) == (0, 0, 0)


def test_an_operator_may_give_more_time_than_the_partition_does_and_its_rules_hold_no_job_back(world):
    world.engine.site.policy = Policy(partitions=(Partition(state=DOWN, most=PerJobLimits(time=60)),))
    update(world, time_limit=100)
    update(world, ROOT, time_limit=7000)
    assert limits(world) == (7000, 7000, 7000)


def test_a_job_that_is_only_starting_gets_its_limit_once_it_has_a_shepherd():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)])
    assert world.job(1).state is JobState.STARTING
    world.host.attempts[1, 1].shepherd = False  # it is not there yet
    forked, world.host.inbox = world.host.inbox, []
    update(world, time_limit=300)
    assert limits(world) == (300, 300, 0)
    world.host.attempts[1, 1].shepherd = True
    world.turn(*forked)
    assert (world.job(1).state, limits(world)) == (JobState.RUNNING, (300, 300, 300))


def test_a_limit_is_given_again_by_each_controller_that_takes_the_job_up(world):
    update(world, time_limit=300)
    world.host.attempts[1, 1].limit = 0  # as if it had not arrived
    world.start()
    world.settle()
    assert limits(world) == (300, 300, 300)


def test_a_limit_is_given_to_the_spawner_when_the_shepherd_is_gone(world):
    update(world, time_limit=300)
    told = []
    world.host.relimit = lambda job: told.append(job.request.time_limit) is None
    world.host.lose_shepherd(1, 1)
    world.turn()
    assert told == [300]


def test_a_limit_that_could_not_be_stored_is_given_to_nobody(world, monkeypatch):
    def full(*_, **__):
        raise StorageError("the disk is full", "Free some space.")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "change_request", full)
        with pytest.raises(StorageError):
            update(world, time_limit=300)
    assert limits(world) == (0, 0, 0)


def test_a_job_that_runs_again_keeps_its_limit_and_needs_no_reminder(world):
    update(world, time_limit=300)
    world.outcome(ANN, "requeue", 1)
    world.settle()
    job = world.job(1)
    assert (job.attempt, job.relimited, limits(world)) == (2, False, (300, 300, 300))


def test_of_an_array_the_tasks_under_way_change_too_where_the_caller_may():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)], array="0-2", time_limit=1000)
    world.settle()
    waits, runs = sorted(world.engine.jobtable.jobs)
    update(world, job_id=1, time_limit=2000)
    assert [world.job(row).request.time_limit for row in (waits, runs)] == [2000, 1000]
    update(world, ROOT, job_id=1, time_limit=3000)
    assert [world.job(row).request.time_limit for row in (waits, runs)] == [3000, 3000]
    update(world, job_id=1, time_limit=500)
    assert [world.job(row).request.time_limit for row in (waits, runs)] == [500, 500]
    assert limits(world, runs) == (500, 500, 500)


def test_backfill_goes_by_the_new_limit():
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE // 2)], time_limit=1000)
    world.submit([a_demand(WHOLE)], time_limit=1000)  # is to start after the first one's 1000 seconds
    update(world, time_limit=100)
    world.submit([a_demand(WHOLE // 2)], time_limit=500)
    assert world.job(3).state is JobState.PENDING
    update(world, ROOT, time_limit=1000)
    world.settle()
    assert world.job(3).state is JobState.RUNNING


def test_a_running_job_changes_its_name_and_what_it_asked_for_stays(world):
    update(world, name="new", comment="why")
    assert (world.job(1).request.name, world.job(1).state) == ("new", JobState.RUNNING)
    with pytest.raises(FgschedError, match="output stays"):
        update(world, output="x")
    with pytest.raises(FgschedError, match="belongs to another user"):
        update(world, BOB, name="mine")
    world.host.finish(1, 1, a_result())
    world.settle()
    with pytest.raises(FgschedError, match="already completing or completed"):
        update(world, name="late")


def test_a_held_job_that_is_changed_stays_held(world):
    world.outcome(ANN, "cancel", 1)
    world.outcome(ANN, "hold", 2)
    update(world, job_id=2, demand={"share": 2500})
    world.settle()
    assert world.job(2).state is JobState.PENDING


# -- cards --------------------------------------------------------------------------------------


def test_a_drained_card_keeps_its_jobs_and_takes_no_others(world):
    assert world.ask(ROOT, "drain", gpu=0, reason="loud\udcff") == {"gpu": 0}
    world.host.finish(1, 1, a_result())
    world.settle()
    assert world.job(2).state is JobState.PENDING
    assert next(iter(world.store.gpu_marks().values()))[:2] == (GpuState.DRAINED, "loud\\xff [root]")
    world.ask(ROOT, "resume", gpu=0)
    world.settle()
    assert world.job(2).state is JobState.RUNNING


@pytest.mark.parametrize(("operation", "more"), [("drain", {"reason": "x"}), ("resume", {})])
def test_only_operators_say_what_a_card_does(world, operation, more):
    with pytest.raises(FgschedError, match="only an operator may"):
        world.ask(ANN, operation, gpu=0, **more)


@pytest.mark.parametrize("gpu", [1, -1, "0", None, True, []])
def test_a_card_that_is_not_there_is_not_drained(world, gpu):
    with pytest.raises(FgschedError, match=r"this host has no GPU|at `\$\.gpu`"):
        world.ask(ROOT, "drain", gpu=gpu, reason="x")


def test_a_card_is_not_drained_without_a_reason(world):
    with pytest.raises(FgschedError, match="a reason is needed"):
        world.ask(ROOT, "drain", gpu=0)


def test_a_signal_is_sent_only_after_the_wish_is_stored(world):
    seen = []
    world.host.cancel = world.host.deliver = lambda *_: seen.append(world.store._db.in_transaction) is None
    world.outcome(ANN, "cancel")
    world.outcome(ANN, "signal", signal=1)
    assert seen == [False, False]


ORDERS = {
    "suspend": {"ids": [1]},
    "signal": {"ids": [1], "signal": 10},
    "update": {"id": 1, "changes": {"time_limit": 60}},
}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_for_a_job_without_a_supervisor_is_refused_and_changes_nothing(world, order):
    before = world.job(1)
    world.host.lose_shepherd(1, 1)
    try:
        said = world.ask(ROOT, order, **ORDERS[order])["jobs"][0]["error"]["cause"]
    except FgschedError as error:
        said = error.cause
    assert said == "job 1: not delivered: the job's supervisor is gone"
    assert (world.job(1).state, world.job(1).request) == (before.state, before.request)
    assert not world.job(1).relimited


def test_where_data_are_private_a_job_of_another_user_is_as_unknown_as_one_that_never_was(world):
    ann, bob = (Caller(uid, uid, "ann", is_operator=False, is_confined=True) for uid in (1, 2))
    assert [world.outcome(bob, "uhold", job) for job in (2, 9)] == [
        f"Invalid job id specified: {job}" for job in (2, 9)
    ]
    assert world.outcome(ann, "uhold", 2) == "held"


def test_a_suspension_of_an_array_is_about_all_of_its_running_tasks():
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], array="0-2")
    world.settle()
    outcomes = world.ask(ROOT, "suspend", ids=[1])["jobs"]
    assert [outcome["outcome"] for outcome in outcomes] == ["suspended"] * 3


def test_a_suspended_job_without_a_supervisor_is_not_said_to_go_on(world):
    world.ask(ROOT, "suspend", ids=[1])
    world.host.lose_shepherd(1, 1)
    assert world.outcome(ROOT, "resume_jobs") == "job 1: not delivered: the job's supervisor is gone"
    assert world.job(1).state is JobState.SUSPENDED


def no_descriptors(job):
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize("fails", [lambda job: False, no_descriptors], ids=["refused", "raises"])
def test_an_order_that_was_not_delivered_is_given_again_until_it_is(world, fails):
    world.host.suspend = fails
    assert world.outcome(ROOT, "suspend") == "job 1: not delivered: the job's supervisor cannot be reached"
    assert world.job(1).state is JobState.SUSPENDED
    del world.host.suspend
    world.turn()
    assert world.host.stopped == {(1, 1)}
    assert world.engine.undelivered == {}


def test_a_job_that_a_request_names_several_times_is_acted_on_once():
    world = World([a_gpu(0)])
    world.submit([a_demand(2 * WHOLE)])
    outcomes = world.ask(ROOT, "hold", ids=[1, 9, 1, 9])["jobs"]
    assert [one["id"] for one in outcomes] == [1, 9]
