"""Rows of the store <-> the words of the model."""

import json
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct

from fgsched.domain.job import Ended, Hold, Job, JobState, PostMortem, Preemption, Reason, Request
from fgsched.jobs.records import parse_record


class Allocation(NamedTuple):
    """What a job was given of one card, as it was then."""

    gpu: int
    uuid: str
    model: str
    share: int
    memory: int
    charged: int  # ten-thousandths: the larger of the share and the share of the bytes

    @property
    def hold(self) -> Hold:
        return Hold(gpu=self.gpu, share=self.share, memory=self.memory)


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """One submission, as it is written down."""

    request: Request
    script: bytes
    environment: bytes  # NAME=value, each ended by NUL
    held: str = ""

    def job(self, number: int, who: tuple[int, int, str], now: float) -> Job:
        """The job that it becomes, of (uid, gid, user name)."""
        return Job(
            id=number,
            uid=who[0],
            gid=who[1],
            user=who[2],
            request=self.request,
            submitted_at=now,
            held=self.held,
            array=number if self.request.array else 0,
            depends=self.request.dependency,
        )


class JobRecord(Struct, frozen=True, gc=False):
    """A job with what it was given, as accounting shows it."""

    job: Job
    allocated: tuple[Allocation, ...]
    damage: str = ""  # the columns of its row that cannot be read, and why; "": none


Row = sqlite3.Row | dict[str, Any]


def past_of(row: Row, holds: tuple[Hold, ...] = ()) -> JobRecord:
    """Return the job in a row of the table job; columns that cannot be read have defaults, and are named.

    A column cannot be read either if its value breaks a rule of the schema: the row could not be changed.
    """
    try:
        past = JobRecord(job_of(row, holds), allocations(row))
    except Exception as error:  # whatever a damaged column leads to concerns this job alone
        return _salvaged(dict(row), holds, error)
    if _breaks_rules(row, past.job) or (holds and past.job.state.is_final):
        return _salvaged(dict(row), holds, ValueError("columns contradict each other"))
    return past


_MOST = 10**7  # attempts, slots, restarts or tasks that a job can have
_UNDER_WAY = {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING}


def _breaks_rules(row: Row, job: Job) -> bool:
    """Whether a row breaks a CHECK of schema.sql or has an absurd number, as only damage can make it.

    Memory is laid out by slots and tasks: an absurd one would take all that the host has.
    """
    counts = (job.attempt, job.slot, job.restarts, job.failures, job.task or 0)
    return (
        job.held not in ("", "user", "admin")
        or job.wish not in ("", "requeue")
        or min(job.uid, job.gid, job.suspended, *counts) < 0
        or max(counts) > _MOST
        or max(job.uid, job.gid) >= 2**32
        or row["lost"] not in (0, 1)
        or row["relimited"] not in (0, 1)
        or (job.state in _UNDER_WAY and not (job.attempt and job.boot and job.started_at is not None))
        or (row["ended_at"] is not None) is not job.state.is_final
        or (job.suspended_at is not None) is not (job.state is JobState.SUSPENDED)
        or (job.state in _UNDER_WAY and row["gpus"] != 0 and not row["allocated"])
        or _breaks_array_rules(row)
    )


def _breaks_array_rules(row: Row) -> bool:
    """Return whether a row has a task and no array, or stands for the tasks of an array and was started."""
    array, task = row["array_job"], row["array_task"]
    if array is None or task is not None:
        return array is None and task is not None
    return bool(array != row["id"] or row["attempt"])


def _salvaged(row: dict[str, Any], holds: tuple[Hold, ...], error: Exception) -> JobRecord:
    """Each column is tried by itself, in a row that is otherwise sound."""
    sound = _SOUND | {"id": row["id"], "request": json.dumps({"name": str(row["name"])[:255]})}
    damage = []
    for column in sound.keys() - {"id", *_TOGETHER, *_ARRAY}:
        why = _why_unreadable(sound | {column: row[column]})
        if why:
            damage.append(f"{column}: {why}")
            row[column] = sound[column]
    together = {column: row[column] for column in _TOGETHER}
    why = _why_unreadable(sound | together)
    if not why and holds and row["ended_at"] is not None:
        why = "it is over and holds a card"
    if why:
        damage.append(f"state: {why}")
        row |= _likely(row, holds)
    if _breaks_array_rules(row) or _why_unreadable(sound | {column: row[column] for column in _ARRAY}):
        damage.append("array_job: it breaks a rule of the queue")
        row |= {"array_job": None, "array_task": None}
    told = "; ".join(sorted(damage)) or f"{type(error).__name__}: {error}"
    try:
        return JobRecord(job_of(row, holds), allocations(row), damage=told)
    except Exception:  # columns that do not go together
        kept = {column: row[column] for column in ("uid", "gid", "attempt", "boot", "state")}
        return JobRecord(job_of(sound | kept, holds), (), damage=told)


