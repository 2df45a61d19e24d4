"""Client connections: reading requests, the order of service, and the budgets of each user.

A connection is read only while no complete request of it is pending, and served only when the client has read
all answers. All other data stays in the kernel. In addition each user has budgets: bytes of incomplete
requests, bytes of unread answers, connections with requests, connections that wait for jobs. One request of
each user at a time may be large. A user who exhausts a budget for ten seconds loses the connections with
incomplete requests or unread answers; none of those requests was executed.
"""

import errno
import logging
import os
import resource
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from fgsched.domain.errors import Busy
from fgsched.server import ClientConnection

# -- fair queueing ---------------------------------------------------------------------------------
#
# Each user has a tag: the service time that the user has received, in seconds. The user with pending
# requests and the smallest tag is served next. A user who becomes active again starts at the current
# virtual time, so idle time is not saved. A user who received more than a fair share waits until the others
# have caught up.


class FairPosition:
    """The position of one user in the fair queue."""

    __slots__ = ("served",)

    def __init__(self) -> None:
        self.served = 0.0  # virtual seconds


class Turns:
    """The virtual clock of the fair queue: the tag of the user who was served last."""

    def __init__(self) -> None:
        self.now = 0.0

    def enter(self, share: FairPosition) -> None:
        """Add a user who has become active again."""
        share.served = max(share.served, self.now)

    def next(self, users: "Iterable[ClientUser]") -> "ClientUser | None":
        """Return the user to serve next, or None. Of users with a common share, the least served is next."""
        first = min(users, key=_place, default=None)
        if first is not None:
            self.now = max(self.now, first.share.served)
        return first

    def is_settled(self, share: FairPosition) -> bool:
        """Tell whether a user's record can be deleted, because the user is not ahead of the others."""
        return share.served <= self.now


def _place(user: "ClientUser") -> tuple[float, int]:
    return user.share.served, user.handled


# -- connections and budgets -----------------------------------------------------------------------


log = logging.getLogger("fgsched.controller")
_TINY = 4 * 2**10  # bytes of a request that are always received, also above the budget of its user
_SMALL = 64 * 2**10  # bytes of a request that any connection may have buffered
_PIECE = 256 * 2**10  # bytes of a large request that are received at a time
_INPUT = 4 * 2**20  # bytes of small requests that one user may have buffered
_OUTPUT = 4 * 2**20  # bytes of answers not taken, at which a user is not served any more
_LARGE = 3  # large requests that are received at a time, one of each user
_END_SOME = "End some of the user's programs that are connected to the controller: ss -xp lists them."
_CONNECTIONS = 256  # connections of one user that send requests
_WAITING = 1024  # of one user that wait for jobs to end
_UNLISTED = 128  # connections of all uids without an account together
_UNLISTED_EACH = 16  # connections of one uid without an account
_ALL_INPUT = 12 * 2**20  # bytes of small requests that all users together may have buffered
_ALL_OUTPUT = 16 * 2**20  # bytes of answers not taken by all users, above which only small ones are made
_LITTLE = 256 * 2**10  # bytes of answers not taken that a user may have even then
_ACCEPTED = 256  # connections accepted at a time
_PATIENCE = 10.0  # seconds for which one user may exhaust a budget
_LOOK = 1.0  # seconds between two looks at exhausted budgets
_PAUSE = 0.5  # seconds for which nothing is accepted when not even the spare descriptor helps
_KEPT = 1000  # users without a connection whose service time is remembered
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


Work = Iterator[None]  # each step does a piece of it


class ClientUser:
    """The resources that one uid occupies."""

    __slots__ = (
        "connections",
        "handled",
        "input",
        "is_parked",
        "large",
        "output",
        "questions",
        "queue",
        "ready",
        "share",
        "starved",
        "waiting",
    )

    def __init__(self, share: FairPosition) -> None:
        """Create a user without connections. Uids without an account have one share in common."""
        self.share = share
        self.handled = 0  # requests
        self.connections: dict[ClientConnection, _Place] = {}
        self.ready: deque[ClientConnection] = deque()  # connections with a request to handle
        self.starved: dict[ClientConnection, None] = {}  # not read: too much is half sent; in this order
        self.queue: dict[ClientConnection, None] = {}  # not read: another large request is received
        self.large: ClientConnection | None = None  # the one that may send a large request
        self.questions: dict[ClientConnection, None] = {}  # with long requests; the first of them is answered
        self.input = self.output = self.waiting = 0
        self.is_parked = False  # the account of the user is not known yet

    @property
    def asking(self) -> int:
        return len(self.connections) - self.waiting

    @property
    def small_input(self) -> int:
        return self.input - (self.connections[self.large].input if self.large else 0)

    @property
    def lacks(self) -> bool:
        """Whether a connection is not read because a budget is exhausted."""
        return bool(self.starved or self.queue)


