"""The table of what people see of a job: one row for each value, with its place in every output.

A row names a value, an attribute of `JobInfo` or a function of `views/job.py`, and then the columns, keys and
pairs that show it, each with its text. The order of each output is at the end. A column or key is added by a
place in the row of its value, and by its name in the order.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec import to_builtins

from fgsched.domain.job import WHOLE, MpsUse, OomReport
from fgsched.domain.states import JobState, Reason
from fgsched.domain.times import HOUR, MINUTE, format_elapsed, format_limit, format_runtime
from fgsched.domain.units import GIBIBYTE, format_exact, format_indices, format_mebibytes, format_share
from fgsched.protocol import JobInfo, OnGpu
from fgsched.views import job as view
from fgsched.views.display import gpu_number, host_name, iso, shown_time
from fgsched.views.job import Value, reads
from fgsched.views.listing import TableColumn, plain

_LONGEST_LIST = 64  # characters of a list of indices
_UNIT = {"K": 10, "M": 20, "G": 30}
_NOT_GUARANTEED = "GPU memory up to its limit is not guaranteed"
_ADOPTED = "nothing limits it, because it was started outside of fgsched"

# -- texts: of a value that is unknown or empty, too ----------------------------------------------------


def _unchanged(value: Any) -> Any:
    return value


def _or_null(value: Any) -> Any:
    return value or None


def _over_subscribe(task_cpus: int) -> str:
    """Return whether a job shares the host: an exclusive one has CPUs for its tasks, and all of the host."""
    return "NO" if task_cpus else "OK"


def _or_zero(value: Any) -> Any:
    return value or 0


def _or_blank(text: str | None) -> str:
    return text or ""


def null(text: str | None) -> str:
    """Return a text; Slurm's word for an empty one."""
    return text or "(null)"


def word_of(state: JobState | Reason) -> str:
    """Return the word of a state or reason in tables."""
    return state.word


def _name_of(state: JobState | Reason) -> str:
    return str(state.value)


def _truncated_text(value: Any) -> str:
    return str(int(value))


def _as_integer(number: float | None) -> int:
    return int(number or 0)


def _rounded(number: float | None) -> int:
    return round(number or 0)


def _rounded_text(number: float | None) -> str:
    return str(_rounded(number))


def _rounded_text_or_blank(number: float | None) -> str:
    return "" if number is None else str(round(number))


def always(value: Any) -> bool:
    """Tell that a condition holds for all values."""
    return True


def _host_if(holds: Callable[[Any], bool], other: str = "") -> Callable[[Any], str]:
    """Return the text of a value for which the host is shown if it holds, else `other`."""
    return lambda value: host_name() if holds(value) else other


def _holds(state: JobState) -> bool:
    return state.holds


def _code(state: JobState) -> str:
    return state.code


def _is_final(state: JobState) -> bool:
    return state.is_final


def indices(held: Sequence[int]) -> str:
    """Return GPU indices as a list, cut if it is long."""
    return _cut(format_indices(held))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LIST else text[: _LONGEST_LIST - 1] + "…"


def _label(label: str) -> str:
    """Return the displayed id of a job; a long list of tasks is cut."""
    number, bracket, tasks = label.partition("[")
    return f"{number}[{_cut(tasks[:-1])}]" if bracket else label


# sizes, shares and other amounts


def amount(size: int | None, unit: str = "M") -> str:
    """Return bytes in a unit ("K", "M", "G" or "" for bytes), rounded up; gibibytes with two decimals."""
    if size is None:
        return ""
    if not unit or not size:
        return str(size)
    if unit == "G":
        return f"{math.ceil(size * 100 / GIBIBYTE) / 100:.2f}G"
    return f"{-(-size >> _UNIT[unit])}{unit}"


def _size(size: int | None) -> str:
    return "Unknown" if size is None else format_mebibytes(size)


def _size_or(text: str) -> Callable[[int | None], str]:
    return lambda size: format_mebibytes(size) if size else text


def _mebibytes(size: int) -> int:
    return size >> 20


def _share(units: int | None) -> str:
    return "-" if units is None else format_share(units)


def _share_or_blank(units: int | None) -> str:
    return "" if units is None else format_share(units)


def _use_of_gpus(looks: Sequence[OnGpu]) -> list[dict[str, Any]]:
    """Return the bytes on each GPU, and the compute time used of it in percent of the GPU."""
    return [
        {"gpu": look.gpu, "memory": look.memory, "util": None if look.busy is None else look.busy / 100}
        for look in looks
    ]


def number(value: float | None) -> dict[str, Any]:
    """Return a number as Slurm's documents have it; None: it is not set."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def whole_number(value: float | None) -> dict[str, Any]:
    """Return a whole number as Slurm's documents have it; an unknown one is 0."""
    return number(int(value or 0))


def number_or_infinite(value: float | None) -> dict[str, Any]:
    """Return a limit as Slurm's documents have it; None or 0: there is none."""
    return number(value) if value else {"set": False, "infinite": True, "number": 0}


def _float(value: int) -> dict[str, Any]:
    return number(float(value))


def _minutes_or_infinite(seconds: int) -> dict[str, Any]:
    return number_or_infinite(seconds // 60)


def _listed(text: str) -> list[str]:
    return [text] if text else []


def _mebibytes_or_unset(size: int) -> dict[str, Any]:
    return number(size >> 20 if size else None)


def _gres(units: int | None) -> str:
    return f"gpu:{_share(units)}" if units != 0 else "N/A"


def _slurm_gres(units: int | None) -> str:
    return f"gres/gpu:{_share(units)}" if units != 0 else "N/A"


def _fixed_point(priority: float | None) -> str:
    """Return a priority as Slurm's fraction of the highest one."""
    return f"{(priority or 0) / 2**32:.14f}"


def _cpus_of_task(cpus: int) -> str:
    return f"cpu={cpus}" if cpus > 1 else "N/A"


def _gres_detail(held: Sequence[int]) -> list[str]:
    return [f"gpu:{len(held)}(IDX:{','.join(map(str, held))})"] if held else []


def _percent(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}"


def _hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:.4f}"


def others(report: OomReport | None) -> str:
    """Format the memory of other jobs and of external processes on the GPU: 'job 7:4096M,strangers:512M'."""
    if report is None:
        return ""
    return ",".join(f"{name}:{amount(size)}" for name, size in view.oom_others(report)) or "nobody"


# times


def moment(epoch: float | None) -> str:
    """Return a time in the reader's time zone; an unknown one is Unknown."""
    return shown_time(epoch, unknown="Unknown")


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_elapsed(seconds)


def _remaining_time(seconds: float | None) -> str:
    return "UNLIMITED" if seconds is None else format_runtime(seconds)


def limit(seconds: int) -> str:
    """Return a time limit as Slurm shows it: 01:00:00, 2-00:00:00 or UNLIMITED."""
    return format_elapsed(seconds) if seconds else "UNLIMITED"


def _minutes(seconds: int) -> int | None:
    return seconds // 60 if seconds else None


