"""Show partitions in the layout of scontrol."""

from fgsched.cli.showpartition import ShownPartition
from fgsched.domain.times import format_elapsed
from fgsched.slurm.phrases import oversubscribed
from fgsched.views.display import host_name
from fgsched.views.layouts import Group


def _limit(seconds: int) -> str:
    """Return a time limit as scontrol shows it: 01:00:00, 2-00:00:00 or UNLIMITED."""
    return format_elapsed(seconds) if seconds else "UNLIMITED"


def partition(found: ShownPartition) -> Group:
    """Return a partition as scontrol shows it."""
    one = found.info.partition
    preempt = [("OverTimeLimit", "NONE"), ("PreemptMode", one.preempt_rule.mode.upper())]
    defaults, most = one.defaults.memory >> 20, one.most.memory >> 20
    return [
        *_access(found),
        [
            ("PriorityJobFactor", 1),
            ("PriorityTier", 1),
            ("RootOnly", "NO"),
            ("ReqResv", "NO"),
            ("OverSubscribe", oversubscribed(found.gpus)),
        ],
        [*preempt],
        [
            ("State", one.state.upper()),
            ("TotalCPUs", found.cpus.total),
            ("TotalNodes", 1),
            ("SelectTypeParameters", "NONE"),
        ],
        [("JobDefaults", None)],
        [("DefMemPerNode", defaults or "UNLIMITED"), ("MaxMemPerNode", most or "UNLIMITED")],
        [("TRES", _all_of(found))],
    ]


def _access(found: ShownPartition) -> Group:
    one = found.info.partition
    return [
        [("PartitionName", one.name)],
        [
            ("AllowGroups", ",".join(one.access.groups) or "ALL"),
            ("AllowAccounts", ",".join(one.access.accounts) or "ALL"),
            ("AllowQos", "ALL"),
        ],
        [("AllocNodes", "ALL"), ("Default", "YES" if one.is_default else "NO"), ("QoS", "N/A")],
        [
            ("DefaultTime", _limit(one.defaults.time) if one.defaults.time else "NONE"),
            ("DisableRootJobs", "NO"),
            ("ExclusiveUser", "NO"),
            ("GraceTime", one.preempt_rule.grace),
            ("Hidden", "NO"),
        ],
        [
            ("MaxNodes", 1),
            ("MaxTime", _limit(one.most.time)),
            ("MinNodes", 0),
            ("LLN", "NO"),
            ("MaxCPUsPerNode", one.most.cpus or "UNLIMITED"),
        ],
        [("Nodes", host_name())],
    ]


def _all_of(found: ShownPartition) -> str:
    """Return all resources of a partition."""
    cpus, gpus = found.cpus.total, len(found.info.gpus)
    listed = f",gres/gpu={gpus}" if gpus else ""
    return f"cpu={cpus},mem={found.memory.total >> 20}M,node=1,billing={cpus}{listed}"
