"""The event loop: wait for events, collect them for a turn, and send the answers.

A round handles client requests for a few milliseconds, users in fair order, and continues after everything
else was handled. So no client delays the others, shepherds or timers by more than one round.
"""

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EAGAIN, EDQUOT, EEXIST, EMFILE, ENFILE, ENOMEM, ENOSPC, ESRCH
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from fgsched import codec, protocol
from fgsched.controller.caller import Caller
from fgsched.controller.clients import Clients, Work
from fgsched.controller.containment import Faults
from fgsched.controller.engine import Engine
from fgsched.controller.turn import (
    ClientRequest,
    Event,
    HostShort,
    JobEnded,
    JobStarted,
    SendReply,
    StartFailed,
)
from fgsched.domain.errors import Busy, FgschedError, OurFault
from fgsched.domain.job import Job
from fgsched.domain.steps import Steps
from fgsched.launch.spawner import Spawner, SpawnerReport
from fgsched.lifecycle.transitions import Shepherd
from fgsched.server import ClientConnection, LongAnswer, LongQuestion, cut, listing, parse
from fgsched.store import is_fatal
from fgsched.system import earlysignals

log = logging.getLogger("fgsched.controller")
SPAWNER_GONE = "the spawner is gone"  # the reason why the loop ends; the controller restarts
_PIECES = 0.002  # seconds for which pieces of one answer are made before others are served
_SLICE = 0.005  # seconds of a round for requests
_WRITES = 0.01  # seconds that the writes of a round may be expected to take: they are committed together
_OUTCOMES = 500  # of an order, in one piece of its answer
_TURN = 0.05  # seconds after which a turn is made though nothing but clients was heard of
_WRITE = 0.0002  # seconds that a user's first write is expected to take
_SHORTAGES = {EAGAIN, EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC}  # that another start may not meet
Handler = Callable[[Caller, Any, float], Any]  # (caller, call, seconds since the epoch) -> its answer
Told = Callable[[Any], None]  # takes the answer to a request, or the error that refuses it
Witness = Callable[[Caller, int, protocol.Call[Any], float], Told | None]  # int: the pid of the client
Apart = Callable[[ClientConnection, Caller, Any], None]  # answers by itself, maybe later


def _no_witness(caller: Caller, pid: int, call: protocol.Call[Any], now: float) -> None:
    """Take no notice of a request."""


class PartedOrder(Protocol):
    """An order that is carried out in several turns."""

    def parts(self) -> Steps[Sequence[protocol.Call[Any]]]: ...

    def merged(self, answers: Sequence[Any]) -> Any: ...


class OrderSplitter(Protocol):
    """Splits orders about very many jobs."""

    @property
    def orders(self) -> Container[type[protocol.Call[Any]]]: ...  # the requests that may have to be split

    def long_order(self, caller: Caller, call: protocol.Call[Any]) -> PartedOrder | None: ...


class Operations(Protocol):
    """What the loop requires of the dispatcher."""

    decoder: codec.Decoder

    def has_account(self, uid: int) -> bool: ...

    def is_caller_known(self, connection: ClientConnection) -> bool: ...  # False: `known` follows

    def caller(self, connection: ClientConnection) -> Caller: ...

    def writer(self, kind: type[protocol.Call[Any]]) -> Handler | None: ...

    def reader(self, kind: type[protocol.Call[Any]]) -> Handler | None: ...

    def served_apart(self, kind: type[protocol.Call[Any]]) -> Apart | None: ...