def _minutes_text(seconds: int) -> str:
    return str(seconds // 60) if seconds else ""


def _minutes_or_unlimited(seconds: int) -> str:
    return _minutes_text(seconds) or "UNLIMITED"


def _cpu_seconds(seconds: float | None) -> str:
    """Return CPU seconds in Slurm's form: 0 until they are measured, thousandths below an hour."""
    if seconds is not None and seconds >= HOUR:
        return format_elapsed(seconds)
    minutes, cpu_seconds = divmod(seconds or 0.0, MINUTE)
    return f"{int(minutes):02d}:{int(cpu_seconds):02d}.{int(cpu_seconds % 1 * 1000):03d}"


def _user_name(uid: int | None) -> str:
    import pwd

    try:
        return "" if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _cpu_object(used: float | None) -> dict[str, int]:
    seconds = used or 0.0
    return {"seconds": int(seconds), "microseconds": int(seconds % 1 * 1_000_000)}


# -- values that are texts of several attributes, or objects of Slurm ---------------------------------


@reads(view.end, "state")
def _end_or_none(job: JobInfo) -> str:
    """Return the end of a job; NONE if it runs without a limit."""
    return shown_time(view.end(job), unknown="NONE" if job.state.holds else "N/A")


@reads("preemption")
def _preemption_time(job: JobInfo) -> str:
    return shown_time(job.preemption.at if job.preemption else None)


@reads(view.cpus_per_task)
def _has_cpus_of_task(job: JobInfo) -> bool:
    return view.cpus_per_task(job) > 1


@reads("step")
def _cpu_frequency(job: JobInfo) -> str:
    """Return the requested frequency of the CPUs: none; Slurm has 0 for the step of the script."""
    return "0" if job.step == "batch" else "Unknown"


def _in_steps(measured: Value, text: Callable[[Any], str]) -> Value:
    """Return the text of a measured value of a step; "" in the row of a job, or if it was not measured."""

    @reads("step", measured)
    def shown(job: JobInfo) -> str:
        value = measured(job) if job.step else None
        return "" if value is None else text(value)

    return shown


@reads("step", view.cpu_seconds, view.disk_read, view.gpu_peak, view.gpu_util, view.host_peak)
def _usage_of_step(job: JobInfo) -> dict[str, str]:
    """Return what the processes of a step used, by TRES; {}: nothing was measured."""
    if not job.step or view.cpu_seconds(job) is None:
        return {}
    used = {
        "cpu": format_elapsed(view.cpu_seconds(job) or 0.0),
        "energy": "0",
        "fs/disk": str(view.disk_read(job) or 0),
        "gres/gpumem": amount(view.gpu_peak(job) if job.allocated else None),
        "gres/gpuutil": _rounded_text_or_blank(view.gpu_util(job)),
        "mem": amount(view.host_peak(job), "K"),
    }
    return {tres: text for tres, text in used.items() if text}


@reads("step", view.disk_written)
def _output_of_step(job: JobInfo) -> dict[str, str]:
    """Return what the processes of a step wrote, by TRES; {}: nothing was measured."""
    written = view.disk_written(job) if job.step else None
    return {} if written is None else {"energy": "0", "fs/disk": str(written)}


def _tres_list(used: dict[str, str]) -> str:
    return ",".join(f"{tres}={text}" for tres, text in used.items())


def _tres_hosts(used: dict[str, str]) -> str:
    return ",".join(f"{tres}={host_name()}" for tres in used)


def _tres_tasks(used: dict[str, str]) -> str:
    return ",".join(f"{tres}=0" for tres in used if tres != "energy")


@reads("task", "tasks")
def _task_index(job: JobInfo) -> str:
    if job.task is not None:
        return str(job.task)
    return "N/A" if job.tasks is None else _cut(job.tasks)


@reads("user", "uid")
def _user(job: JobInfo) -> str:
    return f"{job.user}({job.uid})"


@reads(view.group, "gid")
def _group(job: JobInfo) -> str:
    return f"{view.group(job)}({job.gid})"


@reads("state", "reason", "indices")
def _gpus_or_reason(job: JobInfo) -> str:
    reason = f"({job.reason.word})"
    if not job.state.holds:
        return reason
    gpus = indices(job.indices) or "-"
    return f"{gpus} {reason}" if job.reason is Reason.HOST_WAIT else gpus


@reads("state", "reason")
def _host_or_reason(job: JobInfo) -> str:
    return host_name() if job.state.holds else f"({job.reason.word})"


@reads("started_at", "state")
def _start(job: JobInfo) -> str:
    return shown_time(job.started_at, unknown="None" if job.state.is_final else "Unknown")


@reads("request")
def _memory_request(job: JobInfo) -> str:
    demand = job.request.demand
    if demand.memory_part:
        return f"{format_share(demand.memory_part)} of the GPU"
    return format_mebibytes(demand.memory) if demand.memory else "by fraction"


@reads("bound_cpus", view.gpu_list)
def _cpu_binding(job: JobInfo) -> str:
    return f"{job.bound_cpus} (near GPU {view.gpu_list(job)})" if job.bound_cpus else "any"


@reads(view.is_decided, "tier", "mps")
def _enforcement(job: JobInfo) -> str | None:
    """Return the enforcement level, and the part of the threads if MPS limits it."""
    level = ",".join(filter(None, (job.tier, job.mps.word if job.mps else "")))
    return level if view.is_decided(job) else None


@reads("mps")
def _unused_mps(job: JobInfo) -> MpsUse | None:
    """Return the use of MPS of a job on a GPU with MPS that does not use it."""
    return job.mps if job.mps and job.mps.state in ("refused", "lost") else None


@reads("gpus", view.tres_share)
def _tres_per_node(job: JobInfo) -> str:
    return f"gres/gpu:{format_share(view.tres_share(job))}" if job.gpus else ""


@reads("allocated", view.share_by_type)
def _job_gres(job: JobInfo) -> str | None:
    held = ",".join(f"gpu:{name}:{format_share(share)}" for name, share in view.share_by_type(job).items())
    return held or None


@reads(_job_gres, view.gpu_list)
def _gres_with_indices(job: JobInfo) -> str:
    return f"{_job_gres(job)}(IDX:{view.gpu_list(job)})" if job.allocated else ""


@reads("bound_cpus", "cpus")
def _cpu_ids(job: JobInfo) -> str:
    return job.bound_cpus or f"0-{job.cpus - 1}"


@reads("state", "cpus", "host_memory", "bound_cpus")
def _job_resources(job: JobInfo) -> dict[str, Any] | None:
    """Return the resources that a job holds, in the form of data parsers 0.0.41 and later; None: none."""
    if not job.state.holds:
        return None
    memory = {"used": _mebibytes(job.host_memory), "allocated": _mebibytes(job.host_memory)}
    allocation = {
        "index": 0,
        "name": host_name(),
        "cpus": {"count": job.cpus, "used": job.cpus},
        "memory": memory,
        "sockets": [{"index": cpu, "cores": [_ALLOCATED_CORE]} for cpu in range(job.cpus)],
    }
    nodes = {"count": 1, "select_type": ["AVAILABLE"], "list": host_name(), "whole": False}
    threads = number(None)
    return {
        "select_type": ["CPU"],
        "nodes": {**nodes, "allocation": [allocation]},
        "cpus": job.cpus,
        "threads_per_core": threads,
    }


_ALLOCATED_CORE = {"index": 0, "status": ["ALLOCATED"]}


@reads("state", "cpus", "host_memory")
def _old_job_resources(job: JobInfo) -> dict[str, Any]:
    """Return the resources that a job holds, in the form of data parser 0.0.40."""
    if not job.state.holds:
        return {}
    memory = _mebibytes(job.host_memory)
    node = {
        "sockets": {str(cpu): {"cores": {"0": "allocated"}} for cpu in range(job.cpus)},
        "nodename": host_name(),
        "cpus_used": job.cpus,
        "memory_used": memory,
        "memory_allocated": memory,
    }
    return {
        "nodes": host_name(),
        "allocated_cores": job.cpus,
        "allocated_cpus": 0,
        "allocated_hosts": 1,
        "allocated_nodes": [node],
    }


def _exit_object(state: JobState, code: int, signal: int) -> dict[str, Any]:
    status = ["SIGNALED"] if signal else ["ERROR"] if code else ["SUCCESS"]
    return {
        "status": status if state.is_final else ["SUCCESS"],
        "return_code": number(None if signal else code),
        "signal": {"id": number(signal or None), "name": _signal_name(signal)},
    }


def _signal_name(signal: int) -> str:
    import signal as signals

    try:
        return signals.Signals(signal).name.removeprefix("SIG") if signal else ""
    except ValueError:
        return ""


@reads("state", "exit_code", "signal")
def _exit(job: JobInfo) -> dict[str, Any]:
    return _exit_object(job.state, job.exit_code, job.signal)


@reads("state", view.highest_exit_code)
def _derived_exit(job: JobInfo) -> dict[str, Any]:
    return _exit_object(job.state, *view.highest_exit_code(job))


@reads("request", "cpus", "host_memory", "gpus", view.allocated_share)
def _requested_resources(job: JobInfo) -> list[dict[str, Any]]:
    share = view.allocated_share(job) or job.request.demand.share * job.gpus
    listed = [
        {"type": "cpu", "name": "", "id": 1, "count": job.cpus},
        {"type": "mem", "name": "", "id": 2, "count": _mebibytes(job.host_memory)},
        {"type": "node", "name": "", "id": 4, "count": 1},
        {"type": "billing", "name": "", "id": 5, "count": job.cpus},
    ]
    return [*listed, _gpu_resource("gpu", 1001, share)] if job.gpus else listed


def _gpu_resource(name: str, number_of_tres: int, share: int) -> dict[str, Any]:
    """Return a share of GPUs as a resource; the count of Slurm is a whole number, rounded up."""
    return {"type": "gres", "name": name, "id": number_of_tres, "count": -(-share // WHOLE)}


@reads("attempt", "step", _requested_resources, view.share_by_type)
def _allocated_resources(job: JobInfo) -> list[dict[str, Any]]:
    if not job.attempt:
        return []
    listed = [tres for tres in _requested_resources(job) if not job.step or tres["type"] != "billing"]
    typed = enumerate(view.share_by_type(job).items(), start=1002)
    return [*listed, *(_gpu_resource(f"gpu:{name}", place, share) for place, (name, share) in typed)]


@reads("steps", "elapsed")
def _no_use(job: JobInfo) -> dict[str, list[Any]]:
    return {"max": [], "min": [], "average": [], "total": []}


@reads("held")
def _is_held(job: JobInfo) -> bool:
    return bool(job.held)


@reads(view.mail_types)
def _mail_events(job: JobInfo) -> list[str]:
    return view.mail_types(job).split(",") if view.mail_types(job) else []


@reads("state", view.share_by_type, view.gpu_list)
def _held_gres(job: JobInfo) -> list[str]:
    """Return the GPUs that a job holds, with their indices; Slurm has one text for each node."""
    types = view.share_by_type(job) if job.state.holds else {}
    listed = ",".join(f"gpu:{name}:{format_share(share)}" for name, share in types.items())
    return [f"{listed}(IDX:{view.gpu_list(job)})"] if listed else []


@reads("share", "gpus")
def _requested_gres(job: JobInfo) -> str:
    return _slurm_gres(job.share) if job.gpus else ""


@reads(view.label, "step")
def _step_id(job: JobInfo) -> str:
    return view.step_label(job)


# -- places of a value ---------------------------------------------------------------------------------


class JsonKey(NamedTuple):
    """One key of a document: a value of a job, or an object with further keys."""

    name: str
    value: "str | Value | tuple[JsonKey, ...]"  # the name of an attribute, a derived value, or keys
    form: Callable[[Any], Any] = _unchanged


class LayoutPair(NamedTuple):
    """One Key=Value pair of a layout."""

    key: str
    value: str | Callable[[Any], Any]  # the name of an attribute of the row, or a function of the row
    text: Callable[[Any], object] = _unchanged
    condition: str | Callable[[Any], Any] | None = ""  # the pair is shown if this value is there; "": always


Keys = tuple[JsonKey, ...]
Layout = tuple[tuple[LayoutPair, ...], ...]  # lines of pairs


Entry = TableColumn | JsonKey | LayoutPair


class OutputPlace(NamedTuple):
    """The place of a value in one or more outputs."""

    outputs: str  # names with blanks between them
    name: str  # in the order of the output
    entry: Entry  # without the value

    def of(self, value: str | Value) -> Entry:
        """Return the column, key or pair of a value."""
        if isinstance(self.entry, LayoutPair) and self.entry.condition is None:
            return self.entry._replace(value=value, condition=value)
        return self.entry._replace(value=value)


def _queue(
    heading: str, names: str, letter: str = "", text: Callable[[Any], str] = plain, **more: Any
) -> OutputPlace:
    """Return a column of fgq and squeue, with its names for -O and its letter for -o."""
    words = tuple(names.split())
    return OutputPlace("queue", words[0], TableColumn(heading, "", text, words, letter, **more))


def _squeue(
    heading: str, names: str, letter: str = "", text: Callable[[Any], str] = plain, **more: Any
) -> OutputPlace:
    """Return a column of squeue that fgq does not have, or shows in another form."""
    return _queue(heading, names, letter, text, **more)._replace(outputs="squeue_columns")


def _sacct(heading: str, width: int, text: Callable[[Any], str] = plain, **more: Any) -> OutputPlace:
    """Return a column of sacct that fgacct does not have, or shows in another form."""
    return _accounts(heading, width, text, **more)._replace(outputs="sacct_columns")


def _accounts(heading: str, width: int, text: Callable[[Any], str] = plain, **more: Any) -> OutputPlace:
    """Return a column of fgacct and sacct."""
    return OutputPlace("accounts", heading, TableColumn(heading, "", text, width=width, **more))


def _key(outputs: str, name: str, form: Callable[[Any], Any] = _unchanged) -> OutputPlace:
    """Return a key of JSON documents; a dot separates the keys of objects."""
    return OutputPlace(outputs, name, JsonKey(name.rpartition(".")[2], "", form))


def _pair(
    key: str,
    text: Callable[[Any], object] = _unchanged,
    when: str | Value | None = "",
    outputs: str = "fgctl scontrol",
) -> OutputPlace:
    """Return a pair of the layouts of fgctl and scontrol, if they do not differ.

    `when`: the pair is shown if this value is there; "": always; None: if its own value is there.
    """
    return OutputPlace(outputs, key.strip(), LayoutPair(key, "", text, when))


def _if_any(key: str, text: Callable[[Any], object] = _unchanged) -> OutputPlace:
    """Return a pair that is shown if its value is there."""
    return _pair(key, text, None)


def _fgctl(
    key: str, text: Callable[[Any], object] = _unchanged, when: str | Value | None = ""
) -> OutputPlace:
    """Return a pair of the layout of fgctl."""
    return _pair(key, text, when, "fgctl")


def _scontrol(
    key: str, text: Callable[[Any], object] = _unchanged, when: str | Value | None = ""
) -> OutputPlace:
    """Return a pair of the layout of scontrol."""
    return _pair(key, text, when, "scontrol")


def _constant(value: object, place: OutputPlace) -> OutputPlace:
    """Return a place that shows one value for all jobs."""
    changes: Any = {"form" if isinstance(place.entry, JsonKey) else "text": lambda number: value}
    return place._replace(entry=place.entry._replace(**changes))


FIELDS: dict[str | Value, list[OutputPlace]] = {
    # its name
    "id": [
        _queue("JOBID", "JobIDRaw", "A"),
        _squeue("JOBID", "JobID", "A"),
        _squeue("ALLOC_NODES", "AllocNodes", "", lambda number: host_name()),
        _sacct("DBIndex", 21),
        _key("json squeue sacct", "job_id"),
        _key("sacct_step", "nodes", lambda job: {"count": 1, "range": host_name(), "list": [host_name()]}),
        _key("squeue", "allocating_node", lambda job: host_name()),
        _key("old_fgctl", "id"),
        _pair("JobId"),
        _pair("AllocNode:Sid", lambda number: f"{host_name()}:0"),
    ],
    view.label: [
        _queue("JOBID", "JobID JobArrayID", "i", _label, least=12),
        _squeue("JOBID", "JobArrayID", "i", _label),
    ],
    view.step_label: [_accounts("JobID", 12, left=True, least=12)],
    view.step_number: [_accounts("JobIDRaw", 12, left=True)],
    "step": [
        _key("step", "step"),
        _sacct("AveCPUFreq", 10, lambda step: "0" if step else ""),
    ],
    "array": [
        _key("json", "array_job_id"),
        _key("squeue", "array_job_id", whole_number),
        _key("sacct", "array.job_id", _or_zero),
        _key("old_fgctl", "array"),
        _if_any("ArrayJobId"),
    ],
    view.array_number: [_queue("ARRAY_JOB_ID", "ArrayJobID", "F")],
    "task": [
        _key("json", "array_task_id"),
        _key("squeue", "array_task_id", number),
        _key("sacct", "array.task_id", number),
        _key("old_fgctl", "task"),
    ],
    "tasks": [
        _key("json", "array_tasks"),
        _key("squeue", "array_task_string", _or_blank),
        _key("sacct", "array.task", _or_blank),
        _key("old_fgctl", "tasks"),
    ],
    _task_index: [_queue("ARRAY_TASK_ID", "ArrayTaskID", "K")],
    view.array_tasks: [_pair("ArrayTaskId", when="array")],
    view.throttle: [_if_any("ArrayTaskThrottle")],
    "name": [
        _queue("NAME", "Name", "j", least=8),
        _accounts("JobName", 10, least=8),
        _key("json step squeue sacct", "name"),
        _key("sacct_step", "step.name"),
        _pair("JobName"),
    ],
    "user": [
        _queue("USER", "UserName", "u", least=6),
        _accounts("User", 9, is_of_jobs=True, least=6, is_minor=True),
        _key("json sacct", "user"),
        _key("sacct", "association.user"),
        _key("squeue", "user_name"),
    ],
    "uid": [
        _queue("UID", "UserID", "U"),
        _accounts("UID", 6, is_of_jobs=True),
        _key("json", "uid"),
        _key("squeue", "user_id"),
    ],
    _user: [_pair("UserId")],
    "gid": [
        _queue("GROUP", "GroupID"),
        _accounts("GID", 6, is_of_jobs=True),
        _key("json", "gid"),
        _key("squeue", "group_id"),
        _squeue("GROUP", "GroupID", "G"),
        _fgctl("GroupId"),
    ],
    view.group: [
        _key("squeue", "group_name"),
        _key("sacct", "group"),
        _accounts("Group", 9, is_of_jobs=True),
        _squeue("GROUP", "GroupName", "g", is_local=True),
    ],
    _group: [_scontrol("GroupId")],
    "partition": [
        _queue("PARTITION", "Partition", "P", by="partition_place", least=6, is_minor=True),
        _accounts("Partition", 10, is_of_jobs=True, least=6, is_minor=True),
        _key("json squeue sacct", "partition"),
        _pair("Partition"),
    ],
    "account": [
        _queue("ACCOUNT", "Account", "a", null),
        _accounts("Account", 10),
        _key("json squeue sacct", "account"),
        _key("sacct", "association.account"),
        _pair("Account", _or_null),
    ],
    "qos": [
        _queue("QOS", "QOS", "q", null),
        _accounts("QOS", 10, is_of_jobs=True),
        _key("json squeue sacct", "qos"),
        _pair("QOS", _or_null),
    ],
    "wckey": [
        _queue("WCKEY", "WCKey", "w", null),
        _accounts("WCKey", 10),
        _key("json squeue", "wckey"),
        _if_any("WCKey"),
    ],
    "reservation": [
        _queue("RESERVATION", "Reservation", "v", null),
        _accounts("Reservation", 20, is_of_jobs=True),
        _key("json", "reservation"),
        _key("squeue", "resv_name"),
        _key("sacct", "reservation.name", _or_blank),
        _if_any("Reservation"),
    ],
    "nice": [_queue("NICE", "Nice", "y"), _key("json squeue", "nice"), _pair("Nice")],
    "priority": [
        _queue("PRIORITY", "Priority", "p", _rounded_text),
        _queue("PRIORITY", "PriorityLong", "Q", _rounded_text),
        _squeue("PRIORITY", "Priority", "p", _fixed_point),
        _sacct("Priority", 10, _rounded_text, is_of_jobs=True),
        _key("json", "priority"),
        _key("squeue sacct", "priority", whole_number),
        _pair("Priority", _rounded),
    ],
    # its state
    "state": [
        _queue("ST", "StateCompact", "t", _code, paint="state"),
        _queue("STATE", "State", "T", word_of, paint="state"),
        _queue("EXEC_HOST", "BatchHost", "B", _host_if(_holds, "n/a")),
        _queue("NODELIST", "NodeList", "N", _host_if(_holds)),
        _key("json step", "state", _name_of),
        _key("sacct_step", "state", lambda state: [_name_of(state)]),
        _key("json", "state_code", _code),
        _key("json", "final", _is_final),
        _key("squeue", "job_state", lambda state: [_name_of(state)]),
        _key("squeue", "batch_host", _host_if(_holds)),
        _key("squeue", "nodes", _host_if(_holds)),
        _key("sacct", "state.current", lambda state: [_name_of(state)]),
        _pair("JobState", _name_of),
        _pair("  Nodes", _host_if(_holds), view.holds),
    ],
    view.state_by: [_accounts("State", 10, least=9, paint="outcome")],
    "reason": [
        _queue("REASON", "Reason", "r", word_of, paint="reason"),
        _key("squeue", "state_reason", word_of),
        _key("sacct", "state.reason", word_of),
        _fgctl("Reason", _name_of),
        _scontrol("Reason", word_of),
    ],
    view.last_reason: [_accounts("Reason", 22, paint="outcome")],
    view.present_reason: [_key("json", "reason")],
    "cause": [_key("json", "cause", to_builtins)],
    view.why: [_queue("WHY", "Why", is_local=True), _key("json", "why"), _if_any("Why")],
    "held": [_key("json", "held"), _pair("Held", lambda held: held or "no")],
    "dependency": [
        _queue("DEPENDENCY", "Dependency", "E", null),
        _key("json", "dependency", _or_null),
        _key("old_fgctl", "depends"),
        _fgctl("Dependency", _or_null),
    ],
    "unmet": [
        _squeue("DEPENDENCY", "Dependency", "E", null),
        _key("squeue", "dependency"),
        _scontrol("Dependency", _or_null),
    ],
    "attempt": [
        _accounts("AllocNodes", 10, lambda attempt: "1" if attempt else "0"),
        _accounts("NodeList", 15, _host_if(bool, "None assigned")),
        _key("json", "attempt"),
        _key("sacct", "allocation_nodes", lambda attempt: 1 if attempt else 0),
        _key("sacct", "nodes", _host_if(bool, "None assigned")),
        _pair("Attempt"),
    ],
    "restarts": [
        _queue("RESTART_COUNT", "RestartCnt"),
        _accounts("Restarts", 8),
        _key("json", "restarts"),
        _key("squeue sacct", "restart_cnt"),
        _pair("Restarts"),
    ],
    "requeue": [
        _queue("REQUEUE", "Requeue", "", _truncated_text),
        _key("json squeue", "requeue"),
        _pair("Requeue", int),
    ],
    "exit_code": [_queue("EXIT_CODE", "exit_code"), _key("json step", "exit_code")],
    "signal": [_key("json step", "signal")],
    view.exit_status: [
        _accounts("ExitCode", 8),
        _squeue("EXIT_CODE", "exit_code"),
        _pair("ExitCode"),
    ],
    _exit: [_key("squeue sacct sacct_step", "exit_code")],
    view.highest_exit: [
        _accounts("DerivedExitCode", 15),
        _squeue("DERIVED_EC", "DerivedEC"),
        _pair("DerivedExitCode"),
    ],
    _derived_exit: [_key("squeue sacct", "derived_exit_code")],
    "cancelled_by": [
        _key("json", "cancelled_by"),
        _key("sacct", "kill_request_user", _user_name),
    ],
    "note": [_key("json", "note"), _if_any("CancelReason")],
    "detail": [
        _key("squeue", "state_description"),
        _key("json", "detail"),
        _if_any("Detail"),
    ],
    "refused": [_key("json", "refused"), _if_any("Refused")],
    "unhooked": [_if_any("Unhooked")],
    "warning": [
        _accounts("SystemComment", 20),
        _sacct("SystemComment", 15),
        _accounts("Warning", 30),
        _key("json", "warning"),
        _if_any("Warning"),
    ],
    view.visible_warning: [
        _key("squeue", "system_comment"),
        _squeue("SYSTEM_COMMENT", "system_comment", "", null),
        _if_any("SystemComment", "{} ".format),
    ],
    "lost": [_key("json", "lost")],
    "preemption": [
        _accounts("PreemptedBy", 11, lambda preemption: str(preemption.by) if preemption else ""),
        _key("json", "preemption", to_builtins),
        _key("old_fgctl", "eviction", to_builtins),
        _if_any("PreemptedBy", lambda preemption: preemption.by),
        _if_any("PreemptTime", lambda preemption: moment(preemption.at)),
        _if_any("PreemptMode", lambda preemption: preemption.mode.upper()),
    ],
    "post_mortem": [
        _accounts("OOMOthers", 20, others),
        _key("json", "post_mortem", to_builtins),
        _if_any("OomKind", lambda report: "gpu"),
        _if_any("OomGpu", lambda report: report.gpu),
        _if_any("OomOthers", others),
    ],
    _preemption_time: [_squeue("PREEMPT_TIME", "PreemptTime", is_local=True)],
    view.oom_kind: [_accounts("OOMKind", 7), _key("json", "oom_kind")],
    view.oom_asked: [_accounts("OOMAsked", 10, amount), _pair("OomAsked", _size, "post_mortem")],
    view.oom_held: [_accounts("OOMHeld", 10, amount), _pair("OomHeld", _size, "post_mortem")],
    view.oom_limit: [_accounts("OOMLimit", 10, amount), _pair("OomLimit", _size, "post_mortem")],
    "oom_kills": [
        _accounts("OOMKills", 8, lambda kills: str(kills or "")),
        _key("json", "oom_kills", _or_null),
        _if_any("OOMKills"),
    ],
    "steps": [_key("details", "events", to_builtins)],
    # its times
    "submitted_at": [
        _queue("SUBMIT_TIME", "SubmitTime", "V", shown_time, is_local=True),
        _accounts("Submit", 19, moment),
        _key("json", "submit_time"),
        _key("squeue", "submit_time", whole_number),
        _key("sacct", "time.submission", int),
        _key("old_fgctl", "submitted_at"),
        _pair("SubmitTime", moment),
    ],
    "eligible_at": [
        _queue("ELIGIBLE_TIME", "EligibleTime", "", shown_time, is_local=True),
        _squeue("ACCRUE_TIME", "AccrueTime", "", shown_time, is_local=True),
        _accounts("Eligible", 19, moment),
        _key("json", "eligible_time"),
        _key("squeue", "eligible_time", whole_number),
        _key("squeue", "accrue_time", whole_number),
        _key("sacct", "time.eligible", _as_integer),
        _key("old_fgctl", "eligible_at"),
        _pair("EligibleTime", moment),
        _pair("AccrueTime", moment),
    ],
    "started_at": [
        _constant("(null)", _queue("SCHEDNODES", "SchedNodes", "Y")),
        _key("json step", "start_time"),
        _key("sacct", "time.start", _as_integer),
        _key("sacct_step", "time.start", whole_number),
        _key("old_fgctl", "started_at"),
    ],
    _start: [_accounts("Start", 19)],
    view.start: [_key("squeue", "start_time", whole_number), _pair("StartTime", moment)],
    "starts_at": [
        _queue("START_TIME", "StartTime", "S", shown_time, is_local=True),
        _key("old_fgctl", "starts_at"),
    ],
    view.expected_start: [_key("json", "expected_start_time")],
    "likely": [_queue("LIKELY_START", "LikelyStart", "", shown_time, is_local=True)],
    "known": [_queue("KNOWN", "Known", is_local=True, is_minor=True)],
    view.begin_time: [_if_any("BeginTime", moment)],
    view.ended_at: [
        _accounts("End", 19, moment),
        _key("json step", "end_time"),
        _key("sacct", "time.end", _as_integer),
        _key("sacct_step", "time.end", whole_number),
        _key("old_fgctl", "ended_at"),
    ],
    view.end: [
        _queue("END_TIME", "EndTime", "e", shown_time, is_local=True),
        _key("squeue", "end_time", whole_number),
        _pair("EndTime", moment),
    ],
    _end_or_none: [_squeue("END_TIME", "EndTime", "e", is_local=True)],
    "deadline": [
        _queue("DEADLINE", "Deadline", "", shown_time, is_local=True),
        _key("json", "deadline"),
        _key("squeue", "deadline", whole_number),
        _fgctl("Deadline", moment, None),
        _scontrol("Deadline", shown_time),
    ],
    view.waited: [
        _accounts("Planned", 10, _duration),
        _key("json", "planned"),
        _key("sacct", "time.planned", whole_number),
    ],
    view.waited_cpu_time: [
        _accounts("PlannedCPU", 10, format_elapsed),
        _sacct("PlannedCPURAW", 13, _truncated_text, is_of_jobs=True),
    ],
    view.pending_time: [_queue("PENDING_TIME", "PendingTime", "", _truncated_text, is_whole=True)],
    "elapsed": [
        _queue("TIME", "TimeUsed", "M", format_runtime, is_whole=True),
        _accounts("Elapsed", 10, format_elapsed),
        _accounts("ElapsedRaw", 10, _truncated_text),
        _key("json step", "elapsed"),
        _key("sacct", "time.elapsed", int),
        _fgctl("RunTime", format_runtime),
        _scontrol("RunTime", format_elapsed),
    ],
    "suspended": [
        _accounts("Suspended", 10, format_elapsed),
        _key("json", "suspended"),
        _key("sacct", "time.suspended", int),
        _key("squeue", "pre_sus_time", whole_number),
        _if_any("SuspendedTime", format_runtime),
        _pair("SecsPreSuspend", int),
    ],
    "time_limit": [
        _queue("TIME_LIMIT", "TimeLimit", "l", format_limit, is_whole=True, is_minor=True),
        _accounts("Timelimit", 10, limit, is_of_jobs=True),
        _accounts("TimelimitRaw", 12, _minutes_text, is_of_jobs=True),
        _sacct("TimelimitRaw", 10, _minutes_or_unlimited, is_of_jobs=True),
        _key("json", "time_limit", _or_null),
        _key("squeue", "time_limit", _minutes_or_infinite),
        _key("sacct", "time.limit", _minutes_or_infinite),
        _fgctl("TimeLimit", format_limit),
        _scontrol("TimeLimit", limit),
    ],
    view.time_left: [_queue("TIME_LEFT", "TimeLeft", "L", _remaining_time, is_whole=True)],
    view.last_evaluation: [
        _key("squeue", "last_sched_evaluation", whole_number),
        _squeue("LAST_SCHED_EVAL", "LastSchedEval", "", shown_time, is_local=True),
        _pair("LastSchedEval", moment),
    ],
    # its request
    "request": [
        _key("details", "request", to_builtins),
        _key("squeue", "array_max_tasks", lambda request: whole_number(request.throttle)),
        _key("sacct", "array.limits", lambda request: {"max": {"running": {"tasks": request.throttle}}}),
    ],
    view.requested_share: [
        _accounts("ReqGPU", 8, _share_or_blank),
        _key("json", "req_gpu", gpu_number),
    ],
    view.requested_fraction: [_pair("ReqFraction", format_share)],
    view.memory_of_each_gpu: [_accounts("ReqGPUMem", 10, amount), _key("json", "req_gpu_mem")],
    _memory_request: [_pair("ReqGpuMem")],
    "gpu_type": [
        _queue("FEATURES", "Feature", "f", null),
        _sacct("Constraints", 19, lambda name: name.replace(" ", "_"), is_of_jobs=True),
        _key("json", "req_gpu_type", _or_null),
        _key("squeue", "features"),
        _key("sacct", "constraints"),
        _if_any("ReqGpuType"),
        _pair("Features", lambda name: name.replace(" ", "_") or None),
    ],
    "cpus": [
        _queue("CPUS", "NumCPUs", "C"),
        _accounts("NCPUS", 10),
        _accounts("ReqCPUS", 8),
        _key("json", "req_cpus"),
        _key("step old_fgq", "cpus"),
        _key("squeue", "cpus", number),
        _key("squeue", "billable_tres", _float),
        _key("sacct", "required.CPUs"),
        _pair("NumCPUs"),
    ],
    "task_cpus": [  # of an exclusive job
        _queue("OVER_SUBSCRIBE", "OverSubscribe Shared", "h", _over_subscribe),
        _scontrol("OverSubscribe", _over_subscribe),
    ],
    view.least_cpus: [
        _queue("MIN_CPUS", "MinCPUs MaxCPUs", "c"),
        _squeue("MAX_CPUS", "MaxCPUs"),
        _key("squeue", "minimum_cpus_per_node", number),
        _pair("MinCPUsNode"),
    ],
    "ntasks": [
        _queue("TASKS", "NumTasks"),
        _accounts("NTasks", 8),
        _key("json", "ntasks"),
        _key("step", "tasks"),
        _key("squeue", "tasks", number),
        _key("sacct_step", "tasks.count"),
        _pair("NumTasks"),
    ],
    view.cpus_per_task: [
        _queue("CPUS_PER_TASK", "cpus-per-task CPUsPerTask"),
        _squeue("TRES_PER_TASK", "tres-per-task", "", _cpus_of_task),
        _key("squeue", "cpus_per_task", number),
        _key("squeue", "tres_per_task", lambda cpus: f"cpu={cpus}" if cpus > 1 else ""),
        _pair("CPUs/Task"),
        _pair("TresPerTask", "cpu={}".format, _has_cpus_of_task),
    ],
    "host_memory": [
        _queue("MIN_MEMORY", "MinMemory", "m", _size_or("0")),
        _squeue("MIN_MEMORY", "MinMemory", "m", format_exact),
        _accounts("ReqMem", 10, amount, is_of_jobs=True),
        _sacct("ReqMem", 10, format_exact, is_of_jobs=True),
        _key("json", "req_mem", _or_null),
        _key("squeue", "memory_per_node", _mebibytes_or_unset),
        _key("sacct", "required.memory_per_node", _mebibytes_or_unset),
        _key("old_fgq", "mem", _or_null),
        _pair("ReqMem", _size_or("not counted")),
        _pair("MinMemoryNode", format_exact),
        _pair("Mem", _mebibytes, view.holds),
    ],
    view.compute_policy: [_key("json", "gpu_compute")],
    "gpu_compute": [_pair("GpuCompute", when="allocated")],
    view.container: [
        _squeue("CONTAINER", "Container", "", null),
        _key("squeue sacct", "container"),
        _sacct("Container", 19, is_of_jobs=True),
        _if_any("Container"),
    ],
    view.mail_types: [_if_any("MailType")],
    view.mail_user: [
        _key("squeue", "mail_user", _or_blank),
        _if_any("MailUser"),
    ],
    view.tres_in_queue: [_queue("TRES_ALLOC", "tres-alloc Tres")],
    view.tres_of_job: [_key("squeue", "tres_req_str"), _pair("ReqTRES")],
    view.held_tres: [_key("squeue", "tres_alloc_str"), _pair("AllocTRES", _or_null)],
    view.requested_tres: [
        _accounts("ReqTRES", 40, is_of_jobs=True),
        _sacct("ReqTRES", 10, is_of_jobs=True),
    ],
    _requested_resources: [_key("sacct", "tres.requested")],
    # its GPUs, present or expected
    "share": [
        _queue("TRES_PER_JOB", "tres-per-job", "", _gres),
        _queue("GPUS", "GPUs", "G", _share),
        _queue("TRES_PER_NODE", "Gres tres-per-node", "b", _gres),
        _squeue("TRES_PER_NODE", "Gres tres-per-node", "b", _slurm_gres),
        _squeue("TRES_PER_JOB", "tres-per-job", "", _slurm_gres),
        _key("json", "gpus", gpu_number),
    ],
    "gpus": [
        _key("json", "gpu_count"),
        _pair("ReqGpus"),
    ],
    _tres_per_node: [_if_any("TresPerNode")],
    "memory": [
        _queue("GPUMEM", "GpuMem", "", _size_or("-"), is_minor=True),
        _key("old_fgstat", "gpu_mem_limit", _or_null),
    ],
    view.memory_of_gpus: [_key("json", "gpu_mem")],
    "indices": [_queue("GPUIDX", "GpuIdx", "g", indices)],
    _gpus_or_reason: [_queue("GPU(REASON)", "GpuReason", paint="reason")],
    _host_or_reason: [_queue("NODELIST(REASON)", "ReasonList", "R", paint="reason")],
    # its last allocation
    "allocated": [_key("json", "allocated", to_builtins)],
    view.gpu_models: [_accounts("GPUType", 20), _key("json", "gpu_type", _or_null)],
    view.gpu_indices: [_key("json step", "gpu_idx")],
    view.gpu_list: [_accounts("GPUIdx", 8), _pair("GpuIdx", when="allocated")],
    view.allocated_share: [
        _accounts("AllocGPU", 8, format_share),
        _key("json", "alloc_gpu", gpu_number),
        _pair("GpuFraction", format_share, "allocated"),
    ],
    view.memory_limit: [_pair("GpuMem", _size, "allocated")],
    view.gpu_uuids: [_pair("GpuUuid", when="allocated")],
    view.allocated_cpus: [_accounts("AllocCPUS", 10)],
    view.allocated_tres: [_accounts("AllocTRES", 40), _sacct("AllocTRES", 10)],
    _allocated_resources: [_key("sacct sacct_step", "tres.allocated")],
    _no_use: [_key("sacct_step", "tres.requested"), _key("sacct_step", "tres.consumed")],
    _job_resources: [_key("squeue", "job_resources")],
    _old_job_resources: [_key("squeue", "old_job_resources")],
    _held_gres: [_key("squeue", "gres_detail")],
    _requested_gres: [_key("squeue", "tres_per_node")],
    _is_held: [_key("squeue sacct", "hold")],
    _mail_events: [_key("squeue", "mail_type")],
    _step_id: [_key("sacct_step", "step.id")],
    _job_gres: [_pair("JOB_GRES", when=view.holds)],
    _gres_with_indices: [_pair("GRES", when=view.holds)],
    "resources": [_key("json", "resources", to_builtins)],
    "bound_cpus": [_key("json", "bound_cpus"), _key("old_fgctl", "cpus")],
    _cpu_binding: [_pair("CPUs", when="allocated")],
    _cpu_ids: [_pair("CPU_IDs", when=view.holds)],
    view.was_on_host: [
        _pair("NodeList", _host_if(bool)),
        _if_any("BatchHost", lambda was: host_name()),
    ],
    "tier": [
        _queue("ENFORCE", "Enforce"),
        _accounts("Enforce", 8),
        _key("json", "enforce"),
        _key("old_fgctl", "tier"),
    ],
    _enforcement: [_pair("Enforce")],
    "pacing": [
        _key("json", "pacing"),
        _pair("Pacing", lambda pacing: pacing or "none", "allocated"),
    ],
    "preload": [_key("json", "preload")],
    view.decided_preload: [_pair("Preload")],
    "other_gpus": [_key("json", "other_gpus"), _pair("OtherGpus", when="allocated")],
    "oversubscribed": [
        _key("json", "oversubscribed"),
        _if_any("Oversubscribe", lambda units: f"{format_share(units)} ({_NOT_GUARANTEED})"),
    ],
    "mps": [_key("json", "mps", to_builtins)],
    _unused_mps: [_if_any("Mps", lambda use: f"{use.state} ({use.why})")],
    "adopted": [
        _key("json", "adopted", to_builtins),
        _if_any("Adopted", lambda process: f"process {process.pid}; {_ADOPTED}"),
    ],
    # its use
    view.gpu_peak: [
        _accounts("MaxGPUMem", 10, amount, is_minor=True),
        _key("json", "max_gpu_mem"),
        _pair("GpuMemPeak", _size, "allocated"),
    ],
    "gpu_peak": [_key("old_fgctl", "gpu_peak")],
    view.mean_memory: [_accounts("AveGPUMem", 10, amount), _key("json", "ave_gpu_mem")],
    view.gpu_util: [_accounts("AveGPUUtil", 10, _percent), _key("json", "ave_gpu_util")],
    view.gpu_hours: [_accounts("GPUHours", 10, _hours), _key("json", "gpu_hours")],
    view.gpu_hours_used: [_accounts("GPUHoursUsed", 12, _hours), _key("json", "gpu_hours_used")],
    view.gpu_hours_idle: [_accounts("GPUHoursIdle", 12, _hours), _key("json", "gpu_hours_idle")],
    view.wasted_memory_hours: [
        _accounts("WastedGPUMemHours", 17, _hours),
        _key("json", "wasted_gpu_mem_hours"),
    ],
    view.energy: [
        _accounts("EnergyJ", 10, _rounded_text_or_blank),
        _sacct("ConsumedEnergy", 14, _rounded_text),
        _sacct("ConsumedEnergyRaw", 17, _rounded_text),
        _key("json", "energy_j"),
    ],
    "usage": [_key("use efficiency", "usage", to_builtins)],
    view.sm_part: [_key("efficiency", "sm_part"), _key("old_fgeff", "sm_share")],
    view.idle_part: [_key("efficiency", "idle_part")],
    view.busy_cpus: [_key("efficiency", "busy_cpus")],
    "now": [_key("use", "gpu_use", _use_of_gpus)],
    "refusals": [_key("json", "refusals"), _pair("Refusals", when="allocated")],
    view.host_peak: [
        _accounts("AveRSS", 10, amount),
        _accounts("MaxRSS", 10, amount),
        _key("json step", "max_rss"),
        _pair("MaxRSS", _size),
    ],
    view.cpu_seconds: [
        _accounts("AveCPU", 10, _cpu_seconds),
        _accounts("TotalCPU", 10, _cpu_seconds),
        _sacct("UserCPU", 10, _cpu_seconds),
        _key("json step", "cpu_seconds"),
        _key("sacct sacct_step", "time.total", _cpu_object),
        _key("sacct sacct_step", "time.user", _cpu_object),
    ],
    _in_steps(view.cpu_seconds, _cpu_seconds): [_sacct("MinCPU", 10)],
    _in_steps(view.cpu_seconds, _host_if(always)): [_sacct("MinCPUNode", 10)],
    _in_steps(view.cpu_seconds, "0".format): [_sacct("MinCPUTask", 10)],
    _in_steps(view.host_peak, _host_if(always)): [_sacct("MaxRSSNode", 10)],
    _in_steps(view.host_peak, "0".format): [_sacct("MaxRSSTask", 10)],
    _in_steps(view.disk_read, _host_if(always)): [_sacct("MaxDiskReadNode", 15)],
    _in_steps(view.disk_read, "0".format): [_sacct("MaxDiskReadTask", 15)],
    _in_steps(view.disk_written, _host_if(always)): [_sacct("MaxDiskWriteNode", 16)],
    _in_steps(view.disk_written, "0".format): [_sacct("MaxDiskWriteTask", 16)],
    _usage_of_step: [
        *(_sacct(f"TRESUsageIn{how}", 14, _tres_list) for how in ("Ave", "Max", "Min", "Tot")),
        *(_sacct(f"TRESUsageIn{how}Node", 18, _tres_hosts) for how in ("Max", "Min")),
        *(_sacct(f"TRESUsageIn{how}Task", 18, _tres_tasks) for how in ("Max", "Min")),
    ],
    _output_of_step: [
        *(_sacct(f"TRESUsageOut{how}", 15, _tres_list) for how in ("Ave", "Max", "Min", "Tot")),
        *(_sacct(f"TRESUsageOut{how}Node", 19, _tres_hosts) for how in ("Max", "Min")),
        *(_sacct(f"TRESUsageOut{how}Task", 19, _tres_tasks) for how in ("Max", "Min")),
    ],
    _cpu_frequency: [
        _sacct("ReqCPUFreq", 10),
        *(_sacct(f"ReqCPUFreq{limit_of}", 13) for limit_of in ("Gov", "Max", "Min")),
    ],
    view.cpu_time: [_accounts("CPUTime", 10, format_elapsed)],
    view.whole_cpu_time: [_accounts("CPUTimeRAW", 10)],
    view.disk_read: [
        _accounts("AveDiskRead", 12, amount),
        _sacct("AveDiskRead", 14, amount),
        _accounts("MaxDiskRead", 12, amount),
        _key("json step", "disk_read"),
    ],
    view.disk_written: [
        _accounts("AveDiskWrite", 12, amount),
        _sacct("AveDiskWrite", 14, amount),
        _accounts("MaxDiskWrite", 12, amount),
        _key("json step", "disk_written"),
    ],
    # shown to its owner and to operators
    "is_private": [_key("json", "is_private")],
    "comment": [
        _queue("COMMENT", "Comment", "k", null),
        _accounts("Comment", 14),
        _key("json", "comment"),
        _key("squeue", "comment", _or_blank),
        _key("sacct", "comment.job", _or_blank),
        _fgctl("Comment", when=None),
        _scontrol("Comment", "{} ".format, None),
    ],
    "chdir": [
        _queue("WORK_DIR", "WorkDir", "Z", null),
        _accounts("WorkDir", 20, is_of_jobs=True),
        _key("json", "work_dir"),
        _key("squeue", "current_working_directory", _or_blank),
        _key("sacct", "working_directory", _or_blank),
        _pair("WorkDir", when=view.is_visible),
    ],
    "command": [
        _queue("COMMAND", "Command", "o", null),
        _accounts("SubmitLine", 20),
        _key("json", "submit_line"),
        _key("sacct", "submit_line", _or_blank),
        _key("old_fgq", "command"),
        _if_any("SubmitLine"),
    ],
    view.script: [
        _key("squeue", "command", _or_blank),
        _squeue("COMMAND", "Command", "o", null),
        _pair("Command", when=view.is_visible),
    ],
    view.stdin: [
        _queue("STDIN", "STDIN", is_local=True),
        _sacct("StdIn", 20, is_of_jobs=True),
        _key("json", "std_in", _or_null),
        _key("squeue", "standard_input", _or_blank),
        _key("sacct", "stdin", _or_blank),
        _key("sacct", "stdin_expanded", _or_blank),
        _pair("StdIn", when=view.is_visible),
    ],
    view.stdout: [
        _queue("STDOUT", "STDOUT", is_local=True),
        _accounts("StdOut", 30, is_of_jobs=True),
        _sacct("StdOut", 20, is_of_jobs=True),
        _key("json", "std_out", _or_null),
        _key("squeue", "standard_output", _or_blank),
        _key("sacct", "stdout", _or_blank),
        _key("sacct", "stdout_expanded", _or_blank),
        _pair("StdOut", when=view.is_visible),
    ],
    view.stderr: [
        _queue("STDERR", "STDERR", is_local=True),
        _accounts("StdErr", 30, is_of_jobs=True),
        _sacct("StdErr", 20, is_of_jobs=True),
        _key("json", "std_err", _or_null),
        _key("squeue", "standard_error", _or_blank),
        _key("sacct", "stderr", _or_blank),
        _key("sacct", "stderr_expanded", _or_blank),
        _pair("StdErr", when=view.is_visible),
    ],
}
_CONSTANT_KEYS: dict[str, tuple[tuple[Any, str], ...]] = {  # of documents of Slurm
    "squeue": (
        (True, "batch_flag oversubscribe"),
        (False, "contiguous reboot"),
        ("fgsched", "cluster"),
        ([], "flags job_size_str shared priority_by_partition exclusive show_flags"),
        ({"flags": []}, "power"),
        (["NOT_SET"], "profile"),
        (
            "",
            """admin_comment batch_features burst_buffer burst_buffer_state cluster_features container_id
                    cpus_per_tres cron excluded_nodes extra failed_node federation_origin
                    federation_siblings_active federation_siblings_viable het_job_id_set licenses mcs_label
                    memory_per_tres network prefer required_nodes scheduled_nodes selinux_context tres_bind
                    tres_freq tres_per_job tres_per_socket""",
        ),
        (
            0,
            """association_id core_spec thread_spec required_switches minimum_switches
                    sockets_per_board maximum_switch_wait_time""",
        ),
        (number(1), "node_count"),
        (
            number(0),
            """delay_boot het_job_id het_job_offset max_cpus max_nodes tasks_per_tres tasks_per_node
                    tasks_per_board minimum_tmp_disk_per_node preempt_time preemptable_time resize_time
                    suspend_time time_minimum""",
        ),
        (
            number(None),
            """cores_per_socket cpu_frequency_minimum cpu_frequency_maximum cpu_frequency_governor
                    memory_per_cpu sockets_per_node threads_per_core""",
        ),
        (number_or_infinite(None), "tasks_per_core tasks_per_socket"),
    ),
    "sacct": (
        ("fgsched", "cluster association.cluster"),
        (
            "",
            """comment.administrator comment.system association.partition block extra failed_node
                    licenses mcs.label qosreq script used_gres""",
        ),
        (0, "association.id het.job_id reservation.id"),
        (number(None), "het.job_offset required.memory_per_cpu"),
        ({"wckey": "", "flags": []}, "wckey"),
        ([], "flags"),
        ({"seconds": 0, "microseconds": 0}, "time.system"),
    ),
    "sacct_step": (
        ("", "pid kill_request_user"),
        ({"seconds": 0, "microseconds": 0}, "time.system"),
        (number(None), "CPU.requested_frequency.min CPU.requested_frequency.max"),
        ("Unknown", "CPU.governor task.distribution"),
        (0, "statistics.CPU.actual_frequency"),
        (number(0), "statistics.energy.consumed"),
    ),
}
# what Slurm has and one host has not: the same for all jobs
CONSTANTS = [
    _constant("1", _queue("NODES", "NumNodes Nodes", "D")),
    _constant("0", _queue("MIN_TMP_DISK", "MinTmpDisk", "d")),
    _constant("*", _queue("CORES_PER_SOCKET", "CoresPerSocket", "I")),
    _constant("*", _queue("SOCKETS_PER_NODE", "SocketsPerNode", "H")),
    _constant("*", _queue("THREADS_PER_CORE", "ThreadsPerCore", "J")),
    _constant("*:*:*", _queue("S:C:T", "SCT", "z")),
    _constant("", _queue("REQ_NODES", "ReqNodes", "n")),
    _constant("", _queue("EXC_NODES", "ExcNodes", "x")),
    _constant("0", _queue("CONTIGUOUS", "Contiguous", "O")),
    _constant("", _queue("SELECT_JOBINFO", "SelectJobInfo", "s")),
    _constant("(null)", _queue("LICENSES", "Licenses", "W")),
    _constant("N/A", _queue("CORE_SPEC", "CoreSpec", "X")),
    _constant("fgsched", _queue("CLUSTER", "Cluster Origin")),
    _constant("N/A", _queue("TRES_PER_TASK", "tres-per-task tres-per-socket")),
    _constant("*", _squeue("CORES_PER_SOCKET", "Cores", "I")),
    _constant("*", _squeue("SOCKETS_PER_NODE", "Sockets", "H")),
    _constant("*", _squeue("THREADS_PER_CORE", "Threads", "J")),
    _constant("", _accounts("AdminComment", 20)),
    _constant("0", _accounts("AssocID", 8)),
    _constant("fgsched", _accounts("Cluster", 10)),
    _constant("", _accounts("Container", 20)),
    _constant("", _accounts("Flags", 20)),
    _constant("", _accounts("Layout", 9)),
    _constant("", _accounts("MaxVMSize", 10)),
    _constant("1", _accounts("NNodes", 8)),
    _constant("1", _accounts("QOSRAW", 10, is_of_jobs=True)),
    _constant("1", _accounts("ReqNodes", 8)),
    *(
        _constant(text, _squeue(heading, names))
        for text, columns in {
            "0": (
                ("ALLOC_SID", "AllocSID"),
                ("ASSOC_ID", "AssocID"),
                ("BOARDS_PER_NODE", "BoardsPerNode"),
                ("NTASKS_PER_BOARD", "NTPerBoard"),
                ("NTASKS_PER_NODE", "NTPerNode"),
                ("REBOOT", "Reboot"),
                ("REQ_SWITCH", "ReqSwitch"),
                ("SOCKETS_PER_BOARD", "SPerBoard"),
            ),
            "0:00": (
                ("DELAY_BOOT", "DelayBoot"),
                ("TIME_MIN", "MinTime"),
                ("WAIT4SWITCH", "Wait4Switch"),
            ),
            "1": (("BATCH_FLAG", "BatchFlag"), ("MAX_NODES", "MaxNodes")),
            "(null)": (
                ("ADMIN_COMMENT", "admin_comment"),
                ("BURST_BUFFER", "BurstBuffer"),
                ("BURST_BUFFER_STATE", "BurstBufferState"),
                ("CLUSTER_FEATURES", "ClusterFeature"),
                ("CONTAINERID", "ContainerID"),
                ("MCSLABEL", "MCSLabel"),
                ("NETWORK", "Network"),
                ("PREFER", "Prefer"),
            ),
            "N/A": (
                ("CPUS_PER_TRES", "cpus-per-tres"),
                ("HET_JOB_ID", "HetJobID PackJobID"),
                ("HET_JOB_ID_SET", "HetJobIDSet PackJobIDSet"),
                ("HET_JOB_OFFSET", "HetJobOffset PackJobOffset"),
                ("MEM_PER_TRES", "mem-per-tres"),
                ("NTASKS_PER_CORE", "NTPerCore"),
                ("NTASKS_PER_SOCKET", "NTPerSocket"),
                ("RESIZE_TIME", "ResizeTime"),
                ("TRES_BIND", "tres-bind"),
                ("TRES_FREQ", "tres-freq"),
                ("TRES_PER_SOCKET", "tres-per-socket"),
            ),
            "NA": (
                ("ORIGIN", "Origin"),
                ("ORIGIN_RAW", "OriginRaw"),
                ("ACTIVE_SIBLINGS", "SiblingsActive"),
                ("ACTIVE_SIBLINGS_RAW", "SiblingsActiveRaw"),
                ("VIABLE_SIBLINGS", "SiblingsViable"),
                ("VIALBLE_SIBLINGS_RAW", "SiblingsViableRaw"),  # as Slurm spells it
            ),
            "NotSet": (("PROFILE", "Profile"),),
        }.items()
        for heading, names in columns
    ),
    *(
        _constant("", _sacct(heading, width))
        for heading, width in {
            **{"AvePages": 10, "AveVMSize": 10, "BlockID": 16, "Extra": 14, "FailedNode": 8},
            **{"Licenses": 10, "MaxPages": 8, "MaxPagesNode": 12, "MaxPagesTask": 14, "MaxVMSizeNode": 14},
            **{"MaxVMSizeTask": 14, "McsLabel": 12, "QOSREQ": 10, "ReservationId": 8, "SLUID": 14},
        }.items()
    ),
    _constant("", _sacct("AdminComment", 15)),
    _constant("0", _sacct("AssocID", 7)),
    _constant("", _sacct("Flags", 19)),
    _constant("1", _sacct("QOSRAW", 6, is_of_jobs=True)),
    _constant("0", _sacct("WCKeyID", 10, is_of_jobs=True)),
    _constant("00:00:00", _sacct("SystemCPU", 10)),
    *(
        _constant(value, _key(output, name))
        for output, values in _CONSTANT_KEYS.items()
        for value, names in values
        for name in names.split()
    ),
]


# -- the order of each output ------------------------------------------------------------------------

_ENTRIES = {
    (output, place.name): place.of(value)
    for value, places in {**FIELDS, "id": [*FIELDS["id"], *CONSTANTS]}.items()
    for place in places
    for output in place.outputs.split()
}


def _entry(name: str, outputs: Sequence[str]) -> Any:
    """Return the entry with that name of the first of the outputs that has it."""
    if name.endswith("_iso"):  # the text of a time
        return _entry(name.removesuffix("_iso"), outputs)._replace(name=name, form=iso)
    return next(_ENTRIES[output, name] for output in outputs if (output, name) in _ENTRIES)


def _columns(output: str, order: str) -> tuple[TableColumn, ...]:
    return tuple(_entry(name, [output]) for name in order.split())


def _all_columns(output: str) -> tuple[TableColumn, ...]:
    """Return the columns of an output in the order of their rows."""
    return tuple(entry for (name, _), entry in _ENTRIES.items() if name == output)  # type: ignore[misc]


def _keys(order: str, *outputs: str) -> Keys:
    """Return the keys of a document in an order; those with a dot are keys of objects."""
    return _nested(order.split(), outputs, "")


def _nested(names: Sequence[str], outputs: Sequence[str], before: str) -> Keys:
    inner: dict[str, list[str]] = {}
    for name in names:
        first, dot, inner_name = name.partition(".")
        inner.setdefault(first, []).extend([inner_name] * bool(dot))
    return tuple(
        JsonKey(name, _nested(inner_name, outputs, f"{before}{name}."))
        if inner_name
        else _entry(f"{before}{name}", outputs)
        for name, inner_name in inner.items()
    )


def layout(text: str, pair_of: Callable[[str], LayoutPair]) -> Layout:
    """Return a layout from its text, which has the form in which it is printed.

    `pair_of` returns the pair of a key. A word with = is the same for all rows.
    """
    lines = text.strip().splitlines()
    return tuple(tuple(_constant_or_pair(word, pair_of) for word in line.split()) for line in lines)


def _constant_or_pair(word: str, pair_of: Callable[[str], LayoutPair]) -> LayoutPair:
    key, equals, text = word.partition("=")
    return LayoutPair(key, lambda row: text) if equals else pair_of(key)


def _layout(text: str, output: str) -> Layout:
    return layout(text, lambda key: _entry(key, [output]))


COLUMNS = _columns(
    "queue",
    """
    JobID JobIDRaw ArrayJobID ArrayTaskID Partition Account QOS Reservation Priority PriorityLong Nice
    Name UserName UserID StateCompact State TimeUsed TimeLimit TimeLeft SubmitTime StartTime LikelyStart
    Known EndTime NumCPUs MinMemory NumNodes MinCPUs NumTasks cpus-per-task MinTmpDisk OverSubscribe
    CoresPerSocket SocketsPerNode ThreadsPerCore SCT ReqNodes ExcNodes Contiguous SelectJobInfo Licenses
    WCKey CoreSpec BatchHost Cluster GroupID EligibleTime PendingTime Requeue RestartCnt exit_code
    tres-alloc tres-per-job tres-per-task SchedNodes NodeList ReasonList Reason GPUs GpuIdx GpuMem
    GpuReason Gres Feature Enforce Dependency Deadline Comment Command WorkDir Why STDOUT STDERR STDIN
    """,
)
ACCOUNTS = _columns(
    "accounts",
    """
    Account AdminComment AllocCPUS AllocGPU AllocNodes AllocTRES AssocID AveCPU AveDiskRead AveDiskWrite
    AveRSS Cluster AveGPUMem AveGPUUtil Comment Container CPUTime CPUTimeRAW DerivedExitCode Elapsed
    ElapsedRaw Eligible End EnergyJ Enforce ExitCode Flags GID GPUHours GPUHoursIdle GPUHoursUsed GPUIdx
    GPUType Group JobID JobIDRaw JobName Layout MaxDiskRead MaxDiskWrite MaxGPUMem MaxRSS MaxVMSize
    NCPUS NNodes NodeList NTasks OOMAsked OOMHeld OOMKills OOMKind OOMLimit OOMOthers Partition Planned
    PlannedCPU PreemptedBy QOS QOSRAW Reason ReqCPUS ReqGPU ReqGPUMem ReqMem ReqNodes ReqTRES
    Reservation Restarts Start State StdErr StdOut Submit SubmitLine SystemComment Suspended Timelimit
    TimelimitRaw TotalCPU UID User Warning WastedGPUMemHours WCKey WorkDir
    """,
)
SQUEUE_COLUMNS = _all_columns("squeue_columns")  # that fgq does not have, or shows in another form
SACCT_COLUMNS = _all_columns("sacct_columns")  # that fgacct does not have, or shows in another form
JOB = _keys(
    """
    job_id array_job_id array_task_id array_tasks name user uid gid partition account qos wckey
    reservation nice priority state state_code final reason cause why held deadline dependency attempt
    restarts requeue exit_code signal cancelled_by note detail refused warning lost preemption
    post_mortem oom_kind oom_kills submit_time submit_time_iso eligible_time eligible_time_iso
    start_time start_time_iso expected_start_time expected_start_time_iso end_time end_time_iso planned
    elapsed suspended time_limit req_gpu req_gpu_mem req_gpu_type req_cpus req_mem ntasks gpu_compute
    gpus gpu_count gpu_mem gpu_type gpu_idx alloc_gpu allocated resources bound_cpus enforce pacing
    preload other_gpus oversubscribed mps adopted max_gpu_mem ave_gpu_mem ave_gpu_util gpu_hours
    gpu_hours_used gpu_hours_idle wasted_gpu_mem_hours energy_j refusals max_rss cpu_seconds disk_read
    disk_written is_private comment work_dir submit_line std_in std_out std_err
    """,
    "json",
)
DETAILS = _keys("events request", "details")  # of `fgctl show job` only
USE = _keys("gpu_use usage", "use")  # of `fgstat` only
EFFICIENCY = _keys("sm_part idle_part busy_cpus usage", "efficiency")  # of `fgeff` only
OLD = {  # keys of version 0.1, per command, which the next version will not have
    "fgq": _keys("cpus mem command", "old_fgq"),
    "fgstat": _keys("gpu_mem_limit", "old_fgstat"),
    "fgeff": _keys("sm_share", "old_fgeff"),
    "fgctl": _keys(
        """
    id array task tasks tier gpu_peak submitted_at eligible_at started_at starts_at ended_at cpus
    depends eviction submitted_at_iso eligible_at_iso started_at_iso starts_at_iso ended_at_iso
        """,
        "old_fgctl",
    ),
}
STEP = _keys(
    """
    step name tasks cpus gpu_idx state exit_code signal start_time start_time_iso end_time end_time_iso
    elapsed max_rss cpu_seconds disk_read disk_written
    """,
    "step",
)
SLURM_VERSIONS = (40, 41, 42)  # of Slurm's data parsers 0.0.40 …; the last one is the default
_SLURM_ORDERS = {  # a key with "@41-42" is in the documents of these data parsers only
    # of squeue --json and scontrol show job --json
    "squeue": """
    account accrue_time admin_comment allocating_node array_job_id array_task_id array_max_tasks
    array_task_string association_id batch_features batch_flag batch_host flags burst_buffer
    burst_buffer_state cluster cluster_features command comment container container_id contiguous
    core_spec thread_spec cores_per_socket billable_tres cpus_per_task cpu_frequency_minimum
    cpu_frequency_maximum cpu_frequency_governor cpus_per_tres cron deadline delay_boot dependency
    derived_exit_code eligible_time end_time excluded_nodes exit_code extra failed_node features
    federation_origin federation_siblings_active federation_siblings_viable gres_detail group_id
    group_name het_job_id het_job_id_set het_job_offset job_id old_job_resources@40-40
    job_resources@41-42 job_size_str job_state last_sched_evaluation licenses mail_type mail_user
    max_cpus max_nodes mcs_label memory_per_tres name network nodes nice tasks_per_core tasks_per_tres
    tasks_per_node tasks_per_socket tasks_per_board cpus node_count tasks partition prefer
    memory_per_cpu memory_per_node minimum_cpus_per_node minimum_tmp_disk_per_node power preempt_time
    preemptable_time pre_sus_time hold priority priority_by_partition@42-42 profile qos reboot
    required_nodes required_switches@42-42 requeue resize_time restart_cnt resv_name scheduled_nodes
    selinux_context shared sockets_per_board sockets_per_node start_time state_description state_reason
    standard_error standard_input standard_output submit_time suspend_time system_comment time_limit
    time_minimum threads_per_core tres_bind tres_freq tres_per_job tres_per_node tres_per_socket
    tres_per_task tres_req_str tres_alloc_str user_id user_name maximum_switch_wait_time wckey
    current_working_directory minimum_switches@40-41 exclusive@40-41 oversubscribe@40-41
    show_flags@40-41
    """,
    "sacct": """
    account comment.administrator comment.job comment.system allocation_nodes array.job_id array.limits
    array.task_id array.task association.account association.cluster association.partition
    association.user association.id block cluster constraints container derived_exit_code time.elapsed
    time.eligible time.end time.planned@41-42 time.start time.submission time.suspended time.system
    time.limit time.total time.user exit_code extra failed_node flags group het.job_id het.job_offset
    job_id name licenses mcs.label nodes partition hold priority qos qosreq@42-42 required.CPUs
    required.memory_per_cpu required.memory_per_node kill_request_user restart_cnt@42-42 reservation.id
    reservation.name script stdin_expanded@41-42 stdout_expanded@41-42 stderr_expanded@41-42
    stdout@41-42 stderr@41-42 stdin@41-42 state.current state.reason submit_line tres.allocated
    tres.requested used_gres user wckey working_directory
    """,
    "sacct_step": """
    time.elapsed time.end time.start time.suspended time.system time.total time.user exit_code nodes
    tasks.count pid CPU.requested_frequency.min CPU.requested_frequency.max CPU.governor
    kill_request_user state statistics.CPU.actual_frequency statistics.energy.consumed step.id step.name
    task.distribution tres.requested tres.consumed tres.allocated
    """,
}
_BEFORE = {"old_job_resources": "job_resources"}  # keys whose value has another form in old documents


@cache
def slurm_keys(output: str, version: int) -> Keys:
    """Return the keys of a job or of a step in a document of Slurm's data parser 0.0.<version>."""
    order = [
        name
        for name, _, versions in (word.partition("@") for word in _SLURM_ORDERS[output].split())
        if not versions or int(versions[:2]) <= version <= int(versions[3:])
    ]
    keys = _keys(" ".join(order), output, *(["sacct"] if output == "sacct_step" else []))
    return tuple(key._replace(name=_BEFORE.get(key.name, key.name)) for key in keys)


FGCTL = _layout(
    """
    JobId ArrayJobId ArrayTaskId ArrayTaskThrottle JobName
    UserId GroupId
    JobState Reason Held
    Why
    ExitCode Attempt
    Requeue Restarts SuspendedTime
    PreemptedBy PreemptTime PreemptMode
    Dependency
    BeginTime Deadline
    Reservation
    RunTime TimeLimit
    SubmitTime EligibleTime
    StartTime EndTime
    Partition NumCPUs ReqMem
    ReqGpus ReqFraction ReqGpuMem ReqGpuType
    GpuIdx GpuFraction GpuMem GpuMemPeak Refusals
    GpuUuid
    CPUs
    GpuCompute Pacing
    Oversubscribe
    Enforce Mps Preload OtherGpus MaxRSS
    Adopted
    OomKind OomGpu OomAsked OomHeld OomLimit
    OomOthers
    OOMKills
    Refused
    Unhooked
    Warning
    SubmitLine
    WorkDir
    StdErr
    StdIn
    StdOut
    CancelReason
    Comment
    WCKey
    Container
    MailType MailUser
    Detail
    """,
    "fgctl",
)
_BEGIN = """
    JobId ArrayJobId ArrayTaskId ArrayTaskThrottle JobName
    UserId GroupId MCS_label=N/A
    Priority Nice Account QOS
    JobState Reason Dependency
    Requeue Restarts BatchFlag=1 Reboot=0 ExitCode
"""
_TIMES = """
    RunTime TimeLimit TimeMin=N/A
    SubmitTime EligibleTime
    AccrueTime
    StartTime EndTime Deadline
    SuspendTime=None SecsPreSuspend LastSchedEval Scheduler=Main
    Partition AllocNode:Sid
    ReqNodeList=(null) ExcNodeList=(null)
    NodeList
    BatchHost
    NumNodes=1 NumCPUs NumTasks CPUs/Task ReqB:S:C:T=0:0:*:*
    ReqTRES
    AllocTRES
    Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
"""
_DETAILS = """
    JOB_GRES
    Nodes CPU_IDs Mem GRES
"""
_END = """
    MinCPUsNode MinMemoryNode MinTmpDiskNode=0
    Features DelayBoot=00:00:00
    Reservation
    OverSubscribe Contiguous=0 Licenses=(null) Network=(null)
    Command
    WorkDir
    Comment
    SystemComment
    StdErr
    StdIn
    StdOut
    TresPerNode
    TresPerTask
    MailUser MailType
    =
"""
SCONTROL = _layout(_BEGIN + _TIMES + _END, "scontrol")
SCONTROL_DETAILS = _layout(  # with the CPUs and GPUs that a job holds
    f"{_BEGIN}    DerivedExitCode\n{_TIMES}{_DETAILS}{_END}", "scontrol"
)
