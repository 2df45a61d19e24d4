"""The fields of fgacct with their names and values, and its output as table, delimited text or JSON."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from fgsched.cli.jobfiles import files_of
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, OomReport
from fgsched.domain.jobsteps import highest
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import clean, lazy_regex, shown
from fgsched.domain.times import HOUR, MINUTE, format_elapsed
from fgsched.domain.units import format_indices, format_share
from fgsched.protocol import JobInfo
from fgsched.views import display
from fgsched.views.choices import name_of
from fgsched.views.display import host_name, shown_time

ASKED = (  # attributes that the fields below need
    *("id", "array", "task", "tasks", "user", "uid", "gid", "partition", "state", "reason", "attempt"),
    *("restarts", "exit_code", "signal", "cancelled_by", "warning", "preemption", "post_mortem"),
    *("submitted_at", "eligible_at", "started_at", "ended_at", "elapsed", "suspended", "gpu_compute"),
    *("allocated", "tier", "cpu_seconds", "max_rss", "gpu_peak", "is_private", "request", "usage"),
    *("disk_read", "disk_written", "charged_before", "oom_kills"),
)
USUAL = "JobID,JobName,Partition,User,ReqGPU,MaxGPUMem,Elapsed,State,ExitCode"
SACCT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"  # the columns of sacct
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobName,Partition,User,ReqGPU,ReqGPUMem,MaxGPUMem,GPUIdx,GPUHours,AllocCPUS,MaxRSS,TotalCPU,"
    "Submit,Start,End,Elapsed,Timelimit,State,ExitCode,Reason,Enforce"
)
_KIND = {Reason.GPU_OUT_OF_MEMORY: "gpu", Reason.OUT_OF_MEMORY: "host"}
_NOT_LAST = (Reason.PRIORITY, Reason.RESOURCES)  # not worth remembering of an ended job
_UNIT = {"K": 10, "M": 20, "G": 30}
_GIB = 1 << 30
_ITEM = lazy_regex(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")
_FORMULA = ("=", "+", "-", "@")  # a spreadsheet would take such a text for a formula


# -- values of a job --------------------------------------------------------------------------------


def amount(size: int, unit: str) -> str:
    """Return bytes in a unit ("K", "M", "G" or "" for bytes), rounded up; gibibytes with two decimals."""
    if not unit or not size:
        return str(size)
    if unit == "G":
        return f"{math.ceil(size * 100 / _GIB) / 100:.2f}G"
    return f"{-(-size >> _UNIT[unit])}{unit}"


def requested_share(job: JobInfo) -> int | None:
    """Return the requested ten-thousandths of all GPUs; None if they follow from memory and are not known."""
    each, gpus = job.request.demand.share, job.request.demand.gpus
    return each * gpus if each or not gpus else allocated_share(job) or None


def allocated_share(job: JobInfo) -> int:
    """Return the allocated share of all GPUs, in ten-thousandths."""
    return sum(given.share for given in job.allocated)


def requested_memory(job: JobInfo) -> int | None:
    """Return the requested bytes on each GPU; None if they follow from the share and are not known."""
    if not job.request.demand.gpus:
        return 0
    return job.request.demand.memory or (job.allocated[0].memory if job.allocated else None)


def peak(job: JobInfo) -> int | None:
    """Return the most bytes on one GPU; None if nothing measured them. The hook's 0 says nothing."""
    if not job.allocated:
        return None
    sampled = job.usage.peak if job.usage is not None and job.usage.sampled else None
    counted = job.gpu_peak if job.tier != "none" else 0
    return max(counted, sampled or 0) if counted or sampled is not None else None


def gpu_hours(job: JobInfo) -> float:
    """Return the charged share multiplied by the hours of its allocation, in all attempts."""
    last = float(sum(given.charged for given in job.allocated)) * _held_for(job) / WHOLE
    return (job.charged_before + last) / HOUR


def _held_for(job: JobInfo) -> float:
    """Return the seconds of the job's allocation, including suspensions."""
    return job.elapsed + job.suspended


