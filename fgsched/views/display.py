"""Print results: text in columns that is safe for a terminal, and JSON with unknown values as null."""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from fgsched import __version__
from fgsched.domain.text import clean, width_of
from fgsched.domain.times import format_time

# -- columns of text -------------------------------------------------------------------------------


TIME_FORMAT = os.environ.get("FG_TIME_FORMAT") or os.environ.get("SLURM_TIME_FORMAT") or "standard"

SLURM_VERSION = "22.05.8"  # of the Slurm whose answers the commands of fgsched.slurm give


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
