"""sinfo: show partitions and the host as a node, in Slurm's layouts and formats."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fgsched import protocol
from fgsched.client import Client, find_places
from fgsched.domain.job import WHOLE, GpuState
from fgsched.domain.text import clean, column_width
from fgsched.domain.times import format_runtime
from fgsched.slurm.getopt import BadLine, options, parse
from fgsched.slurm.inputs import of_sinfo
from fgsched.slurm.phrases import oversubscribed
from fgsched.views.display import fit, host_name, shown_time
from fgsched.views.gres import typed

KNOWN = options(
    """all bg cluster= clusters= dead exact federation format= Format= future hide iterate= json local long
    node nodes= Node Nodes noconvert noheader partition= responding list-reasons reservation sort= states=
    summarize usage verbose version yaml""",
    """a:all M:clusters d:dead e:exact F:future o:format O:Format i:iterate l:long N:Node n:nodes h:noheader
    p:partition r:responding R:list-reasons T:reservation S:sort t:states s:summarize v:verbose V:version""",
)
_ITEM = re.compile(r"%(\.?)([0-9]*)(all\b|[a-zA-Z])")
_NAMED = re.compile(r"([A-Za-z_]+)(?::(\.?)([0-9]*)(.*))?")
_FORMATS = {  # option -> format
    "": "%9P %.5a %.10l %.6D %.6t %N",
    "long": "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %.11i %N",
    "summarize": "%9P %.5a %.10l %.16F %N",
    "Node": "%#N %.6D %.9P %6t",
    "Node long": "%#N %.6D %.9P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E",
    "list-reasons": "%20E %9u %19H %N",
    "list-reasons long": "%20E %12U %19H %6t %N",
}
_STATES = {
    "idle": "idle",
    "mix": "mixed",
    "alloc": "allocated",
    "drain": "drained",
    "drng": "draining",
    "down": "down",
}
_NAMES_OF_STATES = (  # that -t takes; the host is in few of them
    "all alloc allocated blocked cloud comp completing down drain drained draining drng fail failing future"
    " futr idle maint mix mixed no_respond npc perfctrs planned plnd power_down power_up powered_down"
    " powering_down powering_up reboot rebooting reserved resv unk unknown"
)


class SinfoRow(NamedTuple):
    """A partition with the host as its node."""

    info: protocol.PartitionInfo
    host: protocol.Gpus

    @property
    def cards(self) -> list[protocol.GpuInfo]:
        """The GPUs of the partition."""
        return [one for one in self.host.gpus if one.gpu.index in self.info.cards]

    @property
    def state(self) -> str:
        """The state of the node in its short form: idle, mix, alloc, drain, drng or down."""
        gpus, used = self.host.gpus, self.host.cpus.total - self.host.cpus.free
        if gpus and all(one.gpu.state is not GpuState.OK for one in gpus):
            if all(one.gpu.state is GpuState.DOWN for one in gpus):
                return "down"
            return "drng" if used else "drain"
        if not used and all(one.free_share == one.gpu.capacity for one in gpus):
            return "idle"
        return "mix" if self.host.cpus.free and (not gpus or any(one.free_share for one in gpus)) else "alloc"


def _amounts(row: SinfoRow) -> str:
    """Return the numbers of allocated, idle, other and all nodes."""
    busy, idle = row.state in ("mix", "alloc", "drng"), row.state == "idle"
    return f"{int(busy)}/{int(idle)}/{int(not busy and not idle)}/1"


def _cpus(row: SinfoRow) -> str:
    cpus = row.host.cpus
    return f"{cpus.total - cpus.free}/{cpus.free}/0/{cpus.total}"


def _limit(row: SinfoRow) -> str:
    longest = row.info.partition.most.time
    return format_runtime(longest) if longest else "infinite"


def _most_cpus(row: SinfoRow) -> str:
    return str(row.info.partition.most.cpus or "UNLIMITED")


def _default_time(row: SinfoRow) -> str:
    default = row.info.partition.defaults.time
    return format_runtime(default) if default else "n/a"


def _gres(row: SinfoRow) -> str:
    return typed(one.gpu for one in row.cards) or "(null)"


def _gres_used(row: SinfoRow) -> str:
    used = sum(one.gpu.capacity - one.free_share for one in row.cards) / WHOLE
    return f"gpu:{used:g}" if row.cards else "gpu:0"


def _reason(row: SinfoRow) -> str:
    return next((one.gpu.note for one in row.host.gpus if one.gpu.note), "none")


def _noted(row: SinfoRow) -> str:
    at = next((one.gpu.noted_at for one in row.host.gpus if one.gpu.note), None)
    return shown_time(at, unknown="Unknown")


def _features(row: SinfoRow) -> str:
    return ",".join(dict.fromkeys(one.gpu.model.replace(" ", "_") for one in row.cards)) or "(null)"


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


class SinfoColumn(NamedTuple):
    """One column: its letter, its names for -O, its heading and its text."""

    letter: str
    names: str
    heading: str
    show: Callable[[SinfoRow], str]


COLUMNS = (
    SinfoColumn("P", "partition", "PARTITION", lambda row: _name(row) + "*" * row.info.partition.is_default),
    SinfoColumn("R", "partitionname", "PARTITION", lambda row: _name(row)),
    SinfoColumn("a", "available", "AVAIL", lambda row: row.info.partition.state),
    SinfoColumn("l", "time", "TIMELIMIT", _limit),
    SinfoColumn("L", "defaulttime", "DEFAULTTIME", _default_time),
    SinfoColumn("D", "nodes", "NODES", lambda row: "1"),
    SinfoColumn("t", "statecompact", "STATE", lambda row: row.state),
    SinfoColumn("T", "statelong", "STATE", lambda row: _STATES[row.state]),
    SinfoColumn("N", "nodelist", "NODELIST", lambda row: host_name()),
    SinfoColumn("n", "nodehost", "HOSTNAMES", lambda row: host_name()),
    SinfoColumn("o", "nodeaddr", "NODE_ADDR", lambda row: host_name()),
    SinfoColumn("A", "nodeai", "NODES(A/I)", lambda row: "/".join(_amounts(row).split("/")[:2])),
    SinfoColumn("F", "nodeaiot", "NODES(A/I/O/T)", _amounts),
    SinfoColumn("C", "cpusstate", "CPUS(A/I/O/T)", _cpus),
    SinfoColumn("c", "cpus", "CPUS", lambda row: str(row.host.cpus.total)),
    SinfoColumn(
        "B",
        "maxcpuspernode",
        "MAX_CPUS_PER_NODE",
        lambda row: str(row.info.partition.most.cpus or "UNLIMITED"),
    ),
    SinfoColumn("m", "memory", "MEMORY", lambda row: str(row.host.memory.total >> 20)),
    SinfoColumn("e", "freemem", "FREE_MEM", lambda row: str(row.host.memory.free >> 20)),
    SinfoColumn(
        "", "allocmem", "ALLOCMEM", lambda row: str((row.host.memory.total - row.host.memory.free) >> 20)
    ),
    SinfoColumn("d", "disk", "TMP_DISK", lambda row: "0"),
    SinfoColumn("O", "cpusload", "CPU_LOAD", lambda row: _load()),
    SinfoColumn("G", "gres", "GRES", _gres),
    SinfoColumn("", "gresused", "GRES_USED", _gres_used),
    SinfoColumn("f", "features", "AVAIL_FEATURES", _features),
    SinfoColumn("b", "features_act", "ACTIVE_FEATURES", _features),
    SinfoColumn("E", "reason", "REASON", _reason),
    SinfoColumn("u", "user", "USER", lambda row: "Unknown" if _reason(row) == "none" else "root"),
    SinfoColumn("U", "userlong", "USER", lambda row: "Unknown" if _reason(row) == "none" else "root(0)"),
    SinfoColumn("H", "timestamp", "TIMESTAMP", _noted),
    SinfoColumn("g", "groups", "GROUPS", lambda row: ",".join(row.info.partition.access.groups) or "all"),
    SinfoColumn("h", "oversubscribe", "OVERSUBS", lambda row: oversubscribed(one.gpu for one in row.cards)),
    SinfoColumn("r", "root", "ROOT", lambda row: "no"),
    SinfoColumn("s", "size", "JOB_SIZE", lambda row: "1"),
    SinfoColumn("S", "allocnodes", "ALLOCNODES", lambda row: "all"),
    SinfoColumn("p", "prioritytier", "PRIO_TIER", lambda row: "1"),
    SinfoColumn("I", "priorityjobfactor", "PRIO_JOB_FACTOR", lambda row: "1"),
    SinfoColumn("M", "preemptmode", "PREEMPT_MODE", lambda row: row.info.partition.preempt_rule.mode.upper()),
    SinfoColumn("X", "sockets", "SOCKETS", lambda row: str(row.host.cpus.total)),
    SinfoColumn("Y", "cores", "CORES", lambda row: "1"),
    SinfoColumn("Z", "threads", "THREADS", lambda row: "1"),
    SinfoColumn("z", "socketcorethread", "S:C:T", lambda row: f"{row.host.cpus.total}:1:1"),
    SinfoColumn("w", "weight", "WEIGHT", lambda row: "1"),
    SinfoColumn("v", "version", "VERSION", lambda row: "22.05.8"),
    SinfoColumn("V", "cluster", "CLUSTER", lambda row: "fgsched"),
    SinfoColumn("i", "resvname", "RESERVATION", lambda row: ""),
)


class _Piece(NamedTuple):
    column: SinfoColumn
    width: int
    right: bool
    after: str


def _name(row: SinfoRow) -> str:
    return row.info.partition.name


def answer(words: Sequence[str]) -> str:
    """Return what sinfo prints. Raises BadLine in the words of Slurm."""
    found, rest = parse(KNOWN, words, permute=True)
    given = of_sinfo(os.environ, dict(found))
    if rest:
        raise BadLine(f"error: Unrecognized option: {rest[0]}")
    if "version" in given:
        return "slurm-wlm 22.05.8\n"
    before, pieces = _format(given)
    _refuse_unknown_states(given.get("states", ""))
    with Client(find_places()) as client:
        host = client.call(protocol.ListGpus())
        partitions = client.call(protocol.ListPartitions()).partitions
        if "reservation" in given:
            return _reservations(client.call(protocol.ListReservations()).reservations)
    rows = [row for row in (SinfoRow(info, host) for info in partitions) if _is_wanted(row, given)]
    if "json" in given:
        from fgsched.cli import slurmdocuments as documents

        return documents.nodes(host, partitions)
    head = f"{time.strftime('%a %b %d %H:%M:%S %Y')}\n" if "long" in given else ""
    heading = (
        ""
        if "noheader" in given
        else _line(before, pieces, [one.column.heading for one in pieces if one.column])
    )
    texts = (
        _line(before, pieces, [clean(one.column.show(row)) for one in pieces if one.column]) for row in rows
    )
    return head + heading + "".join(dict.fromkeys(texts))  # of equal lines one, as sinfo groups nodes


def _refuse_unknown_states(text: str) -> None:
    known = _NAMES_OF_STATES.split()
    for name in re.split("[,&]", text.lower()):
        if name and name not in known:
            raise BadLine(f'error: Bad state string: "{clean(name)}"\nStates: {" ".join(known)}')


def _is_wanted(row: SinfoRow, given: Mapping[str, str]) -> bool:
    partitions = [name for name in given.get("partition", "").split(",") if name]
    states = [name.lower() for name in given.get("states", "").split(",") if name]
    nodes = given.get("nodes", "")
    if "list-reasons" in given and _reason(row) == "none":
        return False
    return (
        (not partitions or _name(row) in partitions)
        and (not states or "all" in states or any(_STATES[row.state].startswith(name[:4]) for name in states))
        and (not nodes or host_name() in nodes.split(","))
    )


def _format(given: Mapping[str, str]) -> tuple[str, list[_Piece]]:
    """Return the text before the first column, and the columns."""
    if "Format" in given:
        parts = given["Format"].split(",")
        return "", _every("") if parts == ["all"] else [_of_name(part) for part in parts]
    if "format" in given:
        return _of_letters(given["format"])
    kind = next((name for name in ("list-reasons", "summarize", "Node") if name in given), "")
    long = "long" in given and kind != "summarize"
    names = f"%{max(len('NODELIST'), len(host_name()))}N"  # as wide as the longest
    return _of_letters(_FORMATS[f"{kind} long".strip() if long else kind].replace("%#N", names))


def _every(after: str) -> list[_Piece]:
    """Return all columns that have a letter, separated by a vertical bar."""
    every = [_Piece(column, 0, False, "|") for column in COLUMNS if column.letter]
    return [*every[:-1], every[-1]._replace(after=after)]


def _of_letters(text: str) -> tuple[str, list[_Piece]]:
    by_letter = {column.letter: column for column in COLUMNS if column.letter}
    matches = list(_ITEM.finditer(text))
    pieces = []
    for at, match in enumerate(matches):
        end = matches[at + 1].start() if at + 1 < len(matches) else len(text)
        if match[3] == "all":
            pieces += _every(text[match.end() : end])
            continue
        if match[3] not in by_letter:
            raise BadLine(f"error: Invalid node format specification: {match[3]}")
        pieces.append(
            _Piece(by_letter[match[3]], column_width(match[2] or ""), bool(match[1]), text[match.end() : end])
        )
    return text[: matches[0].start()] if matches else text, pieces


def _of_name(part: str) -> _Piece:
    match = _NAMED.fullmatch(part.strip())
    known = {column.names: column for column in COLUMNS}
    if match is None or match[1].lower() not in known:
        raise BadLine(f"error: Invalid job format specification: {part}")
    width = column_width(match[3]) if match[3] else 0 if match[4] else 20
    return _Piece(known[match[1].lower()], width, bool(match[2]), match[4] or "")


def _line(before: str, pieces: Sequence[_Piece], cells: Sequence[str]) -> str:
    pairs = zip(pieces, cells, strict=True)
    return before + "".join(fit(cell, one.width, right=one.right) + one.after for one, cell in pairs) + "\n"


def _reservations(found: Sequence[protocol.ReservationInfo]) -> str:
    lines = ["RESV_NAME     STATE           START_TIME             END_TIME     DURATION  NODELIST\n"]
    for one in found:
        its = one.reservation
        state = "ACTIVE" if one.is_active else "INACTIVE"
        times = f"{shown_time(its.start):>19}  {shown_time(its.end):>19}"
        lines.append(
            f"{its.name:<10} {state:>9}  {times}  {format_runtime(its.end - its.start):>11}  {host_name()}\n"
        )
    return "".join(lines) if found else "No reservations in the system\n"
