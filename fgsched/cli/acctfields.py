"""The fields of fgacct with their names and values, and its output as table, delimited text or JSON."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import OomReport
from fgsched.domain.text import clean, lazy_regex, shown
from fgsched.domain.times import HOUR, MINUTE, format_elapsed
from fgsched.domain.units import GIBIBYTE, format_share
from fgsched.protocol import JobInfo
from fgsched.views import display
from fgsched.views import job as view
from fgsched.views.display import host_name, shown_time

ASKED = (  # attributes that the fields below need
    *("id", "array", "task", "tasks", "user", "uid", "gid", "partition", "state", "reason", "attempt"),
    *("restarts", "exit_code", "signal", "cancelled_by", "warning", "preemption", "post_mortem"),
    *("submitted_at", "eligible_at", "started_at", "ended_at", "elapsed", "suspended", "gpu_compute"),
    *("allocated", "tier", "cpu_seconds", "max_rss", "gpu_peak", "is_private", "request", "usage"),
    *("disk_read", "disk_written", "charged_before", "oom_kills"),
    *("name", "account", "wckey", "qos", "reservation", "time_limit", "gpu_type", "cpus", "ntasks"),
    *("host_memory", "comment", "chdir", "command"),
)
USUAL = "JobID,JobName,Partition,User,ReqGPU,MaxGPUMem,Elapsed,State,ExitCode"
SACCT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"  # the columns of sacct
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobName,Partition,User,ReqGPU,ReqGPUMem,MaxGPUMem,GPUIdx,GPUHours,AllocCPUS,MaxRSS,TotalCPU,"
    "Submit,Start,End,Elapsed,Timelimit,State,ExitCode,Reason,Enforce"
)
_UNIT = {"K": 10, "M": 20, "G": 30}
_ITEM = lazy_regex(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet would take such a text for a formula


# -- values of a job --------------------------------------------------------------------------------


def amount(size: int, unit: str) -> str:
    """Return bytes in a unit ("K", "M", "G" or "" for bytes), rounded up; gibibytes with two decimals."""
    if not unit or not size:
        return str(size)
    if unit == "G":
        return f"{math.ceil(size * 100 / GIBIBYTE) / 100:.2f}G"
    return f"{-(-size >> _UNIT[unit])}{unit}"


def _joules(job: JobInfo) -> str:
    energy = view.energy(job)
    return "" if energy is None else str(round(energy))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def others(report: OomReport) -> str:
    """Format the memory of other jobs and of external processes on the GPU: 'job 7:4096M,strangers:512M'."""
    named = [f"{name}:{amount(size, 'M')}" for name, size in view.oom_others(report)]
    return ",".join(named) or "nobody"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_elapsed(seconds)


def _start(job: JobInfo) -> str:
    return _time(job.started_at, "None" if job.state.is_final else "Unknown")


def _time(epoch: float | None, unknown: str = "Unknown") -> str:
    return shown_time(epoch, unknown=unknown)


def _cpu_time(job: JobInfo) -> str:
    """Return the CPU seconds in Slurm's form: 0 until they are measured, thousandths below an hour."""
    seconds = view.cpu_seconds(job) or 0.0
    if seconds >= HOUR:
        return format_elapsed(seconds)
    minutes, rest = divmod(seconds, MINUTE)
    return f"{int(minutes):02d}:{int(rest):02d}.{int(rest % 1 * 1000):03d}"


def _limit(job: JobInfo) -> str:
    return format_elapsed(job.time_limit) if job.time_limit else "UNLIMITED"


def _size(size: int | None, unit: str) -> str:
    return "" if size is None else amount(size, unit)


def _share(units: int | None) -> str:
    return "" if units is None else format_share(units)


def _hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:.4f}"


# -- fields -----------------------------------------------------------------------------------------


class AcctField(NamedTuple):
    """One field. `show(job, unit)` returns its text; unit is "K", "M", "G", or "" for bytes."""

    name: str
    width: int
    show: Callable[[JobInfo, str], str]
    left: bool = False


