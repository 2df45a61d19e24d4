"""Open the accounts, write to them as their only writer, and read them without blocking the writer."""

import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from fgsched.accounting import guard
from fgsched.accounting.records import (
    ForeignUse,
    Gap,
    GpuRecord,
    GpuUseRecord,
    HealthEvent,
    JobAccount,
    JobSample,
    Minute,
    Owner,
    OwnerUse,
    WaitingRecord,
    Warned,
    to_json,
)
from fgsched.domain.errors import FgschedError, Refused, StorageError
from fgsched.domain.job import JobUsage, memory_peak
from fgsched.domain.text import storable
from fgsched.domain.times import DAY, HOUR, MINUTE  # the spans
from fgsched.store import wal
from fgsched.store.connection import Connection, Opened
from fgsched.store.opening import beside_of
from fgsched.store.schema import EMPTY_ROW, named
from fgsched.system import disk, locks

VERSION = 1
_HOME = Path(__file__).parent
_SCHEMA = _HOME.joinpath("accounts.sql").read_text()
SQL = named(_HOME.joinpath("queries.sql").read_text())
_SETTINGS = (
    "auto_vacuum = INCREMENTAL",  # before anything is written
    "synchronous = FULL",
    "foreign_keys = ON",
    "journal_size_limit = 67108864",
    "temp_store = MEMORY",
)
_RANGE = 1000  # ids of a row of id_range
_RANGES = 4  # that a call of LedgerReader.history examines
_STEP = 3600  # seconds of minutes that are deleted in one transaction; of hours, 60 times that
_ROLLED = ("card_use", "owner_use", "foreign_run", "demand")
_OWNER = Owner.__struct_fields__
# Reports ask for columns of the table `job` and for fields of the JSON in its column `detail`. Some are
# columns of the job's row in the queue, the others fields of JobAccount. The rest of the row is in `kept`.
_TABLE = re.search(r"\bTABLE job \((.*?)^\) STRICT", _SCHEMA, re.DOTALL | re.MULTILINE)
_COLUMNS = set(re.findall(r"^  (\w+)", _TABLE[1] if _TABLE else "", re.MULTILINE)) - {"detail", "kept"}
_ROW_IN_TABLE = {  # column of the queue -> column here
    **{name: name for name in sorted({*EMPTY_ROW, "name"} & _COLUMNS)},
    **{"array_job": "array", "array_task": "task"},
}
_ROW_IN_OWNER = ("uid", "user")
_ROW_IN_DETAIL = ("reason", "restarts", "refusals", "cpu_seconds", "max_rss")
_ROW_IN_KEPT = ("request",)
_IN_TABLE = tuple(sorted({*JobAccount.__struct_fields__} & _COLUMNS - {"owner"}))
_IN_DETAIL = ("cpus", "host_memory", "exit_code", "signal", "refused")
_KEPT = ("output", "steps", "script")  # only commands about one job show these, and the rest of the row
_COMMON = _HOME.joinpath(
    "common.json"
).read_bytes()  # what `kept` of most jobs has; it is a part of VERSION 1
_EMPTY = EMPTY_ROW | {"array_job": 0}
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobAccount)}
_OF_RECORD = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.DataError, OverflowError)  # its values
_objects = msgspec.json.Decoder(dict[str, Any])
Record = TypeVar("Record", bound=Struct)


class UnstorableRecord(StorageError):
    """Raised if a record cannot be stored because of its contents."""


