"""The socket under clients that are slow, greedy, hasty or wrong: the others notice nothing."""

import json
import os
import socket
import subprocess
import weakref
from errno import EEXIST, EINVAL, ESRCH

import msgspec
import pytest

from builders import BOOT, World, a_demand, a_gpu, a_job, new_jobs
from fgsched import PROTOCOL, codec, protocol
from fgsched.controller import eventloop
from fgsched.controller.caller import Caller
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers.wait import WaitHandlers
from fgsched.controller.jobtable import JobTable
from fgsched.controller.turn import JobEnded, JobStarted, StartFailed
from fgsched.domain.errors import BadUsage, Unreachable
from fgsched.domain.states import JobState
from fgsched.launch.spawner import SpawnerReport
from fgsched.lifecycle.transitions import Shepherd
from fgsched.server import MAX_FRAME, ClientConnection, LongAnswer, listen, parse
from fgsched.store import DiskError


class Echo(protocol.Question[dict], frozen=True, tag="echo"):
    """Answered with its own fields."""

    a: int | protocol.UnsetType = protocol.UNSET
    number: int | protocol.UnsetType = protocol.UNSET
    text: str | protocol.UnsetType = protocol.UNSET
    also: list[int] | protocol.UnsetType = protocol.UNSET


class Write(Echo, frozen=True, tag="write"):
    """The same, in the turn."""


class Stumble(protocol.Call[dict], frozen=True, tag="stumble"):
    a: int = 0


class Big(protocol.Question[str], frozen=True, tag="big"):
    pass


class Rows(msgspec.Struct):
    rows: list
    a: int
    made: int


class List(protocol.Question[Rows], frozen=True, tag="list"):
    pass


class Note(protocol.Question[None], frozen=True, tag="note"):
    of: str


CALLS = codec.Decoder([Echo, Write, Stumble, Big, List, Note, protocol.Wait])
BIG = "x" * 2_000_000  # more than a socket takes at once


class NoSpawner:
    """A socket of which nothing comes."""

    wants_to_write = False

    def __init__(self):
        self._ours, self._theirs = socket.socketpair()

    def fileno(self):
        return self._ours.fileno()

    def close(self):
        self._ours.close()
        self._theirs.close()


class FullSpawner(NoSpawner):
    """A socket that took a part of a message, and can take the rest."""

    wants_to_write = True

    def flush(self):
        self.wants_to_write = False


def echoed(caller, call, now):
    fields = msgspec.structs.asdict(call)
    return {name: value for name, value in fields.items() if name != "v" and value is not protocol.UNSET}


class Counter:
    """The requests of these tests, and how often each was looked up."""

    def __init__(self, engine, loop):
        self.looked = 0
        self.jobs = []
        self.waiters = WaitHandlers(loop.finish, loop.answer)
        self.engine, self._loop = engine, loop
        self.decoder = CALLS

    def has_account(self, uid):
        return True

    def is_caller_known(self, connection):
        return True

    def caller(self, connection):
        return Caller(connection.uid, connection.gid, "ann", is_operator=False)

    def writer(self, kind):
        return {Write: echoed, Stumble: self._stumble}.get(kind)

    def _stumble(self, caller, call, now):
        self.engine.store.submit(new_jobs([a_demand(1)]), key="k" * 16, submitter=(1, 1, "ann"), now=now)
        raise ZeroDivisionError

    def reader(self, kind):
        return {Big: self._big, Echo: echoed}.get(kind)

    def served_apart(self, kind):
        return {protocol.Wait: self._wait}.get(kind)

    def _big(self, caller, call, now):
        self.looked += 1
        return BIG

    def _wait(self, connection, caller, call):
        self._loop.begin_work(connection, self.waiters.wait(connection, call, self._look))

    def _look(self, awaited):
        for job in self.jobs:
            if job.state.is_final:
                awaited.add_end(job)
            else:
                awaited.jobs.add(job.id)
        yield


