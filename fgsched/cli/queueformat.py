"""Show the queue beyond plain rows: columns that only a command can compute, terminals, the JSON document.

`views/columns.py` declares all other columns; `_KEYS` declares the keys of the JSON document.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import to_builtins

from fgsched.domain.waiting import Cause
from fgsched.protocol import JobInfo
from fgsched.views import columns, display
from fgsched.views import job as view
from fgsched.views.columns import named_by, value_of
from fgsched.views.listing import TableColumn, plain

# -- columns ----------------------------------------------------------------------------------------


def why(cause: Cause | None) -> str:
    """Return why a job does not run, as a sentence."""
    from fgsched.views import wording  # imported only if this column is selected

    return wording.why(cause)


COLUMNS = (
    *columns.COLUMNS,
    TableColumn("WHY", "cause", why, ("Why",)),
    TableColumn("STDOUT", view.stdout, plain, ("STDOUT",)),
    TableColumn("STDERR", view.stderr, plain, ("STDERR",)),
    TableColumn("STDIN", view.stdin, plain, ("STDIN",)),
)
BY_NAME = named_by(COLUMNS)


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
