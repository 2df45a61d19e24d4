"""The derived values of a job, each computed once: all tables, documents and mails stand on them.

A value is a function of a `JobInfo`, named by its noun; None: it is unknown, or the job has none. It declares
the attributes that it reads, so that a listing requests no others. Times are in seconds since the epoch,
durations in seconds, memory in bytes, and shares in ten-thousandths of a GPU.
"""

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fgsched.domain.job import WHOLE, OomReport, memory_peak
from fgsched.domain.jobsteps import highest
from fgsched.domain.states import JobState, Reason
from fgsched.domain.times import HOUR
from fgsched.domain.units import GIBIBYTE, format_exact, format_indices, format_share
from fgsched.protocol import JobInfo

if TYPE_CHECKING:  # fgq seldom shows the files of jobs
    from fgsched.lifecycle.launchspec import Files

Value = Callable[[JobInfo], Any]
_OOM_KIND = {Reason.GPU_OUT_OF_MEMORY: "gpu", Reason.OUT_OF_MEMORY: "host"}
_OF_PENDING = (Reason.PRIORITY, Reason.RESOURCES)  # not worth remembering of an ended job
_FIELDS: dict[Value, tuple[str, ...]] = {}
_V = TypeVar("_V", bound=Value)
EXPECTED = ("starts_at", "likely", "known")  # attributes that come from a separate request


def fields_of(value: str | Value) -> tuple[str, ...]:
    """Return the attributes of `JobInfo` that a value reads; an attribute is a value, by its name.

    Empty: it is no value of a job.
    """
    return (value,) if isinstance(value, str) else _FIELDS.get(value, ())


def attributes(*sources: str | Value) -> tuple[str, ...]:
    """Return the attributes of `JobInfo` that values read, each once; a text has names of attributes."""
    lists = (source.split() if isinstance(source, str) else fields_of(source) for source in sources)
    return tuple(dict.fromkeys(name for names in lists for name in names))


def values() -> dict[str, Value]:
    """Return all derived values by module and name."""
    return {f"{value.__module__}.{value.__qualname__}": value for value in _FIELDS}


def reads(*sources: str | Value) -> Callable[[_V], _V]:
    """Declare the attributes that a value reads, by name, or as those of other values."""

    def declared(value: _V) -> _V:
        _FIELDS[value] = attributes(*sources)
        return value

    return declared


# -- names -----------------------------------------------------------------------------------------


class NamedJob(Protocol):
    """What a job is named by: it is a `JobInfo`, or a row of a report."""

    @property
    def id(self) -> int: ...
    @property
    def array(self) -> int | None: ...
    @property
    def task(self) -> int | None: ...
    @property
    def tasks(self) -> str | None: ...


@reads("id", "array", "task", "tasks")
def label(job: NamedJob) -> str:
    """Return the displayed id of a job: 12, 12_3, or 12_[4-15%2] for the pending tasks of an array."""
    if job.task is not None:
        return f"{job.array}_{job.task}"
    return str(job.id) if job.tasks is None else f"{job.id}_[{job.tasks}]"


@reads(label, "step")
def step_label(job: JobInfo) -> str:
    """Return the displayed id of a job or of a step: 12_3, 12_3.batch."""
    return _of_step(label(job), job)


@reads("id", "step")
def step_number(job: JobInfo) -> str:
    """Return the number of a job, or of the job of a step with the step: 15, 15.batch."""
    return _of_step(str(job.id), job)


def _of_step(name: str, job: JobInfo) -> str:
    return f"{name}.{job.step}" if job.step else name


@reads("id", "array")
def array_number(job: JobInfo) -> int:
    """Return the number of a job's array, or of the job if it is in no array."""
    return job.array or job.id


@reads("array", "task", "tasks")
def array_tasks(job: JobInfo) -> str | None:
    """Return the index of a task, or the indices of the pending tasks; None: the job is in no array."""
    if job.task is not None:
        return str(job.task)
    return None if job.tasks is None else job.tasks.partition("%")[0]


