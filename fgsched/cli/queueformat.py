"""Format the queue for fgq: columns by letter (-o) and by name (-O), rows, and JSON.

`COLUMNS` declares the name, the attributes and the text of each column; `_KEYS` declares the keys of the JSON
document.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from fgsched.cli import display
from fgsched.cli.display import fit, host_name, shown_time
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import JobState, Reason
from fgsched.domain.text import clean, lazy_regex, shown
from fgsched.domain.times import format_limit, format_runtime
from fgsched.domain.units import format_indices, format_mebibytes, format_share
from fgsched.domain.waiting import Cause
from fgsched.jobs.arrays import parse_tasks, tasks
from fgsched.protocol import JobInfo

_LONGEST_LIST = 64  # characters of a list of indices
_ORDER = {state: place for place, state in enumerate(JobState)}
_ITEM = lazy_regex(r"%(\.?)([0-9]{0,4})(all\b|.)?", re.DOTALL)
_NAMED = lazy_regex(r"([A-Za-z-]+)(?::(\.?)([0-9]{0,4})(.*))?", re.DOTALL)
_DEFAULT_WIDTH = 20  # of -O
_LEAST = {"id": 12, "name": 8, "user": 6, "partition": 6}  # columns that a narrow terminal leaves of them
_LEAST_REASON = 21
_MINOR = {"PARTITION", "KNOWN", "GPUMEM", "TIME_LIMIT"}  # columns that a narrow terminal leaves out

_FIRST = "JobID:.18 ,Partition:.9 ,Name:.8 ,UserName:.8 "
QUEUE = f"{_FIRST},StateCompact:.2 ,TimeUsed:.10 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
LONG = f"{_FIRST},State:.8 ,TimeUsed:.10 ,TimeLimit:.9 ,GPUs:.6 ,GpuMem:.9 ,GpuReason:0"
SLURM = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
START = f"{_FIRST},StateCompact:.2 ,StartTime:.19 ,LikelyStart:.19 ,Known:.7 ,GPUs:.6 ,GpuReason:0"
SLURM_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
SLURM_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"


# -- columns ----------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column. `show` is called with the attributes `fields` of a job."""

    heading: str
    fields: tuple[str, ...]
    show: Callable[..., str]
    names: tuple[str, ...] = ()  # of -O
    letter: str = ""  # of -o
    by: str = ""  # the attribute that rows are sorted by; "": the first of `fields`

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


def _value(word: JobState | Reason) -> str:
    return word.word


def _end(ended: float | None, started: float | None, limit: int) -> str:
    """Return the end of a job, or the latest possible end of a running one."""
    return shown_time(ended or (started + limit if started and limit else None))


def _left(limit: int, elapsed: float) -> str:
    return format_runtime(limit - elapsed) if limit else "UNLIMITED"


def _share(units: int | None) -> str:
    return "-" if units is None else format_share(units)


def _memory(size: int | None) -> str:
    return format_mebibytes(size) if size else "-"


def indices(held: Sequence[int]) -> str:
    """Return GPU indices as a list, cut if it is long."""
    return _cut(format_indices(held))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LIST else text[: _LONGEST_LIST - 1] + "…"


def _cards(state: JobState, reason: Reason, held: Sequence[int]) -> str:
    return (indices(held) or "-") if state.holds else f"({reason.word})"


def _host_or_reason(state: JobState, reason: Reason) -> str:
    return host_name() if state.holds else f"({reason.word})"


def _gres(units: int | None) -> str:
    return f"gpu:{_share(units)}" if units != 0 else "N/A"


def tres(cpus: int, host_memory: int, share: int | None) -> str:
    """Return the resources of a job in Slurm's form: cpu=4,mem=8192M,node=1,billing=4,gres/gpu=0.5.

    Args:
        host_memory: bytes.
        share: ten-thousandths of a GPU.
    """
    memory = f"mem={format_mebibytes(host_memory)}," if host_memory else ""
    gpus = f",gres/gpu={format_share(share)}" if share else ""
    return f"cpu={cpus},{memory}node=1,billing={cpus}{gpus}"


