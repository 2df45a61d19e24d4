"""Keep the open jobs by id. A pending job that was read from the queue is decoded when it is needed."""

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from typing import TypeVar, cast, overload

from fgsched.domain.job import Job
from fgsched.scheduling.queue import joined
from fgsched.store.rows import PendingJobs

Default = TypeVar("Default")


class OpenJobs(Mapping[int, Job]):
    """A mapping {id: job} of the open jobs."""

    def __init__(self) -> None:
        self._rows: dict[int, Job | PendingJobs] = {}
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
        if self._undecoded and type(self._rows.get(job_id)) is PendingJobs:
            self._undecoded -= 1
        self._rows[job_id] = job

    def pop(self, job_id: int) -> None:
        """Remove a job, if it is there."""
        if type(self._rows.pop(job_id, None)) is PendingJobs:
            self._undecoded -= 1

    def take_over(self, rows: dict[int, PendingJobs]) -> None:
        """Add jobs that are not there yet. The caller does not use the dict any more."""
        self._undecoded += len(rows)
        self._rows = joined(self._rows, cast("dict[int, Job | PendingJobs]", rows))

    def values(self) -> ValuesView[Job]:
        """Return all jobs; this decodes every row."""
        if self._undecoded:
            for number, row in self._rows.items():
                if type(row) is PendingJobs:
                    self._rows[number] = row.job(number)
            self._undecoded = 0
        return cast(ValuesView[Job], self._rows.values())

    def rows(self) -> "JobRows":
        """Return all jobs at this time, by id; a part of the result is decoded when it is taken out."""
        ids = sorted(self._rows)
        return JobRows(ids, list(map(self._rows.__getitem__, ids)))

    def _decoded(self, job_id: int) -> Job:
        row = self._rows[job_id]
        assert type(row) is PendingJobs
        self._rows[job_id] = job = row.job(job_id)
        self._undecoded -= 1
        return job


class JobRows:
    """A sequence of jobs from which parts can be taken."""

    def __init__(self, ids: Sequence[int], rows: Sequence[Job | PendingJobs]) -> None:
        self._ids, self._rows = ids, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> list[Job]:
        return [
            row.job(number) if isinstance(row, PendingJobs) else row
            for number, row in zip(self._ids[part], self._rows[part], strict=True)
        ]