@reads("gid")
def group(job: JobInfo) -> str:
    """Return the name of the job's group, or its number if it has none."""
    return _group(job.gid)


@lru_cache(maxsize=1024)
def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@reads("request", "array")
def throttle(job: JobInfo) -> int | None:
    """Return the number of tasks of an array that may run at the same time; None: the job is in no array."""
    return job.request.throttle if job.array is not None else None


@reads("request")
def container(job: JobInfo) -> str:
    """Return the image in which the script runs; "": none."""
    return job.request.container


@reads("request")
def mail_types(job: JobInfo) -> str:
    """Return the events of which mails are sent; "": none."""
    return job.request.mail_type


@reads("request", "user")
def mail_user(job: JobInfo) -> str | None:
    """Return the addresses of a job's mails; None: it sends none."""
    return (job.request.mail_user or job.user) if job.request.mail_type else None


# -- state -----------------------------------------------------------------------------------------


@reads("state", "cancelled_by")
def state_by(job: JobInfo) -> str:
    """Return the state of a job in the accounts, with the uid that cancelled it: CANCELLED by 1000."""
    if job.state is JobState.CANCELLED and job.cancelled_by is not None:
        return f"{job.state.value} by {job.cancelled_by}"
    return job.state.word


@reads("reason")
def last_reason(job: JobInfo) -> str:
    """Return the reason of a job in the accounts, where the reasons of a usual wait are none."""
    return Reason.NONE.word if job.reason in _OF_PENDING else job.reason.word


@reads("state", "reason")
def present_reason(job: JobInfo) -> str:
    """Return the reason of a job; of an ended one, that of the accounts."""
    return last_reason(job) if job.state.is_final else job.reason.word


@reads("state")
def holds(job: JobInfo) -> bool:
    """Tell whether a job holds its resources."""
    return job.state.holds


@reads("state", "attempt")
def was_on_host(job: JobInfo) -> bool:
    """Tell whether a job holds resources of the host, or held some."""
    return job.state.holds or (job.state.is_final and bool(job.attempt))


@reads("cause")
def why(job: JobInfo) -> str:
    """Return why a job does not run, as a sentence; "": it runs or has ended."""
    if job.cause is None:
        return ""
    from fgsched.views import wording  # most jobs need no words

    return wording.why(job.cause)


@reads("exit_code", "signal")
def exit_status(job: JobInfo) -> str:
    """Return the exit code and the signal: 3:0."""
    return f"{job.exit_code}:{job.signal}"


@reads("exit_code", "signal")
def wait_status(job: JobInfo) -> int:
    """Return the exit code and the signal as wait(2) has them."""
    return (job.exit_code << 8) | job.signal


@reads("srun_steps")
def highest_exit_code(job: JobInfo) -> tuple[int, int]:
    """Return the highest exit code of the steps, and its signal."""
    return highest(job.srun_steps)


@reads(highest_exit_code, "step")
def highest_exit(job: JobInfo) -> str | None:
    """Return the highest exit code of the steps, and its signal, as text; None for a step."""
    code, signal = highest_exit_code(job)
    return None if job.step else f"{code}:{signal}"


@reads("state", "reason")
def oom_kind(job: JobInfo) -> str | None:
    """Return "gpu" or "host" for a job that ran out of memory."""
    return _OOM_KIND.get(job.reason) if job.state is JobState.OUT_OF_MEMORY else None


@reads("post_mortem")
def oom_asked(job: JobInfo) -> int | None:
    """Return the bytes of the allocation that was refused; None: the job did not run out of GPU memory."""
    return job.post_mortem.asked if job.post_mortem else None


@reads("post_mortem")
def oom_held(job: JobInfo) -> int | None:
    """Return the bytes that a job held when it ran out of GPU memory."""
    return job.post_mortem.held if job.post_mortem else None


