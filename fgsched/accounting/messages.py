"""The messages between controller and accountant, one JSON object a line, and the controller's end."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import MsgspecError, Struct

from fgsched.accounting.records import (
    Gap,
    GpuRecord,
    HealthEvent,
    JobAccount,
    JobSample,
    Minute,
    Warned,
    to_json,
)
from fgsched.system.helper import Helper

Sample = GpuRecord | JobSample | Minute | HealthEvent | Warned | Gap
FIELD_OF: dict[type[Struct], str] = {
    JobAccount: "jobs",
    GpuRecord: "gpus",
    JobSample: "samples",
    Minute: "minutes",
    HealthEvent: "health",
    Warned: "warned",
    Gap: "gaps",
}


class RecordBatch(Struct, frozen=True, kw_only=True, tag="batch"):
    """Records for one transaction."""

    number: int
    jobs: tuple[JobAccount, ...] = ()
    gpus: tuple[GpuRecord, ...] = ()
    samples: tuple[JobSample, ...] = ()
    minutes: tuple[Minute, ...] = ()
    health: tuple[HealthEvent, ...] = ()
    warned: tuple[Warned, ...] = ()
    gaps: tuple[Gap, ...] = ()


class Unparsed(NamedTuple):
    """A record of a batch that cannot be parsed."""

    text: str
    why: str
    job: int = 0  # the id, if it is an ended job


class _UnparsedBatch(Struct, frozen=True, kw_only=True, tag="batch"):
    """A batch whose records are not parsed."""

    number: int
    jobs: tuple[msgspec.Raw, ...] = ()
    gpus: tuple[msgspec.Raw, ...] = ()
    samples: tuple[msgspec.Raw, ...] = ()
    minutes: tuple[msgspec.Raw, ...] = ()
    health: tuple[msgspec.Raw, ...] = ()
    warned: tuple[msgspec.Raw, ...] = ()
    gaps: tuple[msgspec.Raw, ...] = ()


class _Id(Struct, frozen=True):
    id: int


class _Job(Struct, frozen=True):
    row: _Id


class Keep(Struct, frozen=True, kw_only=True, tag="keep"):
    """How long samples are kept, in seconds; FOREVER: no limit."""

    number: int = 0
    minutes: int
    hours: int
    days: int


class Backup(Struct, frozen=True, kw_only=True, tag="backup"):
    """Copy the queue and the accounts into a file."""

    number: int
    queue: str  # path of the queue, whose file does not change until the answer
    file: str


class Archive(Struct, frozen=True, kw_only=True, tag="archive"):
    """Move old records to another file."""

    number: int
    before: int  # epoch seconds
    file: str


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a message."""

    number: int
    error: str = ""  # why nothing of it was stored
    remedy: str = ""
    refused: tuple[int, ...] = ()  # jobs that cannot be stored
    size: int = 0  # of the file, in bytes
    exit: int = 0  # of an order that failed: the exit code of its command
    done: int = 0  # by an order: bytes of a backup, jobs of an archive


Order = Backup | Archive
Message = RecordBatch | Keep | Backup | Archive
UNREADABLE = -1  # number of the answer to a message that cannot be parsed
_encoder = msgspec.json.Encoder()
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_answers = msgspec.json.Decoder(Answer)


def encoded(record: Struct) -> msgspec.Raw:
    """Encode one record for a batch."""
    return msgspec.Raw(to_json(record))


def batch_line(number: int, records: Iterable[tuple[type[Struct], msgspec.Raw]]) -> bytes:
    """Return the line of a batch of encoded records."""
    fields: dict[str, list[msgspec.Raw]] = {}
    for kind, record in records:
        fields.setdefault(FIELD_OF[kind], []).append(record)
    return _encoder.encode({"type": "batch", "number": number, **fields}) + b"\n"


def line(message: Message | Answer) -> bytes:
    """Return a message or an answer as a line."""
    return _encoder.encode(message) + b"\n"


def parse_message(text: bytes) -> Message:
    """Return the message of a line. Raises msgspec.MsgspecError."""
    return _messages.decode(text)


def parse_batch(text: bytes) -> tuple[RecordBatch, list[Unparsed]]:
    """Return the batch of a line without the records that cannot be parsed, and these records.

    Raises:
        msgspec.MsgspecError: the line is no batch.
    """
    raw, fields, faulty = (
        msgspec.json.decode(text, type=_UnparsedBatch),
        dict[str, tuple[Any, ...]](),
        list[Unparsed](),
    )
    for kind, field in FIELD_OF.items():
        records = []
        for record in getattr(raw, field):
            try:
                records.append(msgspec.json.decode(record, type=kind))
            except msgspec.MsgspecError as error:
                job = msgspec.json.decode(record, type=_Job).row.id if kind is JobAccount else 0
                faulty.append(Unparsed(bytes(record).decode(errors="replace"), f"{field}: {error}", job))
        fields[field] = tuple(records)
    return RecordBatch(number=raw.number, **fields), faulty


def parse_answer(text: bytes) -> Answer:
    """Return the answer of a line. Raises msgspec.MsgspecError."""
    return _answers.decode(text)


log = logging.getLogger(__name__)


class AccountantProcess(Helper):
    """The accountant. Its owner paces its starts, and repeats records that have no acknowledgement."""

    def __init__(self, path: Path, keep: Keep) -> None:
        """Create it without a process, for the accounts at `path`."""
        super().__init__("fgsched.accounting.accountant", patience=10.0)
        self._path = path
        self.keep = keep

    def start(self) -> None:
        """Start the process, or another one after it has ended.

        Raises:
            OSError: the process cannot be started.
        """
        keep = [str(seconds) for seconds in (self.keep.minutes, self.keep.hours, self.keep.days)]
        self.launch(str(self._path), *keep, now=time.monotonic())

    def receive(self) -> list[Answer]:
        """Return the answers that have arrived; never blocks."""
        answers = []
        for text in self.lines():
            try:
                answers.append(parse_answer(text))
            except MsgspecError as error:
                log.error("an answer of the accountant cannot be read: %s", error)
        return answers
