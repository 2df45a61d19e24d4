"""The present state of the host: as data for metrics, as a report, and as a page for a wall screen.

Times are in seconds, sizes in bytes, shares from 0 to 1 of one GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched.accounting.periods import Period
from fgsched.accounting.records import GpuRecord, Owner
from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import width_of, word_list
from fgsched.domain.times import format_time
from fgsched.domain.units import GIB, format_share
from fgsched.domain.waiting import ExpectedStart
from fgsched.protocol import GpuInfo, JobInfo
from fgsched.reports import numbers
from fgsched.reports.drawing import DARK, variables
from fgsched.reports.facts import Facts, ReportReader
from fgsched.reports.model import (
    CLASSES,
    Bar,
    Cell,
    Column,
    Figures,
    Given,
    Headline,
    Number,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    TimeClass,
    Words,
)
from fgsched.reports.numbers import duration_text
from fgsched.reports.wording import dash, job_cells, long_time, model_name
from fgsched.views import job as view
from fgsched.views.display import cut
from fgsched.views.gpu import (
    FIELDS,
    GpuParts,
    charged_gpus,
    job_counts,
    memory_in_use,
    parts_of,
    sm_share,
    why_down,
)

Record = TypeVar("Record", bound=Struct)
PresentClass = TimeClass | Literal["unknown"]  # unknown: of jobs on a GPU that does not answer
PRESENT_CLASSES: tuple[PresentClass, ...] = (*CLASSES, "unknown")
_RECENT = 300  # seconds: the maximum age of the minute that gives the present class of a job
_EVER = Period(since=0.0, until=1e11, noun="period", closed=True)
ATTRIBUTES = (  # of jobs that `status` needs
    *FIELDS,
    *view.attributes(view.label, view.time_left),
    *word_list("name user reason indices share gpus elapsed submitted_at priority"),
)
_BLOCKED = {  # reasons of jobs that do not start until something else happens
    Reason.HELD_USER,
    Reason.HELD_ADMIN,
    Reason.HELD_MAX_REQUEUE,
    Reason.PROLOG_FAILED,
    Reason.DEPENDENCY,
    Reason.DEPENDENCY_NEVER,
}
_ISO = "%Y-%m-%dT%H:%M:%S%z"


class GpuPart(Struct, frozen=True, kw_only=True):
    """The part of a GPU that one job has."""

    job: int
    user: str
    name: str
    share: float  # charged, from 0 to 1 of the GPU
    kind: PresentClass  # in the last minute
    time_left: float | None = None  # seconds until its time limit; None: it has none


class GpuNow(Struct, frozen=True, kw_only=True):
    """One GPU now. None: not measured."""

    gpu: int  # index
    uuid: str
    model: str
    total: int
    shares: tuple[GpuPart, ...] = ()
    down: str = ""  # why it takes no jobs; "": it takes jobs
    hidden: float = 0.0  # charged to jobs that the site hides from the reader, from 0 to 1 of the GPU
    hidden_kind: PresentClass = "active"  # what these jobs do
    used: int | None = None  # by jobs
    external: int | None = None  # by processes outside of jobs
    sm: int | None = None  # per cent
    temperature: int | None = None  # degrees Celsius
    power: float | None = None  # watts

    @property
    def scaled(self) -> tuple[GpuPart, ...]:
        """The shares, reduced in proportion if their sum exceeds the GPU, as the accounts do."""
        whole = max(1.0, sum(share.share for share in self.shares) + self.hidden)
        return tuple(replace(share, share=share.share / whole) for share in self.shares)

    @property
    def charged(self) -> float:
        """The charged part of the GPU, from 0 to 1."""
        return min(1.0, sum(share.share for share in self.shares) + self.hidden)

    def classes(self) -> dict[PresentClass, float]:
        """Return the parts of the GPU by class; they add up to 1. `unknown` is absent if it is 0."""
        parts = dict.fromkeys(PRESENT_CLASSES, 0.0)
        for gpu_part in self.scaled:
            parts[gpu_part.kind] += gpu_part.share
        if self.hidden:
            parts[self.hidden_kind] += self.charged - sum(parts.values())
        remaining = max(0.0, 1.0 - sum(parts.values()))
        if self.down:
            parts["down"] = remaining
        else:
            parts["external"] = min(remaining, (self.external or 0) / self.total if self.total else 0.0)
            parts["free"] = remaining - parts["external"]
        return _without_empty_unknown(parts)


def _without_empty_unknown(parts: dict[PresentClass, float]) -> dict[PresentClass, float]:
    return {name: part for name, part in parts.items() if part or name != "unknown"}


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
    startable_jobs: int = 0  # pending jobs that are neither held nor dependent

    @property
    def charged(self) -> float:
        """The number of charged GPUs, to ten-thousandths of a GPU."""
        return sum(round(gpu.charged * WHOLE) for gpu in self.gpus) / WHOLE

    def classes(self) -> dict[PresentClass, float]:
        """Return the number of GPUs by class. `unknown` is absent if it is 0."""
        classes = [gpu.classes() for gpu in self.gpus]
        return _without_empty_unknown(
            {name: sum(parts.get(name, 0.0) for parts in classes) for name in PRESENT_CLASSES}
        )


class GpuSum(Struct, frozen=True, kw_only=True):
    """The use of a GPU since the accounts were made, in seconds."""

    uuid: str  # of the GPU
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
    uuid: str  # of the GPU
    active: float
    held: float
    empty: float
    used: float


class EndedJobCount(Struct, frozen=True, kw_only=True):
    """How many jobs of an owner ended in one state since the accounts were made."""

    owner: Owner
    state: str
    jobs: int


class AccountTotals(Struct, frozen=True, kw_only=True):
    """The sums of the accounts since they were made. None falls: archives and old days are in them."""

    gpus: list[GpuRecord]
    totals: list[GpuSum]
    owners: list[OwnerSum]
    jobs: list[EndedJobCount]


def sums(reader: ReportReader) -> AccountTotals:
    """Return the sums of the accounts."""
    since = next(reader.ask("counted_since"))["at"]
    facts = Facts(reader, _EVER)
    return AccountTotals(
        gpus=facts.gpus,
        totals=reader.records(GpuSum, "counted_cards", since=since),
        owners=_owned(facts, OwnerSum, "counted_owners", since=since),
        jobs=_owned(facts, EndedJobCount, "counted_jobs"),
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
    kinds: dict[tuple[int, str], TimeClass] = {}
    for minute in reader.ask("last_minute", since=now - _RECENT):
        kinds[minute["job"], minute["uuid"]] = _largest((minute["active"], minute["held"], minute["empty"]))
    return kinds


def _largest(seconds: Iterable[float]) -> TimeClass:
    parts = list(seconds)
    return CLASSES[parts.index(max(parts))]


def status(
    gpus: Sequence[GpuInfo],
    jobs: Sequence[JobInfo],
    starts: Mapping[int, ExpectedStart],
    host: str,
    now: float,
) -> Report:
    """Return the report on the present state; `now` is in epoch seconds."""
    running = sorted((job for job in jobs if job.state.holds), key=lambda job: job.id)
    _, waiting = job_counts(jobs)
    sections = (
        Section("gpus", "GPUs", "", (_gpu_table(gpus, jobs),)),
        Section("running", "Running", "", (_running(running),)),
        Section("next", "Next to start", "", (_next(next_jobs(jobs, starts)[:5], starts),)),
    )
    return Report(
        kind="status",
        title="GPUs now",
        host=host,
        period=_moment(now),
        lede=(_lede(gpus, jobs),),
        figures=_figures(gpus, jobs),
        sections=sections,
        definitions=(),
        notes=(
            f"Written {long_time(now)}. Charged: the larger of the shares of time and of memory of the jobs.",
        ),
        main="gpus",
        quiet=not running and not waiting,
    )


def next_jobs(jobs: Iterable[JobInfo], starts: Mapping[int, ExpectedStart]) -> list[JobInfo]:
    """Return the pending jobs that are neither held nor dependent, in the order of their expected starts."""

    def order(job: JobInfo) -> tuple[float, float, int]:
        start = starts[job.id].at if job.id in starts else None
        return start or inf, -(job.priority or 0.0), job.id

    pending = (job for job in jobs if job.state is JobState.PENDING and job.reason not in _BLOCKED)
    return sorted(pending, key=order)


def unreachable(cause: str, host: str, now: float) -> Report:
    """Return the report of a host whose controller does not answer; `now` is in epoch seconds."""
    return Report(
        kind="status",
        title="GPUs now",
        host=host,
        period=_moment(now),
        lede=("The controller does not answer.",),
        figures=Figures(()),
        sections=(Section("gpus", "GPUs", "The state of the GPUs is unknown.", ()),),
        definitions=(),
        notes=(f"Written {long_time(now)}: {cause}.",),
        main="gpus",
    )


def _moment(now: float) -> Span:
    iso, name = format_time(now, _ISO), format_time(now, "%Y-%m-%d %H:%M")
    return Span(now, now, iso, iso, name, long_time(now), "moment", False)


def _lede(gpus: Sequence[GpuInfo], jobs: Sequence[JobInfo]) -> str:
    charged, (running, waiting) = charged_gpus(gpus, jobs), job_counts(jobs)
    number = numbers.counted(len(gpus), "card")
    return (
        f"{charged:.1f} of {number} charged, {numbers.counted(running, 'job')} running, {waiting:,} waiting."
    )


def _figures(gpus: Sequence[GpuInfo], jobs: Sequence[JobInfo]) -> Figures:
    charged, (running, waiting) = charged_gpus(gpus, jobs), job_counts(jobs)
    down = sum(1.0 - parts_of(info, jobs).charged for info in gpus if info.is_down)
    return Figures(
        (
            Headline(
                "charged",
                "Cards charged",
                Number(charged, "cards", f"{charged:.1f}"),
                f"of {numbers.counted(len(gpus), 'card')}",
            ),
            Headline("running", "Running", numbers.count(running), "jobs with an allocation"),
            Headline("waiting", "Waiting", numbers.count(waiting), "pending jobs, an array once"),
            Headline(
                "down",
                "Down",
                Number(down, "cards", f"{down:.1f}"),
                "drained, suspect or failed, and not charged",
            ),
        )
    )


# -- GPUs ----------------------------------------------------------------------------------------------


def _gpu_table(gpus: Sequence[GpuInfo], jobs: Sequence[JobInfo]) -> Table:
    columns = (
        Column("gpu", "Card"),
        Column("model", "Model", minor=True),
        Column("bar", "Charged share"),
        Column("charged", "Charged", right=True, unit="%"),
        Column("sm", "SM", right=True, unit="%"),
        Column("memory", "Memory", right=True, unit="bytes"),
        Column("outside", "Outside", right=True, unit="bytes", minor=True),
        Column("jobs", "Users"),
    )
    rows = tuple(_gpu_row(info, jobs) for info in sorted(gpus, key=lambda info: info.gpu.index))
    return Table("gpus", columns, rows, empty="The host has no GPU.")


def _gpu_row(info: GpuInfo, jobs: Sequence[JobInfo]) -> tuple[Cell, ...]:
    gpu, is_down = info.gpu, info.is_down
    total = numbers.grouped(gpu.total / GIB)
    memory, sm = numbers.unknown("bytes"), numbers.unknown("%")
    if (used := memory_in_use(info)) is not None:
        memory = Number(used, "bytes", f"{numbers.grouped(used / GIB)} / {total} GiB")
    if (busy := sm_share(info, jobs)) is not None:
        sm = Number(round(100 * busy), "%", f"{100 * busy:.0f} %")
    parts = parts_of(info, jobs)
    charged = parts.charged
    pieces = ((Piece("count", charged),) if charged else ()) + (
        (Piece("down", 1.0 - charged),) if is_down and charged < 1.0 else ()
    )
    users = _users(gpu.index, parts)
    state = _why_down(info)
    return (
        Number(gpu.index, "", f"GPU {gpu.index}"),
        Words(model_name(gpu.model)),
        Bar(pieces),
        numbers.rate(charged, 1.0),
        sm,
        memory,
        numbers.gibibytes(info.external) if info.external else dash(),
        Phrase((*state, Words("; "), *users.parts))
        if is_down and charged
        else Phrase(state)
        if is_down
        else users,
    )


def _why_down(info: GpuInfo) -> tuple[Words | Given, ...]:
    """Return the state of a GPU that takes no jobs, and the reason if there is one."""
    state, why = why_down(info)
    return (Words(f"{state}: "), Given(why)) if why else (Words(state),)


def _users(gpu: int, parts: GpuParts) -> Phrase:
    """Return the users of a GPU with their shares."""
    words: list[Words | Given] = []
    for job, _ in parts.jobs:
        share = sum(allocation.share for allocation in job.allocated if allocation.gpu == gpu)
        words += [Words(", " if words else ""), Given(job.user), Words(f" {format_share(share)}")]
    if parts.hidden:
        words.append(Words(", others" if words else "others"))
    return Phrase(tuple(words) or (Words("–"),))


# -- jobs ----------------------------------------------------------------------------------------------


def _running(jobs: Sequence[JobInfo]) -> Table:
    columns = (
        Column("job", "Job", right=True),
        Column("user", "User"),
        Column("name", "Name"),
        Column("share", "GPUs", right=True),
        Column("on", "On"),
        Column("elapsed", "Time", right=True, unit="seconds"),
        Column("left", "Time left", right=True, unit="seconds"),
    )
    rows = tuple(
        (
            *job_cells(job),
            Words(format_share(job.share or 0)),
            Words(", ".join(str(index) for index in job.indices) or "–"),
            numbers.duration(job.elapsed),
            numbers.duration(view.time_left(job)),
        )
        for job in jobs
    )
    return Table("running", columns, rows, empty="No job runs.")


def _next(jobs: Sequence[JobInfo], starts: Mapping[int, ExpectedStart]) -> Table:
    columns = (
        Column("job", "Job", right=True),
        Column("user", "User"),
        Column("name", "Name"),
        Column("share", "GPUs", right=True),
        Column("reason", "Reason"),
        Column("start", "By"),
    )
    rows = tuple(
        (
            *job_cells(job),
            Words(format_share(job.share or 0)),
            Words(job.reason.word),
            _by(starts.get(job.id)),
        )
        for job in jobs
    )
    return Table("next", columns, rows, empty="No job waits that is neither held nor dependent.")


def _by(start: ExpectedStart | None) -> Cell:
    if start is None or start.at is None:
        return dash()
    return Words(long_time(start.at) if start.latest else f"not before {long_time(start.at)}")


# -- the page for a wall screen, readable from four metres ----------------------------------------------

REFRESH = 60  # seconds after which a browser loads the page again
_COLUMN = 8  # GPUs in one column; more of them are in two
_ROOM, _ROOM_OF_TWO = 44, 20  # characters of a whole GPU's bar, in one column and in two
_NEXT = 5  # pending jobs that are shown
_LEAST = 3  # characters of a label; a shorter one is left out
_NAME = 12  # characters of a user's name among the next jobs


class Block(NamedTuple):
    """One part of a GPU's bar, with its label."""

    kind: PresentClass
    part: float  # of the GPU
    user: str = ""
    note: str = ""


