"""Long questions about the queue are answered in steps, between which other users are served."""

import json
import socket
from functools import partial

import pytest
from msgspec import to_builtins

from asking import as_call, plain
from builders import ROOT, World, a_demand, a_gpu, a_result, new_jobs
from fgsched import PROTOCOL, codec, protocol
from fgsched.controller import starting
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers import jobs as jobhandlers
from fgsched.controller.handlers import longorder
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.priority import PriorityHandlers
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.controller.handlers.registration import HandlingWay, handlers_of
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.wait import WaitHandlers, WaitLookup
from fgsched.controller.jobtable import JobTable
from fgsched.controller.turn import ClientRequest, SendReply
from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.job import WHOLE, HostLimits
from fgsched.domain.states import Reason
from fgsched.domain.steps import finish
from fgsched.scheduling.placement import HostRoom as Left
from fgsched.scheduling.placement import Room
from fgsched.scheduling.planner import Snapshot, plan, plan_in_steps
from fgsched.scheduling.queue import Queue, QueuedJob
from fgsched.server import ClientConnection, listen
from test_server import NoSpawner

ANN, BOB = 1, 2
QUESTIONS = {"why": {}, "starts": {}, "priorities": {}}


class Submission(protocol.Call[dict], frozen=True, tag="submission"):
    """A job of another user, submitted in a turn."""


class Operations:
    """The questions of an engine, and submissions."""

    def __init__(self, world):
        handlers = ExplainHandlers(world.engine, lambda caller, call, now: []), PriorityHandlers(world.engine)
        self.calls = handlers_of(handlers, HandlingWay.READS)
        self.decoder = codec.Decoder([*self.calls, Submission])
        self._world = world

    def has_account(self, uid):
        return True

    def is_caller_known(self, connection):
        return True

    def caller(self, connection):
        return Caller(connection.uid, connection.gid, "ann", is_operator=False)

    def writer(self, kind):
        return self._submit if kind is Submission else None

    def _submit(self, caller, call, now):
        return {}

    def reader(self, kind):
        return self.calls.get(kind)

    def served_apart(self, kind):
        return None


