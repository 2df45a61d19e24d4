"""Manage the run directory: claims and results of attempts, which outlive every process.

Every call may be repeated. Other programs, such as cleaners of /tmp, can change the directory: missing
directories are created again, and entries of the wrong kind are moved to quarantine.
"""

import fcntl
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from errno import EDQUOT, EINVAL, ENOENT, ENOSPC, ENOTDIR
from pathlib import Path

from fgsched.crash import point
from fgsched.domain.errors import StorageError
from fgsched.lifecycle.transitions import (
    Alive,
    Result,
    Seen,
    ShepherdGone,
    Unclaimed,
    is_held,
    parse_claim,
    parse_result,
)
from fgsched.system.cleaner import Cleaner, Quarantine, kind_of
from fgsched.system.generations import KINDS, SPARE_NAME
from fgsched.system.process import Identity, is_alive, is_own_supervisor, is_unreaped
from fgsched.system.spaces import attempt_dirs, attempts

log = logging.getLogger(__name__)
_WITHOUT_ERRNO = ("not a regular file", "its enforcement does not work")  # strerror adds nothing
_TOMBSTONE = "T"  # claim of an abandoned attempt: no shepherd can claim it
_UNREADABLE = "U"  # replaces a result that could not be read
_SPARE = "spare"  # what one job leaves to the next, for shepherds only
_MAX_RESULT = 4096  # bytes
_NAME = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)  # JOB.ATTEMPT
_TYPES = {  # of the entries of a directory; with the host's controller a job directory may be a link
    "claim": ("a link",),
    "result": ("a file", "a link"),
    "job": ("a directory", "a link"),
}
_MAX_MOVED = 64  # entries with unknown names that one call moves


