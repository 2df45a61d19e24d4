"""Users are served in turn, each within budgets: what one sends, or does not read, stops nobody else."""

import json
import resource
import selectors
import socket

import pytest

from fgsched import PROTOCOL
from fgsched.controller.clients import Clients, ClientUser, FairPosition, Turns
from fgsched.server import MAX_FRAME, ClientConnection, listen

ANN, BOB, CID = 1001, 1002, 1003


def line(op, **arguments):
    return json.dumps({"v": PROTOCOL, "op": op, **arguments}).encode() + b"\n"


# -- whose turn it is ----------------------------------------------------------------------------------


def served(turns, shares, costs):
    """Who is served, in order; each service costs what `costs` says of the user."""
    users = {name: ClientUser(share) for name, share in shares.items()}
    order = []
    for _ in range(12):
        user = turns.next(users.values())
        name = next(name for name, one in users.items() if one is user)
        user.share.served += costs[name]
        order.append(name)
    return "".join(order)


def test_users_are_served_by_turns():
    shares = {"a": FairPosition(), "b": FairPosition(), "c": FairPosition()}
    assert served(Turns(), shares, dict.fromkeys("abc", 1.0)) == "abcabcabcabc"


def test_a_user_whose_requests_cost_more_is_served_less_often():
    assert served(Turns(), {"a": FairPosition(), "b": FairPosition()}, {"a": 3.0, "b": 1.0}) == "abbbabbbabbb"


def test_a_user_who_was_idle_has_saved_nothing_up():
    turns, busy, late = Turns(), FairPosition(), FairPosition()
    for _ in range(100):
        turns.next([ClientUser(busy)]).share.served += 1.0
    turns.enter(late)
    assert served(turns, {"a": busy, "b": late}, {"a": 1.0, "b": 1.0}) == "babababababa"


def test_a_user_who_comes_back_still_owes_what_was_taken():
    turns, greedy, other = Turns(), FairPosition(), FairPosition()
    turns.next([ClientUser(greedy)]).share.served += 5.0
    turns.enter(greedy)
    turns.enter(other)
    assert served(turns, {"a": greedy, "b": other}, {"a": 1.0, "b": 1.0}) == "bbbbbabababa"


# -- what one user may occupy --------------------------------------------------------------------------


class Selector(selectors.EpollSelector):
    """Counts the changes of what is watched."""

    changes = 0

    def register(self, *about):
        self.changes += 1
        return super().register(*about)

    def unregister(self, fileobj):
        self.changes += 1
        return super().unregister(fileobj)


class Yard:
    """Clients without a loop: connections of any uid, a clock that the test moves."""

    def __init__(self, path):
        self.now = 1000.0
        self.selector = Selector()
        self.listener = listen(path, for_all=False)
        self.clients = Clients(self.listener, self.selector, lambda: self.now)
        self.connections, self.sockets = [], []

    def connect(self, uid):
        ours, theirs = socket.socketpair()
        connection = ClientConnection(ours)
        connection.uid = uid
        theirs.setblocking(False)
        self.connections.append(connection)
        self.sockets.append(theirs)
        self.clients.welcome(connection)
        return theirs, connection

    def round(self):
        """What the loop does with connections, but for handling requests."""
        for key, mask in self.selector.select(0):
            if isinstance(key.fileobj, ClientConnection):
                self.clients.ready(key.fileobj, mask)
        self.clients.look()

    def send(self, sock, data):
        """Send as much as is taken while rounds go on; how many bytes that was."""
        sent = 0
        idle = 0
        while sent < len(data) and idle < 5:
            try:
                sent += sock.send(data[sent : sent + 2**16])
                idle = 0
            except BlockingIOError:
                idle += 1
            except OSError:
                break
            self.round()
        return sent

    def handled(self, count):
        """Whose requests are handled next, each answered at once."""
        order = []
        for _ in range(count):
            connection = self.clients.next()
            if connection is None:
                break
            connection.take_line()
            order.append(connection)
            self.clients.charge(connection.uid, 0.001)
            self.clients.watch_events(connection)
        return order

    @property
    def buffered(self):
        return sum(connection.buffered + connection.unsent for connection in self.connections)

    def close(self):
        for sock in [*self.sockets, *(one for one in self.connections if not one.is_closed)]:
            sock.close()
        self.selector.close()
        self.listener.close()
        self.clients.leave()


