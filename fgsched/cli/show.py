"""`fgctl show`: all data of a job, a GPU, a partition, a reservation or the configuration."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import to_builtins

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.states import JobState
from fgsched.domain.text import shown
from fgsched.domain.units import parse_indices
from fgsched.views import choices, display, documents, host
from fgsched.views.documents import Group
from fgsched.views.host import HostPartition


def document(what: str, answers: Sequence[Any]) -> str:
    """Return the answers as one JSON object."""
    records = [DOCUMENTS[what](answer) for answer in answers]
    return display.document(**({"config": records[0]} if what == "config" else {f"{what}s": records}))


# -- requests ---------------------------------------------------------------------------------------


def _jobs(client: Client, words: Sequence[str]) -> list[protocol.JobInfo]:
    """Return the named jobs, or all open jobs."""
    names = choices.ids(words) if words else _open(client)
    jobs: dict[int, protocol.JobInfo] = {}
    for name in dict.fromkeys(names):
        jobs |= {job.id: job for job in client.call(protocol.ShowJobs(id=name)).jobs}
    if any(job.state is JobState.PENDING for job in jobs.values()):
        from fgsched.cli.prospects import add_starts

        add_starts(client, jobs.values())
    return list(jobs.values())


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


def _partitions(client: Client, words: Sequence[str]) -> list[HostPartition]:
    """Return the named partitions, or all. Raises Refused for a name that no partition has."""
    partitions = {info.partition.name: info for info in client.call(protocol.ListPartitions()).partitions}
    for word in words:
        if word not in partitions:
            raise Refused(
                f"invalid partition name specified: {shown(word)}", f"This host has {', '.join(partitions)}."
            )
    answer = client.call(protocol.ListGpus())
    return [HostPartition(partitions[name], answer) for name in dict.fromkeys(words or partitions)]


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


def _reservation(info: protocol.ReservationInfo) -> Group:
    from fgsched.cli.reservation import lines

    return lines(info)


def _settings(about: protocol.About) -> Group:
    """Return the settings of the running controller, one a line."""
    settings = {
        **{"version": about.version, "mode": about.mode, "host": about.host, "pid": about.pid},
        **{"source": about.source, "state": about.state, "run": about.run_dir},
    }
    from fgsched.config.keys import KEYS

    shown = {
        name: KEYS[name].form.show(value).strip('"') if name in KEYS else value
        for name, value in about.config.items()
    }
    return [[(name, value)] for name, value in (settings | shown).items()]


GROUPS: dict[str, Callable[[Any], Group]] = {
    "job": documents.of_fgctl,
    "gpu": host.gpu_lines,
    "partition": host.partition_lines,
    "reservation": _reservation,
    "config": _settings,
}

# -- JSON -------------------------------------------------------------------------------------------


def _job_document(job: protocol.JobInfo) -> dict[str, Any]:
    return documents.record(documents.keys_of("fgctl"), job)


def _reservation_document(info: protocol.ReservationInfo) -> dict[str, Any]:
    from fgsched.cli.reservation import record

    return record(info)


DOCUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "job": _job_document,
    "gpu": host.gpu_document,
    "partition": host.partition_document,
    "reservation": _reservation_document,
    "config": to_builtins,
}
