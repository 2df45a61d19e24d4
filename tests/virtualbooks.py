"""The accounts of a world whose log was removed, and the operator who brings it back or does without."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from fgsched.accounting import guard
from fgsched.store import commits


class Books:
    """The files of the accounts. `lost` are the jobs that were accepted as lost."""

    def __init__(self, path: Path, copies: Path) -> None:
        """`copies` is a directory for copies, which is made and removed."""
        self.path, self._copies = path, copies
        self._log = path.with_name(f"{path.name}-wal")
        self._kept = b""  # the removed log
        self._missing: set[int] = set()  # jobs that only the removed log has
        self._is_counted = False  # the error must count them
        self.is_lost = False
        self.lost: set[int] = set()
        self._recoveries = 0

    @property
    def has_log(self) -> bool:
        """Whether jobs are in the log that are not in the file, and the commit file knows them."""
        try:
            known = commits.read_commit(commits.commit_file(self.path))
            is_known = known is not None and self._log.exists() and known.number == self._commits()
            return is_known and self._jobs() != self._jobs(is_log_used=False)
        except sqlite3.DatabaseError:  # half of a checkpoint is in the file: only a backup would help
            return False

    def _jobs(self, *, is_log_used: bool = True) -> set[int]:
        return {row[0] for row in self._rows("SELECT id FROM job", is_log_used=is_log_used)}

    def _commits(self) -> int:
        return int(self._rows("SELECT count FROM commits", is_log_used=True)[0][0])

    def _rows(self, query: str, *, is_log_used: bool) -> list[tuple[int]]:
        """Return the rows of a copy; none before there are tables."""
        self._copies.mkdir()
        try:
            copy = self._copies / self.path.name
            for file in (self.path, self._log) if is_log_used else (self.path,):
                shutil.copy(file, copy.with_name(file.name))
            with closing(sqlite3.connect(copy)) as db:
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchone():
                    return []
                return db.execute(query).fetchall()
        finally:
            shutil.rmtree(self._copies)

    def lose(self, *, is_killed: bool) -> None:
        """Remove the log; `is_killed`: no accountant has it open."""
        self._missing = self._jobs() - self._jobs(is_log_used=False)
        self._kept = self._log.read_bytes()
        self._log.unlink()
        self.is_lost, self._is_counted = True, is_killed

    def mend(self, *, is_found: bool) -> None:
        """Accept the accounts as they are; `is_found`: with their log. Raises StorageError and OSError."""
        why = guard.damage(self.path)
        if "is damaged" in why:  # half of a checkpoint is in the file: nothing helps but the log
            is_found = True
        elif self._is_counted:
            plural = "s" * (len(self._missing) != 1)
            assert f"with {len(self._missing)} ended job{plural}:" in why, f"{why} {self._missing}"
        if self._is_counted and is_found:
            self._log.unlink(missing_ok=True)
            self._log.write_bytes(self._kept)
            self._must_be_whole()
        else:
            self._is_counted = False  # a recovery may be interrupted
            self._recoveries += 1
            guard.recover(self.path, f"recovered-{self._recoveries}")
            self._must_be_whole()
            self.lost |= self._missing - self._jobs(is_log_used=self._log.exists())
        self.is_lost = False

    def _must_be_whole(self) -> None:
        why = guard.damage(self.path)
        assert why == "", why
