"""Show the queue beyond plain rows: columns that only a command can compute, terminals, the JSON document.

`views/columns.py` declares all other columns; `_KEYS` declares the keys of the JSON document.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import to_builtins

from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.waiting import Cause
from fgsched.protocol import JobInfo
from fgsched.views import columns, display
from fgsched.views import job as view
from fgsched.views.columns import Format, JobColumn, named_by, value_of

_LEAST = {"id": 12, "name": 8, "user": 6, "partition": 6}  # columns that a narrow terminal leaves of them
_LEAST_REASON = 21
_MINOR = {"PARTITION", "KNOWN", "GPUMEM", "TIME_LIMIT"}  # columns that a narrow terminal leaves out


# -- columns ----------------------------------------------------------------------------------------


def why(cause: Cause | None) -> str:
    """Return why a job does not run, as a sentence."""
    from fgsched.cli import wording  # imported only if this column is selected

    return wording.why(cause)


def _or_empty(text: str | None) -> str:
    return text or ""


COLUMNS = (
    *columns.COLUMNS,
    JobColumn("WHY", "cause", why, ("Why",)),
    JobColumn("STDOUT", view.stdout, _or_empty, ("STDOUT",)),
    JobColumn("STDERR", view.stderr, _or_empty, ("STDERR",)),
    JobColumn("STDIN", view.stdin, _or_empty, ("STDIN",)),
)
BY_NAME = named_by(COLUMNS)


# -- the table on a terminal ------------------------------------------------------------------------


def painted(form: Format, jobs: Iterable[JobInfo]) -> Iterable[str]:
    """Return the jobs as lines of text with coloured states and reasons."""
    from fgsched.cli import terminal  # a table without colours does without

    for job in jobs:
        parts = [form.before]
        for piece in form.pieces:
            text = piece.fitted(clean(piece.column.cell(job)))
            parts += [terminal.painted(text, _colour(piece.column, job)), piece.after]
        yield "".join(parts)


def fitted(form: Format, jobs: Sequence[JobInfo], room: int, *, header: bool, colour: bool) -> list[str]:
    """Return a table of at most `room` terminal columns."""
    from fgsched.cli.terminal import Cell, Head, table

    heads = [
        Head(
            piece.column.heading,
            right=piece.right,
            least=_LEAST.get(piece.column.fields[0], 0) if piece.width else _LEAST_REASON,
            minor=piece.column.heading in _MINOR,
        )
        for piece in form.pieces
    ]
    rows = [
        [Cell(piece.column.cell(job), _colour(piece.column, job) if colour else "") for piece in form.pieces]
        for job in jobs
    ]
    return table(heads, rows, room, header=header)


def _colour(column: JobColumn, job: JobInfo) -> str:
    """Return the colour of a cell: of states and reasons."""
    from fgsched.cli import terminal

    if column.fields == ("state",):
        return terminal.of_state(job.state)
    if "reason" in column.fields and job.state is JobState.PENDING:
        return terminal.of_reason(job.state, job.reason)
    return ""


# -- JSON -------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _or_null(value: Any) -> Any:
    return value or None


class JsonKey(NamedTuple):
    """One key of a job in the JSON document. `value` is called with the attributes `fields`."""

    name: str
    fields: tuple[str, ...]
    value: Callable[..., Any] = _same


_KEYS = (
    JsonKey("job_id", ("id",)),
    JsonKey("array_job_id", ("array",)),
    JsonKey("array_task_id", ("task",)),
    JsonKey("array_tasks", ("tasks",)),
    JsonKey("dependency", ("dependency",), _or_null),
    JsonKey("deadline", ("deadline",)),
    *(JsonKey(name, (name,)) for name in ("name", "partition", "user", "uid")),
    JsonKey("state", ("state",), value_of),
    JsonKey("reason", ("reason",), value_of),
    JsonKey("why", ("cause",), why),
    JsonKey("cause", ("cause",), to_builtins),
    *(JsonKey(name, (name,)) for name in ("account", "qos", "reservation", "nice", "priority")),
    JsonKey("state_code", ("state",), lambda state: state.code),
    JsonKey("elapsed", ("elapsed",)),
    JsonKey("time_limit", ("time_limit",), _or_null),
    *(
        JsonKey(*key)
        for name, field in (("submit", "submitted_at"), ("start", "started_at"), ("end", "ended_at"))
        for key in ((f"{name}_time", (field,)), (f"{name}_time_iso", (field,), display.iso))
    ),
    JsonKey("gpus", ("share",), display.gpu_number),
    JsonKey("gpu_count", ("gpus",)),
    JsonKey("gpu_mem", ("gpus", "memory"), lambda gpus, size: size if gpus else 0),
    JsonKey("gpu_type", ("gpu_type",), _or_null),
    JsonKey("gpu_idx", ("indices",)),
    JsonKey("enforce", ("tier",)),
    JsonKey("gpu_compute", ("gpus", "gpu_compute"), lambda gpus, policy: policy if gpus else None),
    JsonKey("cpus", ("cpus",)),
    JsonKey("mem", ("host_memory",), _or_null),
    JsonKey("comment", ("comment",)),
    JsonKey("work_dir", ("chdir",)),
    JsonKey("command", ("command",)),
)
JSON_FIELDS = tuple(dict.fromkeys(field for key in _KEYS for field in key.fields))


def document(jobs: Iterable[JobInfo]) -> str:
    """Return the queue as a JSON object: {"meta": …, "jobs": [ … ]}."""
    getters = [(key.name, _value_getter(key)) for key in _KEYS]
    return display.document(jobs=[{name: get(job) for name, get in getters} for job in jobs])


def _value_getter(key: JsonKey) -> Callable[[JobInfo], Any]:
    value, attributes = key.value, attrgetter(*key.fields)
    if value is _same:
        return attributes
    if len(key.fields) == 1:
        return lambda job: value(attributes(job))
    return lambda job: value(*attributes(job))