def wall_page(status: Status) -> str:
    """Return the page. If the controller did not answer, the page reports that instead of an old state."""
    from fgsched.reports.html import environment  # Jinja, which the metrics do without

    page = environment().get_template("wall.html.j2")
    return page.render(
        status=status,
        refresh=REFRESH,
        colours=variables(DARK),
        two=len(status.gpus) > _COLUMN,
        next=[(cut(job.user, _NAME), job.asked, _start_of(job, status)) for job in status.next[:_NEXT]],
        more=max(0, status.startable_jobs - _NEXT),
        classes=status.classes(),
        blocks=blocks,
        down_mark=down_mark,
        clock=format_time(status.at, "%H:%M"),
        day=format_time(status.at, "%a %d %b").replace(" 0", " "),
    )


def blocks(gpu: GpuNow, two: bool) -> list[Block]:
    """Return the parts of a GPU's bar; a label that does not fit is shortened or left out."""
    room = _ROOM_OF_TWO if two else _ROOM
    parts = [_block(share, int(share.share * room) - 1, two) for share in gpu.scaled]
    classes = gpu.classes()
    if (hidden := gpu.charged - sum(share.share for share in gpu.scaled)) >= 0.005:
        parts.append(
            Block(gpu.hidden_kind, hidden, note="others" if hidden * room >= len("others") + 1 else "")
        )
    if gpu.down and classes["down"] > 0:
        parts.append(
            Block("down", classes["down"], note=cut(f"down: {gpu.down}", int(classes["down"] * room) + 2))
        )
    elif classes["external"] >= 0.005:
        parts.append(
            Block("external", classes["external"], note=_outside(int(classes["external"] * room) - 1))
        )
    return parts


