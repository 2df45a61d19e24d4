"""fginfo: show partitions and GPUs, as sinfo shows partitions and nodes."""

from collections.abc import Iterable, Sequence
from typing import Any

import click
from msgspec import Struct, to_builtins

from fgsched import protocol
from fgsched.cli import reservation
from fgsched.cli.command import CLUSTERS, Command, run, write
from fgsched.cli.terminal import listing
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.job import WHOLE, GpuState, Near
from fgsched.domain.states import JobState
from fgsched.domain.times import format_runtime
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.lifecycle.enforcement import tier_of
from fgsched.protocol import GpuInfo, PartitionInfo
from fgsched.views import display
from fgsched.views.display import host_name, shown_time
from fgsched.views.fields import indices

_UNDER_WAY = (JobState.RUNNING, JobState.STARTING, JobState.COMPLETING)
_OUT = {
    GpuState.DRAINED: ("drain", "drng"),  # without jobs, with jobs
    GpuState.SUSPECT: ("suspect", "suspect"),
    GpuState.DOWN: ("down", "down"),
}
_CUT = (
    "PARTITION",
    "TYPE",
    "NODELIST",
    "REASON",
    "JOBS",
    "EXTERNAL",
    "UUID",
    "PCI",
    "CPUS",
    "LINKS",
)  # in a narrow window
_MINOR = (
    "AVAIL",
    "TIMELIMIT",
    "TYPE",
    "MEM(A/U/T)",
    "UTIL",
    "TEMP",
    "EXTERNAL",
    "CPUS(A/I/O/T)",
    "MEMORY(A/T)",
    "TIMESTAMP",
    *("UUID", "PCI", "RESERVED", "HEADROOM", "LINKS", "CPUS", "ENFORCE", "PRELOAD", "PROFILE", "CARD"),
)
Table = tuple[str, list[list[str]]]  # headings, rows


class HostInfo(Struct, frozen=True):
    """Data about the host from the controller."""

    answer: protocol.Gpus
    partitions: list[PartitionInfo]
    reservations: list[protocol.ReservationInfo]

    @property
    def gpus(self) -> list[GpuInfo]:
        return self.answer.gpus


@click.command(cls=Command, epilog="fginfo -g")
@CLUSTERS
@click.option("-g", "--gpus", is_flag=True, help="One line for each GPU: usage.")
@click.option("-l", "--long", is_flag=True, help="One line for each GPU: hardware.")
@click.option(
    "-R", "--list-reasons", "reasons", is_flag=True, help="GPUs that accept no jobs, with reason and user."
)
@click.option("-T", "--reservation", "reservations", is_flag=True, help="One line for each reservation.")
@click.option("--types", is_flag=True, help="One line for each GPU model.")
@click.option("-s", "--summarize", is_flag=True, help="One line for each partition, without jobs.")
@click.option("-N", "--node", is_flag=True, help="One line for the host: GPUs, CPUs and memory.")
@click.option("-h", "-n", "--noheader", is_flag=True, help="Print no header.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as a JSON object.")
def fginfo(noheader: bool, as_json: bool, **views: bool) -> int:
    """Show the state and the usage of partitions and GPUs."""
    wanted = [view for view, is_on in views.items() if is_on]
    if len(wanted) > 1:
        raise BadUsage("-g, -l, -R, -T, -s, -N and --types are different tables; give one of them")
    with Client(find_places()) as client:
        host_info = HostInfo(
            client.call(protocol.ListGpus()),
            client.call(protocol.ListPartitions()).partitions,
            client.call(protocol.ListReservations()).reservations,
        )
    if as_json:
        write(_document(host_info))
    else:
        headings, rows = _VIEWS[wanted[0] if wanted else ""](host_info)
        write(listing(headings.split(), rows, header=not noheader, cut=_CUT, minor=_MINOR))
    return Exit.DONE


def _of(partition: PartitionInfo, there: HostInfo) -> list[GpuInfo]:
    """Return the GPUs that a partition may use."""
    return [gpu for gpu in there.gpus if gpu.gpu.index in partition.gpus]


def _name(info: PartitionInfo) -> str:
    return f"{info.partition.name}{'*' if info.partition.is_default else ''}"


def _front(info: PartitionInfo, there: HostInfo) -> list[str]:
    longest = info.partition.most.time
    limit = format_runtime(longest) if longest else "infinite"
    return [_name(info), info.partition.state, limit, _amounts(_of(info, there))]


def _partition(there: HostInfo) -> Table:
    rows = []
    for info in there.partitions:
        under_way = sum(info.jobs.get(state.value, 0) for state in _UNDER_WAY)
        counts = f"{under_way}/{info.jobs.get(JobState.PENDING.value, 0)}"
        rows.append([*_front(info, there), counts, _host_state(_of(info, there))])
    return "PARTITION AVAIL TIMELIMIT GPUS(A/I/O/T) JOBS(R/PD) STATE", rows


