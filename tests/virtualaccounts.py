"""The accounts of a world whose log was removed, and the operator who brings it back or does without."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from fgsched.accounting import guard
from fgsched.domain.errors import StorageError
from fgsched.store import files


class AccountFiles:
    """The files of the accounts. `lost` are the jobs that were accepted as lost."""

    def __init__(self, path: Path, copies: Path) -> None:
        """`copies` is a directory for copies, which is made and removed."""
        self.path, self._copies = path, copies
        self._log = path.with_name(f"{path.name}-wal")
        self._kept, self._is_killed = b"", False  # the removed log; whether nothing was written since
        self._missing: set[int] = set()  # jobs that may be gone with the removed log
        self.is_lost = False
        self.lost: set[int] = set()
        self._recoveries = 0

    @property
    def has_log(self) -> bool:
        """Whether jobs are in the log that are not in the file, and the commit file knows them."""
        try:
            known = files.read_commit(files.commit_file(self.path))
            is_there = self.path.exists() and self._log.exists()
            is_known = known is not None and is_there and known.number == self._commits()
            return is_known and self._jobs() != self._jobs(is_log_used=False)
        except sqlite3.DatabaseError:  # half of a checkpoint is in the file: only a backup would help
            return False

    def _jobs(self, *, is_log_used: bool = True) -> set[int]:
        return {row[0] for row in self._rows("SELECT id FROM job NOT INDEXED", is_log_used=is_log_used)}

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
        """Remove the log; `is_killed`: no accountant has it open, so the error must count the lost jobs."""
        left = self._jobs(is_log_used=False)
        is_whole = self._rows("SELECT jobs FROM commits", is_log_used=False) == [(len(left),)]
        # Half of a checkpoint may have an index with rows that the table lacks: the recovery decides.
        self._missing = self._jobs() - left if is_whole else self._jobs()
        self._kept, self._is_killed = self._log.read_bytes(), is_killed
        self._log.unlink()
        self.is_lost = True
        if is_killed and is_whole:  # else half of a checkpoint is in the file, and nobody can count
            why, plural = guard.damage(self.path), "s" * (len(self._missing) != 1)
            assert f"with {len(self._missing)} ended job{plural}:" in why, f"{why} {self._missing}"

    def mend(self, *, is_found: bool) -> None:
        """Accept the accounts as they are; `is_found`: with their log. Raises StorageError and OSError."""
        if is_found and self._is_killed:
            self._bring_back()
        else:
            self._is_killed = False  # a recovery may be interrupted
            try:
                self._recover()
            except StorageError:  # half of a checkpoint is in the file: only the log helps
                self._bring_back()
                self._recover()
            finally:  # a recovery that fails at its last step has been made
                self.lost |= self._missing - self._jobs(is_log_used=self._log.exists())
        why = guard.damage(self.path)
        assert why == "", why
        self.is_lost = False

    def _recover(self) -> None:
        self._recoveries += 1
        guard.recover(self.path, f"recovered-{self._recoveries}")

    def _bring_back(self) -> None:
        self._log.unlink(missing_ok=True)
        self._log.write_bytes(self._kept)
