"""The host as people see it: its GPUs, its partitions, and the host as a node of Slurm.

Each value is computed once, and tables, layouts and documents stand on it. Shares are in ten-thousandths of a
GPU, memory in bytes, durations in seconds.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import to_builtins
from msgspec.structs import asdict

from fgsched.domain.job import WHOLE, Gpu, GpuState, Near
from fgsched.domain.policy import Limits, Partition
from fgsched.domain.times import format_limit
from fgsched.domain.units import format_exact, format_indices, format_mebibytes, format_share
from fgsched.protocol import GpuInfo, Gpus, PartitionInfo, ReservationInfo
from fgsched.views.display import SLURM_VERSION, gpu_number, host_name, time_fields
from fgsched.views.documents import Group, Line, SlurmForm, lines, slurm_document
from fgsched.views.fields import (
    SLURM_VERSIONS,
    Layout,
    LayoutPair,
    layout,
    limit,
    moment,
    number,
    number_or_infinite,
)
from fgsched.views.gpu import memory_in_use

_OUT = {
    GpuState.DRAINED: ("drain", "drng"),  # without jobs, with jobs
    GpuState.SUSPECT: ("suspect", "suspect"),
    GpuState.DOWN: ("down", "down"),
}
_LONG_STATES = {
    "idle": "idle",
    "mix": "mixed",
    "alloc": "allocated",
    "drain": "drained",
    "drng": "draining",
    "down": "down",
}


class HostPartition(NamedTuple):
    """A partition, and the host that has it."""

    info: PartitionInfo
    host: Gpus

    @property
    def partition(self) -> Partition:
        """The record of the partition."""
        return self.info.partition

    @property
    def gpus(self) -> list[GpuInfo]:
        """The GPUs that its jobs may use."""
        return [gpu for gpu in self.host.gpus if gpu.gpu.index in self.info.gpus]


# -- states and amounts of GPUs ------------------------------------------------------------------------


def gpu_state(info: GpuInfo) -> str:
    """Return the state of a GPU in sinfo's terms for a node: idle, mix, alloc, drain, drng, down, suspect."""
    if info.gpu.state in _OUT:
        return _OUT[info.gpu.state][bool(info.jobs)]
    if not info.jobs and info.kept_as:
        return info.kept_as
    return _fullness(info.gpu.capacity - info.free_share, info.free_share)


def _fullness(allocated: int, idle: int) -> str:
    if not allocated:
        return "idle"
    return "mix" if idle else "alloc"


def gpus_state(gpus: Sequence[GpuInfo]) -> str:
    """Return the combined state of GPUs, in sinfo's terms for a node."""
    states = {gpu_state(gpu) for gpu in gpus}
    if states and states <= {"drain", "drng", "suspect", "down"}:
        return "down" if states == {"down"} else "drng" if "drng" in states else "drain"
    allocated, idle, _ = units(gpus)
    return _fullness(allocated, idle)


def units(gpus: Sequence[GpuInfo]) -> tuple[int, int, int]:
    """Return the shares of these GPUs that are allocated, idle, and out of use."""
    allocated = sum(gpu.gpu.capacity - gpu.free_share for gpu in gpus)
    idle = sum(gpu.free_share for gpu in gpus if not gpu.is_down)
    return allocated, idle, total_units(gpus) - allocated - idle


def total_units(gpus: Sequence[GpuInfo]) -> int:
    """Return the share of these GPUs that jobs may hold."""
    return sum(gpu.gpu.capacity for gpu in gpus)


def amounts(gpus: Sequence[GpuInfo]) -> str:
    """Return the numbers of allocated, idle, other and all GPUs: 0.25/2.75/1/4."""
    return "/".join(format_share(share) for share in (*units(gpus), total_units(gpus)))


def gres_type(gpu: Gpu) -> str:
    """Return the type of a GPU, such as h100; of a MIG instance, with its profile: a100_3g.20gb."""
    model = gpu.model.rpartition(" MIG ")[0] if gpu.mig else gpu.model
    words = [model, gpu.profile] if gpu.mig else [model]
    return "_".join(words).lower().replace(" ", "_")


def gres_by_type(gpus: Iterable[Gpu]) -> str:
    """Return the number of GPUs of each type, as in gpu:h100:2,gpu:a100_3g.20gb:1; "" without a GPU."""
    counts = Counter(map(gres_type, gpus))
    return ",".join(f"gpu:{name}:{count}" for name, count in counts.items())