class Ledger:
    """Write access to the accounts, for one process. All writes belong inside `write()`."""

    def __init__(
        self, path: Path | str, *, is_guarded: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the file at `path`, or create it; `clock` returns epoch seconds.

        `is_guarded`: compare the file with its commit file and checksums, and keep them.

        Raises:
            StorageError: it cannot be opened, lacks commits or is damaged.
        """
        self.path, self._clock = path, clock
        self._guard: Opened | None = None
        with _storage_errors(path):
            wal.write_again(Path(f"{path}-wal"), in_place=True)  # of an accountant whose sync failed
            examined = guard.Guarded(Path(path)) if is_guarded else None
            self._db = sqlite3.connect(path, isolation_level=None, factory=Connection)
            with _closed_on_error(self._db):
                if examined:
                    self._db.execute("PRAGMA wal_autocheckpoint = 0")  # the guard makes them, with checksums
                self.name = self._set_up(path)
                if path != ":memory:":
                    disk.name_again(Path(f"{path}-wal"))
                self._guard = examined.open(self._db) if examined else None
        self._owners: dict[Owner, int] = {}
        self._gpus: dict[str, int] = {}

    def _set_up(self, path: Path | str) -> str:
        """Make the tables that are missing; return the name of the accounts."""
        self._db.row_factory = sqlite3.Row
        for setting in _SETTINGS:
            self._db.execute(f"PRAGMA {setting}")
        wal.use(self._db, path)
        _create(self._db, path)
        self._db.execute(SQL["name_accounts"], {"value": os.urandom(4).hex()})
        return str(self._db.execute(SQL["get_meta"], {"key": "name"}).fetchone()["value"])

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
        self._db.close()

    def rescue(self) -> None:
        """Prepare to close accounts whose log was removed: the file gets its pages, without checksums."""
        if self._guard is not None:
            self._guard.discard_sums()

    @property
    def is_checking(self) -> bool:
        """Whether pages remain to be checked."""
        return self._guard is not None and self._guard.is_checking

    def check_some(self) -> None:
        """Check some pages. Raises StorageError if one is damaged."""
        if self._guard is not None:
            self._guard.check_some()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Open a transaction that is durable at its end, and rolled back by any exception."""
        with _storage_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                note = self._counted()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._forget()
                raise
            if self._guard is not None and note is not None:
                self._guard.record.note(*note)
                self._guard.committed()

    def _counted(self) -> tuple[int, int, float] | None:
        """Count the commit that follows; return its number, the number of added jobs and its time."""
        if self._guard is None:
            return None
        number, at = self._guard.record.last.number + 1, self._clock()
        row = self._db.execute(SQL["count_commit"], {"number": number, "at": at}).fetchone()
        return number, int(row["jobs"]), at

    def _forget(self) -> None:
        """Drop cached ids after a rollback."""
        self._owners.clear()
        self._gpus.clear()

    def add_gpus(self, gpus: Iterable[GpuRecord]) -> None:
        for gpu in gpus:
            row = msgspec.structs.asdict(gpu) | {"model": storable(gpu.model)}
            self._gpus[gpu.uuid] = self._db.execute(SQL["put_card"], row).fetchone()[0]

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Open a savepoint; an exception rolls back to it and keeps the rest of the transaction.

        Raises:
            UnstorableRecord: a value breaks a rule of the file.
        """
        self._db.execute("SAVEPOINT part")
        try:
            yield
        except BaseException as error:
            if self._db.in_transaction:  # a full disk has ended the transaction
                self._db.execute("ROLLBACK TO part")
                self._db.execute("RELEASE part")
            self._forget()
            if isinstance(error, _OF_RECORD):
                raise UnstorableRecord(
                    f"a record cannot be stored: {error}", "Report this: it is a defect."
                ) from error
            raise
        self._db.execute("RELEASE part")

    def add_jobs(self, jobs: Iterable[JobAccount]) -> None:
        """Add ended jobs; a job that is in the accounts is not changed.

        Raises:
            UnstorableRecord: the accounts have another job with the same id.
        """
        for job in jobs:
            if self._db.execute(SQL["add_job"], self._job_row(job)).rowcount == 0:
                self._compare(job)
            self._db.execute(SQL["drop_sample"], {"job": job.id})

    def _compare(self, job: JobAccount) -> None:
        row = self._db.execute(SQL["find_end"], {"id": job.id}).fetchone()
        if row["submitted_at"] != job.row["submitted_at"]:
            raise UnstorableRecord(
                f"the accounts {self.path} have another job {job.id} than the queue",
                "They belong to an earlier queue: archive or move them away.",
            )

    def add_samples(self, samples: Iterable[JobSample]) -> None:
        """Store the sums of samples of jobs that are in the queue; a later record of a job replaces it."""
        for sample in samples:
            if self._db.execute(SQL["find_end"], {"id": sample.job}).fetchone() is None:
                row = {"job": sample.job, "usage": msgspec.json.encode(sample.usage).decode()}
                self._db.execute(SQL["put_sample"], row)

    def add_minute(self, minute: Minute) -> None:
        """Add one minute of samples. Raises UnstorableRecord if a GPU was not added before."""
        parts: tuple[tuple[str, tuple[Struct, ...]], ...] = (
            ("add_card_use", minute.gpus),
            ("add_owner_use", minute.owners),
            ("add_foreign_run", minute.foreign),
            ("add_demand", minute.demand),
        )
        for statement, records in parts:
            for record in records:
                self._db.execute(SQL[statement], self._row(record) | {"span": MINUTE})

    def add_health(self, events: Iterable[HealthEvent]) -> None:
        for event in events:
            self._db.execute(SQL["add_health"], self._row(event))

    def add_warned(self, warnings: Iterable[Warned]) -> None:
        for warning in warnings:
            self._db.execute(SQL["add_warned"], msgspec.structs.asdict(warning))

    def add_gap(self, gap: Gap) -> None:
        self._db.execute(SQL["add_gap"], msgspec.structs.asdict(gap))

    def roll(self, span: int, at: int, until: int) -> None:
        """Sum the next shorter spans to one of `span` seconds, from `at` to `until` (epoch seconds)."""
        shorter = MINUTE if span == HOUR else HOUR
        for table in _ROLLED:
            row = {"into": span, "from": shorter, "at": at, "until": until}
            if table == "foreign_run":  # a row that grows keeps its begin, but rows that join do not
                self._db.execute(SQL["clear_foreign_run"], row)
            self._db.execute(SQL[f"roll_{table}"], row)

    def fold(self, before: int) -> None:
        """Add the days that begin before `before` (epoch seconds) to the counters that outlast them."""
        since = int(self._db.execute(SQL["get_meta"], {"key": "counted_until"}).fetchone()["value"])
        if before <= since:
            return
        for statement in ("fold_card_use", "fold_owner_use"):
            self._db.execute(SQL[statement], {"since": since, "until": before})
        self._db.execute(SQL["put_meta"], {"key": "counted_until", "value": str(before)})

    # -- for archives ---------------------------------------------------------------------------

    def claim(self, origin: str) -> None:
        """Record the name of the accounts that this file is an archive of.

        Raises:
            Refused: it is an archive of other accounts.
        """
        with self.write():
            self._db.execute(SQL["name_origin"], {"value": origin})
            archive = self._db.execute(SQL["get_meta"], {"key": "archive_of"}).fetchone()["value"]
        if archive != origin:
            raise Refused(f"{self.path} is an archive of other accounts", "Name another file.")

    def remove_jobs(self, ids: Iterable[int]) -> None:
        """Delete jobs that another file has. Their ids are not used again."""
        last = self._db.execute(SQL["last_job"]).fetchone()["id"]
        self._db.execute(SQL["put_meta"], {"key": "last_job", "value": str(last)})
        for job_id in ids:
            self._db.execute(SQL["remove_job"], {"id": job_id})

    def first_span(self, span: int) -> int | None:
        """Return the begin of the first span of `span` seconds, in epoch seconds; None: there is none."""
        first = self._db.execute(SQL["first_at"], {"span": span}).fetchone()["at"]
        return None if first is None else int(first)

    def copy_spans(self, reader: "LedgerReader", span: int, since: int, until: int) -> None:
        """Add the spans of one length of other accounts that begin in a period (epoch seconds)."""
        parts: tuple[tuple[str, Iterator[Struct]], ...] = (
            ("add_card_use", reader.gpu_uses(span, since, until)),
            ("add_owner_use", reader.owner_uses(span, since, until)),
            ("add_foreign_run", reader.foreign_uses(span, since, until)),
            ("add_demand", reader.demands(span, since, until)),
        )
        for statement, records in parts:
            for record in records:
                self._db.execute(SQL[statement], self._row(record) | {"span": span})

    def remove_spans(self, span: int, before: int) -> None:
        """Delete the spans of one length that begin before `before` (epoch seconds)."""
        for table in _ROLLED:
            self._db.execute(SQL[f"prune_{table}"], {"span": span, "before": before})

    def shrink(self) -> None:
        """Return free pages to the file system."""
        with _storage_errors(self.path):
            self._db.execute("PRAGMA incremental_vacuum").fetchall()

    # -- the file -------------------------------------------------------------------------------

    def prune(self, span: int, before: int) -> bool:
        """Delete some spans of `span` seconds that begin before `before` (epoch seconds).

        Returns whether more of them are left.
        """
        first = self._db.execute(SQL["first_at"], {"span": span}).fetchone()["at"]
        if first is None or first >= before:
            return False
        until = min(before, first + _STEP * span // MINUTE)
        if span == DAY:
            self.fold(until)
        for table in _ROLLED:
            self._db.execute(SQL[f"prune_{table}"], {"span": span, "before": until})
        return bool(until < before)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        pages, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        return int(pages) * int(size)

    def _row(self, record: Struct) -> dict[str, Any]:
        row = msgspec.structs.asdict(record)
        if not isinstance(record, GpuRecord) and "uuid" in row:
            row["card"] = self._gpu(row.pop("uuid"))
        if "owner" in row:
            row["owner"] = self._owner(row["owner"])
        return row

    def _job_row(self, job: JobAccount) -> dict[str, Any]:
        usage = job.usage or self._sampled(job.id)
        job_row = {name: job.row[name] for name in job.row if name not in (*_ROW_IN_TABLE, *_ROW_IN_OWNER)}
        detail = {name: job_row.pop(name) for name in _ROW_IN_DETAIL if name in job_row} | _changed(
            job, _IN_DETAIL
        )
        kept_fields = {name: job_row.pop(name) for name in _ROW_IN_KEPT if name in job_row} | _changed(
            job, _KEPT
        )
        table = {column: job.row.get(name, _EMPTY.get(name)) for name, column in _ROW_IN_TABLE.items()}
        counted = int(table["gpu_peak"] or 0)
        peak = memory_peak(counted, usage) or 0
        if peak != counted:
            job_row["gpu_peak"] = counted  # of the queue's row, for `_queue_row`
        return {
            **table,
            "gpu_peak": peak,
            **{name: getattr(job, name) for name in _IN_TABLE},
            "owner": self._owner(job.owner),
            "used": usage.used if usage else None,
            "idle": usage.held + usage.empty if usage else None,
            "detail": to_json(detail | {"usage": usage} if usage else detail).decode(),
            "kept": _compressed(to_json(kept_fields | {"columns": job_row})),
        }

    def _sampled(self, job: int) -> JobUsage | None:
        sample_row = self._db.execute(SQL["find_sample"], {"job": job}).fetchone()
        return msgspec.json.decode(sample_row["usage"], type=JobUsage) if sample_row else None

    def _owner(self, owner: Owner) -> int:
        if owner not in self._owners:
            row = msgspec.structs.asdict(owner)
            owner_row = self._db.execute(SQL["find_owner"], row).fetchone()
            owner_row = owner_row or self._db.execute(SQL["add_owner"], row).fetchone()
            self._owners[owner] = owner_row[0]
        return self._owners[owner]

    def _gpu(self, uuid: str) -> int:
        if uuid not in self._gpus:
            gpu_row = self._db.execute(SQL["find_card"], {"uuid": uuid}).fetchone()
            if gpu_row is None:
                raise UnstorableRecord(
                    f"the accounts do not know the GPU {uuid}", "Report this: it is a defect."
                )
            self._gpus[uuid] = gpu_row[0]
        return self._gpus[uuid]


def open_to_read(path: Path, *, timeout: float) -> sqlite3.Connection:
    """Open accounts to read them; `timeout`: seconds to wait for a lock."""
    wal.make_index(path)
    place = f"{path.absolute().as_uri()}?{wal.READ_ONLY}"
    return sqlite3.connect(place, timeout=timeout, uri=True, isolation_level=None)


class LedgerReader:
    """Read access to the accounts. All queries inside `reading()` see the file at one time."""

    statements: Mapping[str, str] = SQL

    def __init__(self, path: Path | str, timeout: float = 5.0) -> None:
        """Open the file at `path`; `timeout`: seconds to wait for a file that is being recovered.

        Raises StorageError if it cannot be read or is of a newer version.
        """
        self.path = path
        with _storage_errors(path):
            silent = min(timeout, locks.SILENT)
            self._db = open_to_read(Path(path), timeout=silent)
            with _closed_on_error(self._db):
                self._db.row_factory = sqlite3.Row
                self._db.execute("PRAGMA query_only = ON")
                self._wait(timeout - silent)
                _refuse_other_version(self._db, path)
        with _closed_on_error(self._db):
            self.compare()

    def _wait(self, seconds: float) -> None:
        """Wait until the file can be read, and say for whom; `seconds`: further seconds."""
        try:
            self._db.execute("PRAGMA user_version")
        except sqlite3.OperationalError as error:
            if (
                error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                or seconds <= 0
            ):
                raise
            locks.tell_wait(Path(self.path), "the accounts")
            self._db.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    def compare(self) -> None:
        """Compare the file with the number of its last commit. Raises StorageError if commits are missing."""
        path = Path(self.path)
        with _storage_errors(path):
            if guard.marker_of(path).exists():
                guard.compare(path, self._db, beside_of(path, guard.REMEDY))

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Open a read transaction: all queries inside it see the file at one time."""
        with _storage_errors(self.path):
            self.compare()
            self._db.execute("BEGIN")
            try:
                yield
            except Exception as error:  # a damaged row has any value
                self._refuse_damage(error)
                raise
            finally:
                if self._db.in_transaction:
                    self._db.execute("COMMIT")

    def _refuse_damage(self, error: Exception) -> None:
        """Raise a StorageError if the file is damaged, which explains `error`."""
        if not isinstance(error, FgschedError) and (cause := guard.damage(Path(self.path))):
            raise StorageError(cause, guard.REMEDY) from error

    def jobs(self, since: float, until: float, uid: int | None = None) -> Iterator[JobAccount]:
        """Yield the jobs that ended in a period (epoch seconds), of one user or of all, by end."""
        for row in self._ask("jobs_ended", since=since, until=until, uid=uid):
            yield _job_of(row)

    # -- jobs by id -----------------------------------------------------------------------------

    def job(self, job_id: int) -> JobAccount | None:
        """Return one job, or None."""
        return next(map(_job_of, self._ask("get_job", id=job_id)), None)

    def task(self, array: int, task: int) -> JobAccount | None:
        """Return one task of an array, or None."""
        return next(map(_job_of, self._ask("get_task", array=array, task=task)), None)

    def of_array(self, array: int, after: int, page: int) -> list[JobAccount]:
        """Return at most `page` tasks of an array behind the index `after`, in order."""
        return [_job_of(row) for row in self._ask("jobs_of_array", array=array, after=after, page=page)]

    def rest_of(self, array: int) -> list[JobAccount]:
        """Return the row of the tasks of an array that ended together before they started, or no row."""
        return [_job_of(row) for row in self._ask("rest_of_array", array=array)]

    def first_jobs(self, before: float, most: int) -> list[JobAccount]:
        """Return up to `most` jobs that ended before `before` (epoch seconds), oldest first."""
        return [_job_of(row) for row in self._ask("first_jobs", before=before, most=most)]

    def states(self, array: int) -> dict[int, str]:
        """Return {index: state} of the tasks of an array."""
        return {row["task"]: row["state"] for row in self._ask("tasks_of_array", array=array)}

    def sum(self, array: int) -> tuple[int, int, float | None]:
        """Return (number of rows, number of completed ones, last start in epoch seconds) of an array."""
        row = next(self._ask("sum_of_array", array=array))
        return row["count"], int(row["completed"]), row["started_at"]

    def last_submission_of(self, uid: int) -> int | None:
        """Return the id of the last submission of a user, a job or an array, or None."""
        owners = [row["id"] for row in self._ask("owners_of_uid", uid=uid)]
        ids = [row["id"] for owner in owners for row in self._ask("last_of_owner", owner=owner)]
        return max(ids, default=None)

    def last_id(self) -> int:
        """Return the highest id of a job that is or was in the accounts; 0: there was none."""
        return int(next(self._ask("last_job"))["id"])

    def runs(self, since: float, most: int) -> list[tuple[float, int, str, float, int, str]]:
        """Return the last completed runs after `since` (epoch seconds), latest first.

        Each is (end in epoch seconds, uid, name, run time and time limit in seconds, request as JSON).
        """
        rows = self._ask("runs_since", since=since, most=most)
        return [(*tuple(row)[:-1], kept_field(row["kept"], "request") or "") for row in rows]

    def history(
        self, *, since: float, until: float, uid: int | None, after: int, page: int
    ) -> tuple[list[JobAccount], int | None]:
        """Return up to `page` jobs after job `after` that existed in a period (epoch seconds), by id.

        The second value is the id up to which all jobs were examined; None: all were. A call examines some
        thousand jobs at most, so it may return none although there are more.
        """
        period = {"since": since, "until": until, "after": after}
        ranges = [row["first"] for row in self._ask("ranges", most=_RANGES, **period)]
        statement = "jobs_of_range" if uid is None else "jobs_of_range_and_user"
        job_accounts: list[JobAccount] = []
        for first in ranges:
            values = period | {"after": max(after, first - 1), "beyond": first + _RANGE}
            values |= {"page": page - len(job_accounts), "uid": uid}
            job_accounts += map(_job_of, self._ask(statement, **values))
            if len(job_accounts) >= page:
                return job_accounts, job_accounts[-1].id
        return job_accounts, ranges[-1] + _RANGE - 1 if len(ranges) == _RANGES else None

    # -- samples and events ---------------------------------------------------------------------

    def gpus(self, since: float, until: float) -> list[GpuRecord]:
        """Return the GPUs that were seen in a period (epoch seconds), by index."""
        return [_record(GpuRecord, row) for row in self._ask("cards", since=since, until=until)]

    def gpu_uses(self, span: int, since: float, until: float) -> Iterator[GpuUseRecord]:
        """Yield the use of GPUs in each MINUTE, HOUR or DAY that begins in a period (epoch seconds)."""
        for row in self._ask("card_uses", span=span, since=since, until=until):
            yield _record(GpuUseRecord, row)

    def owner_uses(self, span: int, since: float, until: float) -> Iterator[OwnerUse]:
        """Yield the use by the jobs of owners in each span that begins in a period (epoch seconds)."""
        for row in self._ask("owner_uses", span=span, since=since, until=until):
            yield _record(OwnerUse, row)

    def foreign_uses(self, span: int, since: float, until: float) -> Iterator[ForeignUse]:
        """Yield the times of each foreign process in each span that begins in a period (epoch seconds)."""
        for row in self._ask("foreign_runs", span=span, since=since, until=until):
            yield _record(ForeignUse, row)

    def demands(self, span: int, since: float, until: float) -> Iterator[WaitingRecord]:
        """Yield the demand of pending jobs in each span that begins in a period (epoch seconds)."""
        for row in self._ask("demands", span=span, since=since, until=until):
            yield _record(WaitingRecord, row)

    def sample(self, job: int) -> JobUsage | None:
        """Return the sums of samples of a job that is still in the queue; None: there are none."""
        sample = next(self._ask("find_sample", job=job), None)
        return msgspec.json.decode(sample["usage"], type=JobUsage) if sample else None

    def begin(self) -> float | None:
        """Return the time of the first record, in epoch seconds; None: there is none."""
        first: float | None = next(self._ask("first_record"))["at"]
        return first

    def sampled_until(self) -> float | None:
        """Return the end of the last minute's samples, in epoch seconds; None: there is none."""
        sample_row = next(self._ask("last_sample"), None)
        return None if sample_row is None else sample_row["at"] + sample_row["sampled"]

    def health(self, since: float, until: float) -> list[HealthEvent]:
        """Return the events of health in a period (epoch seconds)."""
        return [_record(HealthEvent, row) for row in self._ask("health_events", since=since, until=until)]

    def warnings(self, since: float, until: float) -> list[Warned]:
        """Return the warnings of policies in a period (epoch seconds)."""
        return [_record(Warned, row) for row in self._ask("warnings", since=since, until=until)]

    def gaps(self, since: float, until: float) -> list[Gap]:
        """Return the times without samples that overlap with a period (epoch seconds)."""
        return [_record(Gap, row) for row in self._ask("gaps", since=since, until=until)]

    def _ask(self, statement: str, **values: float | str | None) -> Iterator[sqlite3.Row]:
        with _storage_errors(self.path):
            yield from self._db.execute(self.statements[statement], values)


# -- the file ------------------------------------------------------------------------------------------


def _create(db: sqlite3.Connection, path: Path | str) -> None:
    """Make the tables of an empty file. Raises StorageError for a file of another version."""
    if db.execute(SQL["count_tables"]).fetchone()[0]:
        _refuse_other_version(db, path)
        return
    db.executescript(f"BEGIN;{_SCHEMA};PRAGMA user_version = {VERSION};COMMIT;")


def _refuse_other_version(db: sqlite3.Connection, path: Path | str) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if not version:
        raise StorageError(f"the accounts {path} are empty", "A controller that has just started makes them.")
    if version != VERSION:
        raise StorageError(
            f"{path} has version {version} of the accounts; this fgsched knows version {VERSION}",
            "Use the fgsched that wrote it, or restore a backup.",
        )


@contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Close a connection if it cannot be used: its file would stay open while the error is handled."""
    try:
        yield
    except BaseException:
        db.close()
        raise


@contextmanager
def _storage_errors(path: Path | str) -> Iterator[None]:
    """Raise StorageError for what the accounts at `path` raise."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        is_io = getattr(error, "sqlite_errorname", "").startswith("SQLITE_IOERR")
        is_quota = is_io and disk.has_used_up_quota(Path(path).parent)  # SQLite names no quota
        why = f"the quota for {Path(path).parent} is used up" if is_quota else error
        raise StorageError(
            f"the accounts {path}: {why}", "Check the file and the space on its disk."
        ) from error


# -- rows ----------------------------------------------------------------------------------------------


def _record(kind: type[Record], row: sqlite3.Row) -> Record:
    values: dict[str, Any] = dict(row)
    if "owner" in kind.__struct_fields__:
        values["owner"] = _owner_of(values)
    with _decoded():
        return msgspec.convert({name: values[name] for name in kind.__struct_fields__}, kind, strict=False)


def _owner_of(values: Mapping[str, Any]) -> Owner:
    return Owner(**{name: values[name] for name in _OWNER})


def kept_field(data: bytes, name: str) -> str | None:
    """Return a text of a job that is stored compressed, such as its request or output; None: its default."""
    text: str | None = msgspec.json.decode(_expanded(data)).get(name)
    return text


def _job_of(row: sqlite3.Row) -> JobAccount:
    with _decoded():
        detail = _objects.decode(row["detail"])
        kept_fields = _objects.decode(_expanded(row["kept"]))
        fields = {name: row[name] for name in _IN_TABLE}
        fields |= {name: detail[name] for name in (*_IN_DETAIL, "usage") if name in detail}
        fields |= {name: kept_fields[name] for name in _KEPT if name in kept_fields}
        owner = _owner_of({name: row[name] for name in _OWNER})
        return msgspec.convert(
            fields | {"owner": owner, "row": _queue_row(row, detail, kept_fields)}, JobAccount
        )


def _queue_row(row: sqlite3.Row, detail: Mapping[str, Any], kept_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a job in the queue."""
    shared = {name: row[column] for name, column in _ROW_IN_TABLE.items()}
    others = kept_fields.get("columns", {})
    if "gpu_peak" in others:  # samples showed more than the hook counted
        shared["gpu_peak"] = others.pop("gpu_peak")
    return {
        **{name: value for name, value in shared.items() if value != _EMPTY.get(name)},
        **{name: row[name] for name in _ROW_IN_OWNER},
        **{name: detail[name] for name in _ROW_IN_DETAIL if name in detail},
        **{name: kept_fields[name] for name in _ROW_IN_KEPT if name in kept_fields},
        **others,
    }


@contextmanager
def _decoded() -> Iterator[None]:
    """Convert the errors of a damaged row."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeError, TypeError) as error:
        raise StorageError(f"a row of the accounts cannot be read: {error}", guard.REMEDY) from error


def _changed(job: JobAccount, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields with these names that differ from their defaults."""
    return {name: value for name in names if (value := getattr(job, name)) != _DEFAULTS[name]}


def _compressed(text: bytes) -> bytes:
    packer = zlib.compressobj(6, wbits=-15, zdict=_COMMON)
    return packer.compress(text) + packer.flush()


def _expanded(packed: bytes) -> bytes:
    """Decompress the result of `_compressed`. Raises StorageError if it is damaged."""
    try:
        return zlib.decompressobj(wbits=-15, zdict=_COMMON).decompress(packed)
    except zlib.error as error:
        raise StorageError(f"a job of the accounts cannot be read: {error}", "Restore a backup.") from error
