"""Format the queue: columns by letter (-o) and by name (-O), and rows of text.

`COLUMNS` declares the name, the attributes and the text of each column. The controller uses them too, for
clients without an interpreter; `cli/queueformat.py` adds columns that only a command can compute.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import clean, column_width, lazy_regex, shown
from fgsched.domain.times import format_limit, format_runtime
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.lifecycle.arrays import parse_tasks, tasks
from fgsched.protocol import JobInfo
from fgsched.views import job as view
from fgsched.views.display import fit, host_name, shown_time
from fgsched.views.job import Value, fields_of, reads

_LONGEST_LIST = 64  # characters of a list of indices
_ORDER = {state: place for place, state in enumerate(JobState)}
_ITEM = lazy_regex(r"%(\.?)([0-9]{0,4})(all\b|.)?", re.DOTALL)
_NAMED = lazy_regex(r"([A-Za-z-]+)(?::(\.?)([0-9]{0,4})(.*))?", re.DOTALL)
_DEFAULT_WIDTH = 20  # of -O

_FIRST = "JobID:.18 ,Partition:.9 ,Name:.8 ,UserName:.8 "
QUEUE = f"{_FIRST},StateCompact:.2 ,TimeUsed:.10 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
LONG = f"{_FIRST},State:.8 ,TimeUsed:.10 ,TimeLimit:.9 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
SLURM = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
START = f"{_FIRST},StateCompact:.2 ,StartTime:.19 ,LikelyStart:.19 ,Known:.7 ,GPUs:.6 ,GpuReason:0"
SLURM_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
SLURM_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


# -- columns ----------------------------------------------------------------------------------------


class JobColumn(NamedTuple):
    """One column: a value of a job, and its text."""

    heading: str
    value: str | Value  # the name of an attribute of JobInfo, or a derived value
    text: Callable[[Any], str] = str
    names: tuple[str, ...] = ()  # of -O
    letter: str = ""  # of -o
    by: str = ""  # the attribute that rows are sorted by; "": the first of `fields`
    is_local: bool = False  # the text depends on the time zone of the reader, or on further answers

    @property
    def fields(self) -> tuple[str, ...]:
        """The attributes of a job that the column needs."""
        return fields_of(self.value)

    def cell(self, job: JobInfo) -> str:
        """Return the text of a job, neither cut nor padded."""
        return self.text(getattr(job, self.value) if isinstance(self.value, str) else self.value(job))

    @property
    def key(self) -> str:
        """The attribute that rows are sorted by."""
        return self.by or self.fields[0]

    def order(self, value: Any) -> Any:
        """Return the sort key for a value of this column."""
        if self.fields[0] == "state":
            return _ORDER[value]
        if isinstance(value, Reason):
            return value.value
        return (value is None, value if value is not None else 0)


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


def _fixed(heading: str, text: str, names: tuple[str, ...], letter: str = "") -> JobColumn:
    """Return a column with one text for all jobs."""
    return JobColumn(heading, "id", lambda number: text, names, letter)


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
    JobColumn("JOBID", view.label, _label, ("JobID", "JobArrayID"), "i"),
    JobColumn("JOBID", "id", str, ("JobIDRaw",), "A"),
    JobColumn("ARRAY_JOB_ID", view.array_number, str, ("ArrayJobID",), "F"),
    JobColumn("ARRAY_TASK_ID", _tasks, str, ("ArrayTaskID",), "K"),
    JobColumn("PARTITION", "partition", str, ("Partition",), "P", by="partition_place"),
    JobColumn("ACCOUNT", "account", _optional, ("Account",), "a"),
    JobColumn("QOS", "qos", _optional, ("QOS",), "q"),
    JobColumn("RESERVATION", "reservation", _optional, ("Reservation",), "v"),
    JobColumn("PRIORITY", "priority", _priority, ("Priority",), "p"),
    JobColumn("PRIORITY", "priority", _priority, ("PriorityLong",), "Q"),
    JobColumn("NICE", "nice", str, ("Nice",), "y"),
    JobColumn("NAME", "name", str, ("Name",), "j"),
    JobColumn("USER", "user", str, ("UserName",), "u"),
    JobColumn("UID", "uid", str, ("UserID",), "U"),
    JobColumn("ST", "state", lambda state: state.code, ("StateCompact",), "t"),
    JobColumn("STATE", "state", value_of, ("State",), "T"),
    JobColumn("TIME", "elapsed", format_runtime, ("TimeUsed",), "M"),
    JobColumn("TIME_LIMIT", "time_limit", format_limit, ("TimeLimit",), "l"),
    JobColumn("TIME_LEFT", view.time_left, _left, ("TimeLeft",), "L"),
    JobColumn("SUBMIT_TIME", "submitted_at", shown_time, ("SubmitTime",), "V", is_local=True),
    JobColumn("START_TIME", "starts_at", shown_time, ("StartTime",), "S", is_local=True),
    JobColumn("LIKELY_START", "likely", shown_time, ("LikelyStart",), is_local=True),
    JobColumn("KNOWN", "known", str, ("Known",), is_local=True),
    JobColumn("END_TIME", view.end, shown_time, ("EndTime",), "e", is_local=True),
    JobColumn("CPUS", "cpus", str, ("NumCPUs",), "C"),
    JobColumn(
        "MIN_MEMORY",
        "host_memory",
        lambda size: format_mebibytes(size) if size else "0",
        ("MinMemory",),
        "m",
    ),
    _fixed("NODES", "1", ("NumNodes", "Nodes"), "D"),
    JobColumn("MIN_CPUS", view.least_cpus, str, ("MinCPUs", "MaxCPUs"), "c"),
    JobColumn("TASKS", "ntasks", str, ("NumTasks",)),
    JobColumn("CPUS_PER_TASK", view.cpus_per_task, str, ("cpus-per-task",)),
    _fixed("MIN_TMP_DISK", "0", ("MinTmpDisk",), "d"),
    JobColumn("OVER_SUBSCRIBE", "cpus", lambda cpus: "OK", ("OverSubscribe",), "h"),
    _fixed("CORES_PER_SOCKET", "*", ("CoresPerSocket",), "I"),
    _fixed("SOCKETS_PER_NODE", "*", ("SocketsPerNode",), "H"),
    _fixed("THREADS_PER_CORE", "*", ("ThreadsPerCore",), "J"),
    _fixed("S:C:T", "*:*:*", ("SCT",), "z"),
    _fixed("REQ_NODES", "", ("ReqNodes",), "n"),
    _fixed("EXC_NODES", "", ("ExcNodes",), "x"),
    _fixed("CONTIGUOUS", "0", ("Contiguous",), "O"),
    _fixed("SELECT_JOBINFO", "", ("SelectJobInfo",), "s"),
    _fixed("LICENSES", "(null)", ("Licenses",), "W"),
    JobColumn("WCKEY", "wckey", lambda key: key or "(null)", ("WCKey",), "w"),
    _fixed("CORE_SPEC", "N/A", ("CoreSpec",), "X"),
    JobColumn("EXEC_HOST", "state", lambda state: host_name() if state.holds else "n/a", ("BatchHost",), "B"),
    _fixed("CLUSTER", "fgsched", ("Cluster", "Origin")),
    JobColumn("GROUP", "gid", str, ("GroupID",)),
    JobColumn("ELIGIBLE_TIME", "eligible_at", shown_time, ("EligibleTime",), is_local=True),
    JobColumn("PENDING_TIME", view.pending_time, lambda seconds: str(int(seconds)), ("PendingTime",)),
    JobColumn("REQUEUE", "requeue", lambda requeue: str(int(requeue)), ("Requeue",)),
    JobColumn("RESTART_COUNT", "restarts", str, ("RestartCnt",)),
    JobColumn("EXIT_CODE", "exit_code", str, ("exit_code",)),
    JobColumn("TRES_ALLOC", view.tres_in_queue, str, ("tres-alloc",)),
    JobColumn("TRES_PER_JOB", "share", _gres, ("tres-per-job",)),
    _fixed("TRES_PER_TASK", "N/A", ("tres-per-task", "tres-per-socket")),
    JobColumn("SCHEDNODES", "started_at", lambda at: host_name() if at else "(null)", ("SchedNodes",), "Y"),
    JobColumn("NODELIST", "state", lambda state: host_name() if state.holds else "", ("NodeList",), "N"),
    JobColumn("NODELIST(REASON)", _host_or_reason, str, ("ReasonList",), "R"),
    JobColumn("REASON", "reason", value_of, ("Reason",), "r"),
    JobColumn("GPUS", "share", _share, ("GPUs",), "G"),
    JobColumn("GPUIDX", "indices", indices, ("GpuIdx",), "g"),
    JobColumn("GPUMEM", "memory", _memory, ("GpuMem",)),
    JobColumn("GPU(REASON)", _gpus_or_reason, str, ("GpuReason",)),
    JobColumn("TRES_PER_NODE", "share", _gres, ("Gres", "tres-per-node"), "b"),
    JobColumn("FEATURES", "gpu_type", _optional, ("Feature",), "f"),
    JobColumn("ENFORCE", "tier", str, ("Enforce",)),
    JobColumn("DEPENDENCY", "dependency", _optional, ("Dependency",), "E"),
    JobColumn("DEADLINE", "deadline", shown_time, ("Deadline",), is_local=True),
    JobColumn("COMMENT", "comment", _optional, ("Comment",), "k"),
    JobColumn("COMMAND", "command", _optional, ("Command",), "o"),
    JobColumn("WORK_DIR", "chdir", _optional, ("WorkDir",), "Z"),
)
_OF_SLURM = {"DEPENDENCY": JobColumn("DEPENDENCY", "unmet", _optional)}  # that squeue shows differently
_BY_LETTER = {column.letter: column for column in COLUMNS if column.letter}
Names = Mapping[str, JobColumn]  # columns by their names in lower case


def named_by(columns: Iterable[JobColumn]) -> dict[str, JobColumn]:
    """Return columns by their names in lower case."""
    return {name.lower(): column for column in columns for name in column.names}


BY_NAME = named_by(COLUMNS)
LATER = {"gpumemused", "gpuutil"}


def by_letter(letter: str) -> JobColumn:
    """Return the column of %letter. Raises BadUsage."""
    if letter not in _BY_LETTER:
        remedy = "There are: all " + " ".join(sorted(_BY_LETTER, key=str.lower))
        raise BadUsage(f"unknown field {shown('%' + letter)} in the format", remedy)
    return _BY_LETTER[letter]


def by_name(name: str, known: Names = BY_NAME) -> JobColumn:
    """Return the column that -O calls `name`, in any case. Raises BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet")
    if name.lower() not in known:
        remedy = "There are: " + " ".join(dict.fromkeys(column.names[0] for column in known.values()))
        raise BadUsage(f"unknown field {shown(name)} in the format", remedy)
    return known[name.lower()]


