"""The requests that change something: in each state of a job, by each kind of person, right or wrong."""

import pytest

from asking import as_call, carried_out, plain
from builders import World, a_demand, a_gpu, a_result
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.jobs import JobHandlers, Rules
from fgsched.controller.turn import ClientRequest, Reply
from fgsched.domain.errors import BadUsage, FgschedError, StorageError
from fgsched.domain.job import WHOLE, GpuState
from fgsched.domain.policy import DOWN, Partition, PerJobLimits, Policy
from fgsched.domain.states import JobState, Reason
from fgsched.protocol import MAX_IDS

ANN = Caller(1, 1, "ann", is_operator=False)
BOB = Caller(2, 2, "bob", is_operator=False)
ROOT = Caller(0, 0, "root", is_operator=True)


class Office(World):
    """A world with a desk: `office.ask(ANN, "cancel", ids=[1])`."""

    def __init__(self, *gpus, default_time=0):
        super().__init__(gpus or [a_gpu(0)])
        self.rules = Rules(max_script=1000, default_time=default_time)

    def ask(self, caller, name, **arguments):
        """What the client is told: the answer, or the refusal, raised; both only after the commit."""
        said = []

        def act(now):
            try:
                answer = carried_out([JobHandlers(self.engine, self.rules)], name, caller, arguments, now)
            except FgschedError as error:
                refusal = error
                return Reply(said.append, refusal)
            return Reply(said.append, answer)

        self.turn(ClientRequest(act, said.append))
        if isinstance(said[0], Exception):
            raise said[0]
        return plain(said[0])

    def one(self, caller, name, job_id=1, **more):
        (outcome,) = self.ask(caller, name, ids=[job_id], **more)["jobs"]
        return outcome["error"]["cause"] if "error" in outcome else outcome["outcome"]

    def update(self, caller=ANN, job_id=1, **changes):
        return self.ask(caller, "update", id=job_id, changes=changes)


@pytest.fixture
def office():
    """One job that has the card, one that waits for it."""
    office = Office()
    office.submit([a_demand(WHOLE), a_demand(WHOLE)])
    office.settle()
    return office


def a_submission(**more):
    base = {"key": "k" * 16, "scripts": ["#!/bin/sh\n"], "environments": [{}], "requests": [{"name": "x"}]}
    return base | {"jobs": [[0, 0, 0, False]]} | more


# -- submit -------------------------------------------------------------------------------------


def test_a_submission_gets_consecutive_ids_and_its_key_gets_the_same_again(office):
    sent = a_submission(jobs=[[0, 0, 0, False], [0, 0, 0, True]])
    assert office.ask(ANN, "submit", **sent) == {"first": 3, "count": 2}
    assert office.ask(ANN, "submit", **sent) == {"first": 3, "count": 2}
    assert office.ask(BOB, "submit", **sent) == {"first": 5, "count": 2}, "keys are each user's own"
    assert [office.job(number).held for number in (3, 4)] == ["", "user"]
    assert office.job(5).uid == 2


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
def test_a_wrong_submission_is_refused_whole(office, wrong):
    with pytest.raises(FgschedError):
        office.ask(ANN, "submit", **a_submission(**wrong))
    assert office.store.last_id() == 2


def test_a_script_of_just_the_longest_length_is_taken(office):
    assert office.ask(ANN, "submit", **a_submission(scripts=["#!" + "x" * 998]))["first"] == 3


def test_a_name_that_is_no_utf_8_is_kept_byte_for_byte(office):
    office.ask(ANN, "submit", **a_submission(requests=[{"name": "caf\udce9"}]))
    office.update(name="th\udce9")
    assert office.job(3).request.name == "caf\udce9"
    assert office.job(1).request.name == "th\udce9"


def test_a_job_without_a_time_limit_gets_the_sites():
    office = Office(default_time=60)
    both = a_submission(
        requests=[{"name": "x"}, {"name": "y", "time_limit": 5}], jobs=[[0, 0, 0, False], [1, 0, 0, False]]
    )
    office.ask(ANN, "submit", **both)
    assert [office.job(number).request.time_limit for number in (1, 2)] == [60, 5]


def test_nobody_has_more_jobs_than_the_limit(office):
    office.rules = Rules(max_script=1000, default_time=0, max_jobs=3)
    office.ask(ANN, "submit", **a_submission())
    with pytest.raises(FgschedError, match="ann has 3 jobs already"):
        office.ask(ANN, "submit", **a_submission(key="l" * 16))
    office.ask(BOB, "submit", **a_submission())


