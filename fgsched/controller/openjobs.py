"""Keep the open jobs by id. A pending job that was read from the queue is decoded when it is needed."""

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from operator import attrgetter
from typing import TypeVar, cast, overload

from fgsched.domain.job import Job
from fgsched.store import PendingRow

Default = TypeVar("Default")
_id = attrgetter("id")


class OpenJobs(Mapping[int, Job]):
    """A mapping {id: job} of the open jobs, in the order in which they were added."""

    def __init__(self) -> None:
        self._rows: dict[int, Job | PendingRow] = {}
        self._undecoded = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __getitem__(self, job_id: int) -> Job:
        found = self._rows[job_id]
        return found if type(found) is Job else self._decoded(job_id)

    @overload
    def get(self, job_id: int, /) -> Job | None: ...

    @overload
    def get(self, job_id: int, /, default: Default) -> Job | Default: ...

    def get(self, job_id: int, /, default: object = None) -> object:
        """Return a job, or the default."""
        found = self._rows.get(job_id)
        if found is None:
            return default
        return found if type(found) is Job else self._decoded(job_id)

    def __setitem__(self, job_id: int, job: Job) -> None:
        if self._undecoded and type(self._rows.get(job_id)) is PendingRow:
            self._undecoded -= 1
        self._rows[job_id] = job

    def pop(self, job_id: int) -> None:
        """Remove a job, if it is there."""
        if type(self._rows.pop(job_id, None)) is PendingRow:
            self._undecoded -= 1

    def extend(self, rows: Sequence[PendingRow]) -> None:
        """Add jobs that are not there yet."""
        before = len(self._rows)
        self._rows.update(zip(map(_id, rows), rows, strict=True))
        self._undecoded += len(self._rows) - before

    def values(self) -> ValuesView[Job]:
        """Return all jobs; this decodes every row."""
        if self._undecoded:
            self._rows.update({row.id: row.job() for row in self._rows.values() if type(row) is PendingRow})
            self._undecoded = 0
        return cast(ValuesView[Job], self._rows.values())

    def rows(self) -> "JobRows":
        """Return all jobs at this time; a part of the result is decoded when it is taken out."""
        return JobRows(tuple(self._rows.values()))

    def _decoded(self, job_id: int) -> Job:
        row = self._rows[job_id]
        assert type(row) is PendingRow
        self._rows[job_id] = job = row.job()
        self._undecoded -= 1
        return job


class JobRows:
    """A sequence of jobs from which parts can be taken."""

    def __init__(self, rows: Sequence[Job | PendingRow]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> list[Job]:
        return [row.job() if isinstance(row, PendingRow) else row for row in self._rows[part]]