def _why_unreadable(row: dict[str, Any]) -> str:
    try:
        job = job_of(row)
        allocations(row)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "it breaks a rule of the queue" if _breaks_rules(row, job) else ""


_ARRAY = ("array_job", "array_task")
_TOGETHER = (
    "state",
    "attempt",
    "boot",
    "started_at",
    "ended_at",
    "suspended_at",
)  # that rules compare


def _likely(row: dict[str, Any], holds: tuple[Hold, ...]) -> dict[str, Any]:
    """Return the probable state of a job whose state cannot be read: a job that was started may still run.

    A job that holds a part of a card was started and is not over.
    """
    attempt, boot = row["attempt"], row["boot"]
    if row["ended_at"] is not None and not holds:
        return {"state": "FAILED", "attempt": max(0, attempt), "suspended_at": None}
    open_row = {"ended_at": None, "suspended_at": None}
    if attempt > 0 and boot:
        return open_row | {"state": "RUNNING", "started_at": row["started_at"] or 0.0}
    return open_row | {"state": "PENDING", "attempt": max(0, attempt)}


_SOUND: dict[str, Any] = {
    **{"id": 0, "uid": 0, "gid": 0, "user": "?", "name": "?", "request": '{"name": "?"}', "gpus": 0},
    **{"state": "PENDING", "submitted_at": 0.0, "opened_at": 0.0, "reason": "None", "held": ""},
    **{"attempt": 0, "slot": 0},
    **{"partition": "", "resources": "", "boot": "", "tier": "none", "mounts": "", "cpus": ""},
    **{"allocated": "", "started_at": 0.0, "ended_at": None, "cancelled_by": None, "outcome": None},
    **{"status": None, "cpu_seconds": 0.0, "max_rss": 0, "gpu_peak": 0, "refusals": 0, "post_mortem": ""},
    **{"warning": "", "condemned": "None", "detail": "", "lost": 0, "array_job": None, "array_task": None},
    **{"restarts": 0, "failures": 0, "not_before": 0.0, "note": "", "wish": "", "depends": ""},
    **{"suspended_at": None, "suspended": 0.0, "relimited": 0, "eviction": ""},
}


_request = lru_cache(maxsize=4096)(parse_record)  # arrays of equal jobs have equal texts


def fresh_past_of(row: Sequence[Any]) -> JobRecord | None:
    """The job in a row of fresh_jobs, at a quarter of the price; None where it cannot be read."""
    number, uid, gid, user, request, submitted_at = row
    try:
        job = _waiting(uid, gid, user).changed(
            id=number, request=_request(request), submitted_at=submitted_at
        )
    except Exception:  # whatever a damaged column leads to: `past_of` says what it is
        return None
    return JobRecord(job, ())


@lru_cache(maxsize=256)
def _waiting(uid: int, gid: int, user: str) -> Job:
    if not (0 <= uid < 2**32 and 0 <= gid < 2**32):
        raise ValueError("absurd")
    return Job(id=0, uid=uid, gid=gid, user=user, request=Request(name=""), submitted_at=0.0)


_AS_THEY_ARE = ("restarts", "failures", "not_before", "opened_at", "wish", "note")


