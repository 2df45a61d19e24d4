"""Answer readers of events: at once if there are any, else when the next one happens."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import DecisionLog
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.events import IDLE, EventRing
from fgsched.controller.handlers.registration import serves_apart
from fgsched.server import ClientConnection

_PATIENCE = 10.0  # seconds after which a reader gets an empty answer


class _Subscriber(NamedTuple):
    """A reader that waits for an event."""

    connection: ClientConnection
    cursor: str
    uid: int | None  # the user whose jobs it may see; None: all
    until: float  # monotonic seconds


class EventReaders:
    """The readers that wait. Each asks again after its answer, so none has a queue in the controller."""

    def __init__(
        self, log: DecisionLog, loop: EventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._loop, self._clock = log, loop, clock
        self._ring = _new_ring()
        self._waiting: list[_Subscriber] = []
        self._looked = 0  # number of the last event that was looked at
        self._asked_at = 0.0  # when the last reader asked

    @serves_apart(protocol.Events)
    def ask(self, connection: ClientConnection, caller: Caller, call: protocol.Events) -> None:
        """Answer a reader now or later. Raises Busy if the user waits on too many connections."""
        self._loop.refuse_to_wait(connection)
        self._asked_at = self._clock()
        if self._log.feed is None:
            self._log.feed = self._ring.add
        uid = caller.uid if caller.is_confined else None
        connection.is_waiting = True
        cursor = call.after or self._ring.cursor()
        if not call.after:  # it learns at once where it begins
            self._answer(connection, protocol.EventBatch(events=[], cursor=cursor))
        elif reader := self._serve(_Subscriber(connection, cursor, uid, self._asked_at + _PATIENCE)):
            self._waiting.append(reader)

    @property
    def due(self) -> float | None:
        """The seconds until `look` is due; None: it is not."""
        return None if self._log.feed is None else max(0.0, self._due - self._clock())

    @property
    def _due(self) -> float:
        return min((reader.until for reader in self._waiting), default=self._asked_at + IDLE)

    def look(self) -> None:
        """Answer readers that have events or waited long; keep no events once there are no readers."""
        if self._log.feed is None or (self._ring.last == self._looked and self._clock() < self._due):
            return
        self._looked = self._ring.last
        served = [self._serve(reader) for reader in self._waiting]
        self._waiting = [reader for reader in served if reader is not None]
        if not self._waiting and self._clock() - self._asked_at >= IDLE:
            self._log.feed = None
            self._ring, self._looked = _new_ring(), 0  # a later reader lost an unknown number of events

    def _serve(self, reader: _Subscriber) -> _Subscriber | None:
        """Answer a reader; return the reader if it must wait, None if it needs nothing more."""
        if reader.connection.is_closed:
            return None
        batch = self._ring.after(reader.cursor, reader.uid)
        if not batch.events and batch.lost == 0 and self._clock() < reader.until:
            return reader._replace(cursor=batch.cursor)
        self._answer(reader.connection, batch)
        return None

    def _answer(self, connection: ClientConnection, batch: protocol.EventBatch) -> None:
        connection.is_waiting = False
        self._loop.finish(connection, partial(connection.succeed, batch))


def _new_ring() -> EventRing:
    return EventRing(os.urandom(4).hex())
