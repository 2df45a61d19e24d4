"""Answer clients that wait for jobs to end."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from fgsched.controller.caller import Caller
from fgsched.controller.clients import Work
from fgsched.controller.containment import Faults
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.jobref import References
from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import Busy, Refused
from fgsched.domain.job import NOT_ENDED, Job
from fgsched.domain.steps import Steps
from fgsched.lifecycle.arrays import bits_from, bits_of, split_reference, tasks
from fgsched.protocol import JobEnd, JobEnds, Progress, Wait
from fgsched.server import ClientConnection, LongAnswer, cut, listing

_MOST = 100_000  # jobs that one user may wait for, on all connections; one wait may be larger
_COUNTED = 1000  # arrays of one wait, of which the progress is counted; more get none
_BETWEEN = 0.5  # seconds between two lines of progress

Send = Callable[[ClientConnection, Callable[[], None]], None]
LongReply = Callable[[ClientConnection, LongAnswer[JobEnds]], None]


class AwaitedJobs(Struct):
    """The open jobs that a client waits for, and the ends of the others."""

    jobs: set[int] = field(default_factory=set)
    arrays: set[int] = field(default_factory=set)  # all tasks are awaited
    tasks: dict[int, int] = field(default_factory=dict)  # array -> awaited tasks, as bits
    ends: dict[int, JobEnd] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return bool(self.jobs or self.arrays or self.tasks)

    def __len__(self) -> int:
        tasks = sum([bits.bit_count() for bits in self.tasks.values()])
        return len(self.jobs) + len(self.arrays) + tasks + len(self.ends)

    def add_end(self, job: Job) -> None:
        """Add a job that has ended."""
        self.ends[job.id] = how_it_ended(job)

    def add_tasks(self, array: int, bits: int) -> None:
        """Wait for these tasks of an open array too."""
        if bits:
            self.tasks[array] = self.tasks.get(array, 0) | bits

    def end(self, ended: Sequence[tuple[Job, int]], jobtable: JobTable) -> None:
        """Take in the ends of jobs, each with the tasks of its array that it was, as bits."""
        for job, bits in ended:
            self._end(job, bits)
        closed = {job.array for job, _ in ended if jobtable.arrays.get(job.array) is None}
        self.arrays -= closed

    def _end(self, job: Job, bits: int) -> None:
        open_tasks = self.tasks.get(job.array, 0)
        if job.id in self.jobs or job.array in self.arrays or open_tasks & bits:
            self.add_end(job)
        self.jobs.discard(job.id)
        if open_tasks & bits:
            del self.tasks[job.array]
            self.add_tasks(job.array, open_tasks & ~bits)

    def progress(self, jobtable: JobTable) -> Progress:
        """Return how many have ended, run and wait. A task that was split off its array counts as running."""
        running = len(self.jobs.intersection(jobtable.holding))
        waiting = len(self.jobs) - running
        for number, bits in self.tasks.items():
            array = jobtable.arrays.get(number)
            pending = (array.pending_bits & bits).bit_count() if array else 0
            waiting, running = waiting + pending, running + bits.bit_count() - pending
        for array in filter(None, map(jobtable.arrays.get, self.arrays)):
            waiting += array.pending_bits.bit_count() + len(array.waiting) - bool(array.pending_bits)
            running += array.holding
        return Progress(done=len(self.ends), running=running, pending=waiting)


class _Waiter(Struct, eq=False):
    connection: ClientConnection
    any_will_do: bool
    wants_progress: bool
    awaited: AwaitedJobs = field(default_factory=AwaitedJobs)
    is_looking: bool = True  # its jobs are still looked up; ends are taken in already
    last_progress: Progress | None = None  # the last progress that was sent

    @property
    def is_over(self) -> bool:
        return not self.awaited.is_open or (self.any_will_do and bool(self.awaited.ends))


class WaitHandlers:
    """Clients that wait for jobs.

    Each is answered once: after the end of all jobs, or of the first if it asked so.
    """

    def __init__(self, send: Send, reply: LongReply, faults: Faults | None = None) -> None:
        """Answer clients by these functions.

        Args:
            send: `send(connection, effect)` sends something and accounts for the connection.
            reply: `reply(connection, answer)` sends an answer in pieces.
        """
        self._send, self._reply = send, reply
        self._faults = faults or Faults()
        self._waiters: list[_Waiter] = []
        self._looked_at: tuple[int, int] = (0, 0)  # the table and its revision at the last progress message
        self._next = 0.0  # time of the next progress message
        self.delay: float | None = None  # seconds until the next progress message; None: there is none

    def wait(
        self, connection: ClientConnection, call: Wait, look: Callable[[AwaitedJobs], Steps[None]]
    ) -> Work:
        """Look up the jobs of a wait in steps, and answer if nothing has to be waited for.

        The ends between the steps are taken in. `add_jobs` adds the jobs.

        Raises: Refused, if the connection waits already; Busy, if its user waits for too many jobs.
        """
        self._waiters = [waiter for waiter in self._waiters if not waiter.connection.is_closed]
        if any(waiter.connection is connection for waiter in self._waiters):
            raise Refused("this connection waits already", "Wait for other jobs on another one.")
        waiter = _Waiter(connection, call.any, call.progress)
        self._waiters.append(waiter)
        try:
            yield from look(waiter.awaited)
            self._refuse_too_many(waiter)
        except BaseException:  # also: the client has gone
            self._waiters = [other for other in self._waiters if other is not waiter]
            raise
        waiter.is_looking = False
        if waiter.is_over:
            self._waiters.remove(waiter)
            yield from listing(connection, _answer(waiter))
        else:
            connection.is_waiting = True

    def _refuse_too_many(self, waiter: _Waiter) -> None:
        """Refuse a user who would wait for too many jobs, because each entry uses memory. Raises Busy."""
        uid = waiter.connection.uid
        other_waiters = (
            other for other in self._waiters if other is not waiter and other.connection.uid == uid
        )
        sizes = [len(other.awaited) for other in other_waiters if not other.is_looking]
        if sizes and sum(sizes) + len(waiter.awaited) > _MOST:
            raise Busy(f"uid {uid} waits for {sum(sizes)} jobs already", "End some waiting commands.")

    def answer_ended(self, jobs: Iterable[Job], jobtable: JobTable) -> None:
        """Answer the clients that wait for these jobs, which have ended."""
        if not self._waiters:
            return
        ended: list[tuple[Job, int]] = []
        for job in jobs:
            with self._faults.contained(f"the end of job {job.id}"):
                ended.append((job, _tasks(job, jobtable)))
        if ended:
            self._waiters = [
                waiter for waiter in self._waiters if not self._is_served(waiter, ended, jobtable)
            ]

    def _is_served(self, waiter: _Waiter, ended: Sequence[tuple[Job, int]], jobtable: JobTable) -> bool:
        """Tell whether a waiter is answered. A waiter that causes an error is dropped and may retry."""
        with self._faults.contained("a client that waits"):
            return self._advance(waiter, ended, jobtable)
        self._send(waiter.connection, waiter.connection.close)
        return True

    def _advance(self, waiter: _Waiter, ended: Sequence[tuple[Job, int]], jobtable: JobTable) -> bool:
        """Update a waiter; return whether it needs nothing more."""
        if waiter.connection.is_closed:
            return True
        waiter.awaited.end(ended, jobtable)
        if waiter.is_looking or not waiter.is_over:
            return False
        waiter.connection.is_waiting = False
        self._reply(waiter.connection, _answer(waiter))
        return True

    def send_progress(self, jobtable: JobTable, now: float) -> None:
        """Send progress to the clients that asked for it: only changes, at a limited rate."""
        curious = [waiter for waiter in self._waiters if waiter.wants_progress and not waiter.is_looking]
        revision = (id(jobtable), jobtable.revision)
        if not curious or (revision == self._looked_at and all(waiter.last_progress for waiter in curious)):
            self.delay = None
            return
        pause = self._next - now
        self.delay = pause if 0 < pause <= _BETWEEN else 0.0  # more than that: the clock was set back
        if self.delay:
            return
        self.delay, self._looked_at, self._next = None, revision, now + _BETWEEN
        for waiter in curious:
            self._send_progress(waiter, jobtable)

    def _send_progress(self, waiter: _Waiter, jobtable: JobTable) -> None:
        awaited = waiter.awaited
        if len(awaited.tasks) + len(awaited.arrays) > _COUNTED:
            waiter.wants_progress = False
            return
        news = awaited.progress(jobtable)
        if news != waiter.last_progress:
            waiter.last_progress = news
            self._send(waiter.connection, partial(waiter.connection.send_progress, news))


def _answer(waiter: _Waiter) -> LongAnswer[JobEnds]:
    return LongAnswer("jobs", cut(list(waiter.awaited.ends.values())), lambda: JobEnds(jobs=[]))


def _tasks(job: Job, jobtable: JobTable) -> int:
    """Return the tasks that end with a job, as bits: its own, or all tasks of a cancelled array."""
    if job.task is not None:
        return 1 << job.task
    if not job.array:
        return 0
    array = jobtable.arrays.get(job.array)
    rows = (jobtable.jobs[row].task for row in array.rows) if array else ()
    return bits_of(job.request.array) & ~bits_from(task for task in rows if task is not None)


def how_it_ended(job: Job) -> JobEnd:
    """Return the state and the exit status of a job."""
    ending = job.ended or NOT_ENDED
    return JobEnd(
        id=job.id,
        array=job.array or None,
        task=job.task,
        state=job.state.value,
        final=job.state.is_final,
        exit_code=ending.exit_code,
        signal=ending.signal,
    )


# -- the jobs for which a client waits, looked up in steps ---------------------------------------------


_STEP = 50  # references, or jobs that are read from the queue, in one step
_ROWS = 2000  # rows in memory


class WaitLookup:
    """Finds open and ended jobs by reference."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._references = References(engine)

    def add_jobs(self, caller: Caller, names: list[Any], awaited: AwaitedJobs) -> Steps[None]:
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
        waiting = array.pending_bits & wanted if array else 0
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