def test_what_was_admitted_once_is_asked_again_of_another_person_or_another_site():
    office = Office()
    handlers = JobHandlers(office.engine, office.rules)
    request = {"name": "x", "nice": -5}

    def limit_of(caller, key):
        (job,) = handlers._read(caller, as_call("submit", **a_submission(key=key * 16, requests=[request])))
        return job.request.time_limit

    assert limit_of(ROOT, "a") == 0
    with pytest.raises(FgschedError, match="only operators"):
        limit_of(ANN, "b")
    handlers.rules = Rules(max_script=1000, default_time=60)
    assert limit_of(ROOT, "c") == 60
    office.engine.site.policy = Policy(partitions=(Partition(name="other", is_default=True),))
    (job,) = handlers._read(ROOT, as_call("submit", **a_submission(requests=[request])))
    assert job.request.partition == "other"


def test_waiting_running_and_split_off_jobs_of_a_user_are_all_counted():
    office = Office()

    def open_of(user):
        return office.engine.jobtable.open_of(user)

    array = {"name": "x", "array": "0-4", "demand": {"gpus": 1, "share": 5000}}
    office.ask(ANN, "submit", **a_submission(requests=[array]))
    office.ask(BOB, "submit", **a_submission(jobs=[[0, 0, 0, True]]))
    assert (open_of("ann"), open_of("bob"), open_of("eve")) == (5, 1, 0)
    office.settle()
    assert len(office.engine.jobtable.holding) == 2
    assert open_of("ann") == 5
    office.host.finish(3, 1, a_result())
    office.settle()
    office.ask(ANN, "hold", ids=["1_4"])
    assert open_of("ann") == 4
    office.start()
    assert (open_of("ann"), open_of("bob")) == (4, 1)
    office.ask(ANN, "cancel", ids=[1])
    assert open_of("ann") == len(office.engine.jobtable.holding)


# -- cancel and signal --------------------------------------------------------------------------


def test_a_cancel_is_outlived_by_nobody(office):
    assert office.one(ANN, "cancel", 2) == "cancelled"
    assert office.one(ANN, "cancel", 1) == "cancelled"
    assert office.job(1).cancelled_by == 1, "the wish is stored before the first signal"
    office.settle()
    assert [office.job(number).state for number in (1, 2)] == [JobState.CANCELLED] * 2
    assert office.ask(ANN, "cancel", ids=[1])["jobs"] == [{"id": 1, "outcome": "over", "state": "CANCELLED"}]


def test_who_cancelled_first_is_remembered_and_the_signal_is_sent_again(office):
    office.host.cancel = lambda job: office.host.signals.append(job.id) is None
    office.one(ROOT, "cancel")
    office.one(ANN, "cancel")
    assert office.job(1).cancelled_by == 0
    assert office.host.signals == [1, 1]


def test_a_job_that_is_cancelled_before_its_shepherd_is_known_is_cancelled_when_it_is():
    office = Office()
    started = []
    office.host.start = lambda job, given: started.append((job, given))
    office.submit([a_demand(WHOLE)])
    assert office.one(ANN, "cancel") == "cancelled"
    del office.host.start
    office.host.start(*started[0])
    office.settle()
    assert office.job(1).state is JobState.CANCELLED


@pytest.mark.parametrize("operation", ["cancel", "hold", "uhold", "release"])
def test_what_is_somebody_elses_is_left_alone(office, operation):
    assert office.one(BOB, operation, 2) == "job 2 belongs to another user"
    assert office.job(2).state is JobState.PENDING


@pytest.mark.parametrize("job_id", [0, -1, 3, 2**63, 2**64, "1"])
def test_an_id_that_is_none_is_that_ids_error_only(office, job_id):
    first, second = office.ask(ANN, "cancel", ids=[job_id, 2])["jobs"]
    assert first["error"]["exit"] in {2, 3}
    assert second["outcome"] == "cancelled"


@pytest.mark.parametrize("ids", [None, 7, {}, "12"])
def test_what_is_no_list_of_ids_is_refused(office, ids):
    with pytest.raises(BadUsage, match=r"Expected `array`.* - at `\$\.ids"):
        office.ask(ANN, "cancel", ids=ids)


def test_too_many_ids_are_refused_with_their_limit(office):
    with pytest.raises(BadUsage, match=r"ids has more than 100000 values \(at `\$\.ids`\)"):
        office.ask(ANN, "cancel", ids=[1] * (MAX_IDS + 1))


@pytest.mark.parametrize("job_id", [True, None, [], 1.0])
def test_what_cannot_be_an_id_is_refused_by_its_place(office, job_id):
    with pytest.raises(BadUsage, match=r"Expected `int \| str`, got `\w+` - at `\$\.ids\[1\]`"):
        office.ask(ANN, "cancel", ids=[2, job_id])
    assert office.job(2).state is JobState.PENDING


