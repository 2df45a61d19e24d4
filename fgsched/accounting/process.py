"""The controller's end of the accountant: send it messages and receive its answers without blocking."""

import logging
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError

from fgsched.accounting.messages import Answer, Keep, parse_answer
from fgsched.crash import of_successor
from fgsched.gpus.supervisor import helper_command

log = logging.getLogger(__name__)
_CHUNK = 1 << 16  # bytes
_PATIENCE = 10.0  # seconds in which the accountant ends with the controller


class AccountantProcess:
    """The accountant's process and the socket that it and its successors inherit."""

    def __init__(self, path: Path, keep: Keep) -> None:
        """Create it without a process, for the accounts at `path`."""
        self._path = path
        self.keep = keep
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent, self._unread = b"", b""

    def start(self) -> None:
        """Start the process, or another one after it has ended; `fileno` stays the same.

        Messages and answers of the earlier process are discarded.

        Raises:
            OSError: the process cannot be started.
        """
        environ = None
        if self._process is not None:
            self._process.poll()  # so that no zombie is left
            environ = of_successor(os.environ)
        self._drain()
        keep = [str(seconds) for seconds in (self.keep.minutes, self.keep.hours, self.keep.days)]
        command = helper_command("fgsched.accounting.accountant", str(self._path), *keep)
        end = self._theirs.fileno()
        self._process = subprocess.Popen(
            command, stdin=end, stdout=end, cwd="/", env=environ, start_new_session=True
        )

    @property
    def pid(self) -> int:
        """The process; 0 if none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has answers."""
        return self._ours.fileno()

    def send(self, text: bytes) -> None:
        """Send a line; `flush` sends the part that does not fit into the socket."""
        self._unsent += text
        self.flush()

    def flush(self) -> bool:
        """Send the unsent part; return whether all of it was sent."""
        with suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._ours.send(self._unsent) :]
        return not self._unsent

    @property
    def has_unsent(self) -> bool:
        """Tell whether `flush` has something to send."""
        return bool(self._unsent)

    def receive(self) -> list[Answer]:
        """Return the answers that have arrived; never blocks."""
        with suppress(BlockingIOError):
            while data := self._ours.recv(_CHUNK):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        found = []
        for text in lines:
            try:
                found.append(parse_answer(text))
            except MsgspecError as error:
                log.error("an answer of the accountant cannot be read: %s", error)
        return found

    def _drain(self) -> None:
        """Discard unread data in both directions: it may end within a line."""
        self._unsent = self._unread = b""
        for end in (self._ours, self._theirs):
            with suppress(BlockingIOError):
                while end.recv(_CHUNK, socket.MSG_DONTWAIT):
                    pass

    def close(self) -> None:
        """Let the process end; kill it after 10 seconds."""
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
                return
            self._process.kill()
            self._process.wait()
