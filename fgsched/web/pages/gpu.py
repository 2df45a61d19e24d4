"""One GPU: its jobs to scale, its last 24 hours, its health, and the processes outside of jobs."""

from collections.abc import Sequence

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import GpuState
from fgsched.domain.units import format_share
from fgsched.protocol import GpuInfo, GpuProcessInfo, JobInfo
from fgsched.reports import drawing, numbers
from fgsched.reports.model import DASH, GpuRow, GpuRows, Report
from fgsched.views import choices
from fgsched.views import gpu as gpu_view
from fgsched.views import job as view
from fgsched.web.pages import words
from fgsched.web.pages.gpubars import STYLES, GpuBar, bar, status_of
from fgsched.web.reading import GpuData, HostLook
from fgsched.web.visit import Visit


class HolderRow(Struct, frozen=True, kw_only=True):
    """A job that holds a part of the GPU."""

    id: str
    ref: str
    name: str
    user: str
    share: str
    busy: str
    memory: str
    time: str


class DayPart(Struct, frozen=True, kw_only=True):
    """The last 24 hours as a drawing."""

    paths: Sequence[tuple[str, str]]  # style, and its path
    gaps: str
    width: int
    height: int
    marks: Sequence[str]
    description: str


class OutsideRow(Struct, frozen=True, kw_only=True):
    """A process that belongs to no job."""

    pid: int
    user: str
    command: str
    memory: str
    since: str


class GpuPage(Struct, frozen=True, kw_only=True):
    """The context of the page."""

    gpu: int
    model: str
    lede: str
    bar: GpuBar
    jobs: Sequence[HolderRow]
    day: DayPart | None
    health: Sequence[tuple[str, str, bool]]  # name, text, whether a user gave it
    outside: Sequence[OutsideRow]
    verb: str  # of the form for operators: "drain" or "resume"; "": none


def context(data: GpuData, visit: Visit) -> GpuPage:
    """Return the context of the page. Raises BadUsage: this host has no such GPU."""
    look = data.look
    index = visit.params["gpu"]
    info = next((info for info in look.frame.gpus if str(info.gpu.index) == index), None)
    state = next((state for state in status_of(look).gpus if str(state.gpu) == index), None)
    if info is None or state is None:
        raise BadUsage(f"this host has no GPU {index[:20]}", "The first page lists its GPUs.")
    number = info.gpu.index
    holders = [part.job for part in gpu_view.parts_of(info, look.frame.jobs).jobs]
    day = _day(data.report, info)
    outside = [process for process in data.processes if process.gpu == number and process.job is None]
    may_drain = look.about.operator and not visit.viewer.read_only
    return GpuPage(
        gpu=number,
        model=info.gpu.model,
        lede=_lede(info, holders, look, day),
        bar=bar(state),
        jobs=[_holder(job, number) for job in holders],
        day=None if day is None else _drawn(*day, number),
        health=_health(info, visit),
        outside=[_outside(process, visit) for process in outside],
        verb=("drain" if info.gpu.state is GpuState.OK else "resume") if may_drain else "",
    )


def _lede(
    info: GpuInfo, holders: Sequence[JobInfo], look: HostLook, day: tuple[GpuRows, GpuRow] | None
) -> str:
    charged = gpu_view.parts_of(info, look.frame.jobs).charged
    number = len(holders)
    who = (
        "No job holds"
        if not number
        else f"{numbers.counted(number, 'job')} {'holds' if number == 1 else 'hold'}"
    )
    part = "a part of it" if not number else f"{charged:.2f} of it; {max(0.0, 1.0 - charged):.2f} is free"
    active = "" if day is None else f" It was active for {day[1].active.text} of the last 24 hours."
    return f"{who} {part}.{active}"


def _holder(job: JobInfo, gpu: int) -> HolderRow:
    own = next(part for part in job.allocated if part.gpu == gpu)
    on_gpu = next((on_gpu for on_gpu in job.now if on_gpu.gpu == gpu), None)
    busy = None if on_gpu is None else on_gpu.busy
    return HolderRow(
        id=view.label(job),
        ref=str(choices.exactly(job)),
        name=job.name,
        user=job.user,
        share=format_share(own.share),
        busy=DASH if busy is None else f"{busy / 100:.0f} %",
        memory=words.used_of(None if on_gpu is None else on_gpu.memory, own.memory),
        time=words.time_of(job),
    )


def _day(report: Report | None, info: GpuInfo) -> tuple[GpuRows, GpuRow] | None:
    """Return the last 24 hours of the GPU in the report on utilization, with their axis."""
    for section in report.sections if report else ():
        for part in section.parts:
            if isinstance(part, GpuRows) and part.key == "day":
                return next(((part, row) for row in part.rows if row.uuid == info.gpu.uuid), None)
    return None


def _drawn(part: GpuRows, row: GpuRow, gpu: int) -> DayPart:
    return DayPart(
        paths=[(STYLES[name], path) for name, path in drawing.classes(row.steps)],
        gaps=drawing.gaps(row.steps),
        width=drawing.WIDTH,
        height=drawing.HEIGHT,
        marks=[mark.label for mark in part.days],
        description=f"GPU {gpu}: charged {row.charged.text}, active {row.active.text}",
    )


def _health(info: GpuInfo, visit: Visit) -> list[tuple[str, str, bool]]:
    seen, gpu = info.seen, info.gpu
    rows = [("State", gpu.state.value.lower(), False)]
    if gpu.note:
        rows.append(("Reason", f"{gpu.note}, since {words.moment(gpu.noted_at, visit.now)}", True))
    if seen is None:
        return rows
    if seen.error:
        return [*rows, ("Driver", seen.error, True)]
    heat = DASH if seen.temperature is None else f"{seen.temperature} °C"
    power = DASH if seen.power is None else f"{seen.power / 1000:.0f} W"
    rows.append(("Temperature, power", f"{heat}, {power}", False))
    if seen.ecc is not None:
        rows.append(("Memory errors", f"{seen.ecc} uncorrected since the driver was loaded", False))
    if seen.remap:
        rows.append(("Memory rows", f"replacement {seen.remap}", False))
    if seen.throttled:
        rows.append(("Clock limited by", ", ".join(seen.throttled), False))
    rows.append(("Memory outside of jobs", words.gib(info.external), False))
    return rows


def _outside(process: GpuProcessInfo, visit: Visit) -> OutsideRow:
    return OutsideRow(
        pid=process.pid,
        user=process.user or DASH,
        command=process.command or DASH,
        memory=words.gib(process.memory) if process.memory else DASH,
        since=words.moment(process.since, visit.now),
    )