class EventLoop:
    """The owner of the selector. It wakes up for events and timers and never polls."""

    def __init__(self, listener: socket.socket, spawner: Spawner) -> None:
        self.selector = selectors.EpollSelector()
        self.faults = Faults()
        self._spawner = spawner
        self._boot = ""
        self._events: list[Event] = []
        self._clients = Clients(listener, self.selector)
        self._writes: dict[int, float] = {}  # uid -> seconds that a write of the user takes, on average
        self._turned_at = 0.0
        self.stopping = ""
        self.selector.register(spawner, selectors.EVENT_READ, self._hear_spawner)

    def begin(
        self,
        engine: Engine,
        operations: Operations,
        splitter: OrderSplitter | None = None,
        witness: Witness = _no_witness,
        recorded: Container[type[protocol.Call[Any]]] = (),
    ) -> None:
        """Serve requests from now on; `witness` learns of each one whose type is in `recorded`."""
        self._engine, self._operations, self._splitter = engine, operations, splitter
        self._witness, self._recorded = witness, recorded
        self._clients.has_account = operations.has_account
        self._boot = engine.launcher.boot

    def listen(self, listener: socket.socket) -> None:
        """Accept connections on this listener instead of the previous one."""
        self._clients.listen(listener)

    def happened(self, event: Event) -> None:
        """Add an event for the next turn."""
        self._events.append(event)

    def watch(self, fileobj: Any, ready: Callable[[], None]) -> None:
        self._register(fileobj, ready)

    def _register(self, fileobj: Any, ready: Callable[[], None]) -> None:
        """Register a descriptor; a stale registration of the same number is replaced."""
        if fileobj in self.selector.get_map():
            self.selector.unregister(fileobj)
        self.selector.register(fileobj, selectors.EVENT_READ, ready)

    def watch_once(self, pidfd: int, ended: Callable[[], None]) -> None:
        """Call `ended` when the process of a pidfd has ended."""

        def heard() -> None:
            self.selector.unregister(pidfd)
            ended()

        self._register(pidfd, heard)

    @contextmanager
    def signals(self, numbers: set[signal.Signals], take: Callable[[set[int]], None]) -> Iterator[None]:
        """Call `take` with the signals that come, and with the signals that came before.

        At the end they are blocked: signals that have come are taken, and later ones stay pending if the
        process executes itself again.
        """
        own_end, signal_end = socket.socketpair()
        signal_end.setblocking(False)
        own_end.setblocking(False)
        signal.set_wakeup_fd(signal_end.fileno())
        for number in numbers:
            signal.signal(number, lambda *_: None)
        self.watch(own_end, lambda: take(set(own_end.recv(64))))
        take(earlysignals.kept())
        yield
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        with suppress(BlockingIOError):
            take(set(own_end.recv(64)))
        signal.set_wakeup_fd(-1)

    def run_once(self, timeout: float | None) -> None:
        """Wait at most `timeout` seconds for events, handle them, and make a turn."""
        begun = time.monotonic()
        has_events = self._hear(self._wait(timeout))
        self._clients.look()
        self._serve()
        is_due = timeout is not None and time.monotonic() - begun >= timeout
        events, self._events = self._events, []
        if has_events or is_due or events or begun - self._turned_at >= _TURN:
            self._turned_at = begun
            self._engine.turn(events, time.time())
        self._watch_spawner()

    def _wait(self, timeout: float | None) -> float | None:
        if self._events or self._clients.have_work:
            return 0.0
        return min((seconds for seconds in (timeout, self._clients.due) if seconds is not None), default=None)

    def _hear(self, wait: float | None) -> bool:
        """Wait at most `wait` seconds for events.

        Return whether any arrived but those of clients and of the spawner, which need a turn only sometimes.
        """
        has_events = False
        for key, mask in self.selector.select(wait):
            if isinstance(key.fileobj, ClientConnection):
                self._hear_client(key.fileobj, mask)
                continue
            has_events = has_events or key.fileobj is not self._spawner
            with self.faults.contained("an event"):
                if mask & selectors.EVENT_WRITE:
                    self._spawner.flush()
                if mask & selectors.EVENT_READ:
                    key.data()
        return has_events

    # -- clients --------------------------------------------------------------------------------

    def _hear_client(self, connection: ClientConnection, mask: int) -> None:
        if not self.faults.run("a connection", partial(self._clients.ready, connection, mask)):
            self.faults.run("a connection", partial(self._clients.close, connection))

    def _serve(self) -> None:
        """Handle requests for one round, one at a time, from the user with the least service.

        Requests that arrive while writes are taken in join their turn: one commit is for all.
        """
        begun = now = time.monotonic()
        planned = planned_before = 0.0  # seconds that the turn is expected to take for the writes
        while now < begun + _SLICE and planned < _WRITES:
            if (connection := self._clients.next()) is None:
                if planned == planned_before:  # nothing was written since it was last heard who asks
                    break
                planned_before = planned
                self._hear(0.0)  # whatever it hears gets its turn, which the writes make
                continue
            planned += self._handle(connection)
            before, now = now, time.monotonic()
            self._clients.charge(connection.uid, now - before)

    def _handle(self, connection: ClientConnection) -> float:
        """Handle the first request of a connection; return the seconds that its turn will probably take."""
        if work := self._clients.work(connection):
            self._go_on(connection, work)
            return 0.0
        if not self._operations.is_caller_known(connection):
            self._clients.park(connection)
            return 0.0
        try:
            if cost := self._request(connection, parse(connection.take_line(), self._operations.decoder)):
                return cost  # its answer follows in the turn
        except FgschedError as error:
            connection.fail(error)
        except Exception as error:
            self.faults.note("a request", error)
            connection.fail(OurFault(f"{type(error).__name__}: {error}"))
        self._clients.watch_events(connection)
        return 0.0

    def _go_on(self, connection: ClientConnection, work: Work) -> None:
        """Send further pieces of a long answer for a limited time, while the client reads them."""
        until = time.monotonic() + _PIECES
        try:
            while self._clients.goes_on(connection) and time.monotonic() < until:
                next(work)
        except StopIteration:
            self._clients.set_work(connection, None)
        except FgschedError as error:
            self._end_work(connection, error)
        except Exception as error:
            self.faults.note("a request", error)
            self._end_work(connection, OurFault(f"{type(error).__name__}: {error}"))
        self._clients.watch_events(connection)

    def begin_work(self, connection: ClientConnection, work: Work) -> None:
        """Start an answer in pieces; other requests are served in between."""
        self._clients.set_work(connection, work)
        self._go_on(connection, work)

    def _end_work(self, connection: ClientConnection, error: FgschedError) -> None:
        """Close a connection whose answer failed after it had begun."""
        self._clients.set_work(connection, None)
        self._clients.end_question(connection)
        if connection.is_answering:
            connection.close()
        else:
            connection.fail(error)

    def known(self, uid: int) -> None:
        """Resume the requests of a user after the query of the account."""
        self._clients.wake(uid)

    def _request(self, connection: ClientConnection, request: protocol.Call[Any]) -> float:
        """Execute a request; return the seconds that its turn will probably take."""
        caller, kind = self._operations.caller(connection), type(request)
        if writer := self._operations.writer(kind):
            on_outcome = self._outcome_recorder(connection, caller, request)
            if order := self._long_order(caller, request):
                carry_out = partial(writer, caller)
                work = self._carrying_out(connection, carry_out, order, caller.name, on_outcome)
                self._clients.set_question(connection, work)
                return 0.0
            act = partial(writer, caller, request)
            return self._take_in(connection, act, caller.name, on_outcome, stores=request.stores)
        if reader := self._operations.reader(kind):
            self._answer(connection, partial(reader, caller, request))
        elif apart := self._operations.served_apart(kind):
            on_outcome = self._outcome_recorder(connection, caller, request)
            _observed(partial(apart, connection, caller, request), on_outcome)
        else:
            raise OurFault(f"{protocol.name_of(kind)} has no handler")
        return 0.0

    def _long_order(self, caller: Caller, request: protocol.Call[Any]) -> PartedOrder | None:
        """Return the parts of an order that is carried out in several turns; None for another request."""
        splitter = self._splitter
        if splitter is None or type(request) not in splitter.orders:
            return None
        return splitter.long_order(caller, request)

    def _outcome_recorder(
        self, connection: ClientConnection, caller: Caller, request: protocol.Call[Any]
    ) -> Told | None:
        """Return the function that takes the outcome of a request; None if it is not recorded."""
        if type(request) not in self._recorded:
            return None
        return self._witness(caller, connection.pid, request, time.monotonic())

    def _take_in(
        self,
        connection: ClientConnection,
        act: Callable[[float], Any],
        by: str,
        on_outcome: Told | None = None,
        *,
        stores: bool = True,
    ) -> float:
        """Queue a request that writes for the turn; its expected time is charged now.

        `on_outcome` is called with its answer or its error before that is sent.
        """
        expected = self._expect(connection)
        request = self._asked(connection, act, expected, by, stores=stores)
        self._events.append(request if on_outcome is None else _witnessed(request, on_outcome))
        return expected

    def _expect(self, connection: ClientConnection) -> float:
        """Charge the time that a write of the user takes; the connection is not served until the answer."""
        expected = self._writes.get(connection.uid, _WRITE)
        self._clients.charge(connection.uid, expected)
        self._clients.asked(connection)
        return expected

    def _carrying_out(
        self,
        connection: ClientConnection,
        carry_out: Callable[[Any, float], Any],
        order: PartedOrder,
        by: str,
        on_outcome: Told | None,
    ) -> Work:
        """Carry out an order, one part in each turn, and send one answer. A part that fails ends it."""
        answers: list[Any] = []
        try:
            for call in (yield from order.parts()):
                act = partial(carry_out, call)
                expected = self._expect(connection)
                request = self._asked(
                    connection, act, expected, by, stores=call.stores, answer=answers.append
                )
                self._events.append(request)
                yield
                if isinstance(answers[-1], FgschedError):
                    raise answers[-1]
        except FgschedError as error:
            if on_outcome is not None:
                on_outcome(error)
            raise
        answer = order.merged(answers)
        if on_outcome is not None:
            on_outcome(answer)
        self._clients.end_question(connection)
        if isinstance(answer, protocol.Outcomes):
            whole = LongAnswer("jobs", cut(answer.jobs, _OUTCOMES), lambda: protocol.Outcomes(jobs=[]))
            yield from listing(connection, whole)
        else:
            connection.succeed(answer)

    def write(self, connection: ClientConnection, act: Callable[[float], Any], by: str) -> None:
        """Carry out a request that was put off in the next turn; `act` takes seconds since the epoch."""
        if not connection.is_closed:
            self._take_in(connection, act, by)

    def _asked(
        self,
        connection: ClientConnection,
        act: Callable[[float], Any],
        expected: float,
        by: str,
        *,
        stores: bool,
        answer: Told | None = None,
    ) -> ClientRequest:
        """Return a request of a turn; `answer` takes its answer or its error, instead of the client."""
        succeed, refuse = partial(self._acknowledge, connection), partial(self._refuse, connection)
        if answer is not None:
            succeed = refuse = partial(self._note, connection, answer)

        def inside(now: float) -> SendReply:
            begun = time.monotonic()
            try:
                result = act(now)
            except FgschedError as error:
                return SendReply(refuse, error)
            except Exception as error:  # half done, maybe: the turn is undone, and done again without it
                if is_fatal(error):
                    raise
                self.faults.note("a request", error)
                raise OurFault(f"{type(error).__name__}: {error}") from error
            finally:
                self._measured(connection.uid, time.monotonic() - begun, expected)
            return SendReply(succeed, result)

        return ClientRequest(inside, refuse, by, stores)

    def _note(self, connection: ClientConnection, answer: Told, result: Any) -> None:
        """Pass on the answer to a part of an order, which continues."""
        answer(result)
        self._clients.answered(connection)

    def _measured(self, uid: int, took: float, expected: float) -> None:
        self._clients.charge(uid, took - expected)
        self._writes[uid] = expected + (took - expected) / 4

    def _acknowledge(self, connection: ClientConnection, result: Any) -> None:
        if not connection.is_closed:
            connection.succeed(result)
        self._clients.answered(connection)

    def _refuse(self, connection: ClientConnection, error: FgschedError) -> None:
        if not connection.is_closed:
            connection.fail(error)
        self._clients.answered(connection)

    def _answer(self, connection: ClientConnection, find: Callable[[float], Any]) -> None:
        """Execute a request that only reads; an error affects this request only."""
        answer = find(time.time())
        if isinstance(answer, LongAnswer):
            work = listing(connection, answer)
            next(work)  # an error in the first piece can still be answered
            self.begin_work(connection, work)
        elif isinstance(answer, LongQuestion):
            self._clients.set_question(connection, self._answering(connection, answer))
        else:
            connection.succeed(answer)

    def _answering(self, connection: ClientConnection, question: LongQuestion[Any]) -> Work:
        """Compute an answer in steps, and send it."""
        answer = yield from question.begin(time.time())
        self._clients.end_question(connection)
        if isinstance(answer, LongAnswer):
            yield from listing(connection, answer)
        else:
            connection.succeed(answer)

    def finish(self, connection: ClientConnection, send: Callable[[], None]) -> None:
        """Send an answer, and account for the connection."""
        if not connection.is_closed:
            send()
        self._clients.watch_events(connection)

    def answer(self, connection: ClientConnection, answer: LongAnswer[Any]) -> None:
        """Send an answer in pieces that comes after its request was handled."""
        if not connection.is_closed:
            self.begin_work(connection, listing(connection, answer))
        else:
            self._clients.watch_events(connection)

    def refuse_to_wait(self, connection: ClientConnection) -> None:
        """Refuse a wait if the user has the maximum of waiting connections. Raises Busy."""
        if not self._clients.may_wait(connection):
            raise Busy(
                f"uid {connection.uid} waits on too many connections", "End some of the waiting commands."
            )

    def leave(self) -> None:
        self._clients.leave()

    # -- the spawner ----------------------------------------------------------------------------

    def _hear_spawner(self) -> None:
        answers = self._spawner.read()
        if answers is None:
            self.stopping = SPAWNER_GONE
            return
        self._events.extend(self._event(answer) for answer in answers)

    def _event(self, answer: SpawnerReport) -> Event:
        if answer.is_over or answer.errno in {EEXIST, ESRCH} or (answer.pid and not answer.start):
            return JobEnded(answer.job, answer.attempt)  # claim and result show its outcome
        if answer.errno in _SHORTAGES:
            return HostShort(answer.job, answer.attempt, f"could not be started: {os.strerror(answer.errno)}")
        if answer.errno:
            return StartFailed(
                answer.job, answer.attempt, f"could not be launched: {os.strerror(answer.errno)}"
            )
        return JobStarted(answer.job, answer.attempt, Shepherd(answer.pid, answer.start, self._boot))

    def _watch_spawner(self) -> None:
        key = self.selector.get_key(self._spawner)
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._spawner.wants_to_write else 0)
        if key.events != mask:
            self.selector.modify(self._spawner, mask, key.data)

    def failed(self, job: Job, why: str) -> None:
        """Report an attempt that could not be sent to the spawner."""
        self._events.append(StartFailed(job.id, job.attempt, why))

    def short(self, job: Job, why: str) -> None:
        """Report an attempt that could not be sent because the host lacked resources."""
        self._events.append(HostShort(job.id, job.attempt, why))


def _witnessed(request: ClientRequest, on_outcome: Told) -> ClientRequest:
    """Return a request whose answer or error is also passed to `on_outcome`, after the commit."""

    def act(now: float) -> SendReply:
        reply: SendReply = request.act(now)

        def send(answer: Any) -> None:
            on_outcome(answer)
            reply.send(answer)

        return replace(reply, send=send)

    def refuse(error: FgschedError) -> None:
        on_outcome(error)
        request.refuse(error)

    return replace(request, act=act, refuse=refuse)


def _observed(act: Callable[[], None], on_outcome: Told | None) -> None:
    """Begin a request that is answered later; `on_outcome` is called with None, or with the error."""
    try:
        act()
    except FgschedError as error:
        if on_outcome is not None:
            on_outcome(error)
        raise
    if on_outcome is not None:
        on_outcome(None)