# -- formats ----------------------------------------------------------------------------------------


_TIMES = frozenset(("TIME", "TIME_LIMIT", "TIME_LEFT", "PENDING_TIME"))


class LinePiece(Struct, frozen=True):
    """One column in a line, with the text after it."""

    column: JobColumn
    width: int = 0  # 0: as wide as it is
    right: bool = False
    after: str = ""

    def fitted(self, text: str) -> str:
        """Return the text of a cell in the width of its column; a time is never cut, as in Slurm."""
        if self.width and len(text) > self.width and self.column.heading in _TIMES:
            return text
        return fit(text, self.width, right=self.right)


class Format(Struct, frozen=True):
    """A line: text, then pieces."""

    before: str
    pieces: tuple[LinePiece, ...]

    @property
    def fields(self) -> list[str]:
        """The attributes that the columns need."""
        return list(dict.fromkeys(field for piece in self.pieces for field in piece.column.fields))

    def header(self) -> str:
        return self._line([piece.column.heading for piece in self.pieces])

    def formatter(self) -> Callable[[JobInfo], str]:
        """Return the function that makes the line of a job; equal cells are formatted once."""
        before, cells = self.before, [_cell(piece) for piece in self.pieces]
        return lambda job: before + "".join([cell(job) for cell in cells])

    def lines(self, jobs: Iterable[JobInfo]) -> Iterator[str]:
        """Return the jobs as lines of text."""
        return map(self.formatter(), jobs)

    def _line(self, cells: Sequence[str]) -> str:
        parts = [self.before]
        for piece, cell in zip(self.pieces, cells, strict=True):
            parts += [fit(cell, piece.width, right=piece.right), piece.after]
        return "".join(parts)


