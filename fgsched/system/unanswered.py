"""Idempotency keys of submissions without an answer: a repeated command uses the key of the failed one.

The name of a file holds a digest of the request, the key and the process. The file is removed when the
answer arrives. Another command with an equal request takes the key over if that process has exited.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES
from pathlib import Path

from fgsched.system.process import Identity, boot_id, identify, is_alive

try:  # hashlib loads OpenSSL, which takes longer than the rest of the command
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

VALID = 600.0  # seconds for which a key is kept for a repeated command


def new_key(now: float) -> str:
    """Return a key that sorts behind the keys of earlier milliseconds; `now` is in seconds since the epoch.

    So a new key is stored at the end of the index of the keys. A random one would change another page of the
    queue for each submission. "t" sorts behind random keys of hexadecimal digits, which other programs use.
    """
    return f"t{int(now * 1000):011x}{os.urandom(10).hex()}"


class Unanswered:
    """The key of one submission; call `answered` when its answer has arrived."""

    def __init__(self, directory: Path, request: bytes, now: float, key: str = "") -> None:
        """`request` is the same for each repetition; `now` is in seconds since the epoch.

        `key`: the one with which the request was sent already; it is never exchanged for another one.
        """
        self.value = key or new_key(now)
        self._file: Path | None = None
        with suppress(OSError):  # a repeated command then has another key, as `is_kept` reports
            directory.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(directory.parent)
            _make(directory)
            self._take(directory, _digest(request), now, is_sent=bool(key))

    @classmethod
    def abandoned(cls, directory: Path, request: bytes, now: float) -> "Unanswered | None":
        """Take over the key of an equal request whose process has exited; None: there is none."""
        found, me = cls.__new__(cls), identify(os.getpid())
        with suppress(OSError):
            taken = _take_over(directory, _digest(request), now, me) if me else None
            if taken:
                found.value, found._file = taken
                return found
        return None

    @property
    def is_kept(self) -> bool:
        """Return whether a repeated command will use the same key."""
        return self._file is not None

    def answered(self) -> None:
        """Remove the key."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _take(self, directory: Path, digest: str, now: float, *, is_sent: bool) -> None:
        """Take over the key of an equal request whose process has exited; else keep the one that it has."""
        me = identify(os.getpid())
        if me is None:
            return
        taken = _take_over(directory, digest, now, me, only=self.value if is_sent else "")
        if taken:
            self.value, self._file = taken
            return
        file = directory / _name(digest, self.value, me)
        file.touch(mode=0o600)
        self._file = file


def _take_over(
    directory: Path, digest: str, now: float, me: Identity, *, only: str = ""
) -> tuple[str, Path] | None:
    """Take over the key of an equal request whose process has exited, or `only` that one, if there is one."""
    for file, key in _abandoned(directory, digest, now):
        own_file = directory / _name(digest, key, me)
        if only and key != only:
            continue
        with suppress(FileNotFoundError):  # another command took it first
            file.rename(own_file)
            os.utime(own_file, (now, now))
            return key, own_file
    return None


def _make(directory: Path) -> None:
    """Create a directory, and check that no other user can write there: it may be in /tmp."""
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(EACCES, os.strerror(EACCES), str(directory))


def _abandoned(directory: Path, digest: str, now: float) -> Iterator[tuple[Path, str]]:
    """Yield the files and keys of equal requests whose process has exited; remove keys that are too old."""
    for file in list(directory.iterdir()):
        with suppress(FileNotFoundError, ValueError):
            asked, key, pid, start = file.name.split("-")
            if abs(now - file.stat().st_mtime) > VALID:
                file.unlink()
            elif asked == digest and not is_alive(Identity(int(pid), int(start), boot_id())):
                yield file, key


def _name(digest: str, key: str, owner: Identity) -> str:
    return f"{digest}-{key}-{owner.pid}-{owner.start}"


def _digest(request: bytes) -> str:
    return blake2b(request, digest_size=16).hexdigest()
