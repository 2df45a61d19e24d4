"""The bars of GPUs to scale, and bars of an amount of a request, with sizes in per cent for SVG."""

from collections.abc import Sequence

from msgspec import Struct

from fgsched.cli.statuspage import Answers, state_of
from fgsched.cli.top.snapshot import Frame
from fgsched.domain.units import GIBIBYTE
from fgsched.reports import status
from fgsched.reports.html import percent
from fgsched.reports.model import CLASSES, DASH, TimeClass
from fgsched.reports.numbers import plain_gibibytes
from fgsched.reports.status import GpuNow, PresentClass, Status
from fgsched.web.reading import HostLook

STYLES: dict[str, str] = {  # class of time -> class of the style
    "active": "A",
    "held-idle": "H",
    "reserved-empty": "E",
    "external": "X",
    "down": "D",
    "free": "FR",
    "unknown": "U",
}
TEXTURED = ("E", "X", "D", "U")  # styles that have a texture as well as a colour


class BarPart(Struct, frozen=True):
    """A part of a bar."""

    x: str  # of the bar, such as 25%
    width: str
    style: str
    label: str = ""  # on it; "": none fits


class GpuBar(Struct, frozen=True, kw_only=True):
    """One GPU to scale."""

    gpu: int  # index
    model: str
    parts: tuple[BarPart, ...]
    memory: tuple[BarPart, ...]
    description: str
    busy: str  # such as "44 % busy"
    used: str  # such as "18.2 of 80 GiB"


class ClassCount(Struct, frozen=True):
    """A time class in the key below the bars."""

    name: PresentClass
    style: str
    gpus: str  # number


def status_of(look: HostLook) -> Status:
    """Return the state of the host, as the wall page has it."""
    frame = look.frame
    answers = Answers(frame.gpus, frame.jobs, look.starts)
    return state_of(answers, _kinds(frame), frame.at, frame.host)


def _kinds(frame: Frame) -> dict[tuple[int, str], TimeClass]:
    """Return what each job does on each GPU; without a job that was not measured."""
    classes: dict[str, TimeClass] = {name: name for name in CLASSES}
    return {
        (job.id, part.uuid): classes[kind]
        for job in frame.jobs
        for part in job.allocated
        if (kind := frame.kind(job, part.gpu)) in classes
    }


def bars(state: Status) -> list[GpuBar]:
    """Return the bars of all GPUs."""
    return [bar(gpu) for gpu in state.gpus]


def bar(gpu: GpuNow) -> GpuBar:
    """Return the bar of one GPU."""
    parts = _parts(gpu)
    words = [f"{block.user or block.note or block.kind} {100 * block.part:.0f} %" for block in _blocks(gpu)]
    return GpuBar(
        gpu=gpu.gpu,
        model=gpu.model,
        parts=tuple(parts),
        memory=tuple(_memory(gpu)),
        description=f"GPU {gpu.gpu}: {', '.join(words) or 'free'}",
        busy=DASH if gpu.sm is None else f"{gpu.sm} % busy",
        used=_used(gpu),
    )


def _blocks(gpu: GpuNow) -> list[status.Block]:
    blocks = status.blocks(gpu, two=False)
    free = 1.0 - sum(block.part for block in blocks)
    return [*blocks, status.Block("free", free)] if free > 0.0005 else blocks


def _parts(gpu: GpuNow) -> list[BarPart]:
    parts, begin = [], 0.0
    for block in _blocks(gpu):
        label = " · ".join(text for text in (block.user, block.note) if text)
        parts.append(BarPart(percent(begin), percent(block.part), STYLES[block.kind], label))
        begin += block.part
    return parts


def _memory(gpu: GpuNow) -> list[BarPart]:
    if not gpu.total:
        return []
    used, outside = (gpu.used or 0) / gpu.total, (gpu.external or 0) / gpu.total
    parts = [BarPart("0%", percent(used), "MM")] if used else []
    return [*parts, BarPart(percent(used), percent(outside), "X")] if outside else parts


def _used(gpu: GpuNow) -> str:
    if gpu.used is None:
        return DASH
    whole = (gpu.used + (gpu.external or 0)) / GIBIBYTE
    text = f"{whole:.1f} of {plain_gibibytes(gpu.total)} GiB"
    return f"{text}, {gpu.external / GIBIBYTE:.1f} outside" if gpu.external else text


def keys(state: Status) -> list[ClassCount]:
    """Return the time classes with the number of GPUs in each."""
    return [ClassCount(name, STYLES[name], f"{gpus:.1f}") for name, gpus in state.classes().items()]


class UseBar(Struct, frozen=True):
    """What a job uses of a part of its request."""

    label: str
    text: str
    outline: str = "100%"  # width of the outline
    used: str = ""  # width of the bar; "": not measured


def use_bar(label: str, text: str, part: float | None) -> UseBar:
    """Return the bar of a part, from 0 to 1, of the request; None: not measured."""
    return UseBar(label, text, used="" if part is None else percent(part))


def polyline(points: Sequence[tuple[float, float | None]]) -> list[str]:
    """Return lines through values from 0 to 1 at times from 0 to 1; a gap ends a line."""
    lines: list[list[str]] = [[]]
    for at, value in points:
        if value is None:
            lines += [[]] if lines[-1] else []
            continue
        lines[-1].append(f"{1000 * at:.0f},{100 * (1 - min(1.0, max(0.0, value))):.0f}")
    return [" ".join(line) for line in lines if line]
