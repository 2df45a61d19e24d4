"""`fgctl show`: all data of a job, a GPU, a partition, a reservation or the configuration."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import Demand, MigInstance, OomReport, Preemption, Request
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.times import format_limit, format_runtime
from fgsched.domain.units import format_mebibytes, format_share, parse_indices
from fgsched.views import choices, display, documents
from fgsched.views import job as view
from fgsched.views.display import shown_time

Group = list[list[tuple[str, object]]]  # lines of (key, value)


def text(group: Group, *, oneliner: bool) -> str:
    """Return Key=Value pairs with two blanks between them; lines after the first are indented."""
    lines = ["  ".join(f"{key}={clean(str(value))}" for key, value in line) for line in group if line]
    return "  ".join(lines) + "\n" if oneliner else "\n   ".join(lines) + "\n\n"


def document(what: str, found: Sequence[Any]) -> str:
    """Return the answers as one JSON object."""
    records = [DOCUMENTS[what](one) for one in found]
    return display.document(**({"config": records[0]} if what == "config" else {f"{what}s": records}))


# -- requests ---------------------------------------------------------------------------------------


def _jobs(client: Client, words: Sequence[str]) -> list[protocol.JobInfo]:
    """Return the named jobs, or all open jobs."""
    names = choices.ids(words) if words else _open(client)
    found: dict[int, protocol.JobInfo] = {}
    for name in dict.fromkeys(names):
        found |= {job.id: job for job in client.call(protocol.ShowJobs(id=name)).jobs}
    if any(job.state is JobState.PENDING for job in found.values()):
        from fgsched.cli.prospects import add_starts

        add_starts(client, found.values())
    return list(found.values())


def _open(client: Client) -> list[choices.Name]:
    jobs = client.call(protocol.ListQueue(fields=("id", "array", "task"))).jobs
    return [job.id if job.task is None else f"{job.array}_{job.task}" for job in jobs]


def _gpus(client: Client, words: Sequence[str]) -> list[protocol.GpuInfo]:
    there = {one.gpu.index: one for one in client.call(protocol.ListGpus()).gpus}
    wanted = [index for word in words for index in parse_indices(word)] or list(there)
    for index in wanted:
        if index not in there:
            raise Refused(f"this host has no GPU {index}", "fginfo -g lists its GPUs.")
    return [there[index] for index in wanted]


def _partitions(client: Client, words: Sequence[str]) -> list[Any]:
    from fgsched.cli.showpartition import partitions

    return list(partitions(client, words))


def _reservations(client: Client, words: Sequence[str]) -> list[protocol.ReservationInfo]:
    from fgsched.cli.reservation import named

    return named(client, words)


def _config(client: Client, words: Sequence[str]) -> list[protocol.About]:
    if words:
        raise BadUsage("show config takes no argument")
    return [client.call(protocol.Ping())]


ASKED: dict[str, Callable[[Client, Sequence[str]], Sequence[Any]]] = {
    "job": _jobs,
    "gpu": _gpus,
    "partition": _partitions,
    "reservation": _reservations,
    "config": _config,
}

# -- how to say it ----------------------------------------------------------------------------------


def _job(job: protocol.JobInfo) -> Group:
    request = job.request
    said = view.why(job)
    return [
        [("JobId", job.id), *_array(job), ("JobName", request.name)],
        [("UserId", f"{job.user}({job.uid})"), ("GroupId", job.gid)],
        [("JobState", job.state.value), ("Reason", job.reason.value), ("Held", job.held or "no")],
        [("Why", said)] if said else [],
        [("ExitCode", view.exit_status(job)), ("Attempt", job.attempt)],
        [("Requeue", int(request.requeue)), ("Restarts", job.restarts), *_suspended(job)],
        _preemption(job.preemption),
        [("Dependency", job.dependency or "(null)")],
        _window(request),
        [("Reservation", request.reservation)] if request.reservation else [],
        [("RunTime", format_runtime(job.elapsed)), ("TimeLimit", format_limit(request.time_limit))],
        [("SubmitTime", _time(job.submitted_at)), ("EligibleTime", _time(job.eligible_at))],
        [("StartTime", _time(view.start(job))), ("EndTime", _time(view.end(job)))],
        [("Partition", job.partition), *_host_needs(request.demand)],
        *_gpu_lines(job),
        *_post_mortem(job.post_mortem),
        [("OOMKills", job.oom_kills)] if job.oom_kills else [],
        [("Refused", job.refused)] if job.refused else [],
        [("Unhooked", job.unhooked)] if job.unhooked else [],
        [("Warning", job.warning)] if job.warning else [],
        *([] if job.is_private else _secrets(job)),
        [("CancelReason", job.note)] if job.note else [],
        [("Comment", request.comment)] if request.comment else [],
        [("WCKey", request.wckey)] if request.wckey else [],
        [("Container", request.container)] if request.container else [],
        [("MailType", request.mail_type), ("MailUser", view.mail_user(job))] if request.mail_type else [],
        [("Detail", job.detail)] if job.detail else [],
        *([("Event", _step(step))] for step in _told_once(job.steps)),
    ]


def _array(job: protocol.JobInfo) -> list[tuple[str, object]]:
    if job.array is None:
        return []
    most = job.request.throttle
    throttle = [("ArrayTaskThrottle", most)] if most else []
    return [("ArrayJobId", job.array), ("ArrayTaskId", view.array_tasks(job) or ""), *throttle]


def _suspended(job: protocol.JobInfo) -> list[tuple[str, object]]:
    return [("SuspendedTime", format_runtime(job.suspended))] if job.suspended else []


def _preemption(found: Preemption | None) -> list[tuple[str, object]]:
    """Return the last preemption."""
    if not found:
        return []
    return [
        ("PreemptedBy", found.by),
        ("PreemptTime", _time(found.at)),
        ("PreemptMode", found.mode.upper()),
    ]


def _window(request: Request) -> list[tuple[str, object]]:
    times = (("BeginTime", request.begin), ("Deadline", request.deadline))
    return [(key, _time(float(at))) for key, at in times if at]


def _time(epoch: float | None) -> str:
    return shown_time(epoch, unknown="Unknown")


def _host_needs(demand: Demand) -> list[tuple[str, object]]:
    memory = demand.host_memory
    return [("NumCPUs", demand.cpus), ("ReqMem", format_mebibytes(memory) if memory else "not counted")]


def _gpu_lines(job: protocol.JobInfo) -> Group:
    """Return the requested GPUs, the allocated GPUs and the enforcement of a job."""
    demand, given = job.request.demand, job.allocated
    asked = format_share(demand.share * demand.gpus)
    lines: Group = [[("ReqGpus", demand.gpus), ("ReqFraction", asked), ("ReqGpuMem", _asked(demand))]]
    if demand.gpu_type:
        lines[0].append(("ReqGpuType", demand.gpu_type))
    if given:
        lines += [
            [
                ("GpuIdx", view.gpu_list(job)),
                ("GpuFraction", format_share(view.allocated_share(job))),
                ("GpuMem", format_mebibytes(given[0].memory)),
                ("GpuMemPeak", _or_unknown(view.gpu_peak(job), format_mebibytes)),
                ("Refusals", job.refusals),
            ],
            [("GpuUuid", ",".join(one.uuid for one in given))],
            [("CPUs", _cpus(job))],
            [("GpuCompute", job.gpu_compute), ("Pacing", job.pacing or "none")],
        ]
    others: list[tuple[str, object]] = [("OtherGpus", job.other_gpus)] if given else []
    if demand.gpus and not given and not job.state.is_final:  # decided when it starts
        held: list[tuple[str, object]] = [("Enforce", "(null)"), ("Preload", "(null)")]
    else:
        held = [("Enforce", _enforced(job)), *_mps(job), ("Preload", job.preload), *others]
    if job.oversubscribed:
        lines.append([("Oversubscribe", f"{format_share(job.oversubscribed)} ({_NOT_GUARANTEED})")])
    return [*lines, [*held, ("MaxRSS", _or_unknown(view.host_peak(job), format_mebibytes))], *_adopted(job)]


_NOT_GUARANTEED = "GPU memory up to its limit is not guaranteed"


def _enforced(job: protocol.JobInfo) -> str:
    """Return the enforcement level, and the part of the threads if MPS limits it."""
    return ",".join(filter(None, (job.tier, job.mps.word if job.mps else "")))


def _mps(job: protocol.JobInfo) -> list[tuple[str, object]]:
    """Return why a job on a GPU with MPS does not use it."""
    use = job.mps
    return [("Mps", f"{use.state} ({use.why})")] if use and use.state in ("refused", "lost") else []


def _adopted(job: protocol.JobInfo) -> Group:
    """Return the adopted process of a job, and why nothing is enforced."""
    if job.adopted is None:
        return []
    why = "nothing limits it, because it was started outside of fgsched"
    return [[("Adopted", f"process {job.adopted.pid}; {why}")]]


def _cpus(job: protocol.JobInfo) -> str:
    return f"{job.bound_cpus} (near GPU {view.gpu_list(job)})" if job.bound_cpus else "any"


def _post_mortem(found: OomReport | None) -> Group:
    """Return why a job ran out of device memory."""
    if not found:
        return []
    from fgsched.views.columns import others

    sizes = (("OomAsked", found.asked), ("OomHeld", found.held), ("OomLimit", found.limit))
    return [
        [
            ("OomKind", "gpu"),
            ("OomGpu", found.gpu),
            *((name, format_mebibytes(size)) for name, size in sizes),
        ],
        [("OomOthers", others(found))],
    ]


def _asked(demand: Demand) -> str:
    if demand.memory_part:
        return f"{format_share(demand.memory_part)} of the GPU"
    return format_mebibytes(demand.memory) if demand.memory else "by fraction"


def _secrets(job: protocol.JobInfo) -> Group:
    request, its = job.request, view.files(job)
    return [
        [("SubmitLine", request.submit_line)] if request.submit_line else [],
        [("WorkDir", request.chdir)],
        [("StdErr", its.stderr)],
        [("StdIn", its.stdin)],
        [("StdOut", its.stdout)],
    ]


def _told_once(steps: Sequence[protocol.StateChange]) -> Iterator[protocol.StateChange]:
    """Return the steps, without repetitions of the same state, attempt and reason."""
    told = None
    for step in steps:
        what = (step.attempt, step.after, step.reason)
        if step.before != step.after or what != told:
            yield step
        told = what


def _step(step: protocol.StateChange) -> str:
    return f"{_time(step.at)},attempt={step.attempt},{step.before}->{step.after},{step.reason}"


def _gpu(found: protocol.GpuInfo) -> Group:
    gpu, seen = found.gpu, found.seen
    sizes = {
        **{"Total": gpu.total, "Reserved": gpu.reserved, "Headroom": gpu.headroom, "Usable": found.usable},
        **{"Free": found.free_memory, "External": found.external},
    }
    return [
        [("Gpu", gpu.index), ("Model", gpu.model), ("State", gpu.state.value)],
        [("Uuid", gpu.uuid), ("Pci", gpu.pci or "Unknown")],
        _instance(gpu.mig) if gpu.mig else [],
        [
            ("Fraction", format_share(gpu.capacity - found.free_share)),
            ("FreeFraction", format_share(found.free_share)),
        ],
        [("Oversubscribe", format_share(gpu.capacity))] if gpu.is_oversubscribed else [],
        [(name, format_mebibytes(size)) for name, size in sizes.items()],
        [
            ("Used", _or_unknown(seen.used if seen else None, format_mebibytes)),
            ("Util", _or_unknown(seen.utilisation if seen else None)),
        ],
        [
            ("Temp", _or_unknown(seen.temperature if seen else None)),
            ("Jobs", ",".join(str(job) for job in found.jobs)),
        ],
        [("Note", gpu.note), ("Since", _time(gpu.noted_at))] if gpu.note else [],
    ]


def _instance(place: MigInstance) -> list[tuple[str, object]]:
    return [("Profile", place.profile), ("Card", place.card), ("CardUuid", place.parent)]


def _or_unknown(value: int | None, form: Callable[[int], str] = str) -> str:
    return "Unknown" if value is None else form(value)


def _partition(found: Any) -> Group:
    from fgsched.cli.showpartition import lines

    return lines(found)


def _reservation(found: protocol.ReservationInfo) -> Group:
    from fgsched.cli.reservation import lines

    return lines(found)


def _settings(about: protocol.About) -> Group:
    """Return the settings of the running controller, one a line."""
    own = {
        **{"version": about.version, "mode": about.mode, "host": about.host, "pid": about.pid},
        **{"source": about.source, "state": about.state, "run": about.run},
    }
    from fgsched.config.keys import KEYS

    shown = {
        name: KEYS[name].form.show(value).strip('"') if name in KEYS else value
        for name, value in about.config.items()
    }
    return [[(name, value)] for name, value in (own | shown).items()]


GROUPS: dict[str, Callable[[Any], Group]] = {
    "job": _job,
    "gpu": _gpu,
    "partition": _partition,
    "reservation": _reservation,
    "config": _settings,
}

# -- JSON -------------------------------------------------------------------------------------------


def _job_document(job: protocol.JobInfo) -> dict[str, Any]:
    return documents.record(documents.keys_of("fgctl"), job)


def _gpu_document(found: protocol.GpuInfo) -> dict[str, Any]:
    own = {name: value for name, value in asdict(found).items() if name != "gpu"}
    return {**to_builtins(asdict(found.gpu)), **to_builtins(own)}


def _partition_document(found: Any) -> dict[str, Any]:
    from fgsched.cli.showpartition import record

    return record(found)


def _reservation_document(found: protocol.ReservationInfo) -> dict[str, Any]:
    from fgsched.cli.reservation import record

    return record(found)


DOCUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "job": _job_document,
    "gpu": _gpu_document,
    "partition": _partition_document,
    "reservation": _reservation_document,
    "config": to_builtins,
}
