"""Idempotency keys of submissions without an answer: a repeated command uses the key of the failed one.

The name of a file holds a digest of the request, the key and the process. The file is removed when the
answer arrives. Another command with an equal request takes the key over if that process has exited.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fgsched.system.places import folder, make_own, open_own
from fgsched.system.process import Identity, boot_id, identify, is_alive

try:  # hashlib loads OpenSSL, which takes longer than the rest of the command
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

VALID = 600.0  # seconds for which a key is kept for a repeated command
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-z]{16,64})-([0-9]{1,10})-([0-9]{1,20})", re.ASCII)


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
        self.is_taken_over = False  # from an equal request
        self.name, self._directory = "", -1  # of its file; "": it is not kept
        with suppress(OSError):  # a repeated command then has another key, as `is_kept` reports
            with folder(directory.parent.parent, make=True, mode=0o700):
                pass
            self._directory = _opened(directory, make=True)
            self._take(_digest(request), now, is_sent=bool(key))

    @property
    def is_kept(self) -> bool:
        """Return whether a repeated command will use the same key."""
        return bool(self.name)

    def answered(self) -> None:
        """Remove the key."""
        if self.name:
            with suppress(FileNotFoundError):
                os.unlink(self.name, dir_fd=self._directory)

    def _take(self, digest: str, now: float, *, is_sent: bool) -> None:
        """Take over the key of an equal request whose process has exited; else keep the one that it has."""
        me = identify(os.getpid())
        if me is None:
            return
        answer_key = _take_over(self._directory, digest, now, me, only=self.value if is_sent else "")
        if answer_key:
            self.value, self.name = answer_key
            self.is_taken_over = True
            return
        name = _name(digest, self.value, me)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o600, dir_fd=self._directory))
        self.name = name


def _opened(directory: Path, *, make: bool = False) -> int:
    """Open the directory of the keys, if it and the one above are only this user's. Raises OSError."""
    opened = make_own if make else open_own
    with folder(directory.parent.parent) as state:
        if os.fstat(state).st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EACCES, "it belongs to another user", str(directory))
        above = opened(directory.parent.name, state)
    try:
        return opened(directory.name, above)
    finally:
        os.close(above)


def _take_over(
    directory: int, digest: str, now: float, me: Identity, *, only: str = ""
) -> tuple[str, str] | None:
    """Take over the key of an equal request whose process has exited, or `only` that one, if there is one."""
    for name, key in _abandoned(directory, digest, now):
        own_name = _name(digest, key, me)
        if only and key != only:
            continue
        with suppress(FileNotFoundError):  # another command took it first
            os.rename(name, own_name, src_dir_fd=directory, dst_dir_fd=directory)
            os.utime(own_name, (now, now), dir_fd=directory, follow_symlinks=False)
            return key, own_name
    return None


def _abandoned(directory: int, digest: str, now: float) -> Iterator[tuple[str, str]]:
    """Yield the names and keys of equal requests whose process has exited; remove keys that are too old."""
    for match in filter(None, map(_NAME.fullmatch, os.listdir(directory))):
        with suppress(FileNotFoundError):
            status = os.stat(match[0], dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_size:
                continue  # not a key
            if abs(now - status.st_mtime) > VALID:
                os.unlink(match[0], dir_fd=directory)
            elif match[1] == digest and not is_alive(Identity(int(match[3]), int(match[4]), boot_id())):
                yield match[0], match[2]


def _name(digest: str, key: str, owner: Identity) -> str:
    return f"{digest}-{key}-{owner.pid}-{owner.start}"


def _digest(request: bytes) -> str:
    return blake2b(request, digest_size=16).hexdigest()
