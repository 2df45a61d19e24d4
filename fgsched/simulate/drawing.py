"""The curves of a simulation as an SVG picture: what of the cards is allocated, and how many jobs wait."""

from collections.abc import Sequence
from html import escape

from fgsched.simulate.figures import Figures, Moment

_WIDTH, _HEIGHT = 960, 200  # of each of the two panels
_LEFT, _TOP, _GAP = 60, 60, 60
_STYLE = (
    "text{font:13px sans-serif;fill:#333}.grid{stroke:#ddd}.line{fill:none;stroke-width:1.5}"
    ".share{stroke:#2563a8}.fill{fill:#2563a8;opacity:.15}.jobs{stroke:#b3541e}"
)


def svg(figures: Figures, title: str) -> str:
    """A picture of its own, readable without any other file."""
    most = max((moment.waiting for moment in figures.curve), default=0.0)
    height = _TOP + 2 * _HEIGHT + _GAP + 40
    low = _TOP + _HEIGHT + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="20">{escape(title)}</text>',
            *_frame(_TOP, "allocated", ["0 %", "50 %", "100 %"], figures.hours),
            *_shares(figures.curve),
            *_frame(low, "waiting jobs", ["0", f"{most / 2:.0f}", f"{most:.0f}"], figures.hours),
            f'<polyline class="line jobs" points="{_waiting(figures.curve, low, most)}"/>',
            "</svg>\n",
        ]
    )


def _frame(top: float, name: str, marks: Sequence[str], hours: float) -> list[str]:
    """A panel's lines and words: three heights and, below it, the hours."""
    lines = [f'<text x="{_LEFT}" y="{top - 8}">{name}</text>']
    for number, mark in enumerate(marks):
        y = top + _HEIGHT * (1 - number / (len(marks) - 1))
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:g}" y2="{y:g}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{mark}</text>')
    for quarter in range(5):
        x, hour = _LEFT + _WIDTH * quarter / 4, hours * quarter / 4
        lines.append(f'<text x="{x:g}" y="{top + _HEIGHT + 18:g}" text-anchor="middle">{hour:.3g} h</text>')
    return lines


def _shares(curve: Sequence[Moment]) -> list[str]:
    points = _points([moment.allocated for moment in curve], _TOP, 1.0)
    corners = f"{_LEFT},{_TOP + _HEIGHT} {points} {_LEFT + _WIDTH},{_TOP + _HEIGHT}"
    return [
        f'<polygon class="fill" points="{corners}"/>',
        f'<polyline class="line share" points="{points}"/>',
    ]


def _waiting(curve: Sequence[Moment], top: float, most: float) -> str:
    return _points([moment.waiting for moment in curve], top, most)


def _points(values: Sequence[float], top: float, most: float) -> str:
    """Where a curve runs within its panel."""
    step = _WIDTH / max(1, len(values))
    return " ".join(
        f"{_LEFT + step * (number + 0.5):.1f},{top + _HEIGHT * (1 - (value / most if most else 0)):.1f}"
        for number, value in enumerate(values)
    )