class Place:
    """A loop that serves, and `place.client()` to meet it."""

    def __init__(self, path, spawner=NoSpawner):
        self._path = path
        self._listener, self._spawner = listen(path, for_all=False), spawner()
        self.loop = EventLoop(self._listener, self._spawner)
        engine = World([a_gpu(0)]).engine
        self.operations = Counter(engine, self.loop)
        self.waiters = self.operations.waiters
        self.loop.begin(engine, self.operations)
        self._clients = []

    def client(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(30)
        sock.connect(str(self._path))
        self._clients.append(sock)
        return sock

    def serve(self, times=3):
        for _ in range(times):
            self.loop.run_once(0)

    def ask(self, client, op, **arguments):
        client.sendall(line(op, **arguments))
        self.serve()
        return self.answer(client)

    def answer(self, client, lines=1):
        """All that is answered until a line ends, read a piece at a time while the loop goes on."""
        data = b""
        client.settimeout(0)
        for _ in range(100_000):
            try:
                piece = client.recv(1 << 16)
            except BlockingIOError:
                self.serve(1)
                continue
            data += piece
            if not piece or (data.endswith(b"\n") and data.count(b"\n") >= lines):
                break
        client.settimeout(30)
        return [json.loads(one) for one in data.splitlines()]

    @property
    def connections(self):
        there = self.loop.selector.get_map().values()
        return [key.fileobj for key in there if isinstance(key.fileobj, ClientConnection)]

    @property
    def registered(self):
        return len(self.loop.selector.get_map())

    def close(self):
        for sock in self._clients:
            sock.close()
        self.loop.leave()
        self.loop.selector.close()
        self._listener.close()
        self._spawner.close()


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "s")
    yield place
    place.close()


def line(op, **arguments):
    if op == "wait":
        arguments = {"ids": []} | arguments
    return json.dumps({"v": PROTOCOL, "op": op, **arguments}).encode() + b"\n"


def works(place):
    client = place.client()
    assert place.ask(client, "echo", a=1) == [{"v": PROTOCOL, "ok": {"a": 1}}]
    client.close()
    place.serve()


def test_a_client_that_goes_before_it_has_read_its_answer_harms_nobody(place):
    client = place.client()
    client.sendall(line("big"))
    place.serve()
    client.close()
    place.serve()
    assert place.registered == 2, "listener and spawner"
    works(place)


def test_an_answer_larger_than_the_socket_comes_whole_to_a_slow_reader(place):
    client = place.client()
    assert place.ask(client, "big") == [{"v": PROTOCOL, "ok": BIG}]


def test_a_large_answer_to_a_wait_comes_whole(place):
    place.operations.jobs = [a_job(number) for number in range(1, 8001)]
    client = place.client()
    client.sendall(line("wait"))
    place.serve()
    place.waiters.answer_ended(
        [a_job(number, state=JobState.COMPLETED) for number in range(1, 8001)], JobTable()
    )
    (answer,) = place.answer(client)
    assert len(answer["ok"]["jobs"]) == 8000


def test_a_client_that_went_while_it_waited_is_forgotten_when_it_is_told(place):
    place.operations.jobs = [a_job(1)]
    client = place.client()
    client.sendall(line("wait"))
    place.serve()
    client.close()
    place.waiters.answer_ended([a_job(1, state=JobState.COMPLETED)], JobTable())
    place.serve()
    assert place.registered == 2
    works(place)


def test_those_who_waited_and_went_are_not_kept(place):
    place.operations.jobs = [a_job(1)]
    for _ in range(5):
        client = place.client()
        client.sendall(line("wait"))
        place.serve()
        client.close()
        place.serve()
    assert len(place.waiters._waiters) <= 1


def test_one_user_waits_for_a_bounded_number_of_jobs(place):
    place.operations.jobs = [a_job(number) for number in range(1, 40_001)]
    clients = [place.client() for _ in range(4)]
    for client in clients:
        client.sendall(line("wait"))
    place.serve()
    (answer,) = place.answer(clients[3])
    assert (answer["busy"]["after"] > 0, answer["error"]["exit"]) == (True, 5)
    assert len(place.waiters._waiters) == 2


