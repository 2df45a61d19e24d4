"""Read the events of a controller: batches that survive its restart, and their lines."""

import time
from collections.abc import Callable, Iterator

from msgspec.structs import asdict

from fgsched import codec
from fgsched.client import Client
from fgsched.domain.errors import Unreachable
from fgsched.domain.text import shown
from fgsched.domain.times import format_time
from fgsched.protocol import EventBatch, Events, StreamedEvent

VERSION = 1  # of the JSON objects
BEGUN = codec.encode({"version": VERSION, "event": "subscribed"}).decode()  # the first line of a reader
_PATIENCE = 60.0  # seconds for an answer; a waiting reader gets an empty one after 10
_ABSENCE = 60.0  # seconds that the controller may be away, as for a restart
_PAUSE = 0.5  # seconds between two tries
_OMITTED = ("seq", "at", "event")  # printed in another form


def follow(client: Client, cursor: str, sleep: Callable[[float], None] = time.sleep) -> Iterator[EventBatch]:
    """Yield batches of events from a cursor on; "": from now on. A restart of the controller is survived.

    Raises: Unreachable if there is no controller for a minute.
    """
    absent = 0.0
    while True:
        try:
            batch = client.call(Events(after=cursor), patience=_PATIENCE)
        except Unreachable:
            absent += _PAUSE
            if not cursor or absent > _ABSENCE:
                raise
            client.__exit__()
            sleep(_PAUSE)
            continue
        absent, cursor = 0.0, batch.cursor
        yield batch


def lines_of(batch: EventBatch, *, as_json: bool) -> Iterator[str]:
    """Yield a line for each event, after one that says how many events were lost."""
    if batch.lost != 0:
        loss = {"version": VERSION, "event": "lost", "count": batch.lost}
        yield (
            codec.encode(loss).decode() if as_json else f"lost {batch.lost or 'an unknown number of'} events"
        )
    for event in batch.events:
        yield document_of(event) if as_json else text_of(event)


def document_of(event: StreamedEvent) -> str:
    """Return an event as a JSON object in one line; fields with their default are left out."""
    return codec.encode({"version": VERSION} | _present(event)).decode()


def text_of(event: StreamedEvent) -> str:
    """Return an event as one line for a person."""
    values = {name: value for name, value in _present(event).items() if name not in _OMITTED}
    words = [f"{name}={shown(_plain(value))}" for name, value in values.items()]
    return " ".join([format_time(event.at), event.event, *words])


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _present(event: StreamedEvent) -> dict[str, object]:
    """Return the fields that have a value."""
    return {name: value for name, value in asdict(event).items() if value not in _EMPTY[name]}


_MAY_BE_0 = ("uid", "task", "exit_code", "signal")
_EMPTY: dict[str, tuple[object, ...]] = {
    name: ("", None, ()) if name in _MAY_BE_0 else ("", None, (), 0)
    for name in StreamedEvent.__struct_fields__
}