@pytest.mark.parametrize(
    ("number", "target"), [(0, "all"), (65, "all"), (True, "all"), (9, "some"), (9, []), (9, None)]
)
def test_what_is_no_signal_is_refused(office, number, target):
    with pytest.raises(FgschedError, match=r"\$\.(signal|target)"):
        office.ask(ANN, "signal", ids=[1], signal=number, target=target)
    assert office.host.signals == []


def test_only_running_jobs_are_sent_signals(office):
    assert office.one(ANN, "signal", 1, signal=64) == "signalled"
    assert office.one(ANN, "signal", 2, signal=1, target="shell") == "job 2 is not running"
    assert office.one(BOB, "signal", 1, signal=1) == "job 1 belongs to another user"
    assert office.host.signals == [1]
    office.host.finish(1, 1, a_result())
    office.settle()
    assert office.one(ANN, "signal", 1, signal=1) == "over"


# -- hold and release ---------------------------------------------------------------------------


def test_a_held_job_does_not_start_until_it_is_released(office):
    assert office.one(ANN, "hold", 2) == "held"
    office.host.finish(1, 1, a_result())
    office.settle()
    assert office.job(2).state is JobState.PENDING
    assert office.engine.jobtable.reason(office.engine.jobtable.jobs[2]) is Reason.HELD_USER
    assert office.one(ANN, "release", 2) == "released"
    assert office.job(2).state is not JobState.PENDING


def test_what_an_operator_holds_its_owner_does_not_release(office):
    office.one(ROOT, "hold", 2)
    assert office.job(2).held == "admin"
    assert office.engine.jobtable.reason(office.engine.jobtable.jobs[2]) is Reason.HELD_ADMIN
    assert office.one(ANN, "release", 2) == "job 2 is held by an operator"
    assert office.one(ANN, "uhold", 2) == "job 2 is held by an operator"
    assert office.one(ANN, "hold", 2) == "held"
    assert office.job(2).held == "admin"
    assert office.one(ROOT, "uhold", 2) == "held"
    assert office.one(ANN, "release", 2) == "released"


@pytest.mark.parametrize("operation", ["hold", "uhold", "release"])
def test_a_running_job_is_neither_held_nor_released(office, operation):
    assert office.one(ANN, operation) == "job 1 is no longer pending"


# -- update -------------------------------------------------------------------------------------


def test_a_smaller_demand_is_planned_at_once():
    office = Office()
    office.submit([a_demand(5000), a_demand(WHOLE)])
    office.settle()
    office.update(job_id=2, demand={"share": 5000})
    assert office.job(2).request.demand == a_demand(5000)
    assert office.job(2).state is JobState.STARTING


def test_a_changed_job_is_planned_by_what_it_asks_for_now():
    office = Office()
    office.submit([a_demand(5000), a_demand(WHOLE)])
    office.update(job_id=2, demand={"share": 7500})
    office.update(job_id=2, demand={"share": WHOLE})
    office.host.finish(1, 1, a_result())
    office.settle()
    assert [hold.share for hold in office.holds()] == [WHOLE]


def test_an_impossible_change_changes_nothing(office):
    with pytest.raises(FgschedError, match="this host has 1 GPU"):
        office.update(job_id=2, demand={"gpus": 2})
    assert office.job(2).request.demand == a_demand(WHOLE)


@pytest.mark.parametrize("field", ["account", "reservation", "qos", "partition"])
def test_a_name_with_control_characters_is_refused_by_a_change_too(office, field):
    with pytest.raises(BadUsage, match="is not UTF-8, or has control characters"):
        office.update(job_id=2, **{field: "a\x1b[31m"})


@pytest.mark.parametrize(
    "changes", [{"demand": {}}, {}, [], None, {"uid": 0}, {"demand": None}, {"demand": []}, {"name": 1}]
)
def test_a_change_that_is_none_is_refused(office, changes):
    with pytest.raises(FgschedError):
        office.ask(ANN, "update", id=2, changes=changes)


# -- another time limit for a job under way ---------------------------------------------------------


def limits(office, job_id=1):
    """(in the store, in the book, with the shepherd)."""
    shepherd = office.host.attempts[job_id, office.job(job_id).attempt].limit
    jobtable = office.engine.jobtable.jobs[job_id]
    return office.job(job_id).request.time_limit, jobtable.request.time_limit, shepherd


