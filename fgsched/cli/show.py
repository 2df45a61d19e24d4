"""`fgctl show`: all data of a job, a GPU, a partition, a reservation or the configuration."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import MigInstance
from fgsched.domain.states import JobState
from fgsched.domain.units import format_mebibytes, format_share, parse_indices
from fgsched.views import choices, display, documents, layouts
from fgsched.views.display import shown_time
from fgsched.views.layouts import Group


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
    gpus = {gpu.gpu.index: gpu for gpu in client.call(protocol.ListGpus()).gpus}
    wanted = [index for word in words for index in parse_indices(word)] or list(gpus)
    for index in wanted:
        if index not in gpus:
            raise Refused(f"this host has no GPU {index}", "fginfo -g lists its GPUs.")
    return [gpus[index] for index in wanted]


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


def _time(epoch: float | None) -> str:
    return shown_time(epoch, unknown="Unknown")


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
    return [("Profile", place.profile), ("Card", place.gpu), ("CardUuid", place.parent)]


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
    settings = {
        **{"version": about.version, "mode": about.mode, "host": about.host, "pid": about.pid},
        **{"source": about.source, "state": about.state, "run": about.run},
    }
    from fgsched.config.keys import KEYS

    shown = {
        name: KEYS[name].form.show(value).strip('"') if name in KEYS else value
        for name, value in about.config.items()
    }
    return [[(name, value)] for name, value in (settings | shown).items()]


GROUPS: dict[str, Callable[[Any], Group]] = {
    "job": layouts.of_fgctl,
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
