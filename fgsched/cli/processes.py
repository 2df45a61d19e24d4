"""`fgctl pidinfo` and `fgctl adopt`: processes of jobs, and a process that becomes a job."""

import pwd
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import Refused
from fgsched.domain.job import Demand
from fgsched.domain.text import BadValue
from fgsched.domain.units import (
    SubmitContext,
    format_indices,
    format_mebibytes,
    format_share,
    parse_count,
    parse_indices,
)
from fgsched.gpus.processes import ProcessNames
from fgsched.submission.options import AnySetting, Setting, Settings, demand
from fgsched.submission.table import BY_NAME
from fgsched.system.process import started_at
from fgsched.views import display, documents
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


def text(process: HostProcess, *, oneliner: bool) -> str:
    """Return the process as Key=Value."""
    lines: documents.Group = [
        [("Pid", process.pid), *_job(process)],
        [("UserId", process.user or "unknown"), ("Command", process.command or "unknown")],
        [("ProcessStart", shown_time(process.started_at, unknown="Unknown")), *_limits(process.job)],
        *(
            [
                ("Gpu", gpu.gpu),
                ("GpuMem", format_mebibytes(gpu.memory)),
                ("GpuUtil", "unknown" if gpu.busy is None else f"{gpu.busy / 100:g}%"),
                ("Since", shown_time(gpu.since)),
            ]
            for gpu in process.info.on_gpus
        ),
    ]
    if not process.info.on_gpus:
        lines.append([("Gpu", "none")])
    return documents.text([lines], oneliner=oneliner)


def _job(process: HostProcess) -> Iterable[tuple[str, object]]:
    if process.job is None:
        return [("JobId", "none")]
    step = [("StepId", process.info.step)] if process.info.step else []
    return [("JobId", process.job.id), *step, ("JobName", process.job.request.name)]


def _limits(job: protocol.JobInfo | None) -> Iterable[tuple[str, object]]:
    if job is None or not job.started_at:
        return []
    limit = job.request.time_limit
    until = shown_time(job.started_at + limit) if limit else "UNLIMITED"
    return [("JobStart", shown_time(job.started_at)), ("JobEnd", until)]


def document(process: HostProcess) -> str:
    """Return the process as a JSON object."""
    on_gpus: list[dict[str, Any]] = [
        {
            "gpu": gpu.gpu,
            "memory": gpu.memory,
            "busy": None if gpu.busy is None else gpu.busy / 10_000,
            "since": gpu.since,
            "since_iso": iso(gpu.since),
        }
        for gpu in process.info.on_gpus
    ]
    about = {
        "pid": process.pid,
        "job": process.info.job,
        "step": int(process.info.step) if process.info.step.isdecimal() else None,
        "user": process.user or None,
        "command": process.command or None,
        "started_at": process.started_at,
        "gpus": on_gpus,
        "seen_at": process.info.seen_at,
    }
    return display.document(process=about)


def adopt(client: Client, word: str, texts: Mapping[str, str], gpus: str) -> str:
    """Adopt the process with the pid `word`; return the line to print.

    Args:
        texts: texts of the options gpus, gpu-mem, time and job-name that were given.
        gpus: indices of GPUs; "": all that the process uses.

    Raises:
        BadUsage: a value is invalid.
        Refused, NotPermitted: the process cannot be adopted.
    """
    pid = parse_count(word)
    settings = {name: _setting(name, text) for name, text in texts.items()}
    person = ProcessNames().of([pid]).get(pid)
    named = settings.pop("job-name", None)
    name = named.text if named is not None else (person.command if person else "") or "adopted"
    limit = settings.pop("time", None)
    amounts = demand_of(settings, client.call(protocol.Ping()).site) if settings else Demand()
    call = protocol.Adopt(
        key=secrets.token_hex(16),
        pid=pid,
        name=name,
        demand=amounts,
        gpus=tuple(parse_indices(gpus)) if gpus else (),
        time_limit=_seconds(limit),
    )
    return said(pid, client.call(call))


def _setting(name: str, text: str) -> AnySetting:
    option = BY_NAME[name]
    try:
        return Setting(option, text, option.parse(text), f"--{name}")
    except BadValue as error:
        raise BadValue(text, error.why, label=f"--{name}=") from None


def _seconds(limit: AnySetting | None) -> int:
    """Return a time limit; -1: none was asked for explicitly, 0: the default applies."""
    if limit is None:
        return 0
    return limit.value or -1 if isinstance(limit.value, int) else 0


def demand_of(settings: Mapping[str, AnySetting], site: SubmitContext) -> Demand:
    """Return what options ask for, read as by fgsub. Raises BadUsage."""
    return demand(Settings((setting.option.slot, setting) for setting in settings.values()), site)


def said(pid: int, adopted: protocol.Adopted) -> str:
    """Return the line that is printed."""
    share, memory = format_share(adopted.share), format_mebibytes(adopted.memory)
    where = f"GPU {format_indices(adopted.gpus)}"
    suffix = " each" if len(adopted.gpus) > 1 else ""
    return f"process {pid} is job {adopted.job} on {where} ({share}, {memory}{suffix})\n"