def gres_used(gpus: Iterable[GpuInfo]) -> str:
    """Return the allocated number of GPUs of each type with their indices, as in gpu:a100:0.5(IDX:0)."""
    by_type: dict[str, list[GpuInfo]] = {}
    for info in gpus:
        by_type.setdefault(gres_type(info.gpu), []).append(info)
    return ",".join(f"gpu:{name}:{_allocated(infos)}" for name, infos in by_type.items())


def _allocated(infos: Sequence[GpuInfo]) -> str:
    used = [info for info in infos if info.free_share < info.gpu.capacity]
    share = sum(info.gpu.capacity - info.free_share for info in used)
    return f"{format_share(share)}(IDX:{format_indices(info.gpu.index for info in used) or 'N/A'})"


def _tres_of_gpus(gpus: Iterable[GpuInfo], share: Callable[[GpuInfo], int]) -> str:
    """Return a share of all GPUs and of those of each type, as the end of a list of TRES; "": none."""
    by_type: Counter[str] = Counter()
    for info in gpus:
        by_type[gres_type(info.gpu)] += share(info)
    total = by_type.total()
    listed = [("gpu", total), *((f"gpu:{name}", units) for name, units in by_type.items())]
    return "".join(f",gres/{name}={format_share(units)}" for name, units in listed if units)


def features(gpus: Iterable[GpuInfo]) -> str:
    """Return the features of the host that --constraint takes: the models of its GPUs; "" without a GPU."""
    return ",".join(dict.fromkeys(info.gpu.model.replace(" ", "_") for info in gpus))


def oversubscribed(gpus: Iterable[Gpu]) -> str:
    """Return FORCE and the largest factor, rounded up, if the site oversubscribes GPUs; else NO."""
    most = max((gpu.capacity for gpu in gpus), default=WHOLE)
    return f"FORCE:{-(-most // WHOLE)}" if most > WHOLE else "NO"


# -- the host as a node --------------------------------------------------------------------------------


def used_cpus(host: Gpus) -> int:
    """Return the number of allocated CPUs."""
    return host.cpus.total - host.cpus.free


def is_out_of_service(host: Gpus) -> bool:
    """Tell whether the host has GPUs and none takes jobs."""
    return bool(host.gpus) and all(gpu.gpu.state is not GpuState.OK for gpu in host.gpus)


def node_state(host: Gpus) -> str:
    """Return the state of the node in its short form: idle, mix, alloc, drain, drng or down."""
    if not is_out_of_service(host):
        return node_fullness(host)
    if all(gpu.gpu.state is GpuState.DOWN for gpu in host.gpus):
        return "down"
    return "drng" if used_cpus(host) else "drain"


def node_fullness(host: Gpus) -> str:
    """Return idle, mix or alloc: how much of CPUs and GPUs jobs hold."""
    if not used_cpus(host) and all(gpu.free_share == gpu.gpu.capacity for gpu in host.gpus):
        return "idle"
    has_room = host.cpus.free and (not host.gpus or any(gpu.free_share for gpu in host.gpus))
    return "mix" if has_room else "alloc"


def long_state(state: str) -> str:
    """Return a state of the node in its long form, such as mixed."""
    return _LONG_STATES[state]


def node_note(host: Gpus) -> Gpu | None:
    """Return the first GPU with a note, which is the reason of the node; None: there is none."""
    return next((gpu.gpu for gpu in host.gpus if gpu.gpu.note), None)


# -- layouts -------------------------------------------------------------------------------------------


def _layout(text: str, *pairs: LayoutPair) -> Layout:
    """Return a layout in the form in which it is printed, from its pairs."""
    return layout(text, {pair.key: pair for pair in pairs}.__getitem__)


def _if_any(key: str, value: Callable[[Any], Any], text: Callable[[Any], object] = str) -> LayoutPair:
    """Return a pair that is shown if its value is there."""
    return LayoutPair(key, value, text, value)


def _yes(is_so: bool) -> str:
    return "YES" if is_so else "NO"


def _all_or(names: Sequence[str]) -> str:
    return ",".join(names) or "ALL"


def _time_or_none(seconds: int) -> str:
    return format_limit(seconds) if seconds else "NONE"


def _limit_or_none(seconds: int) -> str:
    return limit(seconds) if seconds else "NONE"


def _sizes_or_unlimited(size: int) -> object:
    return size >> 20 or "UNLIMITED"


