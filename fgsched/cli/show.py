"""`fgctl show`: print jobs, GPUs, partitions and the configuration as Key=Value."""

from collections.abc import Callable, Sequence
from typing import Any

from fgsched.cli import choices, machine
from fgsched.cli.acctfields import others
from fgsched.cli.cells import clean
from fgsched.cli.jobfiles import files_of
from fgsched.cli.queuecolumns import why_of
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.times import format_limit, format_runtime, format_time
from fgsched.domain.units import format_indices, format_mebibytes, format_share, parse_indices

Record = dict[str, Any]
Group = list[list[tuple[str, object]]]  # lines of (key, value)
_TIMED = ("submitted_at", "eligible_at", "started_at", "ended_at")


def text(group: Group, *, oneliner: bool) -> str:
    """Format pairs with two blanks between them; continuation lines are indented."""
    lines = ["  ".join(f"{key}={clean(str(value))}" for key, value in line) for line in group if line]
    return "  ".join(lines) + "\n" if oneliner else "\n   ".join(lines) + "\n\n"


def document(what: str, records: Sequence[Record]) -> str:
    """Format the records as one JSON object; times are given in both forms."""
    name = "config" if what == "config" else f"{what}s"
    for record in records if what == "job" else ():
        record |= {f"{key}_iso": machine.iso(record[key]) for key in _TIMED}
        record["why"] = why_of(record["cause"])
    return machine.document(**{name: records[0] if what == "config" else list(records)})


# -- what to ask ------------------------------------------------------------------------------------


def _jobs(client: Client, words: Sequence[str]) -> list[Record]:
    """Return the named jobs, or all open jobs."""
    if not words:
        rows = client.ask("queue", fields=["id", "array", "task"])["rows"]
        names = [job if array is None or task is None else f"{array}_{task}" for job, array, task in rows]
    else:
        names = choices.ids(words)
    found: dict[int, Record] = {}
    for name in dict.fromkeys(names):
        found |= {job["id"]: job for job in client.ask("jobs", id=name)["jobs"]}
    return list(found.values())


def _gpus(client: Client, words: Sequence[str]) -> list[Record]:
    cards = {card["index"]: card for card in client.ask("gpus")["gpus"]}
    wanted = [index for word in words for index in parse_indices(word)] or list(cards)
    for index in wanted:
        if index not in cards:
            raise Refused(f"this host has no GPU {index}", "fginfo -g lists its GPUs.")
    return [cards[index] for index in wanted]


def _partitions(client: Client, words: Sequence[str]) -> list[Record]:
    from fgsched.cli.showpartition import partitions

    return partitions(client, words)


def _reservations(client: Client, words: Sequence[str]) -> list[Record]:
    from fgsched.cli.reservation import records

    return records(client, words)


def _config(client: Client, words: Sequence[str]) -> list[Record]:
    if words:
        raise BadUsage("show config takes no argument")
    return [client.ask("ping")]


ASKED: dict[str, Callable[[Client, Sequence[str]], list[Record]]] = {
    "job": _jobs,
    "gpu": _gpus,
    "partition": _partitions,
    "reservation": _reservations,
    "config": _config,
}

# -- how to say it ----------------------------------------------------------------------------------


def _job(job: Record) -> Group:
    request = job["request"]
    until = job["started_at"] + request["time_limit"] if _is_limited(job) else None
    return [
        [("JobId", job["id"]), *_array(job), ("JobName", request["name"])],
        [("UserId", f"{job['user']}({job['uid']})"), ("GroupId", job["gid"])],
        [("JobState", job["state"]), ("Reason", job["reason"]), ("Held", job["held"] or "no")],
        [("Why", why)] if (why := why_of(job["cause"])) else [],
        [("ExitCode", f"{job['exit_code']}:{job['signal']}"), ("Attempt", job["attempt"])],
        [("Requeue", int(request.get("requeue", True))), ("Restarts", job["restarts"]), *_suspended(job)],
        _preemption(job["eviction"]),
        [("Dependency", job["depends"] or "(null)")],
        _wait_index(request),
        [("Reservation", request["reservation"])] if request.get("reservation") else [],
        [
            ("RunTime", format_runtime(job["elapsed"])),
            ("TimeLimit", format_limit(request.get("time_limit", 0))),
        ],
        [("SubmitTime", _time(job["submitted_at"])), ("EligibleTime", _time(job["eligible_at"]))],
        [("StartTime", _time(job["started_at"])), ("EndTime", _time(job["ended_at"] or until))],
        [("Partition", job["partition"]), *_host_needs(request.get("demand", {}))],
        *_gpu_lines(job),
        *_post_mortem(job["post_mortem"]),
        [("Refused", job["refused"])] if job["refused"] else [],
        [("Warning", job["warning"])] if job["warning"] else [],
        *([] if job["is_private"] else _secrets(job)),
        [("CancelReason", job["note"])] if job["note"] else [],
        [("Comment", request.get("comment", ""))] if request.get("comment") else [],
        [("Detail", job["detail"])] if job["detail"] else [],
        *([("Event", _event(event))] for event in job["events"]),
    ]


def _array(job: Record) -> list[tuple[str, object]]:
    if job["array"] is None:
        return []
    which = job["tasks"].partition("%")[0] if job["task"] is None else job["task"]
    most = job["request"].get("throttle", 0)
    throttle = [("ArrayTaskThrottle", most)] if most else []
    return [("ArrayJobId", job["array"]), ("ArrayTaskId", which), *throttle]


def _suspended(job: Record) -> list[tuple[str, object]]:
    return [("SuspendedTime", format_runtime(job["suspended"]))] if job["suspended"] else []


