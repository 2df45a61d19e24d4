"""The columns that fgq can show: letter and name, heading, and how the controller's fields become text."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import convert

from fgsched.cli.cells import clean, shown_time
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import JobState
from fgsched.domain.text import shown
from fgsched.domain.times import format_limit, format_runtime
from fgsched.domain.units import format_indices, format_mebibytes, format_share

_LONGEST_LIST = 64  # bytes of an index list
_CODES = {state.value: state.code for state in JobState}
_ORDER = {state.value: place for place, state in enumerate(JobState)}
_HOLDING = {state.value for state in JobState if state.holds}


@dataclass(frozen=True, slots=True)
class Column:
    """`show` is called with the values of `fields`."""

    heading: str
    fields: tuple[str, ...]
    show: Callable[..., str]
    names: tuple[str, ...] = ()  # of -O
    letter: str = ""  # of -o
    by: str = ""  # the field that rows are sorted by; "": the first of `fields`

    @property
    def key(self) -> str:
        """The field that rows are sorted by."""
        return self.by or self.fields[0]

    def order(self, value: Any) -> Any:
        """What rows are sorted by, given that field."""
        if self.fields[0] == "state":
            return _ORDER[value]
        return (value is None, value if value is not None else 0)


def _end(ended: float | None, started: float | None, limit: int) -> str:
    """When it ended, or will have to."""
    return shown_time(ended or (started + limit if started and limit else None))


def _left(limit: int, elapsed: float) -> str:
    return format_runtime(limit - elapsed) if limit else "UNLIMITED"


def _share(units: int | None) -> str:
    return "-" if units is None else format_share(units)


def _memory(size: int | None) -> str:
    return format_mebibytes(size) if size else "-"


def indices(held: list[int]) -> str:
    """GPU indices; a list that is long is cut."""
    return _cut(format_indices(held))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LIST else text[: _LONGEST_LIST - 1] + "…"


def _cards(state: str, reason: str, held: list[int]) -> str:
    return (indices(held) or "-") if state in _HOLDING else f"({reason})"


def host() -> str:
    """The short name of this host, which is the only one."""
    return os.uname().nodename.split(".")[0]


def _host_or_reason(state: str, reason: str) -> str:
    return host() if state in _HOLDING else f"({reason})"


def _gres(units: int | None) -> str:
    return f"gpu:{_share(units)}" if units != 0 else "N/A"


def _priority(value: float | None) -> str:
    """Of a job that waits; the others have none any more."""
    return "0" if value is None else str(round(value))


def _optional(text: str | None) -> str:
    return text or "(null)"


def job_id(number: int, array: int | None, task: int | None, rest: str | None) -> str:
    """12, 12_3, or 12_[4-15%2] for the tasks that wait; a list that is long is cut."""
    if array is None:
        return str(number)
    return f"{array}_{task}" if task is not None else f"{array}_[{_cut(rest or '')}]"


def _task(task: int | None, rest: str | None) -> str:
    return str(task) if task is not None else "N/A" if rest is None else _cut(rest)


def why_of(cause: Any) -> str:
    """Return why a job does not run, as a sentence."""
    from fgsched.cli import wording
    from fgsched.domain.waiting import Cause

    return wording.why(None if cause is None else convert(cause, Cause))


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
    Column("ST", ("state",), lambda state: _CODES[state], ("StateCompact",), "t"),
    Column("STATE", ("state",), str, ("State",), "T"),
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
    Column("NODES", ("id",), lambda job: "1", ("NumNodes",), "D"),
    Column("SCHEDNODES", ("started_at",), lambda at: host() if at else "(null)", ("SchedNodes",), "Y"),
    Column("NODELIST", ("state",), lambda state: host() if state in _HOLDING else "", ("NodeList",), "N"),
    Column("NODELIST(REASON)", ("state", "reason"), _host_or_reason, ("ReasonList",), "R"),
    Column("REASON", ("reason",), str, ("Reason",), "r"),
    Column("WHY", ("cause",), why_of, ("Why",)),
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
    Column("WORK_DIR", ("chdir",), _optional, ("WorkDir",), "Z"),
)
_BY_LETTER = {column.letter: column for column in COLUMNS if column.letter}
_BY_NAME = {name.lower(): column for column in COLUMNS for name in column.names}
LATER = {"gpumemused", "gpuutil"}


def by_letter(letter: str) -> Column:
    """The column of %letter, or BadUsage."""
    if letter not in _BY_LETTER:
        remedy = "There are: all " + " ".join(sorted(_BY_LETTER, key=str.lower))
        raise BadUsage(f"unknown field {shown('%' + letter)} in the format", remedy)
    return _BY_LETTER[letter]


def by_name(name: str) -> Column:
    """The column that -O calls `name`, in any case, or BadUsage."""
    if name.lower() in LATER:
        raise BadUsage(f"{name}: not supported yet")
    if name.lower() not in _BY_NAME:
        remedy = "There are: " + " ".join(column.names[0] for column in COLUMNS if column.names)
        raise BadUsage(f"unknown field {shown(name)} in the format", remedy)
    return _BY_NAME[name.lower()]


def safe(cells: list[str]) -> list[str]:
    """The cells of one row, fit for a terminal."""
    return [clean(cell) for cell in cells]