def _limits(per: str, limits_of: Callable[[Partition], Limits]) -> list[LayoutPair]:
    """Return the pairs of the limits of a partition, of each user or of each account in it."""
    return [
        _if_any(f"MaxRunning{per}", lambda shown: limits_of(shown.partition).running),
        _if_any(f"MaxPending{per}", lambda shown: limits_of(shown.partition).pending),
        _if_any(f"MaxGpusRunning{per}", lambda shown: limits_of(shown.partition).share, format_share),
    ]


def _tres(shown: HostPartition) -> str:
    """Return all resources of a partition."""
    cpus, memory = shown.host.cpus.total, format_exact(shown.host.memory.total)
    listed = _tres_of_gpus(shown.gpus, lambda info: WHOLE)
    return f"cpu={cpus},mem={memory},node=1,billing={cpus}{listed}"


_OF_BOTH = (  # fgctl and scontrol
    LayoutPair("PartitionName", lambda shown: shown.partition.name),
    LayoutPair("State", lambda shown: shown.partition.state.upper()),
    LayoutPair("Default", lambda shown: shown.partition.is_default, _yes),
    LayoutPair("AllowGroups", lambda shown: shown.partition.access.groups, _all_or),
    LayoutPair("AllowAccounts", lambda shown: shown.partition.access.accounts, _all_or),
    LayoutPair("GraceTime", lambda shown: shown.partition.preempt_rule.grace),
    LayoutPair("PreemptMode", lambda shown: shown.partition.preempt_rule.mode.upper()),
    LayoutPair("Nodes", lambda shown: host_name()),
    LayoutPair("TotalCPUs", lambda shown: shown.host.cpus.total),
)
_PARTITION = _layout(
    """
    PartitionName
    State Default
    AllowUsers AllowGroups AllowAccounts
    DefaultTime DefGpus DefGpuMem DefCPUs DefMem
    MaxTime MaxGpus MaxGpuMem MaxCPUs MaxMem
    MaxRunning MaxPending MaxGpusRunning
    MaxRunningPerUser MaxPendingPerUser MaxGpusRunningPerUser
    MaxRunningPerAccount MaxPendingPerAccount MaxGpusRunningPerAccount
    Gpus TotalGpus
    TotalCPUs FreeCPUs
    TotalNodes=1 MaxNodes=1 Nodes
    TotalMem
    Placement MaxJobsPerGpu GpuCompute
    Preempt PreemptMode GraceTime PreemptExemptTime
    """,
    *_OF_BOTH,
    LayoutPair("AllowUsers", lambda shown: shown.partition.access.users, _all_or),
    LayoutPair("DefaultTime", lambda shown: shown.partition.defaults.time, _time_or_none),
    _if_any("DefGpus", lambda shown: shown.partition.defaults.gpus),
    _if_any("DefGpuMem", lambda shown: shown.partition.defaults.gpu_mem),
    _if_any("DefCPUs", lambda shown: shown.partition.defaults.cpus),
    _if_any("DefMem", lambda shown: shown.partition.defaults.memory, format_mebibytes),
    LayoutPair("MaxTime", lambda shown: shown.partition.most.time, format_limit),
    _if_any("MaxGpus", lambda shown: shown.partition.most.share, format_share),
    _if_any("MaxGpuMem", lambda shown: shown.partition.most.gpu_memory, format_mebibytes),
    _if_any("MaxCPUs", lambda shown: shown.partition.most.cpus),
    _if_any("MaxMem", lambda shown: shown.partition.most.memory, format_mebibytes),
    *_limits("", lambda partition: partition.total),
    *_limits("PerUser", lambda partition: partition.per_user),
    *_limits("PerAccount", lambda partition: partition.per_account),
    LayoutPair("Gpus", lambda shown: format_indices(shown.info.gpus)),
    LayoutPair("TotalGpus", lambda shown: len(shown.info.gpus)),
    LayoutPair("FreeCPUs", lambda shown: shown.host.cpus.free),
    LayoutPair("TotalMem", lambda shown: format_mebibytes(shown.host.memory.total)),
    _if_any("Placement", lambda shown: shown.partition.placement),
    _if_any("MaxJobsPerGpu", lambda shown: shown.partition.max_jobs_per_gpu),
    _if_any("GpuCompute", lambda shown: shown.partition.gpu_compute),
    _if_any("Preempt", lambda shown: shown.partition.preempt, ",".join),
    _if_any("PreemptExemptTime", lambda shown: shown.partition.preempt_rule.exempt, format_limit),
)
_SCONTROL_PARTITION = _layout(
    """
    PartitionName
    AllowGroups AllowAccounts AllowQos=ALL
    AllocNodes=ALL Default QoS=N/A
    DefaultTime DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime Hidden=NO
    MaxNodes=1 MaxTime MinNodes=0 LLN=NO MaxCPUsPerNode MaxCPUsPerSocket=UNLIMITED
    NodeSets=ALL
    Nodes
    PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe
    OverTimeLimit=NONE PreemptMode
    State TotalCPUs TotalNodes=1 SelectTypeParameters=NONE
    JobDefaults=(null)
    DefMemPerNode MaxMemPerNode
    TRES
    """,
    *_OF_BOTH,
    LayoutPair("DefaultTime", lambda shown: shown.partition.defaults.time, _limit_or_none),
    LayoutPair("MaxTime", lambda shown: shown.partition.most.time, limit),
    LayoutPair("MaxCPUsPerNode", lambda shown: shown.partition.most.cpus or "UNLIMITED"),
    LayoutPair("OverSubscribe", lambda shown: oversubscribed(gpu.gpu for gpu in shown.gpus)),
    LayoutPair("DefMemPerNode", lambda shown: shown.partition.defaults.memory, _sizes_or_unlimited),
    LayoutPair("MaxMemPerNode", lambda shown: shown.partition.most.memory, _sizes_or_unlimited),
    LayoutPair("TRES", _tres),
)


