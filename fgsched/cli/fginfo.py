"""fginfo: show partitions and GPUs, as sinfo shows partitions and nodes."""

from collections.abc import Sequence
from typing import Any

import click

from fgsched.cli import machine, reservation
from fgsched.cli.cells import shown_time, table
from fgsched.cli.command import Command, write
from fgsched.cli.queuecolumns import host, indices
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.job import WHOLE, GpuState, JobState, Near
from fgsched.domain.times import format_runtime
from fgsched.domain.units import format_indices, format_mebibytes, format_share

_UNDER_WAY = (JobState.RUNNING, JobState.STARTING, JobState.COMPLETING)
_OUT = {
    GpuState.DRAINED.value: ("drain", "drng"),  # without jobs, with jobs
    GpuState.SUSPECT.value: ("suspect", "suspect"),
    GpuState.DOWN.value: ("down", "down"),
}
Card = dict[str, Any]


@click.command(cls=Command, epilog="fginfo -g")
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
        answer = client.ask("gpus")
        for name in ("partitions", "reservations"):
            answer |= client.ask(name)
    if as_json:
        write(_document(answer))
    else:
        headings, rows = _VIEWS[wanted[0] if wanted else ""](answer)
        write(table(headings.split(), rows, header=not noheader))
    return Exit.DONE


def _of(partition: Card, answer: Card) -> list[Card]:
    """Return the GPUs that a partition may use."""
    return [card for card in answer["gpus"] if card["index"] in partition["cards"]]


def _name(partition: Card) -> str:
    return f"{partition['name']}{'*' if partition['is_default'] else ''}"


def _front(partition: Card, answer: Card) -> list[str]:
    longest = partition["most"]["time"]
    limit = format_runtime(longest) if longest else "infinite"
    return [_name(partition), partition["state"], limit, _amounts(_of(partition, answer))]


def _partition(answer: Card) -> tuple[str, list[list[str]]]:
    rows = []
    for partition in answer["partitions"]:
        jobs = partition["jobs"]
        under_way = sum(jobs.get(state.value, 0) for state in _UNDER_WAY)
        counts = f"{under_way}/{jobs.get(JobState.PENDING.value, 0)}"
        rows.append([*_front(partition, answer), counts, _host_state(_of(partition, answer))])
    return "PARTITION AVAIL TIMELIMIT GPUS(A/I/O/T) JOBS(R/PD) STATE", rows


def _summary(answer: Card) -> tuple[str, list[list[str]]]:
    rows = [[*_front(partition, answer), host()] for partition in answer["partitions"]]
    return "PARTITION AVAIL TIMELIMIT GPUS(A/I/O/T) NODELIST", rows


def _node(answer: Card) -> tuple[str, list[list[str]]]:
    cpus, memory = answer["cpus"], answer["memory"]
    row = [
        host(),
        ",".join(map(_name, answer["partitions"])),
        _host_state(answer["gpus"]),
        _amounts(answer["gpus"]),
        f"{cpus['total'] - cpus['free']}/{cpus['free']}/0/{cpus['total']}",
        f"{format_mebibytes(memory['total'] - memory['free'])}/{format_mebibytes(memory['total'])}",
    ]
    return "NODELIST PARTITION STATE GPUS(A/I/O/T) CPUS(A/I/O/T) MEMORY(A/T)", [row]


def _cards(answer: Card) -> tuple[str, list[list[str]]]:
    return "GPU TYPE STATE FRAC(A/T) MEM(A/U/T) UTIL TEMP JOBS EXTERNAL", [
        _card(card) for card in answer["gpus"]
    ]


def _card(card: Card) -> list[str]:
    seen = card["seen"] or {}
    taken = card["usable"] - card["free_memory"] - card["external"]
    used = format_mebibytes(seen["used"]) if seen and not seen["error"] else "-"
    return [
        str(card["index"]),
        card["model"].replace(" ", "_"),
        _state(card) + ("*" if seen.get("error") else ""),
        f"{format_share(WHOLE - card['free_share'])}/1",
        f"{format_mebibytes(max(0, taken))}/{used}/{format_mebibytes(card['usable'])}",
        _or_dash(seen.get("utilisation"), "%"),
        _or_dash(seen.get("temperature"), "C"),
        indices(card["jobs"]) or "-",
        format_mebibytes(card["external"]) if card["external"] else "-",
    ]


def _hardware(answer: Card) -> tuple[str, list[list[str]]]:
    return "GPU TYPE UUID PCI TOTAL RESERVED HEADROOM USABLE LINKS CPUS ENFORCE PRELOAD", [
        [
            str(card["index"]),
            card["model"].replace(" ", "_"),
            card["uuid"],
            card["pci"] or "-",
            *(format_mebibytes(card[name]) for name in ("total", "reserved", "headroom", "usable")),
            _links(card["links"]),
            format_indices(card["cpus"]) or "-",
            answer["enforce"],
            answer["preload"],
        ]
        for card in answer["gpus"]
    ]


def _links(links: list[list[int]]) -> str:
    """Format the connected GPUs, closest connection first: nvlink:1,3;socket:4-7."""
    by = {near: [other for other, how in links if how == near] for near in sorted(Near, reverse=True)}
    return ";".join(f"{near.name.lower()}:{format_indices(them)}" for near, them in by.items() if them) or "-"


