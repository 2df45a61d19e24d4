"""The JSON document of fgacct."""

from collections.abc import Iterable
from typing import Any

from msgspec import to_builtins

from fgsched.protocol import JobInfo
from fgsched.views import display
from fgsched.views import job as view

ASKED = (  # attributes that the fields below need
    *("id", "array", "task", "tasks", "user", "uid", "gid", "partition", "state", "reason", "attempt"),
    *("restarts", "exit_code", "signal", "cancelled_by", "warning", "preemption", "post_mortem"),
    *("submitted_at", "eligible_at", "started_at", "ended_at", "elapsed", "suspended", "gpu_compute"),
    *("allocated", "tier", "cpu_seconds", "max_rss", "gpu_peak", "is_private", "request", "usage"),
    *("disk_read", "disk_written", "charged_before", "oom_kills"),
    *("name", "account", "wckey", "qos", "reservation", "time_limit", "gpu_type", "cpus", "ntasks"),
    *("host_memory", "comment", "chdir", "command"),
)


def document(jobs: Iterable[JobInfo]) -> str:
    """Return {"meta": …, "jobs": [ … ]} with all fields, in base units; rows of steps are in "steps"."""
    found: dict[int, dict[str, Any]] = {}
    for row in jobs:
        if row.step:
            found.setdefault(row.id, {"job_id": row.id}).setdefault("steps", []).append(_step(row))
        else:
            found[row.id] = _document(row)
    return display.document(jobs=list(found.values()))


def _step(row: JobInfo) -> dict[str, Any]:
    return {
        "step": row.step,
        "name": row.name,
        "tasks": row.ntasks,
        "cpus": row.cpus,
        "gpu_idx": [given.gpu for given in row.allocated],
        "state": row.state.value,
        "exit_code": row.exit_code,
        "signal": row.signal,
        **display.time_fields(start=row.started_at, end=view.ended_at(row)),
        "elapsed": row.elapsed,
        **_measured(row),
    }


def _measured(job: JobInfo) -> dict[str, Any]:
    """Return what the processes of a job or of a step used; None until it has ended."""
    return {
        "max_rss": view.host_peak(job),
        "cpu_seconds": view.cpu_seconds(job),
        "disk_read": view.disk_read(job),
        "disk_written": view.disk_written(job),
    }


def _document(job: JobInfo) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "name": job.name,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "user": job.user,
        "uid": job.uid,
        "gid": job.gid,
        "state": job.state.value,
        "reason": view.last_reason(job),
        "cancelled_by": job.cancelled_by,
        "exit_code": job.exit_code,
        "signal": job.signal,
        **_times(job),
        "elapsed": job.elapsed,
        "time_limit": job.time_limit or None,
        "req_gpu": display.gpu_number(view.requested_share(job)),
        "req_gpu_mem": view.requested_memory(job),
        "alloc_gpu": display.gpu_number(view.allocated_share(job)),
        "gpu_idx": [given.gpu for given in job.allocated],
        "gpu_type": view.gpu_models(job) or None,
        "gpu_hours": view.gpu_hours(job),
        "gpu_hours_used": view.gpu_hours_used(job),
        "gpu_hours_idle": view.gpu_hours_idle(job),
        "ave_gpu_util": view.gpu_util(job),
        "ave_gpu_mem": view.mean_memory(job),
        "energy_j": view.energy(job),
        "max_gpu_mem": view.gpu_peak(job),
        "wasted_gpu_mem_hours": view.wasted_memory_hours(job),
        **_enforcement(job),
        "req_cpus": job.cpus,
        "req_mem": job.host_memory or None,
        **_measured(job),
        "restarts": job.restarts,
        **_owned(job),
    }


def _times(job: JobInfo) -> dict[str, Any]:
    return {
        **display.time_fields(
            submit=job.submitted_at, eligible=job.eligible_at, start=job.started_at, end=view.ended_at(job)
        ),
        "planned": view.waited(job),
    }


def _enforcement(job: JobInfo) -> dict[str, Any]:
    """Return the enforcement level of a job and the result of its check."""
    return {
        "oom_kind": view.oom_kind(job),
        "oom_kills": job.oom_kills or None,
        "post_mortem": to_builtins(job.post_mortem),
        "warning": job.warning or None,
        "enforce": job.tier,
        "gpu_compute": job.gpu_compute if job.allocated else None,
    }


def _owned(job: JobInfo) -> dict[str, Any]:
    """Return the attributes that only the owner and operators may see; None for other users."""
    return {
        "comment": job.comment,
        "work_dir": job.chdir,
        "submit_line": job.command,
        "std_out": view.stdout(job) or None,
        "std_err": view.stderr(job) or None,
    }
