"""The run directory: claims and results, files that outlive every process. Every call may be made again."""

import os
import shutil
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

from fgsched.crash import point
from fgsched.errors import StorageError
from fgsched.host.process import Identity, is_alive
from fgsched.jobs.lifecycle import Alive, Gone, Result, Seen, Unclaimed, parse_claim, parse_result

_OF_OURS = ("not a regular file", "its fence does not hold")  # the system's word for it says nothing


class RunDir:
    """Claims and results, as files that outlive every process."""

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot
        for name in ("claim", "result", "job"):
            (path / name).mkdir(parents=True, exist_ok=True)
            (path / name).chmod(0o711)  # whatever the mask: jobs of every user reach what is theirs below it
        self._claims, self._results = f"{path}/claim/", f"{path}/result/"

    def result(self, job: int, attempt: int) -> Result | None:
        """The result of an attempt, once there is one."""
        try:
            return _in_words(parse_result(os.readlink(f"{self._results}{job}.{attempt}")))
        except (OSError, ValueError):
            return None

    def seize(self, job: int, attempt: int) -> Seen:
        """What became of an attempt; if nobody claimed it yet, nobody can after this call."""
        try:
            os.symlink("T", f"{self._claims}{job}.{attempt}")
        except FileExistsError:
            return self.look(job, attempt)
        except OSError as error:
            if error.errno not in {ENOSPC, EDQUOT}:
                raise
            cause = f"no claim can be made in {self.path}: {error.strerror}"
            raise StorageError(cause, "Free some space there.") from error
        return Unclaimed()

    def look(self, job: int, attempt: int) -> Seen:
        """What became of an attempt."""
        result = self.result(job, attempt)
        if result is not None:
            return result
        try:
            shepherd = parse_claim(os.readlink(f"{self._claims}{job}.{attempt}"))
        except (OSError, ValueError):
            return Gone()
        if shepherd is None:
            return Unclaimed()
        if is_alive(Identity(shepherd.pid, shepherd.start, shepherd.boot)):
            return Alive(shepherd)
        return self.result(job, attempt) or Gone()  # it may have ended between the two looks

    def forget(self, job: int, attempt: int) -> None:
        """Remove result, then claim, of an attempt whose end is committed.

        A tombstone stays: the launch of an attempt that was given up may still come.
        """
        result, claim = f"{self._results}{job}.{attempt}", f"{self._claims}{job}.{attempt}"
        try:
            os.unlink(result)
            is_claimed = True  # by whoever left the result
        except FileNotFoundError:
            is_claimed = False
        point("controller_between_result_and_claim")
        with suppress(FileNotFoundError):
            if is_claimed or os.readlink(claim) != "T":
                os.unlink(claim)

    def clear(self, job: int, attempt: int) -> None:
        """Remove the directory of a job whose shepherd could not."""
        shutil.rmtree(self.path / "job" / f"{job}.{attempt}", ignore_errors=True)

    def leftovers(self) -> list[tuple[int, int]]:
        """(job, attempt) of all that has a claim, a result or a directory; tombstones stay with the boot."""
        found = set()
        for name in ("claim", "result", "job"):
            for entry in os.scandir(self.path / name):
                job, _, attempt = entry.name.partition(".")
                is_tombstone = entry.is_symlink() and os.readlink(entry.path) == "T"
                if job.isdigit() and attempt.isdigit() and not is_tombstone:
                    found.add((int(job), int(attempt)))
        return sorted(found)


def secret(run: Path) -> bytes:
    """What nobody but the controllers of this boot know; made by the first of them."""
    file = run / "secret"
    if not file.exists():
        fresh = run / "secret.new"
        fresh.touch(0o600)
        fresh.write_bytes(os.urandom(32))
        fresh.rename(file)
    return file.read_bytes()


def _in_words(result: Result) -> Result:
    """With the system's word for why a step of the launch failed."""
    if not result.errno or any(words in result.detail for words in _OF_OURS):
        return result
    return result._replace(detail=f"{result.detail}: {os.strerror(result.errno)}")
