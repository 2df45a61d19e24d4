"""Draw the curves of a simulation as SVG: the allocated part of the GPUs, and the number of waiting jobs."""

from collections.abc import Sequence
from html import escape

from fgsched.simulate.metrics import CurvePoint, Metrics

_WIDTH, _HEIGHT = 960, 200  # pixels of each of the two panels
_LEFT, _TOP, _GAP = 60, 60, 60
_STYLE = (
    "text{font:13px sans-serif;fill:#333}.grid{stroke:#ddd}.line{fill:none;stroke-width:1.5}"
    ".share{stroke:#2563a8}.fill{fill:#2563a8;opacity:.15}.jobs{stroke:#b3541e}"
)


def svg(metrics: Metrics, title: str) -> str:
    """Return a self-contained SVG document."""
    highest = max((point.waiting for point in metrics.curve), default=0.0)
    height = _TOP + 2 * _HEIGHT + _GAP + 40
    low = _TOP + _HEIGHT + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="20">{escape(title)}</text>',
            *_frame(_TOP, "allocated", ["0 %", "50 %", "100 %"], metrics.hours),
            *_shares(metrics.curve),
            *_frame(low, "waiting jobs", ["0", f"{highest / 2:.0f}", f"{highest:.0f}"], metrics.hours),
            f'<polyline class="line jobs" points="{_waiting(metrics.curve, low, highest)}"/>',
            "</svg>\n",
        ]
    )


def _frame(top: float, name: str, marks: Sequence[str], hours: float) -> list[str]:
    """Draw the grid of a panel, with a mark at each line and the hours below."""
    lines = [f'<text x="{_LEFT}" y="{top - 8}">{name}</text>']
    for number, mark in enumerate(marks):
        y = top + _HEIGHT * (1 - number / (len(marks) - 1))
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:g}" y2="{y:g}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end">{mark}</text>')
    for quarter in range(5):
        x, hour = _LEFT + _WIDTH * quarter / 4, hours * quarter / 4
        lines.append(f'<text x="{x:g}" y="{top + _HEIGHT + 18:g}" text-anchor="middle">{hour:.3g} h</text>')
    return lines


def _shares(curve: Sequence[CurvePoint]) -> list[str]:
    points = _points([point.allocated for point in curve], _TOP, 1.0)
    corners = f"{_LEFT},{_TOP + _HEIGHT} {points} {_LEFT + _WIDTH},{_TOP + _HEIGHT}"
    return [
        f'<polygon class="fill" points="{corners}"/>',
        f'<polyline class="line share" points="{points}"/>',
    ]


def _waiting(curve: Sequence[CurvePoint], top: float, highest: float) -> str:
    return _points([point.waiting for point in curve], top, highest)


def _points(values: Sequence[float], top: float, highest: float) -> str:
    """Return the points of a curve in its panel."""
    step = _WIDTH / max(1, len(values))
    return " ".join(
        f"{_LEFT + step * (number + 0.5):.1f},{top + _HEIGHT * (1 - (value / highest if highest else 0)):.1f}"
        for number, value in enumerate(values)
    )