def wasted_hours(job: JobInfo) -> float | None:
    """Return the GiB-hours of device memory that were reserved and never used; None if not measured."""
    used = peak(job)
    if used is None:
        return None
    unused = sum(max(0, given.memory - used) for given in job.allocated)
    return float(unused) / _GIB * _held_for(job) / HOUR


def mean_use(job: JobInfo) -> float | None:
    """Return the mean compute time used of each GPU, in percent of the GPU; None if it was not sampled."""
    found = job.usage
    if found is None or found.used is None or not found.sampled or not job.allocated:
        return None
    return 100 * found.used / found.sampled / len(job.allocated)


def mean_memory(job: JobInfo) -> int | None:
    """Return the mean bytes in use on each GPU; None if they were not sampled."""
    found = job.usage
    if found is None or not found.sampled or not job.allocated:
        return None
    return round(found.memory / found.sampled / len(job.allocated))


def hours_used(job: JobInfo) -> float | None:
    """Return the GPU hours of compute time that the job used; None if they were not sampled."""
    return None if job.usage is None or job.usage.used is None else job.usage.used / HOUR


def hours_idle(job: JobInfo) -> float | None:
    """Return the charged GPU hours in which the job did not compute; None if they were not sampled."""
    return None if job.usage is None else (job.usage.held + job.usage.empty) / HOUR


def energy(job: JobInfo) -> float | None:
    """Return the joules of the job's GPUs; None if they were not measured."""
    return None if job.usage is None else job.usage.energy


def _joules(job: JobInfo) -> str:
    found = energy(job)
    return "" if found is None else str(round(found))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def state(job: JobInfo) -> str:
    if job.state is JobState.CANCELLED and job.cancelled_by is not None:
        return f"{job.state.value} by {job.cancelled_by}"
    return job.state.word


def oom_kind(job: JobInfo) -> str:
    """Return "gpu" or "host" for a job that ran out of memory, else ""."""
    return _KIND.get(job.reason, "") if job.state is JobState.OUT_OF_MEMORY else ""


def others(found: OomReport) -> str:
    """Format the memory of other jobs and of external processes on the GPU: 'job 7:4096M,strangers:512M'."""
    named = [f"job {job}:{amount(size, 'M')}" for job, size in found.jobs]
    strangers = [f"strangers:{amount(found.strangers, 'M')}"] if found.strangers else []
    return ",".join([*named, *strangers]) or "nobody"


def reason(job: JobInfo) -> str:
    return Reason.NONE.word if job.reason in _NOT_LAST else job.reason.word


def models(job: JobInfo) -> str:
    return ",".join(dict.fromkeys(given.model for given in job.allocated)) or job.request.demand.gpu_type


def ended_at(job: JobInfo) -> float | None:
    """Return the end time in seconds since the epoch; None while the job still holds its GPUs."""
    return job.ended_at if job.state.is_final else None


def planned(job: JobInfo) -> float | None:
    """Return the seconds from eligibility to start; None if the job never started."""
    if job.eligible_at is None or job.started_at is None:
        return None
    return max(0.0, job.started_at - job.eligible_at)


def tres(job: JobInfo, share: int) -> str:
    """Return resources in Slurm's form, such as billing=4,cpu=4,gres/gpu=0.5,mem=8192M,node=1.

    `share`: ten-thousandths of a GPU.
    """
    demand = job.request.demand
    gpus = f"gres/gpu={format_share(share)}," if share else ""
    memory = f"mem={amount(demand.host_memory, 'M')}," if demand.host_memory else ""
    return f"billing={demand.cpus},cpu={demand.cpus},{gpus}{memory}node=1"


def owned(job: JobInfo, value: str) -> str:
    """Return a value that only the owner and operators may see; "" to other users."""
    return "" if job.is_private else value


@lru_cache(maxsize=1024)
def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _with_step(name: str, job: JobInfo) -> str:
    return f"{name}.{job.step}" if job.step else name


