"""Read the pending jobs of a long queue before it is opened, in threads with connections of their own.

Meanwhile this process imports modules, checks the queue and converts rows. All connections read one state of
the queue, change nothing, and are closed before it is opened. The rows are used only if the queue is still in
that state then. After any failure, the queue is read once it is open.
"""

import os
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import NamedTuple

from fgsched.store.freshrows import IdRange, Part, next_span, read_part
from fgsched.store.opening import looking, write_log_again
from fgsched.store.schema import SQL, VERSION

_LONG = 2**22  # bytes of a queue that may have many jobs
_THREADS = 2
_UNREAD = (OSError, sqlite3.Error, UnicodeDecodeError, RuntimeError)  # the last one: no thread can be started


class Counts(NamedTuple):
    """The numbers of commits and of changed rows, which identify a state of a queue."""

    commits: int
    rows: int


def counts_of(db: sqlite3.Connection) -> Counts:
    """Return the state of a queue. Raises sqlite3.Error."""
    row = db.execute(SQL["get_commits"]).fetchone()
    return Counts(row["count"], row["rows"])


class Ahead:
    """The threads, and the parts that they have read."""

    def __init__(self, dbs: list[sqlite3.Connection], counts: Counts, held: ExitStack) -> None:
        """Start a thread for each connection; `held` closes the connections."""
        self.counts = counts
        self._held, self._lock, self._is_closed = held, Lock(), False
        self._number, self._after = 0, 0  # of the next part
        self._parts: SimpleQueue[tuple[int, Part | None] | Exception] = SimpleQueue()
        self._held.enter_context(_prompt_switches())
        self._threads: list[Thread] = []
        try:
            for db in dbs:
                thread = Thread(target=self._read, args=(db,))
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order. Raises sqlite3.Error."""
        early: dict[int, Part | None] = {}
        for number in count():
            while number not in early:
                found = self._parts.get()
                if isinstance(found, Exception):
                    raise found
                early[found[0]] = found[1]
            part = early.pop(number)
            if part is None:
                return
            yield part

    def close(self) -> None:
        """Wait until the threads have ended, and close the connections."""
        self._is_closed = True
        for thread in self._threads:
            thread.join()
        self._held.close()

    def _read(self, db: sqlite3.Connection) -> None:
        """Read one part after another, until there is none that no other thread reads."""
        try:
            part: Part | None = None
            while not self._is_closed:
                number, span = self._next(db)
                part = read_part(db, span) if span else None
                self._parts.put((number, part))
                if part is None:
                    return
        except Exception as error:
            self._parts.put(error)

    def _next(self, db: sqlite3.Connection) -> tuple[int, IdRange | None]:
        with self._lock:
            span, number = next_span(db, self._after), self._number
            self._number += 1
            self._after = span.last if span else self._after
        return number, span


def read_ahead(path: Path) -> Ahead | None:
    """Begin to read a queue that this process will open; None if it is short, or cannot be read."""
    held = ExitStack()
    try:
        found = _written_and_begun(path, held) if _may_be_long(path) else None
    except _UNREAD:
        found = None  # `examine` tells the reason
    if found is None:
        held.close()
    return found


def _may_be_long(path: Path) -> bool:
    """Return whether this is a file of the user with enough bytes. Raises OSError."""
    about, log = path.lstat(), path.with_name(f"{path.name}-wal")
    size = about.st_size + (log.stat().st_size if log.exists() else 0)
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and size >= _LONG


def _written_and_begun(path: Path, held: ExitStack) -> Ahead | None:
    write_log_again(path)
    return _begun(path, held)


def _begun(path: Path, held: ExitStack) -> Ahead | None:
    dbs = [held.enter_context(looking(path)) for _ in range(_THREADS)]
    states = {_state(db) for db in dbs}
    counts = states.pop()
    if counts is None or states or not _has_two_parts(dbs[0]):
        return None
    return Ahead(dbs, counts, held)


def _state(db: sqlite3.Connection) -> Counts | None:
    """Begin a transaction, and return the state that it reads; None if it is of another version."""
    db.execute("BEGIN")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    return counts_of(db) if version == VERSION else None


def _has_two_parts(db: sqlite3.Connection) -> bool:
    """Return whether threads pay: their memory remains."""
    first = next_span(db, 0)
    return first is not None and next_span(db, first.last) is not None


@contextmanager
def _prompt_switches() -> Iterator[None]:
    """Let a thread wait for the interpreter's lock for 0.2 ms instead of 5 ms, in which a part is read."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
