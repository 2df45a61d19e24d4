"""fgprio: show the priority of pending jobs and its factors, as sprio does."""

from collections.abc import Iterable, Sequence
from typing import Any

import click
from msgspec import to_builtins

from fgsched import protocol
from fgsched.cli.command import listed, run, warn, write
from fgsched.cli.terminal import listing
from fgsched.client import Client, find_paths
from fgsched.domain.errors import Exit
from fgsched.domain.policy import Weights
from fgsched.domain.units import format_indices, parse_ids
from fgsched.protocol import PriorityInfo
from fgsched.views import choices, display
from fgsched.views.listing import LEAST_TEXT, TableColumn
from fgsched.views.options import PRIORITY, PriorityOptions

_NAMES = ("age", "fairshare", "size", "partition", "qos")


def _number(value: float) -> str:
    return str(round(value))


_FRONT = (
    TableColumn("JOBID", lambda job: str(job.id)),
    TableColumn("PARTITION", lambda job: job.partitions, least=LEAST_TEXT),
)
_LONG = (
    TableColumn("USER", lambda job: job.user, least=LEAST_TEXT, is_minor=True),
    TableColumn("ACCOUNT", lambda job: job.account or "(null)", least=LEAST_TEXT, is_minor=True),
    TableColumn("QOSNAME", lambda job: job.qos_name, least=LEAST_TEXT, is_minor=True),
)
_FACTORS = (  # of priorities and of weights
    TableColumn("AGE", lambda factors: factors.age, _number, is_minor=True),
    TableColumn("FAIRSHARE", lambda factors: factors.fairshare, _number, is_minor=True),
    TableColumn("JOBSIZE", lambda factors: factors.size, _number, is_minor=True),
    TableColumn("PARTPRIO", lambda factors: factors.partition, _number, is_minor=True),
    TableColumn("QOS", lambda factors: factors.qos, _number, is_minor=True),
)
_PRIORITY = TableColumn("PRIORITY", lambda job: job.priority, _number)
_NICE = TableColumn("NICE", lambda job: str(job.nice), is_minor=True)


@listed(PRIORITY, epilog="fgprio -u ann")
def fgprio(options: PriorityOptions) -> int:
    """Show the priority of pending jobs and its factors."""
    ids = [job for text in options.jobs for job in parse_ids(text)]
    with Client(find_paths()) as client:
        priorities = client.call(protocol.ListPriorities())
    jobs = _chosen(priorities.jobs, ids, options)
    if options.as_json:
        write(display.document(jobs=[_record(job) for job in jobs], weights=to_builtins(priorities.weights)))
    elif options.weights:
        write(_weights(priorities.weights, header=not options.noheader))
    else:
        factors = [_normed(column, priorities.weights) if options.norm else column for column in _FACTORS]
        factors = [_PRIORITY, *_of_caller(factors), _NICE]
        columns = [*_FRONT, *(_LONG if options.long else ()), *factors]
        write(listing(columns, jobs, header=not options.noheader))
    missing = sorted(set(ids) - {job.id for job in priorities.jobs})
    if missing:
        warn("fgprio", f"no pending job: {format_indices(missing)}", "fgq lists the jobs there are.")
        return Exit.NO_SUCH_JOB
    return Exit.DONE


def _chosen(jobs: Iterable[PriorityInfo], ids: Sequence[int], options: PriorityOptions) -> list[PriorityInfo]:
    """Return the chosen jobs by descending priority."""
    users, partitions = choices.users(options.user), choices.words(options.partition)
    priorities = [
        job
        for job in jobs
        if (not ids or job.id in ids)
        and (not users or job.user in users)
        and (not partitions or set(partitions) & set(job.partitions.split(",")))
    ]
    return sorted(priorities, key=lambda job: (-job.priority, job.id))


def _normed(column: TableColumn, weights: Weights) -> TableColumn:
    """Return a column of a factor from 0 to 1, without its weight."""
    value: Any = column.value
    weight = value(weights)
    return column._replace(text=lambda part: f"{part / weight if weight else 0.0:.7f}")


def _weights(weights: Weights, *, header: bool) -> str:
    factors = [column._replace(text=str) for column in _FACTORS]
    columns = [TableColumn("", lambda row: "Weights"), *_of_caller(factors)]
    return listing(columns, [weights], header=header)


def _of_caller(columns: Iterable[TableColumn]) -> list[TableColumn]:
    """Return the columns of factors; sprio has PARTITION twice, as in Slurm."""
    is_slurm = click.get_current_context().command.name == "sprio"
    return [
        column._replace(heading="PARTITION") if is_slurm and column.heading == "PARTPRIO" else column
        for column in columns
    ]


def _record(job: PriorityInfo) -> dict[str, Any]:
    return {
        "id": job.id,
        "user": job.user,
        "account": job.account,
        "partitions": job.partitions,
        "qos_name": job.qos_name,
        "priority": job.priority,
        "nice": job.nice,
        "factors": {name: getattr(job, name) for name in _NAMES},
    }


def main() -> None:
    run(fgprio)


if __name__ == "__main__":
    main()