class Host:
    """A busy GPU with 600 waiting jobs, and the event loop of its controller."""

    def __init__(self, path):
        self.world = World([a_gpu(0)])
        self.world.submit([a_demand(WHOLE)] * 600, time_limit=600)
        self.world.settle()
        self._listener, self._spawner = listen(path, for_all=False), NoSpawner()
        self.loop = EventLoop(self._listener, self._spawner)
        self.operations = Operations(self.world)
        self.loop.begin(self.world.engine, self.operations)
        self._clients = []

    def connect(self, uid):
        """Return the client's end of a connection of this user."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._clients.append(theirs)
        connection = ClientConnection(ours)
        connection.uid = uid
        self.loop._clients.welcome(connection)
        return theirs

    def ask(self, uid, *operations):
        client = self.connect(uid)
        for operation in operations:
            client.sendall(json.dumps({"v": PROTOCOL, "op": operation}).encode() + b"\n")
        return client

    def answers(self, *clients):
        """Return the answers, and the clients in the order of the ends of their answers."""
        received, order = dict.fromkeys(clients, b""), []
        while len(order) < len(clients):
            self.loop.run_once(0)
            for client in clients:
                received[client] += _received(client)
                if client not in order and received[client].endswith(b"\n"):
                    order.append(client)
        return [json.loads(received[client])["ok"] for client in clients], order

    def close(self):
        for client in self._clients:
            client.close()
        self.loop.leave()
        self.loop.selector.close()
        self._listener.close()
        self._spawner.close()


def _received(client):
    try:
        return client.recv(1 << 20)
    except BlockingIOError:
        return b""


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "s")
    yield host
    host.close()


@pytest.mark.parametrize("operation", ["why", "starts"])
def test_a_submission_is_answered_between_the_steps_of_another_users_question(host, operation):
    question = host.ask(ANN, operation)
    host.loop.run_once(0)  # it is read, and its first steps are made
    submission = host.ask(BOB, "submission")
    _, order = host.answers(question, submission)
    assert order == [submission, question]


@pytest.mark.parametrize("operation", sorted(QUESTIONS))
def test_a_long_question_has_its_whole_answer(host, operation):
    (answer,), _ = host.answers(host.ask(ANN, operation))
    if operation == "why":
        assert (len(answer["jobs"]), answer["left_out"]) == (50, 549)
    else:
        assert len(answer["starts" if operation == "starts" else "jobs"]) > 100


def test_one_question_of_a_user_is_answered_at_a_time_and_other_requests_meanwhile(host, monkeypatch):
    under_way, most = 0, 0
    starts = ExplainHandlers._starts

    def counted(*arguments):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        found = yield from starts(*arguments)
        under_way -= 1
        return found

    monkeypatch.setattr(ExplainHandlers, "_starts", counted)
    questions = [host.ask(ANN, "starts") for _ in range(5)]
    for _ in range(3):
        host.loop.run_once(0)
    submission = host.ask(ANN, "submission")
    _, order = host.answers(submission, *questions)
    assert order == [submission, *questions]
    assert most == 1


def test_the_next_question_of_a_user_begins_when_the_client_of_the_first_has_gone(host):
    first, second = host.ask(ANN, "starts"), host.ask(ANN, "starts")
    host.loop.run_once(0)
    first.close()
    (answer,), _ = host.answers(second)
    assert answer["starts"]


def test_a_question_that_is_refused_lets_the_next_one_begin(host):
    refused = host.connect(ANN)
    refused.sendall(json.dumps({"v": PROTOCOL, "op": "why", "ids": [9999]}).encode() + b"\n")
    second = host.ask(ANN, "starts")
    (answer,), _ = host.answers(second)
    assert answer["starts"]
    assert json.loads(_received(refused))["error"]["cause"] == "Invalid job id specified: 9999"


def test_an_answer_is_of_the_time_at_which_its_question_began(host):
    """Turns change the queue between the steps; the steps change nothing of the controller's queue."""
    world = host.world
    explain = ExplainHandlers(world.engine, lambda caller, call, now: [])
    caller = Caller(ANN, ANN, "ann", is_operator=False)
    expected = finish(explain.starts(caller, protocol.ListStarts(), world.now).begin(world.now)).whole()
    steps = explain.starts(caller, protocol.ListStarts(), world.now).begin(world.now)
    for _ in range(20):
        next(steps)
    world.submit([a_demand(WHOLE)] * 3, time_limit=60)
    pending = [job.id for job in world.engine.jobtable.jobs.values() if job.id > 1]
    assert all(world.engine.jobtable._queue.entry(job_id) for job_id in pending)
    assert finish(steps).whole() == expected
    assert all(world.engine.jobtable._queue.entry(job_id) for job_id in pending)


def test_a_copy_of_a_queue_changes_independently():
    jobs = [QueuedJob(number, a_demand(1000 + number % 3), since=float(-number)) for number in range(1, 9)]
    queue = Queue(jobs[:6])
    queue.add(jobs[6])
    copied = queue.copy()
    before = {number: queue.entry(number) for number in range(1, 9)}
    assert {number: copied.entry(number) for number in range(1, 9)} == before
    for number in range(1, 9):
        copied.remove(number)
    assert not len(copied)
    assert {number: queue.entry(number) for number in range(1, 9)} == before
    assert [list(group.in_order()) for group in queue.groups] == [
        list(group.in_order()) for group in queue.copy().groups
    ]


# -- how long a step is ------------------------------------------------------------------------------------
#
# Steps are counted, not timed: a step of a plan looks at a bounded number of classes, heads or reservations.


class Counted(Queue):
    """A queue that notes at how many classes each step looks."""

    looked = 0

    @property
    def groups(self):
        for group in super().groups:
            self.looked += 1
            yield group