@reads("post_mortem")
def oom_limit(job: JobInfo) -> int | None:
    """Return the limit of a job that ran out of GPU memory, in bytes."""
    return job.post_mortem.limit if job.post_mortem else None


def oom_others(report: OomReport) -> list[tuple[str, int]]:
    """Return the memory of other jobs and of processes outside of jobs on the GPU: ("job 7", bytes)."""
    strangers = [("strangers", report.strangers)] if report.strangers else []
    return [*((f"job {job}", size) for job, size in report.jobs), *strangers]


# -- times -----------------------------------------------------------------------------------------


@reads("state", "ended_at")
def ended_at(job: JobInfo) -> float | None:
    """Return the end; None while the job still holds its GPUs."""
    return job.ended_at if job.state.is_final else None


@reads("ended_at", "started_at", "time_limit")
def end(job: JobInfo) -> float | None:
    """Return the end, or the latest possible end of a running job."""
    return job.ended_at or (job.started_at + job.time_limit if job.started_at and job.time_limit else None)


@reads("starts_at", "started_at")
def start(job: JobInfo) -> float | None:
    """Return the start, or the expected start of a pending job."""
    return job.starts_at or job.started_at


@reads("starts_at", "state")
def expected_start(job: JobInfo) -> float | None:
    """Return the expected start of a pending job."""
    return job.starts_at if job.state is JobState.PENDING else None


@reads("request")
def begin_time(job: JobInfo) -> float | None:
    """Return the earliest start that was requested."""
    return float(job.request.begin) if job.request.begin else None


@reads("started_at", "submitted_at")
def last_evaluation(job: JobInfo) -> float:
    """Return the time at which Slurm would have considered a job last: its start, or its submission."""
    return job.started_at or job.submitted_at


@reads("time_limit", "elapsed")
def time_left(job: JobInfo) -> float | None:
    """Return the seconds up to the time limit; None: there is no limit."""
    return max(0.0, job.time_limit - job.elapsed) if job.time_limit else None


@reads("eligible_at", "started_at")
def waited(job: JobInfo) -> float | None:
    """Return the seconds from eligibility to start; None: the job never started."""
    if job.eligible_at is None or job.started_at is None:
        return None
    return max(0.0, job.started_at - job.eligible_at)


@reads("submitted_at", "started_at")
def pending_time(job: JobInfo) -> float:
    """Return the seconds from submission to start, or until now."""
    return max(0.0, (job.started_at or time.time()) - job.submitted_at)


@reads("elapsed", "suspended")
def allocation_time(job: JobInfo) -> float:
    """Return the seconds of the last allocation, including suspensions."""
    return job.elapsed + job.suspended


# -- resources -------------------------------------------------------------------------------------


@reads("allocated")
def gpu_list(job: JobInfo) -> str:
    """Return the indices of the GPUs of the last attempt: 0-2,5."""
    return format_indices(part.gpu for part in job.allocated)


@reads("allocated")
def gpu_indices(job: JobInfo) -> list[int]:
    """Return the indices of the GPUs of the last attempt."""
    return [part.gpu for part in job.allocated]


@reads("allocated")
def gpu_uuids(job: JobInfo) -> str:
    """Return the UUIDs of the GPUs of the last attempt."""
    return ",".join(part.uuid for part in job.allocated)


@reads("allocated", "gpu_type")
def gpu_models(job: JobInfo) -> str:
    """Return the models of the allocated GPUs, or the requested type; "": any."""
    return ",".join(dict.fromkeys(part.model for part in job.allocated)) or job.gpu_type


@reads("allocated")
def allocated_share(job: JobInfo) -> int:
    """Return the allocated share of all GPUs."""
    return sum(part.share for part in job.allocated)


@reads("allocated")
def gpu_share(job: JobInfo) -> int:
    """Return the allocated share of each GPU, the smallest if they differ."""
    return min((part.share for part in job.allocated), default=0)


