"""Show jobs and partitions in the layout of scontrol."""

import os
import shlex
from collections.abc import Iterable

from fgsched.cli.jobfiles import files_of
from fgsched.cli.showpartition import ShownPartition
from fgsched.cli.slurmdocuments import gpu_amount, tres
from fgsched.domain.text import clean
from fgsched.domain.units import format_indices, format_mebibytes
from fgsched.protocol import JobInfo
from fgsched.slurm.phrases import oversubscribed
from fgsched.views.columns import cpus_of_each, least_cpus
from fgsched.views.display import host_name, shown_time

Line = list[tuple[str, object]]


def text(groups: Iterable[list[Line]], *, oneliner: bool) -> str:
    """Return records of lines of (key, value); an empty value of a key is (null)."""
    return "".join(_record(lines, oneliner=oneliner) for lines in groups)


def _record(lines: list[Line], *, oneliner: bool) -> str:
    rows = [" ".join(f"{key}={_value(value)}" for key, value in line) for line in lines if line]
    return " ".join(rows) + "\n" if oneliner else "\n   ".join(rows) + "\n\n"


def _value(value: object) -> str:
    return "(null)" if value is None else clean(str(value))


def job(found: JobInfo, *, details: bool = False) -> list[Line]:
    """Return a job as scontrol shows it."""
    return [*_head(found), *_times(found), *_place(found, details=details), *_needs(found)]


def _head(found: JobInfo) -> list[Line]:
    asked = found.request
    group = f"{_group(found.gid)}({found.gid})"
    code = f"{found.exit_code}:{found.signal}"
    return [
        [("JobId", found.id), *_array(found), ("JobName", asked.name)],
        [("UserId", f"{found.user}({found.uid})"), ("GroupId", group), ("MCS_label", "N/A")],
        [
            ("Priority", round(found.priority or 0)),
            ("Nice", asked.nice),
            ("Account", asked.account or None),
            ("QOS", asked.qos or None),
        ],
        [
            ("JobState", found.state.value),
            ("Reason", found.reason.word),
            ("Dependency", found.unmet or None),
        ],
        [
            ("Requeue", int(asked.requeue)),
            ("Restarts", found.restarts),
            ("BatchFlag", 1),
            ("Reboot", 0),
            ("ExitCode", code),
        ],
    ]


def _times(found: JobInfo) -> list[Line]:
    looked = _time(found.started_at or found.submitted_at)
    suspended = int(found.suspended)
    return [
        _running(found),
        [("SubmitTime", _time(found.submitted_at)), ("EligibleTime", _time(found.eligible_at))],
        [("AccrueTime", _time(found.eligible_at))],
        [
            ("StartTime", _time(found.starts_at or found.started_at)),
            ("EndTime", _end(found)),
            ("Deadline", shown_time(found.deadline)),
        ],
        [
            ("SuspendTime", "None"),
            ("SecsPreSuspend", suspended),
            ("LastSchedEval", looked),
            ("Scheduler", "Main"),
        ],
    ]


def _place(found: JobInfo, *, details: bool) -> list[Line]:
    asked, demand = found.request, found.request.demand
    held = found.state.holds or (found.state.is_final and bool(found.attempt))
    return [
        [("Partition", found.partition), ("AllocNode:Sid", f"{host_name()}:0")],
        [("ReqNodeList", None), ("ExcNodeList", None)],
        [("NodeList", host_name() if held else "")],
        [("BatchHost", host_name())] if held else [],
        [
            ("NumNodes", 1),
            ("NumCPUs", demand.cpus),
            ("NumTasks", asked.tasks),
            ("CPUs/Task", cpus_of_each(demand.cpus, asked.tasks, asked.task_cpus)),
            ("ReqB:S:C:T", "0:0:*:*"),
        ],
        [("TRES", tres(found))],
        [("Socks/Node", "*"), ("NtasksPerN:B:S:C", "0:0:*:*"), ("CoreSpec", "*")],
        *(_details(found) if details and found.state.holds else []),
    ]


