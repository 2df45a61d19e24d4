"""A handle of one job: its state, its end, its result, and the orders about it."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from msgspec import Struct

from fgsched import protocol
from fgsched.cli.changes import read_changes, words_by_key
from fgsched.cli.prospects import explained
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, FgschedError, NoSuchJob, Unreachable
from fgsched.domain.job import memory_peak
from fgsched.domain.states import JobState
from fgsched.domain.waiting import Advice, Blocker
from fgsched.protocol import JobInfo
from fgsched.python import calls, outcomes, submission
from fgsched.python.submission import Options
from fgsched.python.waiting import Name, watcher
from fgsched.system.paths import Paths
from fgsched.views import job as view
from fgsched.views.options import rows_of

T = TypeVar("T")


class Why(Struct, frozen=True):
    """Why a job is pending; as text it is what `fgq --why` prints."""

    text: str
    blockers: tuple[Blocker, ...] = ()
    advice: tuple[Advice, ...] = ()
    latest: float | None = None  # expected start in seconds since the epoch, at the latest; None: unknown
    likely: float | None = None  # the same by the earlier runs of the jobs ahead

    def __str__(self) -> str:
        return self.text


class CallUsage(Struct, frozen=True, kw_only=True):
    """What a job has used. None: it is not measured."""

    gpu_memory_peak: int | None  # bytes on one GPU
    gpu_memory_mean: float | None  # bytes
    gpu_time: float | None  # GPU seconds of the shares that it held
    energy: float | None  # joules
    waited: float | None  # seconds from the time at which it could have started
    ran: float  # seconds
    attempts: int


class JobHandle(Future[T], Generic[T]):
    """A job of the queue, as `fgsched.Job`. It is also a `concurrent.futures.Future` of its result."""

    def __init__(self, job: int, task: int | None, folder: Path | None, paths: Paths) -> None:
        """Make a handle of a job, or of a task of an array; `folder` is that of its call, if it has one."""
        super().__init__()
        self.id, self.task = job, task
        self._folder, self.paths = folder, paths
        self._state = "PENDING"
        self.final = ""  # state in which it ended
        self._outcome: outcomes.Outcome | None = None
        self._refusal: FgschedError | None = None
        self._reading = threading.Lock()
        self._settling = threading.RLock()  # a callback may ask for the result

    def __repr__(self) -> str:
        return f"<fgsched.Job {self.label}{' ' if self.final else ''}{self.final}>"

    def __reduce__(self) -> Any:
        return job, (self.label,)

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def name(self) -> Name:
        """The job or array, and the task."""
        return self.id, self.task

    @property
    def label(self) -> str:
        """The id that the commands show: 12, or 12_3 for a task of an array."""
        return str(self.id) if self.task is None else f"{self.id}_{self.task}"

    @property
    def reference(self) -> int | str:
        """The name of the job in requests."""
        return self.id if self.task is None else self.label

    @property
    def state(self) -> str:
        """The state, such as PENDING, RUNNING or COMPLETED."""
        return self.final or self._info("state").state.word

    @property
    def reason(self) -> str:
        """The reason why it is pending, or how it ended; None if there is none to give."""
        return view.present_reason(self._info(*view.attributes(view.present_reason)))

    @property
    def gpus(self) -> tuple[int, ...]:
        """The indices of the GPUs that it has, or had in its last run."""
        return tuple(part.gpu for part in self._info("allocated").allocated)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None: the job has not ended."""
        info = self._info("state", "exit_code")
        return info.exit_code if info.state.is_final else None

    def _info(self, *fields: str) -> JobInfo:
        """Return attributes of the job. Raises NoSuchJob or Unreachable."""
        page = self._call(protocol.ListHistory(fields=fields, ids=[self.reference]))
        if not page.jobs:
            raise NoSuchJob(f"there is no job {self.label}")
        return page.jobs[0]

    def _call(self, request: protocol.Call[protocol.Answer]) -> protocol.Answer:
        with Client(self.paths, names_variables=False) as client:
            return client.call(request)

    # -- its end ------------------------------------------------------------------------------------

    def take_end(self, state: str) -> None:
        """Note the state in which the job ended; the thread that waits calls it."""
        self.final = state
        self._settle(is_cancelled=state == JobState.CANCELLED.word)

    def take_error(self, error: FgschedError) -> None:
        """Note that the controller does not know the job; the thread that waits calls it."""
        self._refusal = error
        self._settle(is_cancelled=False)

    def _settle(self, *, is_cancelled: bool) -> None:
        """Let the future end, once: an order to cancel it and the report of its end can coincide."""
        with self._settling:
            if self.done():
                return
            if not is_cancelled:
                super().set_result(cast(T, None))  # `result` reads the files
            elif super().cancel():
                self.set_running_or_notify_cancel()

    def await_end(self) -> None:
        """Have the end of the job noted when it comes."""
        watcher(self.paths).add(self)

    def running(self) -> bool:
        """Tell whether the job runs."""
        return not self.done() and self.state in (JobState.RUNNING.word, JobState.COMPLETING.word)

    def result(self, timeout: float | None = None) -> T:
        """Return what the function returned; wait for it, at most `timeout` seconds.

        Raises: what the function raised; a `JobError` for another end; TimeoutError.
        """
        match self._end(timeout):
            case outcomes.Value(value=value):
                return cast(T, value)
            case outcomes.Failure(error=error):
                raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` would raise; None: nothing. Raises TimeoutError after `timeout` seconds."""
        match self._end(timeout):
            case outcomes.Failure(error=error) if self.cancelled():
                raise error
            case outcomes.Failure(error=error):
                return error
        return None

    def _end(self, timeout: float | None) -> outcomes.Outcome:
        try:
            self._wait(timeout)
        except CancelledError:
            pass
        except TimeoutError:
            silent = watcher(self.paths).silent_because
            because = f" ({silent})" if silent else ""
            raise TimeoutError(f"job {self.label} has not ended after {timeout:g} s{because}") from None
        if self.cancelled():
            self.final = JobState.CANCELLED.word
        with self._reading:
            if self._outcome is None:
                self._outcome = self._read()
            return self._outcome

    def _wait(self, timeout: float | None) -> None:
        """Wait for the end. Raises TimeoutError after `timeout` seconds, or CancelledError."""
        if self.done():
            return
        with watcher(self.paths).blocking():
            super().exception(timeout)

    def _read(self) -> outcomes.Outcome:
        if self._refusal is not None:
            return outcomes.Failure(self._refusal)
        return outcomes.outcome_of(
            self._folder, self.task or 0, self.final, lambda: self._info(*outcomes.FIELDS)
        )

    def __await__(self) -> Generator[Any, None, T]:
        """Wait in an event loop. Cancelling the wait does not cancel the job."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def tell(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, waiter)

        self.add_done_callback(tell)
        yield from waiter
        return self.result(0)

    # -- what it printed and used ---------------------------------------------------------------------

    def stdout(self, *, tail: int | None = None) -> str:
        """Return what the job has printed, or the last `tail` bytes of it."""
        return outcomes.read_tail(view.stdout(self._info(*view.attributes(view.stdout))), tail)

    def stderr(self, *, tail: int | None = None) -> str:
        """Return what the job has written to standard error, or the last `tail` bytes of it."""
        return outcomes.read_tail(view.stderr(self._info(*view.attributes(view.stderr))), tail)

    def why(self) -> Why:
        """Return why the job is pending."""
        try:
            jobs = self._call(protocol.ExplainJobs(ids=[self.reference])).jobs
        except Unreachable as error:
            return Why(f"the controller does not answer: {error.cause}")
        if not jobs:
            return Why(f"Job {self.label} is not pending: it is {self.state}.")
        explanation = jobs[0]
        start = explanation.start
        return Why(
            "\n".join(explained(explanation)),
            tuple(explanation.blockers),
            tuple(explanation.advice),
            start.at if start else None,
            start.likely if start else None,
        )

    def usage(self) -> CallUsage:
        """Return what the job has used, up to now or to its end."""
        waited = view.attributes(view.waited)
        info = self._info("gpu_peak", "usage", "elapsed", "attempt", *waited)
        measured = info.usage
        sampled = measured is not None and measured.sampled > 0
        return CallUsage(
            gpu_memory_peak=memory_peak(info.gpu_peak, measured),
            gpu_memory_mean=measured.memory / measured.sampled if measured and sampled else None,
            gpu_time=measured.charged if measured else None,
            energy=measured.energy if measured else None,
            waited=view.waited(info),
            ran=info.elapsed,
            attempts=info.attempt,
        )

    # -- orders -----------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel the job, pending or running; return False if it has ended otherwise.

        Raises: NotPermitted; Unreachable.
        """
        if self.cancelled():
            return True
        if self.done():
            return False
        return self.take_order(self._order(protocol.Cancel(ids=[self.reference])))

    def take_order(self, outcome: protocol.Outcome) -> bool:
        """Note the outcome of an order to cancel the job; tell whether it will not complete."""
        if outcome.error is not None:
            raise outcome.error.error()
        if outcome.outcome == "over":
            return outcome.state == JobState.CANCELLED.word
        self._settle(is_cancelled=True)
        return self.cancelled()

    def hold(self) -> None:
        """Hold the job while it is pending."""
        self._order(protocol.UserHold(ids=[self.reference]))

    def release(self) -> None:
        """Release the job from its hold."""
        self._order(protocol.Release(ids=[self.reference]))

    def requeue(self) -> None:
        """Run the job again: it ends, and is pending."""
        if self._folder is not None and not self.done():
            calls.clear_result(self._folder, self.task or 0)
        self._order(protocol.Requeue(ids=[self.reference]))

    def suspend(self) -> None:
        """Stop the processes of the job; it keeps its GPUs."""
        self._order(protocol.Suspend(ids=[self.reference]))

    def resume(self) -> None:
        """Let a suspended job continue."""
        self._order(protocol.ResumeJobs(ids=[self.reference]))

    def update(self, **options: Any) -> None:
        """Change options of the job, as `fgctl update`. Raises TypeError, BadUsage or Refused."""
        keys = {row.name: row.update.split()[0] for row in rows_of("fgsub") if row.update}
        words = []
        for name, value in options.items():
            option = submission.option_of(name)
            if option is None or option.name not in keys:
                raise TypeError(f"{name} of a job cannot be changed")
            words.append(f"{keys[option.name]}={submission.text_of(option, value)}")
        with Client(self.paths, names_variables=False) as client:
            changes = read_changes(words_by_key(words), client.call(protocol.Ping()).site)
            outcome = client.call(protocol.Update(id=self.reference, changes=changes))
        if outcome.error is not None:
            raise outcome.error.error()

    def _order(self, request: protocol.Call[protocol.Outcomes]) -> protocol.Outcome:
        """Send an order about the job. Raises its refusal."""
        outcome = self._call(request).jobs[0]
        if outcome.error is not None:
            raise outcome.error.error()
        return outcome

    def forget(self) -> None:
        """Remove the call and its result. Raises BadUsage if the job has not ended."""
        if not self.done():
            raise BadUsage(f"job {self.label} has not ended", "Cancel it first: job.cancel().")
        if self._folder is not None:
            calls.remove(self._folder)
        self._outcome = None


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


# -- how one gets a handle -------------------------------------------------------------------------


@overload
def submit(
    function: Callable[..., T], /, *args: Any, fg: Options | None = None, **options: Any
) -> JobHandle[T]: ...
@overload
def submit(
    function: Sequence[str], /, *args: Any, fg: Options | None = None, **options: Any
) -> JobHandle[None]: ...
def submit(function: Any, /, *args: Any, fg: Options | None = None, **options: Any) -> JobHandle[Any]:
    """Queue a call of a function, or a command as a list of words, and return the handle of its job.

    Args:
        args: arguments of the function.
        fg: options of the job; without it, keywords that are options of fgsub are those of the job.
        options: options of the job (`gpus=0.5`), and keyword arguments of the function.

    Raises:
        TypeError: arguments that the function does not take; NotPicklable, with the path to the culprit.
        BadUsage, Refused, StorageError, Unreachable: as fgsub.
    """
    if isinstance(function, list | tuple):
        chosen = {**options, **(fg or {})}
        if args:
            raise TypeError("a command has no arguments beside its words")
        new_call = submission.command_call(function, keep=submission.kept_seconds(chosen))
    else:
        function, keywords, chosen = submission.separate(function, options, fg)
        submission.check_arguments(function, args, keywords)
        keep = submission.kept_seconds(chosen)
        new_call = submission.function_call(function, args, keywords, keep=keep)
    sent = submission.send(new_call, chosen)
    handle: JobHandle[Any] = JobHandle(sent.id, None, sent.folder, sent.paths)
    handle.await_end()
    return handle


def job(id: int | str) -> JobHandle[Any]:
    """Return the handle of a job or of a task ("12_3"), also in another process.

    Raises: NoSuchJob; BadUsage for an array.
    """
    paths = find_paths()
    with Client(paths, names_variables=False) as client:
        reference = int(id) if isinstance(id, str) and id.isdecimal() else id
        page = client.call(protocol.ListHistory(fields=_LISTED, ids=[reference]))
    if not page.jobs:
        raise NoSuchJob(f"there is no job {id}")
    if page.jobs[0].array is not None and page.jobs[0].array == reference:
        raise BadUsage(f"{id} is an array of jobs", f'Name one of its tasks: fgsched.job("{id}_0").')
    return _handle(page.jobs[0], paths)


def jobs(
    *, me: bool = True, state: str | Sequence[str] = (), name: str | Sequence[str] = ()
) -> list[JobHandle[Any]]:
    """Return handles of open jobs, and of jobs that ended in the last five minutes.

    Args:
        me: only jobs of the caller.
        state, name: only jobs of one of these states or names.
    """
    paths = find_paths()
    where = protocol.Where(
        state=[JobState(word) for word in _listed(state)] or None, name=list(_listed(name)) or None
    )
    with Client(paths, names_variables=False) as client:
        infos = client.call(protocol.ListQueue(fields=_LISTED, where=where, recent=True)).jobs
    uid = os.geteuid()
    shown = (info for info in infos if not (info.task is None and info.tasks) and (not me or info.uid == uid))
    return [_handle(info, paths) for info in shown]


_LISTED = ("id", "array", "task", "tasks", "uid", "state", "request", "is_private", "exit_code", "signal")


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return (value,) if isinstance(value, str) else value


def _handle(info: JobInfo, paths: Paths) -> JobHandle[Any]:
    is_own = info.uid == os.geteuid()  # what others have pickled is code, and is not read
    folder = calls.folder_of(info.request.args) if is_own and not info.is_private else None
    number = info.array if info.task is not None and info.array is not None else info.id
    handle: JobHandle[Any] = JobHandle(number, info.task, folder, paths)
    if info.state.is_final:
        handle.take_end(info.state.word)
    else:
        handle.await_end()
    return handle


def forget(job: JobHandle[Any]) -> None:
    """Remove the call of a job and its result. Raises BadUsage if the job has not ended."""
    job.forget()