def kinds(number):
    """A queue of jobs of which each is of another class."""
    queue = Counted()
    for job in range(1, number + 1):
        queue.add(QueuedJob(job, a_demand(1000 * (1 + job % 10)), 600 + job, since=float(job)))
    return queue


def test_a_step_of_a_plan_looks_at_a_bounded_part_of_a_long_queue_with_many_classes():
    queue, limits = kinds(5000), HostLimits(cpus=64, host_memory=2**40)
    scene = [Room(a_gpu(0), 5500, 2**34)], Left(64, 2**40)
    steps, looked = plan_in_steps(queue, [], *scene, limits=limits, now=0.0), []
    while True:
        before = queue.looked
        try:
            next(steps)
        except StopIteration as end:
            decided = end.value
            break
        looked.append(queue.looked - before)
    assert max(looked) <= 1000
    assert sum(looked) >= 4000
    assert len(looked) > 5, "heads are looked at in steps, too"
    assert decided.starts == plan(queue, [], *scene, limits=limits, now=0.0).starts


def test_a_copy_of_a_queue_changes_without_the_queue():
    queue = Queue()
    for job in (1, 2):
        queue.add(QueuedJob(job, a_demand(1000), 600, since=float(job)))
    for job in (3, 4):
        queue.add(QueuedJob(job, a_demand(2000), 600, since=float(job)))
    copied = queue.copy()
    for each, gone in ((copied, 1), (queue, 3)):
        each.remove(gone)
        each.add(QueuedJob(gone + 10, a_demand(1000), 600, since=9.0))
        each.add(QueuedJob(gone + 20, a_demand(3000), 60, since=5.0))
    assert [sorted(job for group in each.groups for job in group.ids) for each in (copied, queue)] == [
        [2, 3, 4, 11, 21],
        [1, 2, 4, 13, 23],
    ]
    assert next([entry[1] for entry in group.in_order()] for group in copied.groups) == [2, 11]


def test_the_rows_of_a_large_array_are_looked_up_in_parts():
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], array="0-999", begin=2**33)
    store, (number,) = world.engine.store, world.acknowledged
    array = store.past(number).job
    with store.write():
        for task in range(350):
            row = store.tasks.make(array, task, is_last=False)
            assert row is not None
    parts = list(store.tasks.parts(array.id))
    assert [len(part) for part in parts] == [100, 100, 100, 50, 1]
    assert [record.job.task for part in parts for record in part] == [*range(350), None]
    handlers = QueryHandlers(world.engine, lambda job: [])
    answer = handlers.jobs(Caller(1, 1, "ann", is_operator=False), protocol.ShowJobs(id=array.id), 0.0)
    rows = [list(piece) for piece in answer.pieces]
    assert {len(piece) for piece in rows} == {1}
    assert len(rows) == 351


@pytest.mark.parametrize(
    ("handlers", "method", "question"),
    [
        (lambda engine: QueryHandlers(engine, lambda job: []), "gpus", protocol.ListGpus()),
        (PriorityHandlers, "partitions", protocol.ListPartitions()),
        (ReservationHandlers, "reservations", protocol.ListReservations()),
    ],
)
def test_a_question_about_the_host_examines_no_pending_job(host, handlers, method, question):
    """Monitors ask it every few seconds, while a turn waits for its answer."""
    examined = []

    class Watched(Caller):
        def may_see(self, job):
            examined.append(job)
            return super().may_see(job)

    caller = Watched(BOB, BOB, "bob", is_operator=False)
    answer = getattr(handlers(host.world.engine), method)(caller, question, host.world.now)
    assert len(examined) < 10
    if method == "gpus":
        assert answer.jobs == {"PENDING": 599, "RUNNING": 1}


# -- waits -------------------------------------------------------------------------------------------------