def _scontrol_state(host: Gpus) -> str:
    return long_state(node_fullness(host)).upper() + "+DRAIN" * is_out_of_service(host)


def _all_tres(host: Gpus) -> str:
    gpus = _tres_of_gpus(host.gpus, lambda info: WHOLE)
    return f"cpu={host.cpus.total},mem={format_exact(host.memory.total)},billing={host.cpus.total}{gpus}"


def _used_tres(host: Gpus) -> str:
    """Return the resources that jobs hold; "": none."""
    memory = host.memory.total - host.memory.free
    parts = [
        f"cpu={used_cpus(host)}" if used_cpus(host) else "",
        f"mem={format_exact(memory)}" * bool(memory),
    ]
    gpus = _tres_of_gpus(host.gpus, lambda info: info.gpu.capacity - info.free_share)
    return ",".join(filter(None, [*parts, gpus.removeprefix(",")]))


def used_memory(host: Gpus) -> int:
    """Return the allocated mebibytes of host memory."""
    return (host.memory.total >> 20) - (host.memory.free >> 20)


class HostNode(NamedTuple):
    """The host as a node of Slurm."""

    host: Gpus
    partitions: Sequence[str]
    started_at: float  # of the controller, seconds since the epoch


_BEGIN_OF_NODE = """
    NodeName Arch CoresPerSocket=1 =
    CPUAlloc CPUEfctv CPUTot CPULoad
    AvailableFeatures
    ActiveFeatures
    Gres
"""
_DETAILS_OF_NODE = """
    GresDrain=N/A
    GresUsed
"""
_END_OF_NODE = f"""
    NodeAddr NodeHostName Version={SLURM_VERSION}
    OS =
    RealMemory AllocMem FreeMem Sockets Boards=1
    State ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
    Partitions =
    BootTime SlurmdStartTime
    LastBusyTime ResumeAfterTime=None
    CfgTRES
    AllocTRES
    CurrentWatts=0 AveWatts=0
    Reason
    =
"""
_NODE_PAIRS = (
    *(LayoutPair(key, lambda node: host_name()) for key in ("NodeName", "NodeAddr", "NodeHostName")),
    *(LayoutPair(key, lambda node: node.host.cpus.total) for key in ("CPUEfctv", "CPUTot", "Sockets")),
    LayoutPair("Arch", lambda node: os.uname().machine),
    LayoutPair("CPUAlloc", lambda node: used_cpus(node.host)),
    LayoutPair("CPULoad", lambda node: f"{os.getloadavg()[0]:.2f}"),
    LayoutPair("AvailableFeatures", lambda node: features(node.host.gpus) or None),
    LayoutPair("ActiveFeatures", lambda node: features(node.host.gpus) or None),
    LayoutPair("Gres", lambda node: gres_by_type(gpu.gpu for gpu in node.host.gpus) or None),
    LayoutPair("GresUsed", lambda node: gres_used(node.host.gpus) or None),
    LayoutPair("OS", lambda node: " ".join(os.uname()[index] for index in (0, 2, 3))),
    LayoutPair("RealMemory", lambda node: node.host.memory.total >> 20),
    LayoutPair("AllocMem", lambda node: used_memory(node.host)),
    LayoutPair("FreeMem", lambda node: node.host.memory.free >> 20),
    LayoutPair("State", lambda node: _scontrol_state(node.host)),
    LayoutPair("Partitions", lambda node: ",".join(node.partitions)),
    LayoutPair("BootTime", lambda node: moment(boot_time())),
    LayoutPair("SlurmdStartTime", lambda node: moment(node.started_at)),
    LayoutPair("LastBusyTime", lambda node: moment(node.started_at)),
    LayoutPair("CfgTRES", lambda node: _all_tres(node.host)),
    LayoutPair("AllocTRES", lambda node: _used_tres(node.host)),
    _if_any(
        "Reason", lambda node: node_note(node.host), lambda gpu: f"{gpu.note} [root@{moment(gpu.noted_at)}]"
    ),
)
_SCONTROL_NODE = _layout(_BEGIN_OF_NODE + _END_OF_NODE, *_NODE_PAIRS)
_SCONTROL_NODE_DETAILS = _layout(_BEGIN_OF_NODE + _DETAILS_OF_NODE + _END_OF_NODE, *_NODE_PAIRS)