def _cell(piece: LinePiece) -> Callable[[JobInfo], str]:
    """Return the function that makes the text of one column; equal attributes are formatted once."""
    column, known = piece.column, dict[Any, str]()
    attributes = attrgetter(*column.fields)

    def text(job: JobInfo) -> str:
        return piece.fitted(clean(column.cell(job))) + piece.after

    def cached(job: JobInfo) -> str:
        key = attributes(job)
        try:
            return known[key]
        except KeyError:
            cell = known[key] = text(job)
            return cell
        except TypeError:  # a list
            return text(job)

    return text if column.fields[0] == "id" else cached  # an id differs in each row


def percent(text: str) -> Format:
    """Return the format of -o: '%.18i %j', '%all'. Raises BadUsage."""
    first = text.find("%")
    if first < 0:
        raise BadUsage(f"the format {shown(text)} names no field", "Such as: -o '%i %j %T'")
    pieces: list[LinePiece] = []
    at = first
    while at < len(text):
        match = _ITEM.match(text, at)
        assert match, "the text before an item belongs to the one before it"
        end = text.find("%", match.end())
        after = text[match.end() : end if end >= 0 else len(text)]
        if match[3] == "all":
            every = [LinePiece(column, after="|") for column in COLUMNS if column.letter]
            pieces += [*every[:-1], replace(every[-1], after=after)]
        else:
            pieces.append(
                LinePiece(by_letter(match[3] or ""), column_width(match[2] or ""), bool(match[1]), after)
            )
        at = match.end() + len(after)
    return Format(text[:first], tuple(pieces))


