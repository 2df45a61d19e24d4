"""Answer the requests of scontrol that fgctl does not have: host lists, nodes, configuration."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from fgsched import protocol
from fgsched.cli.command import output
from fgsched.client import Client, find_paths
from fgsched.domain.errors import NoSuchJob, Refused, StorageError
from fgsched.domain.text import clean
from fgsched.lifecycle import arrays
from fgsched.slurm.getopt import BadLine, parse
from fgsched.views import documents, host
from fgsched.views.display import SLURM_VERSION, host_name

_MOST = 65_536  # hosts of one range
_PART = re.compile(r"([^\[\],]*)(?:\[([0-9,-]*)\])?([^\[\],]*)")
_OF_JOBS = ("hold", "release", "requeue", "requeuehold", "suspend", "resume", "top", "uhold", "wait_job")
_NONE = ("topology", "burstbuffer", "bbstat", "dwstat", "federation", "frontend", "assoc_mgr")
_SHOW = ("sh", "sho", "show")
_OF_FGCTL = ("gpu", "log")  # that fgctl shows and Slurm does not have


def expand(text: str) -> list[str]:
    """Return the names of a list, in its order; numbers keep their width. Raises BadLine."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _PART.fullmatch(part)
        if not part:
            continue
        if match is None:
            raise BadLine(f"Invalid hostlist: {part}")
        before, ranges, after = match.groups()
        names += [f"{before}{number}{after}" for number in _numbers(ranges)] if ranges else [part]
    return names


def fold(names: list[str]) -> str:
    """Return names as a host list; names that differ only in a final number become one range."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        match = re.fullmatch(r"(.*?)([0-9]+)", name)
        groups.setdefault(match[1] if match else f"{name}\0", []).append(match[2] if match else "")
    return ",".join(_folded(before, numbers) for before, numbers in groups.items())


def _numbers(ranges: str) -> list[str]:
    names = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or "0").isdecimal():
            raise BadLine(f"Invalid hostlist: [{ranges}]")
        if not 0 <= int(last or first) - int(first) <= _MOST:
            raise BadLine(f"Invalid hostlist: [{ranges}]")
        width = len(first)
        names += [str(number).zfill(width) for number in range(int(first), int(last or first) + 1)]
    return names


def _folded(before: str, numbers: list[str]) -> str:
    if before.endswith("\0"):
        return before[:-1]
    if len(numbers) == 1:
        return f"{before}{numbers[0]}"
    runs: list[list[str]] = []
    for number in sorted(numbers, key=int):
        if runs and int(number) == int(runs[-1][-1]) + 1 and len(number) == len(runs[-1][-1]):
            runs[-1].append(number)
        else:
            runs.append([number])
    listed = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{before}[{listed}]"


def answer(words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the output of a request that fgctl does not have; None: fgctl answers it.

    Raises:
        BadLine: an option, a job, a partition or a node does not exist.
    """
    spelled, operands = parse("scontrol", words, permute=True)
    match [word.lower() for word in operands[:2]]:
        case [verb, what] if verb in _SHOW:
            return _shown(what, operands, dict(spelled), environ)
        case [verb] if verb in _SHOW:
            raise BadLine("too few arguments for keyword:show", prefix="")
        case ["version"]:
            return f"slurm-wlm {SLURM_VERSION}\n"
        case ["ping"]:
            with Client(find_paths()) as client:
                client.call(protocol.Ping())
            return f"Slurmctld(primary) at {host_name()} is UP\n"
    return None


def _shown(
    what: str, operands: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str]
) -> str | None:
    """Return what `scontrol show` prints; None: fgctl shows it."""
    kind = _entity(what.partition("=")[0])
    named = [text for text in [operands[1].partition("=")[2], *(_id(word) for word in operands[2:])] if text]
    if kind in ("hostnames", "hostname"):
        return "".join(f"{name}\n" for name in expand(_list(operands[2:], environ)))
    if kind in ("hostlist", "hostlistsorted"):
        return f"{fold(expand(_list(operands[2:], environ)))}\n"
    answers: dict[str, Callable[[Sequence[str], Mapping[str, str]], str]] = {
        "config": lambda named, options: _config(),
        "daemons": lambda named, options: "slurmctld slurmd\n",
        "aliases": lambda named, options: f"{host_name()}\n",
        "licenses": lambda named, options: "No licenses configured in Slurm.\n",
        "reservations": _reservations,
        "reservation": _reservations,
        **dict.fromkeys(_NONE, lambda named, options: ""),
        **dict.fromkeys(("step", "steps", "stepid"), _steps),
        **dict.fromkeys(("node", "nodes", "nodename"), _nodes),
        **dict.fromkeys(("job", "jobs", "jobid"), _jobs),
        **dict.fromkeys(("partition", "partitions", "partitionname"), _partitions),
    }
    if kind in answers:
        return answers[kind](named, options)
    if kind in _OF_FGCTL:
        return None
    raise BadLine(f"invalid entity:{clean(what)} for keyword:show ", prefix="")


_ENTITIES = {  # in the order in which an abbreviation is looked up, each with its fewest letters
    **{"aliases": 1, "assoc_mgr": 2, "bbstat": 2, "burstbuffer": 2, "config": 1, "daemons": 1, "dwstat": 2},
    **{"federation": 2, "frontend": 2, "hostlist": 5, "hostlistsorted": 9, "hostnames": 5, "jobs": 1},
    **{"licenses": 2, "nodes": 1, "partitions": 1, "reservations": 1, "slurmd": 2, "steps": 2, "topology": 1},
}


