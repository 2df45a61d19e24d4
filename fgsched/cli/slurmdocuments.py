"""JSON documents with the keys of Slurm's data parser (v0.0.38): jobs, accounted jobs, nodes, partitions."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from fgsched import protocol
from fgsched.cli import acctfields
from fgsched.cli.showpartition import ShownPartition
from fgsched.domain.job import WHOLE, GpuState
from fgsched.domain.jobsteps import highest
from fgsched.domain.states import JobState
from fgsched.protocol import JobInfo
from fgsched.views import gres
from fgsched.views import job as view
from fgsched.views.display import host_name

FIELDS = tuple(
    dict.fromkeys(
        (
            *acctfields.ASKED,
            "starts_at",
            "deadline",
            "indices",
            "priority",
            "share",
            "unmet",
            "command",
            "starts_at",
        )
    )
)


def _document(**more: Any) -> str:
    meta = {
        "plugin": {"type": "openapi/v0.0.38", "name": "fgsched"},
        "Slurm": {"version": {"major": "22", "micro": "8", "minor": "05"}, "release": "22.05.8"},
    }
    return json.dumps({"meta": meta, "errors": [], **more}, indent=2) + "\n"


# -- squeue and scontrol ----------------------------------------------------------------------------


def jobs(found: Iterable[JobInfo]) -> str:
    """Return jobs as squeue --json and scontrol show job --json have them."""
    return _document(jobs=[_job(job) for job in found])


def _job(job: JobInfo) -> dict[str, Any]:
    return {**_request(job), **_state(job), **_resources_of(job), **_own(job)}


def _request(job: JobInfo) -> dict[str, Any]:
    asked, demand = job.request, job.request.demand
    return {
        "account": asked.account,
        "array_job_id": job.array or 0,
        "array_task_id": job.task,
        "array_task_string": job.tasks or "",
        "array_max_tasks": asked.throttle,
        "batch_flag": True,
        "cluster": "fgsched",
        "cpus": demand.cpus,
        "cpus_per_task": view.cpus_per_task(job),
        "dependency": job.unmet,
        "features": demand.gpu_type,
        "group_id": job.gid,
        "job_id": job.id,
        "memory_per_node": demand.host_memory >> 20,
        "minimum_cpus_per_node": demand.cpus,
        "name": asked.name,
        "nice": asked.nice,
        "node_count": 1,
        "partition": job.partition,
        "qos": asked.qos,
        "requeue": asked.requeue,
        "resv_name": asked.reservation,
        "tasks": asked.tasks,
        "time_limit": asked.time_limit // 60 if asked.time_limit else None,
        "tres_req_str": view.tres_of_job(job),
        "tres_per_node": f"gres:gpu:{demand.gpus}" if demand.gpus else "",
        "user_id": job.uid,
        "user_name": job.user,
    }


def _state(job: JobInfo) -> dict[str, Any]:
    return {
        "deadline": job.deadline or 0,
        "derived_exit_code": 0,
        "eligible_time": int(job.eligible_at or 0),
        "end_time": int(view.end(job) or 0),
        "exit_code": (job.exit_code << 8) | job.signal,
        "job_state": job.state.value,
        "priority": round(job.priority or 0),
        "restart_cnt": job.restarts,
        "start_time": int(view.start(job) or 0),
        "state_reason": job.reason.word,
        "submit_time": int(job.submitted_at),
    }


def _resources_of(job: JobInfo) -> dict[str, Any]:
    held, cpus = job.state.holds, job.request.demand.cpus
    gpus = ",".join(map(str, job.indices))
    return {
        "batch_host": host_name() if held else "",
        "gres_detail": [f"gpu:{len(job.indices)}(IDX:{gpus})"] if gpus else [],
        "job_resources": {"nodes": host_name(), "allocated_cpus": cpus, "allocated_hosts": 1} if held else {},
        "nodes": host_name() if held else "",
        "tres_alloc_str": view.tres_of_job(job) if held else "",
    }


def _own(job: JobInfo) -> dict[str, str]:
    """Return a value that only the owner and operators may see; "" for other users."""
    names = ("standard_error", "standard_input", "standard_output", "command", "comment")
    if job.is_private:
        return dict.fromkeys((*names, "current_working_directory"), "")
    files = view.files(job)
    values = (files.stderr, files.stdin, files.stdout, job.command or "", job.request.comment)
    return {
        **dict(zip(names, values, strict=True)),
        "current_working_directory": job.request.chdir,
    }


# -- sacct ------------------------------------------------------------------------------------------


def accounts(found: Iterable[JobInfo]) -> str:
    """Return jobs as sacct --json has them; each object contains its steps."""
    rows: dict[int, dict[str, Any]] = {}
    for job in found:
        if job.step:
            if job.id in rows:
                rows[job.id]["steps"].append(_step(job))
        else:
            rows[job.id] = _accounted(job)
    return _document(jobs=list(rows.values()))


def _accounted(job: JobInfo) -> dict[str, Any]:
    asked, demand = job.request, job.request.demand
    return {
        "account": asked.account,
        "comment": {"administrator": "", "job": asked.comment if not job.is_private else "", "system": ""},
        "allocation_nodes": 1 if job.attempt else 0,
        "array": {
            "job_id": job.array or 0,
            "limits": {"max": {"running": {"tasks": asked.throttle}}},
            "task": job.tasks or "",
            "task_id": job.task,
        },
        "association": {"account": asked.account, "cluster": "fgsched", "partition": None, "user": job.user},
        "cluster": "fgsched",
        "constraints": demand.gpu_type,
        "derived_exit_code": _exit(job.state, *highest(job.srun_steps)),
        "time": _times(job) | {"limit": asked.time_limit // 60 if asked.time_limit else None},
        "exit_code": _exit(job.state, job.exit_code, job.signal),
        "flags": [],
        "group": str(job.gid),
        "job_id": job.id,
        "name": asked.name,
        "nodes": host_name() if job.attempt else "None assigned",
        **_place(job),
        "required": {"CPUs": demand.cpus, "memory": demand.host_memory >> 20},
        "state": {"current": job.state.value, "reason": job.reason.word},
        "steps": [],
        "tres": {"allocated": _resources(job) if job.attempt else [], "requested": _resources(job)},
        "user": job.user,
        "wckey": {"wckey": "", "flags": []},
        "working_directory": asked.chdir if not job.is_private else "",
    }


def _place(job: JobInfo) -> dict[str, Any]:
    return {
        "partition": job.partition,
        "priority": round(job.priority or 0),
        "qos": job.request.qos,
        "reservation": {"id": 0, "name": job.request.reservation or 0},
        "kill_request_user": str(job.cancelled_by) if job.cancelled_by is not None else None,
    }


def _times(job: JobInfo) -> dict[str, Any]:
    used = view.cpu_seconds(job) or 0.0
    return {
        "elapsed": int(job.elapsed),
        "eligible": int(job.eligible_at or 0),
        "end": int(view.ended_at(job) or 0),
        "start": int(job.started_at or 0),
        "submission": int(job.submitted_at),
        "suspended": int(job.suspended),
        "system": {"seconds": 0, "microseconds": 0},
        "total": {"seconds": int(used), "microseconds": int(used % 1 * 1_000_000)},
        "user": {"seconds": int(used), "microseconds": int(used % 1 * 1_000_000)},
    }


def _exit(state: JobState, code: int, signal: int) -> dict[str, Any]:
    if signal:
        return {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": signal, "name": ""}}
    if not state.is_final:
        return {"status": "PENDING", "return_code": None}
    return {"status": "ERROR" if code else "SUCCESS", "return_code": code}


def _resources(job: JobInfo) -> list[dict[str, Any]]:
    demand = job.request.demand
    share = view.allocated_share(job) or demand.share * demand.gpus
    found = [
        {"type": "cpu", "name": None, "id": 1, "count": demand.cpus},
        {"type": "mem", "name": None, "id": 2, "count": demand.host_memory >> 20},
        {"type": "node", "name": None, "id": 4, "count": 1},
        {"type": "billing", "name": None, "id": 5, "count": demand.cpus},
    ]
    gpu = {
        "type": "gres",
        "name": "gpu",
        "id": 1001,
        "count": share / WHOLE if share % WHOLE else share // WHOLE,
    }
    return [*found, gpu] if demand.gpus else found


def _step(row: JobInfo) -> dict[str, Any]:
    return {
        "time": _times(row),
        "exit_code": _exit(row.state, row.exit_code, row.signal),
        "nodes": {"count": 1, "range": host_name()},
        "tasks": {"count": row.ntasks},
        "step": {"job_id": row.id, "id": row.step, "name": row.name},
        "state": row.state.value,
        "kill_request_user": None,
    }


# -- nodes and partitions ---------------------------------------------------------------------------


def nodes(answer: protocol.Gpus, partitions: Sequence[protocol.PartitionInfo]) -> str:
    """Return the host as sinfo --json and scontrol show node --json have it."""
    used, usable = answer.cpus.total - answer.cpus.free, [one.gpu for one in answer.gpus]
    is_drained = bool(usable) and all(gpu.state is not GpuState.OK for gpu in usable)
    node = {
        "architecture": os.uname().machine,
        "name": host_name(),
        "hostname": host_name(),
        "address": host_name(),
        "cpus": answer.cpus.total,
        "alloc_cpus": used,
        "idle_cpus": answer.cpus.free,
        "real_memory": answer.memory.total >> 20,
        "alloc_memory": (answer.memory.total - answer.memory.free) >> 20,
        "free_memory": answer.memory.free >> 20,
        "gres": gres.plain(usable),
        "gres_used": f"gpu:{sum(one.gpu.capacity - one.free_share for one in answer.gpus) / WHOLE:g}",
        "partitions": [one.partition.name for one in partitions],
        "state": "idle" if not used else "allocated" if not answer.cpus.free else "mixed",
        "state_flags": ["DRAIN"] if is_drained else [],
        "reason": next((gpu.note for gpu in usable if gpu.note), ""),
        "features": ",".join(dict.fromkeys(gpu.model for gpu in usable)),
        "slurmd_version": "22.05.8",
        "operating_system": " ".join(os.uname()[0:3:2]),
    }
    return _document(nodes=[node])


def partitions(found: Iterable[ShownPartition]) -> str:
    """Return partitions as scontrol show partition --json has them."""
    return _document(partitions=[_partition(one) for one in found])


def _partition(found: ShownPartition) -> dict[str, Any]:
    one = found.info.partition
    return {
        "name": one.name,
        "state": one.state.upper(),
        "flags": ["default"] if one.is_default else [],
        "nodes": host_name(),
        "total_cpus": found.cpus.total,
        "total_nodes": 1,
        "maximums": {"time": one.most.time // 60 if one.most.time else -1, "nodes": 1},
        "default_time_limit": one.defaults.time // 60 if one.defaults.time else -1,
        "allowed_groups": ",".join(one.access.groups),
        "allowed_accounts": ",".join(one.access.accounts),
        "tres": f"cpu={found.cpus.total},mem={found.memory.total >> 20}M,node=1",
    }
