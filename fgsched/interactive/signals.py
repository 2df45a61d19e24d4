"""Signals of the caller as events that a select loop reads."""

import os
import signal
from collections.abc import Iterable
from types import TracebackType

FORWARDED = (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # while the job is pending
_ALL = (*FORWARDED, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH)


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