def named(text: str, known: Names = BY_NAME) -> Format:
    """Return the format of -O: 'JobID:8,Name:.20,State'. Raises BadUsage."""
    pieces = []
    for part in text.split(","):
        match = _NAMED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field of -O", "Such as: -O JobID:8,Name:.20,State")
        column = by_name(match[1], known)
        width = column_width(match[3]) if match[3] else 0 if match[4] else _DEFAULT_WIDTH
        pieces.append(LinePiece(column, width, bool(match[2]), match[4] or ""))
    return Format("", tuple(pieces))


def of_slurm(form: Format) -> Format:
    """Return a format with the texts of squeue, which names the state of each condition of a dependency."""
    pieces = (replace(one, column=_OF_SLURM.get(one.column.heading, one.column)) for one in form.pieces)
    return replace(form, pieces=tuple(pieces))


def sort_keys(text: str, known: Names = BY_NAME) -> list[tuple[JobColumn, bool]]:
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


def order_of(column: JobColumn) -> Callable[[JobInfo], Any]:
    """Return the sort key of rows by id; the tasks of an array are adjacent."""
    value = attrgetter(column.key)
    if column.fields[:3] != ("id", "array", "task"):
        return lambda job: column.order(value(job))
    return lambda job: (job.array or job.id, -1 if job.task is None else job.task)


def ordered(jobs: list[JobInfo], keys: Sequence[tuple[JobColumn, bool]]) -> list[JobInfo]:
    """Sort jobs by the keys, and jobs with equal keys by id."""
    for column, down in reversed(keys):
        jobs.sort(key=order_of(column), reverse=down)
    return jobs