@reads("request", allocated_share)
def requested_share(job: JobInfo) -> int | None:
    """Return the requested share of all GPUs; None: it follows from the memory."""
    share, gpus = job.request.demand.share, job.request.demand.gpus
    return share * gpus if share or not gpus else allocated_share(job) or None


@reads("request")
def requested_fraction(job: JobInfo) -> int:
    """Return the requested share of all GPUs, as given; 0: it follows from the memory."""
    return job.request.demand.share * job.request.demand.gpus


@reads(allocated_share, "share", "gpus")
def tres_share(job: JobInfo) -> int:
    """Return the share of all GPUs as Slurm's TRES have it: whole GPUs if it is unknown."""
    return allocated_share(job) or job.share or job.gpus * WHOLE


@reads("allocated")
def gpu_memory(job: JobInfo) -> int | None:
    """Return the allocated bytes of each GPU; None: no GPU, or not equal on all GPUs."""
    sizes = {part.memory for part in job.allocated}
    return sizes.pop() if len(sizes) == 1 else None


@reads("allocated")
def memory_limit(job: JobInfo) -> int | None:
    """Return the allocated bytes of the first GPU."""
    return job.allocated[0].memory if job.allocated else None


@reads("memory", "indices")
def present_memory_limit(job: JobInfo) -> int | None:
    """Return the bytes of each GPU that a job holds; None: it holds none, or they are not equal."""
    return (job.memory or None) if job.indices else None


@reads("gpus", "memory")
def memory_of_gpus(job: JobInfo) -> int | None:
    """Return the bytes of each GPU, present or expected; None: they depend on the GPU."""
    return job.memory if job.gpus else 0


@reads("gpus", "gpu_compute")
def compute_policy(job: JobInfo) -> str | None:
    """Return the mode in which the compute time of the GPUs is shared; None: the job requests no GPU."""
    return job.gpu_compute if job.gpus else None


@reads("gpus", "allocated", "state")
def is_decided(job: JobInfo) -> bool:
    """Tell whether the enforcement of a job is known: it is decided when the job starts."""
    return not job.gpus or bool(job.allocated) or job.state.is_final


@reads(is_decided, "preload")
def decided_preload(job: JobInfo) -> str | None:
    """Return how the hook is preloaded; None: it is not decided."""
    return job.preload if is_decided(job) else None


@reads("request", "allocated")
def memory_of_each_gpu(job: JobInfo) -> int | None:
    """Return the requested bytes of each GPU; None: they follow from the share and are unknown."""
    if not job.request.demand.gpus:
        return 0
    return job.request.demand.memory or (job.allocated[0].memory if job.allocated else None)