class Looked:
    """A world with a held array of 400 tasks, 60 of which have rows of their own, and the steps of a wait."""

    def __init__(self, monkeypatch):
        self.world = World([a_gpu(0)])
        self.world.submit([a_demand(1000)], array="0-399", begin=2**33)
        (self.array,) = self.world.acknowledged
        self.world.ask(ROOT, "hold", ids=[f"{self.array}_[0-59]"])
        self.read = 0
        store = self.world.store
        for owner, name in ((store, "past"), (store.tasks, "get")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        self.answers = []
        self.waiters = WaitHandlers(
            lambda connection, effect: effect(),
            lambda connection, answer: self.answers.append(to_builtins(answer.whole())["jobs"]),
        )
        ours, theirs = socket.socketpair()
        self.client, self.connection = theirs, ClientConnection(ours)

    def _counted(self, read):
        def counted(*arguments):
            self.read += 1
            return read(*arguments)

        return counted

    def look(self, *names):
        look = partial(WaitLookup(self.world.engine).add_jobs, ROOT, list(names))
        return self.waiters.wait(self.connection, protocol.Wait(ids=list(names)), look)

    def end(self, name):
        """Cancel something; those who wait learn of it as after each round of the controller."""
        self.world.ask(ROOT, "cancel", ids=[name])
        ended, self.world.engine.ended = self.world.engine.ended, []
        self.waiters.answer_ended(ended, self.world.engine.jobtable)

    def close(self):
        self.client.close()
        self.connection.close()


@pytest.fixture
def looked(monkeypatch):
    looked = Looked(monkeypatch)
    yield looked
    looked.close()


def test_a_wait_for_each_task_of_a_large_array_reads_little_in_a_step_and_nothing_twice(looked):
    array = looked.array
    for task in range(30):
        looked.end(f"{array}_{task}")
    looked.read, most = 0, 0
    steps = looked.look(*(f"{array}_{task}" for task in range(400)))
    before = 0
    for _ in steps:
        most, before = max(most, looked.read - before), looked.read
    assert most <= 51
    assert looked.read <= 32, "the 30 tasks that have ended, and the array itself"
    assert looked.connection.is_waiting


@pytest.mark.parametrize("names", ["1", "1_[0-399]", "1_[0-29,40-399]", "1 1_30 1_[31-399] 1_[0-29]"])
@pytest.mark.parametrize("step", [0, 1, 2, 3, 5, 8])
def test_an_end_between_the_steps_of_a_wait_is_told_once(looked, names, step):
    array = looked.array
    looked.end(f"{array}_3")
    steps = looked.look(*(int(name) if name.isdigit() else name for name in names.split()))
    for _ in range(step):
        next(steps, None)
    looked.end(f"{array}_5")
    looked.end(f"{array}_200")
    for _ in steps:
        pass
    looked.end(f"{array}_6")
    assert not looked.answers
    looked.end(array)
    (ends,) = looked.answers
    told = [(end["task"] if end["task"] is not None else "rest") for end in ends]
    assert sorted(task for task in told if task != "rest") == [
        *(task for task in range(60) if "29,40" not in names or task not in range(30, 40)),
        200,
    ]
    assert told.count("rest") == 1
    assert not looked.waiters._waiters


def test_a_wait_whose_client_goes_between_its_steps_is_forgotten(looked):
    steps = looked.look(*(f"{looked.array}_{task}" for task in range(400)))
    next(steps)
    steps.close()
    assert not looked.waiters._waiters


def test_the_progress_of_a_wait_is_counted_without_a_look_at_each_task(looked):
    finished = finish(looked.look(f"{looked.array}_[0-399]"))
    assert finished is None
    (waiter,) = looked.waiters._waiters
    progress = waiter.awaited.progress(looked.world.engine.jobtable)
    assert to_builtins(progress) == {"done": 0, "running": 0, "pending": 400}


# -- what is examined for each row of an array, and for each condition ---------------------------------------


def test_an_order_for_each_row_of_a_throttled_array_offers_each_row_once_or_twice(monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], array="0-399", begin=2**33, throttle=5)
    offered = []
    offer = JobTable.offer
    monkeypatch.setattr(JobTable, "offer", lambda table, job: (offered.append(job.id), offer(table, job)))
    world.ask(ROOT, "hold", ids=["1_[0-299]"])
    world.ask(ROOT, "release", ids=[1])
    world.ask(ROOT, "hold", ids=[1])
    world.ask(ROOT, "update", id=1, changes={"throttle": 7})
    assert len(offered) <= 2 * 5 * 301


