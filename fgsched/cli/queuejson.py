"""The queue as JSON."""

from collections.abc import Sequence
from typing import Any

from fgsched.cli import machine
from fgsched.cli.queuecolumns import why_of
from fgsched.domain.job import JobState

_OWN = ("account", "qos", "reservation", "nice", "priority")
FIELDS = (
    *("array", "task", "tasks", "dependency", "deadline"),
    *("id", "name", "partition", "user", "uid", "state", "reason", "cause", "elapsed", "time_limit"),
    *_OWN,
    *("submitted_at", "started_at", "ended_at", "share", "gpus", "memory", "gpu_type", "indices", "tier"),
    "gpu_compute",
    *("cpus", "host_memory", "comment", "chdir", "command"),
)


def document(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """{"meta": …, "jobs": [ … ]}."""
    return machine.document(jobs=[_job(dict(zip(names, row, strict=True))) for row in rows])


def _job(job: dict[str, Any]) -> dict[str, Any]:
    moments = {"submit": job["submitted_at"], "start": job["started_at"], "end": job["ended_at"]}
    named = ("name", "partition", "user", "uid", "state", "reason", *_OWN)
    plain = {name: job[name] for name in named}
    return {
        "job_id": job["id"],
        "array_job_id": job["array"],
        "array_task_id": job["task"],
        "array_tasks": job["tasks"],
        "dependency": job["dependency"] or None,
        "deadline": job["deadline"],
        **plain,
        "why": why_of(job["cause"]),
        "cause": job["cause"],
        "state_code": JobState(job["state"]).code,
        "elapsed": job["elapsed"],
        "time_limit": job["time_limit"] or None,
        **machine.times(**moments),
        "gpus": machine.gpus(job["share"]),
        "gpu_count": job["gpus"],
        "gpu_mem": job["memory"] if job["gpus"] else 0,
        "gpu_type": job["gpu_type"] or None,
        "gpu_idx": job["indices"],
        "enforce": job["tier"],
        "gpu_compute": job["gpu_compute"] if job["gpus"] else None,
        "cpus": job["cpus"],
        "mem": job["host_memory"] or None,
        "comment": job["comment"],
        "work_dir": job["chdir"],
        "command": job["command"],
    }
