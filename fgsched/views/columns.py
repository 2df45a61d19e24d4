"""The columns of jobs: of the queue by letter (-o) and by name (-O), and of the accounts by name.

`COLUMNS` (fgq, squeue) and `ACCOUNTS` (fgacct, sacct) declare the heading, the value and the text of each
column. The controller uses them, too, for clients without an interpreter, except for columns whose text is
local to the reader.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.job import OomReport, Preemption
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import lazy_regex, shown
from fgsched.domain.times import HOUR, MINUTE, format_elapsed, format_limit, format_runtime
from fgsched.domain.units import GIBIBYTE, format_indices, format_mebibytes, format_share
from fgsched.lifecycle.arrays import parse_tasks, tasks
from fgsched.protocol import JobInfo
from fgsched.views import job as view
from fgsched.views import listing
from fgsched.views.display import host_name, shown_time
from fgsched.views.job import reads
from fgsched.views.listing import Format, TableColumn

_LONGEST_LIST = 64  # characters of a list of indices
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


# -- columns ----------------------------------------------------------------------------------------


def value_of(word: JobState | Reason) -> str:
    return word.word


def _left(seconds: float | None) -> str:
    return "UNLIMITED" if seconds is None else format_runtime(seconds)


def _share(units: int | None) -> str:
    return "-" if units is None else format_share(units)


def _memory(size: int | None) -> str:
    return format_mebibytes(size) if size else "-"


def indices(held: Sequence[int]) -> str:
    """Return GPU indices as a list, cut if it is long."""
    return _cut(format_indices(held))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LIST else text[: _LONGEST_LIST - 1] + "…"


@reads("state", "reason", "indices")
def _gpus_or_reason(job: JobInfo) -> str:
    return (indices(job.indices) or "-") if job.state.holds else f"({job.reason.word})"


@reads("state", "reason")
def _host_or_reason(job: JobInfo) -> str:
    return host_name() if job.state.holds else f"({job.reason.word})"


def _fixed(heading: str, text: str, names: tuple[str, ...], letter: str = "") -> TableColumn:
    """Return a column with one text for all jobs."""
    return TableColumn(heading, "id", lambda number: text, names, letter)


def _gres(units: int | None) -> str:
    return f"gpu:{_share(units)}" if units != 0 else "N/A"


def _priority(value: float | None) -> str:
    """Return the priority of a pending job; other jobs have none."""
    return "0" if value is None else str(round(value))


def _optional(text: str | None) -> str:
    return text or "(null)"


def _label(label: str) -> str:
    """Return the displayed id of a job; a long list of tasks is cut."""
    number, bracket, tasks = label.partition("[")
    return f"{number}[{_cut(tasks[:-1])}]" if bracket else label


@reads("task", "tasks")
def _tasks(job: JobInfo) -> str:
    if job.task is not None:
        return str(job.task)
    return "N/A" if job.tasks is None else _cut(job.tasks)


COLUMNS = (
    TableColumn("JOBID", view.label, _label, ("JobID", "JobArrayID"), "i", least=12),
    TableColumn("JOBID", "id", str, ("JobIDRaw",), "A"),
    TableColumn("ARRAY_JOB_ID", view.array_number, str, ("ArrayJobID",), "F"),
    TableColumn("ARRAY_TASK_ID", _tasks, str, ("ArrayTaskID",), "K"),
    TableColumn(
        "PARTITION", "partition", str, ("Partition",), "P", by="partition_place", least=6, is_minor=True
    ),
    TableColumn("ACCOUNT", "account", _optional, ("Account",), "a"),
    TableColumn("QOS", "qos", _optional, ("QOS",), "q"),
    TableColumn("RESERVATION", "reservation", _optional, ("Reservation",), "v"),
    TableColumn("PRIORITY", "priority", _priority, ("Priority",), "p"),
    TableColumn("PRIORITY", "priority", _priority, ("PriorityLong",), "Q"),
    TableColumn("NICE", "nice", str, ("Nice",), "y"),
    TableColumn("NAME", "name", str, ("Name",), "j", least=8),
    TableColumn("USER", "user", str, ("UserName",), "u", least=6),
    TableColumn("UID", "uid", str, ("UserID",), "U"),
    TableColumn("ST", "state", lambda state: state.code, ("StateCompact",), "t", paint="state"),
    TableColumn("STATE", "state", value_of, ("State",), "T", paint="state"),
    TableColumn("TIME", "elapsed", format_runtime, ("TimeUsed",), "M", is_whole=True),
    TableColumn("TIME_LIMIT", "time_limit", format_limit, ("TimeLimit",), "l", is_whole=True, is_minor=True),
    TableColumn("TIME_LEFT", view.time_left, _left, ("TimeLeft",), "L", is_whole=True),
    TableColumn("SUBMIT_TIME", "submitted_at", shown_time, ("SubmitTime",), "V", is_local=True),
    TableColumn("START_TIME", "starts_at", shown_time, ("StartTime",), "S", is_local=True),
    TableColumn("LIKELY_START", "likely", shown_time, ("LikelyStart",), is_local=True),
    TableColumn("KNOWN", "known", str, ("Known",), is_local=True, is_minor=True),
    TableColumn("END_TIME", view.end, shown_time, ("EndTime",), "e", is_local=True),
    TableColumn("CPUS", "cpus", str, ("NumCPUs",), "C"),
    TableColumn(
        "MIN_MEMORY",
        "host_memory",
        lambda size: format_mebibytes(size) if size else "0",
        ("MinMemory",),
        "m",
    ),
    _fixed("NODES", "1", ("NumNodes", "Nodes"), "D"),
    TableColumn("MIN_CPUS", view.least_cpus, str, ("MinCPUs", "MaxCPUs"), "c"),
    TableColumn("TASKS", "ntasks", str, ("NumTasks",)),
    TableColumn("CPUS_PER_TASK", view.cpus_per_task, str, ("cpus-per-task",)),
    _fixed("MIN_TMP_DISK", "0", ("MinTmpDisk",), "d"),
    TableColumn("OVER_SUBSCRIBE", "cpus", lambda cpus: "OK", ("OverSubscribe",), "h"),
    _fixed("CORES_PER_SOCKET", "*", ("CoresPerSocket",), "I"),
    _fixed("SOCKETS_PER_NODE", "*", ("SocketsPerNode",), "H"),
    _fixed("THREADS_PER_CORE", "*", ("ThreadsPerCore",), "J"),
    _fixed("S:C:T", "*:*:*", ("SCT",), "z"),
    _fixed("REQ_NODES", "", ("ReqNodes",), "n"),
    _fixed("EXC_NODES", "", ("ExcNodes",), "x"),
    _fixed("CONTIGUOUS", "0", ("Contiguous",), "O"),
    _fixed("SELECT_JOBINFO", "", ("SelectJobInfo",), "s"),
    _fixed("LICENSES", "(null)", ("Licenses",), "W"),
    TableColumn("WCKEY", "wckey", lambda key: key or "(null)", ("WCKey",), "w"),
    _fixed("CORE_SPEC", "N/A", ("CoreSpec",), "X"),
    TableColumn(
        "EXEC_HOST", "state", lambda state: host_name() if state.holds else "n/a", ("BatchHost",), "B"
    ),
    _fixed("CLUSTER", "fgsched", ("Cluster", "Origin")),
    TableColumn("GROUP", "gid", str, ("GroupID",)),
    TableColumn("ELIGIBLE_TIME", "eligible_at", shown_time, ("EligibleTime",), is_local=True),
    TableColumn(
        "PENDING_TIME", view.pending_time, lambda seconds: str(int(seconds)), ("PendingTime",), is_whole=True
    ),
    TableColumn("REQUEUE", "requeue", lambda requeue: str(int(requeue)), ("Requeue",)),
    TableColumn("RESTART_COUNT", "restarts", str, ("RestartCnt",)),
    TableColumn("EXIT_CODE", "exit_code", str, ("exit_code",)),
    TableColumn("TRES_ALLOC", view.tres_in_queue, str, ("tres-alloc",)),
    TableColumn("TRES_PER_JOB", "share", _gres, ("tres-per-job",)),
    _fixed("TRES_PER_TASK", "N/A", ("tres-per-task", "tres-per-socket")),
    TableColumn("SCHEDNODES", "started_at", lambda at: host_name() if at else "(null)", ("SchedNodes",), "Y"),
    TableColumn("NODELIST", "state", lambda state: host_name() if state.holds else "", ("NodeList",), "N"),
    TableColumn("NODELIST(REASON)", _host_or_reason, str, ("ReasonList",), "R", paint="reason"),
    TableColumn("REASON", "reason", value_of, ("Reason",), "r", paint="reason"),
    TableColumn("GPUS", "share", _share, ("GPUs",), "G"),
    TableColumn("GPUIDX", "indices", indices, ("GpuIdx",), "g"),
    TableColumn("GPUMEM", "memory", _memory, ("GpuMem",), is_minor=True),
    TableColumn("GPU(REASON)", _gpus_or_reason, str, ("GpuReason",), paint="reason"),
    TableColumn("TRES_PER_NODE", "share", _gres, ("Gres", "tres-per-node"), "b"),
    TableColumn("FEATURES", "gpu_type", _optional, ("Feature",), "f"),
    TableColumn("ENFORCE", "tier", str, ("Enforce",)),
    TableColumn("DEPENDENCY", "dependency", _optional, ("Dependency",), "E"),
    TableColumn("DEADLINE", "deadline", shown_time, ("Deadline",), is_local=True),
    TableColumn("COMMENT", "comment", _optional, ("Comment",), "k"),
    TableColumn("COMMAND", "command", _optional, ("Command",), "o"),
    TableColumn("WORK_DIR", "chdir", _optional, ("WorkDir",), "Z"),
    TableColumn("WHY", view.why, str, ("Why",), is_local=True),
    TableColumn("STDOUT", view.stdout, names=("STDOUT",), is_local=True),
    TableColumn("STDERR", view.stderr, names=("STDERR",), is_local=True),
    TableColumn("STDIN", view.stdin, names=("STDIN",), is_local=True),
)
_OF_SLURM = {"DEPENDENCY": TableColumn("DEPENDENCY", "unmet", _optional)}  # that squeue shows differently
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


def by_name(name: str, known: Names = BY_NAME) -> TableColumn:
    """Return the column that -O calls `name`, in any case. Raises BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet")
    if name.lower() not in known:
        remedy = "There are: " + " ".join(dict.fromkeys(column.names[0] for column in known.values()))
        raise BadUsage(f"unknown field {shown(name)} in the format", remedy)
    return known[name.lower()]


