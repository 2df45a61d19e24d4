"""Show running steps as squeue --steps and scontrol show step do."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from fgsched import protocol
from fgsched.cli import steps
from fgsched.client import Client, find_places
from fgsched.domain.states import JobState
from fgsched.domain.text import clean, column_width
from fgsched.domain.times import format_elapsed
from fgsched.protocol import JobInfo
from fgsched.slurm import showjob
from fgsched.slurm.getopt import BadLine, options, parse
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.views.display import host_name, shown_time

_FIELDS = (
    *("id", "array", "task", "tasks", "user", "uid", "partition", "state", "attempt", "started_at"),
    *("ended_at", "elapsed", "suspended", "allocated", "srun_steps", "name", "ntasks", "cpus", "gpus"),
    *("host_memory", "time_limit"),
)
_RUNNING = [JobState.RUNNING, JobState.SUSPENDED]
_KNOWN = options(
    """steps? user= me jobs= states= partition= account= qos= name= noheader format= Format= sort= long all
    array clusters= nodelist= iterate= hide local federation verbose help noconvert""",
    """s:steps u:user j:jobs t:states p:partition A:account q:qos n:name h:noheader o:format O:Format S:sort
    l:long a:all r:array M:clusters w:nodelist i:iterate v:verbose""",
)
_USUAL = "%.15i %.8j %.9P %.8u %.9M %N"
_ITEM = re.compile(r"%(\.?)(\d{0,4})([A-Za-z])")
_HEADS: dict[str, tuple[str, Callable[[JobInfo], str]]] = {
    "A": ("NTASKS", lambda row: str(row.ntasks)),
    "b": ("TRES_PER_NODE", lambda row: f"gres:gpu:{len(row.allocated)}" if row.allocated else "N/A"),
    "C": ("CPUS", lambda row: str(row.cpus)),
    "i": ("STEPID", lambda row: name_of(row)),
    "j": ("NAME", lambda row: row.name),
    "l": ("TIME_LIMIT", lambda row: _limit(row)),
    "M": ("TIME", lambda row: format_elapsed(row.elapsed)),
    "N": ("NODELIST", lambda row: host_name()),
    "P": ("PARTITION", lambda row: row.partition),
    "S": ("START_TIME", lambda row: shown_time(row.started_at)),
    "T": ("STATE", lambda row: row.state.value),
    "U": ("USER", lambda row: str(row.uid)),
    "u": ("USER", lambda row: row.user),
}


def name_of(row: JobInfo) -> str:
    """Return the name of a step: 7.0, 7_3.batch."""
    return f"{view.label(row)}.{row.step}"


def running(named: Iterable[str], **where: Sequence[str] | None) -> list[JobInfo]:
    """Return the rows of running steps.

    Args:
        named: jobs and steps such as 7 and 7.0; none: all jobs.
        where: user names and partitions of the jobs.
    """
    whole, wanted = steps.split(named)
    chosen = protocol.Where(id=choices.ids(whole) or None, state=_RUNNING, **where)
    with Client(find_places()) as client:
        jobs = client.call(protocol.ListQueue(fields=_FIELDS, where=chosen)).jobs
    rows = steps.rows(jobs, wanted, all_steps=True)
    return [row for row in rows if row.step and not row.state.is_final]


def is_asked(words: Sequence[str]) -> bool:
    """Return whether a command line of squeue asks for steps."""
    try:
        return any(name == "steps" for name, _ in parse(_KNOWN, words, permute=True)[0])
    except BadLine:  # the other command says so
        return False


def listed(words: Sequence[str]) -> str:
    """Return what `squeue --steps` prints. Raises BadLine."""
    found, rest = parse(_KNOWN, words, permute=True)
    given = dict(found)
    users = choices.users([given["user"]] if "user" in given else []) + [choices.me()] * ("me" in given)
    partitions = choices.words([given.get("partition", "")])
    names = [*(value for name, value in found if name in ("steps", "jobs") and value), *rest]
    rows = running(names, user=users or None, partition=partitions or None)
    form = given.get("format", _USUAL)
    head = [] if "noheader" in given else [_line(form, lambda item: item[0])]
    return "".join(f"{line}\n" for line in [*head, *(_line(form, _text_of(row)) for row in rows)])


def _text_of(row: JobInfo) -> Callable[[tuple[str, Callable[[JobInfo], str]]], str]:
    return lambda item: clean(item[1](row))


def _line(form: str, text: Callable[[tuple[str, Callable[[JobInfo], str]]], str]) -> str:
    """Return a line of a format such as '%.15i %j': a dot aligns right, a width cuts."""

    def cell(item: re.Match[str]) -> str:
        if item[3] not in _HEADS:
            print(f"squeue: error: Invalid job step format specification: {item[3]}", file=sys.stderr)
            return ""
        shown, width = text(_HEADS[item[3]]), column_width(item[2] or "")
        if not width:
            return shown
        return shown[:width].rjust(width) if item[1] else shown[:width].ljust(width)

    return _ITEM.sub(cell, form)


def _limit(row: JobInfo) -> str:
    return format_elapsed(row.time_limit) if row.time_limit else "UNLIMITED"


def shown(named: Sequence[str], given: Mapping[str, str]) -> str:
    """Return what `scontrol show step` prints. Raises BadLine: there is no such step."""
    rows = running(named)
    if not rows and named:
        raise BadLine(f"Job step {named[0]} not found", prefix="")
    if not rows:
        return "No job steps in the system\n"
    return showjob.text(map(_record, rows), oneliner="oneliner" in given)


def _record(row: JobInfo) -> list[showjob.Line]:
    return [
        [
            ("StepId", name_of(row)),
            ("UserId", row.uid),
            ("StartTime", shown_time(row.started_at)),
            ("TimeLimit", _limit(row)),
        ],
        [("State", row.state.value), ("Partition", row.partition), ("NodeList", host_name())],
        [
            ("Nodes", 1),
            ("CPUs", row.cpus),
            ("Tasks", row.ntasks),
            ("Name", row.name),
            ("Network", None),
        ],
        [("TRES", ",".join(sorted(view.tres(row, view.allocated_share(row)))))],
        [("ResvPorts", None)],
        [("CPUFreqReq", "Default"), ("Dist", "Block")],
        [("SrunHost:Pid", f"{host_name()}:{_srun(row)}")],
    ]


def _srun(row: JobInfo) -> int:
    """Return the pid of the srun of a step; 0 for a batch step."""
    return row.srun_steps[0].pid if row.srun_steps else 0
