"""fgacct: show accounting data of jobs, as sacct does."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from fgsched import protocol
from fgsched.cli import steps, terminal
from fgsched.cli.command import listed, note, run, said_by, warn, write
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit
from fgsched.domain.states import JobState
from fgsched.domain.times import parse_time
from fgsched.views import choices, columns, documents
from fgsched.views import job as view
from fgsched.views.listing import Delimited, Format
from fgsched.views.options import ACCOUNTING, AccountOptions

_CHOOSING = view.attributes(  # they choose, order and colour jobs
    view.label, view.ended_at, "user name partition account qos reason submitted_at started_at"
)
_CLIENTS_OWN = ("starts_at", "step")  # attributes that the controller does not have
_FITS = 9  # columns at most, of which a narrow window leaves out some
_NEVER = 1e14  # after all jobs, also if the clock was set back


class Window(Struct, frozen=True):
    """A window of time (seconds since the epoch), and the states that jobs were in; None: any state."""

    since: float  # seconds since the epoch
    until: float  # seconds since the epoch
    states: Collection[JobState] | None

    def has(self, job: protocol.JobInfo) -> bool:
        """Tell whether the job was in a wanted state at some time in the window."""
        ended = view.ended_at(job)
        over = math.inf if ended is None else ended
        if self.states is None:
            return job.submitted_at <= self.until and over >= self.since
        return any(self._was(state, job, over) for state in self.states)

    def _was(self, state: JobState, job: protocol.JobInfo, over: float) -> bool:
        started = job.started_at
        if state is JobState.PENDING:
            begin, end = job.submitted_at, over if started is None else started
        elif state is JobState.RUNNING:
            begin, end = math.inf if started is None else started, over
        elif job.state is not state:
            return False
        elif state.is_final:
            begin = end = over
        else:
            begin, end = job.submitted_at, over
        return begin <= self.until and end >= self.since


@listed(ACCOUNTING, epilog="fgacct -S -7d -s F,OOM -o JobID,JobName%20,Reason,MaxGPUMem")
def fgacct(options: AccountOptions) -> int:
    """Show accounting data of ended and running jobs."""
    is_slurm = said_by("fgacct") == "sacct"
    columns_of_command = columns.ACCOUNTS_OF_SACCT if is_slurm else columns.ACCOUNTS_OF_FGACCT
    if options.helpformat:
        write(_field_list(columns_of_command.all))
        return Exit.DONE
    form = columns.of_accounts(_format(options), _unit(options), columns_of_command)
    whole, named = steps.split(options.jobs)
    all_steps = options.all_steps and not options.allocations
    selection = _asked(form, options, wants_steps=bool(named) or all_steps or bool(options.slurm_json))
    ids = choices.ids(whole)
    window = _window(options, everything=bool(ids))
    missing: list[choices.Name] = []
    with Client(find_paths()) as client:
        if ids:
            jobs_of_answer = _named(client, selection, ids, missing)
        else:
            jobs_of_answer = _all(client, selection, window, mine=_only_mine(options))
        users = choices.users(options.users)
        fits = _filter(options)
        chosen_jobs = (
            job
            for job in jobs_of_answer
            if (not users or job.user in users) and window.has(job) and fits(job)
        )
        rows = steps.rows(chosen_jobs, named, all_steps=all_steps)
        jobs = rows if said_by("fgacct") == "sacct" else _noted(rows, client, options)
        _output(client, jobs, form, options)
    if said_by("fgacct") == "sacct":
        return Exit.DONE  # to which a job that does not exist is no error
    if missing:
        warn("fgacct", f"Invalid job id specified: {choices.spelled(missing)}")
    return Exit.NO_SUCH_JOB if missing else Exit.DONE


def _output(
    client: Client,
    jobs: Iterable[protocol.JobInfo],
    form: Format,
    options: AccountOptions,
) -> None:
    """Print the rows in the form that the options choose."""
    header = not options.noheader
    if options.batch_script:
        _print(_scripts(client, jobs))
    elif options.slurm_json:
        write(documents.sacct_document(jobs, documents.form_of(options.slurm_json)))
    elif options.as_json:
        write(documents.document(jobs, "fgacct"))
    elif options.parsable or options.parsable2:
        delimited = Delimited(_delimiter(options), options.parsable)
        _print(delimited.lines(jobs, [piece.column for piece in form.pieces], header=header))
    elif options.form is None and terminal.is_terminal():
        colour = terminal.wants_colour(options.colour)
        _print(terminal.fitted(form, jobs, header=header, colour=colour, most=_FITS))
    else:
        colour = terminal.wants_colour(options.colour)
        _print([form.header(), form.rule()] if header else [])
        _print(terminal.painted_lines(form, jobs) if colour else form.lines(jobs))


def _scripts(client: Client, jobs: Iterable[protocol.JobInfo]) -> Iterator[str]:
    """Yield the script of each job under a heading, as `sacct -B` does; steps have that of their job."""
    for job_id in dict.fromkeys(job.id for job in jobs):
        yield f"Batch Script for {job_id}\n{'-' * 80}"
        yield client.call(protocol.ShowScript(id=job_id)).script


def _noted(
    jobs: Iterable[protocol.JobInfo], client: Client, options: AccountOptions
) -> Iterator[protocol.JobInfo]:
    """Yield the jobs. If there are none, note the first name of the filters that new jobs cannot have."""
    is_empty = True
    for job in jobs:
        is_empty = False
        yield job
    partitions, accounts, qos = map(choices.words, (options.partitions, options.accounts, options.qualities))
    if is_empty and (
        wrong := choices.unknown_here(
            client.call, protocol.Where(partition=partitions, account=accounts, qos=qos)
        )
    ):
        note("fgacct", f"note: {wrong.cause}. {wrong.remedy}")


def _filter(options: AccountOptions) -> Callable[[protocol.JobInfo], bool]:
    """Return whether a job has one of the names, partitions, accounts and QOS asked for."""
    texts = (options.names, options.partitions, options.accounts, options.qualities)
    wanted = [set(choices.words(listed_words)) for listed_words in texts]

    def fits(job: protocol.JobInfo) -> bool:
        values = (job.name, job.partition, job.account, job.qos)
        return all(not words or value in words for words, value in zip(wanted, values, strict=True))

    return fits


def _format(options: AccountOptions) -> str:
    if bool(options.form) + options.brief + options.long > 1:
        raise BadUsage("-o, -b and -l each choose the fields; give one of them")
    if options.form is not None:
        return options.form
    if options.brief or options.long:
        return columns.BRIEF if options.brief else columns.FULL
    if said_by("fgacct") == "sacct":
        return os.environ.get("SACCT_FORMAT") or columns.SACCT
    return columns.USUAL


def _unit(options: AccountOptions) -> str:
    if options.noconvert:
        return ""
    unit = (options.units or "M").upper()
    if unit not in {"K", "M", "G"}:
        raise BadUsage(f"--units={unit}: give K, M or G")
    return unit


def _delimiter(options: AccountOptions) -> str:
    if not options.delimiter:
        raise BadUsage("--delimiter is empty")
    return options.delimiter


def _window(options: AccountOptions, *, everything: bool) -> Window:
    """Return the window that the options choose: from midnight by default; for named jobs, all times."""
    now = time.time()
    states = choices.states(options.states) if options.states else None
    until = parse_time(options.endtime, now, past=True) if options.endtime else _NEVER
    if options.starttime:
        since = parse_time(options.starttime, now, past=True)
    elif everything:
        since = 0.0
    elif states is not None:
        since = min(until, now)
        note("fgacct", "note: -s without -S shows jobs in these states at one moment; -S makes a window.")
    else:
        since = parse_time("midnight", now, past=True)
    if since > now and not options.endtime:
        raise BadUsage("the window begins in the future", "Give -S an earlier time.")
    if since > (until if options.endtime else now):
        raise BadUsage("the window ends before it begins", "-S says when it begins, -E when it ends.")
    return Window(since, until, None if states == set(JobState) else states)


def _only_mine(options: AccountOptions) -> bool:
    return not options.users and not options.allusers and os.geteuid() != 0


def _asked(form: Format, options: AccountOptions, *, wants_steps: bool) -> list[str]:
    """Return the attributes of jobs to ask for."""
    if options.slurm_json:
        shown = documents.fields_of_slurm("sacct", documents.form_of(options.slurm_json))
    else:
        shown = documents.fields(documents.keys_of("fgacct")) if options.as_json else form.fields
    rows = steps.FIELDS if wants_steps else ()
    return [name for name in dict.fromkeys((*_CHOOSING, *shown, *rows)) if name not in _CLIENTS_OWN]


def _named(
    client: Client, fields: Sequence[str], ids: list[choices.Name], missing: list[choices.Name]
) -> Iterator[protocol.JobInfo]:
    """Yield the named jobs; add the names without a job to `missing`."""
    for at in range(0, len(ids), protocol.PAGE):
        part = ids[at : at + protocol.PAGE]
        page = client.call(protocol.ListHistory(fields=fields, ids=part))
        missing += page.missing
        yield from page.jobs


def _all(client: Client, fields: Sequence[str], window: Window, *, mine: bool) -> Iterator[protocol.JobInfo]:
    """Yield every job of the window, page by page; the tasks of an array follow each other."""
    after: int | None = 0
    shown: set[int] = set()
    while after is not None:
        page = client.call(
            protocol.ListHistory(
                fields=fields,
                since=window.since,
                until=window.until,
                after=after,
                uid=os.geteuid() if mine else None,
            )
        )
        yield from in_order(page.jobs, partial(_named, client, fields, missing=[]), shown)
        after = page.next


def in_order(
    jobs: Iterable[protocol.JobInfo],
    rows_of: Callable[[list[choices.Name]], Iterable[protocol.JobInfo]],
    shown: set[int],
) -> Iterator[protocol.JobInfo]:
    """Yield jobs in their order, and at the first row of an array all its rows, by index.

    A task gets its row when it starts, so the ids of an array's rows are neither consecutive nor in the order
    of its indices.

    Args:
        rows_of: returns the rows of arrays, by array and index.
        shown: the arrays that were yielded; new ones are added.
    """
    page = list(jobs)
    new = dict.fromkeys(job.array for job in page if job.array is not None and job.array not in shown)
    rows_of_array: dict[int | None, list[protocol.JobInfo]] = {}
    for row in rows_of(list(new)) if new else ():
        rows_of_array.setdefault(row.array, []).append(row)
    for job in page:
        if job.array is None or (job.array in new and job.array not in rows_of_array):
            yield job
        elif job.array not in shown:
            shown.add(job.array)
            yield from rows_of_array[job.array]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write(f"{line}\n")


def _field_list(names: Sequence[str]) -> str:
    rows = [names[at : at + 4] for at in range(0, len(names), 4)]
    return "".join(" ".join(f"{name:<19}" for name in row) + "\n" for row in rows)


def main() -> None:
    run(fgacct)


if __name__ == "__main__":
    main()
