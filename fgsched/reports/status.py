"""The present state of the host as data, for the wall page and for metrics, and the sums of the accounts.

Times are in seconds, sizes in bytes, shares from 0 to 1 of one GPU.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.periods import Period
from fgsched.accounting.records import Card, Owner
from fgsched.reports.facts import Facts, ReportReader
from fgsched.reports.model import CLASSES, TimeClass

Record = TypeVar("Record", bound=Struct)
_RECENT = 300  # seconds: the maximum age of the minute that gives the present class of a job
_EVER = Period(since=0.0, until=1e11, noun="period", closed=True)


class GpuPart(Struct, frozen=True, kw_only=True):
    """The part of a GPU that one job has."""

    job: int
    user: str
    name: str
    share: float  # charged, from 0 to 1 of the GPU
    kind: TimeClass  # in the last minute
    left: float | None = None  # seconds until its time limit; None: it has none


class GpuNow(Struct, frozen=True, kw_only=True):
    """One GPU now. None: not measured."""

    gpu: int  # index
    uuid: str
    model: str
    total: int
    shares: tuple[GpuPart, ...] = ()
    down: str = ""  # why it takes no jobs; "": it takes jobs
    used: int = 0  # by jobs
    external: int = 0  # by processes outside of jobs
    sm: int | None = None  # per cent
    temperature: int | None = None  # degrees Celsius
    power: float | None = None  # watts

    @property
    def scaled(self) -> tuple[GpuPart, ...]:
        """The shares, reduced in proportion if their sum exceeds the GPU, as the accounts do."""
        whole = max(1.0, sum(one.share for one in self.shares))
        return tuple(replace(one, share=one.share / whole) for one in self.shares)

    def classes(self) -> dict[TimeClass, float]:
        """Return the parts of the GPU by time class; they add up to 1."""
        parts = dict.fromkeys(CLASSES, 0.0)
        for one in self.scaled:
            parts[one.kind] += one.share
        rest = max(0.0, 1.0 - sum(parts.values()))
        if self.down:
            parts["down"] = rest
        else:
            parts["external"] = min(rest, self.external / self.total if self.total else 0.0)
            parts["free"] = rest - parts["external"]
        return parts


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A pending job and its expected start."""

    user: str
    asked: str  # such as "0.5 GPU"
    start: float | None = None  # epoch seconds; None: unknown
    is_earliest: bool = False  # it does not start before `start`; else not after it


class Status(Struct, frozen=True, kw_only=True):
    """The host at one time."""

    at: float  # epoch seconds
    host: str
    trouble: str = ""  # why the controller did not answer; "": it did
    gpus: tuple[GpuNow, ...] = ()
    jobs: dict[str, int] = {}  # number by state and partition: "RUNNING/gpu"
    running: int = 0
    waiting: int = 0
    next: tuple[WaitingJob, ...] = ()  # pending jobs, the next to start first
    startable: int = 0  # pending jobs that are neither held nor dependent

    @property
    def charged(self) -> float:
        """The number of charged GPUs."""
        return sum(one.share for gpu in self.gpus for one in gpu.scaled)

    def classes(self) -> dict[TimeClass, float]:
        """Return the number of GPUs by time class."""
        found = [gpu.classes() for gpu in self.gpus]
        return {name: sum(parts[name] for parts in found) for name in CLASSES}


class CardSum(Struct, frozen=True, kw_only=True):
    """The use of a GPU since the accounts were made, in seconds."""

    card: str  # UUID
    active: float
    held: float
    empty: float
    free: float
    external: float
    down: float
    used: float
    energy: float | None  # joules


class OwnerSum(Struct, frozen=True, kw_only=True):
    """The use of a GPU by the jobs of an owner since the accounts were made, in GPU seconds."""

    owner: Owner
    card: str  # UUID
    active: float
    held: float
    empty: float
    used: float


class EndedJobs(Struct, frozen=True, kw_only=True):
    """How many jobs of an owner ended in one state since the accounts were made."""

    owner: Owner
    state: str
    jobs: int


class AccountTotals(Struct, frozen=True, kw_only=True):
    """The sums of the accounts since they were made. None falls: archives and old days are in them."""

    cards: list[Card]
    totals: list[CardSum]
    owners: list[OwnerSum]
    jobs: list[EndedJobs]


def sums(reader: ReportReader) -> AccountTotals:
    """Return the sums of the accounts."""
    since = next(reader.ask("counted_since"))["at"]
    facts = Facts(reader, _EVER)
    return AccountTotals(
        cards=facts.cards,
        totals=reader.records(CardSum, "counted_cards", since=since),
        owners=_owned(facts, OwnerSum, "counted_owners", since=since),
        jobs=_owned(facts, EndedJobs, "counted_jobs"),
    )


def _owned(facts: Facts, kind: type[Record], statement: str, **values: float) -> list[Record]:
    """Return the answer to a question as records, with the owners instead of their numbers."""
    rows = facts.reader.ask(statement, **values)
    return [
        msgspec.convert({**dict(row), "owner": facts.owners[row["owner"]]}, kind, strict=False)
        for row in rows
    ]


def kinds_of(reader: ReportReader, now: float) -> dict[tuple[int, str], TimeClass]:
    """Return the largest class of each job on each GPU (UUID) in the last sampled minute.

    `now` is in epoch seconds. A minute that began more than five minutes ago does not count.
    """
    found: dict[tuple[int, str], TimeClass] = {}
    for row in reader.ask("last_minute", since=now - _RECENT):
        found[row["job"], row["card"]] = _largest((row["active"], row["held"], row["empty"]))
    return found


def _largest(seconds: Iterable[float]) -> TimeClass:
    parts = list(seconds)
    return CLASSES[parts.index(max(parts))]
