"""Show partitions: defaults, limits, access, GPUs and jobs."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import Refused
from fgsched.domain.job import Gpu
from fgsched.domain.policy import Access, Defaults, Limits, PerJobLimits, PreemptRule
from fgsched.domain.text import shown
from fgsched.domain.times import format_limit
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.views.display import host_name

Line = list[tuple[str, object]]


class ShownPartition(Struct, frozen=True):
    """A partition, and the totals of the host."""

    info: protocol.PartitionInfo
    cpus: protocol.ResourceAmount
    memory: protocol.ResourceAmount  # bytes
    gpus: Sequence[Gpu] = ()  # of the partition


def partitions(client: Client, words: Sequence[str]) -> list[ShownPartition]:
    """Return the named partitions, or all. Raises Refused for a name that no partition has."""
    there = {
        partition.partition.name: partition for partition in client.call(protocol.ListPartitions()).partitions
    }
    for word in words:
        if word not in there:
            raise Refused(
                f"invalid partition name specified: {shown(word)}", f"This host has {', '.join(there)}."
            )
    host = client.call(protocol.ListGpus())
    found = [there[name] for name in dict.fromkeys(words or there)]
    gpus = {gpu.gpu.index: gpu.gpu for gpu in host.gpus}
    return [
        ShownPartition(
            partition, host.cpus, host.memory, [gpus[index] for index in partition.gpus if index in gpus]
        )
        for partition in found
    ]


def record(found: ShownPartition) -> dict[str, Any]:
    """Return a partition for a JSON document."""
    own = {"cards": found.info.gpus, "jobs": found.info.jobs}
    host = {"cpus": to_builtins(found.cpus), "memory": to_builtins(found.memory)}
    return {**to_builtins(found.info.partition), **own, **host}


def lines(found: ShownPartition) -> list[Line]:
    """Return the lines of (key, value)."""
    partition, info = found.info.partition, found.info
    scopes = ((partition.total, ""), (partition.per_user, "PerUser"), (partition.per_account, "PerAccount"))
    rules = {
        "Placement": partition.placement,
        "MaxJobsPerGpu": partition.max_jobs_per_gpu,
        "GpuCompute": partition.gpu_compute,
    }
    return [
        [("PartitionName", partition.name)],  # alone on its line, as programs expect it of scontrol
        [("State", partition.state.upper()), ("Default", "YES" if partition.is_default else "NO")],
        _access(partition.access),
        _defaults(partition.defaults),
        _most(partition.most),
        *(_limits(limits, per) for limits, per in scopes if limits != Limits()),
        [("Gpus", format_indices(info.gpus)), ("TotalGpus", len(info.gpus))],
        [("TotalCPUs", found.cpus.total), ("FreeCPUs", found.cpus.free)],
        [("TotalNodes", 1), ("MaxNodes", 1), ("Nodes", host_name())],
        [("TotalMem", format_mebibytes(found.memory.total))],
        [(key, value) for key, value in rules.items() if value],
        _precedence(partition.preempt, partition.preempt_rule),
        [(f"Jobs{state.capitalize()}", count) for state, count in sorted(info.jobs.items())],
    ]


def _access(access: Access) -> Line:
    """Return the users, groups and accounts that may use the partition; ALL if it is open, as in Slurm."""
    lists = {
        "AllowUsers": access.users,
        "AllowGroups": access.groups,
        "AllowAccounts": access.accounts,
    }
    return [(key, ",".join(names) or "ALL") for key, names in lists.items()]


def _defaults(defaults: Defaults) -> Line:
    found = {
        "DefaultTime": format_limit(defaults.time) if defaults.time else "NONE",
        "DefGpus": defaults.gpus,
        "DefGpuMem": defaults.gpu_mem,
        "DefCPUs": defaults.cpus,
        "DefMem": format_mebibytes(defaults.memory) if defaults.memory else "",
    }
    return [(key, value) for key, value in found.items() if value]


def _most(most: PerJobLimits) -> Line:
    found = {
        "MaxTime": format_limit(most.time),
        "MaxGpus": format_share(most.share) if most.share else "",
        "MaxGpuMem": format_mebibytes(most.gpu_memory) if most.gpu_memory else "",
        "MaxCPUs": most.cpus,
        "MaxMem": format_mebibytes(most.memory) if most.memory else "",
    }
    return [(key, value) for key, value in found.items() if value]


def _precedence(preempt: Sequence[str], rule: PreemptRule) -> Line:
    """Return the partitions whose jobs may be preempted, and the preemption mode of this partition's jobs."""
    own: Line = [("PreemptMode", rule.mode.upper()), ("GraceTime", rule.grace)]
    exempt = [("PreemptExemptTime", format_limit(rule.exempt))] if rule.exempt else []
    return ([("Preempt", ",".join(preempt))] if preempt else []) + own + exempt


def _limits(limits: Limits, per: str) -> Line:
    counts = (("Running", limits.running), ("Pending", limits.pending))
    found: Line = [(f"Max{word}{per}", count) for word, count in counts if count]
    return found + ([(f"MaxGpusRunning{per}", format_share(limits.share))] if limits.share else [])
