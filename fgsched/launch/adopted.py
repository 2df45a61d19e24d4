"""Wait for a process that was started outside of fgsched, and pass the signals of its job on to it.

This is the program of the job of an adopted process. It uses the standard library only and imports nothing of
fgsched, because it runs as the owner of the process, by its path: `adopted.py PID START KILL_WAIT`.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

ORDER = (signal.SIGTERM, signal.SIGCONT)  # together they are the order to end
_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGWINCH,
    *ORDER,  # handled last: then the launcher gives orders
)
_TOGETHER = 1.0  # seconds within which SIGCONT and SIGTERM are the order to end, not signals of a user
_BEFORE = 0.8  # of the time until the job itself is killed, after which the process is killed


class AdoptedProgram:
    """The process, and the signals of its job."""

    def __init__(self, pidfd: int, kill_wait: float) -> None:
        """`kill_wait`: seconds between SIGTERM and SIGKILL."""
        self.pidfd, self._kill_wait = pidfd, kill_wait
        self._signalled_at: dict[int, float] = {}  # signal -> when it came last, in monotonic seconds
        self._kill_at: float | None = None

    def forward(self, number: int, now: float) -> None:
        """Send a signal on; SIGCONT and SIGTERM together begin the time until SIGKILL."""
        self._signalled_at[number] = now
        self._send(number)
        if self._kill_at is None and self._is_ordered_to_end(now):
            self._kill_at = now + self._kill_wait * _BEFORE

    def _is_ordered_to_end(self, now: float) -> bool:
        return all(now - self._signalled_at.get(number, -_TOGETHER) < _TOGETHER for number in ORDER)

    def kill_if_due(self, now: float) -> float | None:
        """Kill the process if its time has passed; return the seconds until then, None if none is set."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._send(signal.SIGKILL)
        return None if self._kill_at is None else self._kill_at - now

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it ended, or runs with other rights now
            signal.pidfd_send_signal(self.pidfd, number)


def opened(pid: int, start: int) -> int | None:
    """Return a pidfd of the process that began `start` clock ticks after the boot; None if it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (ProcessLookupError, FileNotFoundError):
        return None
    return pidfd if int(text[text.rindex(b")") + 2 :].split()[19]) == start else None


def main(pid: int, start: int, kill_wait: float) -> int:
    """Return 0 when the process has ended. Its own exit status is known to its parent only."""
    own_end, signal_end = socket.socketpair()
    own_end.setblocking(False)
    signal_end.setblocking(False)
    signal.set_wakeup_fd(signal_end.fileno())
    for number in _FORWARDED:
        signal.signal(number, lambda *_: None)
    pidfd = opened(pid, start)
    if pidfd is None:
        return 0
    process = AdoptedProgram(pidfd, kill_wait)
    while True:
        timeout = process.kill_if_due(time.monotonic())
        ready, _, _ = select.select([pidfd, own_end.fileno()], [], [], timeout)
        if pidfd in ready:
            return 0
        for forwarded in own_end.recv(64) if ready else b"":
            process.forward(forwarded, time.monotonic())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