def boot_time() -> float:
    """Return when the host was started, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _seen(value: Callable[[Any], int | None]) -> Callable[[GpuInfo], int | None]:
    """Return a value of the last sample of a GPU; None: it is unknown."""
    return lambda info: value(info.seen) if info.seen else None


def _or_unknown(form: Callable[[int], str] = str) -> Callable[[int | None], str]:
    return lambda value: "Unknown" if value is None else form(value)


_GPU = _layout(
    """
    Gpu Model State
    Uuid Pci
    Profile Card CardUuid
    Fraction FreeFraction
    Oversubscribe
    Total Reserved Headroom Usable Free External
    Used Util
    Temp Jobs
    Note Since
    """,
    LayoutPair("Gpu", lambda info: info.gpu.index),
    LayoutPair("Model", lambda info: info.gpu.model),
    LayoutPair("State", lambda info: info.gpu.state.value),
    LayoutPair("Uuid", lambda info: info.gpu.uuid),
    LayoutPair("Pci", lambda info: info.gpu.pci or "Unknown"),
    _if_any("Profile", lambda info: info.gpu.mig, lambda mig: mig.profile),
    _if_any("Card", lambda info: info.gpu.mig, lambda mig: mig.gpu),
    _if_any("CardUuid", lambda info: info.gpu.mig, lambda mig: mig.parent),
    LayoutPair("Fraction", lambda info: info.gpu.capacity - info.free_share, format_share),
    LayoutPair("FreeFraction", lambda info: info.free_share, format_share),
    LayoutPair(
        "Oversubscribe",
        lambda info: info.gpu.capacity,
        format_share,
        lambda info: info.gpu.is_oversubscribed,
    ),
    LayoutPair("Total", lambda info: info.gpu.total, format_mebibytes),
    LayoutPair("Reserved", lambda info: info.gpu.reserved, format_mebibytes),
    LayoutPair("Headroom", lambda info: info.gpu.headroom, format_mebibytes),
    LayoutPair("Usable", lambda info: info.usable, format_mebibytes),
    LayoutPair("Free", lambda info: info.free_memory, format_mebibytes),
    LayoutPair("External", lambda info: info.external, format_mebibytes),
    LayoutPair("Used", memory_in_use, _or_unknown(format_mebibytes)),
    LayoutPair("Util", _seen(lambda seen: seen.utilisation), _or_unknown()),
    LayoutPair("Temp", _seen(lambda seen: seen.temperature), _or_unknown()),
    LayoutPair("Jobs", lambda info: ",".join(map(str, info.jobs))),
    _if_any("Note", lambda info: info.gpu.note),
    LayoutPair("Since", lambda info: info.gpu.noted_at, moment, lambda info: info.gpu.note),
)


def gpu_lines(info: GpuInfo) -> Group:
    """Return a GPU as `fgctl show gpu` shows it."""
    return lines(_GPU, info)


def partition_lines(shown: HostPartition) -> Group:
    """Return a partition as `fgctl show partition` shows it, with the number of jobs in each state."""
    counts: Line = [(f"Jobs{state.capitalize()}", count) for state, count in sorted(shown.info.jobs.items())]
    return [*lines(_PARTITION, shown), counts]


def scontrol_partition(shown: HostPartition) -> Group:
    """Return a partition as scontrol shows it."""
    return lines(_SCONTROL_PARTITION, shown)


_RESERVATION = _layout(
    """
    ReservationName StartTime EndTime Duration
    Nodes NodeCnt=1 CoreCnt Features=(null) PartitionName Flags
    TRES
    Users Groups=(null) Accounts Licenses=(null) State BurstBuffer=(null)
    MaxStartDelay=(null)
    """,
    LayoutPair("ReservationName", lambda row: row[0].reservation.name),
    LayoutPair("StartTime", lambda row: moment(row[0].reservation.start)),
    LayoutPair("EndTime", lambda row: moment(row[0].reservation.end)),
    LayoutPair("Duration", lambda row: limit(row[0].reservation.end - row[0].reservation.start)),
    LayoutPair("Nodes", lambda row: host_name()),
    LayoutPair("CoreCnt", lambda row: row[1]),
    LayoutPair("PartitionName", lambda row: None),
    LayoutPair("Flags", lambda row: "SPEC_NODES"),
    LayoutPair("TRES", lambda row: f"cpu={row[1]}"),
    LayoutPair("Users", lambda row: ",".join(row[0].reservation.users) or None),
    LayoutPair("Accounts", lambda row: ",".join(row[0].reservation.accounts) or None),
    LayoutPair("State", lambda row: "ACTIVE" if row[0].is_active else "INACTIVE"),
)


def scontrol_reservation(info: ReservationInfo, cpus: int) -> Group:
    """Return a reservation as scontrol shows it; `cpus`: those of the host."""
    return lines(_RESERVATION, (info, cpus))


def scontrol_node(node: HostNode, *, details: bool = False) -> Group:
    """Return the host as scontrol shows a node; `details`: with the GPUs that jobs hold."""
    return lines(_SCONTROL_NODE_DETAILS if details else _SCONTROL_NODE, node)


# -- documents -----------------------------------------------------------------------------------------


def partition_document(shown: HostPartition) -> dict[str, Any]:
    """Return a partition in the document of `fgctl show partition`."""
    counts = {"cards": shown.info.gpus, "jobs": shown.info.jobs}
    host = {"cpus": to_builtins(shown.host.cpus), "memory": to_builtins(shown.host.memory)}
    return {**to_builtins(shown.partition), **counts, **host}


def gpu_document(info: GpuInfo) -> dict[str, Any]:
    """Return a GPU in the document of `fgctl show gpu`."""
    state = {name: value for name, value in asdict(info).items() if name != "gpu"}
    return {**to_builtins(asdict(info.gpu)), **to_builtins(state)}


def partition_record(shown: HostPartition) -> dict[str, Any]:
    """Return a partition in the document of fginfo."""
    gpus, partition = shown.gpus, shown.partition
    allocated, idle, other = units(gpus)
    total = total_units(gpus)
    return {
        "name": partition.name,
        "is_default": partition.is_default,
        "avail": partition.state,
        "state": gpus_state(gpus),
        "time_limit": partition.most.time or None,
        "gpus": {
            "allocated": gpu_number(allocated),
            "idle": gpu_number(idle),
            "other": gpu_number(other),
            "total": len(gpus) if total == len(gpus) * WHOLE else total / WHOLE,
        },
        "job_counts": shown.info.jobs,
        "defaults": to_builtins(partition.defaults),
        "most": to_builtins(partition.most),
        "total": to_builtins(partition.total),
        "per_user": to_builtins(partition.per_user),
        "per_account": to_builtins(partition.per_account),
        "access": to_builtins(partition.access),
        "cards": shown.info.gpus,
        "placement": partition.placement,
        "gpu_compute": partition.gpu_compute,
    }


def gpu_record(info: GpuInfo) -> dict[str, Any]:
    """Return a GPU in the document of fginfo."""
    gpu, seen = info.gpu, info.seen
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "pci": gpu.pci,
        "total": gpu.total,
        "reserved": gpu.reserved,
        "headroom": gpu.headroom,
        "usable": info.usable,
        "oversubscribe": gpu.capacity / WHOLE,
        "external": info.external,
        "jobs": info.jobs,
        "cpus": gpu.cpus,
        "profile": gpu.profile or None,
        "card": gpu.mig.gpu if gpu.mig else None,
        "card_uuid": gpu.mig.parent if gpu.mig else None,
        "is_unit": gpu.is_unit,
        "links": [{"gpu": other, "near": Near(how).name.lower()} for other, how in gpu.links],
        "state": gpu_state(info),
        "note": gpu.note or None,
        **time_fields(noted=gpu.noted_at or None),
        "free_gpu": gpu_number(info.free_share),
        "free_memory": info.free_memory,
        "used": memory_in_use(info),
        "utilisation": seen.utilisation if seen else None,
        "temperature": seen.temperature if seen else None,
        "error": (seen.error if seen else "") or None,
    }


def _features(host: Gpus) -> list[str]:
    return features(host.gpus).split(",") if host.gpus else []


def _now() -> dict[str, Any]:
    return number(int(time.time()))


def _states_of_node(host: Gpus) -> list[str]:
    return _scontrol_state(host).split("+")


def _note_of(host: Gpus) -> tuple[str, int, str]:
    """Return the reason of the node, its time and its user; "", 0 and "" without one."""
    noted = node_note(host)
    return (noted.note, int(noted.noted_at), "root") if noted else ("", 0, "")


def slurm_nodes(node: HostNode, form: SlurmForm, command: str = "scontrol") -> str:
    """Return the host as scontrol show node --json has it."""
    return slurm_document(form, command, nodes=[_slurm_node(node, form)], last_update=_now())


def _slurm_node(node: HostNode, form: SlurmForm) -> dict[str, Any]:
    return {**_hardware_of_node(node.host, form), **_gpus_of_node(node), **_state_of_node(node, form)}


def _hardware_of_node(host: Gpus, form: SlurmForm) -> dict[str, Any]:
    return {
        "architecture": os.uname().machine,
        "burstbuffer_network_address": "",
        "boards": 1,
        "boot_time": number(int(boot_time())),
        "cluster_name": "",
        "cores": 1,
        "specialized_cores": 0,
        "cpu_binding": 0,
        "cpu_load": round(os.getloadavg()[0] * 100),
        "free_mem": number(host.memory.free >> 20),
        "cpus": host.cpus.total,
        "effective_cpus": host.cpus.total,
        "specialized_cpus": "",
        "energy": {
            **dict.fromkeys(("average_watts", "base_consumed_energy", "consumed_energy"), 0),
            "current_watts": number(0),
            **dict.fromkeys(("previous_consumed_energy", "last_collected"), 0),
        },
        "external_sensors": {},
        "extra": "",
        "power": {},
        "features": _features(host),
        "active_features": _features(host),
        **({"gpu_spec": ""} if form.version > _FIRST else {}),
    }


def _gpus_of_node(node: HostNode) -> dict[str, Any]:
    host = node.host
    return {
        "gres": gres_by_type(gpu.gpu for gpu in host.gpus),
        "gres_drained": "N/A",
        "gres_used": gres_used(host.gpus),
        **{"instance_id": "", "instance_type": ""},
        "last_busy": number(int(node.started_at)),
        "mcs_label": "",
        "specialized_memory": 0,
        "name": host_name(),
        "next_state_after_reboot": ["INVALID"],
        "address": host_name(),
        "hostname": host_name(),
        "state": _states_of_node(host),
        "operating_system": " ".join(os.uname()[index] for index in (0, 2, 3)),
        "owner": "",
        "partitions": list(node.partitions),
        "port": 0,
    }


def _state_of_node(node: HostNode, form: SlurmForm) -> dict[str, Any]:
    host, used = node.host, node.host.memory.total - node.host.memory.free
    reason, noted_at, user = _note_of(host)
    return {
        "real_memory": host.memory.total >> 20,
        **({"res_cores_per_gpu": 0} if form.version > _FIRST else {}),
        "comment": "",
        "reason": reason,
        "reason_changed_at": number(noted_at),
        "reason_set_by_user": user,
        "resume_after": number(0),
        "reservation": "",
        "alloc_memory": used >> 20,
        "alloc_cpus": used_cpus(host),
        "alloc_idle_cpus": host.cpus.free,
        "tres_used": _used_tres(host),
        "tres_weighted": float(used_cpus(host)),
        "slurmd_start_time": number(int(node.started_at)),
        "sockets": host.cpus.total,
        "threads": 1,
        "temporary_disk": 0,
        "weight": 1,
        "tres": _all_tres(host),
        "version": SLURM_VERSION,
    }


_FIRST = SLURM_VERSIONS[0]


def slurm_partitions(partitions: Iterable[HostPartition], form: SlurmForm) -> str:
    """Return partitions as scontrol show partition --json has them."""
    records = [_slurm_partition(shown, form) for shown in partitions]
    return slurm_document(form, "scontrol", partitions=records, last_update=_now())


def _slurm_partition(shown: HostPartition, form: SlurmForm) -> dict[str, Any]:
    partition, access = shown.partition, shown.partition.access
    return {
        "nodes": {"allowed_allocation": "", "configured": host_name(), "total": 1},
        "accounts": {"allowed": ",".join(access.accounts), "deny": ""},
        "groups": {"allowed": ",".join(access.groups)},
        "qos": {"allowed": "", "deny": "", "assigned": ""},
        "alternate": "",
        "tres": {"billing_weights": "", "configured": _tres(shown)},
        "cluster": "",
        **({"select_type": []} if form.version > _FIRST else {}),
        "cpus": {"task_binding": 0, "total": shown.host.cpus.total},
        "defaults": {
            "memory_per_cpu": 0,
            "partition_memory_per_cpu": number(None),
            "partition_memory_per_node": number(partition.defaults.memory >> 20),
            "time": number(partition.defaults.time // 60 or None),
            "job": "",
        },
        "grace_time": partition.preempt_rule.grace,
        "maximums": {
            "cpus_per_node": number_or_infinite(partition.most.cpus),
            "cpus_per_socket": number_or_infinite(None),
            "memory_per_cpu": 0,
            "partition_memory_per_cpu": number(None),
            "partition_memory_per_node": number(partition.most.memory >> 20),
            "nodes": number(1),
            "shares": 1,
            "oversubscribe": {"jobs": 1, "flags": []},
            "time": number_or_infinite(partition.most.time // 60),
            "over_time_limit": number(None),
        },
        "minimums": {"nodes": 0},
        "name": partition.name,
        "node_sets": "ALL",
        "priority": {"job_factor": 1, "tier": 1},
        "timeouts": {"resume": number(None), "suspend": number(None)},
        "partition": {"state": [partition.state.upper()]},
        "suspend_time": number(None),
    }


def slurm_summary(partitions: Iterable[HostPartition], form: SlurmForm) -> str:
    """Return the host in each partition as sinfo --json has it."""
    return slurm_document(form, "sinfo", sinfo=[_slurm_summary(shown, form) for shown in partitions])


def _slurm_summary(shown: HostPartition, form: SlurmForm) -> dict[str, Any]:
    host, memory = shown.host, shown.host.memory
    state = node_state(host)
    is_busy, is_idle = state in ("mix", "alloc", "drng"), state == "idle"
    load, free = round(os.getloadavg()[0] * 100), number(memory.free >> 20)
    reason, noted_at, user = _note_of(host)
    return {
        "port": 0,
        "node": {"state": _states_of_node(host)},
        "nodes": {
            **{"allocated": int(is_busy), "idle": int(is_idle), "other": int(not is_busy and not is_idle)},
            **{"total": 1, "hostnames": [], "addresses": [], "nodes": [host_name()]},
        },
        "cpus": {
            **{"allocated": used_cpus(host), "idle": host.cpus.free, "other": 0, "total": host.cpus.total},
            **_range(host.cpus.total),
            "load": _range(load),
            "per_node": {"max": number_or_infinite(shown.partition.most.cpus)},
        },
        "sockets": _range(host.cpus.total),
        **{"cores": _range(1), "threads": _range(1), "disk": _range(0)},
        "memory": {
            **_range(memory.total >> 20),
            "free": {"minimum": free, "maximum": free},
            "allocated": (memory.total - memory.free) >> 20,
        },
        "weight": _range(1),
        "features": {"total": features(shown.gpus), "active": features(shown.gpus)},
        "gres": {"total": gres_by_type(gpu.gpu for gpu in shown.gpus), "used": gres_used(shown.gpus)},
        **{"cluster": "", "comment": "", "extra": ""},
        "reason": {"description": reason, "time": noted_at, "user": user},
        "reservation": "",
        **({"resource_spec": {"cpus": "", "memory": 0}} if form.version == SLURM_VERSIONS[-1] else {}),
        "partition": _slurm_partition(shown, form),
    }


def _range(amount: int) -> dict[str, int]:
    return {"minimum": amount, "maximum": amount}
