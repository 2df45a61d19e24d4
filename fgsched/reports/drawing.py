"""Draw the parts of a report that are SVG, in the colours of a light and a dark ground."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from math import log

from msgspec import Struct

from fgsched.reports.model import CLASSES, Mark, Step, TimeClass

WIDTH = 1000  # units of a drawing, which is stretched to the width of its cell
HEIGHT = 36  # pixels of a GPU row
AT_ONCE = 60  # units of the zone of waits below a minute
_BINS = 44
_DOT = 8  # pixels from one dot to the next above it
_LEAST_AXIS = 33 * 3600.0  # seconds: the end of the axis of waits, if no wait is longer


_STACKED: tuple[tuple[TimeClass, str], ...] = (
    ("active", "active"),
    ("held-idle", "held"),
    ("reserved-empty", "empty"),
    ("external", "external"),
    ("down", "down"),
)


def number(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _x(at: int, count: int) -> str:
    return number(WIDTH * at / count)


def _y(part: float) -> str:
    return number(HEIGHT * (1 - min(1.0, max(0.0, part))))


# -- GPU rows ------------------------------------------------------------------------------------------


def classes(steps: Sequence[Step | None]) -> list[tuple[TimeClass, str]]:
    """Return the path of each time class that occurs, stacked from the base; free time has no path."""
    base = [0.0] * len(steps)
    columns: list[tuple[TimeClass, str]] = []
    for name, field in _STACKED:
        top = [
            low + (0.0 if step is None else getattr(step, field))
            for low, step in zip(base, steps, strict=True)
        ]
        path = area(base, top)
        if path:
            columns.append((name, path))
        base = top
    return columns


def area(low: Sequence[float], high: Sequence[float]) -> str:
    """Return the path between two step lines, whose values are from 0 to 1."""
    edges = [(_y(bottom), _y(top)) for bottom, top in zip(low, high, strict=True)]
    path = ""
    for is_drawn, group in groupby(range(len(edges)), key=lambda at: edges[at][0] != edges[at][1]):
        if is_drawn:
            run = list(group)
            path += _outline(run[0], run[-1] + 1, edges)
    return path


def _outline(begin: int, end: int, edges: Sequence[tuple[str, str]]) -> str:
    """Draw one area: up, along the top, down, and back along the bottom."""
    count = len(edges)
    path = f"M{_x(begin, count)} {edges[begin][0]}V{edges[begin][1]}"
    for at, after in pairwise(range(begin, end)):
        if edges[after][1] != edges[at][1]:
            path += f"H{_x(after, count)}V{edges[after][1]}"
    path += f"H{_x(end, count)}V{edges[end - 1][0]}"
    for after, at in pairwise(range(end - 1, begin - 1, -1)):
        if edges[at][0] != edges[after][0]:
            path += f"H{_x(after, count)}V{edges[at][0]}"
    return f"{path}H{_x(begin, count)}z"


def gaps(steps: Sequence[Step | None]) -> str:
    """Return the path of frames around the steps without samples."""
    path = ""
    for is_gap, group in groupby(range(len(steps)), key=lambda at: steps[at] is None):
        if is_gap:
            run = list(group)
            begin, end = _x(run[0], len(steps)), _x(run[-1] + 1, len(steps))
            path += f"M{begin} {HEIGHT}V0H{end}V{HEIGHT}"
    return path


def lines(marks: Iterable[Mark], height: int = HEIGHT) -> str:
    """Return the path of vertical lines at marks inside of a drawing."""
    inside = [number(WIDTH * mark.at) for mark in marks if 0.001 < mark.at < 0.999]
    return "".join(f"M{at} 0V{height}" for at in inside)


# -- waits ---------------------------------------------------------------------------------------------


class Strip(Struct, frozen=True):
    """The drawing of the waits of one size class."""

    height: int  # pixels
    dots: str  # path
    median: str  # path
    grid: str  # path


class WaitAxis:
    """The axis of waits: a zone for less than a minute, then logarithmic."""

    def __init__(self, ticks: Sequence[Mark], longest: float) -> None:
        """`ticks` and `longest` are in seconds."""
        self._end = max(_LEAST_AXIS, longest * 1.15)
        self._ticks = ticks

    def place(self, seconds: float) -> float:
        """Return the units of a wait on the axis."""
        if seconds < 60:
            return AT_ONCE / 2
        return AT_ONCE + (WIDTH - AT_ONCE) * log(seconds / 60) / log(self._end / 60)

    def ticks(self) -> list[Mark]:
        """Return the places of the ticks, from 0 to 1."""
        return [Mark(self.place(tick.at) / WIDTH if tick.at else 0.0, tick.label) for tick in self._ticks]

    def strip(self, dots: Sequence[float], median: float | None) -> Strip:
        """Draw dots, which pile up where several fall into one bin. Waits are in seconds."""
        bins = Counter(min(_BINS - 1, int(self.place(dot) / WIDTH * _BINS)) for dot in dots)
        height = max(24, _DOT * max(bins.values(), default=0) + 6)
        path = "".join(
            f"M{number((at + 0.5) * WIDTH / _BINS)} {height - 5 - _DOT * pile}h0"
            for at, count in sorted(bins.items())
            for pile in range(count)
        )
        line = "" if median is None else f"M{number(self.place(median))} 0V{height}"
        ticks = "".join(f"M{number(self.place(tick.at or 60))} 0V{height}" for tick in self._ticks)
        return Strip(height, path, line, ticks)


class Palette(Struct, frozen=True, kw_only=True):
    """The colours on one ground, as #rrggbb."""

    page: str
    code: str  # ground of code
    ink: str
    soft: str  # secondary text
    rule: str  # between rows; decoration
    classes: dict[TimeClass, str]
    unused: str  # a process computes, and the charged share is not used
    outline: str  # of free
    good: str
    bad: str
    on_active: str  # a label on the class active
    heat: tuple[str, ...]  # six levels, from little to much
    heat_text: tuple[str, ...]  # the number on each level