def down_mark(gpu: GpuNow) -> str:
    """Return what stands beside a GPU that takes no jobs while jobs fill its bar; "" if the bar says it."""
    return f"down: {gpu.down}" if gpu.down and gpu.charged else ""


def _outside(room: int) -> str:
    """Return the label of memory of processes outside fgsched; "" if there is no room for it."""
    return next((text for text in ("outside fgsched", "outside") if len(text) <= room), "")


def _block(share: GpuPart, room: int, two: bool) -> Block:
    remaining = "" if share.time_left is None or two else duration_text(share.time_left)
    if remaining and width_of(share.user) + 1 + len(remaining) <= room:
        return Block(share.kind, share.share, share.user, remaining)
    label = share.user if width_of(share.user) <= room else cut(share.user, room) if room >= _LEAST else ""
    return Block(share.kind, share.share, label)


def _start_of(job: WaitingJob, status: Status) -> str:
    """Return the latest, or the earliest start of a job: "by 17:45", "from Mon 17:45"."""
    if job.start is None:
        return "start unknown"
    same = format_time(job.start, "%Y-%j") == format_time(status.at, "%Y-%j")
    word = "from" if job.is_earliest else "by"
    return f"{word} {format_time(job.start, '%H:%M' if same else '%a %H:%M')}"
