"""Show running steps as squeue --steps and scontrol show step do."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from fgsched import protocol
from fgsched.cli import steps
from fgsched.client import Client, find_paths
from fgsched.domain.states import JobState
from fgsched.domain.times import format_runtime
from fgsched.protocol import JobInfo
from fgsched.slurm.getopt import BadLine, parse
from fgsched.views import choices, columns, documents
from fgsched.views import job as view
from fgsched.views.display import host_name, shown_time
from fgsched.views.fields import limit
from fgsched.views.listing import Format, TableColumn, by_letters

_FIELDS = view.attributes(
    view.label,
    view.allocation_time,
    "attempt cpus host_memory allocated",  # of the TRES of a step
    "user uid partition state started_at ended_at",
    "srun_steps name ntasks gpus time_limit",
)
_RUNNING = [JobState.RUNNING, JobState.SUSPENDED]
_USUAL = "%.15i %.8j %.9P %.8u %.9M %N"
_ITEM = re.compile(r"%(\.?)(\d{0,4})([A-Za-z])")


def _gres(allocated: Sequence[protocol.Allocation]) -> str:
    return f"gres/gpu:{len(allocated)}" if allocated else "N/A"


COLUMNS = (
    TableColumn("NTASKS", "ntasks", names=("numtasks",), letter="A"),
    TableColumn("TRES_PER_NODE", "allocated", _gres, names=("tres-per-node", "gres"), letter="b"),
    TableColumn("CPUS", "cpus", names=("numcpus",), letter="C"),
    TableColumn("STEPID", view.step_label, names=("stepid",), letter="i"),
    TableColumn("NAME", "name", names=("stepname",), letter="j"),
    TableColumn("TIME_LIMIT", "time_limit", limit, names=("timelimit",), letter="l"),
    TableColumn("TIME", "elapsed", format_runtime, names=("timeused",), letter="M"),
    TableColumn("NODELIST", lambda row: host_name(), names=("nodes", "nodelist"), letter="N"),
    TableColumn("PARTITION", "partition", names=("partition",), letter="P"),
    TableColumn("START_TIME", "started_at", shown_time, names=("starttime",), letter="S"),
    TableColumn("STATE", "state", lambda state: state.value, names=("stepstate",), letter="T"),
    TableColumn("USER", "uid", names=("userid",), letter="U"),
    TableColumn("USER", "user", names=("username",), letter="u"),
    TableColumn("JOB_ID", "id", names=("jobid",)),
    TableColumn("ARRAY_JOB_ID", view.array_number, names=("arrayjobid",)),
    TableColumn("ARRAY_TASK_ID", view.array_tasks, names=("arraytaskid",)),
    TableColumn("BATCH_FLAG", lambda row: "0", names=("batchflag",)),
    TableColumn("CLUSTER", lambda row: "fgsched", names=("cluster",)),
    TableColumn("CONTAINER", lambda row: "(null)", names=("container",)),
    TableColumn("CONTAINER_ID", lambda row: "(null)", names=("containerid",)),
    TableColumn("CPUS_PER_TRES", lambda row: "N/A", names=("cpus-per-tres",)),
    TableColumn("CPU_FREQ", lambda row: "N/A", names=("cpufreq",)),
    TableColumn("MEM_PER_TRES", lambda row: "N/A", names=("mem-per-tres",)),
    TableColumn("NETWORK", lambda row: "(null)", names=("network",)),
    TableColumn("RESV_PORTS", lambda row: "(null)", names=("resvports",)),
    TableColumn("TRES_BIND", lambda row: "N/A", names=("tres-bind",)),
    TableColumn("TRES_FREQ", lambda row: "N/A", names=("tres-freq",)),
    TableColumn("TRES_PER_JOB", lambda row: "N/A", names=("tres-per-job",)),
    TableColumn("TRES_PER_SOCKET", lambda row: "N/A", names=("tres-per-socket",)),
    TableColumn("TRES_PER_STEP", lambda row: "N/A", names=("tres-per-step",)),
    TableColumn("TRES_PER_TASK", lambda row: "N/A", names=("tres-per-task",)),
)


def running(named: Iterable[str], **where: Sequence[str] | None) -> list[JobInfo]:
    """Return the rows of running steps.

    Args:
        named: jobs and steps such as 7 and 7.0; none: all jobs.
        where: user names and partitions of the jobs.
    """
    whole, wanted = steps.split(named)
    chosen = protocol.Where(id=choices.ids(whole) or None, state=_RUNNING, **where)
    with Client(find_paths()) as client:
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
    listing = _format(options)
    head = [] if "noheader" in options else [listing.header()]
    return "".join(f"{line}\n" for line in [*head, *listing.lines(rows)])


def _format(options: Mapping[str, str]) -> Format:
    if "Format" in options:
        return columns.named(options["Format"], _KNOWN)
    return by_letters(options.get("format", _USUAL), _ITEM, _KNOWN.by_letter, COLUMNS)


def _refuse(name: str) -> None:
    print(f"squeue: error: Invalid job step format specification: {name}", file=sys.stderr)


_KNOWN = columns.QueueColumns(
    {column.letter: column for column in COLUMNS if column.letter},
    {name: column for column in COLUMNS for name in column.names},
    _refuse,
)


def shown_steps(named: Sequence[str], options: Mapping[str, str]) -> str:
    """Return what `scontrol show step` prints. Raises BadLine: there is no such step."""
    rows = running(named)
    if not rows and named:
        raise BadLine(
            f"error: scontrol_print_step: slurm_get_job_steps({named[0]}) failed: Invalid job id specified"
        )
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
        [("TRES", view.allocated_tres(row))],
        [("ResvPorts", None)],
        [("CPUFreqReq", "Default"), ("Dist", "Block")],
        [("SrunHost:Pid", f"{host_name()}:{_srun(row)}")],
    ]


def _srun(row: JobInfo) -> int:
    """Return the pid of the srun of a step; 0 for a batch step."""
    return row.srun_steps[0].pid if row.srun_steps else 0
