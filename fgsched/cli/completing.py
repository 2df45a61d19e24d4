"""Complete values that the controller or a table knows: job ids, partitions, states, fields."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.domain.errors import FgschedError
from fgsched.domain.states import JobState
from fgsched.domain.text import lazy_regex

_NAMES_A_JOB = lazy_regex(r"\b(?:ID|JOB)\b")
_PATIENCE = 1.0  # seconds: a person waits
Value = tuple[str, str]  # with an explanation
Values = Callable[[], Iterable[Value]]


def offer_values(command: click.Command) -> None:
    """Let the parameters of a command and of its subcommands complete the values that we know."""
    for subcommand in getattr(command, "commands", {}).values():
        offer_values(subcommand)
    for param in command.params:
        values = _values_of(command.name or "", param)
        if values is not None:
            param.shell_complete = _completer(values)  # type: ignore[method-assign,assignment]


def _completer(values: Values) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(context: click.Context, begun: str) -> list[CompletionItem]:
        """Complete the last value of a list with commas."""
        before, comma, last = begun.rpartition(",")
        with suppress(FgschedError, OSError):
            return [
                CompletionItem(f"{before}{comma}{value}", help=text)
                for value, text in _of(context, values)()
                if value.lower().startswith(last.lower())
            ]
        return []

    return complete


def _of(context: click.Context, values: Values) -> Values:
    """Return the values that fit the word before: `fgctl show partition` names no job."""
    return _SHOWN.get(str(context.params.get("what")), values) if values is _jobs else values


def _values_of(command: str, param: click.Parameter) -> Values | None:
    """Return the values of a parameter; None: they are not known."""
    if isinstance(param, click.Argument):
        if param.name == "page":
            return _pages
        return _jobs if _NAMES_A_JOB.search(param.metavar or "") else None
    if param.name in ("form", "names") and {"--format", "--Format"} & set(param.opts):
        return {"fgacct": _accounting_fields, "fgq": _queue_fields}.get(command)
    return next((_BY_OPTION[name] for name in param.opts if name in _BY_OPTION), None)


def _asked(call: protocol.Call[protocol.Answer]) -> protocol.Answer:
    with Client(find_paths(), may_start=False, is_prompt=True) as client:
        return client.call(call, patience=_PATIENCE)


def _jobs() -> Iterator[Value]:
    for job in _asked(protocol.ListQueue(fields=("id", "name", "user", "state"))).jobs:
        yield str(job.id), f"{job.name} {job.user} {job.state.value}"


def _users() -> Iterator[Value]:
    jobs = _asked(protocol.ListQueue(fields=("id", "user"))).jobs
    yield from ((user, "") for user in dict.fromkeys(job.user for job in jobs))


def _partitions() -> Iterator[Value]:
    yield from ((partition.partition.name, "") for partition in _asked(protocol.ListPartitions()).partitions)


def _reservations() -> Iterator[Value]:
    yield from (
        (reservation.reservation.name, "") for reservation in _asked(protocol.ListReservations()).reservations
    )


def _gpus() -> Iterator[Value]:
    yield from ((str(gpu.gpu.index), gpu.gpu.model) for gpu in _asked(protocol.ListGpus()).gpus)


def _gpu_types() -> Iterator[Value]:
    site = _asked(protocol.Ping()).site
    yield from ((name, "") for name in dict.fromkeys((*site.aliases, *site.gpu_features)))


def _states() -> Iterator[Value]:
    yield from ((state.value, "") for state in JobState)


def _mail_types() -> Iterator[Value]:
    from fgsched.lifecycle.mail import TYPES

    yield from ((name, "") for name in ("ALL", "NONE", *TYPES))


def _accounting_fields() -> Iterator[Value]:
    from fgsched.views.fields import ACCOUNTS

    yield from ((column.heading, "") for column in ACCOUNTS)


def _queue_fields() -> Iterator[Value]:
    from fgsched.views.fields import COLUMNS

    yield from ((name, "") for column in COLUMNS for name in column.names[:1])


def _pages() -> Iterator[Value]:
    from fgsched.cli import pages

    yield from ((name, "") for name in pages.names())


def _fixed(*values: str) -> Values:
    return lambda: ((value, "") for value in values)


_BY_OPTION: dict[str, Values] = {
    **dict.fromkeys(("--jobs", "--job"), _jobs),
    **dict.fromkeys(("--partition",), _partitions),
    **dict.fromkeys(("--states", "--state"), _states),
    **dict.fromkeys(("--user", "--users"), _users),
    **dict.fromkeys(("--gpu-type", "--type"), _gpu_types),
    "--reservation": _reservations,
    "--mail-type": _mail_types,
    "--open-mode": _fixed("append", "truncate"),
    "--kill-on-invalid-dep": _fixed("yes", "no"),
}
_SHOWN: dict[str, Values] = {"gpu": _gpus, "partition": _partitions, "reservation": _reservations}
