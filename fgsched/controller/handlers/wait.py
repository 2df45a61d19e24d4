"""Answer clients that wait for jobs to end."""

from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct, field

from fgsched.controller.containment import Faults
from fgsched.controller.jobtable import JobTable
from fgsched.domain.errors import Busy, Refused
from fgsched.domain.job import Ended, Job
from fgsched.domain.states import JobState
from fgsched.lifecycle.arrays import bits_of, tasks
from fgsched.protocol import JobEnd, JobEnds, Progress, Wait
from fgsched.server import ClientConnection

_MOST = 100_000  # jobs that one user may wait for, on all connections; one wait may be larger
_BETWEEN = 0.5  # seconds between two lines of progress
Key = int | tuple[int, int | None]  # a job, a task that has no row yet, or (array, None): all of it

Send = Callable[[ClientConnection, Callable[[], None]], None]


class _Waiter(Struct):
    connection: ClientConnection
    open: set[Key]
    any_will_do: bool
    wants_progress: bool
    whole: set[int]  # the arrays of which all is waited for
    over: dict[int, JobEnd] = field(default_factory=dict)
    told: Progress | None = None  # the last progress that was sent


class WaitHandlers:
    """Clients that wait for jobs.

    Each is answered once: after the end of all jobs, or of the first if it asked so.
    """

    def __init__(self, send: Send, faults: Faults | None = None) -> None:
        """`send(connection, effect)` sends an answer and accounts for the connection."""
        self._send = send
        self._faults = faults or Faults()
        self._waiters: list[_Waiter] = []
        self._looked_at: tuple[int, int] = (0, 0)  # the table and its revision at the last progress message
        self._next = 0.0  # time of the next progress message
        self.delay: float | None = None  # seconds until the next progress message; None: there is none

    def add(self, connection: ClientConnection, over: Iterable[Job], keys: set[Key], call: Wait) -> None:
        """Register a client that waits for the jobs `keys`; the jobs `over` have already ended.

        Raises: Refused, if the connection waits already; Busy, if its user waits for too many jobs.
        """
        self._waiters = [one for one in self._waiters if not one.connection.is_closed]
        if any(one.connection is connection for one in self._waiters):
            raise Refused("this connection waits already", "Wait for other jobs on another one.")
        over = list(over)
        self._refuse_too_many(connection.uid, len(over) + len(keys))
        waiter = _Waiter(
            connection,
            keys,
            call.any,
            call.progress,
            {key[0] for key in keys if isinstance(key, tuple) and key[1] is None},
            {job.id: how_it_ended(job) for job in over},
        )
        if not self._answered(waiter):
            connection.is_waiting = True
            self._waiters.append(waiter)

    def _refuse_too_many(self, uid: int, more: int) -> None:
        """Refuse a user who would wait for too many jobs, because each entry uses memory. Raises Busy."""
        kept = [
            len(waiter.open) + len(waiter.over) for waiter in self._waiters if waiter.connection.uid == uid
        ]
        if kept and sum(kept) + more > _MOST:
            raise Busy(f"uid {uid} waits for {sum(kept)} jobs already", "End some waiting commands.")

    def over(self, jobs: Iterable[Job], jobtable: JobTable) -> None:
        """Answer the clients that wait for these jobs, which have ended."""
        if not self._waiters:
            return
        ended: dict[Key, Job] = {}
        for job in jobs:
            with self._faults.contained(f"the end of job {job.id}"):
                ended |= dict.fromkeys(_keys(job, jobtable), job)
        if ended:
            self._waiters = [
                waiter for waiter in self._waiters if not self._is_served(waiter, ended, jobtable)
            ]

    def _is_served(self, waiter: _Waiter, ended: dict[Key, Job], jobtable: JobTable) -> bool:
        """Tell whether a waiter is answered. A waiter that causes an error is dropped and may retry."""
        with self._faults.contained("a client that waits"):
            return self._advance(waiter, ended, jobtable)
        self._send(waiter.connection, waiter.connection.close)
        return True

    def tell(self, jobtable: JobTable, now: float) -> None:
        """Send progress to the clients that asked for it: only changes, at a limited rate."""
        curious = [waiter for waiter in self._waiters if waiter.wants_progress]
        here = (id(jobtable), jobtable.revision)
        if not curious or (here == self._looked_at and all(waiter.told for waiter in curious)):
            self.delay = None
            return
        left = self._next - now
        self.delay = left if 0 < left <= _BETWEEN else 0.0  # more than that: the clock was set back
        if self.delay:
            return
        self.delay, self._looked_at, self._next = None, here, now + _BETWEEN
        for waiter in curious:
            news = _progress(waiter, jobtable)
            if news != waiter.told:
                waiter.told = news
                self._send(waiter.connection, partial(waiter.connection.tell, news))

    def _advance(self, waiter: _Waiter, ended: dict[Key, Job], jobtable: JobTable) -> bool:
        """Update a waiter; return whether it needs nothing more."""
        if waiter.connection.is_closed:
            return True
        for key, job in ended.items():
            if key in waiter.open or job.array in waiter.whole:
                waiter.over[job.id] = how_it_ended(job)
        arrays = {array for array in waiter.whole if jobtable.arrays.get(array) is None}
        waiter.whole -= arrays
        waiter.open.difference_update(ended, ((array, None) for array in arrays))  # as long as what ended
        return self._answered(waiter)

    def _answered(self, waiter: _Waiter) -> bool:
        if waiter.open and not (waiter.any_will_do and waiter.over):
            return False
        waiter.connection.is_waiting = False
        answer = JobEnds(jobs=list(waiter.over.values()))
        self._send(waiter.connection, partial(waiter.connection.succeed, answer))
        return True


def _keys(job: Job, jobtable: JobTable) -> Iterable[Key]:
    """Return the keys that end with a job: its own, or all tasks of a cancelled array."""
    yield job.id
    if job.task is not None:
        yield job.array, job.task
    elif job.array:
        array = jobtable.arrays.get(job.array)
        own = {jobtable.jobs[row].task for row in array.rows} if array else set()
        yield from ((job.array, task) for task in tasks(bits_of(job.request.array)) if task not in own)


def _progress(waiter: _Waiter, jobtable: JobTable) -> Progress:
    waiting = running = 0
    for key in waiter.open:
        pending, others = _counts(key, jobtable)
        waiting += pending
        running += others
    return Progress(done=len(waiter.over), running=running, pending=waiting)


def _counts(key: Key, jobtable: JobTable) -> tuple[int, int]:
    """Return the numbers of pending and running jobs of a key."""
    if isinstance(key, int):
        waits = key in jobtable.jobs and jobtable.jobs[key].state is JobState.PENDING
        return int(waits), int(not waits)
    array = jobtable.arrays.get(key[0])
    if array is None:
        return 0, 0
    if key[1] is not None:
        waits = bool(array.rest >> key[1] & 1)
        return int(waits), int(not waits)
    return array.rest.bit_count() + len(array.waiting - {key[0]}), array.holding


def how_it_ended(job: Job) -> JobEnd:
    """Return the state and the exit status of a job."""
    how = job.ended or Ended(status=0)
    return JobEnd(
        id=job.id,
        array=job.array or None,
        task=job.task,
        state=job.state.value,
        final=job.state.is_final,
        exit_code=how.exit_code,
        signal=how.signal,
    )
