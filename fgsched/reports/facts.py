"""Query the accounts for reports: sums that SQL makes, and rows of few columns."""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Annotated, TypeVar, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.ledger import LedgerReader, kept_field
from fgsched.accounting.periods import Period
from fgsched.accounting.records import DRIVER, ForeignUse, Gap, GpuRecord, HealthEvent, Owner
from fgsched.domain.errors import StorageError
from fgsched.domain.job import is_instance
from fgsched.domain.states import JobState
from fgsched.domain.times import DAY, HOUR, MINUTE
from fgsched.reports.ended import (
    MOST_NAMES,
    Ending,
    Named,
    Repeated,
    endings,
    most_charged,
    named,
    waits,
)
from fgsched.reports.grouping import Grouping, Numbers, group, ordered
from fgsched.store import schema

_ADJOINING = 1.0  # seconds between two times of a process that are one
_ENDLESS = 120.0  # seconds at an end of a period without samples that are a gap
_ROUNDED = 0.001  # GPU seconds that remain where sums are rounded
_FAILED = tuple(state.word for state in JobState if state.is_failure)
_LONG = 60 * DAY  # seconds of a period: the least for which days are summed instead of hours
_MOST_STEPS = 200  # slots of a GPU's row
Record = TypeVar("Record", bound=Struct)

# -- answers ---------------------------------------------------------------------------------------------
# reports.sql has the name of a record in braces in the place of its columns. A field is the column of its
# name, or the expression of its type, in which {} is the name.

Sum = Annotated[float, "sum({})"]
Highest = Annotated[int, "max({})"]
OfUsage = Annotated[float | None, "json_extract(detail, '$.usage.{}')"]
OfDetail = Annotated[int | None, "json_extract(detail, '$.{}')"]
GpuUuid = Annotated[str, "card.uuid"]
JobId = Annotated[int, "job.id"]
Wait = Annotated[float | None, "started_at - eligible_at"]
Count = Annotated[int, "count(*)"]
_HAS_FAILED = f"state IN {_FAILED}"
_GPU_TYPE = "coalesce(json_extract(nullif(kept_field(kept, 'request'), ''), '$.demand.gpu_type'), '')"


def _of_memory(of_gpu: str, of_host: str) -> str:
    """Return a column of jobs that ran out of GPU memory, or a field of `detail` for host memory."""
    return f"CASE oom WHEN 'gpu' THEN {of_gpu} ELSE coalesce(json_extract(detail, '$.{of_host}'), 0) END"


class GpuTotals(Struct, frozen=True, kw_only=True):
    """The use of a GPU in a period; times in GPU seconds."""

    uuid: GpuUuid
    sampled: Sum
    active: Sum
    held: Sum
    empty: Sum
    free: Sum
    external: Sum
    down: Sum
    packed: Sum
    used: Sum
    memory: Sum  # byte-seconds
    peak: Highest  # bytes
    temperature: Annotated[int | None, "max({})"]
    energy: Annotated[float | None, "sum({})"]  # joules
    throttled: Sum  # seconds

    @property
    def charged(self) -> float:
        return self.active + self.held + self.empty

    @property
    def classes(self) -> tuple[float, ...]:
        """Return the GPU seconds of the six time classes, in the order of model.CLASSES."""
        return self.active, self.held, self.empty, self.free, self.external, self.down


class GpuSlot(Struct, frozen=True, kw_only=True):
    """The use of a GPU in one slot of a period, in GPU seconds."""

    uuid: GpuUuid
    slot: Annotated[int, "CAST((at + :slack - :since) / :step AS INTEGER)"]
    sampled: Sum
    active: Sum
    held: Sum
    empty: Sum
    external: Sum
    down: Sum


class ChargedSpan(Struct, frozen=True):
    """The charge of all GPUs in one hour or day, in GPU seconds."""

    at: int
    charged: Annotated[float, "sum(active + held + empty)"]
    sampled: Sum
    down: Sum


class OwnerGpuTotals(Struct, frozen=True, kw_only=True):
    """The use of a GPU by the jobs of an owner in a period, in GPU seconds."""

    owner: Annotated[Owner, "owner_use.owner"]
    uuid: GpuUuid
    charged: Sum
    active: Sum
    held: Sum
    empty: Sum
    used: Sum
    memory: Sum  # byte-seconds


class JobTotals(Struct, frozen=True, kw_only=True):
    """The number and the charge of an owner's jobs that ended in one state."""

    owner: Owner
    model: str
    state: str
    oom: str
    jobs: int
    charged: float  # GPU seconds

    @property
    def has_failed(self) -> bool:
        return self.state in _FAILED