def _each(cpus: int, ntasks: int) -> str:
    return str(max(1, cpus // ntasks))


def _pending(submitted: float, started: float | None) -> str:
    return str(int(max(0.0, (started or time.time()) - submitted)))


def _priority(value: float | None) -> str:
    """Return the priority of a pending job; other jobs have none."""
    return "0" if value is None else str(round(value))


def _optional(text: str | None) -> str:
    return text or "(null)"


def job_id(number: int, array: int | None, task: int | None, rest: str | None) -> str:
    """Return 12, 12_3, or 12_[4-15%2] for pending tasks; a long list is cut."""
    if array is None:
        return str(number)
    return f"{array}_{task}" if task is not None else f"{array}_[{_cut(rest or '')}]"


def _task(task: int | None, rest: str | None) -> str:
    return str(task) if task is not None else "N/A" if rest is None else _cut(rest)


def why(cause: Cause | None) -> str:
    """Return why a job does not run, as a sentence."""
    from fgsched.cli import wording  # imported only if this column is selected

    return wording.why(cause)


_OF_FILES = ("id", "array", "task", "user", "uid", "restarts", "allocated", "request", "is_private")


def _files(values: Sequence[Any]) -> tuple[str, str, str]:
    """Return stdin, stdout and stderr of a job with these values of _OF_FILES; "" if it is private."""
    from fgsched.cli.jobfiles import files_of  # imported only if these columns are selected

    job = JobInfo(**dict(zip(_OF_FILES, values, strict=True)))
    if job.is_private:
        return "", "", ""
    found = files_of(job)
    return found.stdin, found.stdout, found.stderr


COLUMNS = (
    Column("JOBID", ("id", "array", "task", "tasks"), job_id, ("JobID", "JobArrayID"), "i"),
    Column("JOBID", ("id",), str, ("JobIDRaw",), "A"),
    Column("ARRAY_JOB_ID", ("id", "array"), lambda job, array: str(array or job), ("ArrayJobID",), "F"),
    Column("ARRAY_TASK_ID", ("task", "tasks"), _task, ("ArrayTaskID",), "K"),
    Column("PARTITION", ("partition",), str, ("Partition",), "P", by="partition_place"),
    Column("ACCOUNT", ("account",), _optional, ("Account",), "a"),
    Column("QOS", ("qos",), _optional, ("QOS",), "q"),
    Column("RESERVATION", ("reservation",), _optional, ("Reservation",), "v"),
    Column("PRIORITY", ("priority",), _priority, ("Priority",), "p"),
    Column("PRIORITY", ("priority",), _priority, ("PriorityLong",), "Q"),
    Column("NICE", ("nice",), str, ("Nice",), "y"),
    Column("NAME", ("name",), str, ("Name",), "j"),
    Column("USER", ("user",), str, ("UserName",), "u"),
    Column("UID", ("uid",), str, ("UserID",), "U"),
    Column("ST", ("state",), lambda state: state.code, ("StateCompact",), "t"),
    Column("STATE", ("state",), _value, ("State",), "T"),
    Column("TIME", ("elapsed",), format_runtime, ("TimeUsed",), "M"),
    Column("TIME_LIMIT", ("time_limit",), format_limit, ("TimeLimit",), "l"),
    Column("TIME_LEFT", ("time_limit", "elapsed"), _left, ("TimeLeft",), "L"),
    Column("SUBMIT_TIME", ("submitted_at",), shown_time, ("SubmitTime",), "V"),
    Column("START_TIME", ("started_at",), shown_time, ("StartTime",), "S"),
    Column("LIKELY_START", ("likely",), shown_time, ("LikelyStart",)),
    Column("KNOWN", ("known",), str, ("Known",)),
    Column("END_TIME", ("ended_at", "started_at", "time_limit"), _end, ("EndTime",), "e"),
    Column("CPUS", ("cpus",), str, ("NumCPUs",), "C"),
    Column(
        "MIN_MEMORY",
        ("host_memory",),
        lambda size: format_mebibytes(size) if size else "0",
        ("MinMemory",),
        "m",
    ),
    Column("NODES", ("id",), lambda job: "1", ("NumNodes", "Nodes"), "D"),
    Column("MIN_CPUS", ("cpus",), str, ("MinCPUs", "MaxCPUs"), "c"),
    Column("TASKS", ("ntasks",), str, ("NumTasks",)),
    Column("CPUS_PER_TASK", ("cpus", "ntasks"), _each, ("cpus-per-task",)),
    Column("MIN_TMP_DISK", ("id",), lambda job: "0", ("MinTmpDisk",), "d"),
    Column("OVER_SUBSCRIBE", ("cpus",), lambda cpus: "OK", ("OverSubscribe",), "h"),
    Column("CORES_PER_SOCKET", ("id",), lambda job: "*", ("CoresPerSocket",), "I"),
    Column("SOCKETS_PER_NODE", ("id",), lambda job: "*", ("SocketsPerNode",), "H"),
    Column("THREADS_PER_CORE", ("id",), lambda job: "*", ("ThreadsPerCore",), "J"),
    Column("S:C:T", ("id",), lambda job: "*:*:*", ("SCT",), "z"),
    Column("REQ_NODES", ("id",), lambda job: "", ("ReqNodes",), "n"),
    Column("EXC_NODES", ("id",), lambda job: "", ("ExcNodes",), "x"),
    Column("CONTIGUOUS", ("id",), lambda job: "0", ("Contiguous",), "O"),
    Column("SELECT_JOBINFO", ("id",), lambda job: "", ("SelectJobInfo",), "s"),
    Column("LICENSES", ("id",), lambda job: "(null)", ("Licenses",), "W"),
    Column("WCKEY", ("wckey",), lambda key: key or "(null)", ("WCKey",), "w"),
    Column("CORE_SPEC", ("id",), lambda job: "N/A", ("CoreSpec",), "X"),
    Column("EXEC_HOST", ("state",), lambda state: host_name() if state.holds else "n/a", ("BatchHost",), "B"),
    Column("CLUSTER", ("id",), lambda job: "fgsched", ("Cluster", "Origin")),
    Column("GROUP", ("gid",), str, ("GroupID",)),
    Column("ELIGIBLE_TIME", ("eligible_at",), shown_time, ("EligibleTime",)),
    Column("PENDING_TIME", ("submitted_at", "started_at"), _pending, ("PendingTime",)),
    Column("REQUEUE", ("requeue",), lambda requeue: str(int(requeue)), ("Requeue",)),
    Column("RESTART_COUNT", ("restarts",), str, ("RestartCnt",)),
    Column("EXIT_CODE", ("exit_code",), str, ("exit_code",)),
    Column("TRES_ALLOC", ("cpus", "host_memory", "share"), tres, ("tres-alloc",)),
    Column("TRES_PER_JOB", ("share",), _gres, ("tres-per-job",)),
    Column("TRES_PER_TASK", ("id",), lambda job: "N/A", ("tres-per-task", "tres-per-socket")),
    Column("SCHEDNODES", ("started_at",), lambda at: host_name() if at else "(null)", ("SchedNodes",), "Y"),
    Column("NODELIST", ("state",), lambda state: host_name() if state.holds else "", ("NodeList",), "N"),
    Column("NODELIST(REASON)", ("state", "reason"), _host_or_reason, ("ReasonList",), "R"),
    Column("REASON", ("reason",), _value, ("Reason",), "r"),
    Column("WHY", ("cause",), why, ("Why",)),
    Column("GPUS", ("share",), _share, ("GPUs",), "G"),
    Column("GPUIDX", ("indices",), indices, ("GpuIdx",), "g"),
    Column("GPUMEM", ("memory",), _memory, ("GpuMem",)),
    Column("GPU(REASON)", ("state", "reason", "indices"), _cards, ("GpuReason",)),
    Column("TRES_PER_NODE", ("share",), _gres, ("Gres", "tres-per-node"), "b"),
    Column("FEATURES", ("gpu_type",), _optional, ("Feature",), "f"),
    Column("ENFORCE", ("tier",), str, ("Enforce",)),
    Column("DEPENDENCY", ("dependency",), _optional, ("Dependency",), "E"),
    Column("DEADLINE", ("deadline",), shown_time, ("Deadline",)),
    Column("COMMENT", ("comment",), _optional, ("Comment",), "k"),
    Column("COMMAND", ("command",), _optional, ("Command",), "o"),
    Column("STDOUT", _OF_FILES, lambda *values: _files(values)[1], ("STDOUT",)),
    Column("STDERR", _OF_FILES, lambda *values: _files(values)[2], ("STDERR",)),
    Column("STDIN", _OF_FILES, lambda *values: _files(values)[0], ("STDIN",)),
    Column("WORK_DIR", ("chdir",), _optional, ("WorkDir",), "Z"),
)
_BY_LETTER = {column.letter: column for column in COLUMNS if column.letter}
_BY_NAME = {name.lower(): column for column in COLUMNS for name in column.names}
LATER = {"gpumemused", "gpuutil"}


def by_letter(letter: str) -> Column:
    """Return the column of %letter. Raises BadUsage."""
    if letter not in _BY_LETTER:
        remedy = "There are: all " + " ".join(sorted(_BY_LETTER, key=str.lower))
        raise BadUsage(f"unknown field {shown('%' + letter)} in the format", remedy)
    return _BY_LETTER[letter]


def by_name(name: str) -> Column:
    """Return the column that -O calls `name`, in any case. Raises BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet")
    if name.lower() not in _BY_NAME:
        remedy = "There are: " + " ".join(column.names[0] for column in COLUMNS if column.names)
        raise BadUsage(f"unknown field {shown(name)} in the format", remedy)
    return _BY_NAME[name.lower()]


# -- formats ----------------------------------------------------------------------------------------


class Piece(Struct, frozen=True):
    """One column in a line, with the text after it."""

    column: Column
    width: int = 0  # 0: as wide as it is
    right: bool = False
    after: str = ""


class Format(Struct, frozen=True):
    """A line: text, then pieces."""

    before: str
    pieces: tuple[Piece, ...]

    @property
    def fields(self) -> list[str]:
        """The attributes that the columns need."""
        return list(dict.fromkeys(field for piece in self.pieces for field in piece.column.fields))

    def header(self) -> str:
        return self._line([piece.column.heading for piece in self.pieces])

    def lines(self, jobs: Iterable[JobInfo]) -> Iterable[str]:
        """Return the jobs as lines of text."""
        getters = [_getter(piece.column) for piece in self.pieces]
        form = self._template()
        for job in jobs:
            cells = [get(job) for get in getters]
            line = form.format(*cells)
            # Nearly every line is plain; then one format call pads and cuts all of it.
            plain = line.isascii() and line.isprintable()
            yield line if plain else self._line([clean(cell) for cell in cells])

    def painted(self, jobs: Iterable[JobInfo]) -> Iterable[str]:
        """Return the jobs as lines of text with coloured states and reasons."""
        from fgsched.cli import terminal  # a table without colours does without

        for job in jobs:
            parts = [self.before]
            for piece in self.pieces:
                text = fit(clean(_getter(piece.column)(job)), piece.width, right=piece.right)
                parts += [terminal.painted(text, _colour(piece.column, job)), piece.after]
            yield "".join(parts)

    def fitted(self, jobs: Sequence[JobInfo], room: int, *, header: bool, colour: bool) -> list[str]:
        """Return a table of at most `room` terminal columns."""
        from fgsched.cli.terminal import Cell, Head, table

        heads = [
            Head(
                piece.column.heading,
                right=piece.right,
                least=_LEAST.get(piece.column.fields[0], 0) if piece.width else _LEAST_REASON,
                minor=piece.column.heading in _MINOR,
            )
            for piece in self.pieces
        ]
        getters = [_getter(piece.column) for piece in self.pieces]
        rows = [
            [
                Cell(get(job), _colour(piece.column, job) if colour else "")
                for get, piece in zip(getters, self.pieces, strict=True)
            ]
            for job in jobs
        ]
        return table(heads, rows, room, header=header)

    def _template(self) -> str:
        parts = [_escaped(self.before)]
        for piece in self.pieces:
            align = ">" if piece.right else "<"
            parts.append(f"{{:{align}{piece.width}.{piece.width}}}" if piece.width else "{}")
            parts.append(_escaped(piece.after))
        return "".join(parts)

    def _line(self, cells: Sequence[str]) -> str:
        parts = [self.before]
        for piece, cell in zip(self.pieces, cells, strict=True):
            parts += [fit(cell, piece.width, right=piece.right), piece.after]
        return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _getter(column: Column) -> Callable[[JobInfo], str]:
    show, values = column.show, attrgetter(*column.fields)
    if len(column.fields) == 1:
        return lambda job: show(values(job))
    return lambda job: show(*values(job))


def _colour(column: Column, job: JobInfo) -> str:
    """Return the colour of a cell: of states and reasons."""
    from fgsched.cli import terminal

    if column.fields == ("state",):
        return terminal.of_state(job.state)
    if "reason" in column.fields and job.state is JobState.PENDING:
        return terminal.of_reason(job.state, job.reason)
    return ""


def percent(text: str) -> Format:
    """Return the format of -o: '%.18i %j', '%all'. Raises BadUsage."""
    first = text.find("%")
    if first < 0:
        raise BadUsage(f"the format {shown(text)} names no field", "Such as: -o '%i %j %T'")
    pieces: list[Piece] = []
    at = first
    while at < len(text):
        match = _ITEM.match(text, at)
        assert match, "the text before an item belongs to the one before it"
        end = text.find("%", match.end())
        after = text[match.end() : end if end >= 0 else len(text)]
        if match[3] == "all":
            every = [Piece(column, after="|") for column in COLUMNS if column.letter]
            pieces += [*every[:-1], replace(every[-1], after=after)]
        else:
            pieces.append(Piece(by_letter(match[3] or ""), int(match[2] or 0), bool(match[1]), after))
        at = match.end() + len(after)
    return Format(text[:first], tuple(pieces))


def named(text: str) -> Format:
    """Return the format of -O: 'JobID:8,Name:.20,State'. Raises BadUsage."""
    pieces = []
    for part in text.split(","):
        match = _NAMED.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field of -O", "Such as: -O JobID:8,Name:.20,State")
        column = by_name(match[1])
        width = int(match[3]) if match[3] else 0 if match[4] else _DEFAULT_WIDTH
        pieces.append(Piece(column, width, bool(match[2]), match[4] or ""))
    return Format("", tuple(pieces))


def sort_keys(text: str) -> list[tuple[Column, bool]]:
    """Return (column, descending?) of 'P,t,-i' or 'Partition,-JobID'. Raises BadUsage."""
    keys = []
    for part in text.split(","):
        name = part.lstrip("+-")
        try:
            column = by_letter(name) if len(name) <= 1 else by_name(name)
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


def _order(column: Column) -> Callable[[JobInfo], Any]:
    """Return the sort key of rows by id; the tasks of an array are adjacent."""
    value = attrgetter(column.key)
    if column.fields[:3] != ("id", "array", "task"):
        return lambda job: column.order(value(job))
    return lambda job: (job.array or job.id, -1 if job.task is None else job.task)


def ordered(jobs: list[JobInfo], keys: Sequence[tuple[Column, bool]]) -> list[JobInfo]:
    """Sort jobs by the keys, and jobs with equal keys by id."""
    for column, down in reversed(keys):
        jobs.sort(key=_order(column), reverse=down)
    return jobs


# -- JSON -------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _or_null(value: Any) -> Any:
    return value or None


class Key(NamedTuple):
    """One key of a job in the JSON document. `value` is called with the attributes `fields`."""

    name: str
    fields: tuple[str, ...]
    value: Callable[..., Any] = _same


_KEYS = (
    Key("job_id", ("id",)),
    Key("array_job_id", ("array",)),
    Key("array_task_id", ("task",)),
    Key("array_tasks", ("tasks",)),
    Key("dependency", ("dependency",), _or_null),
    Key("deadline", ("deadline",)),
    *(Key(name, (name,)) for name in ("name", "partition", "user", "uid")),
    Key("state", ("state",), _value),
    Key("reason", ("reason",), _value),
    Key("why", ("cause",), why),
    Key("cause", ("cause",), to_builtins),
    *(Key(name, (name,)) for name in ("account", "qos", "reservation", "nice", "priority")),
    Key("state_code", ("state",), lambda state: state.code),
    Key("elapsed", ("elapsed",)),
    Key("time_limit", ("time_limit",), _or_null),
    *(
        Key(*key)
        for name, field in (("submit", "submitted_at"), ("start", "started_at"), ("end", "ended_at"))
        for key in ((f"{name}_time", (field,)), (f"{name}_time_iso", (field,), display.iso))
    ),
    Key("gpus", ("share",), display.gpu_number),
    Key("gpu_count", ("gpus",)),
    Key("gpu_mem", ("gpus", "memory"), lambda gpus, size: size if gpus else 0),
    Key("gpu_type", ("gpu_type",), _or_null),
    Key("gpu_idx", ("indices",)),
    Key("enforce", ("tier",)),
    Key("gpu_compute", ("gpus", "gpu_compute"), lambda gpus, policy: policy if gpus else None),
    Key("cpus", ("cpus",)),
    Key("mem", ("host_memory",), _or_null),
    Key("comment", ("comment",)),
    Key("work_dir", ("chdir",)),
    Key("command", ("command",)),
)
JSON_FIELDS = tuple(dict.fromkeys(field for key in _KEYS for field in key.fields))


def document(jobs: Iterable[JobInfo]) -> str:
    """Return the queue as a JSON object: {"meta": …, "jobs": [ … ]}."""
    getters = [(key.name, _value_getter(key)) for key in _KEYS]
    return display.document(jobs=[{name: get(job) for name, get in getters} for job in jobs])


def _value_getter(key: Key) -> Callable[[JobInfo], Any]:
    value, attributes = key.value, attrgetter(*key.fields)
    if value is _same:
        return attributes
    if len(key.fields) == 1:
        return lambda job: value(attributes(job))
    return lambda job: value(*attributes(job))
