"""Read and write the queue file. State changes are compare-and-set and add an event."""

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from fgsched.crash import point
from fgsched.domain.errors import StorageError
from fgsched.domain.job import Gpu, GpuState, Hold, Job, Request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import storable
from fgsched.lifecycle.arrays import bits_from, bits_of
from fgsched.scheduling.queue import AccountUser, Usage
from fgsched.scheduling.runtimes import CompletedRun, work_of_line
from fgsched.store.blobs import Blobs, Idle
from fgsched.store.connection import Connection, Insert, Opened, Statement
from fgsched.store.opening import last_id, open_queue, raise_ids
from fgsched.store.rows import (
    ArraySum,
    GpuAllocation,
    JobRecord,
    NewJob,
    columns_of,
    fixed_columns_of,
    fresh_past_of,
    past_of,
    request_columns_of,
    started_columns_of,
    submitted_columns_of,
)
from fgsched.store.schema import SQL
from fgsched.system import disk

# -- ended jobs that have moved from the queue to the accounts ------------------------------------

Step = tuple[int, float, str, str, str]  # attempt, epoch seconds, from, to, reason


class Unreadable(StorageError):
    """Jobs that have moved cannot be looked up."""


class HistoryPart(NamedTuple):
    """Some jobs of a history, ordered by id."""

    records: list[JobRecord]
    upto: int | None  # every job of the history up to this id was examined; None: all were


class MovedJobs(Protocol):
    """Jobs that have moved. Each method may raise Unreadable."""

    def past(self, job_id: int) -> JobRecord | None:
        """Return one job, or None."""

    def task(self, array: int, task: int) -> JobRecord | None:
        """Return one task of an array, or None."""

    def of_array(self, array: int, after: int, page: int) -> list[JobRecord]:
        """Return at most `page` tasks of an array behind the index `after`, in order."""

    def rest_of(self, array: int) -> list[JobRecord]:
        """Return the row of the tasks of an array that ended together before they started."""

    def ended(self, array: int) -> dict[int, bool]:
        """Return {index: completed} of the tasks of an array."""

    def sum(self, array: int) -> ArraySum:
        """Return the totals of an array."""

    def last_submission_of(self, uid: int) -> int | None:
        """Return the id of the last submission of a user, or None."""

    def steps(self, job_id: int) -> list[Step]:
        """Return the state changes of a job, in order."""

    def material(self, job_id: int) -> tuple[str, str]:
        """Return the references of a job's script and environment in the queue; "": none."""

    def history(self, *, since: float, until: float, uid: int | None, after: int, page: int) -> HistoryPart:
        """Return jobs that existed from `since` to `until` (epoch seconds), as Store.history."""

    def ended_since(self, since: float) -> list[JobRecord]:
        """Return jobs that ended after `since` (epoch seconds), ordered by id."""

    def runs_since(self, since: float) -> list[CompletedRun]:
        """Return the runs that completed after `since` (epoch seconds), latest first."""


class NothingMoved:
    """No job has moved."""

    def past(self, job_id: int) -> JobRecord | None:
        """Return None."""
        return None

    def task(self, array: int, task: int) -> JobRecord | None:
        """Return None."""
        return None

    def of_array(self, array: int, after: int, page: int) -> list[JobRecord]:
        """Return an empty list."""
        return []

    def rest_of(self, array: int) -> list[JobRecord]:
        """Return an empty list."""
        return []

    def ended(self, array: int) -> dict[int, bool]:
        """Return an empty mapping."""
        return {}

    def sum(self, array: int) -> ArraySum:
        """Return the totals of nothing."""
        return ArraySum(0, 0, 0, None)

    def last_submission_of(self, uid: int) -> int | None:
        """Return None."""
        return None

    def steps(self, job_id: int) -> list[Step]:
        """Return an empty list."""
        return []

    def material(self, job_id: int) -> tuple[str, str]:
        """Return no references."""
        return "", ""

    def history(self, *, since: float, until: float, uid: int | None, after: int, page: int) -> HistoryPart:
        """Return no jobs, whatever the period (epoch seconds)."""
        return HistoryPart([], None)

    def ended_since(self, since: float) -> list[JobRecord]:
        """Return an empty list, whatever the time (epoch seconds)."""
        return []

    def runs_since(self, since: float) -> list[CompletedRun]:
        """Return an empty list, whatever the time (epoch seconds)."""
        return []


# -- the queue ------------------------------------------------------------------------------------

