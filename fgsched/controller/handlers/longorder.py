"""Split an order about very many jobs into parts, one for each turn, between which others are served."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.jobref import References, Target, Targets
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import Job
from fgsched.domain.states import JobState
from fgsched.domain.steps import Steps
from fgsched.lifecycle.arrays import split_reference, tasks
from fgsched.protocol import Call, Cancel, Outcome, Outcomes, Reference, Update
from fgsched.server import cut

_PART = 200  # rows in one turn: some 10 ms
_STEP = 50  # references in one step

Name = Reference | Target
IsMeant = Callable[[Job], bool]  # of the rows of an array that is named as a whole


class LongOrder(ABC):
    """An order in parts."""

    def __init__(self, engine: Engine, caller: Caller, is_meant: IsMeant) -> None:
        self._engine = engine
        self._references = References(engine)
        self._caller, self._is_meant = caller, is_meant

    @abstractmethod
    def parts(self) -> Steps[Sequence[Call[Any]]]:
        """Find the rows in steps, and return a request for each part of them."""

    @abstractmethod
    def merged(self, answers: Sequence[Any]) -> Any:
        """Return the answer to the whole order."""

    def _targets(self, name: Reference) -> Steps[list[Name]]:
        """Return the rows and the pending tasks that a reference names; itself if it is refused."""
        try:
            number, task_bits = split_reference(name)
            first = self._references.row(name, number, self._caller)
            self._caller.must_own(first)
            if task_bits is not None:
                self._references.refuse_missing(first, task_bits)
        except FgschedError:
            return [name]
        jobtable = self._engine.jobtable
        array = jobtable.arrays.get(number) if first.array == number else None
        rows = [jobtable.jobs[row] for row in sorted(array.rows)] if array is not None else [first]
        if task_bits is not None:
            return (yield from self._tasks(name, first, task_bits, rows))
        meant_rows = [row for row in rows if self._is_meant(row)]
        return [Target(name, row.id) for row in meant_rows or rows[:1]]

    def _tasks(self, name: Reference, first: Job, task_bits: int, rows: Iterable[Job]) -> Steps[list[Name]]:
        """Return the rows of tasks, and the tasks without a row. `first` has the number of the array."""
        array = self._engine.jobtable.arrays.get(first.id)
        waiting = array.pending_bits if array is not None else 0
        row_of = {job.task: job.id for job in rows if job.task is not None}
        targets: list[Name] = []
        if waiting and not waiting & ~task_bits:  # all of them: they stay one row
            targets, task_bits = [Target(name, first.id)], task_bits & ~waiting
        for piece in cut([*tasks(task_bits)], _STEP):
            for task in piece:
                if waiting >> task & 1:
                    targets.append(Target(name, first.id, task))
                else:
                    targets.append(Target(name, row_of.get(task) or self._ended(first, task)))
            yield
        return targets

    def _ended(self, first: Job, task: int) -> int:
        """Return the row of a task that has ended; tasks that were cancelled together have one row."""
        past = self._engine.store.tasks.get(first.id, task)
        return past.job.id if past is not None else first.id


class JobsOrder(LongOrder):
    """An order with `ids`, which has an outcome for each row."""

    def __init__(self, engine: Engine, caller: Caller, is_meant: IsMeant, call: Any) -> None:
        super().__init__(engine, caller, is_meant)
        self._call = call
        self._names: list[Name] = []  # in the order of the answer
        self._ordered: list[Name] = []  # in the order of the parts

    def parts(self) -> Steps[Sequence[Call[Any]]]:
        """Find the rows; of a cancellation, what waits for others comes before what others wait for."""
        names: dict[Name, None] = {}
        for piece in cut(list(dict.fromkeys(self._call.ids)), _STEP):
            for name in piece:
                names.update(dict.fromkeys((yield from self._targets(name))))
            yield
        self._names = list(names)
        self._ordered = sorted(names, key=self._place) if isinstance(self._call, Cancel) else self._names
        return [replace(self._call, ids=part) for part in cut(self._ordered, _PART)]

    def _place(self, name: Name) -> tuple[bool, int]:
        """Put pending jobs first, the last that was submitted first: so none of them starts meanwhile."""
        row = name.row if isinstance(name, Target) else 0
        job = self._engine.jobtable.jobs.get(row)
        return job is None or job.state is not JobState.PENDING, -row

    def merged(self, answers: Sequence[Outcomes]) -> Outcomes:
        """Return the outcomes in the order of the request."""
        outcomes = [outcome for answer in answers for outcome in answer.jobs]
        of_name = dict(zip(self._ordered, outcomes, strict=True))
        return Outcomes(jobs=[of_name[name] for name in self._names])


class UpdateOrder(LongOrder):
    """A change of the rows of an array."""

    def __init__(self, engine: Engine, caller: Caller, is_meant: IsMeant, call: Update) -> None:
        super().__init__(engine, caller, is_meant)
        self._call = call

    def parts(self) -> Steps[Sequence[Call[Any]]]:
        """Find the rows."""
        targets = yield from self._targets(self._call.id)
        return [replace(self._call, id=Targets(self._call.id, tuple(part))) for part in cut(targets, _PART)]

    def merged(self, answers: Sequence[Outcome]) -> Outcome:
        """Return one outcome with all warnings."""
        warnings = dict.fromkeys(warning for answer in answers for warning in answer.warnings)
        return Outcome(id=self._call.id, warnings=tuple(warnings))


def is_long(engine: Engine, names: Sequence[Reference]) -> bool:
    """Tell whether an order has to be split, without a look at each row."""
    return len(names) > _PART or any(_names_many(engine, name) for name in names)


def _names_many(engine: Engine, name: Reference) -> bool:
    if isinstance(name, str):
        return "[" in name
    array = engine.jobtable.arrays.get(name)
    return array is not None and len(array.rows) > _PART
