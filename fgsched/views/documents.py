"""The JSON documents of jobs: one set of keys for all commands, and Slurm's documents.

A key is data: its name, the value of a job that it has, and the form of the value in JSON. Sizes are in
bytes, durations in seconds, times in seconds since the epoch and as text; an unknown value is null.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import to_builtins

from fgsched.domain.job import WHOLE
from fgsched.domain.states import JobState, Reason
from fgsched.protocol import JobInfo
from fgsched.views import display
from fgsched.views import job as view
from fgsched.views.display import host_name
from fgsched.views.job import Value, fields_of, reads


def _same(value: Any) -> Any:
    return value


def _or_null(value: Any) -> Any:
    return value or None


class JsonKey(NamedTuple):
    """One key of a document: a value of a job, or an object with further keys."""

    name: str
    value: "str | Value | tuple[JsonKey, ...]"  # the name of an attribute, a derived value, or keys
    form: Callable[[Any], Any] = _same

    def of(self, job: JobInfo) -> Any:
        """Return the value of a job."""
        if isinstance(self.value, tuple):
            return record(self.value, job)
        return self.form(getattr(job, self.value) if isinstance(self.value, str) else self.value(job))


Keys = tuple[JsonKey, ...]


def record(keys: Iterable[JsonKey], job: JobInfo) -> dict[str, Any]:
    """Return the values of a job by key."""
    return {key.name: key.of(job) for key in keys}


def fields(keys: Iterable[JsonKey]) -> list[str]:
    """Return the attributes of a job that the keys need."""
    found: dict[str, None] = {}
    for key in keys:
        found |= dict.fromkeys(fields(key.value) if isinstance(key.value, tuple) else fields_of(key.value))
    return [name for name in found if name != "step"]  # which the client fills in


def _plain(*names: str) -> Keys:
    """Return keys that have the names of their attributes."""
    return tuple(JsonKey(name, name) for name in names)


def _built(*names: str) -> Keys:
    """Return keys of records that have the names of their attributes."""
    return tuple(JsonKey(name, name, to_builtins) for name in names)


def _time(name: str, value: str | Value) -> Keys:
    """Return the two keys of a time: seconds since the epoch, and text."""
    return JsonKey(f"{name}_time", value), JsonKey(f"{name}_time_iso", value, display.iso)


def _value(word: JobState | Reason) -> str:
    return str(word.value)


@reads("state", view.last_reason)
def _reason(job: JobInfo) -> str:
    """Return the reason of a job; of an ended one, that of the accounts."""
    return view.last_reason(job) if job.state.is_final else job.reason.word


@reads("gpus", "memory")
def _gpu_memory(job: JobInfo) -> int | None:
    return job.memory if job.gpus else 0


@reads("gpus", "gpu_compute")
def _gpu_compute(job: JobInfo) -> str | None:
    return job.gpu_compute if job.gpus else None


@reads("starts_at", "state")
def _expected_start(job: JobInfo) -> float | None:
    return job.starts_at if job.state is JobState.PENDING else None


@reads("allocated")
def _gpu_indices(job: JobInfo) -> list[int]:
    return [part.gpu for part in job.allocated]


# -- the document of a job ---------------------------------------------------------------------------

JOB: Keys = (
    JsonKey("job_id", "id"),
    JsonKey("array_job_id", "array"),
    JsonKey("array_task_id", "task"),
    JsonKey("array_tasks", "tasks"),
    *_plain("name", "user", "uid", "gid", "partition", "account", "qos", "wckey", "reservation", "nice"),
    JsonKey("priority", "priority"),
    # its state
    JsonKey("state", "state", _value),
    JsonKey("state_code", "state", lambda state: state.code),
    JsonKey("final", "state", lambda state: state.is_final),
    JsonKey("reason", _reason),
    JsonKey("cause", "cause", to_builtins),
    JsonKey("why", view.why),
    *_plain("held", "deadline"),
    JsonKey("dependency", "dependency", _or_null),
    *_plain("attempt", "restarts", "requeue", "exit_code", "signal", "cancelled_by", "note", "detail"),
    *_plain("refused", "warning", "lost"),
    *_built("preemption", "post_mortem"),
    JsonKey("oom_kind", view.oom_kind),
    JsonKey("oom_kills", "oom_kills", _or_null),
    # its times
    *_time("submit", "submitted_at"),
    *_time("eligible", "eligible_at"),
    *_time("start", "started_at"),
    *_time("expected_start", _expected_start),
    *_time("end", view.ended_at),
    JsonKey("planned", view.waited),
    *_plain("elapsed", "suspended"),
    JsonKey("time_limit", "time_limit", _or_null),
    # its request
    JsonKey("req_gpu", view.requested_share, display.gpu_number),
    JsonKey("req_gpu_mem", view.requested_memory),
    JsonKey("req_gpu_type", "gpu_type", _or_null),
    JsonKey("req_cpus", "cpus"),
    JsonKey("req_mem", "host_memory", _or_null),
    JsonKey("ntasks", "ntasks"),
    JsonKey("gpu_compute", _gpu_compute),
    # its GPUs, present or expected
    JsonKey("gpus", "share", display.gpu_number),
    JsonKey("gpu_count", "gpus"),
    JsonKey("gpu_mem", _gpu_memory),
    # its last allocation
    JsonKey("gpu_type", view.gpu_models, _or_null),
    JsonKey("gpu_idx", _gpu_indices),
    JsonKey("alloc_gpu", view.allocated_share, display.gpu_number),
    *_built("allocated", "resources"),
    *_plain("bound_cpus"),
    JsonKey("enforce", "tier"),
    *_plain("pacing", "preload", "other_gpus", "oversubscribed"),
    *_built("mps", "adopted"),
    # its use
    JsonKey("max_gpu_mem", view.gpu_peak),
    JsonKey("ave_gpu_mem", view.mean_memory),
    JsonKey("ave_gpu_util", view.gpu_util),
    JsonKey("gpu_hours", view.gpu_hours),
    JsonKey("gpu_hours_used", view.gpu_hours_used),
    JsonKey("gpu_hours_idle", view.gpu_hours_idle),
    JsonKey("wasted_gpu_mem_hours", view.wasted_memory_hours),
    JsonKey("energy_j", view.energy),
    JsonKey("refusals", "refusals"),
    JsonKey("max_rss", view.host_peak),
    JsonKey("cpu_seconds", view.cpu_seconds),
    JsonKey("disk_read", view.disk_read),
    JsonKey("disk_written", view.disk_written),
    # shown to its owner and to operators
    *_plain("is_private", "comment"),
    JsonKey("work_dir", "chdir"),
    JsonKey("submit_line", "command"),
    JsonKey("std_in", view.stdin, _or_null),
    JsonKey("std_out", view.stdout, _or_null),
    JsonKey("std_err", view.stderr, _or_null),
)
DETAILS: Keys = (JsonKey("events", "steps", to_builtins), *_built("request"))  # of `fgctl show job` only
_OLD = {  # keys of version 0.1, per command, which the next version will not have
    "fgq": (JsonKey("cpus", "cpus"), JsonKey("mem", "host_memory", _or_null), JsonKey("command", "command")),
    "fgctl": (
        *_plain(
            "id", "array", "task", "tasks", "tier", "gpu_peak", "submitted_at", "eligible_at", "started_at"
        ),
        *_plain("starts_at"),
        JsonKey("ended_at", view.ended_at),
        JsonKey("cpus", "bound_cpus"),
        JsonKey("depends", "dependency"),
        JsonKey("eviction", "preemption", to_builtins),
        *(
            JsonKey(f"{name}_iso", name, display.iso)
            for name in ("submitted_at", "eligible_at", "started_at", "starts_at")
        ),
        JsonKey("ended_at_iso", view.ended_at, display.iso),
    ),
}
STEP: Keys = (
    *_plain("step", "name"),
    JsonKey("tasks", "ntasks"),
    JsonKey("cpus", "cpus"),
    JsonKey("gpu_idx", _gpu_indices),
    JsonKey("state", "state", _value),
    *_plain("exit_code", "signal"),
    *_time("start", "started_at"),
    *_time("end", view.ended_at),
    JsonKey("elapsed", "elapsed"),
    JsonKey("max_rss", view.host_peak),
    JsonKey("cpu_seconds", view.cpu_seconds),
    JsonKey("disk_read", view.disk_read),
    JsonKey("disk_written", view.disk_written),
)


def keys_of(command: str) -> Keys:
    """Return the keys of a job in the document of a command: fgq, fgacct or fgctl."""
    return (*JOB, *(DETAILS if command == "fgctl" else ()), *_OLD.get(command, ()))


def document(rows: Iterable[JobInfo], command: str) -> str:
    """Return {"meta": …, "jobs": [ … ]}; rows of steps are in "steps" of their job."""
    return display.document(jobs=nested(rows, keys_of(command), STEP, with_steps=False))


def nested(rows: Iterable[JobInfo], keys: Keys, step_keys: Keys, *, with_steps: bool) -> list[dict[str, Any]]:
    """Return the records of jobs, each with those of its steps; `with_steps`: also a job without any."""
    jobs: dict[tuple[int, int | None], dict[str, Any]] = {}
    for row in rows:
        name = (row.id, row.task)
        if row.step:
            job = jobs.setdefault(name, {"job_id": row.id})
            job.setdefault("steps", []).append(record(step_keys, row))
        else:
            jobs[name] = record(keys, row) | ({"steps": []} if with_steps else {})
    return list(jobs.values())


# -- Slurm's documents: keys of its data parser 0.0.38 --------------------------------------------------


def _constant(name: str, value: Any) -> JsonKey:
    return JsonKey(name, "id", lambda number: value)


def _whole(number: float | None) -> int:
    return int(number or 0)


def _rounded(number: float | None) -> int:
    return round(number or 0)


def _or_zero(value: Any) -> Any:
    return value or 0


def _text(text: str | None) -> str:
    return text or ""


def _mebibytes(size: int) -> int:
    return size >> 20


def _minutes(seconds: int) -> int | None:
    return seconds // 60 if seconds else None


def _host_if(holds: Callable[[Any], bool], other: str = "") -> Callable[[Any], str]:
    return lambda value: host_name() if holds(value) else other


_holds = _host_if(lambda state: state.holds)


@reads("exit_code", "signal")
def _exit_status(job: JobInfo) -> int:
    return (job.exit_code << 8) | job.signal


@reads("state", view.tres_of_job)
def _allocated_tres(job: JobInfo) -> str:
    return view.tres_of_job(job) if job.state.holds else ""


@reads("state", "cpus")
def _job_resources(job: JobInfo) -> dict[str, Any]:
    if not job.state.holds:
        return {}
    return {"nodes": host_name(), "allocated_cpus": job.cpus, "allocated_hosts": 1}


def _gres_detail(indices: Sequence[int]) -> list[str]:
    return [f"gpu:{len(indices)}(IDX:{','.join(map(str, indices))})"] if indices else []


def _cpu_seconds(used: float | None) -> dict[str, int]:
    seconds = used or 0.0
    return {"seconds": int(seconds), "microseconds": int(seconds % 1 * 1_000_000)}


def _exit_object(state: JobState, code: int, signal: int) -> dict[str, Any]:
    if signal:
        return {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": signal, "name": ""}}
    if not state.is_final:
        return {"status": "PENDING", "return_code": None}
    return {"status": "ERROR" if code else "SUCCESS", "return_code": code}


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
        {"type": "cpu", "name": None, "id": 1, "count": job.cpus},
        {"type": "mem", "name": None, "id": 2, "count": _mebibytes(job.host_memory)},
        {"type": "node", "name": None, "id": 4, "count": 1},
        {"type": "billing", "name": None, "id": 5, "count": job.cpus},
    ]
    count = share / WHOLE if share % WHOLE else share // WHOLE
    return [*listed, {"type": "gres", "name": "gpu", "id": 1001, "count": count}] if job.gpus else listed


@reads("attempt", _requested_resources)
def _allocated_resources(job: JobInfo) -> list[dict[str, Any]]:
    return _requested_resources(job) if job.attempt else []


_SLURM_TIMES: Keys = (
    JsonKey("elapsed", "elapsed", int),
    JsonKey("eligible", "eligible_at", _whole),
    JsonKey("end", view.ended_at, _whole),
    JsonKey("start", "started_at", _whole),
    JsonKey("submission", "submitted_at", int),
    JsonKey("suspended", "suspended", int),
    _constant("system", {"seconds": 0, "microseconds": 0}),
    JsonKey("total", view.cpu_seconds, _cpu_seconds),
    JsonKey("user", view.cpu_seconds, _cpu_seconds),
)
SLURM_QUEUE: Keys = (  # squeue --json, scontrol show job --json
    *_plain("account"),
    JsonKey("array_job_id", "array", _or_zero),
    JsonKey("array_task_id", "task"),
    JsonKey("array_task_string", "tasks", _text),
    JsonKey("array_max_tasks", "request", lambda request: request.throttle),
    _constant("batch_flag", True),
    _constant("cluster", "fgsched"),
    *_plain("cpus"),
    JsonKey("cpus_per_task", view.cpus_per_task),
    JsonKey("dependency", "unmet"),
    JsonKey("features", "gpu_type"),
    JsonKey("group_id", "gid"),
    JsonKey("job_id", "id"),
    JsonKey("memory_per_node", "host_memory", _mebibytes),
    JsonKey("minimum_cpus_per_node", "cpus"),
    *_plain("name", "nice"),
    _constant("node_count", 1),
    *_plain("partition", "qos", "requeue"),
    JsonKey("resv_name", "reservation"),
    JsonKey("tasks", "ntasks"),
    JsonKey("time_limit", "time_limit", _minutes),
    JsonKey("tres_req_str", view.tres_of_job),
    JsonKey("tres_per_node", "gpus", lambda gpus: f"gres:gpu:{gpus}" if gpus else ""),
    JsonKey("user_id", "uid"),
    JsonKey("user_name", "user"),
    JsonKey("deadline", "deadline", _or_zero),
    _constant("derived_exit_code", 0),
    JsonKey("eligible_time", "eligible_at", _whole),
    JsonKey("end_time", view.end, _whole),
    JsonKey("exit_code", _exit_status),
    JsonKey("job_state", "state", _value),
    JsonKey("priority", "priority", _rounded),
    JsonKey("restart_cnt", "restarts"),
    JsonKey("start_time", view.start, _whole),
    JsonKey("state_reason", "reason", lambda reason: reason.word),
    JsonKey("submit_time", "submitted_at", int),
    JsonKey("batch_host", "state", _holds),
    JsonKey("gres_detail", "indices", _gres_detail),
    JsonKey("job_resources", _job_resources),
    JsonKey("nodes", "state", _holds),
    JsonKey("tres_alloc_str", _allocated_tres),
    JsonKey("standard_error", view.stderr, _text),
    JsonKey("standard_input", view.stdin, _text),
    JsonKey("standard_output", view.stdout, _text),
    JsonKey("command", "command", _text),
    JsonKey("comment", "comment", _text),
    JsonKey("current_working_directory", "chdir", _text),
)
SLURM_ACCOUNTS: Keys = (  # sacct --json
    *_plain("account"),
    JsonKey(
        "comment", (_constant("administrator", ""), JsonKey("job", "comment", _text), _constant("system", ""))
    ),
    JsonKey("allocation_nodes", "attempt", lambda attempt: 1 if attempt else 0),
    JsonKey(
        "array",
        (
            JsonKey("job_id", "array", _or_zero),
            JsonKey("limits", "request", lambda request: {"max": {"running": {"tasks": request.throttle}}}),
            JsonKey("task", "tasks", _text),
            JsonKey("task_id", "task"),
        ),
    ),
    JsonKey(
        "association",
        (*_plain("account"), _constant("cluster", "fgsched"), _constant("partition", None), *_plain("user")),
    ),
    _constant("cluster", "fgsched"),
    JsonKey("constraints", "gpu_type"),
    JsonKey("derived_exit_code", _derived_exit),
    JsonKey("time", (*_SLURM_TIMES, JsonKey("limit", "time_limit", _minutes))),
    JsonKey("exit_code", _exit),
    JsonKey("flags", "id", lambda number: []),
    JsonKey("group", "gid", str),
    JsonKey("job_id", "id"),
    *_plain("name"),
    JsonKey("nodes", "attempt", _host_if(bool, "None assigned")),
    *_plain("partition"),
    JsonKey("priority", "priority", _rounded),
    *_plain("qos"),
    JsonKey("reservation", (_constant("id", 0), JsonKey("name", "reservation", _or_zero))),
    JsonKey("kill_request_user", "cancelled_by", lambda uid: None if uid is None else str(uid)),
    JsonKey("required", (JsonKey("CPUs", "cpus"), JsonKey("memory", "host_memory", _mebibytes))),
    JsonKey(
        "state",
        (JsonKey("current", "state", _value), JsonKey("reason", "reason", lambda reason: reason.word)),
    ),
    JsonKey("tres", (JsonKey("allocated", _allocated_resources), JsonKey("requested", _requested_resources))),
    *_plain("user"),
    JsonKey("wckey", "id", lambda number: {"wckey": "", "flags": []}),
    JsonKey("working_directory", "chdir", _text),
)
SLURM_STEP: Keys = (
    JsonKey("time", _SLURM_TIMES),
    JsonKey("exit_code", _exit),
    JsonKey("nodes", "id", lambda number: {"count": 1, "range": host_name()}),
    JsonKey("tasks", (JsonKey("count", "ntasks"),)),
    JsonKey("step", (JsonKey("job_id", "id"), JsonKey("id", "step"), *_plain("name"))),
    JsonKey("state", "state", _value),
    _constant("kill_request_user", None),
)