@pytest.fixture
def yard(tmp_path):
    yard = Yard(tmp_path / "s")
    yield yard
    yard.close()


def told(sock):
    """The messages that a client finds."""
    data = b""
    while True:
        try:
            piece = sock.recv(65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    return [json.loads(one) for one in data.splitlines()]


def test_the_only_request_of_a_user_comes_after_at_most_one_of_the_flood(yard):
    for _ in range(16):
        yard.send(yard.connect(ANN)[0], b"\n" * 30_000)
    assert [one.uid for one in yard.handled(5)] == [ANN] * 5
    yard.send(yard.connect(BOB)[0], line("ping"))
    assert BOB in [one.uid for one in yard.handled(2)]


def test_connections_of_one_user_are_served_by_turns(yard):
    (first, one), (second, two) = yard.connect(ANN), yard.connect(ANN)
    yard.send(first, b"\n" * 5)
    yard.send(second, b"\n" * 2)
    assert yard.handled(20) == [one, two, one, two, one, one, one]


def test_a_connection_with_requests_to_handle_is_not_read(yard):
    sock, connection = yard.connect(ANN)
    sent = yard.send(sock, b"\n" * 2**22)
    assert connection.buffered <= 2**16
    assert sent < 2**21, "the rest stays with the sender"


def test_a_client_that_does_not_read_is_not_served(yard):
    sock, connection = yard.connect(ANN)
    yard.send(sock, line("ping") * 2)
    assert yard.handled(1) == [connection]
    connection.succeed("x" * 2**20)
    yard.clients.watch_events(connection)
    assert yard.handled(1) == []
    while connection.unsent:
        sock.recv(2**20)
        yard.round()
    assert yard.handled(1) == [connection]


def test_a_user_with_too_many_answers_untaken_is_not_served_and_loses_them_in_the_end(yard):
    for _ in range(20):
        sock, connection = yard.connect(ANN)
        yard.send(sock, line("ping"))
        if yard.handled(1):
            connection.succeed("x" * 2**20)
            yard.clients.watch_events(connection)
    assert yard.buffered < 6 * 2**20
    assert not yard.clients.have_work, "a request waits, and its user is not served"
    for _ in range(12):
        yard.now += 1.0
        yard.round()
    assert yard.clients.have_work
    assert sum(connection.is_closed for connection in yard.connections) >= 4


def test_of_a_user_with_too_many_answers_untaken_the_client_that_reads_loses_none(yard):
    for _ in range(2):
        sock, connection = yard.connect(ANN)
        yard.send(sock, line("ping"))
        if yard.handled(1):
            connection.succeed("x" * 3 * 2**20)
            yard.clients.watch_events(connection)
    for _ in range(12):
        yard.now += 1.0
        yard.sockets[0].recv(2**17)
        yard.round()
    assert yard.connections[0].unsent, "it has not read all"
    assert [connection.is_closed for connection in yard.connections] == [False, True]


def test_half_sent_requests_of_one_user_are_bounded_and_the_old_ones_dropped(yard):
    for _ in range(200):
        sock, _ = yard.connect(ANN)
        yard.send(sock, b"a" * 2**20)
    assert yard.buffered < 13 * 2**20
    for _ in range(12):
        yard.now += 1.0
        yard.round()
    assert any(
        "half sent" in one["error"]["cause"] and one["busy"] for sock in yard.sockets for one in told(sock)
    )
    sock, connection = yard.connect(ANN)
    yard.send(sock, line("ping"))
    yard.round()
    assert yard.handled(1) == [connection]


def test_a_half_sent_request_is_old_ten_seconds_after_its_begin_however_long_the_connection_was_open(yard):
    sock, connection = yard.connect(ANN)
    yard.now += 60.0
    yard.send(sock, b"a" * 1000)
    for _ in range(200):
        other, _ = yard.connect(ANN)
        yard.send(other, b"a" * 2**20)
    for _ in range(5):
        yard.now += 1.0
        yard.round()
    assert not connection.is_closed
    for _ in range(7):
        yard.now += 1.0
        yard.round()
    assert connection.is_closed


def test_one_large_request_of_a_user_is_received_at_a_time_and_each_comes_whole(yard):
    frame = b'"' + b"a" * (MAX_FRAME - 3) + b'"\n'
    (first, one), (second, two) = yard.connect(ANN), yard.connect(ANN)
    assert yard.send(first, frame) == len(frame)
    sent = yard.send(second, frame)
    assert sent < 2**20
    assert yard.handled(2) == [one]
    assert sent + yard.send(second, frame[sent:]) == len(frame)
    assert yard.handled(2) == [two]


def test_half_sent_requests_of_those_who_went_are_forgotten_at_once(yard):
    for _ in range(200):
        sock, _ = yard.connect(ANN)
        yard.send(sock, b"a" * 2**20)
    for sock in yard.sockets:
        sock.close()
    for _ in range(1000):
        yard.round()
    assert yard.buffered == 0
    assert all(connection.is_closed for connection in yard.connections)
    yard.now += 1.0
    yard.round()
    assert yard.clients.due is None, "no further look is due"


def test_large_requests_of_one_user_leave_room_for_anothers(yard):
    holder, _ = yard.connect(ANN)
    yard.send(holder, b"a" * 2**20)
    sock, connection = yard.connect(BOB)
    frame = b'"' + b"a" * 2**20 + b'"\n'
    assert yard.send(sock, frame) == len(frame)
    assert yard.handled(1) == [connection]


def test_connections_that_wait_for_jobs_leave_room_for_those_that_ask(yard):
    for _ in range(256):
        _, connection = yard.connect(ANN)
        connection.is_waiting = True
        yard.clients.watch_events(connection)
    sock, connection = yard.connect(ANN)
    yard.send(sock, line("ping"))
    assert yard.handled(1) == [connection]


def test_a_client_too_many_is_told_when_to_come_again(yard):
    for _ in range(256):
        yard.connect(ANN)
    late, connection = yard.connect(ANN)
    other, _ = yard.connect(BOB)
    (message,) = told(late)
    assert connection.is_closed
    assert message["v"] == PROTOCOL
    assert message["busy"]["after"] > 0
    assert message["error"]["exit"] == 5
    assert told(other) == []


def test_uids_without_an_account_have_the_connections_of_one_user_together(yard):
    yard.clients.has_account = lambda uid: uid in (ANN, BOB)
    accepted = [yard.connect(uid)[1] for uid in range(5000, 5300) for _ in range(2)]
    assert sum(not one.is_closed for one in accepted) == 128
    assert sum(not yard.connect(4999)[1].is_closed for _ in range(20)) == 0
    assert not any(yard.connect(uid)[1].is_closed for uid in (ANN, BOB, 0))


def test_a_uid_without_an_account_is_counted_until_its_last_connection_has_closed(yard):
    yard.clients.has_account = lambda uid: False
    for uid in range(5000, 5064):
        sock, _ = yard.connect(uid)
        yard.connect(uid)
        sock.close()
    yard.round()
    assert sum(not yard.connect(uid)[1].is_closed for uid in range(6000, 6100)) == 64


def test_users_who_have_gone_are_forgotten_when_they_are_more_than_a_thousand(yard):
    for uid in range(2000, 3100):
        sock, connection = yard.connect(uid)
        sock.close()
        yard.clients.close(connection)
    assert len(yard.clients._users) < 1010


def test_one_uid_without_an_account_has_16_connections(yard):
    yard.clients.has_account = lambda uid: uid == ANN
    assert sum(not yard.connect(5000)[1].is_closed for _ in range(20)) == 16


def test_uids_without_an_account_share_one_turn(yard):
    yard.clients.has_account = lambda uid: uid == ANN
    for uid in (*range(5000, 5010), ANN):
        sock, _ = yard.connect(uid)
        yard.send(sock, line("ping") * 20)
    order = [one.uid for one in yard.handled(20)]
    assert order.count(ANN) == 10
    assert len(set(order)) == 11, "and each of them comes once"


def test_uids_without_an_account_share_one_budget_of_half_sent_requests(yard):
    yard.clients.has_account = lambda uid: uid == ANN
    for uid in range(5000, 5100):
        sock, _ = yard.connect(uid)
        yard.send(sock, b"x" * 60_000)
    assert sum(one.buffered for one in yard.connections) < (4 << 20) + 100 * 4096
    sock, connection = yard.connect(ANN)
    assert yard.send(sock, b"y" * 60_000) == 60_000
    yard.round()
    assert connection.buffered == 60_000


def test_a_uid_whose_account_was_found_has_a_share_of_its_own(yard):
    listed = {ANN}
    yard.clients.has_account = lambda uid: uid in listed
    socks = {uid: yard.connect(uid)[0] for uid in (ANN, BOB, 5000)}
    listed.add(BOB)
    yard.clients.wake(BOB)
    for sock in socks.values():
        yard.send(sock, line("ping") * 20)
    order = [one.uid for one in yard.handled(12)]
    assert [order.count(uid) for uid in socks] == [4, 4, 4]


def test_the_half_sent_requests_of_all_users_are_bounded(yard):
    for uid in range(2000, 2010):
        for _ in range(40):
            sock, _ = yard.connect(uid)
            yard.send(sock, b"x" * 60_000)
    assert sum(one.buffered for one in yard.connections) < (12 << 20) + 400 * 4096
    sock, _ = yard.connect(0)
    assert yard.send(sock, b"y" * 60_000) == 60_000
    late, connection = yard.connect(CID)
    yard.send(late, line("ping"))
    assert connection in yard.handled(1), "a small request of anybody is served"


def test_a_large_request_leaves_the_small_ones_of_its_user_in_the_budget_of_all_users(yard):
    for uid in (ANN, BOB, CID):
        sock, _ = yard.connect(uid)
        yard.send(sock, b"x" * 2**20)
        for _ in range(70):
            sock, _ = yard.connect(uid)
            yard.send(sock, b"x" * 60_000)
    sock, connection = yard.connect(2000)
    yard.send(sock, b"y" * 60_000)
    assert connection.buffered <= 4096


def test_scarce_descriptors_are_divided_by_the_users_who_have_connections(yard):
    yard.clients._most_descriptors = 40
    accepted = [sum(not yard.connect(uid)[1].is_closed for _ in range(50)) for uid in (ANN, BOB, CID)]
    assert accepted == [40, 10, 6]


def test_descriptors_are_reserved_for_root(yard):
    yard.clients._most_descriptors = 40
    for uid in range(2000, 2040):
        for _ in range(4):
            yard.connect(uid)
    assert sum(not one.is_closed for one in yard.connections) == 60
    assert not yard.connect(0)[1].is_closed


def test_requests_one_after_another_change_nothing_of_what_is_watched(yard):
    sock, connection = yard.connect(ANN)
    before = yard.selector.changes
    for _ in range(3):
        yard.send(sock, line("ping"))
        yard.round()
        assert yard.handled(2) == [connection]
    assert yard.selector.changes == before


def test_a_request_that_comes_while_another_is_handled_is_reported_once_and_handled_later(yard):
    sock, connection = yard.connect(ANN)
    yard.send(sock, b"a\n" + b"b" * 2**16)
    yard.round()
    sock.send(b"\n")
    yard.round()
    assert yard.selector.select(0) == []
    assert yard.handled(1) == [connection]
    yard.round()
    yard.round()
    assert yard.handled(2) == [connection]


def test_a_connection_whose_client_went_while_it_was_not_watched_costs_nothing(yard):
    sock, _ = yard.connect(ANN)
    yard.send(sock, b"\n" * 100)
    sock.close()
    yard.round()
    assert yard.selector.select(0) == [], "it is reported once"
    yard.handled(200)
    yard.round()
    assert [key.fileobj for key in yard.selector.get_map().values()] == [yard.listener]


def test_without_a_descriptor_left_a_client_is_told_and_accepting_does_not_spin(tmp_path):
    yard = Yard(tmp_path / "s")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for client in clients:
        client.connect(str(tmp_path / "s"))
        client.setblocking(False)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[0].fileno(), limits[1]))
        yard.clients.accept()
        assert yard.selector.select(0) == [], "nobody waits to be accepted"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [message["busy"]["after"] > 0 for client in clients for message in told(client)] == [True] * 3
    for client in clients:
        client.close()
    yard.close()