def _needs(found: JobInfo) -> list[Line]:
    asked, demand = found.request, found.request.demand
    memory = format_mebibytes(demand.host_memory) if demand.host_memory else "0"
    return [
        [
            ("MinCPUsNode", least_cpus(demand.cpus, asked.tasks, asked.task_cpus)),
            ("MinMemoryNode", memory),
            ("MinTmpDiskNode", 0),
        ],
        [("Features", demand.gpu_type.replace(" ", "_") or None), ("DelayBoot", "00:00:00")],
        [("Reservation", asked.reservation)] if asked.reservation else [],
        [("OverSubscribe", "OK"), ("Contiguous", 0), ("Licenses", None), ("Network", None)],
        *([] if found.is_private else _files(found)),
        [("Power", "")],
        [("TresPerNode", f"gres:gpu:{gpu_amount(found)}")] if demand.gpus else [],
        _mails(found),
    ]


def _array(found: JobInfo) -> Line:
    if found.array is None:
        return []
    task = (found.tasks or "").partition("%")[0] if found.task is None else found.task
    throttle: Line = [("ArrayTaskThrottle", found.request.throttle)] if found.request.throttle else []
    return [("ArrayJobId", found.array), ("ArrayTaskId", task), *throttle]


def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _running(found: JobInfo) -> Line:
    return [
        ("RunTime", _clock(int(found.elapsed))),
        ("TimeLimit", _limit(found.request.time_limit)),
        ("TimeMin", "N/A"),
    ]


def _limit(seconds: int) -> str:
    """Return a time limit as scontrol shows it: 01:00:00, 2-00:00:00 or UNLIMITED."""
    return _clock(seconds) if seconds else "UNLIMITED"


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _time(epoch: float | None) -> str:
    return shown_time(epoch, unknown="Unknown")


def _end(found: JobInfo) -> str:
    if found.state.is_final:
        return _time(found.ended_at)
    limit = found.request.time_limit
    return _time(found.started_at + limit if found.started_at and limit else None)


def _details(found: JobInfo) -> list[Line]:
    """Return the CPUs and GPUs of a running job, as `scontrol -d` shows them."""
    gpus = format_indices(one.gpu for one in found.allocated)
    listed = f"gpu:{gpu_amount(found)}(IDX:{gpus})" if gpus else ""
    memory = found.request.demand.host_memory >> 20
    cpus = found.bound_cpus or f"0-{found.request.demand.cpus - 1}"
    return [
        [("JOB_GRES", f"gpu:{gpu_amount(found)}" if gpus else None)],
        [("  Nodes", host_name()), ("CPU_IDs", cpus), ("Mem", memory), ("GRES", listed)],
    ]


def _files(found: JobInfo) -> list[Line]:
    files = files_of(found)
    return [
        [("Command", _script(found))],
        [("WorkDir", found.request.chdir)],
        [("Comment", found.request.comment)] if found.request.comment else [],
        [("SystemComment", found.warning)] if found.warning else [],
        [("StdErr", files.stderr)],
        [("StdIn", files.stdin)],
        [("StdOut", files.stdout)],
    ]


def _script(found: JobInfo) -> str | None:
    """Return the path of the script of a job; None: it was a command, or standard input."""
    try:
        words = shlex.split(found.request.submit_line)[1:]
    except ValueError:
        return None
    if any(word.startswith("--wrap") for word in words):
        return None
    named = next((word for word in words if not word.startswith("-")), None)
    return os.path.join(found.request.submit_dir, named) if named else None


def _mails(found: JobInfo) -> Line:
    if not found.request.mail_type:
        return []
    return [("MailUser", found.request.mail_user or found.user), ("MailType", found.request.mail_type)]


def partition(found: ShownPartition) -> list[Line]:
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


def _access(found: ShownPartition) -> list[Line]:
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
    cpus, gpus = found.cpus.total, len(found.info.cards)
    listed = f",gres/gpu={gpus}" if gpus else ""
    return f"cpu={cpus},mem={found.memory.total >> 20}M,node=1,billing={cpus}{listed}"
