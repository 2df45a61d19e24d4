"""Show jobs and partitions in the layout of scontrol."""

from collections.abc import Iterable

from fgsched.cli.showpartition import ShownPartition
from fgsched.domain.text import clean
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import format_mebibytes, format_share
from fgsched.protocol import JobInfo
from fgsched.slurm.phrases import oversubscribed
from fgsched.views import job as view
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
    group = f"{view.group(found)}({found.gid})"
    code = view.exit_status(found)
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
            ("StartTime", _time(view.start(found))),
            ("EndTime", _time(view.end(found))),
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
            ("CPUs/Task", view.cpus_per_task(found)),
            ("ReqB:S:C:T", "0:0:*:*"),
        ],
        [("TRES", view.tres_of_job(found))],
        [("Socks/Node", "*"), ("NtasksPerN:B:S:C", "0:0:*:*"), ("CoreSpec", "*")],
        *(_details(found) if details and found.state.holds else []),
    ]


def _needs(found: JobInfo) -> list[Line]:
    asked, demand = found.request, found.request.demand
    memory = format_mebibytes(demand.host_memory) if demand.host_memory else "0"
    return [
        [
            ("MinCPUsNode", view.least_cpus(found)),
            ("MinMemoryNode", memory),
            ("MinTmpDiskNode", 0),
        ],
        [("Features", demand.gpu_type.replace(" ", "_") or None), ("DelayBoot", "00:00:00")],
        [("Reservation", asked.reservation)] if asked.reservation else [],
        [("OverSubscribe", "OK"), ("Contiguous", 0), ("Licenses", None), ("Network", None)],
        *([] if found.is_private else _files(found)),
        [("Power", "")],
        [("TresPerNode", f"gres:gpu:{format_share(view.tres_share(found))}")] if demand.gpus else [],
        [("MailUser", view.mail_user(found)), ("MailType", asked.mail_type)] if asked.mail_type else [],
    ]


def _array(found: JobInfo) -> Line:
    if found.array is None:
        return []
    throttle: Line = [("ArrayTaskThrottle", found.request.throttle)] if found.request.throttle else []
    return [("ArrayJobId", found.array), ("ArrayTaskId", view.array_tasks(found) or ""), *throttle]


def _running(found: JobInfo) -> Line:
    return [
        ("RunTime", format_elapsed(found.elapsed)),
        ("TimeLimit", _limit(found.request.time_limit)),
        ("TimeMin", "N/A"),
    ]


def _limit(seconds: int) -> str:
    """Return a time limit as scontrol shows it: 01:00:00, 2-00:00:00 or UNLIMITED."""
    return format_elapsed(seconds) if seconds else "UNLIMITED"


def _time(epoch: float | None) -> str:
    return shown_time(epoch, unknown="Unknown")


def _details(found: JobInfo) -> list[Line]:
    """Return the CPUs and GPUs of a running job, as `scontrol -d` shows them."""
    gpus = view.gpu_list(found)
    listed = f"gpu:{format_share(view.tres_share(found))}(IDX:{gpus})" if gpus else ""
    memory = found.request.demand.host_memory >> 20
    cpus = found.bound_cpus or f"0-{found.request.demand.cpus - 1}"
    return [
        [("JOB_GRES", f"gpu:{format_share(view.tres_share(found))}" if gpus else None)],
        [("  Nodes", host_name()), ("CPU_IDs", cpus), ("Mem", memory), ("GRES", listed)],
    ]


def _files(found: JobInfo) -> list[Line]:
    files = view.files(found)
    return [
        [("Command", view.script(found))],
        [("WorkDir", found.request.chdir)],
        [("Comment", found.request.comment)] if found.request.comment else [],
        [("SystemComment", found.warning)] if found.warning else [],
        [("StdErr", files.stderr)],
        [("StdIn", files.stdin)],
        [("StdOut", files.stdout)],
    ]


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
