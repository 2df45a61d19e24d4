"""The controller's end of the reporter: ask it for reports, and take its answers without blocking."""

import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from fgsched.gpus.supervisor import helper_command
from fgsched.reports.request import Made, ReportRequest

_CHUNK = 1 << 16  # bytes
_ENDED = "the reporter has ended before it answered"
Watch = Callable[[int, Callable[[], None]], None]


class ReporterProcess:
    """The process that makes reports for users who may not read the accounts, from its first request on."""

    def __init__(self, accounts: Path, watch: Watch, answered: Callable[[Made], None]) -> None:
        """Create it without a process.

        Args:
            accounts: path of the accounts.
            watch: calls back once when the process of a pidfd has ended.
            answered: takes each answer.
        """
        self._accounts, self._watch, self._answered = accounts, watch, answered
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._unread, self._number = b"", 0
        self._asked: list[int] = []  # numbers of requests without an answer

    def ask(self, request: ReportRequest) -> int:
        """Send a request, and return its number, which its answer has. Raises OSError."""
        if self._process is None:
            self._start()
        self._number += 1
        line = msgspec.json.encode(msgspec.structs.replace(request, number=self._number)) + b"\n"
        if self._ours.send(line) < len(line):
            raise OSError("the reporter is stopped")
        self._asked.append(self._number)
        return self._number

    def _start(self) -> None:
        command = helper_command("fgsched.simulate.reporter", str(self._accounts))
        end = self._theirs.fileno()
        self._process = subprocess.Popen(command, stdin=end, stdout=end, cwd="/", start_new_session=True)
        pidfd = os.pidfd_open(self._process.pid)
        self._watch(pidfd, lambda: self._ended(pidfd))

    def _ended(self, pidfd: int) -> None:
        """Answer what the process did not answer, and start another one for the next request."""
        os.close(pidfd)
        self.receive()
        if self._process is not None:
            self._process.wait()
        self._process, self._unread = None, b""
        with suppress(BlockingIOError):
            while self._theirs.recv(_CHUNK, socket.MSG_DONTWAIT):
                pass
        for number in list(self._asked):
            self._take(Made(number=number, error=_ENDED, remedy="Ask for a shorter period."))

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has answers."""
        return self._ours.fileno()

    def receive(self) -> None:
        """Take in the answers that have arrived; never blocks."""
        with suppress(BlockingIOError):
            while data := self._ours.recv(_CHUNK):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            with suppress(msgspec.MsgspecError):
                self._take(msgspec.json.decode(line, type=Made))

    def _take(self, made: Made) -> None:
        if made.number in self._asked:
            self._asked.remove(made.number)
            self._answered(made)

    def close(self) -> None:
        """End the process."""
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
