"""fgq: show the queue, as squeue does."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from fgsched import protocol
from fgsched.cli import choices, queueformat
from fgsched.cli.command import CLUSTERS, COLOURS, Command, accepted, run, said_by, warn, write
from fgsched.cli.queueformat import Format, expanded, ordered, sort_keys
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.job import JobState
from fgsched.domain.text import shown
from fgsched.domain.units import parse_count

_SORT, _SORT_STARTS = "P,t,-p,i", "S,i"
_EXPECTED = {"likely", "known"}  # attributes that come from a separate request
_NAMES = ("id", "array", "task", "tasks")  # the parts of a job's name
_LIST: dict[str, Any] = {"multiple": True, "metavar": "LIST"}


@click.command(cls=Command, epilog="fgq --why 18")
@click.option("-u", "--user", **_LIST, help="Jobs of these users.")
@click.option("-w", "--nodelist", metavar="LIST", expose_value=False, hidden=True, help="Accepted; one host.")
@CLUSTERS
@accepted("--local,--hide,--federation,--sibling,--noconvert,--array-unique,-P --priority,-v --verbose")
@click.option("--me", is_flag=True, help="Your own jobs.")
@click.option("-j", "--jobs", **_LIST, help="Jobs with these ids: 7,10-14.")
@click.option("-t", "--states", **_LIST, help="Jobs in these states: R,PD, or all.")
@click.option("-p", "--partition", **_LIST, help="Jobs of these partitions.")
@click.option("-A", "--account", **_LIST, help="Jobs of these accounts.")
@click.option("-q", "--qos", **_LIST, hidden=True, help="Jobs of these qualities of service.")
@click.option("-n", "--name", **_LIST, hidden=True, help="Jobs with these names.")
@click.option("--recent", is_flag=True, hidden=True, help="Also jobs that ended in the last 5 minutes.")
@click.option("-l", "--long", is_flag=True, help="Print more columns.")
@click.option(
    "-o", "--format", "form", metavar="FORMAT", help="Columns by letter, as squeue -o: '%.8i %j %T'."
)
@click.option("-O", "--Format", "names", metavar="LIST", help="Columns by name: JobID:8,Why:60.")
@click.option("-S", "--sort", metavar="KEYS", help="Sort by these columns; - for descending order.")
@click.option("-h", "--noheader", is_flag=True, help="Print no header.")
@click.option("-i", "--iterate", type=parse_count, metavar="SECONDS", help="Repeat at this interval.")
@click.option("--slurm-columns", "as_slurm", is_flag=True, help="Print exactly the columns of squeue.")
@click.option("--color", "colour", type=click.Choice(COLOURS), default="auto", hidden=True, help="Colours.")
@click.option("--json", "as_json", is_flag=True, help="Print all fields as a JSON object.")
@click.option("--slurm-json", is_flag=True, hidden=True, help="Print Slurm's JSON.")
@click.option(
    "-a", "--all", is_flag=True, expose_value=False, hidden=True, help="Accepted; no partition is hidden."
)
@click.option("-r", "--array", "expand", is_flag=True, help="Print one line for each array task.")
@click.option("--start", is_flag=True, help="Print expected start times of pending jobs.")
@click.option("--why", is_flag=True, help="Print all reasons why jobs are pending, and remedies.")
@click.argument("named", nargs=-1, metavar="[JOB]...")
def fgq(iterate: int | None, **options: Any) -> int:
    """Show pending and running jobs, and why jobs are pending."""
    if options["why"]:
        return _why(options)
    if options["named"]:
        word = shown(options["named"][0])
        raise BadUsage(f"unexpected extra argument {word}", "Name jobs with -j, or after --why.")
    wanted = _format(options)
    options["keys"] = sort_keys(options["sort"] or (_SORT_STARTS if options["start"] else _SORT))
    call = _request(options, wanted)
    with Client(find_places()) as client:
        if not iterate:
            return _show(client, call, options, wanted)
        while True:
            write(f"{time.strftime('%a %b %d %H:%M:%S %Y')}\n")
            _show(client, call, options, wanted)
            write("\n")
            sys.stdout.flush()
            time.sleep(iterate)


def _why(options: dict[str, Any]) -> int:
    """Explain the named jobs; without a name, the caller's pending jobs."""
    from fgsched.cli.prospects import show_why

    names = choices.ids([*options["jobs"], *options["named"]])
    with Client(find_places()) as client:
        show_why(client, names or None, as_json=options["as_json"])
    return Exit.DONE


def _format(options: dict[str, Any]) -> Format:
    """Return the row format that the options select."""
    form, names, long, as_slurm = (options[key] for key in ("form", "names", "long", "as_slurm"))
    if long and options["start"]:
        raise BadUsage("-l and --start each choose the columns; give one of them")
    if sum((form is not None, names is not None, as_slurm or long)) > 1:
        raise BadUsage("-o, -O, -l and --slurm-columns each choose the columns; give one of them")
    if names is not None:
        return queueformat.named(names)
    if form is not None:
        return queueformat.percent(form)
    if said_by("fgq") == "squeue":
        as_slurm = options["as_slurm"] = True
        if not (long or options["start"]) and (usual := os.environ.get("SQUEUE_FORMAT")):
            return queueformat.percent(usual)
    if as_slurm and options["start"]:
        return queueformat.percent(queueformat.SLURM_START)
    if as_slurm:
        return queueformat.percent(queueformat.SLURM_LONG if long else queueformat.SLURM)
    if options["start"]:
        return queueformat.named(queueformat.START)
    return queueformat.named(queueformat.LONG if long else queueformat.QUEUE)