def job_of(row: Row, holds: tuple[Hold, ...] = ()) -> Job:
    """The job in a row of the table job."""
    return Job(
        id=row["id"],
        uid=row["uid"],
        gid=row["gid"],
        user=row["user"],
        request=_request(row["request"]),
        submitted_at=row["submitted_at"],
        state=JobState(row["state"]),
        reason=Reason(row["reason"]),
        held=row["held"],
        attempt=row["attempt"],
        holds=holds,
        partition=row["partition"] if row["started_at"] is not None else "",
        resources=_resources(row["resources"]) if row["started_at"] is not None else (),
        slot=row["slot"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        boot=row["boot"],
        cancelled_by=row["cancelled_by"],
        ended=_ended(row),
        outcome=JobState(row["outcome"]) if row["outcome"] else None,
        tier=row["tier"],
        mounts=row["mounts"],
        cpus=row["cpus"],
        supervisor_lost=bool(row["lost"]),
        warning=row["warning"],
        post_mortem=_post_mortem(row["post_mortem"]),
        condemned=Reason(row["condemned"]),
        array=row["array_job"] or 0,
        task=row["array_task"],
        **{name: row[name] for name in _AS_THEY_ARE},
        depends=row["depends"],
        **{name: row[name] for name in ("suspended_at", "suspended")},
        preemption=_preemption(row["eviction"]),
        relimited=bool(row["relimited"]),
    )


def _resources(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(indices)) for name, indices in json.loads(text)) if text else ()


def _ended(row: Row) -> Ended | None:
    if row["ended_at"] is None and row["status"] is None:
        return None
    return Ended(
        status=row["status"] or 0,
        cpu_seconds=row["cpu_seconds"],
        max_rss=row["max_rss"],
        gpu_peak=row["gpu_peak"],
        refusals=row["refusals"],
        detail=row["detail"],
    )


def _post_mortem(text: str) -> PostMortem | None:
    if not text:
        return None
    gpu, asked, held, limit, jobs, strangers = json.loads(text)
    others = tuple((job, size) for job, size in jobs)
    return PostMortem(gpu=gpu, asked=asked, held=held, limit=limit, jobs=others, strangers=strangers)


def _preemption(text: str) -> Preemption | None:
    if not text:
        return None
    by, at, mode, attempt, grace, until = json.loads(text)
    return Preemption(by=by, at=at, mode=mode, attempt=attempt, grace=grace, until=until)


def _preemption_text(found: Preemption | None) -> str:
    if found is None:
        return ""
    return json.dumps([found.by, found.at, found.mode, found.attempt, found.grace, found.until])


def _post_mortem_text(found: PostMortem | None) -> str:
    if found is None:
        return ""
    return json.dumps([found.gpu, found.asked, found.held, found.limit, found.jobs, found.strangers])


def allocations(row: Row) -> tuple[Allocation, ...]:
    text = row["allocated"]
    return tuple(Allocation(*entry) for entry in json.loads(text)) if text else ()


@lru_cache(maxsize=256)
def allocated_text(allocated: tuple[Allocation, ...]) -> str:
    """Jobs that are given the same part of a card, one after the other, have equal texts."""
    return json.dumps([[a.gpu, a.uuid, a.model, a.share, a.memory, a.charged] for a in allocated])


def fixed_columns_of(job: Job, allocated: Sequence[Allocation]) -> dict[str, Any]:
    """Return the columns that repair_job writes: those that no step of a job changes after its start."""
    return {
        "id": job.id,
        "uid": job.uid,
        "gid": job.gid,
        "slot": job.slot,
        "array_job": job.array or None,
        "array_task": job.task,
        "allocated": allocated_text(tuple(allocated)) if allocated else "",
        "is_started": job.state.holds,
    }


def columns_of(job: Job) -> dict[str, Any]:
    """What save_job writes of a job."""
    ended = job.ended or Ended(status=0)
    return {
        "id": job.id,
        "state": job.state.word,
        "reason": job.reason.word,
        "held": job.held,
        "attempt": job.attempt,
        "boot": job.boot,
        "tier": job.tier,
        "started_at": job.started_at,
        "ended_at": job.ended_at if job.state.is_final else None,
        "cancelled_by": job.cancelled_by,
        "outcome": job.outcome.word if job.outcome else None,
        "status": ended.status if job.ended else None,
        "cpu_seconds": ended.cpu_seconds,
        "max_rss": ended.max_rss,
        "gpu_peak": ended.gpu_peak,
        "refusals": ended.refusals,
        "post_mortem": _post_mortem_text(job.post_mortem),
        "warning": job.warning,
        "condemned": job.condemned.word,
        "detail": ended.detail,
        "lost": int(job.supervisor_lost),
        "restarts": job.restarts,
        "failures": job.failures,
        "not_before": job.not_before,
        "opened_at": job.opened_at,
        "wish": job.wish,
        "note": job.note,
        "depends": job.depends,
        "suspended_at": job.suspended_at,
        "suspended": job.suspended,
        "eviction": _preemption_text(job.preemption),
        "relimited": int(job.relimited),
    }
