"""The run directory: claims and results, files that outlive every process. Every call may be made again.

Programs that clean /tmp, other programs and people reach it. What is missing is made again, and what is of
the wrong kind is put into quarantine: it never stops the controller.
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
from fgsched.jobs.lifecycle import Alive, Gone, Result, Seen, Unclaimed, parse_claim, parse_result
from fgsched.system.cleaner import Cleaner
from fgsched.system.process import Identity, is_alive
from fgsched.system.quarantine import Quarantine, kind_of
from fgsched.system.spaces import attempt_dirs, attempts

log = logging.getLogger(__name__)
_OF_OURS = ("not a regular file", "its fence does not hold")  # the system's word for it says nothing
_UNREADABLE = "U"  # in the place of a result that could not be read
_KINDS = ("claim", "result", "job")
_NAME = re.compile(r"([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)  # JOB.ATTEMPT
_MOST = 64  # entries of unknown names that one sweep moves


class RunDir:
    """Claims and results, as files that outlive every process."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot
        self.cleaner = Cleaner()
        self.quarantine = Quarantine(path, self.cleaner)
        self._lock = -1
        self._claims, self._results = f"{path}/claim/", f"{path}/result/"
        self.mend()

    def mend(self) -> list[str]:
        """Make what is missing; the names of what was made. The directory above has to be there."""
        if not self.path.exists():
            self.path.mkdir()
            self.path.chmod(0o711)
        made = [name for name in _KINDS if self._made(self.path / name)]
        if self._lock < 0 or not _is_same(self._lock, self.path):
            self._hold()
        return made

    def _made(self, directory: Path) -> bool:
        """Jobs of every user reach what is theirs below it, whatever the mask."""
        mode = _mode(directory)
        if not stat.S_ISDIR(mode):
            if mode:
                self.quarantine.take(str(directory), f"{kind_of(str(directory))} where a directory has to be")
            directory.mkdir(exist_ok=True)
            directory.chmod(0o711)
            return True
        if stat.S_IMODE(mode) != 0o711:
            directory.chmod(0o711)
        return False

    def _hold(self) -> None:
        """Lock the directory: systemd-tmpfiles then removes nothing in it for its age."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def result(self, job: int, attempt: int) -> Result | None:
        """The result of an attempt, once there is one."""
        path = f"{self._results}{job}.{attempt}"
        text = self._link(path)
        if text is None or text == _UNREADABLE:
            return None
        try:
            return _in_words(parse_result(text))
        except (ValueError, OverflowError):
            self._put_aside(path, "not a result")
            return None

    def _link(self, path: str) -> str | None:
        """The text of a claim or a result; None if there is none, or something else.

        Bytes that are no UTF-8 become visible escapes.
        """
        try:
            return os.readlink(os.fsencode(path)).decode(errors="backslashreplace")
        except OSError as error:
            if error.errno == EINVAL:
                self._put_aside(path, f"{kind_of(path)} where a link has to be")
            return None

    def _put_aside(self, path: str, why: str) -> None:
        """In the place of a result, leave that there was one: its shepherd makes no other."""
        if self.quarantine.take(path, why) and path.startswith(self._results):
            with suppress(OSError):
                os.symlink(_UNREADABLE, path)

    def _is_unreadable(self, job: int, attempt: int) -> bool:
        return self._link(f"{self._results}{job}.{attempt}") == _UNREADABLE

    def seize(self, job: int, attempt: int) -> Seen:
        """What became of an attempt; if nobody claimed it yet, nobody can after this call."""
        path = f"{self._claims}{job}.{attempt}"
        try:
            try:
                os.symlink("T", path)
            except OSError as error:
                if error.errno not in (ENOENT, ENOTDIR):
                    raise
                self.mend()
                os.symlink("T", path)
        except FileExistsError:
            return self.look(job, attempt)
        except OSError as error:
            cause = f"no claim can be made in {self.path}: {error.strerror}"
            is_full = error.errno in (ENOSPC, EDQUOT)
            remedy = "Free some space there." if is_full else "Look at the file system that it is on."
            raise StorageError(cause, remedy) from error
        return Unclaimed()

    def look(self, job: int, attempt: int) -> Seen:
        """What became of an attempt."""
        result = self.result(job, attempt)
        if result is not None:
            return result
        path = f"{self._claims}{job}.{attempt}"
        text = self._link(path)
        if text is None:
            return Gone()
        try:
            shepherd = parse_claim(text)
        except (ValueError, OverflowError):
            self.quarantine.take(path, "not a claim")
            return Gone()
        if shepherd is None:
            return Unclaimed()
        if self._is_unreadable(job, attempt):
            return Gone("its result could not be read")  # though its shepherd may live, with another job
        if is_alive(Identity(shepherd.pid, shepherd.start, shepherd.boot)):
            return Alive(shepherd)
        return self.result(job, attempt) or Gone()  # it may have ended between the two looks

    def forget(self, job: int, attempt: int) -> None:
        """Remove result, then claim, of an attempt whose end is committed.

        A tombstone stays: the launch of an attempt that was given up may still come.
        """
        is_claimed = self._unlinked(f"{self._results}{job}.{attempt}")  # by the shepherd that left the result
        point("controller_between_result_and_claim")
        claim = f"{self._claims}{job}.{attempt}"
        if is_claimed or self._link(claim) not in (None, "T"):
            self._unlinked(claim)

    def _unlinked(self, path: str) -> bool:
        """Whether there was something, which is gone."""
        try:
            os.unlink(path)
        except OSError as error:
            if error.errno in (ENOENT, ENOTDIR):
                return False
            return self.quarantine.take(path, f"{kind_of(path)} that cannot be removed: {error.strerror}")
        return True

    def clear(self, job: int, attempt: int) -> None:
        """Have the directory of a job removed, a little at a time, whose shepherd could not."""
        for place in attempt_dirs(self.path, job, attempt):
            self.cleaner.add(place)
        self.cleaner.add(self.path / "job" / f"{job}.{attempt}")

    def leftovers(self) -> list[tuple[int, int]]:
        """(job, attempt) of all that has a claim, a result or a directory; tombstones stay with the boot.

        What has no such name or is of another kind goes into quarantine.
        """
        self.mend()
        found, strange = set(), list[tuple[str, str]]()
        for kind, entry in self._entries():
            name = _NAME.fullmatch(entry.name)
            # In the host's controller, a link to where it lies in the space of its user.
            wanted = ("a directory", "a link") if kind == "job" else ("a link",)
            if name is None:
                strange.append((entry.path, "not the name of an attempt"))
            elif (seen := kind_of(entry.path)) not in wanted:
                strange.append((entry.path, f"{seen} where {wanted[0]} has to be"))
            elif kind == "job" or self._link(entry.path) != "T":
                found.add((int(name[1]), int(name[2])))
        self._put_away(strange)
        return sorted(found | attempts(self.path))

    def _entries(self) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        for kind in _KINDS:
            with suppress(OSError), os.scandir(self.path / kind) as entries:
                for entry in entries:
                    yield kind, entry

    def _put_away(self, strange: list[tuple[str, str]]) -> None:
        for path, why in strange[:_MOST]:
            self.quarantine.take(path, why)
        if len(strange) > _MOST:
            log.warning("%s: %d more entries that are no attempt's", self.path, len(strange) - _MOST)


def _mode(path: Path) -> int:
    """0 if there is nothing."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether the directory that is open is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _in_words(result: Result) -> Result:
    """With the system's word for why a step of the launch failed."""
    if not result.errno or any(words in result.detail for words in _OF_OURS):
        return result
    return result._replace(detail=f"{result.detail}: {os.strerror(result.errno)}")
