"""What will be, as fgq and fgsub tell it: why a job waits, what to do about it, when it starts."""

import json
from collections.abc import Sequence
from typing import Any

from fgsched.cli.command import write
from fgsched.cli.queuecolumns import shown_time
from fgsched.client import Client
from fgsched.domain.job import Reason
from fgsched.domain.units import format_indices, format_share

FIELDS = ("likely", "known")  # of a row of the queue: asked for apart, since they take long


# What keeps a job from being considered at all; what lifts that is said with it, and more nobody knows.
_NOT_IN_THE_QUEUE = {
    reason.value
    for reason in (
        *(Reason.HELD_USER, Reason.HELD_ADMIN, Reason.HELD_MAX_REQUEUE, Reason.INTERNAL_ERROR),
        *(Reason.DEPENDENCY, Reason.DEPENDENCY_NEVER, Reason.ARRAY_TASK_LIMIT, Reason.BEGIN_TIME),
        Reason.HOST_SHORTAGE,
    )
}


def add_starts(client: Client, answer: dict[str, Any]) -> None:
    """Put the expected starts of waiting jobs into the rows of the queue, which have an id and a start."""
    starts = dict(client.ask("starts")["starts"])
    names = answer["fields"]
    id_at, start_at = names.index("id"), names.index("started_at")
    names += FIELDS
    for row in answer["rows"]:
        found = starts.get(row[id_at], {})
        if row[start_at] is None and found:
            row[start_at] = found.get("latest") or found.get("not_before")
        row += [found.get("likely"), _known(found)]


def _known(start: dict[str, Any]) -> str:
    """Of how many of the jobs that end before it there are earlier runs."""
    return f"{start['known']}/{start['before']}" if start.get("before") else "-"


def show_why(client: Client, names: Sequence[Any] | None, *, as_json: bool) -> None:
    """Everything that keeps jobs from starting; without names, of the caller's that wait."""
    wanted: dict[str, Any] = {} if names is None else {"ids": list(names)}
    answer = client.ask("why", **wanted)
    if as_json:
        write(json.dumps({"jobs": answer["jobs"]}, indent=1) + "\n")
        return
    told = ["\n".join(_lines(job)) + "\n" for job in answer["jobs"]]
    write("\n".join(told) if told else "No job of yours waits.\n")
    if answer["left_out"]:
        write(f"\n… and {answer['left_out']} more; name the jobs that you ask about.\n")


def _lines(job: dict[str, Any]) -> list[str]:
    called = f"Job {job['called']} ({job['name']}, {job['user']})"
    if job["state"] != "PENDING":
        return [f"{called} does not wait: it is {job['state']}.", *(f"  {note}" for note in job["notes"])]
    if not job["blockers"]:
        return [f"{called} waits for nothing: it starts at once."]
    lines = [f"{called} waits: {job['reason']}"]
    lines += [f"  {note}" for note in job["notes"]]
    lines += [f"  {line}" for blocker in job["blockers"] for line in blocker_lines(blocker)]
    if job["start"] is not None or job["reason"] not in _NOT_IN_THE_QUEUE:
        lines += [f"  {line}" for line in start_lines(job["start"])]
    for advice in job["advice"]:
        lines += [f"  {advice['text']}:", f"    fgctl update job={job['called']} {advice['update']}"]
    return lines


def blocker_lines(blocker: dict[str, Any]) -> list[str]:
    """What blocks, and what lifts it."""
    text = blocker["text"] or blocker["reason"]
    return [text, *([f"  lifted {blocker['lifted']}"] if blocker["lifted"] else [])]


def start_lines(start: dict[str, Any] | None) -> list[str]:
    """When it starts: at the latest, and likely, with how sure that is."""
    if start is None:
        return ["nobody can say when it starts: a job before it has no time limit, or too many are before it"]
    lines = []
    if start["latest"] is not None:
        lines.append(f"starts by {shown_time(start['latest'])} at the latest")
    if start["known"]:
        late = f", rather not after {shown_time(start['late'])}" if start["late"] else ""
        sure = f"earlier runs are known of {start['known']} of the {start['before']} jobs that end before it"
        lines.append(f"likely at {shown_time(start['likely'])}{late} ({sure})")
    return lines


def tested(job: dict[str, Any]) -> list[str]:
    """One job of fgsub --test-only."""
    called, start = f"Job {job['id']}", job["start"]
    if not job["blockers"]:
        where = f"{_cards(job['holds'])} in partition {start['partition']}" if start else "now"
        return [f"{called} to start at {shown_time(start['latest'] if start else None)} on {where}"]
    lines = [f"{called} would wait: {job['blockers'][0]['reason']}"]
    if start and start["latest"] is not None:
        cards = f" on GPU {format_indices(start['gpus'])}" if start["gpus"] else ""
        when = f"{shown_time(start['latest'])}{cards} in partition {start['partition']}"
        lines = [f"{called} to start at {when}, at the latest"]
    lines += [f"  {line}" for blocker in job["blockers"] for line in blocker_lines(blocker)]
    lines += [f"  {note}" for note in job["notes"]]
    if start and start["known"]:
        lines.append(f"  {start_lines(start)[-1]}")
    return lines + [f"  {advice['text']}" for advice in job["advice"]]


def _cards(holds: Sequence[dict[str, int]]) -> str:
    if not holds:
        return "the host, without a GPU,"
    cards = format_indices(hold["gpu"] for hold in holds)
    return f"GPU {cards} ({format_share(holds[0]['share'])}, {holds[0]['memory'] >> 20} MiB)"
