"""The log of a user's controller: reopened when it was moved away, and moved away when it is large.

In system mode, and where a person started the controller, standard error is not this file and stays as it is.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

MOST = 8 << 20  # bytes of the file; the one before is kept as well
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LogFile(logging.Handler):
    """Writes to a descriptor, which stays that of the file with this name."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__()
        self._path, self._descriptor = path, descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._mind()
            line = self.format(record).encode(errors="backslashreplace") + b"\n"
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            return  # a full disk: nothing stops for a line of the log

    def _mind(self) -> None:
        ours = os.fstat(self._descriptor)
        try:
            found = self._path.lstat()
        except OSError:
            self._reopen()
            return
        if not os.path.samestat(ours, found):
            self._reopen()
        elif found.st_size >= MOST:
            os.rename(self._path, f"{self._path}.1")
            self._reopen()

    def _reopen(self) -> None:
        """With what there was, where that is not possible."""
        with suppress(OSError):
            fresh = os.open(self._path, _OPEN, 0o600)
            if stat.S_ISREG(os.fstat(fresh).st_mode):
                os.dup2(fresh, self._descriptor)
            os.close(fresh)


def handler(path: Path, descriptor: int = 2) -> logging.Handler:
    """Of what is logged: to that file if the descriptor is it, else to standard error as it is."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return LogFile(path, descriptor)
    return logging.StreamHandler()
