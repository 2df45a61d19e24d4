"""Wait for a lock of a file, and say within two seconds which process holds it."""

import fcntl
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

SILENT = 1.5  # seconds of a wait without a message
_PAUSE = 0.02  # seconds between two tries


def holder(path: Path) -> str:
    """Return "pid N, NAME" of the process on this host that holds a lock of a file; "" if it is not known."""
    with suppress(OSError):
        inode = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" not in words and words[5].rpartition(":")[2] == inode and words[4].isdecimal():
                return f"pid {words[4]}, {Path(f'/proc/{words[4]}/comm').read_text().strip()}"
    return ""


def lock(descriptor: int, path: Path, purpose: str) -> None:
    """Lock an open file alone, and wait as long as another process holds it.

    A long wait prints a line on standard error. `purpose`: what the lock protects, such as "the accounts".
    """
    end = time.monotonic() + SILENT
    while not is_free(descriptor):
        if time.monotonic() >= end:
            tell_wait(path, purpose)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return
        time.sleep(_PAUSE)


def waiting(path: Path, purpose: str) -> str:
    """Return the line about a wait for what a lock protects."""
    return f"waiting for {purpose}: {path} is locked by {holder(path) or 'an unknown process'}"


def is_free(descriptor: int) -> bool:
    """Lock an open file alone, and return True; return False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tell_wait(path: Path, purpose: str) -> None:
    """Print the line about a wait on standard error."""
    if sys.stderr is not None:
        name = os.path.basename(sys.argv[0]) or "fgsched"
        print(f"{name}: {waiting(path, purpose)}", file=sys.stderr, flush=True)
