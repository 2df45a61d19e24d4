"""Process beside the controller that writes the accounts, as their only writer.

It reads messages from descriptor 0, stores each in one transaction, and answers it on descriptor 1 after the
data are on disk. Between messages it deletes old samples. It ends with the controller, whose end of the
socket closes.
"""

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TextIO, TypeVar
from zoneinfo import ZoneInfo

from msgspec import MsgspecError

from fgsched.accounting import guard
from fgsched.accounting.ledger import Ledger, UnstorableRecord
from fgsched.accounting.messages import (
    UNREADABLE,
    Answer,
    Backup,
    Keep,
    Message,
    Order,
    RecordBatch,
    line,
    parse_batch,
    parse_message,
)
from fgsched.accounting.records import Minute
from fgsched.crash import point
from fgsched.domain.errors import Exit, FgschedError, StorageError
from fgsched.domain.times import DAY, FOREVER, HOUR, MINUTE
from fgsched.store import wal
from fgsched.system import disk, locks

_CHUNK = 1 << 18  # bytes
_PRUNED = 600.0  # seconds between two looks for old samples
_LEAST_MINUTES = 7200  # seconds for which minutes are kept at least
_LEAST_HOURS = 2 * DAY
_LATEST = 35 * DAY  # seconds after which no minute of a day is added to it any more
_NICE = 5
_CHECK_PAUSE = 0.02  # seconds between two steps of the check of pages
_SHOWN = 500  # characters of a record in the log
Record = TypeVar("Record")
_Identity = tuple[int, int]


