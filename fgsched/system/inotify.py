"""Word from the kernel that entries of a directory come or go."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

MOVED_FROM, MOVED_TO, DELETE, DELETE_SELF, MOVE_SELF = 0x40, 0x80, 0x200, 0x400, 0x800
LOSS = MOVED_FROM | DELETE | DELETE_SELF | MOVE_SELF
_ONLY_DIRECTORIES = 0x01000000
_BUFFER = 64 << 10  # bytes


class Inotify:
    """Watches directories; `read` after its descriptor became readable."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fileno(self) -> int:
        return self._descriptor

    def watch(self, directory: Path, events: int = LOSS) -> bool:
        """Hear of these events in a directory; False if it cannot be watched. May be called again."""
        path = os.fsencode(directory)
        watched: int = self._libc.inotify_add_watch(self._descriptor, path, events | _ONLY_DIRECTORIES)
        return watched >= 0

    def read(self) -> None:
        """Take what was said: that something changed is all that is asked."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _BUFFER):
                pass

    def close(self) -> None:
        os.close(self._descriptor)