def test_a_connection_waits_for_one_thing_at_a_time(place):
    place.operations.jobs = [a_job(1)]
    client = place.client()
    client.sendall(line("wait") * 2)
    place.serve()
    (answer,) = place.answer(client)
    assert answer["error"]["cause"] == "this connection waits already"


def test_of_a_client_that_asks_and_never_reads_one_request_is_handled(place):
    client = place.client()
    client.sendall(line("big") * 200)
    place.serve(5)
    assert place.operations.looked == 1, "the others stay where they are until the answer is read"
    client.close()
    place.serve()
    assert place.registered == 2


GARBAGE = [
    b"",
    b"\0\xff\xfe",
    b"[" * 100_000,
    b"1" * 5000,
    b"null",
    b'"text"',
    b"{}",
    b'{"v":1e999,"op":"echo"}',
    b'{"v":NaN}',
    b'{"v":%d}' % PROTOCOL,
    b'{"v":%d,"op":[]}' % PROTOCOL,
    b'{"v":%d,"op":"\\ud800"}' % PROTOCOL,
    b'{"v":%d,"op":"echo","text":"\\ud800"}' % PROTOCOL,
]


HUGE = 2_000_000
TOO_MANY = [
    b"[" + b"{}," * (HUGE // 3) + b"{}]",
    b"[" + b"0," * HUGE + b"0]",
    b"[" * HUGE,
    b'["' + b'\\",[' * (HUGE // 4) + b'",' + b"[]," * HUGE,
]


@pytest.mark.parametrize("garbage", TOO_MANY, ids=range(len(TOO_MANY)))
def test_a_request_of_very_many_values_is_refused_before_it_is_parsed(garbage):
    with pytest.raises(BadUsage, match="more than 100000 objects and lists, or 500000 values"):
        parse(garbage, CALLS)


def test_what_lies_in_a_text_does_not_count():
    text = '{},[] \\ "' * 200_000
    assert parse(line("echo", text=text, also=[1, 2]).strip(), CALLS) == Echo(
        v=PROTOCOL, text=text, also=[1, 2]
    )


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_answered_with_an_error_and_the_next_request_is_heard(place, garbage):
    client = place.client()
    client.sendall(garbage + b"\n" + line("echo", a=2))
    place.serve()
    wrong, right = place.answer(client)
    assert wrong["error"]["exit"] in {2, 5}
    assert right["ok"] == {"a": 2}


def test_a_request_that_we_stumble_over_is_undone_and_the_others_are_done(place):
    first, wrong, last = clients = [place.client() for _ in range(3)]
    for client, name in zip(clients, ("write", "stumble", "write"), strict=True):
        client.sendall(line(name, a=1))
    place.serve(3)
    assert [place.answer(client)[0].get("ok") for client in (first, last)] == [{"a": 1}] * 2
    error = {"exit": 7, "cause": "ZeroDivisionError: ", "remedy": "", "job": None}
    assert place.answer(wrong)[0]["error"] == error
    assert place.operations.engine.store.open_jobs() == []
    assert place.loop.faults.count == 1


def test_a_disk_that_fails_in_the_middle_of_a_request_is_no_bug_of_ours(place):
    def fail(caller, call, now):
        raise DiskError("disk I/O error")

    place.operations.writer = {Write: fail}.get
    client = place.client()
    assert place.ask(client, "write")[0]["error"]["exit"] == 6
    assert place.operations.engine.is_broken


def test_a_request_may_come_byte_by_byte(place):
    client = place.client()
    for byte in line("echo", a=3):
        client.sendall(bytes([byte]))
        place.serve(1)
    assert place.answer(client)[0]["ok"] == {"a": 3}


def test_a_line_without_end_is_refused_and_its_sender_sent_off(place):
    client = place.client()
    client.settimeout(0)
    sent = 0
    while not sent or place.registered != 2:
        try:
            sent += client.send(b"a" * 2**20)
        except BlockingIOError:
            pass
        except OSError:
            break
        place.serve(1)
    assert MAX_FRAME < sent < MAX_FRAME + 3 * 2**20
    assert b"longer than 8 MiB" in client.recv(4096)
    assert place.registered == 2


def test_a_user_has_at_most_256_connections(place):
    clients = [place.client() for _ in range(256)]
    place.serve()
    late = place.client()
    place.serve()
    assert place.answer(late)[0]["error"]["cause"] == f"uid {os.getuid()} has 256 connections"
    clients[0].close()
    place.serve()
    works(place)


def test_half_a_request_and_then_nothing_is_no_request(place):
    client = place.client()
    client.sendall(b'{"v":2,"op":"wri')
    place.serve()
    client.close()
    place.serve()
    assert place.registered == 2


def test_a_descriptor_number_that_is_used_again_is_watched_anew(place):
    """A pidfd that was closed while it was watched must not keep its number from the next."""
    loop = place.loop
    child = subprocess.Popen(["sleep", "1000"])
    first = os.pidfd_open(child.pid)
    loop.watch_once(first, lambda: loop.happened(JobEnded(1)))
    os.close(first)
    second = os.pidfd_open(child.pid)
    assert first == second
    loop.watch_once(second, lambda: loop.happened(JobEnded(2)))
    child.kill()
    child.wait()
    heard = []
    loop._engine.turn = lambda events, now: heard.extend(events)
    place.serve()
    assert [event.job for event in heard] == [2]
    os.close(second)


def test_a_start_and_an_end_are_taken_in_at_once_and_together(place):
    turns = []
    place.loop._engine.turn = lambda events, now: turns.append(events)
    events = [JobStarted(1, 1, Shepherd(5, 5, "boot")), JobEnded(2, 1)]
    for event in events:
        place.loop.happened(event)
    place.loop.run_once(None)
    assert turns == [events]


def turns_of_requests_in_a_row(place, monkeypatch, count):
    """Send a request from each of `count` clients, each while the one before is taken in.

    Return the list that gets the number of requests of each turn.
    """
    monkeypatch.setattr(eventloop, "_SLICE", 120.0)  # on a busy host, a round may be interrupted for long
    clients = [place.client() for _ in range(count)]
    place.serve()
    first, *to_come = clients
    turns = []

    def is_caller_known(connection):
        if to_come:
            to_come.pop().sendall(line("write"))
        return True

    place.operations.is_caller_known = is_caller_known
    place.loop._engine.turn = lambda events, now: turns.append(len(events))
    first.sendall(line("write"))
    return turns


def test_requests_that_arrive_while_others_are_taken_in_are_part_of_the_same_turn(place, monkeypatch):
    turns = turns_of_requests_in_a_row(place, monkeypatch, 4)
    place.loop.run_once(0)
    assert turns == [4]


def test_a_round_ends_though_requests_go_on_arriving(place, monkeypatch):
    turns = turns_of_requests_in_a_row(place, monkeypatch, 120)
    place.serve(120)
    assert sum(turns) == 120
    assert max(turns) <= 50  # each is expected to take 0.2 ms, and a round plans 10 ms


def test_the_socket_is_its_owners_or_everybodys(tmp_path):
    for for_all, mode in ((False, 0o600), (True, 0o666)):
        listen(tmp_path / "s", for_all=for_all).close()
        assert (tmp_path / "s").stat().st_mode & 0o777 == mode


def test_what_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "s").write_text("mine")
    with pytest.raises(Unreachable, match="is not a socket"):
        listen(tmp_path / "s", for_all=False)
    assert (tmp_path / "s").read_text() == "mine"


def test_a_request_is_its_operation_and_the_rest():
    assert parse(line("echo", a=1).strip(), CALLS) == Echo(v=PROTOCOL, a=1)


ANSWERS = [
    (SpawnerReport(7, 2, 99, 0, 1234), JobStarted(7, 2, Shepherd(99, 1234, BOOT))),
    (SpawnerReport(7, 2, 99, 0, 0), JobEnded(7, 2)),  # killed before it could say
    (SpawnerReport(7, 2, 99, EEXIST, 1234), JobEnded(7, 2)),  # somebody else has the claim
    (SpawnerReport(7, 2, 0, ESRCH, 0), JobEnded(7, 2)),
    (SpawnerReport(7, 2, 0, 0, 0, is_over=True), JobEnded(7, 2)),
    (SpawnerReport(7, 2, 0, EINVAL, 0), StartFailed(7, 2, "could not be launched: Invalid argument")),
]


@pytest.mark.parametrize(("answer", "event"), ANSWERS, ids=range(len(ANSWERS)))
def test_each_answer_of_the_spawner_is_one_event(place, answer, event):
    place.loop._spawner.read = lambda: [answer]
    place.loop._hear_spawner()
    assert place.loop._events == [event]
    place.loop._events.clear()


def listing(place, pieces):
    """The operation "list" answers with these pieces; how many were made is counted."""
    made = []

    def rows():
        for piece in pieces:
            made.append(piece)
            yield piece() if callable(piece) else piece

    def answer(caller, call, now):
        return LongAnswer("rows", rows(), lambda: Rows(rows=[], a=1, made=len(made)))

    usual = place.operations.reader
    place.operations.reader = lambda kind: answer if kind is List else usual(kind)
    return made


def test_a_long_list_comes_whole_and_is_one_line(place):
    listing(place, [[1, 2], [], [3], [{"b": None}]])
    client = place.client()
    assert place.ask(client, "list") == [
        {"v": PROTOCOL, "ok": {"rows": [1, 2, 3, {"b": None}], "a": 1, "made": 4}}
    ]
    listing(place, [])
    assert place.ask(client, "list") == [{"v": PROTOCOL, "ok": {"a": 1, "rows": [], "made": 0}}]


def test_pieces_are_made_as_they_are_read_and_others_are_served_meanwhile(place):
    made = listing(place, [["x" * 100_000]] * 100)
    slow, other = place.client(), place.client()
    slow.sendall(line("list") + line("echo", a=2))
    place.serve(20)
    assert len(made) < 20, "the client has read nothing"
    assert place.ask(other, "echo", a=1) == [{"v": PROTOCOL, "ok": {"a": 1}}]
    listed, echoed = place.answer(slow, lines=2)
    assert (len(listed["ok"]["rows"]), echoed["ok"]) == (100, {"a": 2})


class Piece(list):
    """Rows of which it is known whether they are still in memory."""


def test_rows_that_were_sent_are_not_kept_for_a_client_that_does_not_read(place):
    kept = []

    def piece():
        rows = Piece(["x" * 100_000])
        kept.append(weakref.ref(rows))
        return rows

    made = listing(place, [piece] * 100)
    slow = place.client()
    slow.sendall(line("list"))
    place.serve(20)
    assert 0 < len(made) < 20, "the client has read nothing"
    assert [rows() for rows in kept] == [None] * len(made)


def test_a_client_that_goes_in_the_middle_of_a_list_is_forgotten(place):
    made = listing(place, [["x" * 100_000]] * 100)
    client = place.client()
    client.sendall(line("list"))
    place.serve(5)
    client.close()
    place.serve(5)
    assert place.registered == 2
    assert len(made) < 20


def test_a_fault_in_the_first_piece_is_told_and_one_in_a_later_piece_ends_the_connection(place):
    client = place.client()
    listing(place, [lambda: 1 / 0])
    assert place.ask(client, "list")[0]["error"]["exit"] == 7
    listing(place, [[1], lambda: 1 / 0])
    client.sendall(line("list"))
    place.serve()
    assert client.recv(4096) == b'{"v":2,"ok":{"rows":[1'
    assert client.recv(4096) == b""
    assert place.loop.faults.count == 2
    works(place)


def test_a_part_that_fails_is_counted_and_the_others_go_on(place, caplog):
    ours, theirs = socket.socketpair()
    place.loop.watch(ours, lambda: 1 / 0)
    client = place.client()
    theirs.send(b"x")
    assert place.ask(client, "echo", a=1) == [{"v": PROTOCOL, "ok": {"a": 1}}]
    told = place.loop.faults.summary()
    assert (told.count > 0, told.last) == (True, "an event: ZeroDivisionError: division by zero")
    assert caplog.text.count("Traceback") == 1, "the same fault is not logged at each round"
    place.loop.selector.unregister(ours)
    ours.close()
    theirs.close()


def test_a_connection_that_cannot_be_handled_is_closed_and_the_others_are_served(place):
    client = place.client()
    place.serve()
    (connection,) = place.connections
    connection.fill = lambda most: 1 / 0
    client.sendall(line("echo"))
    place.serve()
    assert place.connections == []
    assert place.loop.faults.count == 1
    works(place)


def test_pipelined_requests_are_answered_in_their_order(place):
    client = place.client()
    names = ["echo", "write", "echo", "write", "write", "echo"]
    client.sendall(b"".join(line(name, number=number) for number, name in enumerate(names)))
    place.serve(10)
    assert [one["ok"]["number"] for one in place.answer(client)] == [0, 1, 2, 3, 4, 5]


def test_a_client_that_pipelines_leaves_the_others_their_turn(place):
    heard = []
    place.operations.reader = {Note: lambda caller, call, now: heard.append(call.of)}.get
    greedy, other = place.client(), place.client()
    greedy.sendall(line("note", of="greedy") * 1000)
    place.serve(1)
    place.serve(1)
    other.sendall(line("note", of="other"))
    while "other" not in heard:
        place.serve(1)
    assert heard.count("greedy") < 1000


def test_at_the_end_a_connection_is_closed_whose_request_is_being_handled_and_that_is_not_watched(place):
    client = place.client()
    client.sendall(line("echo") * 3)
    for _ in range(5):
        place.loop._hear(0)  # accepted, read, and not served
    assert not place.connections
    place.loop.leave()
    assert client.recv(1) == b""


def test_a_spawner_that_is_gone_ends_the_loop(place):
    place.loop._spawner.read = lambda: None
    place.loop._hear_spawner()
    assert place.loop.stopping == "the spawner is gone"


def test_one_of_several_jobs_is_enough_for_who_asked_so_and_news_come_once(place):
    place.operations.jobs = [a_job(1), a_job(2)]
    client, other = place.client(), place.client()
    client.sendall(line("wait", any=True))
    other.sendall(line("wait", progress=True))
    place.serve()
    jobtable = World([a_gpu(0)]).engine.jobtable
    for now in (1.0, 1.1, 2.0, 3.0):
        place.waiters.send_progress(jobtable, now)
    jobtable.put(a_job(1, state=JobState.RUNNING))
    place.waiters.send_progress(jobtable, 4.0)
    place.waiters.send_progress(jobtable, -1000.0)
    place.waiters.answer_ended([a_job(1, state=JobState.COMPLETED)], jobtable)
    assert [job["id"] for job in place.answer(client)[0]["ok"]["jobs"]] == [1]
    news = [one["progress"] for one in place.answer(other)]
    assert news == [
        {"done": 0, "running": 0, "pending": 2},
        {"done": 0, "running": 1, "pending": 1},
    ]
    assert place.waiters.delay is None
    place.waiters.answer_ended(
        [a_job(1, state=JobState.COMPLETED), a_job(2, state=JobState.FAILED)], jobtable
    )
    assert [job["state"] for job in place.answer(other)[0]["ok"]["jobs"]] == ["COMPLETED", "FAILED"]


def test_progress_is_told_once_in_half_a_second_and_then_as_it_is(place):
    place.operations.jobs = [a_job(1), a_job(2)]
    client = place.client()
    client.sendall(line("wait", progress=True))
    place.serve()
    jobtable = World([a_gpu(0)]).engine.jobtable
    place.waiters.send_progress(jobtable, 1.0)
    for number, now in ((1, 1.1), (2, 1.2)):
        jobtable.put(a_job(number, state=JobState.RUNNING))
        place.waiters.send_progress(jobtable, now)
        assert 0 < place.waiters.delay < 0.5
    place.waiters.send_progress(jobtable, 1.5)
    assert [one["progress"]["running"] for one in place.answer(client)] == [0, 2]


def test_the_rest_of_a_message_to_the_spawner_is_sent_when_its_socket_takes_it(tmp_path):
    place = Place(tmp_path / "s", FullSpawner)
    place.serve()
    assert not place.loop._spawner.wants_to_write
    place.close()
