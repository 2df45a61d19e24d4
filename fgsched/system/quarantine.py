"""Move entries of the run directory with a wrong kind or name to `quarantine`, and log them."""

import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from fgsched.system.cleaner import Cleaner

log = logging.getLogger(__name__)
_MAX_ENTRIES = 64  # older ones are removed
_MAX_LOGGED = 1_000  # entries that could not be moved and are not logged again


class Quarantine:
    """The directory `<run>/quarantine`, in which an administrator can inspect the entries."""

    def __init__(self, run: Path, cleaner: Cleaner) -> None:
        self._directory, self._cleaner = run / "quarantine", cleaner
        self._logged: set[str] = set()  # entries that could not be moved

    def take(self, path: str, why: str) -> bool:
        """Move an entry to `quarantine`; return False if it cannot be moved."""
        target = self._directory / f"{time.time_ns()}.{_short(path)}"
        try:
            self._make()
            os.rename(path, target)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._log_once(path, f"{why}; it cannot be moved to {self._directory}: {error.strerror}")
            return False
        log.warning("%a: %s; moved to %s", path, why, self._directory)
        self._remove_oldest()
        return True

    def _make(self) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        if not stat.S_ISDIR(os.lstat(self._directory).st_mode):
            os.unlink(self._directory)
            os.mkdir(self._directory, 0o700)

    def _log_once(self, path: str, why: str) -> None:
        if path not in self._logged:
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged.add(path)
            log.warning("%a: %s", path, why)

    def _remove_oldest(self) -> None:
        for name in sorted(os.listdir(self._directory))[:-_MAX_ENTRIES]:
            self._cleaner.add(self._directory / name)


def kind_of(path: str) -> str:
    """Return the kind of an entry in words; "nothing" if there is none."""
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
    """Return the last two parts of a path as one file name of at most 200 bytes."""
    name = "-".join(Path(path).parts[-2:])
    return os.fsdecode(os.fsencode(name)[:200])