def _summary(there: HostInfo) -> Table:
    rows = [[*_front(info, there), host_name()] for info in there.partitions]
    return "PARTITION AVAIL TIMELIMIT GPUS(A/I/O/T) NODELIST", rows


def _node(there: HostInfo) -> Table:
    cpus, memory = there.answer.cpus, there.answer.memory
    row = [
        host_name(),
        ",".join(map(_name, there.partitions)),
        _host_state(there.gpus),
        _amounts(there.gpus),
        f"{cpus.total - cpus.free}/{cpus.free}/0/{cpus.total}",
        f"{format_mebibytes(memory.total - memory.free)}/{format_mebibytes(memory.total)}",
    ]
    return "NODELIST PARTITION STATE GPUS(A/I/O/T) CPUS(A/I/O/T) MEMORY(A/T)", [row]


def _gpus(there: HostInfo) -> Table:
    return "GPU TYPE STATE FRAC(A/T) MEM(A/U/T) UTIL TEMP JOBS EXTERNAL", [_gpu(gpu) for gpu in there.gpus]


def _gpu(info: GpuInfo) -> list[str]:
    gpu, seen = info.gpu, info.seen
    taken = info.gpu.logical_memory - info.free_memory - info.external
    used = format_mebibytes(seen.used) if seen and not seen.error else "-"
    return [
        str(gpu.index),
        gpu.model.replace(" ", "_"),
        _state(info) + ("*" if seen and seen.error else ""),
        _fraction(info),
        f"{format_mebibytes(max(0, taken))}/{used}/{format_mebibytes(info.usable)}",
        _or_dash(seen.utilisation if seen else None, "%"),
        _or_dash(seen.temperature if seen else None, "C"),
        indices(info.jobs) or "-",
        format_mebibytes(info.external) if info.external else "-",
    ]


def _fraction(info: GpuInfo) -> str:
    """Return the allocated part and the capacity of a GPU: 0.5/1, or 1.0/2.0 if it is oversubscribed."""
    held = format_share(info.gpu.capacity - info.free_share)
    if not info.gpu.is_oversubscribed:
        return f"{held}/1"
    parts = held, format_share(info.gpu.capacity)
    return "/".join(part if "." in part else f"{part}.0" for part in parts)


def _hardware(there: HostInfo) -> Table:
    return "GPU TYPE UUID PCI TOTAL RESERVED HEADROOM USABLE LINKS CPUS ENFORCE PRELOAD PROFILE CARD", [
        [
            str(gpu.index),
            gpu.model.replace(" ", "_"),
            gpu.uuid,
            gpu.pci or "-",
            *(format_mebibytes(size) for size in (gpu.total, gpu.reserved, gpu.headroom, info.usable)),
            _links(gpu.links),
            format_indices(gpu.cpus) or "-",
            tier_of("", there.answer.enforce, [(gpu, WHOLE)]),
            there.answer.preload,
            gpu.profile or "-",
            str(gpu.mig.gpu) if gpu.mig else "-",
        ]
        for info in there.gpus
        for gpu in [info.gpu]
    ]


def _links(links: Iterable[tuple[int, int]]) -> str:
    """Return the near GPUs, the nearest kind first: nvlink:1,3;socket:4-7."""
    by = {near: [other for other, how in links if how == near] for near in sorted(Near, reverse=True)}
    return ";".join(f"{near.name.lower()}:{format_indices(them)}" for near, them in by.items() if them) or "-"


def _reasons(there: HostInfo) -> Table:
    rows = []
    for info in there.gpus:
        if info.gpu.state is not GpuState.OK:
            said, user = _who(info.gpu.note)
            since = shown_time(info.gpu.noted_at or None)
            rows.append([str(info.gpu.index), _state(info), user, since, said])
    return "GPU STATE USER TIMESTAMP REASON", rows


def _who(note: str) -> tuple[str, str]:
    """Split the note of a drained GPU, which ends with its operator's name in brackets."""
    said, _, user = note.rpartition(" [")
    return (said, user[:-1]) if said and user.endswith("]") else (note or "-", "-")


def _reservations(there: HostInfo) -> Table:
    return reservation.HEADINGS, [reservation.row(one) for one in there.reservations]


def _types(there: HostInfo) -> Table:
    rows = []
    for model in dict.fromkeys(gpu.gpu.model for gpu in there.gpus):
        alike = [gpu for gpu in there.gpus if gpu.gpu.model == model]
        sizes = dict.fromkeys(format_mebibytes(gpu.usable) for gpu in alike)
        rows.append([model.replace(" ", "_"), _amounts(alike), ",".join(sizes)])
    return "TYPE GPUS(A/I/O/T) MEM", rows