def test_the_conditions_of_a_job_are_looked_up_in_the_queue_only_for_ended_jobs(monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)] * 40, begin=2**33)
    world.ask(ROOT, "cancel", ids=[1, 2])
    read = []
    past = world.store.past
    monkeypatch.setattr(world.store, "past", lambda number: (read.append(number), past(number))[1])
    terms = ",".join(f"afterany:{number}" for number in range(1, 41))
    request = {"name": "j", "chdir": "/", "output": "/dev/null", "demand": {}, "dependency": terms}
    batch = {"scripts": ["#!/bin/sh\n"], "environments": [{}], "jobs": [[0, 0, 0, False]] * 30}
    world.ask(ROOT, "submit", key="k" * 16, requests=[request], **batch)
    assert set(read) == {1, 2}
    assert len(read) <= 6, "at the submission, for its warnings, and for all jobs in the first turn"


def test_conditions_that_are_too_many_for_a_turn_are_examined_in_the_next(monkeypatch):
    monkeypatch.setattr(starting, "_CONDITIONS", 20)
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], begin=2**33)
    world.submit([a_demand(0)] * 90, dependency="afterany:1")
    while world.engine.due(world.now) == 0.0:
        world.turn()
    world.ask(ROOT, "cancel", ids=[1])
    turns = 0
    while world.engine.due(world.now) == 0.0:
        world.turn()
        turns += 1
    assert turns >= 3
    assert len(world.engine.jobtable.holding) == 90


@pytest.mark.parametrize(
    ("jobs", "conditions", "cause"),
    [
        (30, 700, "21000 conditions in one request"),
        (1, 700, "your pending jobs have 199400 conditions, and this adds 700"),
    ],
)
def test_the_conditions_that_a_user_keeps_in_memory_are_bounded(jobs, conditions, cause):
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)] * conditions, begin=2**33)
    if jobs == 1:
        world.engine.jobtable.wait_index.conditions[ROOT.uid] = 199_400
    terms = ",".join(f"after:{number}" for number in range(1, conditions + 1))
    request = {"name": "j", "chdir": "/", "output": "/dev/null", "demand": {}, "dependency": terms}
    batch = {"scripts": ["#!/bin/sh\n"], "environments": [{}], "jobs": [[0, 0, 0, False]] * jobs}
    with pytest.raises(Refused, match=cause):
        world.ask(ROOT, "submit", key="k" * 16, requests=[request], **batch)


def test_the_conditions_of_a_user_are_forgotten_with_the_jobs():
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)] * 3, begin=2**33)
    world.submit([a_demand(1000)] * 4, dependency="afterany:1,afterok:2")
    conditions = world.engine.jobtable.wait_index.conditions
    assert conditions == {1: 8}
    world.ask(ROOT, "update", id=4, changes={"dependency": "afterany:3"})
    assert conditions == {1: 7}
    world.ask(ROOT, "cancel", ids=[1])
    assert conditions == {1: 4}
    world.ask(ROOT, "cancel", ids=[4, 5, 6, 7])
    assert conditions == {1: 0}


# -- orders about many jobs ----------------------------------------------------------------------------------

