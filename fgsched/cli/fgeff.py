"""fgeff: show how well jobs used what they asked for, as seff does."""

import os
import time
from collections.abc import Iterator, Sequence

import click

from fgsched import protocol
from fgsched.cli.command import listed, run, warn, write
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.times import parse_time
from fgsched.views import choices, documents
from fgsched.views.display import host_name
from fgsched.views.job import attributes
from fgsched.views.options import EFFICIENCY, EfficiencyOptions

_PERIOD = "-30d"


@listed(EFFICIENCY, epilog="fgeff 1207", operands="[JOB]...")
def fgeff(options: EfficiencyOptions, operands: Sequence[str]) -> int:
    """Show how well jobs used what they asked for, and what to ask for."""
    from fgsched.cli import effsheet
    from fgsched.reports import efficiency  # needs the types of reports, which --help does not

    _refuse_contradictions(options, operands)
    missing: list[choices.Name] = []
    fields = efficiency.ASKED
    if options.as_json:
        fields = attributes(*fields, *documents.fields_of_queue(documents.keys_of("fgeff")))
    with Client(find_paths()) as client:
        totals = {gpu.gpu.uuid: gpu.gpu.total for gpu in client.call(protocol.ListGpus()).gpus}
        jobs = list(_jobs(client, options, operands, fields, missing))
    runs = [efficiency.run_of(job, totals) for job in jobs if operands or job.started_at is not None]
    if options.as_json:
        write(effsheet.document(runs if operands else sorted(runs, key=efficiency.place_of)))
    else:
        sheet = effsheet.Sheet(host_name(), options.as_ascii)
        page = sheet.jobs if operands else sheet.compared if options.name else sheet.summary
        write(page(runs, options.last))
        if not runs and not operands:
            click.echo("fgeff: note: no such job has started in this period", err=True)
    if missing:
        warn(
            "fgeff",
            f"Invalid job id specified: {choices.spelled(missing)}",
            "fgacct lists your ended jobs, fgq the others.",
        )
    return Exit.NO_SUCH_JOB if missing else Exit.DONE


def _refuse_contradictions(options: EfficiencyOptions, operands: Sequence[str]) -> None:
    filters = {"name": options.name, "user": options.user, "starttime": options.starttime}
    chosen = [name for name, value in filters.items() if value]
    if operands and chosen:
        raise BadUsage(
            f"job ids and --{chosen[0]} each choose the jobs; give one of them",
            "fgeff 12 shows one job, fgeff --name train the runs of a name.",
        )


def _jobs(
    client: Client,
    options: EfficiencyOptions,
    operands: Sequence[str],
    fields: tuple[str, ...],
    missing: list[choices.Name],
) -> Iterator[protocol.JobInfo]:
    """Yield the chosen jobs; add the named jobs that do not exist to `missing`."""
    ids = choices.ids(operands)
    for at in range(0, len(ids), protocol.PAGE):
        page = client.call(protocol.ListHistory(fields=fields, ids=ids[at : at + protocol.PAGE]))
        missing += page.missing
        yield from page.jobs
    if ids:
        return
    names, users = set(choices.words(options.name)), set(choices.users(options.user) or [choices.me()])
    since = parse_time(options.starttime or _PERIOD, time.time(), past=True)
    for job in _history(client, fields, since, users):
        if job.user in users and (not names or job.name in names):
            yield job


def _history(
    client: Client, fields: tuple[str, ...], since: float, users: set[str]
) -> Iterator[protocol.JobInfo]:
    """Yield the jobs since a time (epoch seconds), of one user if only one is wanted."""
    uid = os.geteuid() if users == {choices.me()} else None
    after: int | None = 0
    while after is not None:
        page = client.call(protocol.ListHistory(fields=fields, since=since, after=after, uid=uid))
        yield from page.jobs
        after = page.next


def main() -> None:
    run(fgeff)


if __name__ == "__main__":
    main()
