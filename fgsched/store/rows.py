"""Rows of the table `job` <-> the records of the domain. Unreadable columns of a row get defaults."""

import json
import math
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import Ended, Hold, Job, JobUsage, Request
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import storable
from fgsched.store.schema import DEFAULTS, EMPTY_ROW, OF_END, OF_JOB, SAVED, STARTED, SUBMITTED, StoredColumn

_MOST = 10**7  # attempts, slots, restarts or tasks that a job can have


class GpuAllocation(NamedTuple):
    """The part of one GPU that was allocated to a job, with the GPU's data. Stored as a JSON array."""

    gpu: int  # index
    uuid: str
    model: str
    share: int  # ten-thousandths
    memory: int  # bytes
    charged: int  # ten-thousandths: the larger of the share and the part of the GPU's memory

    @property
    def hold(self) -> Hold:
        return Hold(gpu=self.gpu, share=self.share, memory=self.memory)


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """One job to be submitted."""

    request: Request
    script: bytes
    environment: bytes  # NAME=value, each ended by NUL
    held: str = ""
    reason: Reason = Reason.NONE
    not_before: float = 0.0  # seconds since the epoch
    links: int = 0

    def job(self, number: int, submitter: tuple[int, int, str], now: float) -> Job:
        """Return the job with the id `number`, of `submitter`: (uid, gid, user name)."""
        return Job(
            id=number,
            uid=submitter[0],
            gid=submitter[1],
            user=submitter[2],
            request=self.request,
            submitted_at=now,
            held=self.held,
            reason=self.reason,
            not_before=self.not_before,
            links=self.links,
            array=number if self.request.array else 0,
            depends=self.request.dependency,
        )


class JobRecord(Struct, frozen=True, gc=False):
    """A job with its allocations, for accounting."""

    job: Job
    allocated: tuple[GpuAllocation, ...]
    damage: str = ""  # the columns of the row that cannot be read, and why; "": none
    usage: JobUsage | None = None  # sums of samples; None: none, or not read


Row = sqlite3.Row | dict[str, Any]


# -- reading -----------------------------------------------------------------------------------------


def past_of(row: Row, holds: tuple[Hold, ...] = ()) -> JobRecord:
    """Return the job in a row. Columns that cannot be read get defaults and are named in `damage`.

    A value that breaks a rule of the schema counts as unreadable: the row could not be changed otherwise.
    """
    try:
        record = JobRecord(job_of(row, holds), allocations(row))
    except Exception as error:  # the effect of a damaged column is confined to this job
        return _salvage(dict(row), holds, error)
    if _breaks_rules(row, record.job) or (holds and record.job.state.is_final):
        return _salvage(dict(row), holds, ValueError("columns contradict each other"))
    return record


_PLAIN = [(stored_column.field, stored_column.name) for stored_column in OF_JOB if stored_column.read is None]
_CODED = [
    (stored_column.field, stored_column.name, stored_column.read)
    for stored_column in OF_JOB
    if stored_column.read is not None
]


def job_of(row: Row, holds: tuple[Hold, ...] = ()) -> Job:
    """Return the job in a row. Raises whatever a damaged column leads to."""
    values = {field: row[name] for field, name in _PLAIN}
    is_started = values["started_at"] is not None
    for field, name, read in _CODED:
        if is_started or field != "resources":
            values[field] = read(row[name])
    if values["ended_at"] is None and values["state"].holds:
        values["ended_at"] = row["cleaning_since"]
    if not is_started:  # the column has the requested partitions
        values["partition"] = ""
    return Job(request=_request(row["request"]), holds=holds, ended=_ended(row), **values)


def _ended(row: Row) -> Ended | None:
    if row["ended_at"] is None and row["status"] is None:
        return None
    return Ended(
        **{stored_column.field: _read(stored_column, row[stored_column.name]) for stored_column in OF_END}
    )


def _read(column: StoredColumn, value: Any) -> Any:
    return value if column.read is None else column.read(value)


def allocations(row: Row) -> tuple[GpuAllocation, ...]:
    """Return the allocations of the job in a row. Raises ValueError or TypeError if they are damaged."""
    text = row["allocated"]
    return msgspec.convert(json.loads(text), tuple[GpuAllocation, ...]) if text else ()


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Request).decode


def request_text(request: Request) -> str:
    """Return a request as JSON.

    Bytes of paths that are not UTF-8 are lone surrogates in Python. msgspec refuses them; the json module
    escapes them.
    """
    try:
        return _encode(request).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(request))


def parse_request(text: str) -> Request:
    """Return the request in a JSON text. Raises ValueError or msgspec.ValidationError."""
    try:
        request = _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):  # lone surrogates, or damage
        request = msgspec.convert(json.loads(text), Request)
    alike = _shared(replace(request, name="", submit_line="", comment=""))
    return replace(alike, name=request.name, submit_line=request.submit_line, comment=request.comment)


