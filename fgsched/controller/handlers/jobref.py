"""Resolve references to jobs: job or array 12, task '12_3', tasks '12_[1-5,8]'."""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fgsched.controller.caller import Caller, no_such_job
from fgsched.controller.engine import Engine
from fgsched.controller.jobtable import Array
from fgsched.domain.job import Job
from fgsched.lifecycle.arrays import bits_of, lowest, split_reference, tasks
from fgsched.protocol import Reference
from fgsched.server import cut
from fgsched.store import JobRecord


class Target(Struct, frozen=True):
    """One row, or one task of an array, that an order names together with others."""

    name: Reference  # as the order has it
    row: int  # id of the row, or of the array
    task: int | None = None


class Targets(Struct, frozen=True):
    """Several rows of one reference."""

    name: Reference
    targets: tuple[Target | Reference, ...]


def name_of(job: Job) -> Reference:
    """Return the reference of a row: 12, or '12_3'."""
    return f"{job.array}_{job.task}" if job.task is not None else job.id


class References:
    """Rows by reference, open or ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def seen_rows(self, reference: Any, caller: Caller) -> list[Job]:
        """Return the open rows of a reference; an ended row only if it is named itself.

        Raises:
            NoSuchJob: there is none, or the site hides it from the caller, with the same text.
        """
        number, task_bits = split_reference(reference)
        job = self.row(reference, number, caller)
        array = self._engine.jobtable.arrays.get(number) if job.array == number else None
        if task_bits is not None:
            return self._tasks(job, task_bits, array)
        return [job] if array is None else [self._engine.jobtable.jobs[row] for row in sorted(array.rows)]

    def own_rows(self, reference: Any, caller: Caller) -> list[Job]:
        """Return the rows to change; pending tasks that are named get their own rows.

        `reference` may be a `Target` or `Targets` too.

        Raises:
            NoSuchJob: as `seen_rows`.
            NotPermitted: they belong to another user.
        """
        if isinstance(reference, Targets):
            return [row for target in reference.targets for row in self.own_rows(target, caller)]
        if isinstance(reference, Target):
            return [self._row_to_change(reference, caller)]
        number, task_bits = split_reference(reference)
        caller.must_own(self.row(reference, number, caller))  # all tasks have one owner
        jobs: list[Job] = []
        for row in self.seen_rows(reference, caller):
            array = self._engine.jobtable.arrays.get(row.array) if row.is_rest else None
            if task_bits is None or array is None or not array.pending_bits & ~task_bits:
                jobs.append(row)
                continue
            jobs += [
                self._engine.eligibility.split(row, task) for task in tasks(array.pending_bits & task_bits)
            ]
        return jobs

    def _row_to_change(self, target: Target, caller: Caller) -> Job:
        """Return a row to change; a pending task gets its own row. Raises as `own_rows` does."""
        jobs, job = self._engine.jobtable.jobs, self.row(target.name, target.row, caller)
        caller.must_own(job)
        if target.task is None:
            return job
        array = self._engine.jobtable.arrays.get(target.row) if job.is_rest else None
        if array is not None and array.pending_bits >> target.task & 1:
            return (
                job
                if array.pending_bits == 1 << target.task
                else self._engine.eligibility.split(job, target.task)
            )
        past = self._engine.store.tasks.get(target.row, target.task)  # it has got its row meanwhile
        return jobs.get(past.job.id, past.job) if past else job

    def seen_parts(self, reference: Any, caller: Caller) -> Iterator[list[JobRecord]]:
        """Yield the rows of a reference in parts: an array may have very many. Raises as `seen_rows` does."""
        number, task_bits = split_reference(reference)
        store, jobs = self._engine.store, self._engine.jobtable.jobs
        job = self.row(reference, number, caller)
        if task_bits is None and job.array == number:
            parts: Iterable[list[JobRecord]] = store.tasks.parts(number)
        elif task_bits is None:
            parts = [[past] if (past := store.past(job.id)) is not None else []]
        else:
            parts = self._past_tasks(job, task_bits)
        is_empty = True
        for part in parts:
            is_empty = is_empty and not part
            yield [replace(past, job=jobs.get(past.job.id, past.job)) for past in part]
        if is_empty:
            raise no_such_job(reference)

    def _past_tasks(self, first: Job, task_bits: int) -> Iterator[list[JobRecord]]:
        """Yield the rows of these tasks in parts. `first` is the row with the array's id."""
        self.refuse_missing(first, task_bits)
        store, array = self._engine.store, self._engine.jobtable.arrays.get(first.id)
        waiting = array.pending_bits & task_bits if array else 0
        rows = (self._engine.jobtable.jobs[row] for row in array.rows) if array else ()
        row_of = {row.task: row.id for row in rows if row.task is not None}
        if waiting:  # they have one row, which stands at the place of their first
            row_of[lowest(waiting)], task_bits = first.id, task_bits & ~waiting | waiting & -waiting
        row_ids: set[int] = set()  # one row has all tasks that were cancelled with their array
        for piece in cut([*tasks(task_bits)]):
            records: list[JobRecord] = []
            for task in piece:
                past = store.past(row_of[task]) if task in row_of else store.tasks.get(first.id, task)
                past = past or store.past(first.id)
                if past is not None and past.job.id not in row_ids:
                    row_ids.add(past.job.id)
                    records.append(past)
            yield records

    def row(self, reference: Reference, number: int, caller: Caller) -> Job:
        """Return the row with this number: a job, or an array, whose tasks all have its owner.

        The error names the reference as it was given: neither a number of a row nor a task that is missing
        tells whether a hidden job exists.
        """
        job = self._engine.jobtable.jobs.get(number)
        if job is None and 0 < number < 2**63:
            past = self._engine.store.past(number)
            job = past.job if past is not None else None
        if job is None or not caller.may_see(job):
            raise no_such_job(reference)
        return job

    def refuse_missing(self, first: Job, task_bits: int) -> None:
        """Refuse tasks that an array does not have. `first` is the row with its id. Raises NoSuchJob."""
        missing = task_bits & ~(bits_of(first.request.array) if first.array == first.id else 0)
        if missing:
            raise no_such_job(f"{first.id}_{lowest(missing)}")

    def _tasks(self, first: Job, task_bits: int, array: Array | None) -> list[Job]:
        """Return the rows of these tasks. `first` is the row with the array's id."""
        number = first.id
        self.refuse_missing(first, task_bits)
        jobs: dict[int, Job] = {}
        if array is not None:
            for row in (self._engine.jobtable.jobs[row_id] for row_id in sorted(array.rows)):
                its = array.pending_bits if row.task is None else 1 << row.task
                if its & task_bits:
                    jobs[row.id] = row
                    task_bits &= ~its
        for task in tasks(task_bits):
            past = self._engine.store.tasks.get(number, task)
            row = past.job if past else first  # the rest was cancelled as it stood
            jobs[row.id] = row
        return list(jobs.values())
