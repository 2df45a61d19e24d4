"""What may be changed of a job, in which state."""

from collections.abc import Sequence
from typing import Any

from fgsched.deciding.admission import Asker, Ground, admit
from fgsched.errors import BadUsage, Refused
from fgsched.jobs.records import from_record, to_record
from fgsched.model import NO_LIMIT, Job, JobState, Request
from fgsched.values import quoted

_ALWAYS = {"name", "comment", "requeue"}
_WHILE_PENDING = {
    *("demand", "time_limit", "output", "error", "partition", "account", "qos", "nice"),
    *("dependency", "begin", "deadline", "gpu_compute", "reservation"),
}
_OF_ARRAYS = {"throttle"}  # of all its tasks together


def touched(rows: Sequence[Job], changes: dict[str, Any]) -> list[Job]:
    """Those of an array's rows that a change concerns: all if it may, else those that wait."""
    if set(changes) <= _ALWAYS | _OF_ARRAYS:
        return [row for row in rows if not row.state.is_final] or list(rows[:1])
    return [row for row in rows if row.state is JobState.PENDING] or list(rows[:1])


def updated(job: Job, changes: dict[str, Any], asker: Asker, ground: Ground) -> Request:
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
        if name not in _ALWAYS and job.state is not JobState.PENDING:
            raise Refused(
                f"job {job.id} is no longer pending: {name} stays", "Its name and comment can change."
            )
    if not changes.keys() - _ALWAYS:
        return from_record(to_record(job.request) | changes)
    record = to_record(job.request)
    if "demand" in changes and isinstance(changes["demand"], dict):
        changes = changes | {"demand": record.get("demand", {}) | changes["demand"]}
    record |= changes
    request = from_record(record | {"time_limit": record.get("time_limit") or NO_LIMIT})
    return admit(request, asker, ground)
