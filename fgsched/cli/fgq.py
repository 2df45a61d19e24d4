"""fgq: show the queue, as squeue does."""

import os
import sys
import time
from collections.abc import Sequence

import click

from fgsched import protocol
from fgsched.cli.command import listed, note, run, said_by, warn, write
from fgsched.client import Client, find_paths
from fgsched.domain.errors import Exit
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.views import choices
from fgsched.views.columns import OF_FGQ, OF_SQUEUE, expanded, ordered
from fgsched.views.options import QUEUE, QueueOptions
from fgsched.views.query import Query, absent, query


class _Here:
    """This process, as a reader of the queue."""

    def __init__(self) -> None:
        self.name = said_by("fgq")
        self.columns = OF_FGQ if self.name == "fgq" else OF_SQUEUE._replace(refuse=_refuse_column)
        self.default_format = os.environ.get("SQUEUE_FORMAT", "")

    users = staticmethod(choices.users)
    me = staticmethod(choices.me)


@listed(QUEUE, operands="[JOB]...", epilog="fgq --why 18")
def fgq(options: QueueOptions, operands: Sequence[str]) -> int:
    """Show pending and running jobs, and why jobs are pending."""
    if options.why:
        return _why(options, operands)
    wanted = query(options, operands, _Here(), fields=_fields(options))
    with Client(find_paths()) as client:
        if not options.iterate:
            return _show(client, wanted, options)
        while True:
            write(f"{time.strftime('%a %b %d %H:%M:%S %Y')}\n")
            _show(client, wanted, options)
            write("\n")
            sys.stdout.flush()
            time.sleep(options.iterate)


def _refuse_column(name: str) -> None:
    """Report a column that squeue does not have; it prints the others."""
    click.echo(f"squeue: error: Invalid job format specification: {clean(name)}", err=True)


def _fields(options: QueueOptions) -> Sequence[str]:
    """Return the attributes of the document that is printed; a table has those of its columns."""
    if not options.slurm_json and not options.as_json:
        return ()
    from fgsched.views import documents  # a table does without

    if options.slurm_json:
        return documents.fields_of_slurm("squeue", documents.form_of(options.slurm_json))
    return documents.fields(documents.keys_of("fgq"))


def _why(options: QueueOptions, operands: Sequence[str]) -> int:
    """Explain the named jobs; without a name, the caller's pending jobs."""
    from fgsched.cli.prospects import show_why

    names = choices.ids([*options.jobs, *operands])
    with Client(find_paths()) as client:
        show_why(client, names or None, as_json=options.as_json)
    return Exit.DONE


def _show(client: Client, wanted: Query, options: QueueOptions) -> int:
    call = wanted.call
    queue_jobs = client.call(call).jobs
    if not queue_jobs and said_by("fgq") == "fgq":  # to squeue no job has such a name
        _refuse_unknown(client, call.where)
    if wanted.starts:
        from fgsched.cli.prospects import add_starts

        add_starts(client, queue_jobs)
        if options.start:  # --json has the expected start under this name
            for job in queue_jobs:
                job.started_at = job.starts_at
    jobs = ordered(queue_jobs, wanted.keys)
    status: int = Exit.DONE
    is_slurm = said_by("fgq") == "squeue"
    if call.where.id and is_slurm:  # an error takes the place of the table
        status = _account_for(client, call.where.id, jobs, is_recent=call.recent)
        if status != Exit.DONE:
            return status
    rows = expanded(jobs) if options.expand else jobs
    if options.as_json:
        from fgsched.views import documents

        write(documents.document(rows, "fgq"))
    elif options.slurm_json:
        from fgsched.views import documents

        write(documents.squeue_document(rows, documents.form_of(options.slurm_json)))
    else:
        write(_table(rows, options, wanted))
    if not call.where.id or is_slurm:
        return status
    return _account_for(client, call.where.id, jobs, is_recent=call.recent)


def _refuse_unknown(client: Client, where: protocol.Where) -> None:
    """Refuse names of partitions, accounts and QOS that do not exist. Raises BadUsage."""
    if wrong := choices.unknown_here(client.call, where):
        raise wrong


def _table(jobs: Sequence[protocol.JobInfo], options: QueueOptions, wanted: Query) -> str:
    """Return the table: fitted to a terminal, else with fixed widths."""
    chosen = options.form is not None or options.names is not None or options.as_slurm
    chosen = chosen or said_by("fgq") == "squeue"
    form = wanted.form
    is_plain = options.colour == "never" or (options.colour == "auto" and not _is_terminal())
    if is_plain and (chosen or not _is_terminal()):
        header = [] if options.noheader else [form.header()]
        return "".join(f"{line}\n" for line in [*header, *form.lines(jobs)])
    from fgsched.cli import terminal  # a program that reads the table does without

    colour = terminal.wants_colour(options.colour)
    if not chosen and _is_terminal():
        lines = terminal.fitted(form, jobs, header=not options.noheader, colour=colour)
    else:
        rows = terminal.painted_lines(form, jobs) if colour else form.lines(jobs)
        lines = [*([] if options.noheader else [form.header()]), *rows]
    return "".join(f"{line}\n" for line in lines)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _account_for(
    client: Client, named: Sequence[choices.Name], jobs: Sequence[protocol.JobInfo], *, is_recent: bool
) -> int:
    """Report named jobs that have ended or do not exist."""
    missing = absent(named, jobs)
    if not missing:
        return Exit.DONE
    ended: dict[int, JobState] = {}
    unknown: list[choices.Name] = []
    for at in range(0, len(missing), protocol.PAGE):
        part = missing[at : at + protocol.PAGE]
        page = client.call(protocol.ListHistory(fields=["id", "state"], ids=part))
        unknown += page.missing
        ended |= {job.id: job.state for job in page.jobs if job.state.is_final}
    if ended and not is_recent:
        which = choices.spelled(name for name in missing if name not in unknown)
        how = next(iter(ended.values())).value if len(ended) == 1 else "over"
        note("fgq", f"{which}: {how}; see fgacct -j {which}")
    if not unknown:
        return Exit.DONE
    if said_by("fgq") == "squeue":
        if len(named) > 1:  # as in Slurm, only one single unknown id is an error
            return Exit.DONE
        click.echo("slurm_load_jobs error: Invalid job id specified", err=True)
        return Exit.NO_SUCH_JOB
    warn("fgq", f"Invalid job id specified: {choices.spelled(unknown)}", "fgacct -S -30d lists older jobs.")
    return Exit.NO_SUCH_JOB


def main() -> None:
    run(fgq)


if __name__ == "__main__":
    main()
