"""Resolve references to jobs: job or array 12, task '12_3', tasks '12_[1-5,8]'."""

from collections.abc import Callable
from typing import Any, TypeVar

from fgsched.controller.caller import Caller, no_such_job
from fgsched.controller.engine import Engine
from fgsched.controller.waitindex import Array
from fgsched.domain.job import Job
from fgsched.jobs.arrays import bits_of, lowest, split_reference, tasks
from fgsched.store import JobRecord

Reference = int | str
Row = TypeVar("Row", Job, JobRecord)


def name_of(job: Job) -> Reference:
    """Return the reference of a row: 12, or '12_3'."""
    return f"{job.array}_{job.task}" if job.task is not None else job.id


class References:
    """Rows by reference, open or ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def rows(self, reference: Any) -> list[Job]:
        """Return the open rows of a reference; an ended row only if it is named itself. Raises NoSuchJob."""
        number, wanted = split_reference(reference)
        job = self._one(number)
        array = self._engine.jobtable.arrays.get(number) if job.array == number else None
        if wanted is not None:
            return self._tasks(job, wanted, array)
        return [job] if array is None else [self._engine.jobtable.jobs[row] for row in sorted(array.rows)]

    def seen_rows(self, reference: Any, caller: Caller) -> list[Job]:
        """Return the open rows of a reference as `rows` does. Raises NoSuchJob for a hidden job, too."""
        return _visible(reference, self.rows(reference), caller.may_see)

    def own_rows(self, reference: Any, may: Callable[[Job], None]) -> list[Job]:
        """Return the rows to change; pending tasks that are named get their own rows. Raises NoSuchJob."""
        _, wanted = split_reference(reference)
        rows = self.rows(reference)
        for row in rows:
            may(row)
        found: list[Job] = []
        for row in rows:
            array = self._engine.jobtable.arrays.get(row.array) if row.is_rest else None
            if wanted is None or array is None or not array.rest & ~wanted:
                found.append(row)
                continue
            found += [self._engine.eligibility.split(row, task) for task in tasks(array.rest & wanted)]
        return found

    def seen_past(self, reference: Any, caller: Caller) -> list[JobRecord]:
        """Return all rows of a reference as `past` does. Raises NoSuchJob for a hidden job, too."""
        return _visible(reference, self.past(reference), lambda record: caller.may_see(record.job))

    def past(self, reference: Any) -> list[JobRecord]:
        """Return all rows of a reference from accounting."""
        number, wanted = split_reference(reference)
        store, known = self._engine.store, self._engine.jobtable.jobs
        job = self._one(number)
        if wanted is None and job.array == number:
            found = store.tasks.of(number)
        else:
            rows = (
                [job]
                if wanted is None
                else self._tasks(job, wanted, self._engine.jobtable.arrays.get(number))
            )
            found = [past for row in rows if (past := store.past(row.id)) is not None]
        return [JobRecord(known.get(past.job.id, past.job), past.allocated) for past in found]

    def _one(self, number: int) -> Job:
        job = self._engine.jobtable.jobs.get(number)
        if job is not None:
            return job
        past = self._engine.store.past(number) if 0 < number < 2**63 else None
        if past is None:
            raise no_such_job(number)
        return past.job

    def _tasks(self, first: Job, wanted: int, array: Array | None) -> list[Job]:
        """Return the rows of these tasks. `first` is the row with the array's id."""
        number = first.id
        missing = wanted & ~(bits_of(first.request.array) if first.array == number else 0)
        if missing:
            raise no_such_job(f"{number}_{lowest(missing)}")
        found: dict[int, Job] = {}
        if array is not None:
            for row in (self._engine.jobtable.jobs[one] for one in sorted(array.rows)):
                its = array.rest if row.task is None else 1 << row.task
                if its & wanted:
                    found[row.id] = row
                    wanted &= ~its
        for task in tasks(wanted):
            past = self._engine.store.tasks.get(number, task)
            row = past.job if past else first  # the rest was cancelled as it stood
            found[row.id] = row
        return list(found.values())


def _visible(reference: Any, rows: list[Row], may_see: Callable[[Row], bool]) -> list[Row]:
    """Return the rows that the caller may see. Raises NoSuchJob if there are none."""
    if seen := [row for row in rows if may_see(row)]:
        return seen
    raise no_such_job(reference)
