"""Notify the service manager as sd_notify(3) does: ready, still alive, stopping."""

import os
import socket
from collections.abc import Mapping

_RETRY = 0.5  # seconds until a message that was not taken is sent again


class ServiceManager:
    """The service manager that started this process; without one, nothing is sent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read NOTIFY_SOCKET, the socket, and WATCHDOG_USEC, the longest silence in microseconds."""
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._period = _period(environ) if self._address else None
        self._due: float | None = None  # monotonic seconds of the next keep-alive message
        self._is_unready = False  # a message did not fit into the service manager's queue

    def ready(self, status: str, now: float) -> None:
        """Report that requests are served from now on. `now`: seconds of the monotonic clock, as below."""
        self._is_unready = not self._send(f"READY=1\nSTATUS={_one_line(status)}")
        self._due = self._next(now)

    def stopping(self) -> None:
        """Report that the controller is stopping."""
        self._send("STOPPING=1")

    def due(self, now: float) -> float | None:
        """Return the seconds until the next keep-alive message is due; None if none is requested."""
        return None if self._due is None else max(0.0, self._due - now)

    def is_due(self, now: float) -> bool:
        """Return whether a keep-alive message is due."""
        return self._due is not None and now >= self._due

    def alive(self, status: str, now: float) -> None:
        """Send a keep-alive message."""
        ready = "READY=1\n" if self._is_unready else ""
        if self._send(f"{ready}WATCHDOG=1\nSTATUS={_one_line(status)}"):
            self._is_unready = False
        self._due = self._next(now)

    def _next(self, now: float) -> float | None:
        if self._is_unready:
            return now + _RETRY
        return now + self._period if self._period is not None else None

    def _send(self, message: str) -> bool:
        """Send a message; return False if the queue of the service manager is full.

        Other errors are ignored, because the service manager notices the silence.
        """
        if not self._address:
            return True
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(errors="backslashreplace"), os.fsencode(name))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


def _period(environ: Mapping[str, str]) -> float | None:
    """Return the seconds between two keep-alive messages: half of the service manager's limit."""
    period, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (period.isascii() and period.isdigit()) or int(period) == 0:
        return None
    return int(period) / 2e6 if pid in ("", str(os.getpid())) else None


def _one_line(text: str) -> str:
    return " ".join(text.split())