def test_an_owner_lowers_the_limit_of_a_running_job_and_operators_raise_it(office):
    office.update(time_limit=500)
    office.update(time_limit=400, name="short")
    assert limits(office) == (400, 400, 400)
    for longer in (401, 0, -1):
        with pytest.raises(FgschedError, match="under way with a time limit of 6:40: only an operator"):
            office.update(time_limit=longer)
    assert limits(office) == (400, 400, 400)
    office.update(ROOT, time_limit=9000)
    assert limits(office) == (9000, 9000, 9000)
    office.update(ROOT, time_limit=-1)
    assert limits(office) == (0, 0, 0)


def test_only_the_time_limit_of_what_was_asked_for_may_change_under_way(office):
    with pytest.raises(FgschedError, match="partition stays"):
        office.update(time_limit=5, partition="main")
    with pytest.raises(FgschedError, match=r"at `\$.time_limit`"):
        office.update(ROOT, time_limit=400 * 86_400)
    with pytest.raises(FgschedError, match=r"at `\$.changes.time_limit`"):
        office.update(time_limit="5")
    with pytest.raises(FgschedError, match="belongs to another user"):
        office.update(BOB, time_limit=5)
    assert limits(office) == (0, 0, 0)


def test_an_operator_may_give_more_time_than_the_partition_does_and_its_rules_hold_no_job_back(office):
    office.engine.site.policy = Policy(partitions=(Partition(state=DOWN, most=PerJobLimits(time=60)),))
    office.update(time_limit=100)
    office.update(ROOT, time_limit=7000)
    assert limits(office) == (7000, 7000, 7000)


def test_a_job_that_is_only_starting_gets_its_limit_once_it_has_a_shepherd():
    office = Office()
    office.submit([a_demand(WHOLE)])
    assert office.job(1).state is JobState.STARTING
    office.host.attempts[1, 1].shepherd = False  # it is not there yet
    forked, office.host.inbox = office.host.inbox, []
    office.update(time_limit=300)
    assert limits(office) == (300, 300, 0)
    office.host.attempts[1, 1].shepherd = True
    office.turn(*forked)
    assert (office.job(1).state, limits(office)) == (JobState.RUNNING, (300, 300, 300))


def test_a_limit_is_given_again_by_each_controller_that_takes_the_job_up(office):
    office.update(time_limit=300)
    office.host.attempts[1, 1].limit = 0  # as if it had not arrived
    office.start()
    office.settle()
    assert limits(office) == (300, 300, 300)


def test_a_limit_is_given_to_the_spawner_when_the_shepherd_is_gone(office):
    office.update(time_limit=300)
    told = []
    office.host.relimit = lambda job: told.append(job.request.time_limit) is None
    office.host.lose_shepherd(1, 1)
    office.turn()
    assert told == [300]


def test_a_limit_that_could_not_be_stored_is_given_to_nobody(office, monkeypatch):
    def full(*_, **__):
        raise StorageError("the disk is full", "Free some space.")

    with monkeypatch.context() as patch:
        patch.setattr(office.store, "change_request", full)
        with pytest.raises(StorageError):
            office.update(time_limit=300)
    assert limits(office) == (0, 0, 0)


def test_a_job_that_runs_again_keeps_its_limit_and_needs_no_reminder(office):
    office.update(time_limit=300)
    office.one(ANN, "requeue", 1)
    office.settle()
    job = office.job(1)
    assert (job.attempt, job.relimited, limits(office)) == (2, False, (300, 300, 300))


def test_of_an_array_the_tasks_under_way_change_too_where_the_caller_may():
    office = Office()
    office.submit([a_demand(WHOLE)], array="0-2", time_limit=1000)
    office.settle()
    waits, runs = sorted(office.engine.jobtable.jobs)
    office.update(job_id=1, time_limit=2000)
    assert [office.job(row).request.time_limit for row in (waits, runs)] == [2000, 1000]
    office.update(ROOT, job_id=1, time_limit=3000)
    assert [office.job(row).request.time_limit for row in (waits, runs)] == [3000, 3000]
    office.update(job_id=1, time_limit=500)
    assert [office.job(row).request.time_limit for row in (waits, runs)] == [500, 500]
    assert limits(office, runs) == (500, 500, 500)


