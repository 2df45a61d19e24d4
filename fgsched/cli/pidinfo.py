"""`fgctl pidinfo`: the job and the step of a process, its GPU memory, and since when it uses the GPUs."""

import pwd
import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import Refused
from fgsched.domain.units import format_mebibytes, parse_count
from fgsched.gpus.processnames import ProcessNames
from fgsched.system.process import started_at
from fgsched.views import display, layouts
from fgsched.views.display import iso, shown_time


class HostProcess(Struct, frozen=True, kw_only=True):
    """A process, its user, and its use of GPUs."""

    pid: int
    user: str  # "": unknown
    command: str  # "": unknown
    started_at: float | None  # epoch seconds; None: unknown
    info: protocol.ProcessInfo
    job: protocol.JobInfo | None  # None: it belongs to no running job


def find(client: Client, word: str) -> HostProcess:
    """Return the data of the process with the pid `word`.

    Raises:
        BadUsage: `word` is not a number.
        Refused: there is no such process.
    """
    pid = parse_count(word)
    info = client.call(protocol.ShowProcess(pid=pid))
    person = ProcessNames().of([pid]).get(pid)
    if person is None and not info.on_gpus:
        raise Refused(f"there is no process {pid}", "ps lists the processes of this host.")
    shown = next(iter(info.on_gpus), None)
    return HostProcess(
        pid=pid,
        user=_user(person.uid) if person else shown.user if shown else "",
        command=person.command if person else shown.command if shown else "",
        started_at=started_at(pid, time.time()),
        info=info,
        job=client.call(protocol.ShowJob(id=info.job)) if info.job is not None else None,
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def text(found: HostProcess, *, oneliner: bool) -> str:
    """Return the process as Key=Value."""
    lines: layouts.Group = [
        [("Pid", found.pid), *_job(found)],
        [("UserId", found.user or "unknown"), ("Command", found.command or "unknown")],
        [("ProcessStart", shown_time(found.started_at, unknown="Unknown")), *_limits(found.job)],
        *(
            [
                ("Gpu", one.gpu),
                ("GpuMem", format_mebibytes(one.memory)),
                ("GpuUtil", "unknown" if one.busy is None else f"{one.busy / 100:g}%"),
                ("Since", shown_time(one.since)),
            ]
            for one in found.info.on_gpus
        ),
    ]
    if not found.info.on_gpus:
        lines.append([("Gpu", "none")])
    return layouts.text([lines], oneliner=oneliner)


def _job(found: HostProcess) -> Iterable[tuple[str, object]]:
    if found.job is None:
        return [("JobId", "none")]
    step = [("StepId", found.info.step)] if found.info.step else []
    return [("JobId", found.job.id), *step, ("JobName", found.job.request.name)]


def _limits(job: protocol.JobInfo | None) -> Iterable[tuple[str, object]]:
    if job is None or not job.started_at:
        return []
    limit = job.request.time_limit
    until = shown_time(job.started_at + limit) if limit else "UNLIMITED"
    return [("JobStart", shown_time(job.started_at)), ("JobEnd", until)]


def document(found: HostProcess) -> str:
    """Return the process as a JSON object."""
    on_gpus: list[dict[str, Any]] = [
        {
            "gpu": one.gpu,
            "memory": one.memory,
            "busy": None if one.busy is None else one.busy / 10_000,
            "since": one.since,
            "since_iso": iso(one.since),
        }
        for one in found.info.on_gpus
    ]
    about = {
        "pid": found.pid,
        "job": found.info.job,
        "step": int(found.info.step) if found.info.step.isdecimal() else None,
        "user": found.user or None,
        "command": found.command or None,
        "started_at": found.started_at,
        "gpus": on_gpus,
        "seen_at": found.info.seen_at,
    }
    return display.document(process=about)
