"""fgq: the queue, as squeue shows it."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from fgsched.cli import choices, queueformat
from fgsched.cli.command import Command, warn, write
from fgsched.cli.queueformat import Format, expanded, ordered, sort_keys
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.job import JobState
from fgsched.domain.text import shown
from fgsched.domain.units import parse_count

_SORT, _SORT_STARTS = "P,t,-p,i", "S,i"
_EXPECTED = ("likely", "known")  # asked for apart
_NAMES = ("id", "array", "task", "tasks")  # what a job is called is made of these
_LIST: dict[str, Any] = {"multiple": True, "metavar": "LIST"}


@click.command(cls=Command, epilog="fgq --why 18")
@click.option("-u", "--user", **_LIST, help="Jobs of these users.")
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
@click.option("--json", "as_json", is_flag=True, help="Print all fields as a JSON object.")
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
    asked = _request(options, wanted)
    with Client(find_places()) as client:
        if not iterate:
            return _show(client, asked, options, wanted)
        while True:
            write(f"{time.strftime('%a %b %d %H:%M:%S %Y')}\n")
            _show(client, asked, options, wanted)
            write("\n")
            sys.stdout.flush()
            time.sleep(iterate)


def _why(options: dict[str, Any]) -> int:
    """The jobs named, in either way; without any, one's own that wait."""
    from fgsched.cli.prospects import show_why

    names = choices.ids([*options["jobs"], *options["named"]])
    with Client(find_places()) as client:
        show_why(client, names or None, as_json=options["as_json"])
    return Exit.DONE


def _format(options: dict[str, Any]) -> Format:
    """How rows are set, from the one option that says so."""
    form, names, long, as_slurm = (options[key] for key in ("form", "names", "long", "as_slurm"))
    if long and options["start"]:
        raise BadUsage("-l and --start each choose the columns; give one of them")
    if sum((form is not None, names is not None, as_slurm or long)) > 1:
        raise BadUsage("-o, -O, -l and --slurm-columns each choose the columns; give one of them")
    if names is not None:
        return queueformat.named(names)
    if form is not None:
        return queueformat.percent(form)
    if as_slurm and options["start"]:
        return queueformat.percent(queueformat.SLURM_START)
    if as_slurm:
        return queueformat.percent(queueformat.SLURM_LONG if long else queueformat.SLURM)
    if options["start"]:
        return queueformat.named(queueformat.START)
    return queueformat.named(queueformat.LONG if long else queueformat.QUEUE)


def _request(options: dict[str, Any], wanted: Format) -> dict[str, Any]:
    """What the controller is asked for: fields, and which jobs."""
    states = choices.states(options["states"])
    where: dict[str, list[Any]] = {
        "id": choices.ids(options["jobs"]),
        "user": choices.users(options["user"]) + [choices.me()] * options["me"],
        "state": choices.state_values(options["states"]),
        "partition": choices.words(options["partition"]),
        "name": choices.words(options["name"]),
        "account": choices.words(options["account"]),
        "qos": choices.words(options["qos"]),
    }
    if options["as_json"]:
        from fgsched.cli.queuejson import FIELDS

        fields = list(FIELDS)
    else:
        fields = wanted.fields
    sorting = [column.key for column, _ in options["keys"]]
    wished = list(dict.fromkeys([*fields, *sorting, *_NAMES]))
    if options["start"] or set(wished) & set(_EXPECTED):
        options["start"] = True
        wished = [name for name in dict.fromkeys([*wished, "started_at"]) if name not in _EXPECTED]
    return {
        "fields": wished,
        "where": {field: values for field, values in where.items() if values},
        "recent": options["recent"] or any(state.is_final for state in states),
    }


def _show(client: Client, asked: dict[str, Any], options: dict[str, Any], wanted: Format) -> int:
    answer = client.ask("queue", **asked)
    if options["start"]:
        from fgsched.cli.prospects import add_starts

        add_starts(client, answer)
    rows = ordered(answer["rows"], answer["fields"], options["keys"])
    if options["expand"]:
        rows = expanded(rows, answer["fields"])
    if options["as_json"]:
        from fgsched.cli import queuejson

        write(queuejson.document(answer["fields"], rows))
    else:
        write(_table(rows, answer["fields"], options, wanted))
    named = asked["where"].get("id", ())
    return _account_for(client, named, answer, asked) if named else Exit.DONE


def _table(
    rows: Sequence[Sequence[Any]], names: Sequence[str], options: dict[str, Any], wanted: Format
) -> str:
    chosen = options["form"] is not None or options["names"] is not None or options["as_slurm"]
    if not chosen and sys.stdout is not None and sys.stdout.isatty():
        wanted = wanted.widened(rows, names, _terminal())
    header = [] if options["noheader"] else [wanted.header()]
    return "".join(f"{line}\n" for line in [*header, *wanted.lines(rows, names)])


def _terminal() -> int:
    """Columns of the terminal; COLUMNS decides where it is a number."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return 80


def _account_for(
    client: Client, named: Sequence[choices.Name], answer: dict[str, Any], asked: dict[str, Any]
) -> int:
    """Say of jobs asked for by name that they are over, or that there are none."""
    id_at, array_at = answer["fields"].index("id"), answer["fields"].index("array")
    shown = {row[id_at] for row in answer["rows"]} | {row[array_at] for row in answer["rows"]}
    absent = [name for name in named if name not in shown and not (isinstance(name, str) and answer["rows"])]
    if not absent:
        return Exit.DONE
    ended: dict[int, str] = {}
    unknown: list[choices.Name] = []
    for at in range(0, len(absent), 500):
        page = client.ask("history", ids=absent[at : at + 500])
        unknown += page["missing"]
        ended |= {job["id"]: job["state"] for job in page["jobs"] if JobState(job["state"]).is_final}
    if ended and not asked["recent"]:
        which = choices.spelled(name for name in absent if name not in unknown)
        how = next(iter(ended.values())) if len(ended) == 1 else "over"
        click.echo(f"fgq: {which}: {how}; see fgacct -j {which}", err=True)
    if not unknown:
        return Exit.DONE
    warn("fgq", f"Invalid job id specified: {choices.spelled(unknown)}", "fgacct -S -30d lists older jobs.")
    return Exit.NO_SUCH_JOB


def main() -> None:
    fgq.main(prog_name="fgq")


if __name__ == "__main__":
    main()