ORDERS = {
    "hold": [("hold", {"ids": ["1_[0-9]"]}), ("hold", {"ids": [1]}), ("release", {"ids": [1]})],
    "cancel": [("hold", {"ids": ["1_[3-8]"]}), ("cancel", {"ids": ["1_[2-19]", 4, 5, 99, "4_7"]})],
    "rest": [("hold", {"ids": ["1_[3-8]"]}), ("cancel", {"ids": ["1_[0-2,9-19]", "1_[3-25]"]})],
    "running": [("cancel", {"ids": [2, 1, 3, 4, 5]}), ("uhold", {"ids": [1, 2]})],
    "ended": [
        ("cancel", {"ids": [1]}),
        ("cancel", {"ids": ["1_[0-5]", 1]}),
        ("hold", {"ids": [1, "1_[2-4]"]}),
    ],
    "update": [
        ("hold", {"ids": ["1_[0-9]"]}),
        ("update", {"id": 1, "changes": {"name": "n", "nice": 7}}),
        ("update", {"id": "1_[2-5,12-14]", "changes": {"comment": "c"}}),
        ("update", {"id": "1_[2-5,12-14]", "changes": {"partition": "none"}}),
    ],
}


def a_site():
    """An array of 20 tasks that wait, and four jobs, of which two run."""
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], array="0-19", begin=2**33)
    world.submit([a_demand(5000)] * 4, time_limit=600)
    world.settle()
    return world


def in_parts(world, name, arguments):
    """Carry out an order as the event loop does."""
    (handlers,) = world.handlers()
    order = handlers.long_order(ROOT, as_call(name, **arguments))
    answers = []
    try:
        for call in finish(order.parts()):
            act = partial(handlers_of([handlers])[type(call)], ROOT, call)
            world.turn(ClientRequest(lambda now, act=act: said(answers, act, now), answers.append, by="root"))
            if isinstance(answers[-1], FgschedError):
                return answers[-1].cause
        return plain(order.merged(answers))
    except FgschedError as error:
        return error.cause


def said(answers, act, now):
    try:
        return SendReply(answers.append, act(now))
    except FgschedError as error:
        return SendReply(answers.append, error)


def whole(world, name, arguments):
    try:
        return world.ask(ROOT, name, **arguments)
    except FgschedError as error:
        return error.cause


def by_name(answer):
    """Return the outcomes by the name of the job: of the tasks of one list, the order is not promised."""
    if not isinstance(answer, dict) or "jobs" not in answer:
        return answer
    return sorted(answer["jobs"], key=lambda outcome: str(outcome["id"]))


def shown(world):
    jobs = world.engine.jobtable.jobs
    here = {
        number: (job.state, job.held, job.task, job.request.name, job.request.nice)
        for number, job in jobs.items()
    }
    ended = {number: world.job(number).state for number in range(1, 6)}
    return here, ended, {number: world.engine.jobtable.tasks(job) for number, job in jobs.items()}


def let_orders_be_long(monkeypatch):
    for module in (longorder, jobhandlers):
        monkeypatch.setattr(module, "is_long", lambda engine, names: True)


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_an_order_in_parts_does_what_it_does_as_a_whole(monkeypatch, orders):
    monkeypatch.setattr(longorder, "_PART", 3)
    let_orders_be_long(monkeypatch)
    parted, undivided = a_site(), a_site()
    for name, arguments in orders:
        assert by_name(in_parts(parted, name, arguments)) == by_name(whole(undivided, name, arguments))
        assert shown(parted) == shown(undivided)


def test_an_order_about_a_task_that_has_ended_leaves_those_that_wait(monkeypatch):
    let_orders_be_long(monkeypatch)
    world = World([a_gpu(0)])
    world.submit([a_demand(10_000)], array="0-3")
    world.settle()
    world.host.finish(2, 1, a_result())
    world.settle()
    in_parts(world, "cancel", {"ids": ["1_0"]})
    assert world.engine.jobtable.arrays.get(1).pending_bits == 0b1100


def test_an_order_about_an_array_of_another_user_is_refused_once(monkeypatch):
    let_orders_be_long(monkeypatch)
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], array="0-9")
    world.settle()
    bob = Caller(BOB, BOB, "bob", is_operator=False)
    order = world.job_handlers.long_order(bob, as_call("cancel", ids=[1]))
    assert [list(call.ids) for call in finish(order.parts())] == [[1]]