@reads("cpus", "ntasks", "task_cpus")
def cpus_per_task(job: JobInfo) -> int:
    """Return the CPUs of each task; an exclusive job, which has all CPUs, may have requested fewer."""
    return job.task_cpus or max(1, job.cpus // job.ntasks)


@reads("cpus", "ntasks", "task_cpus")
def least_cpus(job: JobInfo) -> int:
    """Return the least CPUs that the tasks of a job need."""
    return job.task_cpus * job.ntasks or job.cpus


@reads("attempt", "cpus")
def allocated_cpus(job: JobInfo) -> int:
    """Return the CPUs of the last attempt."""
    return job.cpus if job.attempt else 0


@reads("elapsed", "cpus")
def cpu_time(job: JobInfo) -> float:
    """Return the seconds of all CPUs of a job."""
    return job.elapsed * job.cpus


@reads("elapsed", "cpus")
def whole_cpu_time(job: JobInfo) -> int:
    """Return the whole seconds of all CPUs of a job."""
    return int(job.elapsed) * job.cpus


@reads(waited, "cpus")
def waited_cpu_time(job: JobInfo) -> float:
    """Return the seconds that a job waited, for each of its CPUs."""
    return (waited(job) or 0.0) * job.cpus


def type_of_gpu(model: str) -> str:
    """Return the type of a GPU in Slurm's form, such as h100; of a MIG instance, with its profile."""
    return model.replace(" MIG ", " ").lower().replace(" ", "_")


def tres(job: JobInfo, share: int | None, by_type: Mapping[str, int]) -> list[str]:
    """Return resources in Slurm's form: cpu=4, mem=8G, node=1, billing=4, gres/gpu=0.5, gres/gpu:a100=0.5.

    Args:
        share: ten-thousandths of all GPUs; None: unknown.
        by_type: those of the GPUs of each type, as far as they have one.
    """
    memory = [f"mem={format_exact(job.host_memory)}"] if job.host_memory else []
    gpus = [f"gres/gpu={format_share(share)}"] if share else []
    gpus += [f"gres/gpu:{name}={format_share(of_type)}" for name, of_type in by_type.items() if share]
    return [f"cpu={job.cpus}", *memory, "node=1", f"billing={job.cpus}", *gpus]


@reads("allocated")
def share_by_type(job: JobInfo) -> dict[str, int]:
    """Return the allocated share of the GPUs of each type."""
    by_type: dict[str, int] = {}
    for part in job.allocated:
        name = type_of_gpu(part.model)
        by_type[name] = by_type.get(name, 0) + part.share
    return by_type


_TRES = ("cpus", "host_memory")


@reads(*_TRES, "share", "state", share_by_type)
def tres_in_queue(job: JobInfo) -> str:
    """Return the resources of a job in the order of squeue: allocated, or requested."""
    return ",".join(tres(job, job.share, share_by_type(job) if job.state.holds else {}))


@reads(*_TRES, "gpu_type", tres_share)
def tres_of_job(job: JobInfo) -> str:
    """Return the requested resources of a job in the order of scontrol."""
    share = tres_share(job)
    return ",".join(tres(job, share, {type_of_gpu(job.gpu_type): share} if job.gpu_type else {}))


@reads(*_TRES, "state", "attempt", share_by_type, allocated_share)
def held_tres(job: JobInfo) -> str:
    """Return the resources that a job holds, or held at its end, in the order of scontrol; "": none."""
    listed = ",".join(tres(job, allocated_share(job), share_by_type(job)))
    return listed if job.state.holds or (job.state.is_final and job.attempt) else ""


@reads(*_TRES, requested_share)
def requested_tres(job: JobInfo) -> str:
    """Return the requested resources in the order of sacct."""
    return ",".join(sorted(tres(job, requested_share(job), {})))


@reads(*_TRES, "attempt", "step", allocated_share, share_by_type)
def allocated_tres(job: JobInfo) -> str | None:
    """Return the allocated resources in the order of sacct; None: the job was never started."""
    listed = tres(job, allocated_share(job), share_by_type(job))
    if job.step:  # which is not billed
        listed = [part for part in listed if not part.startswith("billing=")]
    return ",".join(sorted(listed)) if job.attempt else None


# -- use: a value that was not measured is None, never 0 ---------------------------------------------


@reads("state", "started_at")
def is_measured(job: JobInfo) -> bool:
    """Tell whether the processes of a job were measured: at its end, if it was started."""
    return job.state.is_final and job.started_at is not None


@reads("allocated", "usage", "gpu_peak", "tier")
def gpu_peak(job: JobInfo) -> int | None:
    """Return the most bytes on one GPU: as the hook counted them, or as they were sampled."""
    return memory_peak(job.gpu_peak if job.tier != "none" else 0, job.usage) if job.allocated else None


@reads("usage")
def sampled_memory(job: JobInfo) -> int | None:
    """Return the most bytes on one GPU that samples of a job showed."""
    return memory_peak(0, job.usage)


@reads("now")
def memory_now(job: JobInfo) -> int | None:
    """Return the most bytes on one GPU in the last look."""
    return max((part.memory for part in job.now), default=None)


@reads("now")
def busy_now(job: JobInfo) -> float | None:
    """Return the compute time used of each GPU in the last look, in percent; None: it was not measured."""
    busy = [part.busy for part in job.now if part.busy is not None]
    return 100 * sum(busy) / len(busy) / WHOLE if busy else None


@reads("max_rss")
def host_peak(job: JobInfo) -> int | None:
    """Return the most bytes of host memory; every process has some, so 0 says that none was measured."""
    return job.max_rss or None


@reads(is_measured, "cpu_seconds")
def cpu_seconds(job: JobInfo) -> float | None:
    """Return the CPU seconds of a job."""
    return job.cpu_seconds if is_measured(job) else None


@reads(is_measured, "disk_read")
def disk_read(job: JobInfo) -> int | None:
    """Return the bytes that a job read from disks."""
    return job.disk_read if is_measured(job) else None


@reads(is_measured, "disk_written")
def disk_written(job: JobInfo) -> int | None:
    """Return the bytes that a job wrote to disks."""
    return job.disk_written if is_measured(job) else None


@reads("allocated", allocation_time)
def charged_seconds(job: JobInfo) -> float:
    """Return the GPU seconds that a job is charged for its last attempt."""
    return float(sum(part.charged for part in job.allocated)) * allocation_time(job) / WHOLE


@reads(charged_seconds, "charged_before")
def gpu_hours(job: JobInfo) -> float:
    """Return the GPU-hours that a job is charged for all attempts."""
    return (job.charged_before + charged_seconds(job)) / HOUR


@reads("usage")
def gpu_hours_used(job: JobInfo) -> float | None:
    """Return the GPU-hours of compute time that a job used."""
    return None if job.usage is None or job.usage.used is None else job.usage.used / HOUR


@reads("usage")
def idle_seconds(job: JobInfo) -> float | None:
    """Return the charged GPU seconds in which a job did not compute."""
    return None if job.usage is None else job.usage.held + job.usage.empty


@reads(idle_seconds)
def gpu_hours_idle(job: JobInfo) -> float | None:
    """Return the charged GPU-hours in which a job did not compute."""
    idle = idle_seconds(job)
    return None if idle is None else idle / HOUR


@reads(gpu_peak, allocation_time)
def wasted_memory_hours(job: JobInfo) -> float | None:
    """Return the GiB-hours of GPU memory that were reserved and never used."""
    peak = gpu_peak(job)
    if peak is None:
        return None
    unused = sum(max(0, part.memory - peak) for part in job.allocated)
    return float(unused) / GIBIBYTE * allocation_time(job) / HOUR


@reads("usage", "allocated")
def gpu_util(job: JobInfo) -> float | None:
    """Return the mean compute time used of each GPU, in percent of the GPU."""
    usage = job.usage
    if usage is None or usage.used is None or not usage.sampled or not job.allocated:
        return None
    return min(100.0, 100 * usage.used / usage.sampled / len(job.allocated))


@reads(gpu_util)
def mean_sm(job: JobInfo) -> float | None:
    """Return the mean SM share of each GPU, from 0 to 1."""
    util = gpu_util(job)
    return None if util is None else util / 100


@reads("usage", "allocated")
def mean_memory(job: JobInfo) -> int | None:
    """Return the mean bytes in use on each GPU."""
    usage = job.usage
    if usage is None or not usage.sampled or not job.allocated:
        return None
    return round(usage.memory / usage.sampled / len(job.allocated))


@reads("usage")
def energy(job: JobInfo) -> float | None:
    """Return the joules of the job's GPUs."""
    return None if job.usage is None else job.usage.energy


# -- efficiency: parts of the request ----------------------------------------------------------------


@reads(gpu_peak, gpu_memory)
def memory_part(job: JobInfo) -> float | None:
    """Return the peak of GPU memory as a part of the allocated memory."""
    peak, memory = gpu_peak(job), gpu_memory(job)
    return peak / memory if peak is not None and memory else None


@reads("usage")
def sm_part(job: JobInfo) -> float | None:
    """Return the mean SM share as a part of the charged share; above 1 if idle time of others was used."""
    if job.usage is None or job.usage.used is None or job.usage.charged <= 0:
        return None
    return job.usage.used / job.usage.charged


@reads("usage", idle_seconds)
def idle_part(job: JobInfo) -> float | None:
    """Return the idle GPU seconds as a part of the charged GPU seconds that were sampled."""
    idle = idle_seconds(job)
    if job.usage is None or idle is None or job.usage.charged <= 0:
        return None
    return idle / job.usage.charged


@reads(cpu_seconds, "elapsed")
def busy_cpus(job: JobInfo) -> float | None:
    """Return the mean number of busy CPUs."""
    used = cpu_seconds(job)
    return None if used is None or job.elapsed <= 0 else used / job.elapsed


@reads(busy_cpus, "cpus")
def cpu_part(job: JobInfo) -> float | None:
    """Return the mean number of busy CPUs as a part of the requested CPUs."""
    busy = busy_cpus(job)
    return None if busy is None else busy / job.cpus


@reads(host_peak, "host_memory")
def host_part(job: JobInfo) -> float | None:
    """Return the peak of host memory as a part of the requested memory."""
    peak = host_peak(job)
    return peak / job.host_memory if peak is not None and job.host_memory else None


@reads("time_limit", "elapsed")
def time_part(job: JobInfo) -> float | None:
    """Return the run time as a part of the time limit."""
    return job.elapsed / job.time_limit if job.time_limit > 0 else None


# -- files: shown to the owner and to operators ------------------------------------------------------


@reads("is_private")
def is_visible(job: JobInfo) -> bool:
    """Tell whether the caller may see the request of a job."""
    return not job.is_private


@reads("is_private", "warning")
def visible_warning(job: JobInfo) -> str:
    """Return the warning of a job whose request the caller may see."""
    return "" if job.is_private else job.warning


@reads("id", "array", "task", "user", "uid", "restarts", "allocated", "request", "is_private")
def files(job: JobInfo) -> "Files":
    """Return the input, output and error files of a job whose request the caller may see."""
    from fgsched.lifecycle.filenames import PatternValues
    from fgsched.lifecycle.launchspec import files as files_of
    from fgsched.views.display import host_name

    values = PatternValues(
        job_id=job.id,
        name=job.request.name,
        user=job.user,
        home=_home(job.uid),
        host=host_name(),
        gpus=tuple(part.gpu for part in job.allocated),
        restarts=job.restarts,
        array=job.array or 0,
        task=job.task or 0,
    )
    return files_of(job.request, values)


@lru_cache(maxsize=1024)
def _home(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"


@reads(files)
def stdin(job: JobInfo) -> str | None:
    """Return the path of the standard input; None: it is hidden from this caller."""
    return None if job.is_private else files(job).stdin


@reads(files)
def stdout(job: JobInfo) -> str | None:
    """Return the path of the standard output; None: it is hidden from this caller."""
    return None if job.is_private else files(job).stdout


@reads(files)
def stderr(job: JobInfo) -> str | None:
    """Return the path of the standard error output; None: it is hidden from this caller."""
    return None if job.is_private else files(job).stderr


@reads("request", "is_private")
def script(job: JobInfo) -> str | None:
    """Return the path of a job's script; None: hidden, a command, or standard input."""
    import os
    import shlex

    try:
        words = shlex.split(job.request.submit_line)[1:]
    except ValueError:
        return None
    if job.is_private or any(word.startswith("--wrap") for word in words):
        return None
    name = next((word for word in words if not word.startswith("-")), None)
    return os.path.join(job.request.submit_dir, name) if name else None