def _highest(job: JobInfo) -> str:
    code, number = highest(job.srun_steps)
    return f"{code}:{number}"


def _start(job: JobInfo) -> str:
    return _time(job.started_at, "None" if job.state.is_final else "Unknown")


def _planned(job: JobInfo) -> str:
    waited = planned(job)
    return "" if waited is None else format_elapsed(waited)


def _time(epoch: float | None, unknown: str = "Unknown") -> str:
    return shown_time(epoch, unknown=unknown)


def _cpu_time(seconds: float) -> str:
    """Return seconds in Slurm's form: with thousandths below an hour."""
    if seconds >= HOUR:
        return format_elapsed(seconds)
    minutes, rest = divmod(seconds, MINUTE)
    return f"{int(minutes):02d}:{int(rest):02d}.{int(rest % 1 * 1000):03d}"


def _limit(job: JobInfo) -> str:
    return format_elapsed(job.request.time_limit) if job.request.time_limit else "UNLIMITED"


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
    AcctField("Account", 10, lambda r, u: r.request.account),
    AcctField("AdminComment", 20, lambda r, u: ""),
    AcctField("AllocCPUS", 10, lambda r, u: str(r.request.demand.cpus if r.attempt else 0)),
    AcctField("AllocGPU", 8, lambda r, u: format_share(allocated_share(r))),
    AcctField("AllocNodes", 10, lambda r, u: "1" if r.attempt else "0"),
    AcctField("AllocTRES", 40, lambda r, u: tres(r, allocated_share(r)) if r.attempt else ""),
    AcctField("AssocID", 8, lambda r, u: "0"),
    AcctField("AveCPU", 10, lambda r, u: _cpu_time(r.cpu_seconds)),
    AcctField("AveDiskRead", 12, lambda r, u: amount(r.disk_read, u)),
    AcctField("AveDiskWrite", 12, lambda r, u: amount(r.disk_written, u)),
    AcctField("AveRSS", 10, lambda r, u: amount(r.max_rss, u)),
    AcctField("Cluster", 10, lambda r, u: "fgsched"),
    AcctField("AveGPUMem", 10, lambda r, u: _size(mean_memory(r), u)),
    AcctField("AveGPUUtil", 10, lambda r, u: _percent(mean_use(r))),
    AcctField("Comment", 14, lambda r, u: owned(r, r.request.comment)),
    AcctField("Container", 20, lambda r, u: ""),
    AcctField("CPUTime", 10, lambda r, u: format_elapsed(r.elapsed * r.request.demand.cpus)),
    AcctField("CPUTimeRAW", 10, lambda r, u: str(int(r.elapsed) * r.request.demand.cpus)),
    AcctField("DerivedExitCode", 15, lambda r, u: "" if r.step else _highest(r)),
    AcctField("Elapsed", 10, lambda r, u: format_elapsed(r.elapsed)),
    AcctField("ElapsedRaw", 10, lambda r, u: str(int(r.elapsed))),
    AcctField("Eligible", 19, lambda r, u: _time(r.eligible_at)),
    AcctField("End", 19, lambda r, u: _time(ended_at(r))),
    AcctField("EnergyJ", 10, lambda r, u: _joules(r)),
    AcctField("Enforce", 8, lambda r, u: r.tier),
    AcctField("ExitCode", 8, lambda r, u: f"{r.exit_code}:{r.signal}"),
    AcctField("Flags", 20, lambda r, u: ""),
    AcctField("GID", 6, lambda r, u: str(r.gid)),
    AcctField("GPUHours", 10, lambda r, u: _hours(gpu_hours(r))),
    AcctField("GPUHoursIdle", 12, lambda r, u: _hours(hours_idle(r))),
    AcctField("GPUHoursUsed", 12, lambda r, u: _hours(hours_used(r))),
    AcctField("GPUIdx", 8, lambda r, u: format_indices(given.gpu for given in r.allocated)),
    AcctField("GPUType", 20, lambda r, u: models(r)),
    AcctField("Group", 9, lambda r, u: _group(r.gid)),
    AcctField("JobID", 12, lambda r, u: _with_step(name_of(r), r), left=True),
    AcctField("JobIDRaw", 12, lambda r, u: _with_step(str(r.id), r), left=True),
    AcctField("JobName", 10, lambda r, u: r.request.name),
    AcctField("Layout", 9, lambda r, u: ""),
    AcctField("MaxDiskRead", 12, lambda r, u: amount(r.disk_read, u)),
    AcctField("MaxDiskWrite", 12, lambda r, u: amount(r.disk_written, u)),
    AcctField("MaxGPUMem", 10, lambda r, u: _size(peak(r), u)),
    AcctField("MaxRSS", 10, lambda r, u: amount(r.max_rss, u)),
    AcctField("MaxVMSize", 10, lambda r, u: ""),
    AcctField("NCPUS", 10, lambda r, u: str(r.request.demand.cpus)),
    AcctField("NNodes", 8, lambda r, u: "1"),
    AcctField("NodeList", 15, lambda r, u: host_name() if r.attempt else "None assigned"),
    AcctField("NTasks", 8, lambda r, u: str(r.request.tasks)),
    AcctField("OOMAsked", 10, lambda r, u: _size(r.post_mortem.asked if r.post_mortem else None, u)),
    AcctField("OOMHeld", 10, lambda r, u: _size(r.post_mortem.held if r.post_mortem else None, u)),
    AcctField("OOMKills", 8, lambda r, u: str(r.oom_kills or "")),
    AcctField("OOMKind", 7, lambda r, u: oom_kind(r)),
    AcctField("OOMLimit", 10, lambda r, u: _size(r.post_mortem.limit if r.post_mortem else None, u)),
    AcctField("OOMOthers", 20, lambda r, u: others(r.post_mortem) if r.post_mortem else ""),
    AcctField("Partition", 10, lambda r, u: r.partition),
    AcctField("Planned", 10, lambda r, u: _planned(r)),
    AcctField("PlannedCPU", 10, lambda r, u: format_elapsed((planned(r) or 0) * r.request.demand.cpus)),
    AcctField("PreemptedBy", 11, lambda r, u: str(r.preemption.by) if r.preemption else ""),
    AcctField("QOS", 10, lambda r, u: r.request.qos),
    AcctField("QOSRAW", 10, lambda r, u: "1"),
    AcctField("Reason", 22, lambda r, u: reason(r)),
    AcctField("ReqCPUS", 8, lambda r, u: str(r.request.demand.cpus)),
    AcctField("ReqGPU", 8, lambda r, u: _share(requested_share(r))),
    AcctField("ReqGPUMem", 10, lambda r, u: _size(requested_memory(r), u)),
    AcctField("ReqMem", 10, lambda r, u: amount(r.request.demand.host_memory, u)),
    AcctField("ReqNodes", 8, lambda r, u: "1"),
    AcctField("ReqTRES", 40, lambda r, u: tres(r, requested_share(r) or 0)),
    AcctField("Reservation", 20, lambda r, u: r.request.reservation),
    AcctField("Restarts", 8, lambda r, u: str(r.restarts)),
    AcctField("Start", 19, lambda r, u: _start(r)),
    AcctField("State", 10, lambda r, u: state(r)),
    AcctField("StdErr", 30, lambda r, u: owned(r, files_of(r).stderr)),
    AcctField("StdOut", 30, lambda r, u: owned(r, files_of(r).stdout)),
    AcctField("Submit", 19, lambda r, u: _time(r.submitted_at)),
    AcctField("SubmitLine", 20, lambda r, u: owned(r, r.request.submit_line)),
    AcctField("SystemComment", 20, lambda r, u: r.warning),
    AcctField("Suspended", 10, lambda r, u: format_elapsed(r.suspended)),
    AcctField("Timelimit", 10, lambda r, u: _limit(r)),
    AcctField(
        "TimelimitRaw", 12, lambda r, u: str(r.request.time_limit // MINUTE) if r.request.time_limit else ""
    ),
    AcctField("TotalCPU", 10, lambda r, u: _cpu_time(r.cpu_seconds)),
    AcctField("UID", 6, lambda r, u: str(r.uid)),
    AcctField("User", 9, lambda r, u: r.user),
    AcctField("Warning", 30, lambda r, u: r.warning),
    AcctField("WastedGPUMemHours", 17, lambda r, u: _hours(wasted_hours(r))),
    AcctField("WCKey", 10, lambda r, u: r.request.wckey),
    AcctField("WorkDir", 20, lambda r, u: owned(r, r.request.chdir)),
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
        "name": row.request.name,
        "tasks": row.request.tasks,
        "cpus": row.request.demand.cpus,
        "gpu_idx": [given.gpu for given in row.allocated],
        "state": row.state.value,
        "exit_code": row.exit_code,
        "signal": row.signal,
        **display.time_fields(start=row.started_at, end=ended_at(row)),
        "elapsed": row.elapsed,
        **{name: getattr(row, name) for name in ("max_rss", "cpu_seconds", "disk_read", "disk_written")},
    }


