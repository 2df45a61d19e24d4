"""Format partitions for `fgctl show`: defaults, limits, GPUs and jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from fgsched.client import Client
from fgsched.domain.errors import Refused
from fgsched.domain.text import shown
from fgsched.domain.times import format_limit
from fgsched.domain.units import format_indices, format_mebibytes, format_share

Record = dict[str, Any]
Line = list[tuple[str, object]]
_COUNTED = (("Running", "running"), ("Pending", "pending"))
_SCOPES = (("total", ""), ("per_user", "PerUser"), ("per_account", "PerAccount"))
_RULES = {"Placement": "placement", "MaxJobsPerGpu": "max_jobs_per_gpu", "GpuCompute": "gpu_compute"}


def partitions(client: Client, words: Sequence[str]) -> list[Record]:
    """Return the named partitions, or all, with the totals of the host. Raises Refused."""
    found = {one["name"]: one for one in client.ask("partitions")["partitions"]}
    for word in words:
        if word not in found:
            raise Refused(
                f"invalid partition name specified: {shown(word)}", f"This host has {', '.join(found)}."
            )
    answer = client.ask("gpus")
    host = {key: answer[key] for key in ("cpus", "memory")}
    return [found[name] | host for name in dict.fromkeys(words or found)]


def lines(found: Record) -> list[Line]:
    states: Line = [(f"Jobs{state.capitalize()}", count) for state, count in sorted(found["jobs"].items())]
    return [
        [
            ("PartitionName", found["name"]),
            ("State", found["state"].upper()),
            ("Default", "YES" if found["is_default"] else "NO"),
        ],
        _access(found["access"]),
        _defaults(found["defaults"]),
        _most(found["most"]),
        *(_caps(found[which], per) for which, per in _SCOPES if any(found[which].values())),
        [("Gpus", format_indices(found["cards"])), ("TotalGpus", len(found["cards"]))],
        [("TotalCPUs", found["cpus"]["total"]), ("FreeCPUs", found["cpus"]["free"])],
        [("TotalMem", format_mebibytes(found["memory"]["total"]))],
        [(key, found[name]) for key, name in _RULES.items() if found[name]],
        _precedence(found["preempt"], found["preempt_rule"]),
        states,
    ]


def _access(access: Mapping[str, Sequence[str]]) -> Line:
    """Return who may use the partition; ALL if everyone may, as in Slurm."""
    keys = {"AllowUsers": "users", "AllowGroups": "groups", "AllowAccounts": "accounts"}
    return [(key, ",".join(access[name]) or "ALL") for key, name in keys.items()]


def _defaults(defaults: Record) -> Line:
    found = {
        "DefaultTime": format_limit(defaults["time"]) if defaults["time"] else "NONE",
        "DefGpus": defaults["gpus"],
        "DefGpuMem": defaults["gpu_mem"],
        "DefCPUs": defaults["cpus"],
        "DefMem": format_mebibytes(defaults["memory"]) if defaults["memory"] else "",
    }
    return [(key, value) for key, value in found.items() if value]


def _most(most: Record) -> Line:
    found = {
        "MaxTime": format_limit(most["time"]),
        "MaxGpus": format_share(most["share"]) if most["share"] else "",
        "MaxGpuMem": format_mebibytes(most["gpu_memory"]) if most["gpu_memory"] else "",
        "MaxCPUs": most["cpus"],
        "MaxMem": format_mebibytes(most["memory"]) if most["memory"] else "",
    }
    return [(key, value) for key, value in found.items() if value]


def _precedence(preempt: Sequence[str], preempt_rule: Record) -> Line:
    """Return whose jobs the partition may preempt, and how its own are preempted."""
    own: Line = [("PreemptMode", preempt_rule["mode"].upper()), ("GraceTime", preempt_rule["grace"])]
    exempt = [("PreemptExemptTime", format_limit(preempt_rule["exempt"]))] if preempt_rule["exempt"] else []
    return ([("Preempt", ",".join(preempt))] if preempt else []) + own + exempt


def _caps(caps: Record, per: str) -> Line:
    found: Line = [(f"Max{word}{per}", caps[name]) for word, name in _COUNTED if caps[name]]
    return found + ([(f"MaxGpusRunning{per}", format_share(caps["share"]))] if caps["share"] else [])
