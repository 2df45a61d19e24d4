"""Lay out text in terminal columns: cut it, pad it, wrap it, draw bars, and replace characters for ASCII."""

from collections.abc import Sequence
from textwrap import wrap

from fgsched.domain.text import width_of

WIDTH = 78  # columns of a report
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans(
    "–−×…─═▲▼·°\u202f█▇▓▒░▄▂▚▞╳╱▏▎▍▌▋▊▉▁▃▅▆",
    "--x~-=+-   ##=-.=-!!x/---====.-=#",
)


def cut(text: str, room: int, mark: str = "…") -> str:
    """Return a text of at most `room` columns; `mark` replaces the end of one that is cut."""
    if width_of(text) <= room:
        return text
    shown, taken = "", 0
    for char in text:
        taken += width_of(char)
        if taken > room - len(mark):
            break
        shown += char
    return (shown + mark)[: max(0, room)]


def pad(text: str, room: int, *, right: bool = False) -> str:
    """Return a text padded to `room` columns."""
    blank = " " * (room - width_of(text))
    return blank + text if right else text + blank


def ascii_only(text: str) -> str:
    """Return a text in ASCII of the same width: signs of reports have equivalents, others become '?'."""
    return text.replace("≤ ", "<=").translate(_ASCII).encode("ascii", "replace").decode()


def paragraph(text: str, indent: str = "", first: str | None = None, room: int = WIDTH) -> list[str]:
    """Wrap a text; no line is longer than `room` columns."""
    lines = wrap(
        text,
        room,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [cut(line, room) for line in lines]


def eighths(part: float, room: int) -> str:
    """Draw a bar of a part (0 to 1) of `room` columns, in eighths."""
    steps = round(max(0.0, min(1.0, part)) * room * 8)
    if part > 0 and steps == 0:
        steps = 1
    full, rest = divmod(steps, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def cells(parts: Sequence[float], room: int) -> list[int]:
    """Divide `room` columns in proportion to `parts`, by largest remainder; they need not fill it."""
    exact = [max(0.0, part) * room for part in parts]
    whole = [int(value) for value in exact]
    left = min(room, round(sum(exact))) - sum(whole)
    order = sorted(range(len(parts)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[: max(0, left)]:
        whole[at] += 1
    return whole