class Accountant:
    """Stores messages in the accounts at `path`."""

    def __init__(self, path: Path, zone: tzinfo, keep: Keep) -> None:
        self._path, self._zone = path, zone
        self.keep = keep
        self._ledger: Ledger | None = None
        self._file: _Identity | None = None  # of the open file
        self._log: _Identity | None = None  # of its write-ahead log

    def begin(self) -> None:
        """Open accounts that exist: after a loss of power the number of their last commit is written again.

        Until then a lost write-ahead log could not be noticed. The first message reports an error.
        """
        with suppress(StorageError, OSError):
            if self._path.stat().st_size:
                self._opened()

    def answer(self, text: bytes, now: float) -> Answer:
        """Store the message of a line, and return the answer; `now` in epoch seconds."""
        message, unparsed = _parsed(text)
        if isinstance(message, Keep):
            self.keep = message
            return Answer(number=message.number)
        if isinstance(message, Order):
            return self._obeyed(message)
        try:
            ledger = self._opened()
            with ledger.write():
                refused = (*unparsed, *self._store(ledger, message, now))
                point("accountant_before_commit")
            point("accountant_after_commit")
            return Answer(number=message.number, refused=refused, size=ledger.size)
        except (StorageError, OSError) as error:
            self.close()
            cause = error.cause if isinstance(error, StorageError) else f"{self._path}: {error}"
            remedy = error.remedy if isinstance(error, StorageError) else "Check the disk."
            return Answer(number=message.number, error=cause, remedy=remedy)

    def _obeyed(self, order: Order) -> Answer:
        """Carry out a backup or an archive; its errors do not count as errors of the accounts."""
        from fgsched.accounting.backup import archive, back_up  # its libraries take 0.9 MiB

        try:
            ledger, file = self._opened(), Path(order.file)
            if isinstance(order, Backup):
                done = back_up(Path(order.queue), self._path, file)
            else:
                done = archive(ledger, file, order.before)
        except FgschedError as error:
            code = int(error.exit_code)
            return Answer(number=order.number, error=error.cause, remedy=error.remedy, exit=code)
        except OSError as error:
            code = int(Exit.STORAGE)
            return Answer(number=order.number, error=str(error), remedy="Check the disk.", exit=code)
        return Answer(number=order.number, size=ledger.size, done=done)

    def prune(self, now: float) -> bool:
        """Count and delete some old samples; return whether more are left. `now` in epoch seconds."""
        if self._ledger is None:
            return False
        try:
            with self._ledger.write():
                self._ledger.fold(int(now - _LATEST) // DAY * DAY)
                return any([self._ledger.prune(span, before) for span, before in self._kept_from(now)])
        except StorageError as error:  # the next message will report it too
            print(f"{error.cause} {error.remedy}", file=sys.stderr)
            return False

    def _kept_from(self, now: float) -> list[tuple[int, int]]:
        """Return (span, begin of the first one that is kept): minutes of whole hours, hours of whole days."""
        keep, zone, begins = self.keep, self._zone, []
        if keep.minutes != FOREVER:
            begins.append((MINUTE, hour_of(now - max(_LEAST_MINUTES, keep.minutes), zone)[0]))
        if keep.hours != FOREVER:
            begins.append((HOUR, day_of(now - max(_LEAST_HOURS, keep.hours), zone)[0]))
        if keep.days != FOREVER:
            begins.append((DAY, int(now - max(_LEAST_HOURS, keep.days))))
        return begins

    def close(self) -> None:
        """Close the file; it is opened again by the next message."""
        if self._ledger is not None:
            with suppress(Exception):  # a failing disk
                if self._file == _identity(self._path) and self._log != _identity(self._log_file):
                    self._restore_log()
                    self._ledger.rescue()
            with suppress(Exception):
                self._ledger.close()
        self._ledger = None

    def _restore_log(self) -> None:
        """Write a removed log that is open to its name: the checkpoint at the close may be interrupted."""
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # a descriptor that is closed, or a disk that is full
                status = os.stat(int(name))
                if (status.st_dev, status.st_ino) == self._log and not self._log_file.exists():
                    disk.replace_file(self._log_file, os.pread(int(name), status.st_size, 0))

    def _opened(self) -> Ledger:
        """Return the open accounts. Raises StorageError or OSError if they are missing or unfit."""
        files = self._file, self._log
        if self._ledger is not None and files == (_identity(self._path), _identity(self._log_file)):
            return self._ledger
        self.close()
        self._remove_log_of_replaced()
        disk.restore_name(self._path)
        if guard.are_new(self._path):
            _make(self._path)
        ledger = Ledger(self._path, is_guarded=True)
        try:
            guard.record_name(self._path, ledger.name)
            self._file = _identity(self._path)
        except BaseException:
            ledger.close()
            raise
        self._ledger, self._log = ledger, _identity(self._log_file)
        return ledger

    @property
    def _log_file(self) -> Path:
        return self._path.with_name(f"{self._path.name}-wal")

    @property
    def is_checking(self) -> bool:
        """Whether pages of the file remain to be compared with their checksums."""
        return self._ledger is not None and self._ledger.is_checking

    def check_some(self) -> None:
        """Check some pages; damaged accounts are closed, and the next message is refused."""
        try:
            if self._ledger is not None:
                self._ledger.check_some()
        except StorageError as error:
            print(f"{error.cause} {error.remedy}", file=sys.stderr, flush=True)
            self.close()

    def _remove_log_of_replaced(self) -> None:
        """Remove the write-ahead log of a replaced file: SQLite would apply it to the new file."""
        here, log_file = _identity(self._path), self._path.with_name(f"{self._path.name}-wal")
        if None in (here, self._file, self._log) or here == self._file or _identity(log_file) != self._log:
            return
        for end in ("wal", "shm"):
            disk.remove(self._path.with_name(f"{self._path.name}-{end}"), missing_ok=True)

    def _store(self, ledger: Ledger, batch: RecordBatch, now: float) -> tuple[int, ...]:
        """Write a batch; return the jobs that cannot be stored."""
        _each(ledger, batch.gpus, lambda gpu: ledger.add_gpus([gpu]))
        _each(ledger, batch.samples, lambda sample: ledger.add_samples([sample]))
        _each(ledger, batch.health, lambda event: ledger.add_health([event]))
        _each(ledger, batch.warned, lambda warned: ledger.add_warned([warned]))
        _each(ledger, batch.gaps, ledger.add_gap)
        self._add_minutes(ledger, batch.minutes, now)
        return tuple(job.id for job in _each(ledger, batch.jobs, lambda job: ledger.add_jobs([job])))

    def _add_minutes(self, ledger: Ledger, minutes: Iterable[Minute], now: float) -> None:
        """Add minutes, and sum their hours and days again.

        A minute that is older than the kept minutes is not added: the other minutes of its hour are deleted.
        """
        first = max((before for _, before in self._kept_from(now)), default=0)
        taken = [minute for minute in minutes if minute.at >= first]
        refused = _each(ledger, taken, ledger.add_minute)
        at = [minute.at for minute in taken if minute not in refused]
        for span, find in ((HOUR, hour_of), (DAY, day_of)):
            for begin, end in sorted({find(minute_at, self._zone) for minute_at in at}):
                ledger.roll(span, begin, end)


def _make(path: Path) -> None:
    """Make new accounts under another name and link them, so that a reader finds all tables or no file."""
    new = path.with_name(f"{path.name}.new")
    wal.remove_database(new)
    disk.create_file(new, b"", syncs=False)
    Ledger(new).close()
    wal.refuse_leftover(new)
    if path.exists():
        disk.remove(path)  # an empty file that a crash left
    with suppress(FileExistsError):  # accounts were restored meanwhile
        disk.link(new, path)
    disk.remove(new)
    disk.sync_directory(path.parent)


def _each(ledger: Ledger, records: Iterable[Record], add: Callable[[Record], None]) -> list[Record]:
    """Add records one by one; return the records that break a rule of the file.

    Raises:
        StorageError: the file cannot be written.
    """
    failed = []
    for record in records:
        try:
            with ledger.attempt():
                add(record)
        except UnstorableRecord as error:
            _log_left_out(error.cause, repr(record))
            failed.append(record)
    return failed


def _log_left_out(why: str, record: str) -> None:
    print(f"{why}; it is left out: {record[:_SHOWN]}", file=sys.stderr, flush=True)


def _parsed(text: bytes) -> tuple[Message, tuple[int, ...]]:
    """Return the message of a line, and the jobs that are left out because they cannot be parsed.

    Raises:
        msgspec.MsgspecError: nothing of the line can be parsed.
    """
    try:
        return parse_message(text), ()
    except MsgspecError:
        message, left_out = parse_batch(text)
    for record in left_out:
        _log_left_out(f"a record of the controller cannot be parsed: {record.why}", record.text)
    return message, tuple(record.job for record in left_out if record.job)


def _identity(path: Path) -> _Identity | None:
    """Return device and inode of a file; None if it is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


# -- the process ---------------------------------------------------------------------------------------


def serve(accountant: Accountant, source: int, sink: int, clock: Callable[[], float] = time.time) -> None:
    """Answer the lines of descriptor `source` on descriptor `sink` until the other end is closed.

    `clock` returns epoch seconds.
    """
    unread, prune_at = b"", time.monotonic()
    with suppress(ConnectionError):
        while True:
            pause = _CHECK_PAUSE if accountant.is_checking else max(0.0, prune_at - time.monotonic())
            if not select.select([source], [], [], pause)[0]:
                if accountant.is_checking:
                    accountant.check_some()
                    continue
                has_more = accountant.prune(clock())
                prune_at = time.monotonic() + (0.0 if has_more else _PRUNED)
                continue
            if not (data := os.read(source, _CHUNK)):
                return
            *lines, unread = (unread + data).split(b"\n")
            for text in lines:
                answer = line(_answered(accountant, text, clock()))
                with suppress(ConnectionError):  # the controller is ending; its last samples may follow
                    _send(sink, answer)


def _answered(accountant: Accountant, text: bytes, now: float) -> Answer:
    try:
        return accountant.answer(text, now)
    except MsgspecError as error:
        print(f"a message of the controller cannot be read: {error}", file=sys.stderr)
        return Answer(number=UNREADABLE, error=f"a message cannot be read: {error}")


def _send(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def _opened(path: Path) -> TextIO:
    """Open the lock file, or end the process with one line that names it. The controller tries again."""
    try:
        return path.open("w")
    except OSError as error:
        sys.exit(f"the accountant cannot start: {path}: {error.strerror}")


def main() -> None:
    """Run the accountant. The arguments are the path of the accounts and how long samples are kept."""
    path = Path(sys.argv[1])
    minutes, hours, days = map(int, sys.argv[2:5])
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    os.umask(0o077)
    place = path.with_name("accounts.lock")
    with _opened(place) as lock:
        locks.lock(lock.fileno(), place, "an earlier accountant, which may be writing")
        accountant = Accountant(path, host_zone(os.environ), Keep(minutes=minutes, hours=hours, days=days))
        accountant.begin()
        try:
            serve(accountant, 0, 1)
        finally:
            accountant.close()


# -- hours and days in the time zone of the host -------------------------------------------------------


def hour_of(at: float, zone: tzinfo) -> tuple[int, int]:
    """Return begin and end of the full hour of `zone` that contains `at`, in epoch seconds.

    A change of the zone's offset ends an hour and begins another, so hours never overlap.
    """
    offset = _offset(at, zone)
    begin = int((at + offset) // HOUR * HOUR - offset)
    end = begin + HOUR
    if _offset(begin, zone) != offset:
        begin = _change(begin, int(at), zone)
    if _offset(end - 1, zone) != offset:
        end = _change(int(at), end - 1, zone)
    return begin, end


def day_of(at: float, zone: tzinfo) -> tuple[int, int]:
    """Return begin and end of the day of `zone` that contains `at`, in epoch seconds.

    A day has 23, 24 or 25 hours, as the zone's offset changes.
    """
    midnight = datetime.fromtimestamp(at, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    following = (midnight.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
    return int(midnight.timestamp()), int(following.timestamp())


def _offset(at: float, zone: tzinfo) -> int:
    """Return the seconds by which local time is ahead of UTC at `at`."""
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def _change(before: int, after: int, zone: tzinfo) -> int:
    """Return the first second with the offset of `after`, which differs from that of `before`."""
    offset = _offset(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == offset:
            after = middle
        else:
            before = middle
    return after


_LOCAL = Path("/etc/localtime")


def host_zone(environ: Mapping[str, str], local: Path = _LOCAL) -> tzinfo:
    """Return the time zone that TZ names, else that of the file /etc/localtime, else UTC.

    A zone that TZ describes with rules, such as CET-1CEST, has its present offset all year.
    """
    named = environ.get("TZ", "").removeprefix(":")
    if named:
        with suppress(ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
            return ZoneInfo(named)
        return datetime.now().astimezone().tzinfo or UTC
    with suppress(OSError, ValueError), local.open("rb") as file:
        return ZoneInfo.from_file(file, key="localtime")
    return UTC