class UnusedMemory(Struct, frozen=True):
    """Memory that jobs of an owner requested above their peaks."""

    owner: Owner
    model: str
    seconds: float  # byte-seconds


class WaitGroup(Struct, frozen=True):
    """The waits of jobs of one owner, model and size that ended in one way."""

    owner: Owner
    model: str
    gpus: int
    share: int  # ten-thousandths of each GPU
    waits: Numbers  # seconds


class Example(Struct, frozen=True, kw_only=True):
    """The use of one job. Times in seconds; None: not measured."""

    elapsed: Annotated[float, "ended_at - started_at"]
    state: str
    sampled: OfUsage
    charged: float  # GPU seconds
    used: float | None  # GPU seconds
    peak: Annotated[int, "gpu_peak"]  # bytes
    cpus: OfDetail
    cpu_seconds: Annotated[float | None, "json_extract(detail, '$.{}')"]
    empty: OfUsage  # GPU seconds
    held: OfUsage  # GPU seconds
    first_process: OfUsage
    busy: OfUsage
    with_process: OfUsage
    longest_idle: OfUsage


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job that ended, by its names. The pending tasks of an array are in no report."""

    id: JobId
    array: int  # id of its array; 0: none
    task: int | None  # index in the array
    user: str
    name: str

    @property
    def tasks(self) -> None:
        return None


class MemoryRefusal(EndedJob, frozen=True, kw_only=True):
    """A job that reached its limit of GPU memory, or of host memory."""

    ended_at: float
    memory: Annotated[int, _of_memory("memory", "host_memory")]  # bytes of each GPU, or of the host
    peak: Annotated[int, _of_memory("gpu_peak", "max_rss")]  # bytes; of the host: of the largest process
    refused: OfDetail  # bytes of the largest refused allocation; None: not recorded


class ForeignRun(Struct, frozen=True, kw_only=True):
    """A time in which a process outside of jobs was seen on a GPU without an interruption."""

    uuid: str  # of the GPU
    user: str
    command: str
    pid: int  # 0: several processes
    since: float  # epoch seconds
    until: float  # epoch seconds
    seconds: float  # of all its processes
    memory: float  # byte-seconds
    peak: int  # bytes


class WarnedJobs(Struct, frozen=True):
    """The warnings of a policy about the jobs of one name."""

    user: str
    name: str
    warnings: Count
    last: Annotated[float, "max(warned.at)"]  # epoch seconds


class TopJob(EndedJob, frozen=True, kw_only=True):
    """One of the largest jobs of a period. Times in seconds."""

    state: str
    charged: float  # GPU seconds
    idle: float | None  # GPU seconds; None: not measured
    wait: Wait  # None: it never started
    ended_at: float  # epoch seconds


class FailedJob(EndedJob, frozen=True, kw_only=True):
    """A job that failed."""

    uid: int
    state: str
    oom: str
    ended_at: float  # epoch seconds
    exit_code: OfDetail
    signal: OfDetail
    output: Annotated[str | None, "NULL"]  # `failed_jobs` looks it up


class FailuresOfName(Struct, frozen=True, kw_only=True):
    """Jobs of one user and name; several of them failed."""

    user: str
    name: str
    jobs: Count
    failed: Annotated[int, f"total({_HAS_FAILED})"]
    charged: Annotated[float, f"total(charged * ({_HAS_FAILED}))"]  # GPU seconds of the failed jobs


class Slowdowns(Struct, frozen=True):
    """The slowdowns of the jobs of one size: wait and run time, divided by run time (at least 10 minutes)."""

    gpus: int
    share: int  # ten-thousandths of each GPU
    factors: Numbers


class DemandTotals(Struct, frozen=True, kw_only=True):
    """The demand of pending jobs in a period, by resource."""

    reason: str
    lacking: str
    model: str
    seconds: Sum  # in which at least one job waited for this
    job_seconds: Sum
    gpu_seconds: Sum
    most: Highest


class NamedJobs(Struct, frozen=True, kw_only=True):
    """Jobs of one user with one name."""

    user: str
    name: str
    jobs: Count
    charged: Sum  # GPU seconds


class PastRun(Struct, frozen=True, kw_only=True):
    """A job that ran, for a replay."""

    id: int
    user: str
    eligible_at: float
    started_at: float
    ended_at: float
    gpus: int
    share: int  # ten-thousandths of each GPU
    memory: int  # bytes of each GPU
    time_limit: int  # seconds; 0: none
    gpu_type: Annotated[str, _GPU_TYPE]  # that it requested; "": any


def _columns(kind: type[Struct]) -> str:
    """Return the columns of a record, as in a SELECT."""
    columns = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        expressions = getattr(hint, "__metadata__", ())
        columns.append(f"{expressions[0].replace('{}', name)} AS {name}" if expressions else name)
    return ", ".join(columns)


def _statements() -> dict[str, str]:
    """Return the statements of reports.sql, with their columns."""
    kinds: tuple[type[Struct], ...] = (
        GpuTotals,
        GpuSlot,
        ChargedSpan,
        OwnerGpuTotals,
        Example,
        MemoryRefusal,
    )
    kinds += (WarnedJobs, TopJob, FailedJob, FailuresOfName, DemandTotals, NamedJobs, PastRun)
    parts = {kind.__name__: _columns(kind) for kind in kinds} | {"has_failed": _HAS_FAILED}
    text = Path(__file__).with_name("reports.sql").read_text()
    return schema.named(re.sub(r"\{(\w+)\}", lambda part: parts[part[1]], text))


class ReportReader(LedgerReader):
    """A reader of the accounts that has the queries of reports."""

    statements: Mapping[str, str] = {**LedgerReader.statements, **_statements()}

    def __init__(self, path: Path | str, timeout: float = 5.0) -> None:
        """Open the file at `path`; `timeout`: seconds to wait for a file that is being recovered."""
        super().__init__(path, timeout)
        self._db.execute("PRAGMA cache_size = -1000")  # sorts that fit the CPU's cache take 10 % less time
        self._db.create_function("kept_field", 2, kept_field, deterministic=True)

    def ask(self, statement: str, **values: float | str) -> Iterator[sqlite3.Row]:
        """Yield the rows of an answer."""
        return self._ask(statement, **values)

    def group(self, statement: str, *groupings: Grouping, **values: float | str) -> None:
        """Add the rows of an answer, of which there may be very many, to groupings. Raises StorageError."""
        cursor = self._db.cursor()
        cursor.row_factory = None  # plain tuples
        try:
            group(cursor.execute(self.statements[statement], values), *groupings)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StorageError(f"the accounts {self.path}: {error}", "Check the file.") from error

    def records(self, kind: type[Record], statement: str, **values: float | str) -> list[Record]:
        """Return the answer to a question as records."""
        return [msgspec.convert(dict(row), kind, strict=False) for row in self.ask(statement, **values)]


def _is_repeated(event: HealthEvent, states: dict[str, str]) -> bool:
    """Return whether a controller only recorded at its start a state that was known; note the state."""
    if event.kind != "state":
        return False
    before = states.get(event.uuid, "ok")
    states[event.uuid] = event.detail
    return before == event.detail


def _runs(parts: Iterable[ForeignUse]) -> Iterator[ForeignRun]:
    """Join the parts of a process that adjoin; `parts` are ordered by process and time."""
    run: ForeignRun | None = None
    for part in parts:
        fields = {name: getattr(part, name) for name in ForeignRun.__struct_fields__}
        if run and _process(run) == _process(part) and part.since <= run.until + _ADJOINING:
            sums = {name: getattr(run, name) + getattr(part, name) for name in ("seconds", "memory")}
            latest = {name: max(getattr(run, name), getattr(part, name)) for name in ("until", "peak")}
            run = replace(run, **sums, **latest)
            continue
        if run:
            yield run
        run = ForeignRun(**fields)
    if run:
        yield run


def _process(part: ForeignRun | ForeignUse) -> tuple[str, str, str, int]:
    return part.uuid, part.user, part.command, part.pid


class Facts:
    """The contents of the accounts about a period. Each query runs when its result is first used."""

    most_names = MOST_NAMES  # groups of jobs by name in memory; beyond, SQLite makes them

    def __init__(self, reader: ReportReader, period: Period, *, host: str = "", user: str = "") -> None:
        """Query `reader` about `period`; `user` restricts the facts to jobs of one user."""
        self.reader, self.period, self.host, self.user = reader, period, host, user
        self._bounds = {"since": period.since, "until": period.until}
        self._of_user: dict[str, float | str] = {**self._bounds, "user": user}
        self._examples: dict[tuple[int, str, int, int], list[Example]] = {}

    @cached_property
    def before(self) -> "Facts":
        """Return the facts of the period to compare with."""
        return Facts(self.reader, self.period.before(), host=self.host, user=self.user)

    @cached_property
    def is_known(self) -> bool:
        """Tell whether the accounts have samples or jobs of the period."""
        return bool(self.totals or self.jobs)

    @cached_property
    def span(self) -> int:
        """Return the span of the samples in seconds: an hour, or a day if its hours were deleted."""
        hour = next((row[0] for row in self.reader.ask("first_hour")), self.period.until)
        if hour <= self.period.since:
            return HOUR
        days = self.reader.records(ChargedSpan, "charged_by_span", span=DAY, **self._bounds)
        return DAY if any(day.at <= hour - DAY for day in days) else HOUR

    @cached_property
    def sum_span(self) -> int:
        """Return the span for sums in seconds: a day for a long period of whole days, to read fewer rows."""
        since, until = self.period.since, self.period.until
        if self.span == DAY or until - since < _LONG or not self.period.is_of_whole_days:
            return self.span
        last = self.reader.records(
            ChargedSpan, "charged_by_span", span=DAY, since=until - 26 * HOUR, until=until
        )
        return DAY if last else self.span

    @cached_property
    def gpus(self) -> list[GpuRecord]:
        return self.reader.gpus(self.period.since, self.period.until)

    @cached_property
    def totals(self) -> list[GpuTotals]:
        return self.reader.records(GpuTotals, "card_totals", span=self.sum_span, **self._bounds)

    @cached_property
    def step(self) -> int:
        """Return the length of a slot in seconds: whole hours or days, at most 200 slots in a row."""
        hours = self.period.hours
        if self.span == DAY:
            return DAY * -(-hours // (24 * _MOST_STEPS))
        return HOUR * -(-hours // _MOST_STEPS)

    @cached_property
    def slots(self) -> list[GpuSlot]:
        return self.reader.records(
            GpuSlot,
            "card_slots",
            span=self.span,
            step=self.step,
            slack=2 * HOUR * (self.span == DAY),
            **self._bounds,
        )

    def fine_slots(self, since: float, until: float, step: int) -> list[GpuSlot]:
        """Return slots of `step` seconds of a period (epoch seconds), from the samples of minutes."""
        return self.reader.records(
            GpuSlot, "card_slots", span=MINUTE, step=step, slack=0, since=since, until=until
        )

    @cached_property
    def charged_spans(self) -> list[ChargedSpan]:
        return self.reader.records(ChargedSpan, "charged_by_span", span=self.span, **self._bounds)

    @cached_property
    def owners(self) -> dict[int, Owner]:
        """Return {number: owner}, only of the chosen user if there is one."""
        owners = {}
        for row in self.reader.ask("all_owners"):
            owner = Owner(**{name: row[name] for name in Owner.__struct_fields__})
            if not self.user or owner.user == self.user:
                owners[row["id"]] = owner
        return owners

    @cached_property
    def uses(self) -> list[OwnerGpuTotals]:
        return self._owned(OwnerGpuTotals, "owner_totals", span=self.sum_span)

    @cached_property
    def jobs(self) -> list[JobTotals]:
        """Return how many jobs ended in which way, by owner and model."""
        grouped_endings: dict[tuple[int, str, str, str], list[Ending]] = defaultdict(list)
        for ending in self._ended:
            grouped_endings[ending.owner, ending.model, ending.state, ending.oom].append(ending)
        return [
            JobTotals(
                owner=self.owners[owner],
                model=model,
                state=state,
                oom=oom,
                jobs=sum(ending.jobs for ending in ended),
                charged=sum(ending.charged for ending in ended),
            )
            for (owner, model, state, oom), ended in sorted(grouped_endings.items(), key=itemgetter(0))
        ]

    @cached_property
    def unused(self) -> list[UnusedMemory]:
        """Return the memory that was requested and not used, by owner and model."""
        grouping = Grouping((0, 2), (("sum", 2),))
        self.reader.group("unused_memory", grouping, **self._of_user)
        return [
            UnusedMemory(self.owners[owner], model, group[0] or 0.0)
            for group in grouping.groups()
            for owner, model in (group.key,)
        ]

    @cached_property
    def all_unused(self) -> float:
        """Return the memory that was requested and not used, in byte-seconds."""
        return float(next(self.reader.ask("unused_memory_of_all", **self._of_user))["unused"])

    @cached_property
    def waits(self) -> list[WaitGroup]:
        """Return the waits of the jobs that started, by owner, model, size and end."""
        return [
            WaitGroup(self.owners[ending.owner], ending.model, ending.gpus, ending.share, ending.waits)
            for ending in self._ended
            if ending.waits
        ]

    @cached_property
    def _ended(self) -> list[Ending]:
        """Return jobs by owner, size and end: of the groups by name, if a report has asked for those."""
        named = vars(self).get("_named")
        return named.endings if named else endings(self.reader, self._of_user)

    @cached_property
    def _named(self) -> Named | None:
        """Return jobs by end and by name; None if there are too many names."""
        return named(self.reader, self._of_user, self.most_names)

    @cached_property
    def all_waits(self) -> Numbers:
        """Return the waits of all jobs that started, in seconds, ascending."""
        if "_ended" in vars(self) or "_named" in vars(self):
            return ordered(group.waits for group in self.waits)
        return ordered([waits(self.reader, self._of_user)])

    def _owned(self, kind: type[Record], statement: str, **more: float) -> list[Record]:
        return [
            msgspec.convert({**dict(row), "owner": self.owners[row["owner"]]}, kind, strict=False)
            for row in self.reader.ask(statement, **more, **self._bounds)
            if row["owner"] in self.owners
        ]

    @cached_property
    def repeated(self) -> list[Repeated]:
        """Return the jobs of one owner, name and request, as groups; at most 2,000, the most charged."""
        if self._named:
            return most_charged(self._named.groups, {at: owner.user for at, owner in self.owners.items()})
        return [
            msgspec.convert({**dict(row), "user": self.owners[row["owner"]].user}, Repeated, strict=False)
            for row in self.reader.ask("repeated", **self._of_user)
        ]

    @cached_property
    def measured_of_jobs(self) -> dict[tuple[str, int, int], float]:
        """Return the sampled charge of the chosen user's jobs, in GPU seconds, by name, GPUs and share."""
        rows = self.reader.ask("measured", **self._of_user)
        return {(row["name"], row["gpus"], row["share"]): row["charged"] for row in rows}

    def examples(self, of: Repeated, most: int = 50) -> list[Example]:
        """Return the latest jobs of a group, `most` of them."""
        key = (of.owner, of.name, of.gpus, of.share)
        if key not in self._examples:
            about = {"owner": of.owner, "gpus": of.gpus, "share": of.share, "most": most}
            self._examples[key] = self.reader.records(
                Example, "examples", name=of.name, first=of.first, last=of.last, **about
            )
        return self._examples[key]

    def top_jobs(self, by: str, most: int) -> list[TopJob]:
        """Return the largest jobs by "charge", "idle" or "wait", `most` of them."""
        return self.reader.records(TopJob, f"jobs_by_{by}", most=most, **self._of_user)

    def failed_jobs(self, most: int) -> list[FailedJob]:
        """Return the latest jobs that failed, `most` of them."""
        jobs = self.reader.records(FailedJob, "failed_jobs", most=most, **self._of_user)
        return [replace(job, output=self._output(job.id)) for job in jobs]

    def _output(self, job_id: int) -> str | None:
        """Return the path of a job's standard output."""
        job = self.reader.job(job_id)
        return job.output if job is not None else None

    def failures_by_name(self, most: int) -> list[FailuresOfName]:
        """Return the names of jobs that failed at least three times, `most` of them."""
        return self.reader.records(FailuresOfName, "failures_by_name", most=most, **self._of_user)

    def without_process(self, most: int) -> list[NamedJobs]:
        """Return jobs without any GPU process, by name, `most` names."""
        return self.reader.records(NamedJobs, "without_process", most=most, **self._of_user)

    def runs(self, most: int) -> list[PastRun]:
        """Return the latest jobs that ran, `most` of them, by the time when they could start."""
        return self.reader.records(PastRun, "runs", most=most, **self._bounds)

    @cached_property
    def ran(self) -> int:
        """Return the number of jobs that ended in the period and had a GPU."""
        return int(next(self.reader.ask("count_runs", **self._bounds))[0])

    @cached_property
    def slowdowns(self) -> list[Slowdowns]:
        grouping = Grouping((0, 2), (), collected=2)
        self.reader.group("slowdowns", grouping, **self._of_user)
        return [Slowdowns(group.key[0], group.key[1], group.values) for group in grouping.groups()]

    @cached_property
    def demands(self) -> list[DemandTotals]:
        return self.reader.records(DemandTotals, "demand_totals", span=self.sum_span, **self._bounds)

    def refusals(self, most: int) -> list[MemoryRefusal]:
        """Return the last jobs that met their limit of GPU memory, `most` of them."""
        return self.reader.records(MemoryRefusal, "refusals", oom="gpu", most=most, **self._of_user)

    def host_refusals(self, most: int) -> list[MemoryRefusal]:
        """Return the last jobs of which the kernel killed a process for host memory, `most` of them."""
        return self.reader.records(MemoryRefusal, "refusals", oom="host", most=most, **self._of_user)

    @cached_property
    def foreign(self) -> list[ForeignRun]:
        """Return the times of each process outside of jobs, the longest first."""
        parts = self.reader.foreign_uses(self.sum_span, self.period.since, self.period.until)
        ordered_parts = sorted(parts, key=lambda use: (use.uuid, use.user, use.command, use.pid, use.since))
        runs = _runs(ordered_parts)
        return sorted(runs, key=lambda run: (-run.seconds, run.user, run.command, run.since, run.uuid))

    @cached_property
    def health(self) -> list[HealthEvent]:
        events = self.reader.health(self.period.since, self.period.until)
        states = {event.uuid: event.detail for event in self.states_before}
        return [event for event in events if event.kind != DRIVER and not _is_repeated(event, states)]

    @cached_property
    def drivers(self) -> list[tuple[float, str]]:
        """Return (epoch seconds when it was first seen, version) of the drivers of the period, in order."""
        versions: list[tuple[float, str]] = []
        for row in self.reader.ask("drivers", until=self.period.until):
            if not versions or versions[-1][1] != row["detail"]:
                versions.append((row["at"], row["detail"]))
        first = max((at for at, (since, _) in enumerate(versions) if since < self.period.since), default=0)
        return versions[first:]

    @property
    def has_new_driver(self) -> bool:
        """Whether the version of the driver changed in the period."""
        return len(self.drivers) > 1

    @cached_property
    def states_before(self) -> list[HealthEvent]:
        """Return the changes of state up to the period: a GPU may have been down when it began."""
        return [
            health_event
            for health_event in self.reader.health(0, self.period.since)
            if health_event.kind == "state"
        ]

    @cached_property
    def gaps(self) -> list[Gap]:
        """Return the times without samples, also before the first GPU was seen and after the last sample."""
        since, until = self.period.since, self.period.until
        gaps = self.reader.gaps(since, until)
        first = min((gpu.since for gpu in self.gpus), default=since)
        last = self.reader.sampled_until() or until
        if first > since + _ENDLESS:
            gaps.insert(0, Gap(since=since, until=min(first, until), why="no GPU was known"))
        if since <= last < until - _ENDLESS:
            gaps.append(Gap(since=last, until=until, why="no samples yet"))
        return gaps

    @cached_property
    def warned(self) -> dict[tuple[str, str], WarnedJobs]:
        groups = self.reader.records(WarnedJobs, "warned_jobs", **self._bounds)
        return {(jobs.user, jobs.name): jobs for jobs in groups}

    # -- sums ------------------------------------------------------------------------------------------

    @cached_property
    def sampled(self) -> float:
        return sum(total.sampled for total in self.totals)

    @cached_property
    def lost(self) -> float:
        """Return the GPU seconds of the period without samples."""
        return max(0.0, len(self.gpus) * (self.period.until - self.period.since) - self.sampled)

    @property
    def is_measured_whole(self) -> bool:
        """Whether the whole period was sampled, but for less GPU-hours than one decimal shows."""
        return self.lost < HOUR / 20

    @cached_property
    def classes(self) -> tuple[float, ...]:
        """Return the GPU seconds of the six time classes, in the order of model.CLASSES."""
        return tuple(sum(total.classes[at] for total in self.totals) for at in range(6))

    @cached_property
    def charged(self) -> float:
        return sum(self.classes[:3])

    @cached_property
    def idle(self) -> float:
        return sum(self.classes[1:3])

    @cached_property
    def measured(self) -> float:
        """Return the charged GPU seconds of which compute time is measured: not those on MIG instances."""
        charged = self.charged - sum(use.charged for use in self.uses if is_instance(use.uuid))
        return charged if charged > _ROUNDED else 0.0

    @cached_property
    def used(self) -> float:
        return sum(use.used for use in self.uses)

    @cached_property
    def ended(self) -> int:
        return sum(job.jobs for job in self.jobs)

    @cached_property
    def failed(self) -> int:
        return sum(job.jobs for job in self.jobs if job.has_failed)
