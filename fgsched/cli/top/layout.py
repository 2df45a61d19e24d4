"""Lay out the screen of fgtop: a frame and a view become lines of styled text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fgsched.cli.top import fields
from fgsched.cli.top.fields import gibibytes, percent
from fgsched.cli.top.snapshot import CLASSES, KEPT, Frame, LookHistory, gpu_classes, means
from fgsched.cli.top.view import TopUser, View, chosen, scrolled, selected
from fgsched.domain.states import JobState
from fgsched.domain.text import clean, width_of
from fgsched.domain.times import format_time
from fgsched.protocol import GpuInfo, JobInfo
from fgsched.views.display import ascii_only, cells, cut, pad
from fgsched.views.gpu import job_counts, memory_in_use, parts_of, sm_share, why_down

FILLS = dict(zip(CLASSES, "▇▄▂█·▞╱", strict=True))
ASCII_FILLS = dict(zip(CLASSES, "=-.: !x", strict=True))
_SHORT = {"held-idle": "idle", "reserved-empty": "empty"}
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", ".:-=+*#%"
_WIDE, _FULL = 100, 40  # terminal columns from which all columns are shown; below which there are only counts
_TALL = 34  # lines from which the selected job is described
_LOW, _HISTORY = 10, 600.0  # lines below which there are only counts; seconds of the history of a GPU
_STALE = 3  # intervals after which a screen is stale
_HELP = """\
q            quit
?            this help
/            filter by user, name, state or id; Esc removes the filter
u            your own jobs, or all
s, r         sort by the next column; reverse the order
Enter        the selected job
w            why it is pending: fgq --why
t            its output: fgtail; Ctrl-C returns
k            cancel it, after a question
g, Tab       move in the GPUs, or in the jobs
+ -          longer, shorter interval
Space        pause
arrows PgUp PgDn Home End
             move

