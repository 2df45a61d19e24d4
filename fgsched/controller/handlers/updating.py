"""What may be changed of a job, in which state."""

import math
from collections.abc import Sequence
from typing import Any

from fgsched.domain.errors import BadUsage, NotPermitted, Refused
from fgsched.domain.job import NO_LIMIT, Job, JobState, Request
from fgsched.domain.text import quoted
from fgsched.domain.times import format_limit
from fgsched.jobs.records import from_record, to_record
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit

_ALWAYS = {"name", "comment", "requeue"}
_WHILE_PENDING = {
    *("demand", "time_limit", "output", "error", "partition", "account", "qos", "nice"),
    *("dependency", "begin", "deadline", "gpu_compute", "reservation"),
}
_UNDER_WAY = {"time_limit"}  # lowered by the owner, raised by operators
_OF_ARRAYS = {"throttle"}  # of all its tasks together


def touched(rows: Sequence[Job], changes: dict[str, Any], submitter: Submitter) -> list[Job]:
    """Those of an array's rows that a change concerns: all that wait, and those under way where it may."""
    allowed = [row for row in rows if _concerns(row, changes, submitter)]
    return allowed or list(rows[:1])


def _concerns(row: Job, changes: dict[str, Any], submitter: Submitter) -> bool:
    if set(changes) <= _ALWAYS | _OF_ARRAYS:
        return not row.state.is_final
    is_for_all = set(changes) <= _ALWAYS | _OF_ARRAYS | _UNDER_WAY and _is_under_way(row)
    return row.state is JobState.PENDING or (is_for_all and _may_limit(row, changes, submitter))


def _is_under_way(job: Job) -> bool:
    return job.state in (JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED)


def _may_limit(job: Job, changes: dict[str, Any], submitter: Submitter) -> bool:
    """Whether the time limit of a job under way may become so: a longer one is an operator's to give."""
    old, new = job.request.time_limit or math.inf, changes.get("time_limit")
    return submitter.is_operator or type(new) is not int or (new if new > 0 else math.inf) <= old


def updated(job: Job, changes: dict[str, Any], submitter: Submitter, ground: AdmissionContext) -> Request:
    """The job's new request; refuses the whole change for the first field that may not be changed."""
    if job.state.is_final or job.state is JobState.COMPLETING:
        raise Refused(f"job {job.id} is already completing or completed", "Only open jobs can be changed.")
    for name in changes:
        if name in _OF_ARRAYS and job.array:
            continue
        if name in _OF_ARRAYS:
            raise Refused(f"job {job.id} is no array", "Only arrays have a limit of tasks that run.")
        if name not in _ALWAYS | _WHILE_PENDING:
            raise BadUsage(f"update: {quoted(str(name))} cannot be changed", "fgctl(1) lists what can.")
        if name not in _ALWAYS | _UNDER_WAY and job.state is not JobState.PENDING:
            raise Refused(
                f"job {job.id} is no longer pending: {name} stays",
                "Its name, comment and time limit can change.",
            )
    if job.state is not JobState.PENDING and not _may_limit(job, changes, submitter):
        limit = format_limit(job.request.time_limit)
        raise NotPermitted(
            f"job {job.id} is under way with a time limit of {limit}: only an operator may raise it",
            "Give a shorter one, or ask an operator.",
        )
    if job.state is not JobState.PENDING or not changes.keys() - _ALWAYS:
        if changes.get("time_limit") == NO_LIMIT:
            changes = changes | {"time_limit": 0}
        return from_record(to_record(job.request) | changes)
    record = to_record(job.request)
    if "demand" in changes and isinstance(changes["demand"], dict):
        changes = changes | {"demand": record.get("demand", {}) | changes["demand"]}
    record |= changes
    request = from_record(record | {"time_limit": record.get("time_limit") or NO_LIMIT})
    return admit(request, submitter, ground)
