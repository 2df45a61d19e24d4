"""Write small files beside the queue atomically: its marker, and the list of its damaged pages."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fgsched.domain.errors import StorageError
from fgsched.system import disk

PAGE = 4096  # bytes of a page of the queue
# Errors of a damaged file. Python raises the second one if a message of SQLite quotes text that is not UTF-8.
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)


# -- damaged pages that a running controller found, for its next start --------


DAMAGE_END = ".damaged"  # of queue and accounts
RECOVER = (
    "It is left as it is. Save what can be read with: fgsched doctor --recover, which fgsched(8) explains;"
    " or bring a backup of the queue back, and do that with it."
)
_SHOWN = 10


def damage_error(queue: Path, pages: Iterable[int], remedy: str = RECOVER) -> StorageError:
    """Return the error that refuses a queue with these damaged pages."""
    found = sorted(set(pages))
    listed = ", ".join(map(str, found[:_SHOWN])) + (" …" if len(found) > _SHOWN else "")
    plural = "" if len(found) == 1 else "s"
    return StorageError(f"{queue} is damaged: it differs from its checksums at page{plural} {listed}", remedy)


def remember_damage(queue: Path, pages: Iterable[int]) -> None:
    """Store the damaged pages, so that the next start checks them first."""
    with suppress(OSError):
        disk.replace_file(queue.with_suffix(DAMAGE_END), json.dumps(sorted(set(pages))).encode())


def known_damage(queue: Path) -> list[int]:
    """Return the pages that an earlier controller found damaged."""
    with suppress(OSError, ValueError, TypeError):
        damage = json.loads(queue.with_suffix(DAMAGE_END).read_bytes())
        return [int(page) for page in damage if int(page) > 0]
    return []


def forget_damage(queue: Path) -> None:
    """Delete the list of damaged pages, after a check found them intact."""
    with suppress(OSError):
        disk.remove(queue.with_suffix(DAMAGE_END), missing_ok=True)


# -- the queue that was created here ------------------------------------------


_MARKER_FILE = "queue.initialised"


class Marker(NamedTuple):
    """Identifies the queue that was created here."""

    queue: str  # its name
    created: float  # seconds since the epoch


def marker_path(queue: Path) -> Path:
    """Return the path of the marker file of a queue file."""
    return queue.with_name(_MARKER_FILE)


def read_marker(queue: Path) -> Marker | None:
    """Return the marker, or None if there is none or it is empty (written by an early version)."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        found = json.loads(marker_path(queue).read_bytes())
        return Marker(str(found["queue"]), float(found["created"]))
    return None


def write_marker(queue: Path, marker: Marker) -> None:
    """Write the marker, unless the file contains it."""
    if read_marker(queue) != marker:
        disk.write_marker(marker_path(queue), json.dumps(marker._asdict()).encode() + b"\n")
