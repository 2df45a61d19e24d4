"""JSON documents with the keys of Slurm's data parser (v0.0.38): jobs, accounted jobs, nodes, partitions."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from fgsched import protocol
from fgsched.cli.showpartition import ShownPartition
from fgsched.domain.job import WHOLE, GpuState
from fgsched.protocol import JobInfo
from fgsched.views import documents, gres
from fgsched.views.display import host_name
from fgsched.views.fields import SLURM_ACCOUNTS, SLURM_QUEUE, SLURM_STEP


def _document(**more: Any) -> str:
    meta = {
        "plugin": {"type": "openapi/v0.0.38", "name": "fgsched"},
        "Slurm": {"version": {"major": "22", "micro": "8", "minor": "05"}, "release": "22.05.8"},
    }
    return json.dumps({"meta": meta, "errors": [], **more}, indent=2) + "\n"


# -- jobs ---------------------------------------------------------------------------------------


def jobs(found: Iterable[JobInfo]) -> str:
    """Return jobs as squeue --json and scontrol show job --json have them."""
    return _document(jobs=[documents.record(SLURM_QUEUE, job) for job in found])


def accounts(found: Iterable[JobInfo]) -> str:
    """Return jobs as sacct --json has them; each object contains its steps."""
    keys, step_keys = SLURM_ACCOUNTS, SLURM_STEP
    return _document(jobs=documents.nested(found, keys, step_keys, with_steps=True))


# -- nodes and partitions ---------------------------------------------------------------------------


def nodes(answer: protocol.Gpus, partitions: Sequence[protocol.PartitionInfo]) -> str:
    """Return the host as sinfo --json and scontrol show node --json have it."""
    used, usable = answer.cpus.total - answer.cpus.free, [gpu.gpu for gpu in answer.gpus]
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
        "gres_used": f"gpu:{sum(gpu.gpu.capacity - gpu.free_share for gpu in answer.gpus) / WHOLE:g}",
        "partitions": [partition.partition.name for partition in partitions],
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
    return _document(partitions=[_partition(shown_partition) for shown_partition in found])


def _partition(found: ShownPartition) -> dict[str, Any]:
    partition = found.info.partition
    return {
        "name": partition.name,
        "state": partition.state.upper(),
        "flags": ["default"] if partition.is_default else [],
        "nodes": host_name(),
        "total_cpus": found.cpus.total,
        "total_nodes": 1,
        "maximums": {"time": partition.most.time // 60 if partition.most.time else -1, "nodes": 1},
        "default_time_limit": partition.defaults.time // 60 if partition.defaults.time else -1,
        "allowed_groups": ",".join(partition.access.groups),
        "allowed_accounts": ",".join(partition.access.accounts),
        "tres": f"cpu={found.cpus.total},mem={found.memory.total >> 20}M,node=1",
    }
