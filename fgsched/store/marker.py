"""The file that says that there was a queue here once, and which one."""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.store.files import replace_file

_FILE = "queue.initialised"


class Marker(NamedTuple):
    """The queue that was made here."""

    queue: str  # its name
    created: float  # seconds since the epoch


def path_of(queue: Path) -> Path:
    """Where the marker of a queue file is."""
    return queue.with_name(_FILE)


def read(queue: Path) -> Marker | None:
    """What the marker says; None if there is none, or it is that of an fgsched that wrote nothing into it."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        found = json.loads(path_of(queue).read_bytes())
        return Marker(str(found["queue"]), float(found["created"]))
    return None


def write(queue: Path, marker: Marker) -> None:
    """Write it down, unless it is there already."""
    if read(queue) != marker:
        replace_file(path_of(queue), json.dumps(marker._asdict()).encode() + b"\n")
