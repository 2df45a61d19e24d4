"""fginfo: show partitions and GPUs, as sinfo shows partitions and nodes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import to_builtins

from fgsched import protocol
from fgsched.cli import reservation
from fgsched.cli.command import listed, run, write
from fgsched.cli.terminal import listing
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.job import WHOLE, GpuState, Near
from fgsched.domain.states import JobState
from fgsched.domain.times import format_runtime
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.lifecycle.enforcement import tier_of
from fgsched.protocol import GpuInfo
from fgsched.views import display
from fgsched.views import host as host_view
from fgsched.views.display import host_name, shown_time
from fgsched.views.fields import indices
from fgsched.views.gpu import memory_in_use
from fgsched.views.host import HostPartition
from fgsched.views.listing import LEAST_TEXT, TableColumn
from fgsched.views.options import HOST, HostOptions


class HardwareRow(NamedTuple):
    """A GPU, and the host that has it."""

    info: GpuInfo
    host: protocol.Gpus


class NodeRow(NamedTuple):
    """The host as a node, and its partitions."""

    host: protocol.Gpus
    partitions: list[HostPartition]


# -- texts of cells --------------------------------------------------------------------------------------


def _name(shown: HostPartition) -> str:
    return f"{shown.partition.name}{'*' if shown.partition.is_default else ''}"


def _time_limit(shown: HostPartition) -> str:
    longest = shown.partition.most.time
    return format_runtime(longest) if longest else "infinite"


def _job_counts(shown: HostPartition) -> str:
    running = sum(count for state, count in shown.info.jobs.items() if JobState(state).holds)
    return f"{running}/{shown.info.jobs.get(JobState.PENDING.value, 0)}"


def _cpus(row: NodeRow) -> str:
    cpus = row.host.cpus
    return f"{cpus.total - cpus.free}/{cpus.free}/0/{cpus.total}"


def _host_memory(row: NodeRow) -> str:
    memory = row.host.memory
    return f"{format_mebibytes(memory.total - memory.free)}/{format_mebibytes(memory.total)}"


def _model(info: GpuInfo) -> str:
    return info.gpu.model.replace(" ", "_")


def _state(info: GpuInfo) -> str:
    return host_view.gpu_state(info) + ("*" if info.seen and info.seen.error else "")


def _fraction(info: GpuInfo) -> str:
    """Return the allocated part and the capacity of a GPU: 0.5/1, or 1.0/2.0 if it is oversubscribed."""
    held = format_share(info.gpu.capacity - info.free_share)
    if not info.gpu.is_oversubscribed:
        return f"{held}/1"
    parts = held, format_share(info.gpu.capacity)
    return "/".join(part if "." in part else f"{part}.0" for part in parts)


def _memory(info: GpuInfo) -> str:
    """Return the allocated, the used and the usable memory of a GPU."""
    used = "-" if (used_bytes := memory_in_use(info)) is None else format_mebibytes(used_bytes)
    return f"{format_mebibytes(info.allocated_memory)}/{used}/{format_mebibytes(info.usable)}"


def _or_dash(number: int | None, unit: str) -> str:
    return "-" if number is None else f"{number}{unit}"


def _links(links: Iterable[tuple[int, int]]) -> str:
    """Return the near GPUs, the nearest kind first: nvlink:1,3;socket:4-7."""
    by = {near: [other for other, how in links if how == near] for near in sorted(Near, reverse=True)}
    parts = [f"{near.name.lower()}:{format_indices(gpus)}" for near, gpus in by.items() if gpus]
    return ";".join(parts) or "-"


def _who(note: str) -> tuple[str, str]:
    """Split the note of a drained GPU, which ends with its operator's name in brackets."""
    reason, _, user = note.rpartition(" [")
    return (reason, user[:-1]) if reason and user.endswith("]") else (note or "-", "-")


def _by_model(gpus: Iterable[GpuInfo]) -> dict[str, list[GpuInfo]]:
    models: dict[str, list[GpuInfo]] = {}
    for info in gpus:
        models.setdefault(info.gpu.model, []).append(info)
    return models


def _sizes(gpus: Iterable[GpuInfo]) -> str:
    return ",".join(dict.fromkeys(format_mebibytes(info.usable) for info in gpus))


# -- tables ----------------------------------------------------------------------------------------------


def _text(heading: str, value: Callable[[Any], str], *, is_minor: bool = False) -> TableColumn:
    """Return a column of texts, which a narrow window cuts."""
    return TableColumn(heading, value, least=LEAST_TEXT, is_minor=is_minor)


def _minor(heading: str, value: Callable[[Any], str]) -> TableColumn:
    """Return a column that a narrow window leaves out."""
    return TableColumn(heading, value, is_minor=True)


