"""The layouts of Key=Value pairs in which fgctl and scontrol show a job.

A layout is data: lines of pairs, each with its key, the value of a job and the text of the value. A pair
stands in its line only if its condition, another value, is met; a line without pairs is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fgsched.domain.job import MpsUse
from fgsched.domain.text import clean
from fgsched.domain.times import format_elapsed, format_limit, format_runtime
from fgsched.domain.units import format_mebibytes, format_share
from fgsched.protocol import JobInfo, StateChange
from fgsched.views import job as view
from fgsched.views.columns import others
from fgsched.views.display import host_name, shown_time
from fgsched.views.job import Value, reads

Line = list[tuple[str, object]]
Group = list[Line]  # the lines of one record


def text(groups: Iterable[Group], *, oneliner: bool, between: str = "  ") -> str:
    """Return records of Key=Value pairs; lines after the first are indented. An empty value is (null).

    `between`: the text between two pairs.
    """
    return "".join(_record(lines, oneliner, between) for lines in groups)


def _record(lines: Group, oneliner: bool, between: str) -> str:
    rows = [between.join(f"{key}={_shown(value)}" for key, value in line) for line in lines if line]
    return between.join(rows) + "\n" if oneliner else "\n   ".join(rows) + "\n\n"


def _shown(value: object) -> str:
    return "(null)" if value is None else clean(str(value))


def _same(value: Any) -> Any:
    return value


class LayoutPair(NamedTuple):
    """One pair of a layout."""

    key: str
    value: str | Value  # the name of an attribute, or a derived value
    text: Callable[[Any], object] = _same
    condition: str | Value = ""  # the pair is shown if this value is there; "": always


Layout = tuple[tuple[LayoutPair, ...], ...]


def lines(layout: Layout, job: JobInfo) -> Group:
    """Return the lines of a job."""
    shown = ([_pair(pair, job) for pair in pairs if _is_shown(pair, job)] for pairs in layout)
    return [line for line in shown if line]


def _value_of(value: str | Value, job: JobInfo) -> Any:
    return getattr(job, value) if isinstance(value, str) else value(job)


def _is_shown(pair: LayoutPair, job: JobInfo) -> bool:
    return not pair.condition or bool(_value_of(pair.condition, job))


def _pair(pair: LayoutPair, job: JobInfo) -> tuple[str, object]:
    return pair.key, pair.text(_value_of(pair.value, job))


def _if_any(key: str, value: str | Value, form: Callable[[Any], object] = _same) -> LayoutPair:
    """Return a pair that is shown if its value is there."""
    return LayoutPair(key, value, form, value)


def _constant(key: str, value: object) -> LayoutPair:
    return LayoutPair(key, "id", lambda number: value)


# -- texts and values ----------------------------------------------------------------------------------


def _moment(epoch: float | None) -> str:
    return shown_time(epoch, unknown="Unknown")


def _size(size: int | None) -> str:
    return "Unknown" if size is None else format_mebibytes(size)


def _or_null(value: Any) -> Any:
    return value or None


def _limit(seconds: int) -> str:
    return format_elapsed(seconds) if seconds else "UNLIMITED"


@reads("user", "uid")
def _user(job: JobInfo) -> str:
    return f"{job.user}({job.uid})"


@reads(view.group, "gid")
def _group(job: JobInfo) -> str:
    return f"{view.group(job)}({job.gid})"


@reads("request", "array")
def _throttle(job: JobInfo) -> int | None:
    return job.request.throttle if job.array is not None else None


@reads("request")
def _requested_fraction(job: JobInfo) -> str:
    demand = job.request.demand
    return format_share(demand.share * demand.gpus)


@reads("request")
def _requested_memory(job: JobInfo) -> str:
    demand = job.request.demand
    if demand.memory_part:
        return f"{format_share(demand.memory_part)} of the GPU"
    return format_mebibytes(demand.memory) if demand.memory else "by fraction"


@reads("request")
def _begin(job: JobInfo) -> float | None:
    return float(job.request.begin) if job.request.begin else None


@reads("request")
def _container(job: JobInfo) -> str:
    return job.request.container


@reads("request")
def _mail_types(job: JobInfo) -> str:
    return job.request.mail_type


@reads("allocated")
def _memory_limit(job: JobInfo) -> int | None:
    return job.allocated[0].memory if job.allocated else None


@reads("allocated")
def _uuids(job: JobInfo) -> str:
    return ",".join(part.uuid for part in job.allocated)


@reads("bound_cpus", view.gpu_list)
def _cpus(job: JobInfo) -> str:
    return f"{job.bound_cpus} (near GPU {view.gpu_list(job)})" if job.bound_cpus else "any"


@reads("gpus", "allocated", "state")
def _is_decided(job: JobInfo) -> bool:
    """Tell whether the enforcement of a job is known: it is decided when the job starts."""
    return not job.gpus or bool(job.allocated) or job.state.is_final


@reads(_is_decided, "tier", "mps")
def _enforced(job: JobInfo) -> str | None:
    """Return the enforcement level, and the part of the threads if MPS limits it."""
    level = ",".join(filter(None, (job.tier, job.mps.word if job.mps else "")))
    return level if _is_decided(job) else None


@reads(_is_decided, "preload")
def _preload(job: JobInfo) -> str | None:
    return job.preload if _is_decided(job) else None


@reads("mps")
def _unused_mps(job: JobInfo) -> MpsUse | None:
    """Return the use of MPS of a job on a GPU with MPS that does not use it."""
    return job.mps if job.mps and job.mps.state in ("refused", "lost") else None


@reads("is_private")
def _is_visible(job: JobInfo) -> bool:
    return not job.is_private


@reads("is_private", "warning")
def _visible_warning(job: JobInfo) -> str:
    return "" if job.is_private else job.warning


# -- fgctl -------------------------------------------------------------------------------------------

_NOT_GUARANTEED = "GPU memory up to its limit is not guaranteed"
_ADOPTED = "nothing limits it, because it was started outside of fgsched"
_STREAMS = (
    (LayoutPair("StdErr", view.stderr, condition=_is_visible),),
    (LayoutPair("StdIn", view.stdin, condition=_is_visible),),
    (LayoutPair("StdOut", view.stdout, condition=_is_visible),),
)
_ARRAY = (
    LayoutPair("ArrayJobId", "array", condition="array"),
    LayoutPair("ArrayTaskId", view.array_tasks, condition="array"),
    _if_any("ArrayTaskThrottle", _throttle),
)
_FGCTL: Layout = (
    (LayoutPair("JobId", "id"), *_ARRAY, LayoutPair("JobName", "name")),
    (LayoutPair("UserId", _user), LayoutPair("GroupId", "gid")),
    (
        LayoutPair("JobState", "state", lambda state: state.value),
        LayoutPair("Reason", "reason", lambda reason: reason.value),
        LayoutPair("Held", "held", lambda held: held or "no"),
    ),
    (_if_any("Why", view.why),),
    (LayoutPair("ExitCode", view.exit_status), LayoutPair("Attempt", "attempt")),
    (
        LayoutPair("Requeue", "requeue", int),
        LayoutPair("Restarts", "restarts"),
        _if_any("SuspendedTime", "suspended", format_runtime),
    ),
    (
        _if_any("PreemptedBy", "preemption", lambda preemption: preemption.by),
        _if_any("PreemptTime", "preemption", lambda preemption: _moment(preemption.at)),
        _if_any("PreemptMode", "preemption", lambda preemption: preemption.mode.upper()),
    ),
    (LayoutPair("Dependency", "dependency", _or_null),),
    (_if_any("BeginTime", _begin, _moment), _if_any("Deadline", "deadline", _moment)),
    (_if_any("Reservation", "reservation"),),
    (LayoutPair("RunTime", "elapsed", format_runtime), LayoutPair("TimeLimit", "time_limit", format_limit)),
    (LayoutPair("SubmitTime", "submitted_at", _moment), LayoutPair("EligibleTime", "eligible_at", _moment)),
    (LayoutPair("StartTime", view.start, _moment), LayoutPair("EndTime", view.end, _moment)),
    (
        LayoutPair("Partition", "partition"),
        LayoutPair("NumCPUs", "cpus"),
        LayoutPair("ReqMem", "host_memory", lambda size: format_mebibytes(size) if size else "not counted"),
    ),
    (
        LayoutPair("ReqGpus", "gpus"),
        LayoutPair("ReqFraction", _requested_fraction),
        LayoutPair("ReqGpuMem", _requested_memory),
        _if_any("ReqGpuType", "gpu_type"),
    ),
    (
        LayoutPair("GpuIdx", view.gpu_list, condition="allocated"),
        LayoutPair("GpuFraction", view.allocated_share, format_share, "allocated"),
        LayoutPair("GpuMem", _memory_limit, _size, "allocated"),
        LayoutPair("GpuMemPeak", view.gpu_peak, _size, "allocated"),
        LayoutPair("Refusals", "refusals", condition="allocated"),
    ),
    (LayoutPair("GpuUuid", _uuids, condition="allocated"),),
    (LayoutPair("CPUs", _cpus, condition="allocated"),),
    (
        LayoutPair("GpuCompute", "gpu_compute", condition="allocated"),
        LayoutPair("Pacing", "pacing", lambda pacing: pacing or "none", "allocated"),
    ),
    (_if_any("Oversubscribe", "oversubscribed", lambda units: f"{format_share(units)} ({_NOT_GUARANTEED})"),),
    (
        LayoutPair("Enforce", _enforced),
        _if_any("Mps", _unused_mps, lambda use: f"{use.state} ({use.why})"),
        LayoutPair("Preload", _preload),
        LayoutPair("OtherGpus", "other_gpus", condition="allocated"),
        LayoutPair("MaxRSS", view.host_peak, _size),
    ),
    (_if_any("Adopted", "adopted", lambda process: f"process {process.pid}; {_ADOPTED}"),),
    (
        LayoutPair("OomKind", "id", lambda number: "gpu", "post_mortem"),
        _if_any("OomGpu", "post_mortem", lambda report: report.gpu),
        LayoutPair("OomAsked", view.oom_asked, _size, "post_mortem"),
        LayoutPair("OomHeld", view.oom_held, _size, "post_mortem"),
        LayoutPair("OomLimit", view.oom_limit, _size, "post_mortem"),
    ),
    (_if_any("OomOthers", "post_mortem", others),),
    (_if_any("OOMKills", "oom_kills"),),
    (_if_any("Refused", "refused"),),
    (_if_any("Unhooked", "unhooked"),),
    (_if_any("Warning", "warning"),),
    (_if_any("SubmitLine", "command"),),
    (LayoutPair("WorkDir", "chdir", condition=_is_visible),),
    *_STREAMS,
    (_if_any("CancelReason", "note"),),
    (_if_any("Comment", "comment"),),
    (_if_any("WCKey", "wckey"),),
    (_if_any("Container", _container),),
    (_if_any("MailType", _mail_types), _if_any("MailUser", view.mail_user)),
    (_if_any("Detail", "detail"),),
)


def of_fgctl(job: JobInfo) -> Group:
    """Return a job as `fgctl show job` shows it, with its events."""
    events: Group = [[("Event", _event(change))] for change in _without_repetitions(job.steps)]
    return [*lines(_FGCTL, job), *events]


def _without_repetitions(changes: Sequence[StateChange]) -> list[StateChange]:
    """Return the changes of state, without repetitions of one state, attempt and reason."""
    state_changes: list[StateChange] = []
    last = None
    for change in changes:
        what = (change.attempt, change.after, change.reason)
        if change.before != change.after or what != last:
            state_changes.append(change)
        last = what
    return state_changes


def _event(change: StateChange) -> str:
    return f"{_moment(change.at)},attempt={change.attempt},{change.before}->{change.after},{change.reason}"


# -- scontrol ----------------------------------------------------------------------------------------


@reads("state", "attempt")
def _was_on_host(job: JobInfo) -> bool:
    return job.state.holds or (job.state.is_final and bool(job.attempt))


@reads("started_at", "submitted_at")
def _last_look(job: JobInfo) -> float:
    return job.started_at or job.submitted_at


@reads("gpus", view.tres_share)
def _tres_per_node(job: JobInfo) -> str:
    return f"gres:gpu:{format_share(view.tres_share(job))}" if job.gpus else ""


@reads("allocated", view.tres_share)
def _job_gres(job: JobInfo) -> str | None:
    return f"gpu:{format_share(view.tres_share(job))}" if job.allocated else None


@reads(_job_gres, view.gpu_list)
def _gres_with_indices(job: JobInfo) -> str:
    return f"{_job_gres(job)}(IDX:{view.gpu_list(job)})" if job.allocated else ""


@reads("bound_cpus", "cpus")
def _cpu_ids(job: JobInfo) -> str:
    return job.bound_cpus or f"0-{job.cpus - 1}"


@reads("state")
def _holds(job: JobInfo) -> bool:
    return job.state.holds


_DETAILS: Layout = (
    (LayoutPair("JOB_GRES", _job_gres, condition=_holds),),
    (
        LayoutPair("  Nodes", "id", lambda number: host_name(), _holds),
        LayoutPair("CPU_IDs", _cpu_ids, condition=_holds),
        LayoutPair("Mem", "host_memory", lambda size: size >> 20, _holds),
        LayoutPair("GRES", _gres_with_indices, condition=_holds),
    ),
)
_SCONTROL: Layout = (
    (LayoutPair("JobId", "id"), *_ARRAY, LayoutPair("JobName", "name")),
    (LayoutPair("UserId", _user), LayoutPair("GroupId", _group), _constant("MCS_label", "N/A")),
    (
        LayoutPair("Priority", "priority", lambda priority: round(priority or 0)),
        LayoutPair("Nice", "nice"),
        LayoutPair("Account", "account", _or_null),
        LayoutPair("QOS", "qos", _or_null),
    ),
    (
        LayoutPair("JobState", "state", lambda state: state.value),
        LayoutPair("Reason", "reason", lambda reason: reason.word),
        LayoutPair("Dependency", "unmet", _or_null),
    ),
    (
        LayoutPair("Requeue", "requeue", int),
        LayoutPair("Restarts", "restarts"),
        _constant("BatchFlag", 1),
        _constant("Reboot", 0),
        LayoutPair("ExitCode", view.exit_status),
    ),
    (
        LayoutPair("RunTime", "elapsed", format_elapsed),
        LayoutPair("TimeLimit", "time_limit", _limit),
        _constant("TimeMin", "N/A"),
    ),
    (LayoutPair("SubmitTime", "submitted_at", _moment), LayoutPair("EligibleTime", "eligible_at", _moment)),
    (LayoutPair("AccrueTime", "eligible_at", _moment),),
    (
        LayoutPair("StartTime", view.start, _moment),
        LayoutPair("EndTime", view.end, _moment),
        LayoutPair("Deadline", "deadline", shown_time),
    ),
    (
        _constant("SuspendTime", "None"),
        LayoutPair("SecsPreSuspend", "suspended", int),
        LayoutPair("LastSchedEval", _last_look, _moment),
        _constant("Scheduler", "Main"),
    ),
    (
        LayoutPair("Partition", "partition"),
        LayoutPair("AllocNode:Sid", "id", lambda number: f"{host_name()}:0"),
    ),
    (_constant("ReqNodeList", None), _constant("ExcNodeList", None)),
    (LayoutPair("NodeList", _was_on_host, lambda was: host_name() if was else ""),),
    (_if_any("BatchHost", _was_on_host, lambda was: host_name()),),
    (
        _constant("NumNodes", 1),
        LayoutPair("NumCPUs", "cpus"),
        LayoutPair("NumTasks", "ntasks"),
        LayoutPair("CPUs/Task", view.cpus_per_task),
        _constant("ReqB:S:C:T", "0:0:*:*"),
    ),
    (LayoutPair("TRES", view.tres_of_job),),
    (_constant("Socks/Node", "*"), _constant("NtasksPerN:B:S:C", "0:0:*:*"), _constant("CoreSpec", "*")),
)
_SCONTROL_NEEDS: Layout = (
    (
        LayoutPair("MinCPUsNode", view.least_cpus),
        LayoutPair("MinMemoryNode", "host_memory", lambda size: format_mebibytes(size) if size else "0"),
        _constant("MinTmpDiskNode", 0),
    ),
    (
        LayoutPair("Features", "gpu_type", lambda name: name.replace(" ", "_") or None),
        _constant("DelayBoot", "00:00:00"),
    ),
    (_if_any("Reservation", "reservation"),),
    (
        _constant("OverSubscribe", "OK"),
        _constant("Contiguous", 0),
        _constant("Licenses", None),
        _constant("Network", None),
    ),
    (LayoutPair("Command", view.script, condition=_is_visible),),
    (LayoutPair("WorkDir", "chdir", condition=_is_visible),),
    (_if_any("Comment", "comment"),),
    (_if_any("SystemComment", _visible_warning),),
    *_STREAMS,
    (_constant("Power", ""),),
    (_if_any("TresPerNode", _tres_per_node),),
    (_if_any("MailUser", view.mail_user), _if_any("MailType", _mail_types)),
)


def of_scontrol(job: JobInfo, *, details: bool = False) -> Group:
    """Return a job as scontrol shows it; `details`: with the CPUs and GPUs that it holds."""
    shown = (*_SCONTROL, *(_DETAILS if details else ()), *_SCONTROL_NEEDS)
    return lines(shown, job)