def _preemption(found: Record | None) -> list[tuple[str, object]]:
    """Return the last preemption of the job."""
    if not found:
        return []
    mode = str(found["mode"]).upper()
    return [("PreemptedBy", found["by"]), ("PreemptTime", _time(found["at"])), ("PreemptMode", mode)]


def _wait_index(request: Record) -> list[tuple[str, object]]:
    names = (("BeginTime", "begin"), ("Deadline", "deadline"))
    return [(key, _time(float(request[name]))) for key, name in names if request.get(name)]


def _is_limited(job: Record) -> bool:
    return bool(job["started_at"] and job["request"].get("time_limit"))


def _time(epoch: float | None) -> str:
    return format_time(epoch, unknown="Unknown")


def _host_needs(demand: Record) -> list[tuple[str, object]]:
    memory = demand.get("host_memory", 0)
    return [
        ("NumCPUs", demand.get("cpus", 1)),
        ("ReqMem", format_mebibytes(memory) if memory else "not counted"),
    ]


def _gpu_lines(job: Record) -> Group:
    """Return the requested and allocated GPUs, and the enforcement."""
    demand, cards = job["request"].get("demand", {}), job["allocated"]
    asked = format_share(demand.get("share", 0) * demand.get("gpus", 0))
    lines: Group = [
        [("ReqGpus", demand.get("gpus", 0)), ("ReqFraction", asked), ("ReqGpuMem", _asked(demand))]
    ]
    if demand.get("gpu_type"):
        lines[0].append(("ReqGpuType", demand["gpu_type"]))
    if cards:
        lines += [
            [
                ("GpuIdx", format_indices(card["gpu"] for card in cards)),
                ("GpuFraction", format_share(sum(card["share"] for card in cards))),
                ("GpuMem", format_mebibytes(cards[0]["memory"])),
                ("GpuMemPeak", format_mebibytes(job["gpu_peak"])),
                ("Refusals", job["refusals"]),
            ],
            [("GpuUuid", ",".join(card["uuid"] for card in cards))],
            [("CPUs", _cpus(job["cpus"], cards))],
        ]
    lines += [[("GpuCompute", job["gpu_compute"]), ("Pacing", job["pacing"] or "none")]] if cards else []
    others = [("OtherGpus", job["other_gpus"])] if cards else []
    held = [("Enforce", job["tier"]), ("Preload", job["preload"]), *others]
    return [*lines, [*held, ("MaxRSS", format_mebibytes(job["max_rss"]))]]


def _cpus(bound: str, cards: Sequence[Record]) -> str:
    gpus = format_indices(card["gpu"] for card in cards)
    return f"{bound} (near GPU {gpus})" if bound else "any"


def _post_mortem(found: Record | None) -> Group:
    """Return how the job ran out of GPU memory."""
    if not found:
        return []
    sizes = [("OomAsked", "asked"), ("OomHeld", "held"), ("OomLimit", "limit")]
    return [
        [("OomKind", "gpu"), ("OomGpu", found["gpu"])]
        + [(name, format_mebibytes(found[key])) for name, key in sizes],
        [("OomOthers", others(found))],
    ]


def _asked(demand: Record) -> str:
    if demand.get("memory_part"):
        return f"{format_share(demand['memory_part'])} of the card"
    return format_mebibytes(demand["memory"]) if demand.get("memory") else "by fraction"


def _secrets(job: Record) -> Group:
    request, its = job["request"], files_of(job)
    line = [("SubmitLine", request["submit_line"])] if request.get("submit_line") else []
    return [
        line,
        [("WorkDir", request.get("chdir", "/"))],
        [("StdErr", its.stderr)],
        [("StdIn", its.stdin)],
        [("StdOut", its.stdout)],
    ]


def _event(event: Sequence[Any]) -> str:
    attempt, at, old, new, reason = event
    return f"{_time(at)},attempt={attempt},{old}->{new},{reason}"


def _gpu(card: Record) -> Group:
    jobs = ",".join(str(job) for job in card["jobs"])
    seen = card["seen"] or {}
    return [
        [("Gpu", card["index"]), ("Model", card["model"]), ("State", card["state"])],
        [("Uuid", card["uuid"]), ("Pci", card["pci"] or "Unknown")],
        [
            ("Fraction", format_share(10_000 - card["free_share"])),
            ("FreeFraction", format_share(card["free_share"])),
        ],
        [(name, format_mebibytes(card[key])) for name, key in _MEMORY.items()],
        [
            ("Used", _or_unknown(seen.get("used"), format_mebibytes)),
            ("Util", _or_unknown(seen.get("utilisation"))),
        ],
        [("Temp", _or_unknown(seen.get("temperature"))), ("Jobs", jobs)],
        [("Note", card["note"]), ("Since", _time(card["noted_at"]))] if card["note"] else [],
    ]


_MEMORY = {
    **{"Total": "total", "Reserved": "reserved", "Headroom": "headroom", "Usable": "usable"},
    **{"Free": "free_memory", "External": "external"},
}


def _or_unknown(value: int | None, form: Callable[[int], str] = str) -> str:
    return "Unknown" if value is None else form(value)


def _partition(found: Record) -> Group:
    from fgsched.cli.showpartition import lines

    return lines(found)


def _reservation(found: Record) -> Group:
    from fgsched.cli.reservation import lines

    return lines(found)


def _settings(about: Record) -> Group:
    """Return the settings in effect in the running controller, one in each line."""
    own = ("version", "mode", "host", "pid", "source", "state", "run")
    return [[(name, about[name])] for name in own] + [
        [(key, value)] for key, value in about["config"].items()
    ]


GROUPS: dict[str, Callable[[Record], Group]] = {
    "job": _job,
    "gpu": _gpu,
    "partition": _partition,
    "reservation": _reservation,
    "config": _settings,
}
