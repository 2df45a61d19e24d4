"""Show running steps as squeue --steps and scontrol show step do."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from fgsched import protocol
from fgsched.cli import steps
from fgsched.client import Client, find_places
from fgsched.domain.states import JobState
from fgsched.domain.times import format_elapsed
from fgsched.protocol import JobInfo
from fgsched.slurm.getopt import BadLine, parse
from fgsched.views import choices, documents
from fgsched.views import job as view
from fgsched.views.display import host_name, shown_time
from fgsched.views.fields import limit
from fgsched.views.listing import TableColumn, by_letters

_FIELDS = view.attributes(
    view.label,
    view.allocation_time,
    view.allocated_tres,
    "user uid partition state started_at ended_at",
    "srun_steps name ntasks gpus time_limit",
)
_RUNNING = [JobState.RUNNING, JobState.SUSPENDED]
_USUAL = "%.15i %.8j %.9P %.8u %.9M %N"
_ITEM = re.compile(r"%(\.?)(\d{0,4})([A-Za-z])")


def _gres(allocated: Sequence[protocol.Allocation]) -> str:
    return f"gres:gpu:{len(allocated)}" if allocated else "N/A"


COLUMNS = (
    TableColumn("NTASKS", "ntasks", letter="A"),
    TableColumn("TRES_PER_NODE", "allocated", _gres, letter="b"),
    TableColumn("CPUS", "cpus", letter="C"),
    TableColumn("STEPID", view.step_label, letter="i"),
    TableColumn("NAME", "name", letter="j"),
    TableColumn("TIME_LIMIT", "time_limit", limit, letter="l"),
    TableColumn("TIME", "elapsed", format_elapsed, letter="M"),
    TableColumn("NODELIST", lambda row: host_name(), letter="N"),
    TableColumn("PARTITION", "partition", letter="P"),
    TableColumn("START_TIME", "started_at", shown_time, letter="S"),
    TableColumn("STATE", "state", lambda state: state.value, letter="T"),
    TableColumn("USER", "uid", letter="U"),
    TableColumn("USER", "user", letter="u"),
)


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
        return any(name == "steps" for name, _ in parse("steps", words, permute=True)[0])
    except BadLine:  # the other command says so
        return False


def listed(words: Sequence[str]) -> str:
    """Return what `squeue --steps` prints. Raises BadLine."""
    spelled, operands = parse("steps", words, permute=True)
    options = dict(spelled)
    users = choices.users([options["user"]] if "user" in options else []) + [choices.me()] * ("me" in options)
    partitions = choices.words([options.get("partition", "")])
    names = [*(value for name, value in spelled if name in ("steps", "jobs") and value), *operands]
    rows = running(names, user=users or None, partition=partitions or None)
    form = options.get("format", _USUAL)
    listing = by_letters(form, _ITEM, _of_letter, COLUMNS)
    head = [] if "noheader" in options else [listing.header()]
    return "".join(f"{line}\n" for line in [*head, *listing.lines(rows)])


def _of_letter(letter: str) -> TableColumn:
    column = next((column for column in COLUMNS if column.letter == letter), None)
    if column is None:
        print(f"squeue: error: Invalid job step format specification: {letter}", file=sys.stderr)
    return column or TableColumn("", lambda row: "")


def shown_steps(named: Sequence[str], options: Mapping[str, str]) -> str:
    """Return what `scontrol show step` prints. Raises BadLine: there is no such step."""
    rows = running(named)
    if not rows and named:
        raise BadLine(f"Job step {named[0]} not found", prefix="")
    if not rows:
        return "No job steps in the system\n"
    return documents.text(map(_record, rows), oneliner="oneliner" in options, between=" ")


def _record(row: JobInfo) -> documents.Group:
    return [
        [
            ("StepId", view.step_label(row)),
            ("UserId", row.uid),
            ("StartTime", shown_time(row.started_at)),
            ("TimeLimit", limit(row.time_limit)),
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
