"""One thread that learns from the controller which jobs have ended, and tells their handles."""

import os
import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from fgsched import protocol
from fgsched.client import Client, Watch
from fgsched.domain.errors import FgschedError, Unreachable
from fgsched.domain.states import JobState
from fgsched.lifecycle.arrays import bits_from, format_array, parse_tasks
from fgsched.system.paths import Paths

_AWAY = 1.0  # seconds between two attempts to reach a controller
_CONNECT = 5.0  # seconds for a connection

Name = tuple[int, int | None]  # (job or array, task)


class Awaited(Protocol):
    """A handle of a job whose end is awaited."""

    @property
    def name(self) -> Name:
        """Return the job or array, and the task."""

    def take_end(self, state: str) -> None:
        """Note the state in which the job ended."""

    def take_error(self, error: FgschedError) -> None:
        """Note that the controller does not know the job."""


class EndWatcher:
    """Waits for the ends of all awaited jobs of one controller, in one thread with one connection."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._awaited: dict[Name, list[Awaited]] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.silent_because = ""  # why the controller cannot be asked; "": it can
        self._blocked = 0  # threads that wait for a result: they may start a controller
        threading.Thread(target=self._run, name="fgsched-waiting", daemon=True).start()

    def add(self, *jobs: Awaited) -> None:
        """Await the ends of jobs."""
        with self._lock:
            for job in jobs:
                self._awaited.setdefault(job.name, []).append(job)
        os.write(self._wake_write, b"+")

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Mark that a thread waits for an end: as any command, it may start the user's controller."""
        with self._lock:
            self._blocked += 1
        os.write(self._wake_write, b"+")
        try:
            yield
        finally:
            with self._lock:
                self._blocked -= 1

    def _run(self) -> None:
        while True:
            with self._lock:
                names = list(self._awaited)
            if not names:
                self._rest(None)
                continue
            try:
                self._watch(names)
            except Unreachable as error:
                self.silent_because = error.cause
                self._rest(_AWAY)
            except FgschedError as error:
                self._refused(names, error)
            except OSError as error:  # no descriptors, no memory
                self.silent_because = str(error)
                self._rest(_AWAY)

    def _rest(self, seconds: float | None) -> bool:
        """Wait for a new job, at most so many seconds; tell whether there is one."""
        if not select.select([self._wake_read], [], [], seconds)[0]:
            return False
        os.read(self._wake_read, 65536)
        return True

    def _watch(self, names: Sequence[Name]) -> None:
        """Wait until one of these jobs has ended or another job is awaited."""
        with self._watch_of(names) as watch:
            while not watch.is_over(0 if watch.fileno() >= 0 else _CONNECT):
                if watch.fileno() < 0:  # the controller went away, or is starting
                    self.silent_because = "the controller is starting"
                    self._rest(0.1)
                    continue
                self.silent_because = ""
                readable = select.select([watch.fileno(), self._wake_read], [], [])[0]
                if readable == [self._wake_read]:
                    self._rest(0)
                    return
            for end in watch.ends:
                self._take(end)

    def _watch_of(self, names: Sequence[Name]) -> Watch:
        return Watch(self._paths, references(names), may_start=self._blocked > 0, any_will_do=True)

    def _take(self, end: protocol.JobEnd) -> None:
        """Tell the handles of a job its end; `end` names a task by its array, too."""
        if end.array is not None and end.task is None:  # tasks without rows of their own
            self._take_tasks(end.array)
            return
        names: list[Name] = [(end.id, None)]
        if end.array is not None:
            names.append((end.array, end.task))
        self._tell(names, end.state)

    def _tell(self, names: Sequence[Name], state: str) -> None:
        with self._lock:
            handles = [handle for name in names for handle in self._awaited.pop(name, [])]
        for handle in handles:
            handle.take_end(state)

    def _take_tasks(self, array: int) -> None:
        """Tell the handles of an array which of its tasks have ended: others may be pending."""
        with Client(self._paths, may_start=False, names_variables=False) as client:
            rows = client.call(protocol.ShowJobs(id=array)).jobs
        states = {row.task: row.state for row in rows if row.task is not None}
        pending = sum(parse_tasks(row.tasks.partition("%")[0]) for row in rows if row.tasks)
        with self._lock:
            awaited = [name for name in self._awaited if name[0] == array]
        for name in awaited:
            task = name[1] or 0
            state = states.get(task, JobState.PENDING if pending >> task & 1 else JobState.CANCELLED)
            if state.is_final:
                self._tell([name], state.word)

    def _refused(self, names: Sequence[Name], error: FgschedError) -> None:
        """Ask for each job alone after a refusal, which may be about one of them."""
        if len(names) == 1:
            with self._lock:
                handles = self._awaited.pop(names[0], [])
            for handle in handles:
                handle.take_error(error)
            return
        for name in names:
            try:
                self._look(name)
            except FgschedError as refusal:
                if isinstance(refusal, Unreachable):
                    return
                self._refused([name], refusal)

    def _look(self, name: Name) -> None:
        """Raise the refusal about one job, if there is one."""
        with self._watch_of([name]) as watch:
            if watch.is_over(_CONNECT):
                for end in watch.ends:
                    self._take(end)


def references(names: Sequence[Name]) -> list[int | str]:
    """Return the references to jobs, with one for all tasks of an array."""
    arrays: dict[int, list[int]] = {}
    jobs: list[int | str] = []
    for job, task in names:
        if task is None:
            jobs.append(job)
        else:
            arrays.setdefault(job, []).append(task)
    return jobs + [f"{array}_[{format_array(bits_from(tasks))}]" for array, tasks in arrays.items()]


_watchers: dict[Paths, EndWatcher] = {}
_watchers_lock = threading.Lock()


def watcher(paths: Paths) -> EndWatcher:
    """Return the thread that waits for jobs of a controller; it is started once."""
    with _watchers_lock:
        if paths not in _watchers:
            _watchers[paths] = EndWatcher(paths)
        return _watchers[paths]


os.register_at_fork(after_in_child=_watchers.clear)  # a child has none of the threads
