"""sinfo: show partitions and the host as a node, in Slurm's layouts and formats."""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.domain.text import clean
from fgsched.domain.times import format_runtime
from fgsched.slurm import scontrol
from fgsched.slurm.getopt import BadLine, of_sinfo, parse
from fgsched.views import host
from fgsched.views.display import SLURM_VERSION, host_name, shown_time
from fgsched.views.host import HostPartition
from fgsched.views.listing import Format, LinePiece, TableColumn, by_letters, by_name

_ITEM = re.compile(r"%(\.?)([0-9]*)(all\b|[a-zA-Z])")
_NAMED = re.compile(r"([A-Za-z_]+)(?::(\.?)([0-9]*)(.*))?")
_FORMATS = {  # option -> format
    "": "%9P %.5a %.10l %.6D %.6t %N",
    "long": "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %.11i %N",
    "summarize": "%9P %.5a %.10l %.16F %N",
    "Node": "%#N %.6D %.9P %6t",
    "Node long": "%#N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E",
    "list-reasons": "%20E %9u %19H %N",
    "list-reasons long": "%20E %12U %19H %6t %N",
}
_LEAST_OF_NAMES = 9  # columns of the names of hosts
_NAMES_OF_STATES = (  # that -t takes; the host is in few of them
    "all alloc allocated blocked cloud comp completing down drain drained draining drng fail failing future"
    " futr idle maint mix mixed no_respond npc perfctrs planned plnd power_down power_up powered_down"
    " powering_down powering_up reboot rebooting reserved resv unk unknown"
)


def _amounts(row: HostPartition) -> str:
    """Return the numbers of allocated, idle, other and all nodes."""
    state = host.node_state(row.host)
    busy, idle = state in ("mix", "alloc", "drng"), state == "idle"
    return f"{int(busy)}/{int(idle)}/{int(not busy and not idle)}/1"


def _cpus(row: HostPartition) -> str:
    cpus = row.host.cpus
    return f"{host.used_cpus(row.host)}/{cpus.free}/0/{cpus.total}"


def _limit(row: HostPartition) -> str:
    longest = row.partition.most.time
    return format_runtime(longest) if longest else "infinite"


def _most_cpus(row: HostPartition) -> str:
    return str(row.partition.most.cpus or "UNLIMITED")


def _default_time(row: HostPartition) -> str:
    default = row.partition.defaults.time
    return format_runtime(default) if default else "n/a"


def _gres(row: HostPartition) -> str:
    return host.gres_by_type(gpu.gpu for gpu in row.gpus) or "(null)"


def _reason(row: HostPartition) -> str:
    noted = host.node_note(row.host)
    return noted.note if noted else "none"


def _noted(row: HostPartition) -> str:
    noted = host.node_note(row.host)
    return shown_time(noted.noted_at if noted else None, unknown="Unknown")


def _state(row: HostPartition) -> str:
    """Return the state of the node in its long form."""
    return host.long_state(host.node_state(row.host))


def _features(row: HostPartition) -> str:
    return host.features(row.gpus) or "(null)"


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


