"""The interface to ended jobs that have moved from the queue to the accounts, and an empty implementation."""

from typing import NamedTuple, Protocol

from fgsched.domain.errors import StorageError
from fgsched.scheduling.runtimes import CompletedRun
from fgsched.store.rows import ArraySum, JobRecord

Step = tuple[int, float, str, str, str]  # attempt, epoch seconds, from, to, reason


class Unreadable(StorageError):
    """Jobs that have moved cannot be looked up."""


class Part(NamedTuple):
    """Some jobs of a history, ordered by id."""

    records: list[JobRecord]
    upto: int | None  # every job of the history up to this id was examined; None: all were


class MovedJobs(Protocol):
    """Jobs that have moved. Each method may raise Unreadable."""

    def past(self, job_id: int) -> JobRecord | None:
        """Return one job, or None."""

    def task(self, array: int, task: int) -> JobRecord | None:
        """Return one task of an array, or None."""

    def of_array(self, array: int, after: int, page: int) -> list[JobRecord]:
        """Return at most `page` tasks of an array behind the index `after`, in order."""

    def rest_of(self, array: int) -> list[JobRecord]:
        """Return the row of the tasks of an array that ended together before they started."""

    def ended(self, array: int) -> dict[int, bool]:
        """Return {index: completed} of the tasks of an array."""

    def sum(self, array: int) -> ArraySum:
        """Return the totals of an array."""

    def last_of(self, uid: int) -> int | None:
        """Return the id of the last submission of a user, or None."""

    def steps(self, job_id: int) -> list[Step]:
        """Return the state changes of a job, in order."""

    def material(self, job_id: int) -> tuple[str, str]:
        """Return the references of a job's script and environment in the queue; "": none."""

    def history(self, *, since: float, until: float, uid: int | None, after: int, page: int) -> Part:
        """Return jobs that existed from `since` to `until` (epoch seconds), as Store.history."""

    def ended_since(self, since: float) -> list[JobRecord]:
        """Return jobs that ended after `since` (epoch seconds), ordered by id."""

    def runs_since(self, since: float) -> list[CompletedRun]:
        """Return the runs that completed after `since` (epoch seconds), latest first."""


class NothingMoved:
    """No job has moved."""

    def past(self, job_id: int) -> JobRecord | None:
        """Return None."""
        return None

    def task(self, array: int, task: int) -> JobRecord | None:
        """Return None."""
        return None

    def of_array(self, array: int, after: int, page: int) -> list[JobRecord]:
        """Return an empty list."""
        return []

    def rest_of(self, array: int) -> list[JobRecord]:
        """Return an empty list."""
        return []

    def ended(self, array: int) -> dict[int, bool]:
        """Return an empty mapping."""
        return {}

    def sum(self, array: int) -> ArraySum:
        """Return the totals of nothing."""
        return ArraySum(0, 0, 0, None)

    def last_of(self, uid: int) -> int | None:
        """Return None."""
        return None

    def steps(self, job_id: int) -> list[Step]:
        """Return an empty list."""
        return []

    def material(self, job_id: int) -> tuple[str, str]:
        """Return no references."""
        return "", ""

    def history(self, *, since: float, until: float, uid: int | None, after: int, page: int) -> Part:
        """Return no jobs, whatever the period (epoch seconds)."""
        return Part([], None)

    def ended_since(self, since: float) -> list[JobRecord]:
        """Return an empty list, whatever the time (epoch seconds)."""
        return []

    def runs_since(self, since: float) -> list[CompletedRun]:
        """Return an empty list, whatever the time (epoch seconds)."""
        return []
