"""Look up the jobs for which a client waits, in steps between which others are served."""

from typing import Any

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.jobref import References
from fgsched.controller.handlers.wait import AwaitedJobs
from fgsched.domain.job import Job
from fgsched.domain.steps import Steps
from fgsched.lifecycle.arrays import bits_from, split_reference, tasks
from fgsched.server import cut

_STEP = 50  # references, or jobs that are read from the queue, in one step
_ROWS = 2000  # rows in memory


class WaitLookup:
    """Finds open and ended jobs by reference."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._references = References(engine)

    def look(self, caller: Caller, names: list[Any], awaited: AwaitedJobs) -> Steps[None]:
        """Add the jobs that the references name.

        Ends between the steps reach `awaited` too: an open job is added in the step that finds it open.

        Raises:
            BadUsage: a reference is invalid.
            NoSuchJob: there is no such job, or the site hides it from the caller.
        """
        numbers: dict[int, None] = {}
        of_arrays: dict[int, tuple[Any, int]] = {}  # array -> (its first reference, all its tasks as bits)
        for piece in cut(names, _STEP):
            for name in piece:
                number, bits = split_reference(name)
                if bits is None:
                    numbers[number] = None
                else:
                    first, others = of_arrays.get(number, (name, 0))
                    of_arrays[number] = first, others | bits
            yield
        for piece in cut(list(numbers), _STEP):
            for number in piece:
                yield from self._add(self._references.row(number, number, caller), number, awaited)
            yield
        for number, (first, bits) in of_arrays.items():
            job = self._references.row(first, number, caller)
            self._references.refuse_missing(job, bits)
            yield from self._add_tasks(job, bits, awaited)

    def _add(self, job: Job, number: int, awaited: AwaitedJobs) -> Steps[None]:
        """Add a job, or an array with its tasks that have ended."""
        if job.array != number:
            if job.state.is_final:
                awaited.add_end(job)
            else:
                awaited.jobs.add(job.id)
            return
        if self._engine.jobtable.arrays.get(number) is not None:
            awaited.arrays.add(number)
        for part in self._engine.store.tasks.parts(number):
            for record in part:
                if record.job.state.is_final and record.job.id not in self._engine.jobtable.jobs:
                    awaited.add_end(record.job)
            yield

    def _add_tasks(self, job: Job, wanted: int, awaited: AwaitedJobs) -> Steps[None]:
        """Add tasks of an array. `job` is the row with the array's id."""
        array = self._engine.jobtable.arrays.get(job.id)
        waiting = array.rest & wanted if array else 0
        awaited.add_tasks(job.id, waiting)
        is_wanted = bin(wanted & ~waiting)[:1:-1]  # by index
        with_rows: list[int] = []
        for piece in cut(list(array.rows) if array else (), _ROWS):
            for row in filter(None, map(self._engine.jobtable.jobs.get, piece)):
                if row.task is not None and is_wanted[row.task : row.task + 1] == "1":
                    awaited.jobs.add(row.id)
                    with_rows.append(row.task)
            yield
        for ended in cut([*tasks(wanted & ~waiting & ~bits_from(with_rows))], _STEP):
            for task in ended:
                past = self._engine.store.tasks.get(job.id, task)
                yield from self._add(past.job if past else job, 0, awaited)  # none: cancelled with its array
            yield