COLUMNS = (
    TableColumn(
        "PARTITION",
        lambda row: _name(row) + "*" * row.partition.is_default,
        names=("partition",),
        letter="P",
    ),
    TableColumn("PARTITION", lambda row: _name(row), names=("partitionname",), letter="R"),
    TableColumn("AVAIL", lambda row: row.partition.state, names=("available",), letter="a"),
    TableColumn("TIMELIMIT", _limit, names=("time",), letter="l"),
    TableColumn("DEFAULTTIME", _default_time, names=("defaulttime",), letter="L"),
    TableColumn("NODES", lambda row: "1", names=("nodes",), letter="D"),
    TableColumn("STATE", lambda row: host.node_state(row.host), names=("statecompact",), letter="t"),
    TableColumn("STATE", _state, names=("statelong",), letter="T"),
    TableColumn("STATECOMPLETE", _state, names=("statecomplete",)),
    TableColumn("NODELIST", lambda row: host_name(), names=("nodelist",), letter="N"),
    TableColumn("HOSTNAMES", lambda row: host_name(), names=("nodehost",), letter="n"),
    TableColumn("NODE_ADDR", lambda row: host_name(), names=("nodeaddr",), letter="o"),
    TableColumn(
        "NODES(A/I)", lambda row: "/".join(_amounts(row).split("/")[:2]), names=("nodeai",), letter="A"
    ),
    TableColumn("NODES(A/I/O/T)", _amounts, names=("nodeaiot",), letter="F"),
    TableColumn("CPUS(A/I/O/T)", _cpus, names=("cpusstate",), letter="C"),
    TableColumn("CPUS", lambda row: str(row.host.cpus.total), names=("cpus",), letter="c"),
    TableColumn(
        "MAX_CPUS_PER_NODE",
        lambda row: str(row.partition.most.cpus or "UNLIMITED"),
        names=("maxcpuspernode",),
        letter="B",
    ),
    TableColumn("MEMORY", lambda row: str(row.host.memory.total >> 20), names=("memory",), letter="m"),
    TableColumn("FREE_MEM", lambda row: str(row.host.memory.free >> 20), names=("freemem",), letter="e"),
    TableColumn(
        "ALLOCMEM", lambda row: str((row.host.memory.total - row.host.memory.free) >> 20), names=("allocmem",)
    ),
    TableColumn("TMP_DISK", lambda row: "0", names=("disk",), letter="d"),
    TableColumn("CPU_LOAD", lambda row: _load(), names=("cpusload",), letter="O"),
    TableColumn("GRES", _gres, names=("gres",), letter="G"),
    TableColumn("GRES_USED", lambda row: host.gres_used(row.gpus), names=("gresused",)),
    TableColumn("COMMENT", lambda row: "(null)", names=("comment",)),
    TableColumn("EXTRA", lambda row: "(null)", names=("extra",)),
    TableColumn("PORT", lambda row: "0", names=("port",)),
    TableColumn("AVAIL_FEATURES", _features, names=("features",), letter="f"),
    TableColumn("ACTIVE_FEATURES", _features, names=("features_act",), letter="b"),
    TableColumn("REASON", _reason, names=("reason",), letter="E"),
    TableColumn(
        "USER", lambda row: "Unknown" if _reason(row) == "none" else "root", names=("user",), letter="u"
    ),
    TableColumn(
        "USER",
        lambda row: "Unknown" if _reason(row) == "none" else "root(0)",
        names=("userlong",),
        letter="U",
    ),
    TableColumn("TIMESTAMP", _noted, names=("timestamp",), letter="H"),
    TableColumn(
        "GROUPS",
        lambda row: ",".join(row.partition.access.groups) or "all",
        names=("groups",),
        letter="g",
    ),
    TableColumn(
        "OVERSUBSCRIBE",
        lambda row: host.oversubscribed(gpu.gpu for gpu in row.gpus),
        names=("oversubscribe", "share"),
        letter="h",
    ),
    TableColumn("ROOT", lambda row: "no", names=("root",), letter="r"),
    TableColumn("JOB_SIZE", lambda row: "1", names=("size",), letter="s"),
    TableColumn("ALLOCNODES", lambda row: "all", names=("allocnodes",), letter="S"),
    TableColumn("PRIO_TIER", lambda row: "1", names=("prioritytier",), letter="p"),
    TableColumn("PRIO_JOB_FACTOR", lambda row: "1", names=("priorityjobfactor",), letter="I"),
    TableColumn(
        "PREEMPT_MODE",
        lambda row: row.partition.preempt_rule.mode.upper(),
        names=("preemptmode",),
        letter="M",
    ),
    TableColumn("SOCKETS", lambda row: str(row.host.cpus.total), names=("sockets",), letter="X"),
    TableColumn("CORES", lambda row: "1", names=("cores",), letter="Y"),
    TableColumn("THREADS", lambda row: "1", names=("threads",), letter="Z"),
    TableColumn("S:C:T", lambda row: f"{row.host.cpus.total}:1:1", names=("socketcorethread",), letter="z"),
    TableColumn("WEIGHT", lambda row: "1", names=("weight",), letter="w"),
    TableColumn("VERSION", lambda row: SLURM_VERSION, names=("version",), letter="v"),
    TableColumn("CLUSTER", lambda row: "N/A", names=("cluster",), letter="V"),
    TableColumn("RESERVATION", lambda row: "", names=("reservation", "resvname"), letter="i"),
)


def _name(row: HostPartition) -> str:
    return row.partition.name


