"""The controller's end of the mailer: put letters into its queue and wake it, without waiting for it."""

import logging
import os
from pathlib import Path

import msgspec

from fgsched.mail.letters import MailSettings
from fgsched.mail.spool import Spool
from fgsched.system.helper import Helper

log = logging.getLogger(__name__)


class MailerProcess(Helper):
    """The queue, and the process that sends. A letter that an ended process was sending is sent again."""

    def __init__(self, path: Path, settings: MailSettings) -> None:
        """Create it without a process, for the queue at `path`. Raises OSError."""
        super().__init__("fgsched.mail.mailer", pause=5.0)
        self._spool, self._path = Spool(path), path
        self._settings = settings

    @property
    def settings(self) -> MailSettings:
        """The settings in force."""
        return self._settings

    def obey(self, settings: MailSettings) -> None:
        """Restart the process with changed settings."""
        if settings != self._settings:
            self._settings = settings
            self.stop()

    def post(self, name: str, data: bytes) -> bool:
        """Put a letter into the queue; return False if it was there before. Raises OSError."""
        is_new = self._spool.put(name, data)
        if self.flush():  # a full socket has woken it already
            self.send(b"\n")
        return is_new

    def due(self, now: float) -> float | None:
        """Return the seconds until the process is to be started again; None: it runs. `now`: monotonic."""
        return None if self._settings.way == "off" or self.is_running else self.pause_left(now)

    def look(self, now: float) -> None:
        """Start the process unless it runs. `now` is in monotonic seconds."""
        if self.due(now) == 0.0:
            try:
                self.start(now)
            except OSError as error:
                log.warning("the mailer cannot be started: %s", error)

    def start(self, now: float) -> None:
        """Start the process. `now` is in monotonic seconds.

        The settings are in a file in memory: every user of the host can read the arguments of a process.

        Raises:
            OSError: the process cannot be started.
        """
        with open(os.memfd_create("settings"), "r+b", buffering=0) as file:
            file.write(msgspec.json.encode(self._settings))
            file.seek(0)
            self.launch(str(self._path), str(file.fileno()), now=now, pass_fds=(file.fileno(),))

    def receive(self) -> list[str]:
        """Return the names of the letters that are durable in the queue; never blocks."""
        return [line.decode() for line in self.lines() if line]
