"""Lay out text in terminal columns, safe for a terminal, and JSON with unknown values as null."""

import os
import time
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from fgsched import __version__
from fgsched.domain.text import clean, width_of
from fgsched.domain.times import format_time

# -- columns of text -------------------------------------------------------------------------------


TIME_FORMAT = os.environ.get("FG_TIME_FORMAT") or os.environ.get("SLURM_TIME_FORMAT") or "standard"

SLURM_VERSION = "24.11.5"  # of the Slurm whose answers the commands of fgsched.slurm give


def host_name() -> str:
    """Return the short name of this host, which is the only node."""
    return os.uname().nodename.partition(".")[0]


def shown_time(epoch: float | None, *, unknown: str = "N/A") -> str:
    """Return a time (seconds since the epoch) in the reader's time zone, in the form of FG_TIME_FORMAT."""
    now = time.time() if TIME_FORMAT == "relative" else None
    return format_time(epoch, TIME_FORMAT, now=now, unknown=unknown)


def fit(text: str, width: int, *, right: bool = False, mark: str = "") -> str:
    """Pad or truncate a text to `width` terminal columns; width 0 leaves it unchanged.

    `mark` replaces the end of a truncated text.
    """
    if not width:
        return text
    if not text.isascii():
        return _fit_wide(text, width, right, mark)
    if len(text) > width:
        return text[: width - len(mark)] + mark
    return text.rjust(width) if right else text.ljust(width)


def _fit_wide(text: str, width: int, right: bool, mark: str) -> str:
    """Fit text with wide characters (two columns) or combining marks (no column)."""
    taken = width_of(text)
    if taken > width:
        room, text, cut = width - len(mark), "", text
        taken = 0
        for char in cut:
            step = width_of(char)
            if taken + step > room:
                break
            text, taken = text + char, taken + step
        text, taken = text + mark, taken + len(mark)
    blank = " " * (width - taken)
    return blank + text if right else text + blank


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = True) -> str:
    """Format a table with left-aligned columns as wide as their widest cell."""
    from tabulate import tabulate  # a listing with fixed columns does without

    cells = [list(headings)] * header + [[clean(cell) for cell in row] for row in rows]
    text = tabulate(cells, tablefmt="plain", disable_numparse=True)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


# -- JSON: times are given as epoch seconds and ISO 8601 -------------------------------------------


def document(**content: Any) -> str:
    """Return the JSON object with its `meta`: version, time and host."""
    now = time.time()
    meta = {
        "version": __version__,
        "time": now,
        "time_iso": iso(now),
        "host": host_name(),
    }
    import json  # only for programs; a table needs none of it

    return json.dumps({"meta": meta} | content) + "\n"


def iso(epoch: float | None) -> str | None:
    """Format epoch seconds as local time with the offset from UTC."""
    return None if epoch is None else format_time(epoch, "%Y-%m-%dT%H:%M:%S%z")


def time_fields(**moments: float | None) -> dict[str, float | str | None]:
    """Expand submit=1.0 (epoch seconds) to submit_time and submit_time_iso."""
    fields: dict[str, float | str | None] = {}
    for name, epoch in moments.items():
        fields |= {f"{name}_time": epoch, f"{name}_time_iso": iso(epoch)}
    return fields


def gpu_number(units: int | None) -> float | None:
    """Convert ten-thousandths to a number of GPUs."""
    return None if units is None else units / 10_000


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
