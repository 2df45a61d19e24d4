"""Watch directories for entries that are added or removed (inotify)."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

MOVED_FROM, MOVED_TO, DELETE, DELETE_SELF, MOVE_SELF = 0x40, 0x80, 0x200, 0x400, 0x800
REMOVALS = MOVED_FROM | DELETE | DELETE_SELF | MOVE_SELF
_ONLY_DIRECTORIES = 0x01000000
_BUFFER = 64 << 10  # bytes


class Inotify:
    """Watches directories; call `read` when its descriptor is readable."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return self._descriptor

    def watch(self, directory: Path, events: int = REMOVALS) -> bool:
        """Watch a directory for `events`; return False if it cannot be watched. Repeating it does no harm."""
        path = os.fsencode(directory)
        watched: int = self._libc.inotify_add_watch(self._descriptor, path, events | _ONLY_DIRECTORIES)
        return watched >= 0

    def read(self) -> None:
        """Discard all events; the caller only needs to know that there were some. Never blocks."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _BUFFER):
                pass

    def close(self) -> None:
        """Close the descriptor, which ends all watches."""
        os.close(self._descriptor)