@lru_cache(maxsize=4096)
def _shared(request: Request) -> Request:
    """Return the first of equal requests, so that alike jobs share the values of their fields in memory."""
    return request


_request = lru_cache(maxsize=4096)(parse_request)  # arrays of equal jobs have equal texts


# -- jobs that are pending as submitted: most jobs of a long queue -------------------------------------


def fresh_past_of(
    number: int, uid: int, gid: int, user: str, request: str, submitted_at: float
) -> JobRecord | None:
    """Return a job as submitted at a fifth of the cost of `past_of`; None: its row is damaged."""
    try:
        job = _waiting(uid, gid, user).changed(
            id=number, request=_request(request), submitted_at=submitted_at
        )
        is_sound = 0.0 <= submitted_at < _LATEST
    except Exception:  # `past_of` names the damage
        return None
    return JobRecord(job, ()) if is_sound else None


_LATEST = 2.0**40  # seconds since the epoch


@lru_cache(maxsize=256)
def _waiting(uid: int, gid: int, user: str) -> Job:
    if not (0 <= uid < 2**32 and 0 <= gid < 2**32):
        raise ValueError("absurd")
    return Job(id=0, uid=uid, gid=gid, user=user, request=Request(name=""), submitted_at=0.0)


# -- damaged rows ------------------------------------------------------------------------------------


def _breaks_rules(row: Row, job: Job) -> bool:
    """Tell whether a row violates a CHECK of schema.sql or has an absurd number, which only damage can cause.

    Memory is allocated by slots and tasks: an absurd number would take all memory of the host.
    """
    counts = (job.attempt, job.slot, job.restarts, job.failures, job.repeats, job.links, job.task or 0)
    return (
        job.held not in ("", "user", "admin")
        or job.wish not in ("", "requeue")
        or min(job.uid, job.gid, job.suspended, *counts) < 0
        or max(counts) > _MOST
        or max(job.uid, job.gid) >= 2**32
        or not math.isfinite(_sum_of_times(job))
        or row["lost"] not in (0, 1)
        or row["relimited"] not in (0, 1)
        or (job.state.holds and not (job.attempt and job.boot and job.started_at is not None))
        or (row["ended_at"] is not None) is not job.state.is_final
        or (job.suspended_at is not None) is not (job.state is JobState.SUSPENDED)
        or (job.state.holds and row["gpus"] != 0 and not row["allocated"])
        or _breaks_array_rules(row)
    )


def _sum_of_times(job: Job) -> float:
    """Return a sum that is finite if each time of a job is."""
    times = (job.started_at, job.suspended_at, job.ended_at, job.ended and job.ended.cpu_seconds)
    return job.submitted_at + job.not_before + job.opened_at + job.suspended + sum(at or 0.0 for at in times)


def _breaks_array_rules(row: Row) -> bool:
    """Return whether a row has a task and no array, or represents the tasks of an array and was started."""
    array, task = row["array_job"], row["array_task"]
    if array is None or task is not None:
        return array is None and task is not None
    return bool(array != row["id"] or row["attempt"])


_ARRAY = ("array_job", "array_task")
_COMPARED = ("state", "attempt", "boot", "started_at", "ended_at", "suspended_at")  # by rules with each other
_DEFAULTS: dict[str, Any] = DEFAULTS | {
    **{"uid": 0, "gid": 0, "user": "?", "submitted_at": 0.0, "started_at": 0.0},
    **{"name": "?", "request": '{"name": "?"}', "gpus": 0, "allocated": ""},
}


def _salvage(row: dict[str, Any], holds: tuple[Hold, ...], error: Exception) -> JobRecord:
    """Read each column alone in a row of defaults, and keep the readable columns."""
    sound = _DEFAULTS | {"id": row["id"], "request": _named(row["name"])}
    damage = []
    for column in sound.keys() - {"id", *_COMPARED, *_ARRAY}:
        why = _why_unreadable(sound | {column: row[column]})
        if why:
            damage.append(f"{column}: {why}")
            row[column] = sound[column]
    why = _why_unreadable(sound | {column: row[column] for column in _COMPARED})
    if not why and holds and row["ended_at"] is not None:
        why = "it has ended and holds a GPU"
    if why:
        damage.append(f"state: {why}")
        row |= _likely_state(row, holds)
    if _breaks_array_rules(row) or _why_unreadable(sound | {column: row[column] for column in _ARRAY}):
        damage.append("array_job: it breaks a rule of the queue")
        row |= {"array_job": None, "array_task": None}
    damages = "; ".join(sorted(damage)) or f"{type(error).__name__}: {error}"
    try:
        return JobRecord(job_of(row, holds), allocations(row), damage=damages)
    except Exception:  # inconsistent columns
        readable = {column: row[column] for column in ("uid", "gid", "attempt", "boot", "state")}
        return JobRecord(job_of(sound | readable, holds), (), damage=damages)


