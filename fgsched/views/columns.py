"""Choose and order the columns of jobs: of the queue by letter and by name, of the accounts by name.

The columns are in `views/fields.py`. The controller uses them, too, for clients without an interpreter,
except for columns whose text is local to the reader.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import clean, lazy_regex, shown, word_list
from fgsched.lifecycle.arrays import parse_tasks, tasks
from fgsched.protocol import JobInfo
from fgsched.views import listing
from fgsched.views.fields import ACCOUNTS, COLUMNS, SACCT_COLUMNS, SQUEUE_COLUMNS, amount
from fgsched.views.listing import Format, TableColumn

_ORDER = {state: place for place, state in enumerate(JobState)}
_ITEM = lazy_regex(r"%(\.?)([0-9]{0,4})(all\b|.)?", re.DOTALL)
_NAMED = lazy_regex(r"([A-Za-z][A-Za-z0-9_-]*)(?::(\.?)([0-9]{0,4})(.*))?", re.DOTALL)

_FIRST = "JobID:.18 ,Partition:.9 ,Name:.8 ,UserName:.8 "
QUEUE = f"{_FIRST},StateCompact:.2 ,TimeUsed:.10 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
LONG = f"{_FIRST},State:.8 ,TimeUsed:.10 ,TimeLimit:.9 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
SLURM = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
START = f"{_FIRST},StateCompact:.2 ,StartTime:.19 ,LikelyStart:.19 ,Known:.7 ,GPUs:.6 ,GpuReason:0"
SLURM_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
SLURM_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


class QueueColumns(NamedTuple):
    """The columns of fgq or of squeue, and what is done about an unknown one."""

    letters: Mapping[str, TableColumn]
    names: Mapping[str, TableColumn]  # in lower case
    refuse: Callable[[str], None] | None = None  # reports the name of an unknown one; None: BadUsage

    def by_letter(self, letter: str) -> TableColumn | None:
        """Return the column of %letter; None: there is none, which was reported. Raises BadUsage."""
        if letter not in self.letters:
            remedy = "There are: all " + " ".join(sorted(self.letters, key=str.lower))
            self._refuse(letter, f"unknown field {shown('%' + letter)} in the format", remedy)
        return self.letters.get(letter)

    def by_name(self, name: str) -> TableColumn | None:
        """Return the column that -O calls `name`, in any case; None: it was reported. Raises BadUsage."""
        if name.lower() not in self.names:
            names = dict.fromkeys(column.names[0] for column in self.names.values())
            remedy = f"There are: {' '.join(names)}"
            self._refuse(name.partition(":")[0], f"unknown field {shown(name)} in the format", remedy)
        return self.names.get(name.lower())

    def _refuse(self, name: str, cause: str, remedy: str) -> None:
        if self.refuse is None:
            raise BadUsage(cause, remedy)
        self.refuse(name)


def _columns_of_queue(*tables: Iterable[TableColumn]) -> QueueColumns:
    """Return the columns of tables, of which a later one replaces those of an earlier one."""
    columns = [column for table in tables for column in table]
    letters = {column.letter: column for column in columns if column.letter}
    return QueueColumns(letters, {name.lower(): column for column in columns for name in column.names})


_ONLY_OF_FGQ = ("SELECT_JOBINFO",)  # which Slurm had until version 23
OF_FGQ = _columns_of_queue(COLUMNS)
OF_SQUEUE = _columns_of_queue(
    (column for column in COLUMNS if column.heading not in _ONLY_OF_FGQ), SQUEUE_COLUMNS
)


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
_OF_SLURM = word_list(
    """
    Account AdminComment AllocCPUS AllocNodes AllocTRES AssocID AveCPU AveCPUFreq AveDiskRead AveDiskWrite
    AvePages AveRSS AveVMSize BlockID Cluster Comment Constraints ConsumedEnergy ConsumedEnergyRaw Container
    CPUTime CPUTimeRAW DBIndex DerivedExitCode Elapsed ElapsedRaw Eligible End ExitCode Extra FailedNode Flags
    GID Group JobID JobIDRaw JobName Layout Licenses MaxDiskRead MaxDiskReadNode MaxDiskReadTask MaxDiskWrite
    MaxDiskWriteNode MaxDiskWriteTask MaxPages MaxPagesNode MaxPagesTask MaxRSS MaxRSSNode MaxRSSTask
    MaxVMSize MaxVMSizeNode MaxVMSizeTask McsLabel MinCPU MinCPUNode MinCPUTask NCPUS NNodes NodeList NTasks
    Partition Planned PlannedCPU PlannedCPURAW Priority QOS QOSRAW QOSREQ Reason ReqCPUFreq ReqCPUFreqGov
    ReqCPUFreqMax ReqCPUFreqMin ReqCPUS ReqMem ReqNodes ReqTRES Reservation ReservationId Restarts SLUID Start
    State StdErr StdIn StdOut Submit SubmitLine Suspended SystemComment SystemCPU Timelimit TimelimitRaw
    TotalCPU TRESUsageInAve TRESUsageInMax TRESUsageInMaxNode TRESUsageInMaxTask TRESUsageInMin
    TRESUsageInMinNode TRESUsageInMinTask TRESUsageInTot TRESUsageOutAve TRESUsageOutMax TRESUsageOutMaxNode
    TRESUsageOutMaxTask TRESUsageOutMin TRESUsageOutMinNode TRESUsageOutMinTask TRESUsageOutTot UID User
    UserCPU WCKey WCKeyID WorkDir"""
)
_IN_SACCT = {  # by name in lower case, those of Slurm first, in its order
    **{name.lower(): _IN_ACCOUNTS.get(name.lower(), TableColumn(name, "")) for name in _OF_SLURM},
    **_IN_ACCOUNTS,
    **{column.heading.lower(): column for column in SACCT_COLUMNS},
}


class AccountColumns(NamedTuple):
    """The columns of fgacct or of sacct."""

    names: Mapping[str, TableColumn]  # in lower case
    all: Sequence[str]  # that 'all' means, and --helpformat lists
    is_slurm: bool = False  # a beginning of a name means the first column with it; an empty item ends a list

    def column(self, name: str) -> TableColumn:
        """Return the column with that name, in any case. Raises BadUsage."""
        if name.lower() in self.names:
            return self.names[name.lower()]
        if not self.is_slurm:
            raise BadUsage(f"unknown field {shown(name)}", "fgacct -e lists the fields there are.")
        for whole, column in self.names.items():
            if whole.startswith(name.lower()):
                return column
        raise BadUsage(f'Invalid field requested: "{clean(name)}"')

    def parts(self, text: str) -> list[str]:
        """Return the items of a list of columns; sacct reads it up to the first empty one."""
        parts = text.split(",")
        if self.is_slurm and "" in parts:
            parts = parts[: parts.index("")]
        return [whole for part in parts for whole in self._whole(part)]

    def _whole(self, part: str) -> list[str]:
        name, percent, width = part.partition("%")
        return [f"{each}{percent}{width}" for each in self.all] if name.lower() == "all" else [part]


ACCOUNTS_OF_FGACCT = AccountColumns(_IN_ACCOUNTS, [column.heading for column in ACCOUNTS])
ACCOUNTS_OF_SACCT = AccountColumns(_IN_SACCT, _OF_SLURM, is_slurm=True)


def of_accounts(text: str, unit: str = "M", known: AccountColumns = ACCOUNTS_OF_FGACCT) -> Format:
    """Return the format of 'JobID,JobName%20,State%-15'; a negative width aligns left; 'all' is every column.

    `unit` is that of memory: "K", "M", "G", or "" for bytes. Raises BadUsage.
    """
    selected: list[tuple[TableColumn, int | None]] = []
    for part in known.parts(text):
        match = _SELECTED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field", "Such as: -o JobID,JobName%20,State%-15")
        column = known.column(match[1])
        if column.text is amount:
            column = column._replace(text=partial(amount, unit=unit))
        selected.append((column, int(f"{match[2]}{match[3]}") if match[3] else None))
    return listing.marked(selected)


# -- formats ----------------------------------------------------------------------------------------


def percent(text: str, columns: QueueColumns = OF_FGQ) -> Format:
    """Return the format of -o: '%.18i %j', '%all'. Raises BadUsage."""
    if "%" not in text and columns.refuse is None:
        raise BadUsage(f"the format {shown(text)} names no field", "Such as: -o '%i %j %T'")
    return listing.by_letters(text, _ITEM, columns.by_letter, columns.letters.values())


def named(text: str, columns: QueueColumns = OF_FGQ) -> Format:
    """Return the format of -O: 'JobID:8,Name:.20,State'. Raises BadUsage."""
    pieces = []
    for part in text.split(","):
        match = _NAMED.fullmatch(part)
        if not match and columns.refuse is None:
            raise BadUsage(f"{shown(part)} is not a field of -O", "Such as: -O JobID:8,Name:.20,State")
        column = columns.by_name(match[1] if match else part) if match or part else None
        if match and column:
            pieces.append(listing.by_name(match, column))
    return Format("", tuple(pieces))


def sort_keys(text: str, columns: QueueColumns = OF_FGQ) -> list[tuple[TableColumn, bool]]:
    """Return (column, descending?) of 'P,t,-i' or 'Partition,-JobID'. Raises BadUsage."""
    keys = []
    for part in text.split(","):
        name = part.lstrip("+-")
        column = columns.letters.get(name) or columns.names.get(name.lower())
        if column is None:
            remedy = "Such as: -S P,-i or -S Partition,-JobID; fgq(1) lists the fields."
            raise BadUsage(f"{shown(part)} is nothing to sort by", remedy)
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
