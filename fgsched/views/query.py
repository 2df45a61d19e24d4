"""Turn the options of fgq into a request for jobs and a format of rows."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from fgsched import protocol
from fgsched.domain.errors import BadUsage
from fgsched.domain.states import JobState
from fgsched.domain.text import shown
from fgsched.views import choices, columns
from fgsched.views.columns import QueueColumns
from fgsched.views.display import host_name
from fgsched.views.job import EXPECTED
from fgsched.views.listing import Format, TableColumn
from fgsched.views.options import QueueOptions

_SORT, _SORT_STARTS = "P,t,-p,i", "S,i"
_OF_CLIENT = (*EXPECTED, "step")  # attributes that the client fills in
_NAMES = ("id", "array", "task", "tasks")  # the parts of a job's name
_MOST_JOBS = 100_000  # that a line may name: the controller reads it, too


class QueueReader(Protocol):
    """The process that reads the queue."""

    name: str  # fgq or squeue
    default_format: str  # value of SQUEUE_FORMAT
    columns: QueueColumns

    def users(self, texts: Iterable[str]) -> list[str]:
        """Return user names; a uid is looked up. Raises BadUsage for an unknown user."""

    def me(self) -> str:
        """Return the name of the user."""


class Query(Struct, frozen=True):
    """A request for jobs, and how they are shown."""

    call: protocol.ListQueue
    form: Format
    keys: list[tuple[TableColumn, bool]]  # (column, descending?) of the order
    starts: bool  # the expected starts are wanted


def query(
    options: QueueOptions,
    operands: Sequence[str],
    reader: QueueReader,
    *,
    fields: Sequence[str] = (),
) -> Query:
    """Return the query of these options.

    `fields`: the attributes of a document; empty: those of the columns. Raises BadUsage.
    """
    if operands:
        word = shown(operands[0])
        raise BadUsage(f"unexpected extra argument {word}", "Name jobs with -j, or after --why.")
    form = _format(options, reader)
    keys = columns.sort_keys(options.sort or (_SORT_STARTS if options.start else _SORT), reader.columns)
    wanted = dict.fromkeys([*(fields or form.fields), *(column.key for column, _ in keys), *_NAMES])
    starts = options.start or not wanted.keys().isdisjoint(EXPECTED)
    if starts:
        wanted["started_at"] = None
    call = protocol.ListQueue(
        fields=[name for name in wanted if name not in _OF_CLIENT],
        where=_where(options, reader),
        recent=options.recent or any(state.is_final for state in choices.states(options.states)),
    )
    return Query(call, form, keys, starts)


def _format(options: QueueOptions, reader: QueueReader) -> Format:
    """Return the row format that the options select."""
    form, names, long, as_slurm = options.form, options.names, options.long, options.as_slurm
    known = reader.columns
    if long and options.start:
        raise BadUsage("-l and --start each choose the columns; give one of them")
    if sum((form is not None, names is not None, as_slurm or long)) > 1:
        raise BadUsage("-o, -O, -l and --slurm-columns each choose the columns; give one of them")
    if names is not None:
        return columns.named(names, known)
    if form is not None:
        return columns.percent(form, known)
    if reader.name == "squeue" and reader.default_format and not (long or options.start):
        return columns.percent(reader.default_format, known)
    if as_slurm or reader.name == "squeue":
        return columns.percent(_slurm(options), known)
    if options.start:
        return columns.named(columns.START)
    return columns.named(columns.LONG if long else columns.QUEUE)


def _slurm(options: QueueOptions) -> str:
    if options.start:
        return columns.SLURM_START
    return columns.SLURM_LONG if options.long else columns.SLURM


def _where(options: QueueOptions, reader: QueueReader) -> protocol.Where:
    states = list(choices.states(options.states)) if options.states else None
    if options.nodelist is not None:
        _check_host(options.nodelist)
        states = [state for state in states or JobState if state is not JobState.PENDING]  # on no node
    if options.start and states is None:
        states = [JobState.PENDING]
    return protocol.Where(
        id=choices.ids(options.jobs, _MOST_JOBS) or None,
        user=[*reader.users(options.user), *([reader.me()] if options.me else [])] or None,
        state=states,
        partition=choices.words(options.partition) or None,
        name=choices.words(options.name) or None,
        account=choices.words(options.account) or None,
        qos=choices.words(options.qos) or None,
    )


def _check_host(text: str) -> None:
    """Refuse a list without this host. Raises BadUsage."""
    names = [name.partition(".")[0] for name in text.split(",")]
    if "[" not in text and host_name() not in names and "localhost" not in names:
        raise BadUsage(f"Invalid node name {shown(text)}", f"This host is {host_name()}.")


def absent(names: Iterable[choices.Name], jobs: Sequence[protocol.JobInfo]) -> list[choices.Name]:
    """Return the named jobs that are not among `jobs`."""
    ids = {job.id for job in jobs} | {job.array for job in jobs}
    return [name for name in names if name not in ids and not (isinstance(name, str) and jobs)]