def _entity(word: str) -> str:
    """Return the entity that a word of `show` abbreviates, as scontrol takes it; the word itself if none."""
    fitting = (name for name, least in _ENTITIES.items() if len(word) >= least and name.startswith(word))
    return next(fitting, word)


def form_of(options: Mapping[str, str]) -> documents.SlurmForm | None:
    """Return the form of the document that a line asks for; None: it asks for text."""
    for syntax in ("json", "yaml"):
        if syntax in options:
            return documents.slurm_form(syntax, options[syntax])
    return None


def _nodes(named: Sequence[str], options: Mapping[str, str]) -> str:
    """Return the host as a node. Raises BadLine: there is no such node."""
    for name in expand(",".join(named)):
        if name.partition(".")[0] not in (host_name(), "ALL"):
            raise BadLine(f"Node {name} not found", prefix="", is_output=True)
    with Client(find_paths()) as client:
        answer, partitions = (
            client.call(protocol.ListGpus()),
            client.call(protocol.ListPartitions()).partitions,
        )
        started_at = client.call(protocol.Ping()).started_at
    node = host.HostNode(answer, [info.partition.name for info in partitions], started_at)
    if form := form_of(options):
        return host.slurm_nodes(node, form)
    return _text([host.scontrol_node(node, details="details" in options)], options)


def _text(groups: Iterable[documents.Group], options: Mapping[str, str]) -> str:
    return documents.text(groups, oneliner="oneliner" in options, between=" ")


def _jobs(named: Sequence[str], options: Mapping[str, str]) -> str:
    """Return jobs in Slurm's layout. Raises BadLine: a job does not exist."""
    from fgsched.cli import show

    if not all(re.match("[0-9]", word) for name in named for word in name.split(",")):
        raise BadLine("scontrol_print_job error: Invalid job id specified", prefix="")
    with Client(find_paths()) as client:
        try:
            jobs = show.ASKED["job"](client, [word for name in named for word in name.split(",")])
        except NoSuchJob:
            raise BadLine("slurm_load_jobs error: Invalid job id specified", prefix="") from None
    if form := form_of(options):
        return documents.squeue_document(jobs, form, "scontrol")
    if not jobs:
        return "No jobs in the system\n"
    return _text([documents.of_scontrol(job, details="details" in options) for job in jobs], options)


def _steps(named: Sequence[str], options: Mapping[str, str]) -> str:
    from fgsched.slurm import runningsteps

    return runningsteps.shown_steps(named, options)


def _reservations(named: Sequence[str], options: Mapping[str, str]) -> str:
    """Return reservations in Slurm's layout. Raises BadLine: a reservation does not exist."""
    with Client(find_paths()) as client:
        infos = {
            info.reservation.name: info for info in client.call(protocol.ListReservations()).reservations
        }
        total = client.call(protocol.ListGpus()).cpus.total
    for name in named:
        if name not in infos:
            raise BadLine(f"Reservation {clean(name)} not found", prefix="", is_output=True)
    if not infos:
        return "No reservations in the system\n"
    shown_reservations = [infos[name] for name in named or infos]
    return _text([host.scontrol_reservation(info, total) for info in shown_reservations], options)


def _partitions(named: Sequence[str], options: Mapping[str, str]) -> str:
    """Return partitions in Slurm's layout. Raises BadLine: a partition does not exist."""
    from fgsched.cli import show

    with Client(find_paths()) as client:
        try:
            shown_partitions = show.ASKED["partition"](client, named)
        except Refused:
            raise BadLine(f"Partition {named[0]} not found", prefix="", is_output=True) from None
    if form := form_of(options):
        return host.slurm_partitions(shown_partitions, form)
    return _text(map(host.scontrol_partition, shown_partitions), options)


def arguments(words: Sequence[str]) -> list[str]:
    """Return the arguments of fgctl for other requests: options after the verb, jobid=7 as an id.

    Raises:
        BadLine: an option does not exist.
    """
    options, operands = parse("scontrol", words, permute=True)
    if operands[:1] == ["show"]:
        one_line = ["--oneliner"] if ("oneliner", "") in options else []
        kind, _, name = operands[1].partition("=") if len(operands) > 1 else ("", "", "")
        return ["show", *one_line, *([kind] if kind else []), *([name] if name else []), *operands[2:]]
    if operands[:1] and operands[0] in _OF_JOBS:
        return [operands[0], *(_id(word) for word in operands[1:])]
    return operands


def _id(word: str) -> str:
    key, equals, value = word.partition("=")
    return value if equals and key.lower() in ("job", "jobid") else word


def _list(words: Sequence[str], environ: Mapping[str, str]) -> str:
    return ",".join(words) or environ.get("SLURM_JOB_NODELIST", "") or environ.get("FG_JOB_NODELIST", "")


def _config() -> str:
    """Return the settings that programs read, in the layout of scontrol show config."""
    values = {
        "ClusterName": "fgsched",
        "GresTypes": "gpu",
        "MaxArraySize": str(arrays.MOST),
        "MaxJobCount": "1000000",
        "MinJobAge": "300 sec",
        "PriorityType": "priority/multifactor",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "SLURM_VERSION": SLURM_VERSION,
        "SlurmctldHost[0]": host_name(),
    }
    lines = [f"{key:<23} = {value}\n" for key, value in values.items()]
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    return "".join([f"Configuration data as of {now}\n", *lines])


def write(text: str) -> None:
    """Write an answer to standard output. Raises StorageError."""
    try:
        stream = output()
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write the output: {error.strerror}") from None