_ADD = Insert(SQL["add_job"])
_START, _RUN, _SAVE, _HOLD, _DROP = (
    Statement(SQL[name]) for name in ("start_job", "run_job", "save_job", "add_hold", "drop_hold")
)


_LARGE = 1 << 18  # bytes of a script and an environment that fill many pages of the log
log = logging.getLogger(__name__)
T = TypeVar("T")
_Material = tuple[int, int]  # ids of a script and an environment


_REFUSED_BY_QUOTA = {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"}  # names of errors; a full disk has its own


class StorageBroken(StorageError):
    """Raised if the disk failed and it is unknown which data were written; the file must be reopened."""


def is_fatal(error: BaseException) -> bool:
    """Tell whether an error concerns the disk or the whole file (full, damaged), not a row or a request."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _unwritten(error: sqlite3.DatabaseError, place: Path, *, is_quota: bool) -> StorageError:
    if is_quota:
        cause = f"the queue cannot be written: the quota for {place} is used up"
        return StorageError(cause, "Nothing of this request was stored. Free some space there and repeat it.")
    cause = f"the queue cannot be written: {error}"
    if "full" in str(error):
        remedy = "Nothing of this request was stored. Free some space on its disk and repeat it."
        return StorageError(cause, remedy)
    return StorageBroken(cause, "Its disk has failed or is read-only: see the log of the kernel (dmesg).")


def _lenient(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def _mark_of(row: sqlite3.Row) -> tuple[GpuState, str, float]:
    """Return (state, note, since) of a GPU; one with unreadable data is drained."""
    try:
        return GpuState(row["state"]), row["note"], row["at"]
    except ValueError:
        return GpuState.DRAINED, f"its state in the queue cannot be read: {row['state']!r:.80}", row["at"]


class Store:
    """The store on a file, or on ":memory:" for tests."""

    def __init__(self, path: Path | str, opened: Opened | None = None) -> None:
        """Open the queue, unless it is `opened` already."""
        self.path = path
        self._opened = opened or open_queue(path)
        self._db, self._record = self._opened.db, self._opened.record
        self._last_id: int | None = None  # None: it is to be read
        self._was_quota = False  # a quota refused the last write
        self.trouble = ""  # why the queue cannot be written; "": the last transaction with changes was stored
        self.blobs = Blobs(self._db, SQL)
        self.submissions = Submissions(self._db, SQL)
        self.idle = Idle(self._db, SQL, self.blobs, self._opened.look_soon)
        self.kept = Metadata(self._db, SQL)
        self.steps = EventLog(self._db, SQL)
        self.outbox = Outbox(self._db, SQL)
        self.tasks = Tasks(self._db, SQL, self._assigned)
        self.settled = Settled(self._db, SQL, self._opened.look_soon)
        self.moved: MovedJobs = NothingMoved()

    def use_moved(self, moved: MovedJobs) -> None:
        """Look up the jobs that are not in the queue here."""
        self.moved = self.tasks.moved = self.steps.moved = moved

    def close(self) -> None:
        self._opened.close()

    @property
    def is_checking(self) -> bool:
        """Whether pages of a large file remain to be checked."""
        return self._opened.is_checking

    def check_some(self) -> None:
        """Check some pages for a few milliseconds. Raises StorageError if one is damaged."""
        self._opened.check_some()

    def hold_file(self, *, hold: bool) -> None:
        """Write all commits into the queue file and do not change the file until `hold` is false again.

        While it is held, commits are in the write-ahead log.

        Raises:
            StorageError: the log cannot be written into the file.
        """
        self._opened.hold(hold=hold)

    @property
    def name(self) -> str:
        """The name of this queue: eight letters that distinguish it from every other queue."""
        return self._record.last.queue

    @contextmanager
    def write(self) -> Iterator[None]:
        """Open a transaction that is durable at its end, and rolled back by any exception."""
        changes = self._db.total_changes
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self.steps.write()
            self._db.write_deferred()
            number = self._record.last.number + 1 if self._db.total_changes > changes else 0
            if number:
                self._db.execute(SQL["count_commit"], {"number": number})
                last = self.last_id()
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._undo()
            if is_fatal(error):
                raise self._noted(self._unwritten(error)) from error
            raise
        except BaseException:
            self._undo()
            raise
        if number:
            self._note_written()
            point("controller_before_commit_is_noted")
            self._record.note(number, last)
        self._check_log_size()  # to give pages back changes no row, and many pages of the log

    def _unwritten(self, error: sqlite3.DatabaseError) -> StorageError:
        place, before = Path(self.path).parent, self._was_quota
        is_write = getattr(error, "sqlite_errorname", "") in _REFUSED_BY_QUOTA
        self._was_quota = is_write and disk.has_used_up_quota(place)
        # Space that was freed between the write and this look: an earlier refusal decides, once.
        return _unwritten(error, place, is_quota=self._was_quota or (is_write and before))

    def _noted(self, error: StorageError) -> StorageError:
        """Log an error that lasts only once."""
        if not self.trouble:
            log.error("%s; until it can, jobs do not start and changes are refused", error.cause)
        self.trouble = error.cause
        return error

    def _note_written(self) -> None:
        if self.trouble:
            log.warning("the queue can be written again")
        self.trouble, self._was_quota = "", False

    @contextmanager
    def unenforced(self) -> Iterator[None]:
        """Do not enforce references in the transactions within.

        To delete a script, SQLite would search all jobs for references to it, although none has one.
        """
        self._db.execute("PRAGMA foreign_keys = OFF")
        try:
            yield
        finally:
            self._db.execute("PRAGMA foreign_keys = ON")

    def _check_log_size(self) -> None:
        """Check the length of the log after a commit. A failure here changes nothing that is committed.

        A log that cannot be examined for lack of a descriptor or memory is examined later.
        """
        try:
            self._opened.committed()
        except StorageError as error:
            raise StorageBroken(error.cause, error.remedy) from error
        except (OSError, MemoryError) as error:
            self._opened.look_soon()
            log.warning("the log of the queue cannot be looked at: %s", error)

    def _undo(self) -> None:
        self.blobs.forget()
        self.steps.forget()
        self.submissions.forget()
        self._last_id = None
        self._db.drop_deferred()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    # -- submissions ----------------------------------------------------------------------------

    def submitted(self, uid: int, key: str) -> range | None:
        """Return the ids of an earlier submission with this key, or None."""
        return self.submissions.find(uid, key)

    def submit(
        self, jobs: Sequence[NewJob], *, key: str, submitter: tuple[int, int, str], now: float
    ) -> list[Job]:
        """Store a submission of (uid, gid, user name); the ids are consecutive."""
        first = self.last_id() + 1
        new_jobs = [new.job(number, submitter, now) for number, new in enumerate(jobs, first)]
        self._add(new_jobs, jobs)
        self._assigned(first + len(new_jobs) - 1)
        self.submissions.add(submitter[0], key, range(first, first + len(new_jobs)), now)
        return new_jobs

    def _add(self, new_jobs: Sequence[Job], jobs: Sequence[NewJob]) -> None:
        """Add the rows of new jobs. Rows of equal jobs differ only in their number."""
        alike: dict[tuple[int, int, int, str], tuple[_Material, dict[str, Any]]] = {}
        rows, materials = [], {}
        for job, new in zip(new_jobs, jobs, strict=True):
            key = (id(new.request), id(new.script), id(new.environment), new.held)
            if key not in alike:
                alike[key] = self._put(new), submitted_columns_of(job)
            (script, environment), columns = alike[key]
            materials[job.id] = script, environment
            own_columns = {
                "id": job.id,
                "array_job": job.array or None,
                "script": script,
                "environment": environment,
            }
            rows.append(_ADD.values(columns | own_columns))
        self._db.defer(_ADD, rows)
        self.blobs.submitted(materials)

    def _put(self, new: NewJob) -> _Material:
        """Store script and environment of a job."""
        if len(new.script) + len(new.environment) > _LARGE:
            self._opened.look_soon()
        return self.blobs.put(new.script), self.blobs.put(new.environment)

    def material(self, job_id: int) -> tuple[bytes, bytes]:
        """Return script and environment of a job; empty, if they are no longer kept."""
        data = self.blobs.of_job(job_id)
        if data is None:
            script, environment = self.moved.material(job_id)
            data = self.blobs.of_reference(script), self.blobs.of_reference(environment)
        return data

    # -- steps ----------------------------------------------------------------------------------

    def start(self, before: Job, after: Job, allocated: tuple[GpuAllocation, ...]) -> bool:
        """Store a job as STARTING with its holds; False if its state had changed meanwhile."""
        step = started_columns_of(after, allocated) | {"from_attempt": before.attempt}
        if _START.do(self._db, step).rowcount == 0:
            return False
        for hold in after.holds:
            row = {"job": after.id, "gpu": hold.gpu, "share": hold.share, "memory": hold.memory}
            _HOLD.do(self._db, row)
        self.steps.note(before, after, after.start_time)
        return True

    def run(self, before: Job, after: Job, *, now: float) -> bool:
        """Store a job as RUNNING; False if its state had changed meanwhile."""
        moved = _RUN.do(self._db, {"id": after.id, "attempt": after.attempt}).rowcount > 0
        if moved:
            self.steps.note(before, after, now)
        return moved

    def save(self, before: Job, after: Job, *, now: float) -> bool:
        """Store one change of a job; False if its state had changed meanwhile. Released holds are deleted."""
        step = columns_of(after) | {"from_state": before.state.word, "from_attempt": before.attempt}
        if _SAVE.do(self._db, step).rowcount == 0:
            return False
        if before.holds and not after.state.holds:
            for hold in before.holds:
                _DROP.do(self._db, {"job": after.id, "gpu": hold.gpu})
        elif before.holds != after.holds:
            changed = [{"job": after.id, "gpu": hold.gpu, "share": hold.share} for hold in after.holds]
            self._db.executemany(SQL["change_hold"], changed)
        self.steps.note(before, after, now)
        return True

    def repair(self, job: Job, allocated: Sequence[GpuAllocation]) -> None:
        """Write all columns of a damaged row, first the columns that later changes do not write.

        The rules of the schema compare columns of both groups, so they are checked after the second
        statement.
        """
        self._db.execute("PRAGMA ignore_check_constraints = ON")
        try:
            self._db.execute(SQL["repair_job"], fixed_columns_of(job, allocated))
        finally:
            self._db.execute("PRAGMA ignore_check_constraints = OFF")
        _SAVE.do(self._db, columns_of(job) | {"from_state": None, "from_attempt": None})

    def change_request(self, job_id: int, request: Request) -> None:
        self._db.execute(SQL["change_request"], request_columns_of(request) | {"id": job_id})

    # -- reading --------------------------------------------------------------------------------

    def _rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[sqlite3.Row]:
        """Return the rows of a statement; bytes that are not UTF-8 are decoded with surrogateescape."""
        return self._read(statement, values or {}, sqlite3.Cursor.fetchall)

    def _read(
        self, statement: str, values: Mapping[str, Any], take: Callable[[sqlite3.Cursor], list[T]]
    ) -> list[T]:
        """Return what `take` makes of the rows of a statement. It may be called twice."""
        try:
            return take(self._db.execute(SQL[statement], values))
        except sqlite3.OperationalError as error:
            if "decode" not in str(error):
                raise
        self._db.text_factory = _lenient
        try:
            return take(self._db.execute(SQL[statement], values))
        finally:
            self._db.text_factory = str

    def open_jobs(self) -> list[Job]:
        """Return every open job in order, with its holds."""
        return [past.job for past in self.open_past()]

    def open_past(self) -> list[JobRecord]:
        """Return every open job in order, with its allocation."""
        holds: dict[int, list[Hold]] = {}
        for row in self._db.execute(SQL["all_holds"]):
            hold = Hold(gpu=row["gpu"], share=row["share"], memory=row["memory"])
            holds.setdefault(row["job"], []).append(hold)
        changed = [past_of(row, tuple(holds.get(row["id"], ()))) for row in self._rows("changed_jobs")]
        fresh = self._read(
            "fresh_jobs", {}, lambda rows: [fresh_past_of(*row) or self._past_of(row["id"]) for row in rows]
        )
        return sorted([*fresh, *changed], key=lambda record: record.job.id)

    def _past_of(self, job_id: int) -> JobRecord:
        return past_of(self._rows("get_job", {"id": job_id})[0])

    def past(self, job_id: int) -> JobRecord | None:
        """Return one job, open or ended, or None."""
        rows = self._rows("get_job", {"id": job_id})
        return past_of(rows[0]) if rows else self.moved.past(job_id)

    def history(self, *, since: float, until: float, uid: int | None, after: int, page: int) -> HistoryPart:
        """Return jobs that existed from `since` to `until` (epoch seconds), ordered by id.

        At most `page` jobs after job `after` are returned. A job that is in the accounts and still in the
        queue is returned once.
        """
        window = {"since": since, "until": until, "uid": uid, "after": after, "page": page}
        rows = [past_of(row) for row in self._rows("history", window)]
        in_queue = HistoryPart(rows, rows[-1].job.id if len(rows) == page else None)
        moved = self.moved.history(since=since, until=until, uid=uid, after=after, page=page)
        return _merged(in_queue, moved, page)

    def ended_since(self, since: float) -> list[JobRecord]:
        """Return jobs that ended after `since` (epoch seconds), ordered by id."""
        in_queue = [past_of(row) for row in self._rows("ended_since", {"since": since})]
        moved = self.moved.ended_since(since)
        return _merged(
            HistoryPart(in_queue, None), HistoryPart(moved, None), len(in_queue) + len(moved)
        ).records

    def runs_since(self, since: float) -> list[CompletedRun]:
        """Return the runs that completed after `since` (epoch seconds), latest first."""
        rows = self._db.execute(SQL["runs_since"], {"since": since})
        in_queue = [
            CompletedRun(
                row["uid"],
                work_of_line(row["name"], row["submit_line"] or "", row["submit_dir"] or "/"),
                row["elapsed"],
                row["time_limit"] or 0,
            )
            for row in rows
        ]
        return in_queue + self.moved.runs_since(since)  # what moved ended before the rest, as a rule

    def last_id(self) -> int:
        """Return the highest job id that was assigned."""
        if self._last_id is None:
            self._last_id = last_id(self._db)
        return self._last_id

    def _assigned(self, job_id: int) -> None:
        """Note that a new row has this id, in an open transaction."""
        self._last_id = job_id

    def raise_ids(self, beyond: int) -> None:
        """Make the next job get an id above `beyond`."""
        raise_ids(self._db, beyond)
        self._last_id = None

    def drop_orphan_holds(self) -> int:
        """Delete holds without a job, which only damage leaves; return their number.

        The rules of the schema count them, so a GPU with such a hold would not be allocated.
        """
        return self._db.execute(SQL["drop_orphan_holds"]).rowcount

    # -- GPUs ----------------------------------------------------------------------------------

    def put_gpus(self, gpus: Sequence[Gpu]) -> None:
        for gpu in gpus:
            self._db.execute(SQL["move_card"], {"gpu": gpu.index, "uuid": gpu.uuid})
            row = {"gpu": gpu.index, "uuid": gpu.uuid, "usable": gpu.usable, "model": storable(gpu.model)}
            self._db.execute(SQL["put_card"], row | {"capacity": gpu.capacity})

    def mark_gpu(self, gpu: Gpu) -> None:
        mark = {"gpu": gpu.index, "state": gpu.state.value, "note": storable(gpu.note), "at": gpu.noted_at}
        self._db.execute(SQL["mark_card"], mark)

    def known_gpus(self) -> list[Gpu]:
        """Return the GPUs and their memory for jobs as last recorded by a controller."""
        rows = self._db.execute(SQL["get_cards"])
        about = [(row["gpu"], row["uuid"], row["model"], row["usable"]) for row in rows]
        return [Gpu(index=gpu, uuid=uuid, model=model, total=usable) for gpu, uuid, model, usable in about]

    def held_gpus(self) -> set[int]:
        """Return the indices of the GPUs that jobs hold."""
        return {row["gpu"] for row in self._db.execute(SQL["held_cards"])}

    def gpu_marks(self) -> dict[str, tuple[GpuState, str, float]]:
        """Return {uuid: (state, note, since)} as set by operators."""
        rows = self._db.execute(SQL["get_cards"])
        return {row["uuid"]: _mark_of(row) for row in rows}

    # -- the file -------------------------------------------------------------------------------

    def check(self) -> str:
        """Return 'ok', or the first error that SQLite's integrity check finds."""
        return str(self._db.execute("PRAGMA integrity_check(1)").fetchone()[0])


# -- texts and usage -----------------------------------------------------------------------------------


log = logging.getLogger(__name__)


class Metadata:
    """Named texts and charged usage. All writes require an open transaction."""

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql

    def recall(self, key: str) -> str:
        """Return the text stored under this name, or "" if there is none."""
        row = self._db.execute(self._sql["get_meta"], {"key": key}).fetchone()
        return str(row["value"]) if row else ""

    def recall_json(self, key: str, default: Any) -> Any:
        """Return the JSON value stored under this name, or `default` if it is missing or damaged."""
        text = self.recall(key)
        try:
            value = json.loads(text) if text else default
        except ValueError:
            value = None
        if type(value) is type(default):
            return value
        log.error("%r in the queue cannot be read and is left out: %.200r", key, text)
        return default

    def remember(self, key: str, value: str) -> None:
        self._db.execute(self._sql["put_meta"], {"key": key, "value": value})

    def usage(self) -> dict[AccountUser, Usage]:
        """Return the charged GPU seconds by account and user."""
        rows = self._db.execute(self._sql["all_usage"])
        return {(row["account"], row["user"]): Usage(row["seconds"], row["at"]) for row in rows}

    def put_usage(self, owner: AccountUser, usage: Usage) -> None:
        account, user = owner
        row = {"account": account, "user": user, "seconds": usage.seconds, "at": usage.at}
        self._db.execute(self._sql["put_usage"], row)


def _merged(in_queue: HistoryPart, moved: HistoryPart, page: int) -> HistoryPart:
    """Return the first `page` jobs of both parts up to which both are complete."""
    if not moved.records and moved.upto is None:
        return in_queue
    ends = [part.upto for part in (in_queue, moved) if part.upto is not None]
    upto = min(ends, default=None)
    job_records = {record.job.id: record for record in (*moved.records, *in_queue.records)}
    ids = sorted(job_id for job_id in job_records if upto is None or job_id <= upto)
    if len(ids) > page:
        ids, upto = ids[:page], ids[page - 1]
    return HistoryPart([job_records[job_id] for job_id in ids], upto)


# -- the steps of jobs ---------------------------------------------------------------------------------


MOST_EVENTS = 1000  # of a job; an owner can hold and release it without end
Row = tuple[int, int, float, str, str, str]  # job, attempt, when, from, to, reason


class EventLog:
    """The state changes of the open transaction and of the file."""

    def __init__(self, db: Connection, statements: Mapping[str, str]) -> None:
        self._db = db
        self._add, self._get = Insert(statements["add_event"]), statements["events_of_job"]
        self._drop_old = statements["drop_old_events"]
        self._new: list[Row] = []
        self._repeatable: set[int] = set()  # jobs with a change that an order can repeat without end
        self.moved: MovedJobs = NothingMoved()

    def note(self, before: Job, after: Job, now: float) -> None:
        """Record one state change at `now` (epoch seconds).

        If start and end arrive together, the start time is that of the result.
        """
        old = before.state
        if old is JobState.STARTING and _ran_meanwhile(before, after):
            old = JobState.RUNNING
            began = after.started_at or now
            self._new.append((after.id, after.attempt, began, before.state.word, old.word, Reason.NONE.word))
        self._new.append((after.id, after.attempt, now, old.word, after.state.word, after.reason.word))
        if after.state in (old, JobState.SUSPENDED, JobState.PENDING):
            self._repeatable.add(after.id)

    def write(self) -> None:
        if self._new:
            self._db.defer(self._add, self._new)
            self._new.clear()
        for job_id in self._repeatable:
            self._db.execute(self._drop_old, {"job": job_id, "most": MOST_EVENTS})
        self._repeatable.clear()

    def forget(self) -> None:
        """Drop the collected changes after a rollback."""
        self._new.clear()
        self._repeatable.clear()

    def of(self, job_id: int) -> list[Step]:
        """Return (attempt, epoch seconds, from, to, reason) of each state change of a job, in order."""
        steps: list[Step] = [tuple(row) for row in self._db.execute(self._get, {"job": job_id})]
        return steps or self.moved.steps(job_id)


def _ran_meanwhile(before: Job, after: Job) -> bool:
    """Tell whether a job that was STARTING is known to have run: its result has another start time."""
    has_run = after.ended is not None and after.reason is not Reason.LAUNCH_FAILURE
    return has_run and after.started_at != before.started_at


# -- mails that a transaction makes due -----------------------------------------------------------


class Outbox:
    """Mails by name, until they are durable in the queue of mails. Writes require an open transaction."""

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql

    def put(self, name: str, text: str) -> None:
        """Keep a text, or replace it."""
        self._db.execute(self._sql["put_meta"], {"key": f"mail:{name}", "value": text})

    def drop(self, name: str) -> None:
        """Delete a text; a missing one is ignored."""
        self._db.execute(self._sql["drop_meta"], {"key": f"mail:{name}"})

    def all(self) -> list[tuple[str, str]]:
        """Return (name, text) of all."""
        rows = self._db.execute(self._sql["mails"])
        return [(row["key"].removeprefix("mail:"), row["value"]) for row in rows]

    def exits(self, array: int) -> tuple[int, int]:
        """Return the lowest and highest exit code of the tasks of an array."""
        row = self._db.execute(self._sql["exits_of_array"], {"array": array}).fetchone()
        return int(row["lowest"] or 0), int(row["highest"] or 0)


# -- ended jobs that can leave the queue ----------------------------------------------------------


class SettledRow(NamedTuple):
    """An ended job."""

    id: int
    ended_at: float  # epoch seconds
    array: int  # 0: none
    task: int | None


class Settled:
    """Ended rows, which are deleted after they have been stored elsewhere.

    All writes require an open transaction of the store.
    """

    def __init__(
        self, db: sqlite3.Connection, statements: Mapping[str, str], many_pages: Callable[[], None]
    ) -> None:
        """`many_pages()` is called before deletions, which change many pages with few rows."""
        self._db, self._sql, self._many_pages = db, statements, many_pages

    def after(self, place: tuple[float, int], before: float, most: int) -> list[SettledRow]:
        """Return up to `most` jobs that ended until `before` (epoch seconds), in the order of (end, id).

        The first one follows `place`, an (end, id).
        """
        values = {"at": place[0], "id": place[1], "before": before, "most": most}
        rows = self._db.execute(self._sql["settled"], values)
        return [SettledRow(row[0], row[1], row[2] or 0, row[3]) for row in rows]

    def first_end(self) -> float | None:
        """Return the first end of a job in the queue (epoch seconds); None if no job has ended."""
        ended_at = self._db.execute(self._sql["first_end"]).fetchone()["ended_at"]
        return None if ended_at is None else float(ended_at)

    def is_referred_to(self, job_id: int) -> bool:
        """Tell whether other rows refer to this one as the row of their array."""
        return self._db.execute(self._sql["other_row"], {"id": job_id}).fetchone() is not None

    def material(self, job_id: int) -> tuple[str, str]:
        """Return references to the script and the environment of a job; "": it is no longer kept."""
        row = self._db.execute(self._sql["references"], {"id": job_id}).fetchone()
        return row["script"] or "", row["environment"] or ""

    def remove(self, ids: Iterable[int]) -> None:
        """Delete ended jobs with their events. The row of an array follows those of its tasks."""
        self._many_pages()
        for job_id in sorted(ids, reverse=True):
            self._db.execute(self._sql["remove_events"], {"id": job_id})
            self._db.execute(self._sql["remove_job"], {"id": job_id})


# -- submissions by their keys --------------------------------------------------------------------


_ADDED = 1000  # submissions that are found without the file


class Submissions:
    """The submissions by user and key. All writes require an open transaction."""

    def __init__(self, db: Connection, sql: Mapping[str, str]) -> None:
        self._db, self._sql = db, sql
        self._find, self._add = Statement(sql["find_submission"]), Insert(sql["add_submission"])
        self._added: dict[tuple[int, str], range] = {}  # maybe not in the file yet

    def find(self, uid: int, key: str) -> range | None:
        """Return the ids of an earlier submission with this key, or None."""
        if (uid, key) in self._added:
            return self._added[uid, key]
        if len(self._added) >= _ADDED:
            self._db.write_deferred()
            self._added.clear()
        row = self._db.execute_beside(self._find.text, (uid, key)).fetchone()
        return range(row["first"], row["first"] + row["count"]) if row else None

    def forget(self) -> None:
        """Forget the submissions of a transaction that is rolled back."""
        self._added.clear()

    def add(self, uid: int, key: str, ids: range, now: float) -> None:
        """Store a submission."""
        self._added[uid, key] = ids
        self._db.defer(self._add, [(uid, key, ids.start, len(ids), now)])

    def forget_old(self, after: tuple[int, str], before: float, most: int) -> tuple[int, str] | None:
        """Delete submissions older than `before` (epoch seconds), from (uid, key) `after` on.

        Return the last place, or None at the end.
        """
        self._added.clear()
        place = {"uid": after[0], "key": after[1], "most": most}
        rows = self._db.execute(self._sql["old_submissions"], place).fetchall()
        for row in rows:
            if row["at"] < before:
                self._db.execute(self._sql["drop_submission"], {"uid": row["uid"], "key": row["key"]})
        return (rows[-1]["uid"], rows[-1]["key"]) if len(rows) == most else None


# -- rows of an array -----------------------------------------------------------------------------


_PAGE = 100  # rows that are read at a time


class Tasks:
    """Rows of arrays: one for the pending tasks, and one for each started task, here and in the accounts.

    All writes use the open transaction of the store.
    """

    def __init__(
        self, db: sqlite3.Connection, statements: Mapping[str, str], assigned: Callable[[int], None]
    ) -> None:
        """`assigned(id)` is called when a row has been given a new job id."""
        self._db = db
        self._sql = statements
        self._assigned = assigned
        self.moved: MovedJobs = NothingMoved()

    def make(
        self, array: Job, task: int, *, is_last: bool, depends: str = "", opened_at: float = 0.0
    ) -> Job | None:
        """Give a pending task its own row; the last task takes the row of the array.

        None if the array is not pending.
        """
        opened_at = max(array.opened_at, opened_at)
        place = {"array": array.id, "task": task, "depends": depends, "opened_at": opened_at}
        cursor = self._db.execute(self._sql["keep_task" if is_last else "make_task"], place)
        if not cursor.rowcount:
            return None
        number = array.id if is_last else int(cursor.lastrowid or 0)
        if not is_last:
            self._assigned(number)
        return replace(array, id=number, task=task, depends=depends, opened_at=opened_at)

    def made(self, array: int) -> list[int]:
        """Return the indices of the tasks of an open array that have their own rows."""
        return [row["array_task"] for row in self._db.execute(self._sql["tasks_made"], {"array": array})]

    def rest(self, array: Job) -> int:
        """Return the tasks that the row of the array represents, as a bit set."""
        indices = {*self.made(array.id), *self.moved.ended(array.id)}
        return bits_of(array.request.array) & ~bits_from(indices)

    def ended(self, array: int) -> dict[int, bool]:
        """Return {index: completed} of ended tasks."""
        rows = self._db.execute(self._sql["ends_of_array"], {"array": array})
        in_queue = {row["array_task"]: row["state"] == JobState.COMPLETED.value for row in rows}
        return self.moved.ended(array) | in_queue

    def get(self, array: int, task: int) -> JobRecord | None:
        row = self._db.execute(self._sql["get_task"], {"array": array, "task": task}).fetchone()
        return past_of(row) if row else self.moved.task(array, task)

    def of(self, array: int) -> list[JobRecord]:
        """Return every row of an array; empty if there is no such array."""
        return [record for part in self.parts(array) for record in part]

    def parts(self, array: int) -> Iterator[list[JobRecord]]:
        """Yield the rows of an array by index, the row of its waiting tasks last: there may be 100,001."""
        after: float = -1
        while after < math.inf:
            place = {"array": array, "after": after, "page": _PAGE}
            rows = self._db.execute(self._sql["tasks_of_array"], place)
            in_queue = {int(row["array_task"]): past_of(row) for row in rows}
            moved = {record.job.task or 0: record for record in self.moved.of_array(array, int(after), _PAGE)}
            after = min((max(page) for page in (in_queue, moved) if len(page) == _PAGE), default=math.inf)
            both = moved | in_queue if moved else in_queue
            yield [record for task, record in sorted(both.items()) if task <= after]
        waiting = self._db.execute(self._sql["rest_of_array"], {"array": array}).fetchone()
        yield [past_of(waiting)] if waiting is not None else self.moved.rest_of(array)

    def sum(self, array: int) -> ArraySum:
        """Return the totals of an array. Raises Unreadable."""
        in_queue, moved = self.sum_of_queue(array), self.moved.sum(array)
        return _added(in_queue, moved) if moved.rows else in_queue

    def sum_of_queue(self, array: int) -> ArraySum:
        """Return the totals of the rows of an array that have not moved."""
        row = self._db.execute(self._sql["sum_of_array"], {"array": array}).fetchone()
        return ArraySum(row["count"], int(row["over"]), int(row["completed"]), row["started_at"])

    def last_submission_of(self, uid: int) -> int | None:
        """Return the id of a user's last submission, a job or an array, or None."""
        row = self._db.execute(self._sql["last_of_user"], {"uid": uid}).fetchone()
        ids = [self.moved.last_submission_of(uid), int(row["id"]) if row else None]
        return max((job_id for job_id in ids if job_id is not None), default=None)


def _added(in_queue: ArraySum, moved: ArraySum) -> ArraySum:
    """Return the totals of an array of which a part has moved."""
    has_waiting = in_queue.started_at is None and in_queue.over < in_queue.rows
    times = [array_sum.started_at for array_sum in (in_queue, moved) if array_sum.started_at is not None]
    started_at = None if has_waiting else max(times, default=None)
    return ArraySum(
        in_queue.rows + moved.rows,
        in_queue.over + moved.over,
        in_queue.completed + moved.completed,
        started_at,
    )
