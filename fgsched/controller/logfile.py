"""Write the controller's log to a rotated file, to the journal, or to standard error.

A file line is `2026-11-22T15:30:01.123+01:00 info job=12 …`. The journal gets `<6>job=12 …`: the level in
the form of sd-daemon(3), without a time. Errors of this module never stop the controller.
"""

import logging
import os
import select
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from fgsched.controller.decisionlog import ERROR, INFO, LEVELS, WARNING, DecisionLog, Line

MOST = 8 << 20  # bytes of the file; the one before is kept as well
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_OWN = os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
Prefix = Callable[[float, int], str]  # (seconds since the epoch, level) -> what stands before a line


def dated(at: float, level: int) -> str:
    """Return time and level of a line, in the time zone of the host."""
    text, zone = _second(int(at))
    return f"{text}.{int(at % 1 * 1000):03d}{zone} {LEVELS[level]} "


@lru_cache(maxsize=2)  # most lines have the second of the line before
def _second(at: int) -> tuple[str, str]:
    now = time.localtime(at)
    zone = time.strftime("%z", now)
    return time.strftime("%Y-%m-%dT%H:%M:%S", now), f"{zone[:3]}:{zone[3:]}"


def leveled(at: float, level: int) -> str:
    """Return the level of a line as the journal reads it."""
    return f"<{level}>"


class LineFormatter(logging.Formatter):
    """Formats messages of `logging` as lines.

    The lines of a traceback are indented to distinguish them from decisions.
    """

    def __init__(self, prefix: Prefix) -> None:
        super().__init__()
        self.prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        level = next((one for one in (ERROR, WARNING) if record.levelno >= _NUMBERS[one]), INFO)
        prefix = self.prefix(record.created, level)
        first, *rest = super().format(record).split("\n")
        return "\n".join([prefix + _safe(first), *(f"{prefix}  | {_safe(line)}" for line in rest)])


_NUMBERS = {ERROR: logging.ERROR, WARNING: logging.WARNING}


def _safe(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


class LogHandler(logging.Handler):
    """Write records to a descriptor without blocking; drop lines that a full pipe or terminal refuses."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._is_torn = False  # the last write ended within a line
        self._dropped = 0  # lines since the last one that told their number

    def emit(self, record: logging.LogRecord) -> None:
        self.put(self.format(record))

    def put(self, text: str) -> None:
        """Write lines. Lines that cannot be written are lost, so that the log never stops the controller."""
        with suppress(OSError):
            self._mind()
            data = text.encode(errors="backslashreplace") + b"\n"
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                self._write(data)
            else:
                self._offer(data)

    def _write(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        while data:
            count = os.write(self._descriptor, data)
            self._is_torn = not data[:count].endswith(b"\n")
            data = data[count:]

    def _offer(self, data: bytes) -> None:
        """Write lines without blocking; count the lines that do not fit."""
        with _unblocked(self._descriptor) as descriptor:
            if self._dropped:
                lines = "line of the log was" if self._dropped == 1 else "lines of the log were"
                note = f"{_prefix_of(self)(time.time(), WARNING)}{self._dropped} {lines} dropped\n"
                if self._left(descriptor, note.encode()):
                    self._dropped += data.count(b"\n")
                    return
                self._dropped = 0
            self._dropped = self._left(descriptor, data)

    def _left(self, descriptor: int, data: bytes) -> int:
        """Write whole lines without blocking. Return the number of lines that were not written."""
        if self._is_torn:
            data = b"\n" + data
        at = 0
        with suppress(BlockingIOError):
            while at < len(data) and _is_writable(descriptor):
                end = data.rfind(b"\n", at, at + select.PIPE_BUF) + 1 or at + select.PIPE_BUF
                at += os.write(descriptor, data[at:end])
                self._is_torn = data[at - 1 : at] != b"\n"
        return data.count(b"\n", at) - data.startswith(b"\n", at)  # only the end of a line is no line

    def _mind(self) -> None:
        """Make sure of the descriptor before each write."""


class LogFile(LogHandler):
    """Write to the log file, and reopen it if it was moved or removed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(descriptor)
        self._path = path

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
            with suppress(OSError):  # if it cannot be moved, it grows
                os.rename(self._path, f"{self._path}.1")
                self._reopen()

    def _reopen(self) -> None:
        """Reopen the file; keep the old descriptor if that fails."""
        with suppress(OSError):
            fresh = os.open(self._path, _OPEN, 0o600)
            if stat.S_ISREG(os.fstat(fresh).st_mode):
                os.dup2(fresh, self._descriptor)
                self._is_torn = False
            os.close(fresh)


@contextmanager
def _unblocked(descriptor: int) -> Iterator[int]:
    """Return a non-blocking descriptor of the same pipe or terminal; the same one if that fails.

    The present descriptor is shared with other processes, which do not expect O_NONBLOCK. Without it, a
    terminal may block although it was writable.
    """
    own = None
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            own = os.open(f"/proc/self/fd/{descriptor}", _OWN)
    try:
        yield descriptor if own is None else own
    finally:
        if own is not None:
            os.close(own)


def _is_writable(descriptor: int) -> bool:
    """Return whether a write of PIPE_BUF bytes does not block, or fails."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def handler(path: Path, environ: Mapping[str, str], descriptor: int = 2) -> LogHandler:
    """Return the handler for a descriptor: for the journal, for the log file, or for any other file."""
    with suppress(OSError):
        found = os.fstat(descriptor)
        if environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}":
            return _formatting(LogHandler(descriptor), leveled)
        if os.path.samestat(found, path.lstat()):
            return _formatting(LogFile(path, descriptor), dated)
    return _formatting(LogHandler(descriptor), dated)


def _formatting(one: LogHandler, prefix: Prefix) -> LogHandler:
    one.setFormatter(LineFormatter(prefix))
    return one


def writer(handlers: Sequence[logging.Handler]) -> Callable[[Sequence[Line]], None]:
    """Return the function that writes the lines of a turn, in one write, to each handler of the log."""
    own = [(one, _prefix_of(one)) for one in handlers if isinstance(one, LogHandler)]

    def write(lines: Sequence[Line]) -> None:
        for one, prefix in own:
            one.put("\n".join([prefix(line.at, line.level) + line.text for line in lines]))

    return write


def _prefix_of(one: LogHandler) -> Prefix:
    return one.formatter.prefix if isinstance(one.formatter, LineFormatter) else dated


def decision_log() -> DecisionLog:
    """Return a log of decisions that is written where `logging` writes."""
    return DecisionLog(writer(logging.getLogger().handlers))