def _document(job: JobInfo) -> dict[str, Any]:
    asked, demand = job.request, job.request.demand
    return {
        "job_id": job.id,
        "name": asked.name,
        "partition": job.partition,
        "account": asked.account,
        "qos": asked.qos,
        "user": job.user,
        "uid": job.uid,
        "gid": job.gid,
        "state": job.state.value,
        "reason": reason(job),
        "cancelled_by": job.cancelled_by,
        "exit_code": job.exit_code,
        "signal": job.signal,
        **_times(job),
        "elapsed": job.elapsed,
        "time_limit": asked.time_limit or None,
        "req_gpu": display.gpu_number(requested_share(job)),
        "req_gpu_mem": requested_memory(job),
        "alloc_gpu": display.gpu_number(allocated_share(job)),
        "gpu_idx": [given.gpu for given in job.allocated],
        "gpu_type": models(job) or None,
        "gpu_hours": gpu_hours(job),
        "gpu_hours_used": hours_used(job),
        "gpu_hours_idle": hours_idle(job),
        "ave_gpu_util": mean_use(job),
        "ave_gpu_mem": mean_memory(job),
        "energy_j": energy(job),
        "max_gpu_mem": peak(job),
        "wasted_gpu_mem_hours": wasted_hours(job),
        **_enforcement(job),
        "req_cpus": demand.cpus,
        "req_mem": demand.host_memory or None,
        **{name: getattr(job, name) for name in ("max_rss", "cpu_seconds", "disk_read", "disk_written")},
        "restarts": job.restarts,
        **_owned(job),
    }


def _times(job: JobInfo) -> dict[str, Any]:
    return {
        **display.time_fields(
            submit=job.submitted_at, eligible=job.eligible_at, start=job.started_at, end=ended_at(job)
        ),
        "planned": planned(job),
    }


def _enforcement(job: JobInfo) -> dict[str, Any]:
    """Return the enforcement level of a job and the result of its check."""
    return {
        "oom_kind": oom_kind(job) or None,
        "oom_kills": job.oom_kills or None,
        "post_mortem": to_builtins(job.post_mortem),
        "warning": job.warning or None,
        "enforce": job.tier,
        "gpu_compute": job.gpu_compute if job.allocated else None,
    }


def _owned(job: JobInfo) -> dict[str, Any]:
    """Return the attributes that only the owner and operators may see; None for other users."""
    if job.is_private:
        return dict.fromkeys(("comment", "work_dir", "submit_line", "std_out", "std_err"))
    files = files_of(job)
    return {
        "comment": job.request.comment,
        "work_dir": job.request.chdir,
        "submit_line": job.request.submit_line,
        "std_out": files.stdout or None,
        "std_err": files.stderr or None,
    }
