"""Record in a file that a queue was created here, and which one."""

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.store.files import replace_file

_FILE = "queue.initialised"


class Marker(NamedTuple):
    """Identifies the queue that was created here."""

    queue: str  # its name
    created: float  # seconds since the epoch


def path_of(queue: Path) -> Path:
    """Return the path of the marker file of a queue file."""
    return queue.with_name(_FILE)


def read(queue: Path) -> Marker | None:
    """Return the marker, or None if there is none or it is empty (written by an early version)."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        found = json.loads(path_of(queue).read_bytes())
        return Marker(str(found["queue"]), float(found["created"]))
    return None


def write(queue: Path, marker: Marker) -> None:
    """Write the marker unless the file already contains it."""
    if read(queue) != marker:
        replace_file(path_of(queue), json.dumps(marker._asdict()).encode() + b"\n")
