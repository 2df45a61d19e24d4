"""Show reasons, remedies and expected starts of pending jobs: fgq --why and --start, fgsub --test-only."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from fgsched import protocol
from fgsched.cli.command import write
from fgsched.cli.terminal import wrapped
from fgsched.client import Client
from fgsched.domain.job import Hold
from fgsched.domain.states import JobState
from fgsched.domain.units import format_indices, format_share
from fgsched.domain.waiting import Advice, Blocker, ExpectedStart, Explanation, Trial
from fgsched.views import wording
from fgsched.views.display import shown_time

_UNKNOWN = ExpectedStart()


def add_starts(client: Client, jobs: Iterable[protocol.JobInfo]) -> None:
    """Fill in the starts of jobs, of pending ones the expected starts."""
    jobs = list(jobs)
    is_asked = any(job.state is JobState.PENDING for job in jobs)
    starts = dict(client.call(protocol.ListStarts()).starts) if is_asked else {}
    for job in jobs:
        expected_start = starts.get(job.id, _UNKNOWN)
        job.starts_at = expected_start.at if job.started_at is None else job.started_at
        job.likely, job.known = expected_start.likely, _known(expected_start)


def _known(start: ExpectedStart) -> str:
    """Format the number of jobs ahead with earlier runs: '3/4'."""
    return f"{start.known}/{start.before}" if start.before else "-"


def show_why(client: Client, names: Sequence[protocol.Reference] | None, *, as_json: bool) -> None:
    """Print all blockers of the named jobs, or of the caller's pending jobs."""
    answer = client.call(protocol.ExplainJobs(ids=names))
    if as_json:
        write(json.dumps({"jobs": [_document(job) for job in answer.jobs]}, indent=1) + "\n")
        return
    texts = ["\n".join(wrapped(explained(job))) + "\n" for job in answer.jobs]
    write("\n".join(texts) if texts else "You have no pending jobs.\n")
    if answer.left_out:
        write(f"\n… and {answer.left_out} more; name the jobs that you ask about.\n")


def _document(job: Explanation) -> dict[str, Any]:
    """Return an explanation for programs: sentences as text, and the same facts as data."""
    return {
        "id": job.id,
        "called": job.called,
        "name": job.name,
        "user": job.user,
        "state": job.state.value,
        "reason": job.reason.value,
        "blockers": [_blocker(blocker, job) for blocker in job.blockers],
        "advice": [_advice(advice) for advice in job.advice],
        "notes": [wording.note(note) for note in job.notes],
        "preemption": to_builtins(job.notes),
        "start": None if job.start is None else asdict(job.start),
    }


def _blocker(blocker: Blocker, job: Explanation) -> dict[str, Any]:
    return {
        "reason": blocker.cause.reason.value,
        "text": wording.why(blocker.cause),
        "lifted": wording.remedy(blocker, job.called),
        "at": blocker.lift.at,
        "jobs": list(blocker.lift.jobs),
        "partition": blocker.partition,
        "cause": to_builtins(blocker.cause),
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "text": wording.advised(advice),
        "option": advice.option,
        "value": wording.requested(advice)[0],
        "update": wording.update_word(advice),
        "gpus": list(advice.gpus),
        "before": advice.before,
        "after": advice.after,
    }


def explained(job: Explanation) -> list[str]:
    """Return the lines that explain why a job is pending."""
    title = f"Job {job.called} ({job.name}, {job.user})"
    notes = [f"  {wording.note(note)}" for note in job.notes]
    if job.state is not JobState.PENDING:
        return [f"{title} is not pending: it is {job.state.value}.", *notes]
    if not job.blockers:
        return [f"{title} is not blocked: it starts now."]
    lines = [f"{title} waits: {job.reason.value}", *notes]
    lines += _blocker_lines(job.blockers, job.called)
    lines += [f"  {line}" for line in wording.starts(job.start)]
    if job.start is None and wording.is_in_queue(job.reason):
        unknown = wording.unknown_start(job.blockers, is_behind_too_many=job.is_behind_too_many)
        lines.append(f"  {unknown}")
    for advice in job.advice:
        change = f"fgctl update job={job.called} {wording.update_word(advice)}"
        lines += [f"  {wording.advised(advice)}:", f"    {change}"]
    return lines


def _blocker_lines(blockers: Sequence[Blocker], called: int | str) -> list[str]:
    """Return a line for each blocker, and one for its remedy."""
    lines = []
    for blocker in blockers:
        lines.append(f"  {wording.why(blocker.cause) or blocker.cause.reason.value}")
        if remedy := wording.remedy(blocker, called):
            lines.append(f"    lifted {remedy}")
    return lines


def tested(job: Trial) -> list[str]:
    """Return the lines of fgsub --test-only on one job."""
    title, start = f"Job {job.id}", job.start
    if not job.blockers:
        where = f"{_gpus(job.holds)} in partition {start.partition}" if start else "now"
        return [f"{title} to start at {shown_time(start.latest if start else None)} on {where}"]
    lines = [f"{title} would wait: {job.blockers[0].cause.reason.value}"]
    if start and start.latest is not None:
        gpus = f" on GPU {format_indices(start.gpus)}" if start.gpus else ""
        when = f"{shown_time(start.latest)}{gpus} in partition {start.partition}"
        lines = [f"{title} to start at {when}, at the latest"]
    lines += _blocker_lines(job.blockers, job.id)
    lines += [f"  {wording.note(note)}" for note in job.notes]
    if start and start.known:
        lines.append(f"  {wording.starts(start)[-1]}")
    return lines + [f"  {wording.advised(advice)}" for advice in job.advice]


def _gpus(holds: Sequence[Hold]) -> str:
    if not holds:
        return "the host, without a GPU,"
    gpus = format_indices(hold.gpu for hold in holds)
    return f"GPU {gpus} ({format_share(holds[0].share)}, {holds[0].memory >> 20} MiB)"
