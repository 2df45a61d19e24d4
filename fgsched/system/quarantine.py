"""Entries of the run directory that are of the wrong kind or name: logged, moved away, never obeyed."""

import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from fgsched.system.cleaner import Cleaner

log = logging.getLogger(__name__)
_MOST = 64  # entries that are kept; older ones are removed
_NAMES = 1_000  # entries that could not be moved and are not named again


class Quarantine:
    """`<run>/quarantine`, where an administrator can look at them."""

    def __init__(self, run: Path, cleaner: Cleaner) -> None:
        self._place, self._cleaner = run / "quarantine", cleaner
        self._stuck: set[str] = set()  # entries that stay where they are, and were named in the log

    def take(self, path: str, why: str) -> bool:
        """Move an entry away; whether it is gone."""
        into = self._place / f"{time.time_ns()}.{_short(path)}"
        try:
            self._make()
            os.rename(path, into)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._say_once(path, f"{why}; it cannot be moved to {self._place}: {error.strerror}")
            return False
        log.warning("%a: %s; moved to %s", path, why, self._place)
        self._remove_oldest()
        return True

    def _make(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._place, 0o700)
        if not stat.S_ISDIR(os.lstat(self._place).st_mode):
            os.unlink(self._place)
            os.mkdir(self._place, 0o700)

    def _say_once(self, path: str, why: str) -> None:
        if path not in self._stuck:
            if len(self._stuck) >= _NAMES:
                self._stuck.clear()
            self._stuck.add(path)
            log.warning("%a: %s", path, why)

    def _remove_oldest(self) -> None:
        for name in sorted(os.listdir(self._place))[:-_MOST]:
            self._cleaner.add(self._place / name)


def kind_of(path: str) -> str:
    """In words, what an entry is; "nothing" if there is none."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    known = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a directory",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return known.get(stat.S_IFMT(mode), "a device")


def _short(path: str) -> str:
    """The last two parts of a path as one name of at most 200 bytes."""
    name = "-".join(Path(path).parts[-2:])
    return os.fsdecode(os.fsencode(name)[:200])
