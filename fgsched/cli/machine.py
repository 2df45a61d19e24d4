"""JSON output: one object; unknown values are null, and times are given as epoch seconds and ISO 8601."""

import os
import time
from typing import Any

from fgsched import __version__
from fgsched.domain.times import format_time


def document(**content: Any) -> str:
    """Return the JSON object with its `meta`: version, time and host."""
    now = time.time()
    meta = {
        "version": __version__,
        "time": now,
        "time_iso": iso(now),
        "host": os.uname().nodename.split(".")[0],
    }
    import json  # only for programs; a table needs none of it

    return json.dumps({"meta": meta} | content) + "\n"


def iso(epoch: float | None) -> str | None:
    """Format epoch seconds as local time with the offset from UTC."""
    return None if epoch is None else format_time(epoch, "%Y-%m-%dT%H:%M:%S%z")


def times(**moments: float | None) -> dict[str, float | str | None]:
    """Expand submit=1.0 (epoch seconds) to submit_time and submit_time_iso."""
    found: dict[str, float | str | None] = {}
    for name, epoch in moments.items():
        found |= {f"{name}_time": epoch, f"{name}_time_iso": iso(epoch)}
    return found


def gpus(units: int | None) -> float | None:
    """Convert ten-thousandths to a number of GPUs."""
    return None if units is None else units / 10_000
