"""Directories that every user can reach, in memory where that is as good as a disk."""

import os
import tempfile
from functools import cache
from pathlib import Path

_MEMORY = "/dev/shm"
_ROOM = 1 << 30  # bytes
_LACKS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC  # what tests make there


def new_directory(prefix: str = "fgtest-") -> Path:
    """Return a new directory, which its user removes."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=memory()))
    path.chmod(0o755)
    return path


@cache
def memory() -> str | None:
    """Return where such directories are made; None: where tempfile makes them."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    about = os.statvfs(_MEMORY)
    is_usable = not about.f_flag & _LACKS and about.f_bavail * about.f_frsize >= _ROOM
    return _MEMORY if is_usable else None