LIGHT = Palette(
    page="#ffffff",
    code="#f5f6f8",
    ink="#16191d",
    soft="#565d66",
    rule="#d9dde2",
    classes=dict(
        zip(CLASSES, ("#1f66b5", "#c98200", "#9c3306", "#e4e8ec", "#c06fb0", "#41474f"), strict=True)
    ),
    unused="#5f97d2",
    outline="#858e98",
    good="#17608f",
    bad="#a33608",
    on_active="#ffffff",
    heat=("#eef3f8", "#cfe0f0", "#9dc2e3", "#5f9ccf", "#2f74b5", "#123f73"),
    heat_text=("#16191d",) * 4 + ("#ffffff",) * 2,
)
DARK = Palette(
    page="#14171b",
    code="#1c2026",
    ink="#eceff2",
    soft="#a5adb7",
    rule="#343a42",
    classes=dict(
        zip(CLASSES, ("#4f97dd", "#ecb953", "#d65a22", "#2a3037", "#e3afd9", "#7d8590"), strict=True)
    ),
    unused="#34689f",
    outline="#6d7782",
    good="#7dbcf0",
    bad="#f2935c",
    on_active="#0d1013",
    heat=("#1b222a", "#1c3450", "#1f4a78", "#2a68a6", "#5a9fe0", "#b6daf7"),
    heat_text=("#eceff2",) * 4 + ("#0d1013",) * 2,
)
WALL = "#0d1013"  # ground of the wall page and of terminals
DARK_TEXT = {
    "active": "#9cc8f2",
    "held-idle": "#f3cf86",
    "reserved-empty": "#f2935c",
}  # text in a class colour


def variables(ground: Palette) -> str:
    """Return the colours of a ground as declarations of CSS variables."""
    named = {
        "bg": ground.page,
        "alt": ground.code,
        "ink": ground.ink,
        "soft": ground.soft,
        "line": ground.rule,
        **ground.classes,
        "unused": ground.unused,
        "outline": ground.outline,
        "good": ground.good,
        "bad": ground.bad,
        "on": ground.on_active,
        **{f"h{level}": colour for level, colour in enumerate(ground.heat)},
        **{f"t{level}": colour for level, colour in enumerate(ground.heat_text)},
    }
    return "".join(f"--{name}:{colour};" for name, colour in named.items())
