"""Wait for a condition without asking for it again and again: it is checked after each event."""

import select
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from fgsched.system.inotify import DELETE, MOVED_FROM, MOVED_TO, Inotify

PATIENCE = 120  # seconds after which a test gives up; nothing is slow on purpose
_PAUSE = 0.005  # seconds between two looks at what no event tells
_MODIFY, _CLOSE_NOWRITE, _CREATE = 0x2, 0x10, 0x100
CHANGES = _MODIFY | _CREATE | MOVED_TO | MOVED_FROM | DELETE
LOOKS = _CLOSE_NOWRITE  # a process has read a file
Value = TypeVar("Value")


def until(directory: Path, is_so: Callable[[], Value], events: int = CHANGES) -> Value:
    """Return the value of a condition once it is true; check it after each event in a directory.

    A controller that stores a change or writes to its log modifies a file of its directory.
    """
    with closing(Inotify()) as inotify:
        assert inotify.watch(directory, events), directory
        end = time.monotonic() + PATIENCE
        while not (found := is_so()):
            left = max(0.0, end - time.monotonic())
            assert select.select([inotify], [], [], left)[0], f"it never came to that: {found!r}"
            inotify.read()
    return found


def until_written(file: Path, text: str = "\n") -> str:
    """Return the content of a file once it contains a text."""

    def content() -> str:
        found = file.read_text() if file.exists() else ""
        return found if text in found else ""

    return until(file.parent, content)


def until_stopped(pid: int, *, is_stopped: bool = True) -> None:
    """Wait until a process is stopped, or goes on: the kernel reports neither except to its parent."""
    end = time.monotonic() + PATIENCE
    while (state_of(pid) == "T") is not is_stopped:
        assert time.monotonic() < end, f"process {pid} has the state {state_of(pid)}"
        rest()


def rest() -> None:
    """Leave the processor to others between two looks at what no event tells."""
    select.select([], [], [], _PAUSE)


def state_of(pid: int) -> str:
    """Return the letter with which the kernel shows the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended and was not waited for; False if it is gone by now."""
    try:
        return state_of(pid) == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
