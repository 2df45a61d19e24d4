"""The queue of mails on disk: one file for each letter, moved by renaming from `new` to `sent` or `failed`.

A letter's name is given by the event, so that a letter that is put again after a crash is recognised while it
waits and after it was sent.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError

from fgsched.crash import point
from fgsched.mail.letters import from_bytes
from fgsched.system import disk

MOST = 10_000  # letters that wait; further ones are refused
_NEW, _SENT, _FAILED = "new", "sent", "failed"
_RECOUNT = 5.0  # seconds for which a full queue is not counted again
_KEPT = 2000  # sent letters whose names are remembered, and failed letters


class Full(OSError):
    """Raised if the maximum number of letters waits."""


class Spool:
    """The directories of the queue below `path`."""

    def __init__(self, path: Path) -> None:
        """Create the directories. Raises OSError."""
        self.path = path
        self._count = MOST  # of waiting letters, at most; counted again when it reaches MOST
        self._count_again = 0.0  # monotonic seconds
        for name in (_NEW, _SENT, _FAILED):
            (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, name: str, data: bytes) -> bool:
        """Add a letter, unless it waits; return False if it was sent or failed. `keep` makes it durable.

        A waiting letter that a loss of power cut short is replaced.

        Raises:
            Full: too many letters wait.
            OSError: the file cannot be written.
        """
        if any((self.path / place / name).exists() for place in (_SENT, _FAILED)):
            return False
        if self.is_whole(name):
            return True
        self._make_room()
        fresh = self.path / f"{name}.fresh"
        disk.create_file(fresh, data, syncs=False)
        point("controller_before_mail_rename")
        disk.rename(fresh, self.path / _NEW / name)
        self._count += 1
        return True

    def _make_room(self) -> None:
        if self._count >= MOST and time.monotonic() >= self._count_again:
            self._count = sum(1 for _ in self.waiting())
            self._count_again = time.monotonic() + _RECOUNT
        if self._count >= MOST:
            raise Full(f"{MOST} mails wait in {self.path}")

    def waiting(self) -> Iterator[str]:
        """Yield the names of the letters that wait."""
        return iter(sorted(os.listdir(self.path / _NEW)))

    def is_whole(self, name: str) -> bool:
        """Tell whether a letter waits that can be read. Raises OSError."""
        try:
            from_bytes(self.read(name))
        except (FileNotFoundError, MsgspecError):
            return False
        return True

    def keep(self, name: str) -> None:
        """Write a waiting letter to the disk, so that it survives a power failure. Raises OSError.

        It is written again: a sync of an earlier call may have failed, in another process.
        """
        disk.write_again(self.path / _NEW / name, fresh=self.path / f"{name}.fresh")
        disk.sync_directory(self.path / _NEW)

    def read(self, name: str) -> bytes:
        """Return a letter that waits. Raises OSError."""
        return (self.path / _NEW / name).read_bytes()

    def replace(self, name: str, data: bytes) -> None:
        """Replace a waiting letter, after some of its recipients got it. Raises OSError."""
        fresh = self.path / f"{name}.fresh"
        disk.create_file(fresh, data)
        disk.rename(fresh, self.path / _NEW / name)
        disk.sync_directory(self.path / _NEW)

    def sent(self, name: str) -> None:
        """Note that a letter was accepted by the mail server. Raises OSError."""
        self._move(name, _SENT)

    def failed(self, name: str) -> None:
        """Move a letter that cannot be sent to the failed letters. Raises OSError."""
        self._move(name, _FAILED)

    def _move(self, name: str, to: str) -> None:
        try:
            disk.rename(self.path / _NEW / name, self.path / to / name)
        except FileNotFoundError:
            if not (self.path / to / name).exists():
                raise
            # Moved before, by a call whose sync failed.
            disk.write_again(self.path / to / name, fresh=self.path / f"{name}.fresh")
        disk.sync_directory(self.path / to)

    def prune(self) -> None:
        """Delete the oldest sent and failed letters beyond a number."""
        for place in (_SENT, _FAILED):
            letters = [entry for entry in os.scandir(self.path / place) if entry.is_file()]
            for entry in sorted(letters, key=lambda entry: entry.stat().st_mtime)[:-_KEPT]:
                with suppress(OSError):
                    disk.remove(Path(entry))