class _Place:
    """The resources that one connection occupies."""

    __slots__ = (
        "descriptor",
        "events",
        "input",
        "is_asked",
        "is_queued",
        "is_waiting",
        "output",
        "since",
        "wanted",
        "work",
    )

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor  # kept after closing, to find its registration
        self.events = self.wanted = 0  # registered events, and the events that are needed
        self.input = self.output = 0
        self.is_asked = self.is_queued = self.is_waiting = False
        self.work: Work | None = None  # an answer that is being made
        self.since = 0.0  # when the half-sent request, or the answer that is not taken, began


class Clients:
    """The listener and the connections. The owner of the selector calls `ready` for each reported one."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over the listener. `has_account(uid)` answers whether the user database lists a uid."""
        self.has_account: Callable[[int], bool] = lambda uid: True
        self._unlisted = FairPosition()  # of all uids without an account
        self._unlisted_users: dict[int, ClientUser] = {}  # uids without an account that have a connection
        self._input = self._output = 0  # bytes of all users
        self._listener, self._selector, self._clock = listener, selector, clock
        self._users: dict[int, ClientUser] = {}
        self._turns = Turns()
        self._over_budget: dict[int, ClientUser] = {}  # users with an exhausted budget
        self._large: set[ClientUser] = set()  # users who send a large request
        self._total = 0
        self._look_at = 0.0
        self._listen_at: float | None = None  # when accepting is tried again; None: it is not paused
        self._spare_descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._most_descriptors = max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._listen()

    def _listen(self) -> None:
        self._listen_at = None
        self._selector.register(self._listener, selectors.EVENT_READ, self.accept)

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on this listener instead of the previous one."""
        if self._listen_at is None:
            self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = listener
        self._listen()

    # -- accepting ------------------------------------------------------------------------------

    def accept(self) -> None:
        """Accept pending connections, a limited number at a time."""
        for _ in range(_ACCEPTED):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SCARCE and not self._turn_away():
                    return
                continue
            self.welcome(ClientConnection(sock))

    def _turn_away(self) -> bool:
        """Without a free descriptor, use the spare one to make the next client retry.

        False: accept no more.
        """
        if self._spare_descriptor < 0:
            self._pause_listening()
            return False
        self._close_spare()
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _SCARCE:
                self._pause_listening()
            return False  # or there is no client, which can be checked only with a descriptor
        else:
            _send_off(ClientConnection(sock), Busy("the controller has no descriptor left for a connection"))
            return True
        finally:
            with suppress(OSError):
                self._spare_descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare(self) -> None:
        if self._spare_descriptor >= 0:
            os.close(self._spare_descriptor)
            self._spare_descriptor = -1

    def _pause_listening(self) -> None:
        log.warning("no descriptor is left: no connection is accepted for %g s", _PAUSE)
        self._selector.unregister(self._listener)
        self._listen_at = self._clock() + _PAUSE

    def welcome(self, connection: ClientConnection) -> None:
        """Accept a connection, unless its user has too many or descriptors are scarce."""
        user = self._user(connection.uid)
        self._classify(connection.uid, user)
        if self._is_full(connection.uid, user):
            count = f"uid {connection.uid} has {user.asking} connections"
            _send_off(connection, Busy(count, _END_SOME))
            return
        user.connections[connection] = _Place(connection.fileno())
        if user.share is self._unlisted:
            self._unlisted_users[connection.uid] = user
        self._total += 1
        self.ready(connection, selectors.EVENT_READ)  # mostly the request is here already

    def _classify(self, uid: int, user: ClientUser) -> None:
        """Assign a share: a separate one to a user with an account, a common one to all other uids."""
        is_listed = uid == 0 or self.has_account(uid)
        if is_listed == (user.share is not self._unlisted):
            return
        user.share = FairPosition() if is_listed else self._unlisted
        self._unlisted_users.pop(uid, None)
        if not is_listed and user.connections:
            self._unlisted_users[uid] = user
        self._turns.enter(user.share)

    def _is_full(self, uid: int, user: ClientUser) -> bool:
        """Tell whether a user has 256 connections, or a fair part of them if descriptors are scarce.

        A quarter of the descriptors is reserved for root, and uids without an account get an eighth at most.
        """
        if user.asking >= _CONNECTIONS:
            return True
        if uid == 0:
            return False
        if user.share is self._unlisted:
            count = sum(len(client_user.connections) for client_user in self._unlisted_users.values())
            return user.asking >= _UNLISTED_EACH or count >= min(_UNLISTED, self._most_descriptors // 4)
        if self._total < self._most_descriptors:
            return False
        users = sum(bool(client_user.connections) for client_user in self._users.values())
        most = self._most_descriptors
        return self._total >= most + most // 2 or len(user.connections) >= max(4, most // (2 * users))

    def _user(self, uid: int) -> ClientUser:
        client_user = self._users.get(uid)
        if client_user is None:
            if len(self._users) > _KEPT:
                self._forget_idle()
            client_user = self._users[uid] = ClientUser(FairPosition())
        return client_user

    def _forget_idle(self) -> None:
        for uid, record in list(self._users.items()):
            if not record.connections and self._is_settled(record):
                del self._users[uid]

    def _is_settled(self, user: ClientUser) -> bool:
        return user.share is self._unlisted or self._turns.is_settled(user.share)

    # -- one connection -------------------------------------------------------------------------

    def watch_events(self, connection: ClientConnection) -> None:
        """Account for a connection, and watch for the events that it needs next."""
        user = self._users[connection.uid]
        place = user.connections.get(connection)
        if place is None:
            return
        if connection.is_closed:
            self._forget(connection, user, place)
            return
        self._account(connection, user, place)
        if not place.is_queued and self._can_be_served(connection, user, place):
            if not user.ready:
                self._turns.enter(user.share)
            user.ready.append(connection)
            place.is_queued = True
        self._watch(connection, place, self._wanted(connection, user, place))
        if user.starved or user.queue:
            self._feed(user)

    def _account(self, connection: ClientConnection, user: ClientUser, place: _Place) -> None:
        has_line, buffered, unsent = connection.has_line, connection.buffered, connection.unsent
        more_input, more_output = buffered - place.input, unsent - place.output
        is_waiting = connection.is_waiting
        if not (has_line or more_input or more_output or is_waiting is not place.is_waiting):
            return
        was_over = bool(user.output) and self._is_over(user)
        user.input += more_input
        user.output += more_output
        self._input += more_input
        self._output += more_output
        user.waiting += is_waiting - place.is_waiting
        if has_line or more_output < 0 or not (place.input or place.output):
            place.since = self._clock()
        place.input, place.output, place.is_waiting = buffered, unsent, is_waiting
        if user.large is connection and buffered < _SMALL:
            self._end_large(user)
        if user.output and self._is_over(user):
            self._press(connection.uid, user)
        elif was_over:
            self._turns.enter(user.share)

    def _end_large(self, user: ClientUser) -> None:
        user.large = None
        self._large.discard(user)
        for other in self._over_budget.values():
            if other is not user:
                self._feed(other)

    def _can_be_served(self, connection: ClientConnection, user: ClientUser, place: _Place) -> bool:
        if connection in user.questions and connection is not next(iter(user.questions)):
            return False
        return bool((connection.has_line or place.work) and not connection.unsent and not place.is_asked)

    def _wanted(self, connection: ClientConnection, user: ClientUser, place: _Place) -> int:
        if connection.unsent:
            return selectors.EVENT_WRITE
        if connection.has_line or place.work:
            return 0
        if connection.buffered < _TINY:
            return selectors.EVENT_READ
        return selectors.EVENT_READ if self._room(connection, user) else 0

    def _room(self, connection: ClientConnection, user: ClientUser) -> int:
        """Return the number of bytes that may be received now; 0: other connections use the budget."""
        if user.large is connection:
            return _PIECE
        if connection.buffered < _SMALL and self._may_buffer(connection.uid, user):
            return _SMALL - connection.buffered
        if connection.buffered < _TINY:
            return _TINY - connection.buffered
        if connection.buffered >= _SMALL and self._may_be_large(user):
            user.large = connection
            self._large.add(user)
            return _PIECE
        lacking = user.queue if connection.buffered >= _SMALL else user.starved
        lacking[connection] = None
        self._press(connection.uid, user)
        return 0

    def _may_buffer(self, uid: int, user: ClientUser) -> bool:
        """Tell whether small requests of a user may be buffered: uids without an account have one budget."""
        if user.share is self._unlisted:
            return sum(client_user.small_input for client_user in self._unlisted_users.values()) < _INPUT
        small = self._input - sum(
            [client_user.input - client_user.small_input for client_user in self._large]
        )
        return user.small_input < _INPUT and (uid == 0 or small < _ALL_INPUT)

    def _may_be_large(self, user: ClientUser) -> bool:
        """Tell whether a user may send a large request. Uids without an account send one at a time."""
        if user.large is not None or len(self._large) >= _LARGE:
            return False
        return user.share is not self._unlisted or not any(
            client_user.large for client_user in self._unlisted_users.values()
        )

    def _is_over(self, user: ClientUser) -> bool:
        """Tell whether a user has too many unread answers to be served."""
        if not user.output:
            return False
        if user.share is self._unlisted and sum(u.output for u in self._unlisted_users.values()) > _OUTPUT:
            return True
        return user.output > _OUTPUT or (self._output > _ALL_OUTPUT and user.output > _LITTLE)

    def _watch(self, connection: ClientConnection, place: _Place, events: int) -> None:
        """Watch for these events.

        While a request is handled, a connection stays registered for reading, since the next event is usually
        the next request. If it is reported before that, `ready` unregisters it: a closed end would be
        reported forever.
        """
        place.wanted = events
        if events == place.events or (place.events == selectors.EVENT_READ and not events):
            return
        if not place.events:
            self._register(connection, events)
        elif events:
            self._selector.modify(connection, events)
        else:
            self._selector.unregister(connection)
        place.events = events

    def _register(self, connection: ClientConnection, events: int) -> None:
        """Register a connection; a stale registration of the same descriptor is replaced."""
        if connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection.fileno())
        self._selector.register(connection, events)

    def _forget(self, connection: ClientConnection, user: ClientUser, place: _Place) -> None:
        del user.connections[connection]
        user.input -= place.input
        user.output -= place.output
        self._input -= place.input
        self._output -= place.output
        if not user.connections:
            self._unlisted_users.pop(connection.uid, None)
        user.waiting -= place.is_waiting
        user.starved.pop(connection, None)
        user.queue.pop(connection, None)
        if place.is_queued:
            user.ready.remove(connection)
        if user.large is connection:
            self._end_large(user)
        self._end_question(connection, user)
        key = self._selector.get_map().get(place.descriptor)
        if key is not None and key.fileobj is connection:
            self._selector.unregister(place.descriptor)
        self._total -= 1
        self._feed(user)

    def ready(self, connection: ClientConnection, mask: int) -> None:
        """Handle a connection that the selector reports: send or receive."""
        if connection.is_closed:
            return
        user = self._users[connection.uid]
        place = user.connections[connection]
        if place.events and not place.wanted:
            self._selector.unregister(connection)
            place.events = 0
            return
        if connection.unsent:
            connection.flush()
        elif mask & selectors.EVENT_READ and not connection.has_line:
            connection.fill(self._room(connection, user))
        self.watch_events(connection)

    def close(self, connection: ClientConnection) -> None:
        """Close a connection whose handling failed."""
        if not connection.is_closed:
            connection.close()
        self.watch_events(connection)

    # -- budgets --------------------------------------------------------------------------------

    def _press(self, uid: int, user: ClientUser) -> None:
        if not self._over_budget:
            self._look_at = self._clock() + _LOOK
        self._over_budget[uid] = user

    def _feed(self, user: ClientUser) -> None:
        """Resume reading connections that a budget had stopped, as far as the budget permits."""
        for lacking in (user.starved, user.queue):
            while lacking:
                connection = next(iter(lacking))
                place = user.connections[connection]
                if not (events := self._wanted(connection, user, place)):
                    break  # the budget is used up; the others follow
                del lacking[connection]
                self._watch(connection, place, events)

    def look(self) -> None:
        """Drop connections that exhaust a budget for too long, and accept again after a pause."""
        now = self._clock()
        if self._listen_at is not None and now >= self._listen_at:
            self._listen()
        if not self._over_budget or now < self._look_at:
            return
        self._look_at = now + _LOOK
        for uid, user in list(self._over_budget.items()):
            overdue = list(self._overdue(user, now))
            for connection in overdue:
                self._drop(connection)
            if overdue:
                log.warning("uid %d: %d connections that exhausted its budget are closed", uid, len(overdue))
            self._feed(user)
            if not user.lacks and not self._is_over(user):
                del self._over_budget[uid]

    def _overdue(self, user: ClientUser, now: float) -> Iterator[ClientConnection]:
        is_over = self._is_over(user)
        for connection, place in user.connections.items():
            late = now - place.since >= _PATIENCE
            half_sent = user.lacks and connection.buffered > 0 and not connection.has_line
            if late and (half_sent or (is_over and connection.unsent > 0)):
                yield connection

    def _drop(self, connection: ClientConnection) -> None:
        if not connection.unsent:
            connection.fail(Busy(f"uid {connection.uid} has too much half sent", _END_SOME))
        self.close(connection)

    def may_wait(self, connection: ClientConnection) -> bool:
        """Tell whether the user may have one more connection that waits for jobs."""
        return self._users[connection.uid].waiting < _WAITING

    @property
    def due(self) -> float | None:
        """Return the seconds until `look` is due, or None."""
        dues = [self._look_at] if self._over_budget else []
        dues += [self._listen_at] if self._listen_at is not None else []
        return max(0.0, min(dues) - self._clock()) if dues else None

    # -- serving --------------------------------------------------------------------------------

    @property
    def have_work(self) -> bool:
        return bool(self._active())

    def _active(self) -> list[ClientUser]:
        return [
            user
            for user in self._users.values()
            if user.ready and not user.is_parked and not self._is_over(user)
        ]

    def next(self) -> ClientConnection | None:
        """Return the connection whose request is handled next; it moves behind its user's others."""
        while (user := self._turns.next(self._active())) is not None:
            connection = user.ready.popleft()
            user.handled += 1
            place = user.connections[connection]
            place.is_queued = False
            if self._can_be_served(connection, user, place):
                return connection
        return None

    def charge(self, uid: int, seconds: float) -> None:
        """Charge `seconds` of service to a user."""
        self._users[uid].share.served += seconds

    def asked(self, connection: ClientConnection) -> None:
        """Record a request that is answered after the turn, and blocks the connection until then."""
        place = self._users[connection.uid].connections.get(connection)
        if place is not None:
            place.is_asked = True

    def goes_on(self, connection: ClientConnection) -> bool:
        """Tell whether the next step of an answer can be made: the client reads, and awaits no turn."""
        place = self._users[connection.uid].connections.get(connection)
        is_asked = place is not None and place.is_asked
        return not (connection.unsent or connection.is_closed or is_asked)

    def answered(self, connection: ClientConnection) -> None:
        """Record the answer to such a request."""
        place = self._users[connection.uid].connections.get(connection)
        if place is not None:
            place.is_asked = False
            self.watch_events(connection)

    def work(self, connection: ClientConnection) -> Work | None:
        """Return the answer in pieces that the connection is being sent, or None."""
        place = self._users[connection.uid].connections.get(connection)
        return place.work if place else None

    def set_work(self, connection: ClientConnection, work: Work | None) -> None:
        place = self._users[connection.uid].connections.get(connection)
        if place is not None:
            place.work = work

    def set_question(self, connection: ClientConnection, work: Work) -> None:
        """Set the work on a long request, which begins when the user's earlier long requests have ended."""
        user = self._users[connection.uid]
        if connection in user.connections:
            user.questions[connection] = None
            user.connections[connection].work = work

    def end_question(self, connection: ClientConnection) -> None:
        """Record that a long request has ended, if the connection has one: the user's next one begins."""
        self._end_question(connection, self._users[connection.uid])

    def _end_question(self, connection: ClientConnection, user: ClientUser) -> None:
        if connection in user.questions:
            del user.questions[connection]
            if user.questions:
                self.watch_events(next(iter(user.questions)))

    def park(self, connection: ClientConnection) -> None:
        """Stop serving this connection's user until `wake`, while the account is being looked up."""
        self._users[connection.uid].is_parked = True
        self.watch_events(connection)

    def wake(self, uid: int) -> None:
        """Resume service of a user after the query of the account."""
        if user := self._users.get(uid):
            user.is_parked = False
            self._classify(uid, user)
            self._turns.enter(user.share)

    def leave(self) -> None:
        """Close all connections, whether the selector watches them or not, and the spare descriptor."""
        for user in self._users.values():
            for connection in user.connections:
                connection.close()
        self._close_spare()


def _send_off(connection: ClientConnection, why: Busy) -> None:
    connection.fail(why)
    connection.close()