def answer(words: Sequence[str]) -> str:
    """Return what sinfo prints. Raises BadLine in the words of Slurm."""
    spelled, _ = parse("sinfo", words, permute=True)  # it ignores operands
    options = of_sinfo(os.environ, dict(spelled))
    if "version" in options:
        return f"slurm-wlm {SLURM_VERSION}\n"
    form = _format(options)
    _refuse_unknown_states(options.get("states", ""))
    with Client(find_paths()) as client:
        gpus = client.call(protocol.ListGpus())
        partitions = client.call(protocol.ListPartitions()).partitions
        if "reservation" in options:
            return _reservations(client.call(protocol.ListReservations()).reservations)
    rows = [row for row in (HostPartition(info, gpus) for info in partitions) if _is_wanted(row, options)]
    if document_form := scontrol.form_of(options):
        return host.slurm_summary(rows, document_form)
    head = f"{time.strftime('%a %b %d %H:%M:%S %Y')}\n" if "long" in options else ""
    heading = [] if "noheader" in options else [form.header()]
    lines = [*heading, *dict.fromkeys(form.lines(rows))]  # of equal lines one, as sinfo groups nodes
    return head + "".join(f"{line}\n" for line in lines)


def _refuse_unknown_states(text: str) -> None:
    names = _NAMES_OF_STATES.split()
    for name in re.split("[,&]", text.lower()):
        if name and name not in names:
            raise BadLine(
                f'error: Bad state string: "{clean(name)}"\nsinfo: error: valid states: {",".join(names)}'
            )


def _is_wanted(row: HostPartition, options: Mapping[str, str]) -> bool:
    partitions = [name for name in options.get("partition", "").split(",") if name]
    states = [name.lower() for name in options.get("states", "").split(",") if name]
    nodes = options.get("nodes", "")
    if "dead" in options and host.node_state(row.host) != "down":
        return False
    if "list-reasons" in options and _reason(row) == "none":
        return False
    return (
        (not partitions or _name(row) in partitions)
        and (not states or "all" in states or any(_state(row).startswith(name[:4]) for name in states))
        and (not nodes or host_name() in nodes.split(","))
    )


def _format(options: Mapping[str, str]) -> Format:
    if "Format" in options:
        parts = options["Format"].split(",")
        pieces = (_of_name(part) for part in parts if part)
        return (
            Format("", tuple(piece for piece in pieces if piece)) if parts != ["all"] else _of_letters("%all")
        )
    if "format" in options:
        return _of_letters(options["format"])
    kind = next((name for name in ("list-reasons", "summarize", "Node") if name in options), "")
    long = "long" in options and kind != "summarize"
    names = f"%{max(_LEAST_OF_NAMES, len(host_name()))}N"  # as wide as the longest
    return _of_letters(_FORMATS[f"{kind} long".strip() if long else kind].replace("%#N", names))


def _of_letters(text: str) -> Format:
    return by_letters(text, _ITEM, _of_letter, COLUMNS)


def _of_letter(letter: str) -> TableColumn | None:
    """Return the column of a letter; None: there is none, which is reported, and its item is text."""
    column = next((column for column in COLUMNS if column.letter == letter), None)
    if column is None:
        print(f"Invalid node format specification: {letter}", file=sys.stderr)
    return column


def _of_name(part: str) -> LinePiece | None:
    """Return the piece of a name; None: there is none, which is reported, and costs no other column."""
    match = _NAMED.fullmatch(part.strip())
    table_columns = {name: column for column in COLUMNS for name in column.names}
    if match is None or match[1].lower() not in table_columns:
        name = clean(part.partition(":")[0])
        print(f"sinfo: error: Invalid job format specification: {name}", file=sys.stderr)
        return None
    return by_name(match, table_columns[match[1].lower()])


def _reservations(reservations: Sequence[protocol.ReservationInfo]) -> str:
    lines = ["RESV_NAME     STATE           START_TIME             END_TIME     DURATION  NODELIST\n"]
    for reservation in reservations:
        its = reservation.reservation
        state = "ACTIVE" if reservation.is_active else "INACTIVE"
        times = f"{shown_time(its.start):>19}  {shown_time(its.end):>19}"
        lines.append(
            f"{its.name:<10} {state:>9}  {times}  {format_runtime(its.end - its.start):>11}  {host_name()}\n"
        )
    return "".join(lines) if reservations else "No reservations in the system\n"