_FRONT = (
    _text("PARTITION", _name),
    _minor("AVAIL", lambda shown: shown.partition.state),
    _minor("TIMELIMIT", _time_limit),
    TableColumn("GPUS(A/I/O/T)", lambda shown: host_view.amounts(shown.gpus)),
)
_COLUMNS = {
    "partitions": (
        *_FRONT,
        _text("JOBS(R/PD)", _job_counts),
        TableColumn("STATE", lambda shown: host_view.gpus_state(shown.gpus)),
    ),
    "summarize": (*_FRONT, _text("NODELIST", lambda shown: host_name())),
    "node": (
        _text("NODELIST", lambda row: host_name()),
        _text("PARTITION", lambda row: ",".join(map(_name, row.partitions))),
        TableColumn("STATE", lambda row: host_view.gpus_state(row.host.gpus)),
        TableColumn("GPUS(A/I/O/T)", lambda row: host_view.amounts(row.host.gpus)),
        _minor("CPUS(A/I/O/T)", _cpus),
        _minor("MEMORY(A/T)", _host_memory),
    ),
    "gpus": (
        TableColumn("GPU", lambda info: str(info.gpu.index)),
        _text("TYPE", _model, is_minor=True),
        TableColumn("STATE", _state),
        TableColumn("FRAC(A/T)", _fraction),
        _minor("MEM(A/U/T)", _memory),
        _minor("UTIL", lambda info: _or_dash(info.seen.utilisation if info.seen else None, "%")),
        _minor("TEMP", lambda info: _or_dash(info.seen.temperature if info.seen else None, "C")),
        _text("JOBS", lambda info: indices(info.jobs) or "-"),
        _text(
            "EXTERNAL",
            lambda info: format_mebibytes(info.external) if info.external else "-",
            is_minor=True,
        ),
    ),
    "long": (
        TableColumn("GPU", lambda row: str(row.info.gpu.index)),
        _text("TYPE", lambda row: _model(row.info), is_minor=True),
        _text("UUID", lambda row: row.info.gpu.uuid, is_minor=True),
        _text("PCI", lambda row: row.info.gpu.pci or "-", is_minor=True),
        TableColumn("TOTAL", lambda row: format_mebibytes(row.info.gpu.total)),
        _minor("RESERVED", lambda row: format_mebibytes(row.info.gpu.reserved)),
        _minor("HEADROOM", lambda row: format_mebibytes(row.info.gpu.headroom)),
        TableColumn("USABLE", lambda row: format_mebibytes(row.info.usable)),
        _text("LINKS", lambda row: _links(row.info.gpu.links), is_minor=True),
        _text("CPUS", lambda row: format_indices(row.info.gpu.cpus) or "-", is_minor=True),
        _minor("ENFORCE", lambda row: tier_of("", row.host.enforce, [(row.info.gpu, WHOLE)])),
        _minor("PRELOAD", lambda row: row.host.preload),
        _minor("PROFILE", lambda row: row.info.gpu.profile or "-"),
        _minor("CARD", lambda row: str(row.info.gpu.mig.gpu) if row.info.gpu.mig else "-"),
    ),
    "reasons": (
        TableColumn("GPU", lambda info: str(info.gpu.index)),
        TableColumn("STATE", host_view.gpu_state),
        TableColumn("USER", lambda info: _who(info.gpu.note)[1]),
        _minor("TIMESTAMP", lambda info: shown_time(info.gpu.noted_at or None)),
        _text("REASON", lambda info: _who(info.gpu.note)[0]),
    ),
    "types": (
        _text("TYPE", lambda gpus: _model(gpus[0]), is_minor=True),
        TableColumn("GPUS(A/I/O/T)", host_view.amounts),
        TableColumn("MEM", _sizes),
    ),
    "reservations": reservation.COLUMNS,
}


@listed(HOST, epilog="fginfo -g")
def fginfo(options: HostOptions) -> int:
    """Show the state and the usage of partitions and GPUs."""
    wanted = [name for name in _COLUMNS if getattr(options, name, False)]
    if len(wanted) > 1:
        raise BadUsage("-g, -l, -R, -T, -s, -N and --types are different tables; give one of them")
    with Client(find_paths()) as client:
        host = client.call(protocol.ListGpus())
        partitions = [HostPartition(info, host) for info in client.call(protocol.ListPartitions()).partitions]
        reservations = client.call(protocol.ListReservations()).reservations
    if options.as_json:
        write(_document(host, partitions, reservations))
        return Exit.DONE
    name = wanted[0] if wanted else "partitions"
    rows: dict[str, Sequence[Any]] = {
        "partitions": partitions,
        "summarize": partitions,
        "gpus": host.gpus,
        "long": [HardwareRow(info, host) for info in host.gpus],
        "reasons": [info for info in host.gpus if info.gpu.state is not GpuState.OK],
        "reservations": reservations,
        "types": list(_by_model(host.gpus).values()),
        "node": [NodeRow(host, partitions)],
    }
    write(listing(_COLUMNS[name], rows[name], header=not options.noheader))
    return Exit.DONE


def _document(
    host: protocol.Gpus, partitions: Iterable[HostPartition], reservations: Iterable[protocol.ReservationInfo]
) -> str:
    return display.document(
        partitions=[host_view.partition_record(partition) for partition in partitions],
        gpus=[host_view.gpu_record(info) for info in host.gpus],
        enforce=host.enforce,
        cpus=to_builtins(host.cpus),
        memory=to_builtins(host.memory),
        preload=host.preload,
        preload_note=host.preload_note or None,
        reservations=[reservation.record(info) for info in reservations],
        other_gpus=host.other_gpus,
    )


def main() -> None:
    run(fginfo)


if __name__ == "__main__":
    main()
