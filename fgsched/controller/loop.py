"""The loop: waits for whatever happens, gathers it, has it taken in at one turn, answers."""

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from errno import EEXIST, ESRCH
from functools import partial
from typing import Any, Protocol

from fgsched.controller.caller import Caller, refuse_claims
from fgsched.controller.conductor import Conductor
from fgsched.controller.events import Asked, Died, Effect, Event, Failed, Forked, due_now
from fgsched.crash import point
from fgsched.errors import BadUsage, FgschedError, OurFault, Refused
from fgsched.host.spawner import Answer, Spawner
from fgsched.jobs.lifecycle import Shepherd
from fgsched.model import Job
from fgsched.server import Connection, parse
from fgsched.store import DiskError

log = logging.getLogger("fgsched.controller")
_CONNECTIONS_EACH = 256  # of one user
Operation = Callable[[Caller, dict[str, Any], float], Any]


class Operations(Protocol):
    """What the loop needs of whoever knows the requests."""

    def caller(self, connection: Connection) -> Caller: ...

    def writing(self, name: str) -> Operation | None: ...

    def reading(self, name: str) -> Operation | None: ...

    def special(self, name: str) -> Callable[[Connection, Caller, dict[str, Any]], None] | None: ...


class Loop:
    """Owns the selector and the connections. Wake-ups are events and timers, never a poll."""

    def __init__(self, listener: socket.socket, spawner: Spawner) -> None:
        self.selector = selectors.EpollSelector()
        self._listener = listener
        self._spawner = spawner
        self._boot = ""
        self._events: list[Event] = []
        self._begun: list[Forked] = []  # beginnings that were put off
        self._lookups: list[Effect] = []
        self._connections: dict[int, int] = {}  # uid -> how many
        self.stopping = ""
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.selector.register(spawner, selectors.EVENT_READ, self._hear_spawner)

    def begin(self, conductor: Conductor, operations: Operations) -> None:
        self._conductor = conductor
        self._operations = operations
        self._boot = conductor.launcher.boot

    def happened(self, event: Event) -> None:
        """Something that the next turn has to take in."""
        self._events.append(event)

    def watch(self, fileobj: Any, ready: Effect) -> None:
        self._register(fileobj, ready)

    def _register(self, fileobj: Any, ready: Effect) -> None:
        """Whoever had this descriptor number before has closed it: the number would not be free otherwise."""
        if fileobj in self.selector.get_map():
            self.selector.unregister(fileobj)
        self.selector.register(fileobj, selectors.EVENT_READ, ready)

    def watch_once(self, pidfd: int, ended: Effect) -> None:
        """A pidfd becomes readable once, for good: when its process has ended."""

        def heard() -> None:
            self.selector.unregister(pidfd)
            ended()

        self._register(pidfd, heard)

    def run_once(self, timeout: float | None) -> None:
        """Wait for something, take in all that is there, act."""
        wait = 0.0 if self._events or self._begun else timeout
        for key, mask in self.selector.select(wait):
            if mask & selectors.EVENT_WRITE:
                self._flush(key.fileobj)
            if mask & selectors.EVENT_READ:
                key.data()
        events, self._events = self._events, []
        due, self._begun = due_now(self._begun, events)
        self._conductor.turn(due, time.time())
        lookups, self._lookups = self._lookups, []
        for lookup in lookups:
            lookup()
        self._mind_spawner()

    # -- clients --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(sock)
            count = self._connections.get(connection.uid, 0)
            if count >= _CONNECTIONS_EACH:
                connection.fail(Refused(f"uid {connection.uid} has {count} connections", "Close some."))
                connection.close()
                continue
            self._connections[connection.uid] = count + 1
            self._register(connection, partial(self._hear, connection))

    def _hear(self, connection: Connection) -> None:
        if connection.is_closed:
            return  # while we wrote to it, a moment ago
        descriptor = connection.fileno()
        for line in connection.receive():
            try:
                self._request(connection, *parse(line))
            except FgschedError as error:
                connection.fail(error)
        self._mind(connection, descriptor)

    def _mind(self, connection: Connection, descriptor: int) -> None:
        """Forget a closed connection; wait to write where a client reads slowly."""
        if connection.is_closed:
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
                self._connections[connection.uid] -= 1
            return
        key = self.selector.get_key(connection)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.wants_to_write else 0)
        if key.events != wanted:
            self.selector.modify(connection, wanted, key.data)

    def _flush(self, fileobj: Any) -> None:
        if fileobj is self._spawner:
            self._spawner.flush()
            return
        descriptor = fileobj.fileno()
        fileobj.flush()
        self._mind(fileobj, descriptor)

    def _request(self, connection: Connection, name: str, arguments: dict[str, Any]) -> None:
        caller = self._operations.caller(connection)
        if writing := self._operations.writing(name):
            refuse_claims(arguments)
            self._events.append(self._asked(connection, partial(writing, caller, arguments)))
        elif reading := self._operations.reading(name):
            self._lookups.append(partial(self._answer, connection, partial(reading, caller, arguments)))
        elif special := self._operations.special(name):
            self._lookups.append(
                lambda: self._attempt(connection, lambda: special(connection, caller, arguments))
            )
        else:
            raise BadUsage(f"unknown operation {name[:80]!r}")

    def _asked(self, connection: Connection, act: Callable[[float], Any]) -> Asked:
        def inside(now: float) -> Effect:
            try:
                result = act(now)
            except FgschedError as error:
                return partial(self.finish, connection, partial(connection.fail, error))
            except DiskError:
                raise
            except Exception as error:  # half done, maybe: the turn is undone, and done again without it
                log.exception("a request could not be carried out")
                raise OurFault(f"{type(error).__name__}: {error}") from error
            return lambda: self._acknowledge(connection, result)

        return Asked(inside, lambda error: self.finish(connection, lambda: connection.fail(error)))

    def _acknowledge(self, connection: Connection, result: Any) -> None:
        point("controller_before_answer")
        self.finish(connection, lambda: connection.succeed(result))
        point("controller_after_answer")

    def _answer(self, connection: Connection, find: Callable[[float], Any]) -> None:
        def act() -> None:
            if connection.is_closed:
                return  # it asks and does not read: nobody would hear the answer
            result = find(time.time())
            self.finish(connection, lambda: connection.succeed(result))

        self._attempt(connection, act)

    def _attempt(self, connection: Connection, act: Effect) -> None:
        """A request that only looks: whatever goes wrong with it concerns nobody else."""
        try:
            act()
        except FgschedError as error:
            self.finish(connection, partial(connection.fail, error))
        except Exception as error:
            log.exception("a request could not be answered")
            self.finish(connection, partial(connection.fail, OurFault(f"{type(error).__name__}: {error}")))

    def finish(self, connection: Connection, send: Effect) -> None:
        """Send an answer and mind what it did to the connection."""
        if not connection.is_closed:
            descriptor = connection.fileno()
            send()
            self._mind(connection, descriptor)

    # -- the spawner ----------------------------------------------------------------------------

    def _hear_spawner(self) -> None:
        answers = self._spawner.read()
        if answers is None:
            self.stopping = "the spawner is gone"
            return
        self._events.extend(self._event(answer) for answer in answers)

    def _event(self, answer: Answer) -> Event:
        if answer.is_over or answer.errno in {EEXIST, ESRCH} or (answer.pid and not answer.start):
            return Died(answer.job, answer.attempt)  # claim and result tell what became of it
        if answer.errno:
            return Failed(answer.job, answer.attempt, f"could not be launched: {os.strerror(answer.errno)}")
        return Forked(answer.job, answer.attempt, Shepherd(answer.pid, answer.start, self._boot))

    def _mind_spawner(self) -> None:
        key = self.selector.get_key(self._spawner)
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._spawner.wants_to_write else 0)
        if key.events != wanted:
            self.selector.modify(self._spawner, wanted, key.data)

    def failed(self, job: Job, why: str) -> None:
        """An attempt could not even be sent to the spawner."""
        self._events.append(Failed(job.id, job.attempt, why))
