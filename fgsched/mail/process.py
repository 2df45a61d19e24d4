"""The controller's end of the mailer: put letters into its queue and wake it, without waiting for it."""

import logging
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import msgspec

from fgsched.gpus.supervisor import helper_command
from fgsched.mail.letters import MailSettings
from fgsched.mail.spool import Spool

log = logging.getLogger(__name__)
_CHUNK = 1 << 16  # bytes
_PATIENCE = 1.0  # seconds in which the mailer ends with the controller; a letter that it sends is sent again
_PAUSE = 5.0  # seconds between two starts


def start(path: Path, settings: MailSettings, end: socket.socket) -> subprocess.Popen[bytes]:
    """Start a mailer of the queue at `path`, with its end of the socket.

    The settings are in a file in memory: every user of the host can read the arguments of a process.

    Raises:
        OSError: the process cannot be started.
    """
    with open(os.memfd_create("settings"), "r+b", buffering=0) as file:
        file.write(msgspec.json.encode(settings))
        file.seek(0)
        command = helper_command("fgsched.mail.mailer", str(path), str(file.fileno()))
        both = end.fileno()
        return subprocess.Popen(
            command, stdin=both, stdout=both, pass_fds=(file.fileno(),), cwd="/", start_new_session=True
        )


class MailerProcess:
    """The queue, the process that sends, and the socket that it and its successors inherit."""

    def __init__(self, path: Path, settings: MailSettings) -> None:
        """Create it without a process, for the queue at `path`. Raises OSError."""
        self._spool, self._path = Spool(path), path
        self._settings = settings
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._not_before = 0.0

    @property
    def settings(self) -> MailSettings:
        """The settings in force."""
        return self._settings

    def obey(self, settings: MailSettings) -> None:
        """Restart the process with changed settings."""
        if settings != self._settings:
            self._settings = settings
            self._end()
            self._not_before = 0.0

    def post(self, name: str, data: bytes) -> bool:
        """Put a letter into the queue; return False if it was there before. Raises OSError."""
        is_new = self._spool.put(name, data)
        with suppress(OSError):  # a full socket has woken it already
            self._ours.send(b"\n")
        return is_new

    def due(self, now: float) -> float | None:
        """Return the seconds until the process is to be started again; None: it runs. `now`: monotonic."""
        return None if self._settings.way == "off" or self.pid else max(0.0, self._not_before - now)

    def look(self, now: float) -> None:
        """Start the process unless it runs. `now` is in monotonic seconds."""
        if self._settings.way == "off" or self.pid or now < self._not_before:
            return
        self._not_before = now + _PAUSE
        try:
            self._process = start(self._path, self._settings, self._theirs)
        except OSError as error:
            log.warning("the mailer cannot be started: %s", error)

    @property
    def pid(self) -> int:
        """The process; 0 if none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something."""
        return self._ours.fileno()

    def receive(self) -> list[str]:
        """Return the names of the letters that are durable in the queue; never blocks."""
        with suppress(BlockingIOError):
            while data := self._ours.recv(_CHUNK):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        return [line.decode() for line in lines if line]

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Let the process end; kill it after a second."""
        self._ours.close()
        self._theirs.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
        self._end()