FIELDS = (
    AcctField("Account", 10, lambda r, u: r.account),
    AcctField("AdminComment", 20, lambda r, u: ""),
    AcctField("AllocCPUS", 10, lambda r, u: str(r.cpus if r.attempt else 0)),
    AcctField("AllocGPU", 8, lambda r, u: format_share(view.allocated_share(r))),
    AcctField("AllocNodes", 10, lambda r, u: "1" if r.attempt else "0"),
    AcctField("AllocTRES", 40, lambda r, u: view.allocated_tres(r) or ""),
    AcctField("AssocID", 8, lambda r, u: "0"),
    AcctField("AveCPU", 10, lambda r, u: _cpu_time(r)),
    AcctField("AveDiskRead", 12, lambda r, u: _size(view.disk_read(r), u)),
    AcctField("AveDiskWrite", 12, lambda r, u: _size(view.disk_written(r), u)),
    AcctField("AveRSS", 10, lambda r, u: _size(view.host_peak(r), u)),
    AcctField("Cluster", 10, lambda r, u: "fgsched"),
    AcctField("AveGPUMem", 10, lambda r, u: _size(view.mean_memory(r), u)),
    AcctField("AveGPUUtil", 10, lambda r, u: _percent(view.gpu_util(r))),
    AcctField("Comment", 14, lambda r, u: r.comment or ""),
    AcctField("Container", 20, lambda r, u: ""),
    AcctField("CPUTime", 10, lambda r, u: format_elapsed(r.elapsed * r.cpus)),
    AcctField("CPUTimeRAW", 10, lambda r, u: str(int(r.elapsed) * r.cpus)),
    AcctField("DerivedExitCode", 15, lambda r, u: view.highest_exit(r) or ""),
    AcctField("Elapsed", 10, lambda r, u: format_elapsed(r.elapsed)),
    AcctField("ElapsedRaw", 10, lambda r, u: str(int(r.elapsed))),
    AcctField("Eligible", 19, lambda r, u: _time(r.eligible_at)),
    AcctField("End", 19, lambda r, u: _time(view.ended_at(r))),
    AcctField("EnergyJ", 10, lambda r, u: _joules(r)),
    AcctField("Enforce", 8, lambda r, u: r.tier),
    AcctField("ExitCode", 8, lambda r, u: view.exit_status(r)),
    AcctField("Flags", 20, lambda r, u: ""),
    AcctField("GID", 6, lambda r, u: str(r.gid)),
    AcctField("GPUHours", 10, lambda r, u: _hours(view.gpu_hours(r))),
    AcctField("GPUHoursIdle", 12, lambda r, u: _hours(view.gpu_hours_idle(r))),
    AcctField("GPUHoursUsed", 12, lambda r, u: _hours(view.gpu_hours_used(r))),
    AcctField("GPUIdx", 8, lambda r, u: view.gpu_list(r)),
    AcctField("GPUType", 20, lambda r, u: view.gpu_models(r)),
    AcctField("Group", 9, lambda r, u: view.group(r)),
    AcctField("JobID", 12, lambda r, u: view.step_label(r), left=True),
    AcctField("JobIDRaw", 12, lambda r, u: view.step_number(r), left=True),
    AcctField("JobName", 10, lambda r, u: r.name),
    AcctField("Layout", 9, lambda r, u: ""),
    AcctField("MaxDiskRead", 12, lambda r, u: _size(view.disk_read(r), u)),
    AcctField("MaxDiskWrite", 12, lambda r, u: _size(view.disk_written(r), u)),
    AcctField("MaxGPUMem", 10, lambda r, u: _size(view.gpu_peak(r), u)),
    AcctField("MaxRSS", 10, lambda r, u: _size(view.host_peak(r), u)),
    AcctField("MaxVMSize", 10, lambda r, u: ""),
    AcctField("NCPUS", 10, lambda r, u: str(r.cpus)),
    AcctField("NNodes", 8, lambda r, u: "1"),
    AcctField("NodeList", 15, lambda r, u: host_name() if r.attempt else "None assigned"),
    AcctField("NTasks", 8, lambda r, u: str(r.ntasks)),
    AcctField("OOMAsked", 10, lambda r, u: _size(r.post_mortem.asked if r.post_mortem else None, u)),
    AcctField("OOMHeld", 10, lambda r, u: _size(r.post_mortem.held if r.post_mortem else None, u)),
    AcctField("OOMKills", 8, lambda r, u: str(r.oom_kills or "")),
    AcctField("OOMKind", 7, lambda r, u: view.oom_kind(r) or ""),
    AcctField("OOMLimit", 10, lambda r, u: _size(r.post_mortem.limit if r.post_mortem else None, u)),
    AcctField("OOMOthers", 20, lambda r, u: others(r.post_mortem) if r.post_mortem else ""),
    AcctField("Partition", 10, lambda r, u: r.partition),
    AcctField("Planned", 10, lambda r, u: _duration(view.waited(r))),
    AcctField("PlannedCPU", 10, lambda r, u: format_elapsed((view.waited(r) or 0) * r.cpus)),
    AcctField("PreemptedBy", 11, lambda r, u: str(r.preemption.by) if r.preemption else ""),
    AcctField("QOS", 10, lambda r, u: r.qos),
    AcctField("QOSRAW", 10, lambda r, u: "1"),
    AcctField("Reason", 22, lambda r, u: view.last_reason(r)),
    AcctField("ReqCPUS", 8, lambda r, u: str(r.cpus)),
    AcctField("ReqGPU", 8, lambda r, u: _share(view.requested_share(r))),
    AcctField("ReqGPUMem", 10, lambda r, u: _size(view.requested_memory(r), u)),
    AcctField("ReqMem", 10, lambda r, u: amount(r.host_memory, u)),
    AcctField("ReqNodes", 8, lambda r, u: "1"),
    AcctField("ReqTRES", 40, lambda r, u: view.requested_tres(r)),
    AcctField("Reservation", 20, lambda r, u: r.reservation),
    AcctField("Restarts", 8, lambda r, u: str(r.restarts)),
    AcctField("Start", 19, lambda r, u: _start(r)),
    AcctField("State", 10, lambda r, u: view.state_by(r)),
    AcctField("StdErr", 30, lambda r, u: view.stderr(r) or ""),
    AcctField("StdOut", 30, lambda r, u: view.stdout(r) or ""),
    AcctField("Submit", 19, lambda r, u: _time(r.submitted_at)),
    AcctField("SubmitLine", 20, lambda r, u: r.command or ""),
    AcctField("SystemComment", 20, lambda r, u: r.warning),
    AcctField("Suspended", 10, lambda r, u: format_elapsed(r.suspended)),
    AcctField("Timelimit", 10, lambda r, u: _limit(r)),
    AcctField("TimelimitRaw", 12, lambda r, u: str(r.time_limit // MINUTE) if r.time_limit else ""),
    AcctField("TotalCPU", 10, lambda r, u: _cpu_time(r)),
    AcctField("UID", 6, lambda r, u: str(r.uid)),
    AcctField("User", 9, lambda r, u: r.user),
    AcctField("Warning", 30, lambda r, u: r.warning),
    AcctField("WastedGPUMemHours", 17, lambda r, u: _hours(view.wasted_memory_hours(r))),
    AcctField("WCKey", 10, lambda r, u: r.wckey),
    AcctField("WorkDir", 20, lambda r, u: r.chdir or ""),
)
_BY_NAME = {field.name.lower(): field for field in FIELDS}
OF_JOBS_ONLY = frozenset(  # empty in the rows of steps, as in Slurm
    (
        *("GID", "Group", "Partition", "QOS", "QOSRAW", "ReqMem", "Reservation", "StdErr", "StdOut"),
        *("Timelimit", "TimelimitRaw", "UID", "User", "WorkDir"),
    )
)
LATER = frozenset(("priority",))


def field(name: str) -> AcctField:
    """Return the field of that name, in any case. Raises BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet", "fgacct -e lists the fields there are.")
    if name.lower() not in _BY_NAME:
        raise BadUsage(f"unknown field {shown(name)}", "fgacct -e lists the fields there are.")
    return _BY_NAME[name.lower()]


# -- tables -----------------------------------------------------------------------------------------


class AcctColumn(NamedTuple):
    """A field with its width and alignment."""

    field: AcctField
    width: int
    left: bool

    def text(self, row: JobInfo, unit: str) -> str:
        """Return the text of a job or of a step; unit is "K", "M", "G", or "" for bytes."""
        return "" if row.step and self.field.name in OF_JOBS_ONLY else self.field.show(row, unit)


def columns(text: str) -> list[AcctColumn]:
    """Return the columns of 'JobID,JobName%20,State%-15'; a negative width aligns left. Raises BadUsage.

    'all' is every field.
    """
    if text.lower() == "all":
        text = ",".join(known.name for known in FIELDS)
    found = []
    for part in text.split(","):
        match = _ITEM.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field", "Such as: -o JobID,JobName%20,State%-15")
        known = field(match[1])
        width = int(match[3]) if match[3] else known.width
        found.append(AcctColumn(known, width, bool(match[2]) if match[3] else known.left))
    return found


class Delimited(Struct, frozen=True):
    """Fields of any length between delimiters; with a comma, quoted as in RFC 4180."""

    delimiter: str
    trailing: bool = False  # one after the last field too

    def lines(
        self, jobs: Iterable[JobInfo], chosen: list[AcctColumn], unit: str, *, header: bool
    ) -> Iterator[str]:
        end = self.delimiter if self.trailing else ""
        if header:
            yield self.delimiter.join(column.field.name for column in chosen) + end
        for job in jobs:
            cells = (self._cell(clean(column.text(job, unit))) for column in chosen)
            yield self.delimiter.join(cells) + end

    def _cell(self, text: str) -> str:
        if self.delimiter != ",":
            return text.replace(self.delimiter, "?")  # an additional field would shift all later ones
        if text.startswith(_FORMULA):
            text = f"'{text}"
        return f'"{text.replace(chr(34), chr(34) * 2)}"' if "," in text or '"' in text else text


# -- JSON -------------------------------------------------------------------------------------------


def document(jobs: Iterable[JobInfo]) -> str:
    """Return {"meta": …, "jobs": [ … ]} with all fields, in base units; rows of steps are in "steps"."""
    found: dict[int, dict[str, Any]] = {}
    for row in jobs:
        if row.step:
            found.setdefault(row.id, {"job_id": row.id}).setdefault("steps", []).append(_step(row))
        else:
            found[row.id] = _document(row)
    return display.document(jobs=list(found.values()))


def _step(row: JobInfo) -> dict[str, Any]:
    return {
        "step": row.step,
        "name": row.name,
        "tasks": row.ntasks,
        "cpus": row.cpus,
        "gpu_idx": [given.gpu for given in row.allocated],
        "state": row.state.value,
        "exit_code": row.exit_code,
        "signal": row.signal,
        **display.time_fields(start=row.started_at, end=view.ended_at(row)),
        "elapsed": row.elapsed,
        **_measured(row),
    }


def _measured(job: JobInfo) -> dict[str, Any]:
    """Return what the processes of a job or of a step used; None until it has ended."""
    return {
        "max_rss": view.host_peak(job),
        "cpu_seconds": view.cpu_seconds(job),
        "disk_read": view.disk_read(job),
        "disk_written": view.disk_written(job),
    }


def _document(job: JobInfo) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "name": job.name,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "user": job.user,
        "uid": job.uid,
        "gid": job.gid,
        "state": job.state.value,
        "reason": view.last_reason(job),
        "cancelled_by": job.cancelled_by,
        "exit_code": job.exit_code,
        "signal": job.signal,
        **_times(job),
        "elapsed": job.elapsed,
        "time_limit": job.time_limit or None,
        "req_gpu": display.gpu_number(view.requested_share(job)),
        "req_gpu_mem": view.requested_memory(job),
        "alloc_gpu": display.gpu_number(view.allocated_share(job)),
        "gpu_idx": [given.gpu for given in job.allocated],
        "gpu_type": view.gpu_models(job) or None,
        "gpu_hours": view.gpu_hours(job),
        "gpu_hours_used": view.gpu_hours_used(job),
        "gpu_hours_idle": view.gpu_hours_idle(job),
        "ave_gpu_util": view.gpu_util(job),
        "ave_gpu_mem": view.mean_memory(job),
        "energy_j": view.energy(job),
        "max_gpu_mem": view.gpu_peak(job),
        "wasted_gpu_mem_hours": view.wasted_memory_hours(job),
        **_enforcement(job),
        "req_cpus": job.cpus,
        "req_mem": job.host_memory or None,
        **_measured(job),
        "restarts": job.restarts,
        **_owned(job),
    }


def _times(job: JobInfo) -> dict[str, Any]:
    return {
        **display.time_fields(
            submit=job.submitted_at, eligible=job.eligible_at, start=job.started_at, end=view.ended_at(job)
        ),
        "planned": view.waited(job),
    }


def _enforcement(job: JobInfo) -> dict[str, Any]:
    """Return the enforcement level of a job and the result of its check."""
    return {
        "oom_kind": view.oom_kind(job),
        "oom_kills": job.oom_kills or None,
        "post_mortem": to_builtins(job.post_mortem),
        "warning": job.warning or None,
        "enforce": job.tier,
        "gpu_compute": job.gpu_compute if job.allocated else None,
    }


def _owned(job: JobInfo) -> dict[str, Any]:
    """Return the attributes that only the owner and operators may see; None for other users."""
    return {
        "comment": job.comment,
        "work_dir": job.chdir,
        "submit_line": job.command,
        "std_out": view.stdout(job) or None,
        "std_err": view.stderr(job) or None,
    }