{fills}
The height of a bar is the class. SM is compute time, 100% is one whole GPU."""


class StyledText(NamedTuple):
    """A text in one style: a time class, its "-label", or a role such as "ink", "soft" or "select"."""

    text: str
    style: str = "ink"


Line = list[StyledText]


class Screen(NamedTuple):
    """The lines of a screen, the chosen jobs, the rows of their list, and the view with its scrolling."""

    lines: list[Line]
    jobs: list[JobInfo]
    rows: int
    view: View


def screen(
    frame: Frame, history: LookHistory, view: View, reader: TopUser, *, now: float, trouble: str = ""
) -> Screen:
    """Return the screen at `now`, in epoch seconds; `trouble` says why the frame is old."""
    jobs = chosen(frame, view, reader)
    if view.width < _FULL or view.height < _LOW:
        lines = [_counts(frame, view)]
        return Screen(_finished(lines, view), jobs, 1, view)
    head = [_first(frame, view, reader, now, trouble), _classes(frame, view)]
    head += [[]] if view.width >= _WIDE and view.height >= _TALL else []
    head += [*_gpus(frame, history, view, view.height // 2 - 3), []]
    detail = _detail(frame, history, view, jobs)
    rows = max(1, view.height - len(head) - len(detail) - 2)
    view = scrolled(view, jobs, rows)
    body = _panel(frame, history, view, jobs, rows + 1) if view.panel else _jobs(frame, view, jobs, rows)
    last = _last(view, jobs, rows, trouble)
    return Screen(_finished([*head, *body, *detail, last], view), jobs, rows, view)


def plain(lines: Iterable[Line]) -> str:
    """Return lines as text without styles."""
    return "".join("".join(span.text for span in line).rstrip() + "\n" for line in lines)


def _finished(lines: list[Line], view: View) -> list[Line]:
    """Cut each line at the width of the screen, fill the screen, and replace what ASCII lacks."""
    filled = [*lines[: view.height], *([[]] * (view.height - len(lines)))]
    return [
        [StyledText(_ascii(span.text, view), span.style) for span in _clipped(line, view.width)]
        for line in filled
    ]


def _ascii(text: str, view: View) -> str:
    return ascii_only(text) if view.ascii else text


def _clipped(line: Line, room: int) -> Iterator[StyledText]:
    for span in line:
        text = cut(span.text, room, "")
        yield StyledText(text, span.style)
        room -= width_of(text)


# -- the head ------------------------------------------------------------------------------------------


def _counts(frame: Frame, view: View) -> Line:
    running, waiting = job_counts(frame.jobs)
    return [StyledText(f"{frame.charged:.1f} of {len(frame.gpus)} cards, {running} R, {waiting} PD")]


def _first(frame: Frame, view: View, reader: TopUser, now: float, trouble: str) -> Line:
    running, waiting = job_counts(frame.jobs)
    charged = (
        f"{frame.charged:.1f} of {len(frame.gpus)} {'card' if len(frame.gpus) == 1 else 'cards'} charged"
    )
    title = f" fgtop  {clean(frame.host)}  {charged}  {running} running  {waiting} waiting"
    form = "%a %d %b %H:%M:%S" if view.width >= _WIDE else "%H:%M:%S"
    right = format_time(now, form) + (f"  {view.interval} s" if view.width >= _WIDE else "")
    mark = _mark(frame, view, reader, now, trouble)
    room = view.width - width_of(right) - 1 - (width_of(mark) + 1 if mark else 0)
    spans = [StyledText(pad(cut(title, room), room), "head")]
    spans += [StyledText(mark, "reverse"), StyledText(" ", "clock")] if mark else []
    return [*spans, StyledText(f"{right} ", "clock")]


def _mark(frame: Frame, view: View, reader: TopUser, now: float, trouble: str) -> str:
    """Return the text of the first line that is printed in reverse video."""
    if view.is_paused:
        return "PAUSED"
    if trouble or now - frame.at > _STALE * view.interval + 1:
        return f"STALE {max(0, int(now - frame.at))} s"
    return "" if reader.may_change else "READ ONLY"


def _classes(frame: Frame, view: View) -> Line:
    """Return a line with the number of GPUs in each class, in the longest form that fits."""
    counted = [(name, gpus) for name, gpus in frame.classes().items() if name != "charged" or gpus >= 0.05]
    most = [(name, gpus) for name, gpus in counted if gpus >= 0.05]
    forms = [(counted, True, 3), (counted, True, 2), (most, False, 2), (most, False, 1)]
    forms = forms if view.width >= _WIDE else forms[2:]
    lines = [_legend(shown, view, is_long=is_long, gap=gap) for shown, is_long, gap in forms]
    return next(
        (line for line in lines if sum(width_of(styled_text.text) for styled_text in line) <= view.width),
        lines[-1],
    )


def _legend(counted: Sequence[tuple[str, float]], view: View, *, is_long: bool, gap: int) -> Line:
    line: Line = [StyledText(" ")]
    for at, (name, gpus) in enumerate(counted):
        sign = FILLS[name] * 2
        if view.ascii:
            sign = f"[{ASCII_FILLS[name]}]" if gap > 1 else ASCII_FILLS[name]
        blank = " " * gap if at + 1 < len(counted) else ""
        line += [
            StyledText(sign, name),
            StyledText(f" {name if is_long else _SHORT.get(name, name)} {gpus:.1f}{blank}", "soft"),
        ]
    return line


# -- GPUs ----------------------------------------------------------------------------------------------


def _gpus(frame: Frame, history: LookHistory, view: View, room: int) -> list[Line]:
    """Return the rows of the GPUs: two to a line, or scrolled, if there are more than `room` rows."""
    is_wide = view.width >= _WIDE
    scale = [_scale(view)] if is_wide else []
    pairs = len(frame.gpus) > room - len(scale) and view.width >= 80
    width = (view.width - 2) // 2 if pairs else view.width
    rows = [_gpu(frame, history, view, info, width, is_pair=pairs) for info in frame.gpus]
    if pairs:
        rows = [
            [*row, StyledText("  "), *(rows[at + 1] if at + 1 < len(rows) else [])]
            for at, row in enumerate(rows)
            if at % 2 == 0
        ]
        scale = []
    room = max(1, room - len(scale))
    top = min(view.gpu_top, max(0, len(rows) - room))
    return [*scale, *rows[top : top + room]]


def _bar_room(columns: int, *, is_pair: bool) -> int:
    right = 5 if is_pair else 33 if columns >= _WIDE else 20 if columns >= 80 else 14
    taken = 5 + (10 if columns >= _WIDE and not is_pair else 0)
    return columns - taken - right - 1


def _scale(view: View) -> Line:
    """Return the head of the GPUs: the scale from 0 to 1."""
    room = _bar_room(view.width, is_pair=False)
    marks = [" "] * room
    for text, at in (("0", 0), ("0.25", 0.25), ("0.5", 0.5), ("0.75", 0.75), ("1", 1)):
        begin = min(room - len(text), int(at * room))
        marks[begin : begin + len(text)] = text
    right = f"{'SM':>5} {'10 min':<8}{'memory':>8}{'temp':>6}{'W':>5}"
    return [StyledText(f"GPU  {'model':<9} {''.join(marks)}{right}", "soft")]


def _gpu(
    frame: Frame, history: LookHistory, view: View, info: GpuInfo, columns: int, *, is_pair: bool
) -> Line:
    is_wide = columns >= _WIDE and not is_pair
    model = f"{cut(info.gpu.profile or fields.short_model(info.gpu.model), 9):<9} " if is_wide else ""
    has_jobs = parts_of(info, frame.jobs).charged > 0
    sign = (ASCII_FILLS if view.ascii else FILLS)["down"] if info.is_down else " "
    line: Line = [StyledText(f"{info.gpu.index:>3}"), StyledText(sign, "down"), StyledText(f" {model}")]
    room = _bar_room(columns, is_pair=is_pair)
    line += _bar(frame, view, info, room) if has_jobs or not info.is_down else _down(info, view, room)
    seen = info.seen
    line.append(StyledText(f"{percent(sm_share(info, frame.jobs)):>5}"))
    if is_pair or seen is None:
        return line
    points = history.gpus.get(info.gpu.index, ())
    values = means(points, frame.at - _HISTORY, frame.at, 8 if is_wide else 5, "sm")
    shown = _spark(values, 1.0, view)
    memory = gibibytes(memory_in_use(info), info.gpu.total)
    line += [
        StyledText(f" {shown}" if columns >= 80 else "", "active"),
        StyledText(f"{memory:>{8 if is_wide else 9}}"),
    ]
    if is_wide:
        heat = "–" if seen.temperature is None else f"{seen.temperature}°C"
        power = "–" if seen.power is None else f"{seen.power / 1000:.0f}"
        line.append(StyledText(f"{heat.replace('°', '') if view.ascii else heat:>6}{power:>5}", "soft"))
    return line


def _down(info: GpuInfo, view: View, room: int) -> Line:
    word, why = why_down(info)
    label = cut(clean(f"{word}: {why}" if why else word), max(0, room - 3))
    return _block(label, "down", room, view)


def _bar(frame: Frame, view: View, info: GpuInfo, room: int) -> Line:
    """Return the bar of a GPU: a block for each job, as wide as its charged share, and the rest."""
    charged, parts = parts_of(info, frame.jobs), gpu_classes(frame, info)
    shares = [share for _, share in charged.jobs] + [charged.hidden, parts["external"]]
    shares.append(parts["down"] if info.is_down else parts["free"])
    rooms = cells(shares, room)
    line: Line = []
    for (job, _), columns in zip(charged.jobs, rooms, strict=False):
        label = _label(job, columns, is_wide=view.width >= _WIDE)
        line += _block(label, frame.kind(job, info.gpu.index), columns, view)
    line += _block("others", "charged", rooms[-3], view) if charged.hidden else []
    line += _block("", "external", rooms[-2], view) + _rest(info, view, rooms[-1])
    used = sum(width_of(span.text) for span in line)
    return [*line, StyledText(" " * (room - used))]


def _rest(info: GpuInfo, view: View, room: int) -> Line:
    return _down(info, view, room) if info.is_down and room > 0 else _block("", "free", room, view)


def _label(job: JobInfo, columns: int, *, is_wide: bool) -> str:
    """Return id and user, or the user alone, cut to the block; "" if the block is too narrow."""
    user = clean(job.user)
    full = f"{job.id} {user}" if is_wide else user
    room = columns - 3
    best = next((text for text in (full, user) if width_of(text) <= room), cut(user, room))
    return best if room >= 3 else ""


def _block(label: str, kind: str, room: int, view: View) -> Line:
    """Return the block of a job: its label, then the fill of its class; one blank cell ends it."""
    if room <= 0:
        return []
    if view.ascii:
        inner = max(0, room - 2)
        text = f"{label} " if label and width_of(label) < inner else label[:inner]
        fill = ASCII_FILLS[kind] * (inner - width_of(text))
        return [StyledText(f"[{text}{fill}]"[:room], kind)]
    text = f"{label} " if label else ""
    fill = FILLS[kind] * max(0, room - 1 - width_of(text))
    return [
        StyledText(text, f"{kind}-label"),
        StyledText(fill, kind),
        StyledText(" " * (room - width_of(text) - len(fill))),
    ]


def _spark(values: Sequence[float | None], most: float, view: View) -> str:
    """Draw a history, one cell for a value; a blank is a time without a value."""
    levels = _ASCII_LEVELS if view.ascii else _LEVELS
    top = len(levels) - 1
    return "".join(
        " "
        if value is None
        else levels[round(max(0.0, min(1.0, value / most)) * top)]
        if most > 0
        else levels[0]
        for value in values
    )


# -- jobs ----------------------------------------------------------------------------------------------


def _jobs(frame: Frame, view: View, jobs: Sequence[JobInfo], rows: int) -> list[Line]:
    form = fields.format_for(view.width)
    lines: list[Line] = [[StyledText(f" {fields.head(form)}", "soft")]]
    if not jobs:
        word = "No job passes the filter." if view.filter or view.is_mine else "No job is in the queue."
        word = word if frame.host else "Waiting for the controller."
        lines.append([StyledText(f" {word}", "soft")])
    for job in jobs[view.top : view.top + rows]:
        is_selected = job.id == view.selected
        text, last, kind = fields.row(form, job, frame.of(job), view.width)
        style = "select" if is_selected else "soft" if job.state is JobState.PENDING else "ink"
        mark = ">" if is_selected else " "
        lines.append([StyledText(mark + text, style), StyledText(last, "select" if is_selected else kind)])
    return lines + [[]] * (rows + 1 - len(lines))


def _detail(frame: Frame, history: LookHistory, view: View, jobs: Sequence[JobInfo]) -> list[Line]:
    """Return the five lines about the selected job, on a large screen."""
    if view.width < _WIDE or view.height < _TALL or not jobs or view.panel or not view.has_detail:
        return []
    job = jobs[selected(jobs, view)]
    title = f"── {job.id} {cut(clean(job.name), view.width // 2)} "
    rule = title + "─" * (view.width - width_of(title))
    about = _about(frame, history, view, job)[:4]
    blank: list[Line] = [[]] * (4 - len(about))
    return [[StyledText(rule, "soft")], *about, *blank]


def _about(frame: Frame, history: LookHistory, view: View, job: JobInfo) -> list[Line]:
    lines: list[Line] = [[StyledText(f" {text}")] for text in fields.about(job)]
    if not job.state.holds:
        return lines
    now, points = frame.of(job), history.jobs.get(job.id, ())
    room = max(10, min(60, view.width - 40))
    allocated = sum(allocation.memory for allocation in job.allocated)
    gpus, since = max(1, len(job.allocated)), frame.at - KEPT
    of_each = " of each GPU" if gpus > 1 else ""
    held = None if now.memory is None else now.memory / gpus
    lines.append(
        [
            StyledText(" SM share, 60 min  ", "soft"),
            StyledText(_spark(means(points, since, frame.at, room, "sm"), gpus, view), "active"),
            StyledText(f"  now {percent(None if now.sm is None else now.sm / gpus)}{of_each}"),
        ]
    )
    lines.append(
        [
            StyledText(" memory,   60 min  ", "soft"),
            StyledText(_spark(means(points, since, frame.at, room, "memory"), allocated, view), "active"),
            StyledText(f"  now {gibibytes(held, allocated // gpus, decimals=1)}{of_each}"),
        ]
    )
    return [*lines, *([StyledText(f" {text}")] for text in fields.findings(job, now))]


# -- panels and the last line --------------------------------------------------------------------------


def _panel(frame: Frame, history: LookHistory, view: View, jobs: Sequence[JobInfo], rows: int) -> list[Line]:
    """Return the panel over the list of jobs: help, a job, or the reasons why a job is pending."""
    lines: list[Line]
    if view.panel == "help":
        lines = [[StyledText(f" {text}")] for text in _help(view)]
    elif view.panel == "why":
        lines = [[StyledText(f" {cut(clean(text), view.width - 2)}")] for text in view.why]
    else:
        job = jobs[selected(jobs, view)] if jobs else None
        lines = [] if job is None else [[StyledText(f" {job.id} {clean(job.name)}", "head")]]
        lines += [] if job is None else _about(frame, history, view, job)
    top = min(view.panel_top, max(0, len(lines) - rows))
    shown = lines[top : top + rows]
    return shown + [[]] * (rows - len(shown))


def _help(view: View) -> list[str]:
    signs = ASCII_FILLS if view.ascii else FILLS
    fills = "  ".join(f"{signs[name]} {name}" for name in CLASSES)
    return _HELP.format(fills=fills).splitlines()


_KEYS = {
    "q": "quit",
    "?": "help",
    "/": "filter",
    "u": "mine",
    "s": "sort",
    "Enter": "job",
    "w": "why",
    "t": "tail",
    "k": "cancel",
    "g": "GPUs",
    "Space": "pause",
}
_FEW = ("q", "?", "/", "u", "s", "Enter", "k")


def _last(view: View, jobs: Sequence[JobInfo], rows: int, trouble: str) -> Line:
    if view.asking:
        return [StyledText(f" Cancel job {view.asking}? y/n ", "reverse")]
    if view.is_typing:
        return [StyledText(f" filter: {view.filter}", "head"), StyledText("_", "reverse")]
    if view.message or trouble:
        return [StyledText(f" {clean(view.message or trouble)}", "bad")]
    is_wide = view.width >= _WIDE
    line: Line = []
    for key, word in _KEYS.items():
        if is_wide or key in _FEW:
            line += [StyledText(f" {key}", "key"), StyledText(f" {word} {' ' * (view.width >= 130)}", "soft")]
    end = min(len(jobs), view.top + rows)
    place = f"{view.top + 1}–{end} of {len(jobs)}" if jobs else "no jobs"
    extra = f"/{view.filter} " if view.filter else ""
    used = sum(width_of(span.text) for span in line)
    right = cut(clean(extra) + ("mine " if view.is_mine else "") + place, max(0, view.width - used - 1))
    return [*line, StyledText(pad(right, max(0, view.width - used - 1), right=True), "soft")]
