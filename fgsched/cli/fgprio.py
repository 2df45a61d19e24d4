"""fgprio: show the priority of pending jobs and its factors, as sprio does."""

from collections.abc import Iterable, Sequence
from typing import Any

import click
from msgspec import to_builtins

from fgsched import protocol
from fgsched.cli.command import run, warn, write
from fgsched.cli.listedoptions import listed
from fgsched.cli.terminal import listing
from fgsched.client import Client, find_places
from fgsched.domain.errors import Exit
from fgsched.domain.policy import Weights
from fgsched.domain.units import format_indices, parse_ids
from fgsched.protocol import PriorityInfo
from fgsched.views import choices, display
from fgsched.views.table import PRIORITY, PriorityOptions

_NAMES = ("age", "fairshare", "size", "partition", "qos")
_FRONT, _LONG = ("JOBID", "PARTITION"), ("USER", "ACCOUNT", "QOSNAME")
_FACTORS = ("PRIORITY", "AGE", "FAIRSHARE", "JOBSIZE", "PARTPRIO", "QOS", "NICE")


@listed(PRIORITY, epilog="fgprio -u ann")
def fgprio(options: PriorityOptions) -> int:
    """Show the priority of pending jobs and its factors."""
    ids = [job for text in options.jobs for job in parse_ids(text)]
    with Client(find_places()) as client:
        answer = client.call(protocol.ListPriorities())
    jobs = _chosen(answer.jobs, ids, options)
    if options.as_json:
        write(display.document(jobs=[_record(job) for job in jobs], weights=to_builtins(answer.weights)))
    elif options.weights:
        write(_weights(answer.weights, header=not options.noheader))
    else:
        headings = (*_FRONT, *(_LONG if options.long else ()), *_of_caller(_FACTORS))
        rows = [_row(job, answer.weights, options) for job in jobs]
        cut = ("PARTITION", "USER", "ACCOUNT", "QOSNAME")
        write(listing(headings, rows, header=not options.noheader, cut=cut, minor=(*_LONG, *_FACTORS[1:])))
    missing = sorted(set(ids) - {job.id for job in answer.jobs})
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


def _row(job: PriorityInfo, weights: Weights, options: PriorityOptions) -> list[str]:
    front = [str(job.id), job.partitions]
    if options.long:
        front += [job.user, job.account or "(null)", job.qos_name]
    factors = [_number(part) for part in _factors(job)]
    if options.norm:
        pairs = zip(_factors(job), _factors(weights), strict=True)
        factors = [f"{part / weight if weight else 0.0:.7f}" for part, weight in pairs]
    return [*front, _number(job.priority), *factors, str(job.nice)]


def _factors(found: PriorityInfo | Weights) -> tuple[float, ...]:
    """Return the factors of a priority, or their weights, in the order of the columns."""
    return found.age, found.fairshare, found.size, found.partition, found.qos


def _number(value: float) -> str:
    return str(round(value))


def _weights(weights: Weights, *, header: bool) -> str:
    row = ["Weights", *(str(weight) for weight in _factors(weights))]
    return listing(("", *_of_caller(_FACTORS[1:-1])), [row], header=header)


def _of_caller(headings: Sequence[str]) -> list[str]:
    """Return headings of factors; sprio has PARTITION twice, as in Slurm."""
    is_slurm = click.get_current_context().command.name == "sprio"
    return ["PARTITION" if is_slurm and text == "PARTPRIO" else text for text in headings]


def _record(job: PriorityInfo) -> dict[str, Any]:
    return {
        "id": job.id,
        "user": job.user,
        "account": job.account,
        "partitions": job.partitions,
        "qos_name": job.qos_name,
        "priority": job.priority,
        "nice": job.nice,
        "factors": dict(zip(_NAMES, _factors(job), strict=True)),
    }


def main() -> None:
    run(fgprio)


if __name__ == "__main__":
    main()