def test_backfill_goes_by_the_new_limit():
    office = Office()
    office.submit([a_demand(WHOLE // 2)], time_limit=1000)
    office.submit([a_demand(WHOLE)], time_limit=1000)  # is to start after the first one's 1000 seconds
    office.update(time_limit=100)
    office.submit([a_demand(WHOLE // 2)], time_limit=500)
    assert office.job(3).state is JobState.PENDING
    office.update(ROOT, time_limit=1000)
    office.settle()
    assert office.job(3).state is JobState.RUNNING


def test_a_running_job_changes_its_name_and_what_it_asked_for_stays(office):
    office.update(name="new", comment="why")
    assert (office.job(1).request.name, office.job(1).state) == ("new", JobState.RUNNING)
    with pytest.raises(FgschedError, match="output stays"):
        office.update(output="x")
    with pytest.raises(FgschedError, match="belongs to another user"):
        office.update(BOB, name="mine")
    office.host.finish(1, 1, a_result())
    office.settle()
    with pytest.raises(FgschedError, match="already completing or completed"):
        office.update(name="late")


def test_a_held_job_that_is_changed_stays_held(office):
    office.one(ANN, "cancel", 1)
    office.one(ANN, "hold", 2)
    office.update(job_id=2, demand={"share": 2500})
    office.settle()
    assert office.job(2).state is JobState.PENDING


# -- cards --------------------------------------------------------------------------------------


def test_a_drained_card_keeps_its_jobs_and_takes_no_others(office):
    assert office.ask(ROOT, "drain", gpu=0, reason="loud\udcff") == {"gpu": 0}
    office.host.finish(1, 1, a_result())
    office.settle()
    assert office.job(2).state is JobState.PENDING
    assert next(iter(office.store.card_marks().values()))[:2] == (GpuState.DRAINED, "loud\\xff [root]")
    office.ask(ROOT, "resume", gpu=0)
    office.settle()
    assert office.job(2).state is JobState.RUNNING


@pytest.mark.parametrize(("operation", "more"), [("drain", {"reason": "x"}), ("resume", {})])
def test_only_operators_say_what_a_card_does(office, operation, more):
    with pytest.raises(FgschedError, match="only an operator may"):
        office.ask(ANN, operation, gpu=0, **more)


@pytest.mark.parametrize("gpu", [1, -1, "0", None, True, []])
def test_a_card_that_is_not_there_is_not_drained(office, gpu):
    with pytest.raises(FgschedError, match=r"this host has no GPU|at `\$\.gpu`"):
        office.ask(ROOT, "drain", gpu=gpu, reason="x")


def test_a_card_is_not_drained_without_a_reason(office):
    with pytest.raises(FgschedError, match="a reason is needed"):
        office.ask(ROOT, "drain", gpu=0)


def test_a_signal_is_sent_only_after_the_wish_is_stored(office):
    seen = []
    office.host.cancel = office.host.deliver = lambda *_: seen.append(office.store._db.in_transaction) is None
    office.one(ANN, "cancel")
    office.one(ANN, "signal", signal=1)
    assert seen == [False, False]


ORDERS = {
    "suspend": {"ids": [1]},
    "signal": {"ids": [1], "signal": 10},
    "update": {"id": 1, "changes": {"time_limit": 60}},
}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_for_a_job_without_a_supervisor_is_refused_and_changes_nothing(office, order):
    before = office.job(1)
    office.host.lose_shepherd(1, 1)
    try:
        said = office.ask(ROOT, order, **ORDERS[order])["jobs"][0]["error"]["cause"]
    except FgschedError as error:
        said = error.cause
    assert said == "job 1: not delivered: the job's supervisor is gone"
    assert (office.job(1).state, office.job(1).request) == (before.state, before.request)
    assert not office.job(1).relimited


def test_a_suspended_job_without_a_supervisor_is_not_said_to_go_on(office):
    office.ask(ROOT, "suspend", ids=[1])
    office.host.lose_shepherd(1, 1)
    assert office.one(ROOT, "resume_jobs") == "job 1: not delivered: the job's supervisor is gone"
    assert office.job(1).state is JobState.SUSPENDED


def no_descriptors(job):
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize("fails", [lambda job: False, no_descriptors], ids=["refused", "raises"])
def test_an_order_that_was_not_delivered_is_given_again_until_it_is(office, fails):
    office.host.suspend = fails
    assert office.one(ROOT, "suspend") == "job 1: not delivered: the job's supervisor cannot be reached"
    assert office.job(1).state is JobState.SUSPENDED
    del office.host.suspend
    office.turn()
    assert office.host.stopped == {(1, 1)}
    assert office.engine.undelivered == {}


def test_a_job_that_a_request_names_several_times_is_acted_on_once():
    office = Office()
    office.submit([a_demand(2 * WHOLE)])
    outcomes = office.ask(ROOT, "hold", ids=[1, 9, 1, 9])["jobs"]
    assert [one["id"] for one in outcomes] == [1, 9]