class RunDir:
    """The directory of a queue with the claims, the results and the job directories of its attempts.

    A claim is a symbolic link, whose text is its content. A result is a file or, in some cases, such a link.
    """

    def __init__(self, path: Path, boot: str) -> None:
        """Create missing directories, and lock the directory.

        Args:
            boot: id of the current boot.

        Raises:
            OSError: a directory cannot be created.
        """
        self.path = path
        self.boot = boot
        self.cleaner = Cleaner()
        self.quarantine = Quarantine(path, self.cleaner)
        self._lock = -1
        self._claims, self._results = f"{path}/claim/", f"{path}/result/"
        self.mend()

    def mend(self) -> list[str]:
        """Create missing directories and return their names. The parent directory must exist.

        Raises:
            OSError: a directory cannot be created.
        """
        if not self.path.exists():
            self.path.mkdir()
            self.path.chmod(0o711)
        names = [name for name in (*KINDS, _SPARE) if self._create(self.path / name)]
        if self._lock < 0 or not _is_same(self._lock, self.path):
            self._lock_directory()
        return names

    def _create(self, directory: Path) -> bool:
        """Create a directory that jobs of every user can pass; return False if it exists."""
        mode = _mode(directory)
        if not stat.S_ISDIR(mode):
            if mode:
                self.quarantine.take(str(directory), f"{kind_of(str(directory))} instead of a directory")
            directory.mkdir(exist_ok=True)
            directory.chmod(0o711)
            return True
        if stat.S_IMODE(mode) != 0o711:
            directory.chmod(0o711)
        return False

    def _lock_directory(self) -> None:
        """Lock the directory, so that systemd-tmpfiles does not remove old entries in it."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def result(self, job: int, attempt: int) -> Result | None:
        """Return the result of an attempt; None if there is none yet, or it is not readable."""
        path = f"{self._results}{job}.{attempt}"
        text = self._text(path)
        if text is None or text == _UNREADABLE:
            return None
        try:
            return _with_error(parse_result(text))
        except (ValueError, OverflowError):
            self._move_away(path, "not a result")
            return None

    def _text(self, path: str) -> str | None:
        """Return the text of a result; None if there is none. What is neither file nor link is moved away."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # its shepherd may store it now
        except OSError:
            return self._link(path)
        try:
            content = os.read(descriptor, _MAX_RESULT)
        except OSError:
            content = b""  # of a directory
        finally:
            os.close(descriptor)
        return content.rstrip(b"\0").decode(errors="backslashreplace") if content else self._link(path)

    def _link(self, path: str) -> str | None:
        """Return the text of a link; None if there is none, or another kind of entry, which is moved away.

        Bytes that are not UTF-8 become visible escapes.
        """
        try:
            return os.readlink(os.fsencode(path)).decode(errors="backslashreplace")
        except OSError as error:
            if error.errno == EINVAL:
                self._move_away(path, f"{kind_of(path)} instead of a link")
            return None

    def _move_away(self, path: str, why: str) -> None:
        """Move an entry into quarantine; mark a result as unreadable, since its shepherd makes no other."""
        if self.quarantine.take(path, why) and path.startswith(self._results):
            with suppress(OSError):
                os.symlink(_UNREADABLE, path)

    def _has_unreadable_result(self, job: int, attempt: int) -> bool:
        return self._text(f"{self._results}{job}.{attempt}") == _UNREADABLE

    def seize(self, job: int, attempt: int) -> Seen:
        """Return the status of an attempt; after this call an attempt that was not claimed cannot start.

        Raises:
            StorageError: a claim cannot be created, for example because the file system is full.
        """
        path = f"{self._claims}{job}.{attempt}"
        try:
            try:
                os.symlink(_TOMBSTONE, path)
            except OSError as error:
                if error.errno not in (ENOENT, ENOTDIR):
                    raise
                self.mend()
                os.symlink(_TOMBSTONE, path)
        except FileExistsError:
            return self.look(job, attempt)
        except OSError as error:
            cause = f"cannot create a claim in {self.path}: {error.strerror}"
            is_full = error.errno in (ENOSPC, EDQUOT)
            remedy = "Free some space there." if is_full else "Check its file system."
            raise StorageError(cause, remedy) from error
        return Unclaimed()

    def look(self, job: int, attempt: int) -> Seen:
        """Return the status of an attempt."""
        result = self.result(job, attempt)
        if result is not None:
            return result
        path = f"{self._claims}{job}.{attempt}"
        text = self._link(path)
        if text is None:
            return ShepherdGone()
        try:
            shepherd = parse_claim(text)
        except (ValueError, OverflowError):
            self.quarantine.take(path, "not a claim")
            return ShepherdGone()
        if shepherd is None:
            return Unclaimed()
        if self._has_unreadable_result(job, attempt):
            return ShepherdGone("its result could not be read")  # its shepherd may live and run another job
        if not is_held(text) and is_alive(Identity(shepherd.pid, shepherd.start, shepherd.boot)):
            return Alive(shepherd)
        return self.result(job, attempt) or ShepherdGone()  # it may have ended since the first check

    def holder(self, job: int, attempt: int) -> Identity | None:
        """Return the living spawner that inherited a job from its killed shepherd, if its claim names one."""
        text = self._link(f"{self._claims}{job}.{attempt}")
        if text is None or not is_held(text):
            return None
        with suppress(ValueError, OverflowError):
            claim = parse_claim(text)
            identity = Identity(claim.pid, claim.start, claim.boot) if claim else None
            return identity if identity and is_alive(identity) and is_own_supervisor(identity.pid) else None
        return None

    def is_unheard(self, job: int, attempt: int) -> bool:
        """Tell whether a spawner is still to take over an attempt whose shepherd was killed."""
        text = self._link(f"{self._claims}{job}.{attempt}")
        with suppress(ValueError, OverflowError):
            claim = parse_claim(text) if text is not None and not is_held(text) else None
            return claim is not None and is_unreaped(Identity(claim.pid, claim.start, claim.boot))
        return False

    def forget(self, job: int, attempt: int) -> None:
        """Remove the result, then the claim, of an attempt whose end is committed.

        A tombstone is kept, because the launch message of an abandoned attempt may still arrive.
        """
        is_claimed = self._remove(f"{self._results}{job}.{attempt}")  # by the shepherd that left the result
        point("controller_between_result_and_claim")
        claim = f"{self._claims}{job}.{attempt}"
        if is_claimed or self._link(claim) not in (None, _TOMBSTONE):
            self._remove(claim)

    def _remove(self, path: str) -> bool:
        """Remove an entry; return False if there was none."""
        try:
            os.unlink(path)
        except OSError as error:
            if error.errno in (ENOENT, ENOTDIR):
                return False
            return self.quarantine.take(path, f"{kind_of(path)} that cannot be removed: {error.strerror}")
        return True

    def clear(self, job: int, attempt: int) -> None:
        """Schedule the removal of the directory of a job whose shepherd was killed."""
        for place in attempt_dirs(self.path, job, attempt):
            self.cleaner.add(place)
        self.cleaner.add(self.path / "job" / f"{job}.{attempt}")

    def leftovers(self) -> list[tuple[int, int]]:
        """Return (job, attempt) of all claims, results and job directories; tombstones stay until reboot.

        Entries with other names or of another kind go into quarantine.
        """
        self.mend()
        leftovers, foreign = set(), list[tuple[str, str]]()
        for kind, entry in self._entries():
            if kind == "job" and SPARE_NAME.fullmatch(entry.name):
                continue
            name = _NAME.fullmatch(entry.name)
            if name is None:
                foreign.append((entry.path, "not the name of an attempt"))
            elif (actual := kind_of(entry.path)) not in _TYPES[kind]:
                foreign.append((entry.path, f"{actual} instead of {_TYPES[kind][0]}"))
            elif kind != "claim" or self._link(entry.path) != _TOMBSTONE:
                leftovers.add((int(name[1]), int(name[2])))
        self._move_foreign(foreign)
        return sorted(leftovers | attempts(self.path))

    def remove_spares(self) -> None:
        """Remove what spawners that were killed left for further jobs."""
        for path, name in self._spares():
            spawner = name.partition(".")[0]
            if not (spawner.isdecimal() and is_own_supervisor(int(spawner))):
                self.cleaner.add(path)

    def _spares(self) -> Iterator[tuple[Path, str]]:
        """Yield the entries of shepherds for further jobs with their names, which begin with the spawner."""
        with suppress(OSError):
            yield from ((path, path.name) for path in (self.path / _SPARE).iterdir())
            for path in (self.path / "job").iterdir():
                if SPARE_NAME.fullmatch(path.name):
                    yield path, path.name[1:]

    def _entries(self) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        for kind in KINDS:
            with suppress(OSError), os.scandir(self.path / kind) as entries:
                for entry in entries:
                    yield kind, entry

    def _move_foreign(self, foreign: list[tuple[str, str]]) -> None:
        for path, why in foreign[:_MAX_MOVED]:
            self.quarantine.take(path, why)
        if len(foreign) > _MAX_MOVED:
            log.warning("%s: %d more entries without an attempt", self.path, len(foreign) - _MAX_MOVED)


def _mode(path: Path) -> int:
    """Return the mode of an entry; 0 if there is none."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _is_same(descriptor: int, path: Path) -> bool:
    """Tell whether `path` still names an open directory."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _with_error(result: Result) -> Result:
    """Add the text of the errno with which a step of the launch failed."""
    if not result.errno or any(words in result.detail for words in _WITHOUT_ERRNO):
        return result
    return result._replace(detail=f"{result.detail}: {os.strerror(result.errno)}")
