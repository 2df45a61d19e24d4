"""The terminal of the caller: raw mode, window size, copying that never waits, and signals as events."""

import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

_CHUNK = 1 << 16  # bytes
_END_OF_INPUT = b"\x04"  # as a terminal in its usual mode reads it
FORWARDED = (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # while the job is pending
_ALL = (*FORWARDED, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH)


class Feed:
    """Copies what the caller types, or its input, to the job; holds what the job has not read."""

    def __init__(self, source: int, sink: int, *, is_terminal: bool, stop: bytes = b"") -> None:
        """`is_terminal`: of the job; its end of input is a character. `stop`: a byte that ends copying."""
        os.set_blocking(sink, False)
        self._source, self._sink, self._is_terminal = source, sink, is_terminal
        self._held = b""
        self._last = b""
        self._is_open = True
        self._stop = stop
        self.is_stopped = False
        self._is_raw = is_terminal and _is_terminal(
            source
        )  # where the end of input is the loss of the terminal
        self.is_lost = False

    def reads(self) -> list[int]:
        """Return the descriptor to read from, if there is something to wait for."""
        if not self._is_open or self._held or not in_foreground(self._source):
            return []
        return [self._source]

    def writes(self) -> list[int]:
        """Return the descriptor to write to, if something is held."""
        return [self._sink] if self._held else []

    def read(self) -> None:
        """Read once, and write as much as the job takes."""
        try:
            data = os.read(self._source, _CHUNK)
        except OSError:  # the terminal has hung up
            data = b""
        if self._stop and self._stop in data:
            self.is_stopped, data = True, data.partition(self._stop)[0]
        if data or self.is_stopped:
            self._held, self._last = data, data[-1:]
        elif self._is_raw:
            self.is_lost, self._is_open = True, False
        else:
            self._end()
        self.write()

    def write(self) -> None:
        """Write as much as the job takes."""
        try:
            while self._held:
                self._held = self._held[os.write(self._sink, self._held) :]
        except BlockingIOError:
            return
        except OSError:  # the job does not read any more
            self._held, self._is_open = b"", False

    def repeat_end(self) -> None:
        """Type the end of input again: a shell that was not reading yet has missed it."""
        if self._is_terminal and not self._is_open and not self._held:
            self._held = _END_OF_INPUT
            self.write()

    def close(self) -> None:
        """Close the job's end."""
        self._is_open, self._held = False, b""
        os.close(self._sink)

    def _end(self) -> None:
        self._is_open = False
        if self._is_terminal:  # a line that is not ended needs two: the first one submits it
            self._held = _END_OF_INPUT * (1 if self._last in (b"\n", b"") else 2)
        else:
            os.close(self._sink)


def _is_terminal(descriptor: int) -> bool:
    """Return whether a descriptor is a terminal, or was one until it hung up."""
    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return True


def in_foreground(descriptor: int) -> bool:
    """Return whether reading is possible without being stopped: no terminal, or this process owns it."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True


@contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """Switch a terminal to raw mode for a block; does nothing for other descriptors."""
    if not os.isatty(descriptor):
        yield
        return
    import tty

    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed before remains
    try:
        yield
    finally:
        with suppress(termios.error):  # it has hung up
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def size_of(descriptor: int) -> tuple[int, int]:
    """Return (rows, columns) of a terminal; 24 and 80 for other descriptors."""
    try:
        rows, columns = struct.unpack("4H", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, b"\0" * 8))[:2]
    except OSError:
        return 24, 80
    return rows or 24, columns or 80


def set_size(descriptor: int, size: tuple[int, int]) -> None:
    """Set (rows, columns) of a terminal; the kernel tells its programs."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))


def read(descriptor: int) -> bytes | None:
    """Read from a terminal; b"" if its programs have closed it, None if another process has read it first."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however slow the reader is."""
    while data:
        data = data[os.write(descriptor, data) :]


class Signals:
    """Catches signals for a block; `fileno` is readable when there are some."""

    def __enter__(self) -> "Signals":
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._descriptor = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None)
            for number in _ALL
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._descriptor)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reading)
        os.close(self._writing)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reading

    def take(self) -> Iterable[int]:
        """Return the signals that arrived since the last call."""
        try:
            return os.read(self._reading, 256)
        except BlockingIOError:
            return b""
