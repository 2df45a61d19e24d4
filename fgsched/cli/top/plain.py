"""One look at GPUs and jobs, printed as text or as JSON."""

import os
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from fgsched import protocol
from fgsched.cli.prospects import add_starts
from fgsched.cli.top import layout
from fgsched.cli.top.snapshot import CLASSES, FIELDS, Frame, LookHistory, gpu_classes
from fgsched.cli.top.view import TopUser, View, chosen
from fgsched.client import Client
from fgsched.protocol import GpuInfo, JobInfo
from fgsched.views import display, documents
from fgsched.views.choices import me
from fgsched.views.display import host_name
from fgsched.views.gpu import memory_in_use, outside_memory
from fgsched.views.job import attributes

_LEAST = 24  # lines


def take(client: Client, history: LookHistory, now: float, *, fields: Sequence[str] = FIELDS) -> Frame:
    """Add a look at `now`, in epoch seconds, to the history; `fields`: of the jobs. Raises FgschedError."""
    gpus = client.call(protocol.ListGpus()).gpus
    jobs = client.call(protocol.ListQueue(fields=fields)).jobs
    return history.frame(gpus, jobs, now, host_name())


def reader_of(client: Client, *, may_change: bool) -> TopUser:
    """Return the user of this process and the permitted actions. Raises FgschedError."""
    about = client.call(protocol.Ping())
    return TopUser(os.geteuid(), me(), about.operator, may_change)


def look(client: Client, now: float, *, may_change: bool) -> tuple[Frame, LookHistory, TopUser]:
    """Return one look at `now`, in epoch seconds. Raises FgschedError."""
    history = LookHistory()
    return take(client, history, now), history, reader_of(client, may_change=may_change)


def text(frame: Frame, history: LookHistory, view: View, reader: TopUser, columns: int) -> str:
    """Return the screen with all jobs, without the keys."""
    jobs = chosen(frame, view, reader)
    gpus = len(frame.gpus)
    height = max(_LEAST, 2 * (gpus + 4), gpus + len(jobs) + 8)
    view = replace(view, width=columns, height=height, has_detail=False)
    screen = layout.screen(frame, history, view, reader, now=frame.at)
    lines = layout.plain(screen.lines[:-1]).rstrip("\n").splitlines()
    return "\n".join(" " + line[1:] if line.startswith(">") else line for line in lines) + "\n"


def take_documented(client: Client, now: float) -> Frame:
    """Return one look at `now`, in epoch seconds, with all that the document shows. Raises FgschedError."""
    fields = attributes(*FIELDS, *documents.fields_of_queue(documents.keys_of("fgtop")))
    frame = take(client, LookHistory(), now, fields=fields)
    add_starts(client, frame.jobs)
    return frame


def document(frame: Frame) -> str:
    """Return a look as {"meta": …, "classes": …, "gpus": …, "jobs": …}.

    Values are in base units; null: not measured.
    """
    return display.document(
        classes={_key(name): gpus for name, gpus in frame.classes().items()},
        gpus=[_gpu(frame, info) for info in frame.gpus],
        jobs=[_job(frame, job) for job in frame.jobs],
    )


def _key(name: str) -> str:
    return name.replace("-", "_")


def _gpu(frame: Frame, info: GpuInfo) -> dict[str, Any]:
    seen, parts = info.seen, gpu_classes(frame, info)
    return {
        "gpu": info.gpu.index,
        "uuid": info.gpu.uuid,
        "model": info.gpu.model,
        "state": info.gpu.state.value,
        "note": info.gpu.note or None,
        "total": info.gpu.total,
        "used": memory_in_use(info),
        "external": outside_memory(info),
        "utilisation": seen.utilisation if seen else None,
        "temperature": seen.temperature if seen else None,
        "power": seen.power / 1000 if seen and seen.power is not None else None,
        "jobs": info.jobs,
        "classes": {_key(name): parts[name] for name in CLASSES},
    }


def _job(frame: Frame, job: JobInfo) -> dict[str, Any]:
    now = frame.of(job)
    return documents.record(documents.keys_of("fgtop"), job) | {
        "sm_share": now.sm,
        "gpu_mem_used": now.memory,
        "class": now.kind if job.state.holds and job.gpus else None,
    }
