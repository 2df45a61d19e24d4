"""Choose and order the columns of jobs: of the queue by letter and by name, of the accounts by name.

The columns are in `views/fields.py`. The controller uses them, too, for clients without an interpreter,
except for columns whose text is local to the reader.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import lazy_regex, shown
from fgsched.lifecycle.arrays import parse_tasks, tasks
from fgsched.protocol import JobInfo
from fgsched.views import listing
from fgsched.views.fields import ACCOUNTS, COLUMNS, amount, null
from fgsched.views.listing import Format, TableColumn

_ORDER = {state: place for place, state in enumerate(JobState)}
_ITEM = lazy_regex(r"%(\.?)([0-9]{0,4})(all\b|.)?", re.DOTALL)
_NAMED = lazy_regex(r"([A-Za-z-]+)(?::(\.?)([0-9]{0,4})(.*))?", re.DOTALL)

_FIRST = "JobID:.18 ,Partition:.9 ,Name:.8 ,UserName:.8 "
QUEUE = f"{_FIRST},StateCompact:.2 ,TimeUsed:.10 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
LONG = f"{_FIRST},State:.8 ,TimeUsed:.10 ,TimeLimit:.9 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
SLURM = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
START = f"{_FIRST},StateCompact:.2 ,StartTime:.19 ,LikelyStart:.19 ,Known:.7 ,GPUs:.6 ,GpuReason:0"
SLURM_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
SLURM_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


_OF_SLURM = {"DEPENDENCY": TableColumn("DEPENDENCY", "unmet", null)}  # that squeue shows differently
_BY_LETTER = {column.letter: column for column in COLUMNS if column.letter}
Names = Mapping[str, TableColumn]  # columns by their names in lower case


def named_by(columns: Iterable[TableColumn]) -> dict[str, TableColumn]:
    """Return columns by their names in lower case."""
    return {name.lower(): column for column in columns for name in column.names}


BY_NAME = named_by(COLUMNS)
LATER = {"gpumemused", "gpuutil"}


def by_letter(letter: str) -> TableColumn:
    """Return the column of %letter. Raises BadUsage."""
    if letter not in _BY_LETTER:
        remedy = "There are: all " + " ".join(sorted(_BY_LETTER, key=str.lower))
        raise BadUsage(f"unknown field {shown('%' + letter)} in the format", remedy)
    return _BY_LETTER[letter]


def by_name(name: str, columns: Names = BY_NAME) -> TableColumn:
    """Return the column that -O calls `name`, in any case. Raises BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet")
    if name.lower() not in columns:
        remedy = "There are: " + " ".join(dict.fromkeys(column.names[0] for column in columns.values()))
        raise BadUsage(f"unknown field {shown(name)} in the format", remedy)
    return columns[name.lower()]


# -- columns of the accounts --------------------------------------------------------------------------

