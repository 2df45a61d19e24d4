"""One call for each element of iterables, as one array of the queue."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, Generic, TypeVar, overload

from fgsched import protocol
from fgsched.client import Client
from fgsched.python import submission
from fgsched.python.job import JobHandle
from fgsched.python.pickling import dumps
from fgsched.python.submission import Options
from fgsched.python.waiting import watcher

T = TypeVar("T")


class JobArray(Sequence[JobHandle[T]], Generic[T]):
    """The jobs of a map, in the order of its arguments; `id` is that of the array."""

    def __init__(self, array: int, jobs: Sequence[JobHandle[T]]) -> None:
        self.id, self._jobs = array, list(jobs)

    def __repr__(self) -> str:
        return f"<fgsched.JobArray {self.id} of {len(self)}>"

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> JobHandle[T]: ...
    @overload
    def __getitem__(self, index: slice) -> "JobArray[T]": ...
    def __getitem__(self, index: int | slice) -> "JobHandle[T] | JobArray[T]":
        if isinstance(index, slice):
            return JobArray(self.id, self._jobs[index])
        return self._jobs[index]

    @overload
    def results(self, *, timeout: float | None = None) -> list[T]:
        """Return the results; `timeout` is in seconds."""

    @overload
    def results(self, *, return_exceptions: bool, timeout: float | None = None) -> list[T | BaseException]:
        """Return the results and errors; `timeout` is in seconds."""

    def results(
        self, *, return_exceptions: bool = False, timeout: float | None = None
    ) -> list[T] | list[T | BaseException]:
        """Return the results in the order of the arguments.

        Args:
            return_exceptions: put the error of a job in the place of its result.
            timeout: seconds for all of them together.

        Raises: the error of the first job that has one, unless `return_exceptions`; TimeoutError.
        """
        until = None if timeout is None else time.monotonic() + timeout
        results: list[Any] = []
        for job in self._jobs:
            remaining = None if until is None else max(0.0, until - time.monotonic())
            results.append(_outcome(job, remaining) if return_exceptions else job.result(remaining))
        return results

    def as_completed(self, timeout: float | None = None) -> "JobsAsCompleted[T]":
        """Yield the jobs as they end, in `for` or `async for`. `timeout` is in seconds."""
        return as_completed(self._jobs, timeout)

    def cancel(self) -> bool:
        """Cancel all jobs that have not ended, with one request; tell whether none will complete."""
        open_jobs = [job for job in self._jobs if not job.done()]
        if not open_jobs:
            return all(job.cancelled() for job in self._jobs)
        return all([job.take_order(outcome) for job, outcome in _cancelled(open_jobs)])

    def summary(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        with Client(self._jobs[0].paths, names_variables=False) as client:
            infos = client.call(protocol.ShowJobs(id=self.id)).jobs
        states = {info.task: info.state.word for info in infos if info.task is not None}
        others = next((info.state.word for info in infos if info.task is None), "PENDING")
        counts: dict[str, int] = {}
        for job in self._jobs:
            state = job.final or states.get(job.task or 0, others)
            counts[state] = counts.get(state, 0) + 1
        return counts


def _outcome(job: JobHandle[Any], timeout: float | None) -> Any:
    """Return the result or the error of a job. Raises TimeoutError after `timeout` seconds."""
    try:
        return job.result(timeout)
    except Exception as error:
        if isinstance(error, TimeoutError) and not job.done():
            raise
        return error


def _cancelled(jobs: Sequence[JobHandle[Any]]) -> Iterator[tuple[JobHandle[Any], protocol.Outcome]]:
    """Cancel jobs of one controller; yield each with the outcome of the request."""
    with Client(jobs[0].paths, names_variables=False) as client:
        outcomes = client.call(protocol.Cancel(ids=[job.reference for job in jobs]), patience=60).jobs
    by_id = {outcome.id: outcome for outcome in outcomes}
    for job in jobs:
        outcome = by_id.get(job.reference) or by_id.get(job.id)  # the last task has the row of the array
        if outcome is not None:
            yield job, outcome


class JobsAsCompleted(Generic[T]):
    """Jobs in the order in which they end, for `for` and `async for`."""

    def __init__(self, jobs: Sequence[JobHandle[T]], timeout: float | None) -> None:
        """`timeout` is in seconds; None: no limit."""
        self._jobs, self._timeout = jobs, timeout

    def __iter__(self) -> Iterator[JobHandle[T]]:
        for future in futures.as_completed(self._jobs, self._timeout):
            assert isinstance(future, JobHandle)
            yield future

    async def __aiter__(self) -> AsyncIterator[JobHandle[T]]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[JobHandle[T]] = asyncio.Queue()

        def tell(future: "futures.Future[T]") -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.put_nowait, future)  # type: ignore[arg-type]

        for job in self._jobs:
            job.add_done_callback(tell)
        async with asyncio.timeout(self._timeout):
            for _ in self._jobs:
                yield await ended.get()


def as_completed(jobs: Iterable[JobHandle[T]], timeout: float | None = None) -> JobsAsCompleted[T]:
    """Yield jobs as they end, in `for` or `async for`; raise TimeoutError after `timeout` seconds."""
    return JobsAsCompleted(list(jobs), timeout)


def map(  # the name of the function that it resembles
    function: Callable[..., T],
    *iterables: Iterable[Any],
    fg: Options | None = None,
    at_once: int = 0,
    **options: Any,
) -> JobArray[T]:
    """Queue a call for each element of the iterables as an array, and return the handles of its jobs.

    The function, and leading arguments that are one object for all calls, are stored once.

    Args:
        fg: options of the jobs, if a parameter of the function has the name of one.
        at_once: calls that may run at the same time; 0: as many as fit.
        options: options of the jobs (`gpus=0.5`), and keyword arguments of all calls.

    Raises: as `submit`.
    """
    plain, keywords, chosen = submission.separate(function, options, fg)
    calls = list(zip(*iterables, strict=False))
    if not calls:
        return JobArray(0, [])
    submission.check_arguments(plain, calls[0], keywords)
    common = _common(calls)
    tasks = [dumps(call[len(common) :], f"call {number}:") for number, call in enumerate(calls)]
    keep = submission.kept_seconds(chosen)
    new_call = submission.function_call(plain, common, keywords, keep=keep, tasks=tasks)
    sent = submission.send(new_call, chosen, at_once=at_once)
    jobs: list[JobHandle[T]] = [
        JobHandle(sent.id, index, sent.folder, sent.paths) for index in range(len(calls))
    ]
    watcher(sent.paths).add(*jobs)
    return JobArray(sent.id, jobs)


def _common(calls: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the leading arguments that are the same object in all calls; not of a single call."""
    first, count = calls[0], 0
    if len(calls) == 1:
        return ()
    while count < len(first) and all(call[count] is first[count] for call in calls):
        count += 1
    return first[:count]