def test_a_cancelled_job_does_not_start_because_another_of_the_same_order_has_ended(monkeypatch):
    monkeypatch.setattr(longorder, "_PART", 2)
    monkeypatch.setattr(jobhandlers, "is_long", lambda engine, names: True)
    world = World([a_gpu(0)])
    world.submit([a_demand(10_000)] * 6, time_limit=600)
    world.submit([a_demand(0)] * 4, dependency="afterany:2")
    world.settle()
    in_parts(world, "cancel", {"ids": list(range(1, 11))})
    world.settle()
    assert world.host.runs == [1]


def test_an_order_about_many_jobs_is_carried_out_between_requests_of_others(host):
    """In the event loop: one part in each round, and one answer."""
    world = host.world
    handlers = world.job_handlers
    operations = host.operations
    operations.decoder = codec.Decoder([*operations.calls, Submission, protocol.HoldJobs])
    operations.long_order = lambda caller, call: (
        handlers.long_order(ROOT, call) if isinstance(call, protocol.HoldJobs) else None
    )
    submit = operations.writer
    operations.writer = lambda kind: (
        (lambda caller, call, now: handlers.hold(ROOT, call, now))
        if kind is protocol.HoldJobs
        else submit(kind)
    )
    client = host.connect(ANN)
    order = {"v": PROTOCOL, "op": "hold", "ids": [*range(2, 601), 7777]}
    client.sendall(json.dumps(order).encode() + b"\n")
    host.loop.run_once(0)
    host.loop.run_once(0)
    submission = host.ask(BOB, "submission")
    (_, answer), sequence = host.answers(submission, client)
    assert sequence == [submission, client]
    assert [outcome.get("outcome") for outcome in answer["jobs"]] == [*["held"] * 599, None]
    assert all(job.held == "admin" for job in world.engine.jobtable.jobs.values() if job.id > 1)


def test_a_failed_task_leads_to_no_look_at_all_that_ended_before_it(monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(1000)], array="0-99", begin=2**33)
    world.submit([a_demand(1000)], array="0-99", dependency="aftercorr:1")
    looks = []
    ended = world.store.tasks.ended
    monkeypatch.setattr(world.store.tasks, "ended", lambda array: (looks.append(array), ended(array))[1])
    for task in range(20):
        world.ask(ROOT, "cancel", ids=[f"1_{task}"])
    assert len(looks) <= 1
    never = [job for job in world.engine.jobtable.jobs.values() if job.reason is Reason.DEPENDENCY_NEVER]
    assert sorted(job.task for job in never) == list(range(20))


def test_the_jobs_of_a_caller_are_looked_for_in_steps(host):
    examined = []

    class Watched(Caller):
        def owns(self, job):
            examined.append(job)
            return super().owns(job)

    question = ExplainHandlers(host.world.engine, None).why(
        Watched(ANN, ANN, "ann", is_operator=False), protocol.ExplainJobs(), host.world.now
    )
    steps = question.begin(host.world.now)
    next(steps)
    assert len(examined) <= 100
    assert len(finish(steps).jobs) == 50


def test_a_trial_is_planned_in_steps_only(monkeypatch):
    world = World([a_gpu(0)])
    world.submit([a_demand(WHOLE)] * 3, time_limit=600)
    world.settle()
    monkeypatch.setattr(Snapshot, "plan", lambda self: pytest.fail("a whole plan in one step"))
    handlers = ExplainHandlers(world.engine, lambda caller, call, now: new_jobs([a_demand(5000)]))
    question = handlers.test(ROOT, None, world.now)
    (trial,) = finish(question.begin(world.now)).jobs
    assert trial.blockers[0].cause.reason is Reason.RESOURCES


def test_a_trial_of_a_job_that_would_be_held_says_so(home):
    trial = home.run("fgsub", "--test-only", "--hold", "--wrap", "true")
    assert (trial.status, trial.err.splitlines()[0]) == (0, "fgsub: Job 1 would wait: JobHeldUser")