def _named(name: object) -> str:
    """Return a request, as JSON, that has only a name: this one, or "?" if it cannot be used."""
    text = json.dumps({"name": str(name)[:255]})
    try:
        _request(text)
    except Exception:
        return '{"name": "?"}'
    return text


def _why_unreadable(row: dict[str, Any]) -> str:
    try:
        job = job_of(row)
        allocations(row)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "it breaks a rule of the queue" if _breaks_rules(row, job) else ""


def _likely_state(row: dict[str, Any], holds: tuple[Hold, ...]) -> dict[str, Any]:
    """Return the probable state of a job whose state cannot be read: a job that was started may still run.

    A job that holds a part of a GPU was started and is not over.
    """
    attempt, boot = row["attempt"], row["boot"]
    if row["ended_at"] is not None and not holds:
        return {"state": "FAILED", "attempt": max(0, attempt), "suspended_at": None}
    open_row = {"ended_at": None, "suspended_at": None}
    if attempt > 0 and boot:
        return open_row | {"state": "RUNNING", "started_at": row["started_at"] or 0.0}
    return open_row | {"state": "PENDING", "attempt": max(0, attempt)}


# -- writing -----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def allocated_text(allocated: tuple[GpuAllocation, ...]) -> str:
    """Return the allocations of a job as JSON. Consecutive jobs with equal allocations share one text."""
    return json.dumps([list(gpu_allocation) for gpu_allocation in allocated])


class _Writer:
    """Converts the fields of a record to columns. Fields without a codec are fetched together."""

    def __init__(self, columns: Sequence[StoredColumn]) -> None:
        unconverted = [column for column in columns if column.write is None]
        self._names = tuple(stored_column.name for stored_column in unconverted)
        self._values = attrgetter(*(stored_column.path for stored_column in unconverted))
        self._coded = [
            (column.name, column.path, column.write) for column in columns if column.write is not None
        ]

    def row(self, record: Struct) -> dict[str, Any]:
        row = dict(zip(self._names, self._values(record), strict=True))
        for name, path, write in self._coded:
            row[name] = write(getattr(record, path))
        return row


_job_row, _end_row = _Writer(SAVED).row, _Writer(OF_END).row
_submitted_row, _started_row, _whole_row = _Writer(SUBMITTED).row, _Writer(STARTED).row, _Writer(OF_JOB).row
_NO_END = _end_row(Ended(status=0)) | {"status": None}


def submitted_columns_of(job: Job) -> dict[str, Any]:
    """Return the columns that add_job writes and that equal jobs of a submission share."""
    row = _submitted_row(job)
    row["user"] = storable(job.user)
    return row | request_columns_of(job.request)


def request_columns_of(request: Request) -> dict[str, Any]:
    """Return the columns that change_request writes."""
    return {
        "name": storable(request.name),
        "partition": request.partition,
        "request": request_text(request),
        "gpus": request.demand.gpus,
    }


def started_columns_of(job: Job, allocated: tuple[GpuAllocation, ...]) -> dict[str, Any]:
    """Return the columns that start_job writes."""
    partition = job.partition or job.request.partition
    text = allocated_text(allocated)
    return _started_row(job) | {"id": job.id, "partition": partition, "allocated": text}


def fixed_columns_of(job: Job, allocated: Sequence[GpuAllocation]) -> dict[str, Any]:
    """Return the columns that repair_job writes: no step of a job changes them after its start."""
    text = allocated_text(tuple(allocated)) if allocated else ""
    return _whole_row(job) | {"allocated": text, "is_started": job.state.holds}


def row_of(record: JobRecord) -> dict[str, Any]:
    """Return the columns of a job that differ from their defaults, except `script` and `environment`."""
    row = _columns_of_record(record)
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in row.items()
        if name not in EMPTY_ROW or value != EMPTY_ROW[name]
    }


def record_of(row: dict[str, Any]) -> JobRecord:
    """Return the ended job of a row that `row_of` returned."""
    return past_of(EMPTY_ROW | row)


def _columns_of_record(record: JobRecord) -> dict[str, Any]:
    job = record.job
    row: dict[str, Any] = _whole_row(job) | (_NO_END if job.ended is None else _end_row(job.ended))
    row |= request_columns_of(job.request)
    return row | {
        "partition": job.partition or job.request.partition,
        "allocated": allocated_text(record.allocated) if record.allocated else "",
        "cleaning_since": _cleaning_since(job),
    }


def _cleaning_since(job: Job) -> float | None:
    return job.ended_at if job.state is JobState.COMPLETING else None


def columns_of(job: Job) -> dict[str, Any]:
    """Return the columns that save_job writes."""
    row: dict[str, Any] = _job_row(job) | (_NO_END if job.ended is None else _end_row(job.ended))
    row["id"] = job.id
    row["cleaning_since"] = _cleaning_since(job)
    if not job.state.is_final:
        row["ended_at"] = None
    return row


class ArraySum(Struct, frozen=True):
    """Totals of the rows of an array."""

    rows: int
    over: int
    completed: int
    started_at: float | None  # when the last of them was, once all were
