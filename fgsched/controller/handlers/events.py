"""Keep the latest events for readers, and answer readers: at once if there are any, else at the next event.

Without readers, nothing is kept.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import Decision, DecisionLog, change_of
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers.registration import serves_apart
from fgsched.domain.job import Job
from fgsched.domain.states import JobState
from fgsched.protocol import EventBatch, StreamedEvent
from fgsched.server import ClientConnection

MOST = 10_000  # events in memory
_PAGE = 1000  # events of one answer
IDLE = 120.0  # seconds without a reader after which no events are kept


class EventRing:
    """The latest events. All readers share it, so a slow one costs nothing and learns what it lost."""

    def __init__(self, name: str) -> None:
        """`name` distinguishes the cursors of this controller from those of others."""
        self._name = name
        self._last = 0  # number of the last event
        self._events: deque[StreamedEvent] = deque(maxlen=MOST)

    def add(self, decisions: Iterable[Decision], now: float) -> None:
        """Add the events of a committed turn. `now`: seconds since the epoch."""
        for decision in decisions:
            if about := event_of(decision):
                self._last += 1
                self._events.append(StreamedEvent(seq=self._last, at=now, **about))

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self._last

    def cursor(self) -> str:
        """Return the cursor behind the last event."""
        return f"{self._name}.{self._last}"

    def after(self, cursor: str, uid: int | None) -> EventBatch:
        """Return the events after a cursor that the user may see.

        Args:
            uid: only events of this user's jobs, and of GPUs without their notes; None: all.
        """
        cursor_seq, lost_count = self._place(cursor)
        first = self._events[0].seq if self._events else self._last + 1
        if lost_count is not None and cursor_seq + 1 < first:
            lost_count, cursor_seq = first - 1 - cursor_seq, first - 1
        skipped = max(0, cursor_seq + 1 - first)
        page = self._page(skipped)
        end = page[-1].seq if page else max(cursor_seq, self._last)
        visible = [shown for event in page if (shown := _shown(event, uid))]
        return EventBatch(events=visible, cursor=f"{self._name}.{end}", lost=lost_count)

    def _page(self, skipped: int) -> list[StreamedEvent]:
        """Return a page of events; the last ones, for which most readers wait, are found from the end."""
        page = len(self._events) - skipped
        if page > _PAGE:
            return list(islice(self._events, skipped, skipped + _PAGE))
        return list(islice(reversed(self._events), max(0, page)))[::-1]

    def _place(self, cursor: str) -> tuple[int, int | None]:
        """Return (number of the last seen event, 0), or (0, None) for a cursor of another controller."""
        name, _, number = cursor.rpartition(".")
        if name != self._name or not number.isdecimal() or len(number) > 18:
            return 0, None
        return min(int(number), self._last), 0


def _shown(event: StreamedEvent, uid: int | None) -> StreamedEvent | None:
    if uid is None or event.uid == uid:
        return event
    if event.job:
        return None
    return StreamedEvent(event=event.event, seq=event.seq, at=event.at, gpus=event.gpus, state=event.state)


def event_of(decision: Decision) -> dict[str, Any]:
    """Return the fields of the event that a decision makes; {} if it makes none."""
    subject, detail, by = decision
    if isinstance(subject, str):
        return _of_site(subject, detail, by) if isinstance(detail, Mapping) else {}
    if isinstance(detail, int):
        return {"event": "submitted", "count": detail if detail > 1 else 0} | _of_job(subject, by)
    name = _name(subject, detail) if isinstance(detail, Job) else ""
    return {"event": name} | _of_job(detail, by) | _end(detail) if name and isinstance(detail, Job) else {}


def _of_site(name: str, values: Mapping[str, object], by: str) -> dict[str, Any]:
    if name != "gpu":
        return {"event": name, "by": by}
    state = str(values["state"])
    names = {"ok": "gpu-resumed", "drained": "gpu-drained"}
    about = {"event": names.get(state, f"gpu-{state}"), "gpus": (values["gpu"],), "state": state, "by": by}
    return about | {"note": str(values.get("why") or "")}


def _of_job(job: Job, by: str) -> dict[str, Any]:
    return {
        "job": job.id,
        "array": job.array,
        "task": job.task,
        "attempt": job.attempt,
        "user": job.user,
        "uid": job.uid,
        "state": job.state.value,
        "reason": job.reason.value,
        "partition": job.partition or job.request.partition,
        "gpus": tuple(hold.gpu for hold in job.holds),
        "share": job.holds[0].share if job.holds else 0,
        "by": by,
    }


def _end(job: Job) -> dict[str, Any]:
    if job.ended is None or not (job.state.is_final or job.state is JobState.COMPLETING):
        return {}
    return {"exit_code": job.ended.exit_code, "signal": job.ended.signal}


_NAMES = {
    JobState.PENDING: "requeued",
    JobState.STARTING: "started",
    JobState.RUNNING: "",  # it was started
    JobState.SUSPENDED: "suspended",
    JobState.COMPLETING: "completing",
}


_CHANGES = {  # without a change of state
    "hold": "held",
    "release": "released",
    "cancel": "cancelling",
    "preempt": "preempted",
    "requeue": "requeuing",
    "condemn": "condemned",
    "warn": "warned",
}


def _name(before: Job, after: Job) -> str:
    """Return the name of the event; "" if the change is none."""
    if before.state is JobState.SUSPENDED and after.state is JobState.RUNNING:
        return "resumed"
    if after.state is not before.state:
        return _NAMES.get(after.state, "ended")
    return _CHANGES.get(change_of(before, after), "")


_PATIENCE = 10.0  # seconds after which a reader gets an empty answer


# -- readers -------------------------------------------------------------------


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
        self._last_examined = 0  # number of the last event that was looked at
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
        if self._log.feed is None or (self._ring.last == self._last_examined and self._clock() < self._due):
            return
        self._last_examined = self._ring.last
        served = [self._serve(reader) for reader in self._waiting]
        self._waiting = [reader for reader in served if reader is not None]
        if not self._waiting and self._clock() - self._asked_at >= IDLE:
            self._log.feed = None
            self._ring, self._last_examined = (
                _new_ring(),
                0,
            )  # a later reader lost an unknown number of events

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
