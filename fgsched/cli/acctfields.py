"""Declare the fields of fgacct, and format a job's record for each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fgsched.cli.cells import shown_time
from fgsched.cli.choices import name_of
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import WHOLE, JobState, Reason
from fgsched.domain.text import shown
from fgsched.domain.times import HOUR, MINUTE, format_elapsed
from fgsched.domain.units import format_indices, format_share

Record = Mapping[str, Any]
_FINAL = {state.value for state in JobState if state.is_final}
_KIND = {Reason.GPU_OUT_OF_MEMORY.value: "gpu", Reason.OUT_OF_MEMORY.value: "host"}
_NOT_LAST = {Reason.PRIORITY.value, Reason.RESOURCES.value}  # not worth remembering of a job
_UNIT = {"K": 10, "M": 20, "G": 30}
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Field:
    """A field of fgacct. `show(record, unit)` formats it; unit is "K", "M", "G", or "" for bytes."""

    name: str
    width: int
    show: Callable[[Record, str], str]
    left: bool = False


def amount(size: int, unit: str) -> str:
    """Format a size in bytes in a unit, rounded up; G has two decimals."""
    if not unit or not size:
        return str(size)
    if unit == "G":
        return f"{math.ceil(size * 100 / _GIB) / 100:.2f}G"
    return f"{-(-size >> _UNIT[unit])}{unit}"


def demand(record: Record) -> Record:
    found: Record = record["request"].get("demand", {})
    return found


def requested_share(record: Record) -> int | None:
    """Return the requested share of all GPUs in ten-thousandths, or None while it follows from the memory."""
    each, cards = demand(record).get("share", 0), demand(record).get("gpus", 0)
    return each * cards if each or not cards else allocated_share(record) or None


def allocated_share(record: Record) -> int:
    return sum(card["share"] for card in record["allocated"])


def requested_memory(record: Record) -> int | None:
    """Return the requested bytes of each GPU, or None while they follow from the share."""
    if not demand(record).get("gpus", 0):
        return 0
    given = record["allocated"][0]["memory"] if record["allocated"] else None
    return demand(record).get("memory") or given


def peak(record: Record) -> int | None:
    """Return the peak memory on one GPU in bytes, or None if it was not measured."""
    return int(record["gpu_peak"]) if record["allocated"] and record["tier"] != "none" else None


def gpu_hours(record: Record) -> float:
    """Return the charged share multiplied by the allocated hours."""
    charged = sum(card["charged"] for card in record["allocated"])
    return float(charged) * _held_for(record) / WHOLE / HOUR


def _held_for(record: Record) -> float:
    """Return the seconds for which the job held its GPUs, including suspended time."""
    return float(record["elapsed"]) + float(record["suspended"])


def wasted_hours(record: Record) -> float | None:
    """Return GiB-hours of GPU memory that were allocated and never used."""
    used = peak(record)
    if used is None:
        return None
    unused = sum(max(0, card["memory"] - used) for card in record["allocated"])
    return float(unused) / _GIB * _held_for(record) / HOUR


def state(record: Record) -> str:
    if record["state"] == JobState.CANCELLED.value and record["cancelled_by"] is not None:
        return f"{record['state']} by {record['cancelled_by']}"
    return str(record["state"])


def oom_kind(record: Record) -> str:
    """Return 'gpu' or 'host' for a job that ran out of memory, otherwise ''."""
    return _KIND.get(record["reason"], "") if record["state"] == JobState.OUT_OF_MEMORY.value else ""


def post_mortem(record: Record, key: str) -> int | None:
    """Return one figure of how a job ran out of GPU memory, or None."""
    found = record.get("post_mortem")
    return int(found[key]) if found else None


def others(found: Record) -> str:
    """List other users of the GPU with their memory: 'job 7:4096M,strangers:512M'."""
    named = [f"job {job}:{amount(size, 'M')}" for job, size in found["jobs"]]
    strangers = [f"strangers:{amount(found['strangers'], 'M')}"] if found["strangers"] else []
    return ",".join([*named, *strangers]) or "nobody"


def reason(record: Record) -> str:
    return Reason.NONE.value if record["reason"] in _NOT_LAST else str(record["reason"])


def cpus(record: Record) -> int:
    return int(demand(record).get("cpus", 1))


def models(record: Record) -> str:
    given = ",".join(dict.fromkeys(card["model"] for card in record["allocated"]))
    return given or str(demand(record).get("gpu_type", ""))


@lru_cache(maxsize=1024)
def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def stream(record: Record, which: str) -> str:
    """Return the path of standard output or standard error, or "" if the caller may not see it."""
    from fgsched.cli.jobfiles import files_of

    return "" if record["is_private"] else str(getattr(files_of(record), which))


def restarts(record: Record) -> int:
    return int(record["restarts"])


def owned(record: Record, name: str, default: str = "") -> str:
    """Return a part of the request that only the owner and operators may see."""
    return "" if record["is_private"] else str(record["request"].get(name, default))


def _start(record: Record) -> str:
    unknown = "None" if record["state"] in _FINAL else "Unknown"
    return _time(record["started_at"], unknown)


def planned(record: Record) -> float | None:
    """Return the seconds from eligibility to the start, or None if the job never started."""
    since, started = record["eligible_at"], record["started_at"]
    return None if since is None or started is None else max(0.0, float(started) - float(since))


def _planned(record: Record) -> str:
    waited = planned(record)
    return "" if waited is None else format_elapsed(waited)


def _time(epoch: float | None, unknown: str = "Unknown") -> str:
    return shown_time(epoch, unknown=unknown)


def _cpu_time(seconds: float) -> str:
    """Format a CPU time in seconds as Slurm does: with milliseconds below one hour."""
    if seconds >= HOUR:
        return format_elapsed(seconds)
    minutes, rest = divmod(seconds, MINUTE)
    return f"{int(minutes):02d}:{int(rest):02d}.{int(rest % 1 * 1000):03d}"


def _limit(record: Record) -> str:
    limit = record["request"].get("time_limit", 0)
    return format_elapsed(limit) if limit else "UNLIMITED"


def _size(size: int | None, unit: str) -> str:
    return "" if size is None else amount(size, unit)


def _share(units: int | None) -> str:
    return "" if units is None else format_share(units)


def _hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:.4f}"


_TABLE = (
    Field("Account", 10, lambda r, u: r["request"].get("account", "")),
    Field("AllocCPUS", 10, lambda r, u: str(cpus(r) if r["attempt"] else 0)),
    Field("AllocGPU", 8, lambda r, u: format_share(allocated_share(r))),
    Field("Comment", 14, lambda r, u: owned(r, "comment")),
    Field("CPUTime", 10, lambda r, u: format_elapsed(r["elapsed"] * cpus(r))),
    Field("DerivedExitCode", 15, lambda r, u: "0:0"),  # of steps, which there are none of
    Field("Elapsed", 10, lambda r, u: format_elapsed(r["elapsed"])),
    Field("ElapsedRaw", 10, lambda r, u: str(int(r["elapsed"]))),
    Field("Eligible", 19, lambda r, u: _time(r["eligible_at"])),
    Field("End", 19, lambda r, u: _time(r["ended_at"])),
    Field("Enforce", 8, lambda r, u: r["tier"]),
    Field("ExitCode", 8, lambda r, u: f"{r['exit_code']}:{r['signal']}"),
    Field("GPUHours", 10, lambda r, u: _hours(gpu_hours(r))),
    Field("GPUIdx", 8, lambda r, u: format_indices(card["gpu"] for card in r["allocated"])),
    Field("GPUType", 20, lambda r, u: models(r)),
    Field("Group", 9, lambda r, u: _group(r["gid"])),
    Field("JobID", 12, lambda r, u: name_of(r), left=True),
    Field("JobIDRaw", 12, lambda r, u: str(r["id"]), left=True),
    Field("JobName", 10, lambda r, u: r["request"]["name"]),
    Field("MaxGPUMem", 10, lambda r, u: _size(peak(r), u)),
    Field("MaxRSS", 10, lambda r, u: amount(r["max_rss"], u)),
    Field("OOMAsked", 10, lambda r, u: _size(post_mortem(r, "asked"), u)),
    Field("OOMHeld", 10, lambda r, u: _size(post_mortem(r, "held"), u)),
    Field("OOMKind", 7, lambda r, u: oom_kind(r)),
    Field("OOMLimit", 10, lambda r, u: _size(post_mortem(r, "limit"), u)),
    Field("OOMOthers", 20, lambda r, u: others(r["post_mortem"]) if r["post_mortem"] else ""),
    Field("Partition", 10, lambda r, u: r["partition"]),
    Field("Planned", 10, lambda r, u: _planned(r)),
    Field("QOS", 10, lambda r, u: r["request"].get("qos", "")),
    Field("Reason", 22, lambda r, u: reason(r)),
    Field("ReqCPUS", 8, lambda r, u: str(cpus(r))),
    Field("ReqGPU", 8, lambda r, u: _share(requested_share(r))),
    Field("ReqGPUMem", 10, lambda r, u: _size(requested_memory(r), u)),
    Field("ReqMem", 10, lambda r, u: amount(demand(r).get("host_memory", 0), u)),
    Field("PreemptedBy", 11, lambda r, u: str((r.get("eviction") or {}).get("by", ""))),
    Field("Reservation", 20, lambda r, u: r["request"].get("reservation", "")),
    Field("Restarts", 8, lambda r, u: str(restarts(r))),
    Field("Start", 19, lambda r, u: _start(r)),
    Field("State", 10, lambda r, u: state(r)),
    Field("StdErr", 30, lambda r, u: stream(r, "stderr")),
    Field("StdOut", 30, lambda r, u: stream(r, "stdout")),
    Field("Submit", 19, lambda r, u: _time(r["submitted_at"])),
    Field("SubmitLine", 20, lambda r, u: owned(r, "submit_line")),
    Field("Suspended", 10, lambda r, u: format_elapsed(r["suspended"])),
    Field("Timelimit", 10, lambda r, u: _limit(r)),
    Field("TotalCPU", 10, lambda r, u: _cpu_time(r["cpu_seconds"])),
    Field("UID", 6, lambda r, u: str(r["uid"])),
    Field("User", 9, lambda r, u: r["user"]),
    Field("Warning", 30, lambda r, u: r["warning"]),
    Field("WastedGPUMemHours", 17, lambda r, u: _hours(wasted_hours(r))),
    Field("WorkDir", 20, lambda r, u: owned(r, "chdir", "/")),
)
FIELDS = {field.name.lower(): field for field in _TABLE}
LATER = frozenset(("avegpuutil", "gpuhoursused", "priority"))


def field(name: str) -> Field:
    """Return the field with this name in any case. Raises BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet", "fgacct -e lists the fields there are.")
    if name.lower() not in FIELDS:
        raise BadUsage(f"unknown field {shown(name)}", "fgacct -e lists the fields there are.")
    return FIELDS[name.lower()]