def _request(options: dict[str, Any], wanted: Format) -> protocol.ListQueue:
    """Return the request to the controller: attributes, and the filter of jobs."""
    where = _where(options)
    fields = queueformat.JSON_FIELDS if options["as_json"] else wanted.fields
    if options["slurm_json"]:
        from fgsched.cli.slurmdocuments import FIELDS

        fields = FIELDS
    names = dict.fromkeys([*fields, *(column.key for column, _ in options["keys"]), *_NAMES])
    if options["start"] or not names.keys().isdisjoint(_EXPECTED):
        options["start"] = True
        names["started_at"] = None
    return protocol.ListQueue(
        fields=[name for name in names if name not in _EXPECTED],
        where=where,
        recent=options["recent"] or any(state.is_final for state in choices.states(options["states"])),
    )


def _where(options: dict[str, Any]) -> protocol.Where:
    states = list(choices.states(options["states"])) if options["states"] else None
    if options["start"] and states is None:
        states = [JobState.PENDING]
    return protocol.Where(
        id=choices.ids(options["jobs"]) or None,
        user=choices.users(options["user"]) + [choices.me()] * options["me"] or None,
        state=states,
        partition=choices.words(options["partition"]) or None,
        name=choices.words(options["name"]) or None,
        account=choices.words(options["account"]) or None,
        qos=choices.words(options["qos"]) or None,
    )


def _show(client: Client, call: protocol.ListQueue, options: dict[str, Any], wanted: Format) -> int:
    found = client.call(call).jobs
    if options["start"]:
        from fgsched.cli.prospects import add_starts

        add_starts(client, found)
    jobs = ordered(found, options["keys"])
    rows = expanded(jobs) if options["expand"] else jobs
    if options["slurm_json"]:
        from fgsched.cli import slurmdocuments as documents

        write(documents.jobs(rows))
    else:
        write(queueformat.document(rows) if options["as_json"] else _table(rows, options, wanted))
    return _account_for(client, call.where.id, jobs, is_recent=call.recent) if call.where.id else Exit.DONE


def _table(jobs: Sequence[protocol.JobInfo], options: dict[str, Any], wanted: Format) -> str:
    """Return the table: fitted to a terminal, else with fixed widths."""
    chosen = options["form"] is not None or options["names"] is not None or options["as_slurm"]
    is_plain = options["colour"] == "never" or (options["colour"] == "auto" and not _is_terminal())
    if is_plain and (chosen or not _is_terminal()):
        header = [] if options["noheader"] else [wanted.header()]
        return "".join(f"{line}\n" for line in [*header, *wanted.lines(jobs)])
    from fgsched.cli import terminal  # a program that reads the table does without

    colour = terminal.wants_colour(options["colour"])
    if not chosen and _is_terminal():
        lines = wanted.fitted(jobs, terminal.width(), header=not options["noheader"], colour=colour)
    else:
        rows = wanted.painted(jobs) if colour else wanted.lines(jobs)
        lines = [*([] if options["noheader"] else [wanted.header()]), *rows]
    return "".join(f"{line}\n" for line in lines)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _account_for(
    client: Client, named: Sequence[choices.Name], jobs: Sequence[protocol.JobInfo], *, is_recent: bool
) -> int:
    """Report named jobs that have ended or do not exist."""
    found = {job.id for job in jobs} | {job.array for job in jobs}
    absent = [name for name in named if name not in found and not (isinstance(name, str) and jobs)]
    if not absent:
        return Exit.DONE
    ended: dict[int, JobState] = {}
    unknown: list[choices.Name] = []
    for at in range(0, len(absent), protocol.PAGE):
        part = absent[at : at + protocol.PAGE]
        page = client.call(protocol.ListHistory(fields=["id", "state"], ids=part))
        unknown += page.missing
        ended |= {job.id: job.state for job in page.jobs if job.state.is_final}
    if ended and not is_recent:
        which = choices.spelled(name for name in absent if name not in unknown)
        how = next(iter(ended.values())).value if len(ended) == 1 else "over"
        click.echo(f"{said_by('fgq')}: {which}: {how}; see fgacct -j {which}", err=True)
    if not unknown:
        return Exit.DONE
    if said_by("fgq") == "squeue":
        click.echo("slurm_load_jobs error: Invalid job id specified", err=True)
        return Exit.NO_SUCH_JOB
    warn("fgq", f"Invalid job id specified: {choices.spelled(unknown)}", "fgacct -S -30d lists older jobs.")
    return Exit.NO_SUCH_JOB


def main() -> None:
    run(fgq)


if __name__ == "__main__":
    main()
