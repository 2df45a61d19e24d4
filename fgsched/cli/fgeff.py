"""fgeff: show how well jobs used what they asked for, as seff does."""

import os
import time
from collections.abc import Iterator
from typing import Any

import click

from fgsched import protocol
from fgsched.cli.command import Command, run, warn, write
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.times import parse_time
from fgsched.domain.units import parse_count
from fgsched.views import choices
from fgsched.views.display import host_name

_LIST: dict[str, Any] = {"multiple": True, "metavar": "LIST"}
_PERIOD = "-30d"


@click.command(cls=Command, epilog="fgeff 1207")
@click.option("-n", "--name", **_LIST, help="Compare the runs of jobs with these names.")
@click.option("-u", "--user", **_LIST, help="Sum up the jobs of these users by name; default: your own.")
@click.option("-S", "--starttime", metavar="TIME", help=f"Jobs since then; default: {_PERIOD}.")
@click.option("--last", type=parse_count, default="20", metavar="N", help="Runs of a name; default: 20.")
@click.option("--ascii", "as_ascii", is_flag=True, help="Use ASCII characters only.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.argument("named", nargs=-1, metavar="[JOB]...")
def fgeff(**options: Any) -> int:
    """Show how well jobs used what they asked for, and what to ask for."""
    from fgsched.cli import effsheet
    from fgsched.reports import efficiency  # needs the types of reports, which --help does not

    _refuse_contradictions(options)
    missing: list[choices.Name] = []
    with Client(find_places()) as client:
        totals = {one.gpu.uuid: one.gpu.total for one in client.call(protocol.ListGpus()).gpus}
        found = list(_jobs(client, options, efficiency.ASKED, missing))
    runs = [efficiency.run_of(job, totals) for job in found if options["named"] or job.started_at is not None]
    if options["as_json"]:
        write(effsheet.document(runs if options["named"] else sorted(runs, key=efficiency.place_of)))
    else:
        sheet = effsheet.Sheet(host_name(), options["as_ascii"])
        kinds = {"named": sheet.jobs, "name": sheet.compared}
        made = next((make for option, make in kinds.items() if options[option]), sheet.summary)
        write(made(runs, options["last"]))
        if not runs and not options["named"]:
            click.echo("fgeff: note: no such job has started in this period", err=True)
    if missing:
        warn(
            "fgeff",
            f"Invalid job id specified: {choices.spelled(missing)}",
            "fgacct lists your ended jobs, fgq the others.",
        )
    return Exit.NO_SUCH_JOB if missing else Exit.DONE


def _refuse_contradictions(options: dict[str, Any]) -> None:
    chosen = [name for name in ("name", "user", "starttime") if options[name]]
    if options["named"] and chosen:
        raise BadUsage(
            f"job ids and --{chosen[0]} each choose the jobs; give one of them",
            "fgeff 12 shows one job, fgeff --name train the runs of a name.",
        )


def _jobs(
    client: Client, options: dict[str, Any], fields: tuple[str, ...], missing: list[choices.Name]
) -> Iterator[protocol.JobInfo]:
    """Yield the chosen jobs; add the named jobs that do not exist to `missing`."""
    ids = choices.ids(options["named"])
    for at in range(0, len(ids), protocol.PAGE):
        page = client.call(protocol.ListHistory(fields=fields, ids=ids[at : at + protocol.PAGE]))
        missing += page.missing
        yield from page.jobs
    if ids:
        return
    names, users = set(choices.words(options["name"])), set(choices.users(options["user"]) or [choices.me()])
    since = parse_time(options["starttime"] or _PERIOD, time.time(), past=True)
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