def _reasons(answer: Card) -> tuple[str, list[list[str]]]:
    rows = []
    for card in answer["gpus"]:
        if card["state"] != GpuState.OK.value:
            said, user = _who(card["note"])
            since = shown_time(card["noted_at"] or None)
            rows.append([str(card["index"]), _state(card), user, since, said])
    return "GPU STATE USER TIMESTAMP REASON", rows


def _who(note: str) -> tuple[str, str]:
    """Split the note of a drained GPU into the reason and the operator's name in brackets."""
    said, _, user = note.rpartition(" [")
    return (said, user[:-1]) if said and user.endswith("]") else (note or "-", "-")


def _reservations(answer: Card) -> tuple[str, list[list[str]]]:
    return reservation.HEADINGS, [reservation.row(one) for one in answer["reservations"]]


def _types(answer: Card) -> tuple[str, list[list[str]]]:
    rows = []
    for model in dict.fromkeys(card["model"] for card in answer["gpus"]):
        alike = [card for card in answer["gpus"] if card["model"] == model]
        sizes = dict.fromkeys(format_mebibytes(card["usable"]) for card in alike)
        rows.append([model.replace(" ", "_"), _amounts(alike), ",".join(sizes)])
    return "TYPE GPUS(A/I/O/T) MEM", rows


_VIEWS = {
    "": _partition,
    "gpus": _cards,
    "long": _hardware,
    "reasons": _reasons,
    "reservations": _reservations,
    "types": _types,
    "summarize": _summary,
    "node": _node,
}


def _or_dash(number: int | None, unit: str) -> str:
    return "-" if number is None else f"{number}{unit}"


def _units(cards: Sequence[Card]) -> tuple[int, int, int]:
    """Sum allocated, idle and unavailable share of these GPUs, in ten-thousandths."""
    allocated = sum(WHOLE - card["free_share"] for card in cards)
    idle = sum(card["free_share"] for card in cards if card["state"] == GpuState.OK.value)
    return allocated, idle, len(cards) * WHOLE - allocated - idle


def _amounts(cards: Sequence[Card]) -> str:
    return "/".join(format_share(units) for units in (*_units(cards), len(cards) * WHOLE))


def _state(card: Card) -> str:
    if card["state"] in _OUT:
        return _OUT[card["state"]][bool(card["jobs"])]
    if not card["jobs"] and card.get("kept_as"):
        return str(card["kept_as"])
    return _fullness(WHOLE - card["free_share"], card["free_share"])


def _fullness(allocated: int, idle: int) -> str:
    if not allocated:
        return "idle"
    return "mix" if idle else "alloc"


def _host_state(cards: Sequence[Card]) -> str:
    """Return the state of all GPUs together, as sinfo names it for a node."""
    states = {_state(card) for card in cards}
    if states and states <= {"drain", "drng", "suspect", "down"}:
        return "down" if states == {"down"} else "drng" if "drng" in states else "drain"
    allocated, idle, _ = _units(cards)
    return _fullness(allocated, idle)


def _document(answer: Card) -> str:
    return machine.document(
        partitions=[_partition_record(one, answer) for one in answer["partitions"]],
        gpus=[_card_record(card) for card in answer["gpus"]],
        enforce=answer["enforce"],
        cpus=answer["cpus"],
        memory=answer["memory"],
        preload=answer["preload"],
        preload_note=answer["preload_note"] or None,
        reservations=answer["reservations"],
        other_gpus=answer["other_gpus"],
    )


def _partition_record(partition: Card, answer: Card) -> Card:
    cards = _of(partition, answer)
    allocated, idle, other = _units(cards)
    return {
        "name": partition["name"],
        "is_default": partition["is_default"],
        "avail": partition["state"],
        "state": _host_state(cards),
        "time_limit": partition["most"]["time"] or None,
        "gpus": {
            "allocated": machine.gpus(allocated),
            "idle": machine.gpus(idle),
            "other": machine.gpus(other),
            "total": len(cards),
        },
        "job_counts": partition["jobs"],
        **{name: partition[name] for name in ("defaults", "most", "total", "per_user", "per_account")},
        **{name: partition[name] for name in ("access", "cards", "placement", "gpu_compute")},
    }


def _card_record(card: Card) -> dict[str, Any]:
    plain = (
        "index",
        "uuid",
        "model",
        "pci",
        "total",
        "reserved",
        "headroom",
        "usable",
        "external",
        "jobs",
        "cpus",
    )
    seen = card["seen"] or {}
    return {
        **{name: card[name] for name in plain},
        "links": [{"gpu": other, "near": Near(how).name.lower()} for other, how in card["links"]],
        "state": _state(card),
        "note": card["note"] or None,
        **machine.times(noted=card["noted_at"] or None),
        "free_gpu": machine.gpus(card["free_share"]),
        "free_memory": card["free_memory"],
        **{name: seen.get(name) for name in ("used", "utilisation", "temperature")},
        "error": seen.get("error") or None,
    }


def main() -> None:
    fginfo.main(prog_name="fginfo")


if __name__ == "__main__":
    main()
