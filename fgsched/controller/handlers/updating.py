"""Decide what may be changed of a job, in which state, and by whom."""

import math
from collections.abc import Sequence

from msgspec import UNSET, structs, to_builtins

from fgsched.domain.errors import NotPermitted, Refused
from fgsched.domain.job import NO_LIMIT, Job, JobState, Request, read_request
from fgsched.domain.times import format_limit
from fgsched.protocol import JobChanges
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit

_ALWAYS = {"name", "comment", "requeue"}
_UNDER_WAY = {"time_limit"}  # lowered by the owner, raised by operators
_OF_ARRAYS = {"throttle"}  # of all tasks together


def changed_fields(changes: JobChanges) -> set[str]:
    """Return the names of the fields that `changes` gives another value."""
    return {name for name, value in structs.asdict(changes).items() if value is not UNSET}


def rows_to_change(rows: Sequence[Job], changes: JobChanges, submitter: Submitter) -> list[Job]:
    """Return the rows of an array that a change is for; if there is none, the first, which refuses it."""
    allowed = [row for row in rows if _is_for(row, changes, submitter)]
    return allowed or list(rows[:1])


def _is_for(row: Job, changes: JobChanges, submitter: Submitter) -> bool:
    fields = changed_fields(changes)
    if fields <= _ALWAYS | _OF_ARRAYS:
        return not row.state.is_final
    is_for_running = fields <= _ALWAYS | _OF_ARRAYS | _UNDER_WAY and _is_under_way(row)
    return row.state is JobState.PENDING or (is_for_running and _may_limit(row, changes, submitter))


def _is_under_way(job: Job) -> bool:
    return job.state in (JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED)


def _may_limit(job: Job, changes: JobChanges, submitter: Submitter) -> bool:
    """Tell whether the submitter may set this time limit of a running job: only operators raise it."""
    if submitter.is_operator or changes.time_limit is UNSET:
        return True
    new = changes.time_limit if changes.time_limit > 0 else math.inf
    return new <= (job.request.time_limit or math.inf)


def changed_request(job: Job, changes: JobChanges, submitter: Submitter, ground: AdmissionContext) -> Request:
    """Return the job's request with the changes.

    Raises: Refused or NotPermitted for the first field that may not be changed; BadUsage for a bad value.
    """
    fields = changed_fields(changes)
    _check_fields(job, fields)
    if job.state is not JobState.PENDING and not _may_limit(job, changes, submitter):
        limit = format_limit(job.request.time_limit)
        raise NotPermitted(
            f"job {job.id} is under way with a time limit of {limit}: only an operator may raise it",
            "Give a shorter one, or ask an operator.",
        )
    record = to_builtins(job.request) | to_builtins(structs.replace(changes, demand=UNSET))
    if changes.demand is not UNSET:
        record |= {"demand": to_builtins(job.request.demand) | to_builtins(changes.demand)}
    request = read_request(record)
    if job.state is not JobState.PENDING or fields <= _ALWAYS:
        return structs.replace(request, time_limit=max(0, request.time_limit))
    return admit(structs.replace(request, time_limit=request.time_limit or NO_LIMIT), submitter, ground)


def _check_fields(job: Job, fields: set[str]) -> None:
    """Refuse a field that cannot be changed in the job's state."""
    if job.state.is_final or job.state is JobState.COMPLETING:
        raise Refused(f"job {job.id} is already completing or completed", "Only open jobs can be changed.")
    if fields & _OF_ARRAYS and not job.array:
        raise Refused(f"job {job.id} is no array", "Only arrays have a limit of tasks that run.")
    late = sorted(fields - _ALWAYS - _OF_ARRAYS - _UNDER_WAY)
    if late and job.state is not JobState.PENDING:
        raise Refused(
            f"job {job.id} is no longer pending: {late[0]} stays",
            "Its name, comment and time limit can change.",
        )
