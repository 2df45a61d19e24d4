"""Keys of submissions that have had no answer yet, so that a repeated command has the same key.

A key is the name of a file, which says what was asked, with which key, and by which process. It is removed
once there is an answer. Another command takes the key over when it asks the same and that process is gone.
"""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from errno import EACCES
from pathlib import Path
from typing import Any

from fgsched.system.process import Identity, boot_id, identify, is_alive

VALID = 600.0  # seconds for which a key waits for the command to be repeated


class Unanswered:
    """The key of one submission; `key.answered()` once it has an answer."""

    def __init__(self, directory: Path, request: Mapping[str, Any], now: float) -> None:
        self.value = secrets.token_hex(16)
        self._file: Path | None = None
        with suppress(OSError):  # then a repeated command has another key, and `is_kept` says so
            _make(directory.parent)
            _make(directory)
            self._take(directory, _digest(request), now)

    @property
    def is_kept(self) -> bool:
        """Whether a repeated command will have the same key."""
        return self._file is not None

    def answered(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _take(self, directory: Path, digest: str, now: float) -> None:
        """The key of an equal request whose process is gone; else a new one."""
        mine = identify(os.getpid())
        if mine is None:
            return
        for file, key in _left(directory, digest, now):
            wanted = directory / _name(digest, key, mine)
            with suppress(FileNotFoundError):  # another command was first
                file.rename(wanted)
                os.utime(wanted, (now, now))
                self.value, self._file = key, wanted
                return
        file = directory / _name(digest, self.value, mine)
        file.touch(mode=0o600)
        self._file = file


def _make(directory: Path) -> None:
    """Make it, and be sure that nobody else can put keys there: it may be in /tmp."""
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(EACCES, os.strerror(EACCES), str(directory))


def _left(directory: Path, digest: str, now: float) -> Iterator[tuple[Path, str]]:
    """Keys of equal requests whose process is gone. What is too old is removed."""
    for file in list(directory.iterdir()):
        with suppress(FileNotFoundError, ValueError):
            asked, key, pid, start = file.name.split("-")
            if abs(now - file.stat().st_mtime) > VALID:
                file.unlink()
            elif asked == digest and not is_alive(Identity(int(pid), int(start), boot_id())):
                yield file, key


def _name(digest: str, key: str, owner: Identity) -> str:
    return f"{digest}-{key}-{owner.pid}-{owner.start}"


def _digest(request: Mapping[str, Any]) -> str:
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