_VIEWS = {
    "": _partition,
    "gpus": _gpus,
    "long": _hardware,
    "reasons": _reasons,
    "reservations": _reservations,
    "types": _types,
    "summarize": _summary,
    "node": _node,
}


def _or_dash(number: int | None, unit: str) -> str:
    return "-" if number is None else f"{number}{unit}"


def _units(gpus: Sequence[GpuInfo]) -> tuple[int, int, int]:
    """Return the ten-thousandths of these GPUs that are allocated, idle, and out of use."""
    allocated = sum(gpu.gpu.capacity - gpu.free_share for gpu in gpus)
    idle = sum(gpu.free_share for gpu in gpus if gpu.gpu.state is GpuState.OK)
    return allocated, idle, _total(gpus) - allocated - idle


def _total(gpus: Sequence[GpuInfo]) -> int:
    """Return the ten-thousandths of these GPUs that jobs may hold."""
    return sum(gpu.gpu.capacity for gpu in gpus)


def _amounts(gpus: Sequence[GpuInfo]) -> str:
    return "/".join(format_share(units) for units in (*_units(gpus), _total(gpus)))


def _state(info: GpuInfo) -> str:
    if info.gpu.state in _OUT:
        return _OUT[info.gpu.state][bool(info.jobs)]
    if not info.jobs and info.kept_as:
        return info.kept_as
    return _fullness(info.gpu.capacity - info.free_share, info.free_share)


def _fullness(allocated: int, idle: int) -> str:
    if not allocated:
        return "idle"
    return "mix" if idle else "alloc"


def _host_state(gpus: Sequence[GpuInfo]) -> str:
    """Return the combined state of all GPUs, in sinfo's terms for a node."""
    states = {_state(gpu) for gpu in gpus}
    if states and states <= {"drain", "drng", "suspect", "down"}:
        return "down" if states == {"down"} else "drng" if "drng" in states else "drain"
    allocated, idle, _ = _units(gpus)
    return _fullness(allocated, idle)


def _document(there: HostInfo) -> str:
    answer = there.answer
    return display.document(
        partitions=[_partition_record(partition, there) for partition in there.partitions],
        gpus=[_gpu_record(gpu) for gpu in there.gpus],
        enforce=answer.enforce,
        cpus=to_builtins(answer.cpus),
        memory=to_builtins(answer.memory),
        preload=answer.preload,
        preload_note=answer.preload_note or None,
        reservations=[reservation.record(one) for one in there.reservations],
        other_gpus=answer.other_gpus,
    )


def _partition_record(info: PartitionInfo, there: HostInfo) -> dict[str, Any]:
    gpus, record = _of(info, there), info.partition
    allocated, idle, other = _units(gpus)
    return {
        "name": record.name,
        "is_default": record.is_default,
        "avail": record.state,
        "state": _host_state(gpus),
        "time_limit": record.most.time or None,
        "gpus": {
            "allocated": display.gpu_number(allocated),
            "idle": display.gpu_number(idle),
            "other": display.gpu_number(other),
            "total": len(gpus) if _total(gpus) == len(gpus) * WHOLE else _total(gpus) / WHOLE,
        },
        "job_counts": info.jobs,
        "defaults": to_builtins(record.defaults),
        "most": to_builtins(record.most),
        "total": to_builtins(record.total),
        "per_user": to_builtins(record.per_user),
        "per_account": to_builtins(record.per_account),
        "access": to_builtins(record.access),
        "cards": info.gpus,
        "placement": record.placement,
        "gpu_compute": record.gpu_compute,
    }


def _gpu_record(info: GpuInfo) -> dict[str, Any]:
    gpu, seen = info.gpu, info.seen
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "pci": gpu.pci,
        "total": gpu.total,
        "reserved": gpu.reserved,
        "headroom": gpu.headroom,
        "usable": info.usable,
        "oversubscribe": gpu.capacity / WHOLE,
        "external": info.external,
        "jobs": info.jobs,
        "cpus": gpu.cpus,
        "profile": gpu.profile or None,
        "card": gpu.mig.gpu if gpu.mig else None,
        "card_uuid": gpu.mig.parent if gpu.mig else None,
        "is_unit": gpu.is_unit,
        "links": [{"gpu": other, "near": Near(how).name.lower()} for other, how in gpu.links],
        "state": _state(info),
        "note": gpu.note or None,
        **display.time_fields(noted=gpu.noted_at or None),
        "free_gpu": display.gpu_number(info.free_share),
        "free_memory": info.free_memory,
        "used": seen.used if seen else None,
        "utilisation": seen.utilisation if seen else None,
        "temperature": seen.temperature if seen else None,
        "error": (seen.error if seen else "") or None,
    }


def main() -> None:
    run(fginfo)


if __name__ == "__main__":
    main()