# -- columns of the accounts --------------------------------------------------------------------------

USUAL = "JobID,JobName,Partition,User,ReqGPU,MaxGPUMem,Elapsed,State,ExitCode"
SACCT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"  # the columns of sacct
BRIEF = "JobID,State,ExitCode"
FULL = (
    "JobID,JobName,Partition,User,ReqGPU,ReqGPUMem,MaxGPUMem,GPUIdx,GPUHours,AllocCPUS,MaxRSS,TotalCPU,"
    "Submit,Start,End,Elapsed,Timelimit,State,ExitCode,Reason,Enforce"
)
_UNIT = {"K": 10, "M": 20, "G": 30}
_SELECTED = lazy_regex(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")


def amount(size: int | None, unit: str = "M") -> str:
    """Return bytes in a unit ("K", "M", "G" or "" for bytes), rounded up; gibibytes with two decimals."""
    if size is None:
        return ""
    if not unit or not size:
        return str(size)
    if unit == "G":
        return f"{math.ceil(size * 100 / GIBIBYTE) / 100:.2f}G"
    return f"{-(-size >> _UNIT[unit])}{unit}"


def others(report: OomReport | None) -> str:
    """Format the memory of other jobs and of external processes on the GPU: 'job 7:4096M,strangers:512M'."""
    if report is None:
        return ""
    return ",".join(f"{name}:{amount(size)}" for name, size in view.oom_others(report)) or "nobody"


@reads("started_at", "state")
def _started(job: JobInfo) -> str:
    return shown_time(job.started_at, unknown="None" if job.state.is_final else "Unknown")


def _cpu_seconds(seconds: float | None) -> str:
    """Return CPU seconds in Slurm's form: 0 until they are measured, thousandths below an hour."""
    if seconds is not None and seconds >= HOUR:
        return format_elapsed(seconds)
    minutes, cpu_seconds = divmod(seconds or 0.0, MINUTE)
    return f"{int(minutes):02d}:{int(cpu_seconds):02d}.{int(cpu_seconds % 1 * 1000):03d}"


def _moment(epoch: float | None) -> str:
    return shown_time(epoch, unknown="Unknown")


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_elapsed(seconds)


def _limit(seconds: int) -> str:
    return format_elapsed(seconds) if seconds else "UNLIMITED"


def _minutes(seconds: int) -> str:
    return str(seconds // MINUTE) if seconds else ""


def _amount_of_gpus(units: int | None) -> str:
    return "" if units is None else format_share(units)


def _hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:.4f}"


def _by(preemption: Preemption | None) -> str:
    return str(preemption.by) if preemption else ""


def _rounded(number: float | None) -> str:
    return "" if number is None else str(round(number))


def _percent(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}"


def _constant(heading: str, width: int, text: str, *, is_of_jobs: bool = False) -> TableColumn:
    """Return a column with one text for all jobs."""
    return TableColumn(heading, "id", lambda number: text, width=width, is_of_jobs=is_of_jobs)


@reads("elapsed", "cpus")
def _whole_cpu_time(job: JobInfo) -> int:
    return int(job.elapsed) * job.cpus


ACCOUNTS = (
    TableColumn("Account", "account", width=10),
    _constant("AdminComment", 20, ""),
    TableColumn("AllocCPUS", view.allocated_cpus, width=10),
    TableColumn("AllocGPU", view.allocated_share, format_share, width=8),
    TableColumn("AllocNodes", "attempt", lambda attempt: "1" if attempt else "0", width=10),
    TableColumn("AllocTRES", view.allocated_tres, width=40),
    _constant("AssocID", 8, "0"),
    TableColumn("AveCPU", view.cpu_seconds, _cpu_seconds, width=10),
    TableColumn("AveDiskRead", view.disk_read, amount, width=12),
    TableColumn("AveDiskWrite", view.disk_written, amount, width=12),
    TableColumn("AveRSS", view.host_peak, amount, width=10),
    _constant("Cluster", 10, "fgsched"),
    TableColumn("AveGPUMem", view.mean_memory, amount, width=10),
    TableColumn("AveGPUUtil", view.gpu_util, _percent, width=10),
    TableColumn("Comment", "comment", width=14),
    _constant("Container", 20, ""),
    TableColumn("CPUTime", view.cpu_time, format_elapsed, width=10),
    TableColumn("CPUTimeRAW", _whole_cpu_time, width=10),
    TableColumn("DerivedExitCode", view.highest_exit, width=15),
    TableColumn("Elapsed", "elapsed", format_elapsed, width=10),
    TableColumn("ElapsedRaw", "elapsed", lambda seconds: str(int(seconds)), width=10),
    TableColumn("Eligible", "eligible_at", _moment, width=19),
    TableColumn("End", view.ended_at, _moment, width=19),
    TableColumn("EnergyJ", view.energy, _rounded, width=10),
    TableColumn("Enforce", "tier", width=8),
    TableColumn("ExitCode", view.exit_status, width=8),
    _constant("Flags", 20, ""),
    TableColumn("GID", "gid", width=6, is_of_jobs=True),
    TableColumn("GPUHours", view.gpu_hours, _hours, width=10),
    TableColumn("GPUHoursIdle", view.gpu_hours_idle, _hours, width=12),
    TableColumn("GPUHoursUsed", view.gpu_hours_used, _hours, width=12),
    TableColumn("GPUIdx", view.gpu_list, width=8),
    TableColumn("GPUType", view.gpu_models, width=20),
    TableColumn("Group", view.group, width=9, is_of_jobs=True),
    TableColumn("JobID", view.step_label, width=12, left=True, least=12),
    TableColumn("JobIDRaw", view.step_number, width=12, left=True),
    TableColumn("JobName", "name", width=10, least=8),
    _constant("Layout", 9, ""),
    TableColumn("MaxDiskRead", view.disk_read, amount, width=12),
    TableColumn("MaxDiskWrite", view.disk_written, amount, width=12),
    TableColumn("MaxGPUMem", view.gpu_peak, amount, width=10, is_minor=True),
    TableColumn("MaxRSS", view.host_peak, amount, width=10),
    _constant("MaxVMSize", 10, ""),
    TableColumn("NCPUS", "cpus", width=10),
    _constant("NNodes", 8, "1"),
    TableColumn("NodeList", "attempt", lambda attempt: host_name() if attempt else "None assigned", width=15),
    TableColumn("NTasks", "ntasks", width=8),
    TableColumn("OOMAsked", view.oom_asked, amount, width=10),
    TableColumn("OOMHeld", view.oom_held, amount, width=10),
    TableColumn("OOMKills", "oom_kills", lambda kills: str(kills or ""), width=8),
    TableColumn("OOMKind", view.oom_kind, width=7),
    TableColumn("OOMLimit", view.oom_limit, amount, width=10),
    TableColumn("OOMOthers", "post_mortem", others, width=20),
    TableColumn("Partition", "partition", width=10, is_of_jobs=True, least=6, is_minor=True),
    TableColumn("Planned", view.waited, _duration, width=10),
    TableColumn("PlannedCPU", view.waited_cpu_time, format_elapsed, width=10),
    TableColumn("PreemptedBy", "preemption", _by, width=11),
    TableColumn("QOS", "qos", width=10, is_of_jobs=True),
    _constant("QOSRAW", 10, "1", is_of_jobs=True),
    TableColumn("Reason", view.last_reason, width=22, paint="outcome"),
    TableColumn("ReqCPUS", "cpus", width=8),
    TableColumn("ReqGPU", view.requested_share, _amount_of_gpus, width=8),
    TableColumn("ReqGPUMem", view.requested_memory, amount, width=10),
    TableColumn("ReqMem", "host_memory", amount, width=10, is_of_jobs=True),
    _constant("ReqNodes", 8, "1"),
    TableColumn("ReqTRES", view.requested_tres, width=40),
    TableColumn("Reservation", "reservation", width=20, is_of_jobs=True),
    TableColumn("Restarts", "restarts", width=8),
    TableColumn("Start", _started, width=19),
    TableColumn("State", view.state_by, width=10, least=9, paint="outcome"),
    TableColumn("StdErr", view.stderr, width=30, is_of_jobs=True),
    TableColumn("StdOut", view.stdout, width=30, is_of_jobs=True),
    TableColumn("Submit", "submitted_at", _moment, width=19),
    TableColumn("SubmitLine", "command", width=20),
    TableColumn("SystemComment", "warning", width=20),
    TableColumn("Suspended", "suspended", format_elapsed, width=10),
    TableColumn("Timelimit", "time_limit", _limit, width=10, is_of_jobs=True),
    TableColumn("TimelimitRaw", "time_limit", _minutes, width=12, is_of_jobs=True),
    TableColumn("TotalCPU", view.cpu_seconds, _cpu_seconds, width=10),
    TableColumn("UID", "uid", width=6, is_of_jobs=True),
    TableColumn("User", "user", width=9, is_of_jobs=True, least=6, is_minor=True),
    TableColumn("Warning", "warning", width=30),
    TableColumn("WastedGPUMemHours", view.wasted_memory_hours, _hours, width=17),
    TableColumn("WCKey", "wckey", width=10),
    TableColumn("WorkDir", "chdir", width=20, is_of_jobs=True),
)
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


def named(text: str, known: Names = BY_NAME) -> Format:
    """Return the format of -O: 'JobID:8,Name:.20,State'. Raises BadUsage."""
    pieces = []
    for part in text.split(","):
        match = _NAMED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field of -O", "Such as: -O JobID:8,Name:.20,State")
        pieces.append(listing.by_name(match, by_name(match[1], known)))
    return Format("", tuple(pieces))


def of_slurm(form: Format) -> Format:
    """Return a format with the texts of squeue, which names the state of each condition of a dependency."""
    pieces = (
        replace(piece, column=_OF_SLURM.get(piece.column.heading, piece.column)) for piece in form.pieces
    )
    return replace(form, pieces=tuple(pieces))


def sort_keys(text: str, known: Names = BY_NAME) -> list[tuple[TableColumn, bool]]:
    """Return (column, descending?) of 'P,t,-i' or 'Partition,-JobID'. Raises BadUsage."""
    keys = []
    for part in text.split(","):
        name = part.lstrip("+-")
        try:
            column = by_letter(name) if len(name) <= 1 else by_name(name, known)
        except BadUsage:
            remedy = "Such as: -S P,-i or -S Partition,-JobID; fgq(1) lists the fields."
            raise BadUsage(f"{shown(part)} is nothing to sort by", remedy) from None
        keys.append((column, part.startswith("-")))
    return keys


def expanded(jobs: Iterable[JobInfo]) -> list[JobInfo]:
    """Yield each pending task of an array as a separate job."""
    found = []
    for job in jobs:
        listed = (job.tasks or "").partition("%")[0]
        one_each = tasks(parse_tasks(listed)) if listed else ()
        found += [replace(job, task=task, tasks=None) for task in one_each] if listed else [job]
    return found


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
