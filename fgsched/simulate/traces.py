"""Read workloads from files: the output of `fgacct --json`, or a list of tasks in the openb format."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, Demand
from fgsched.simulate.workload import Task, Workload, counted

_MIB = 1 << 20
_OPENB = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time")


def read(file: str, text: str) -> Workload:
    """Parse the workload in the text of a file.

    Raises:
        BadUsage: the text has neither format, or a malformed value.
    """
    start = text.lstrip()[:1]
    return _accounts(file, text) if start == "{" else _openb(file, text)


# -- fgacct --json --------------------------------------------------------------------------------


def _accounts(file: str, text: str) -> Workload:
    try:
        jobs = json.loads(text)["jobs"]
        found = [_job(job) for job in jobs]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadUsage(
            f"{file}: this is not the output of fgacct --json: {error!r}", "Use fgacct --json -a -S …"
        ) from error
    tasks = [task for task in found if task]
    return Workload.of(
        tasks, f"{counted(len(tasks), 'job')} of {Path(file).name}", left_out=len(found) - len(tasks)
    )


def _job(job: dict[str, Any]) -> Task | None:
    """Return the task of one record; None for a job that never started, whose run time is unknown."""
    if job["start_time"] is None or job["req_gpu"] is None:
        return None
    submitted = float(job.get("eligible_time") or job["submit_time"])
    return Task(
        demand=_demand(job),
        submitted=submitted,
        waited=max(0.0, float(job["start_time"]) - submitted),
        run=float(job["elapsed"]),
        time_limit=int(job["time_limit"] or 0),
        id=int(job["job_id"]),
        name=str(job["name"]),
        user=str(job["user"]),
        uid=int(job["uid"]),
        partition=str(job["partition"]),
        account=str(job.get("account") or ""),
        qos=str(job.get("qos") or ""),
    )


def _demand(job: dict[str, Any]) -> Demand:
    """Return a demand for the share and the memory that were allocated to the job."""
    units = round(float(job["req_gpu"]) * WHOLE)
    cpus, memory = int(job["req_cpus"]), int(job["req_mem"] or 0)
    if not units:
        return Demand(cpus=cpus, host_memory=memory)
    cards = max(1, units // WHOLE)
    is_part = units < WHOLE
    return Demand(
        gpus=cards,
        share=units // cards,
        memory=int(job["req_gpu_mem"] or 0) if is_part else 0,
        cpus=cpus,
        host_memory=memory,
    )


# -- the openb trace ------------------------------------------------------------------------------


def _openb(file: str, text: str) -> Workload:
    rows = list(csv.DictReader(text.splitlines()))
    missing = [name for name in _OPENB if not rows or name not in rows[0]]
    if missing:
        raise BadUsage(
            f"{file}: neither the output of fgacct --json nor a list of tasks in the openb format "
            f"(no column {missing[0]})",
            "Name such a file, or none for a generated workload.",
        )
    try:
        tasks, left_out = _tasks(rows)
    except (ValueError, TypeError) as error:
        raise BadUsage(f"{file}: {error}") from error
    return Workload.of(tasks, f"{counted(len(tasks), 'task')} of {Path(file).name}", left_out=left_out)


def _tasks(rows: Iterable[dict[str, str]]) -> tuple[list[Task], int]:
    tasks, left_out = [], 0
    for row in rows:
        started, ended = row.get("scheduled_time") or row["creation_time"], row["deletion_time"]
        if not started or not ended:
            left_out += 1
            continue
        gpus = int(row["num_gpu"])
        demand = Demand(
            gpus=gpus,
            share=(WHOLE if gpus > 1 else int(row["gpu_milli"]) * WHOLE // 1000) if gpus else 0,
            # Any GPU model is accepted, whatever the trace requested.
            cpus=max(1, -(-int(row["cpu_milli"]) // 1000)),
            host_memory=int(row["memory_mib"]) * _MIB,
        )
        run = max(1.0, float(ended) - float(started))
        tasks.append(Task(demand=demand, submitted=float(row["creation_time"]), run=run, name=row["name"]))
    return tasks, left_out
