"""The arrays that are not over: which of their tasks wait, how many run, which may start next."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fgsched.domain.job import Job, JobState
from fgsched.jobs.arrays import bits_from, bits_of, lowest


@dataclass(slots=True)
class Array:
    rest: int = 0  # the tasks that have no row of their own yet, as bits
    open: int = -1  # of these, the ones whose counterpart in another array has completed
    throttle: int = 0  # how many may run at a time; 0: all
    rows: set[int] = field(default_factory=set)  # ids of all that are not over
    waiting: set[int] = field(default_factory=set)  # of these, the ones that are pending
    holding: int = 0  # how many hold something

    @property
    def room(self) -> int:
        """How many more may run."""
        return self.throttle - self.holding if self.throttle else 1 << 30


class Arrays:
    """`made(array)`: the indices that have rows, of an array that is met for the first time."""

    def __init__(self, made: Callable[[int], Iterable[int]] = lambda array: ()) -> None:
        self._made = made
        self._arrays: dict[int, Array] = {}

    def get(self, array: int) -> Array | None:
        return self._arrays.get(array)

    def put(self, before: Job | None, job: Job) -> None:
        """Take in the present state of a row."""
        it = self._arrays.get(job.array)
        if it is None:
            if job.state.is_final:
                return
            it = self._arrays[job.array] = Array()
        if job.is_rest and before is None:
            it.rest = bits_of(job.request.array) & ~bits_from(self._made(job.array))
        if "aftercorr" not in job.depends:
            it.open = it.open if not job.is_rest else -1
        elif job.is_rest and (before is None or "aftercorr" not in before.depends):
            it.open = 0
        it.throttle = job.request.throttle
        it.holding += job.state.holds - (before is not None and before.state.holds)
        (it.waiting.add if job.state is JobState.PENDING else it.waiting.discard)(job.id)
        if not job.state.is_final:
            it.rows.add(job.id)
            return
        it.rows.discard(job.id)
        if job.is_rest:
            it.rest = 0
        if not it.rows:
            del self._arrays[job.array]

    def take(self, array: int, task: int) -> bool:
        """A waiting task is to get a row of its own; whether it is the last."""
        it = self._arrays[array]
        it.rest &= ~(1 << task)
        return not it.rest

    def next_task(self, array: int) -> int | None:
        """The lowest waiting task whose turn may come."""
        it = self._arrays[array]
        return lowest(it.rest & it.open) if it.rest & it.open else None

    def ready(self, job: Job) -> int:
        """How many tasks a waiting row of an array may start now."""
        it = self._arrays[job.array]
        return max(0, min(it.room, (it.rest & it.open).bit_count() if job.is_rest else 1))