USUAL = "JobID,JobName,Partition,User,ReqGPU,MaxGPUMem,Elapsed,State,ExitCode"
SACCT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"  # the columns of sacct
BRIEF = "JobID,State,ExitCode"
FULL = (
    "JobID,JobName,Partition,User,ReqGPU,ReqGPUMem,MaxGPUMem,GPUIdx,GPUHours,AllocCPUS,MaxRSS,TotalCPU,"
    "Submit,Start,End,Elapsed,Timelimit,State,ExitCode,Reason,Enforce"
)
_SELECTED = lazy_regex(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")


_IN_ACCOUNTS = {column.heading.lower(): column for column in ACCOUNTS}
LATER_IN_ACCOUNTS = frozenset(("priority",))


def account_column(name: str) -> TableColumn:
    """Return the column of the accounts with that name, in any case. Raises BadUsage."""
    if name.lower() in LATER_IN_ACCOUNTS:
        raise BadUsage(f"{name}: not supported yet", "fgacct -e lists the fields there are.")
    if name.lower() not in _IN_ACCOUNTS:
        raise BadUsage(f"unknown field {shown(name)}", "fgacct -e lists the fields there are.")
    return _IN_ACCOUNTS[name.lower()]


def of_accounts(text: str, unit: str = "M") -> Format:
    """Return the format of 'JobID,JobName%20,State%-15'; a negative width aligns left; 'all' is every column.

    `unit` is that of memory: "K", "M", "G", or "" for bytes. Raises BadUsage.
    """
    if text.lower() == "all":
        text = ",".join(column.heading for column in ACCOUNTS)
    selected: list[tuple[TableColumn, int | None]] = []
    for part in text.split(","):
        match = _SELECTED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field", "Such as: -o JobID,JobName%20,State%-15")
        column = account_column(match[1])
        if column.text is amount:
            column = column._replace(text=partial(amount, unit=unit))
        selected.append((column, int(f"{match[2]}{match[3]}") if match[3] else None))
    return listing.marked(selected)


# -- formats ----------------------------------------------------------------------------------------


def percent(text: str) -> Format:
    """Return the format of -o: '%.18i %j', '%all'. Raises BadUsage."""
    if "%" not in text:
        raise BadUsage(f"the format {shown(text)} names no field", "Such as: -o '%i %j %T'")
    return listing.by_letters(text, _ITEM, by_letter, COLUMNS)


def named(text: str, columns: Names = BY_NAME) -> Format:
    """Return the format of -O: 'JobID:8,Name:.20,State'. Raises BadUsage."""
    pieces = []
    for part in text.split(","):
        match = _NAMED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field of -O", "Such as: -O JobID:8,Name:.20,State")
        pieces.append(listing.by_name(match, by_name(match[1], columns)))
    return Format("", tuple(pieces))


def of_slurm(form: Format) -> Format:
    """Return a format with the texts of squeue, which names the state of each condition of a dependency."""
    pieces = (
        replace(piece, column=_OF_SLURM.get(piece.column.heading, piece.column)) for piece in form.pieces
    )
    return replace(form, pieces=tuple(pieces))


def sort_keys(text: str, columns: Names = BY_NAME) -> list[tuple[TableColumn, bool]]:
    """Return (column, descending?) of 'P,t,-i' or 'Partition,-JobID'. Raises BadUsage."""
    keys = []
    for part in text.split(","):
        name = part.lstrip("+-")
        try:
            column = by_letter(name) if len(name) <= 1 else by_name(name, columns)
        except BadUsage:
            remedy = "Such as: -S P,-i or -S Partition,-JobID; fgq(1) lists the fields."
            raise BadUsage(f"{shown(part)} is nothing to sort by", remedy) from None
        keys.append((column, part.startswith("-")))
    return keys


def expanded(jobs: Iterable[JobInfo]) -> list[JobInfo]:
    """Yield each pending task of an array as a separate job."""
    rows = []
    for job in jobs:
        listed = (job.tasks or "").partition("%")[0]
        one_each = tasks(parse_tasks(listed)) if listed else ()
        rows += [replace(job, task=task, tasks=None) for task in one_each] if listed else [job]
    return rows


def _rank(value: Any) -> Any:
    """Return the sort key of a value: states in their order, reasons by name, unknown values last."""
    if isinstance(value, JobState):
        return _ORDER[value]
    return value.value if isinstance(value, Reason) else (value is None, 0 if value is None else value)


def order_of(column: TableColumn) -> Callable[[JobInfo], Any]:
    """Return the sort key of rows by id; the tasks of an array are adjacent."""
    value = attrgetter(column.key)
    if column.fields[:3] != ("id", "array", "task"):
        return lambda job: _rank(value(job))
    return lambda job: (job.array or job.id, -1 if job.task is None else job.task)


def ordered(jobs: list[JobInfo], keys: Sequence[tuple[TableColumn, bool]]) -> list[JobInfo]:
    """Sort jobs by the keys, and jobs with equal keys by id."""
    for column, down in reversed(keys):
        jobs.sort(key=order_of(column), reverse=down)
    return jobs
