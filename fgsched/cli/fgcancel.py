"""fgcancel: cancel jobs, or send them a signal."""

import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Literal

import click
from msgspec.structs import replace

from fgsched import protocol
from fgsched.cli.command import Listed, listed, run, said_by, warn, write
from fgsched.cli.steps import UnsignalledStep, signal_steps
from fgsched.client import Client, find_paths
from fgsched.domain.errors import BadUsage, Exit, NotPermitted, StorageError
from fgsched.domain.text import clean, lazy_regex
from fgsched.domain.units import parse_signal, signal_name
from fgsched.lifecycle.arrays import format_array, parse_tasks
from fgsched.protocol import Outcome
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.views.choices import Name
from fgsched.views.options import CANCEL, CancelOptions

Target = Literal["all", "shell", "children"]
_AT_ONCE = 10_000  # ids in one request
_TERM, _KILL = 15, 9
_STEP = lazy_regex(r"[0-9_]+\.(?:[0-9]{1,9}|batch)")
_FIELDS = ("id", "array", "task", "tasks", "name", "partition", "user", "state")


class _Cancel(Listed):
    """A command that takes -5 for a wrong job id, not for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name[1:].isdecimal():
                choices.ids([error.option_name])
            raise


@listed(CANCEL, operands="[ID|FIRST-LAST|-]...", epilog="fgcancel 7 10-14", cls=_Cancel)
def fgcancel(options: CancelOptions, operands: Sequence[str]) -> int:
    """Cancel jobs, or send them a signal."""
    if options.batch + options.full + options.children > 1:
        raise BadUsage(
            "-b is the shell only, --children the other processes, -f all of them; give one of them"
        )
    number = parse_signal(options.signal) if options.signal is not None else None
    if options.batch and number is None:
        number = _TERM
    is_filtered = _has_filters(options)
    if not operands and not is_filtered:
        raise click.UsageError("no job is named: give ids, or a filter such as --me")
    if options.interactive and "-" in operands:
        raise BadUsage("-i reads its answers where - reads the ids", "Give the ids as arguments.")
    whole, steps = _without_steps(_listed(operands))
    ids = choices.ids(whole)
    with Client(find_paths()) as client:
        steps = {} if options.dry_run else steps
        failed = max(
            (_report_unsignalled(step) for step in signal_steps(client, steps, number)), default=Exit.DONE
        )
        if steps and not whole:
            return failed
        if is_filtered or options.interactive or options.dry_run:
            ids = _chosen(client, ids if operands else None, options)
        if options.dry_run:
            return Exit.DONE
        target: Target = (
            "shell"
            if options.batch
            else "children"
            if options.children and number not in (None, _KILL)
            else "all"
        )
        outcomes = _act(client, ids, number=number, target=target, reason=options.reason)
        return max((_report(outcome, number, options) for outcome in outcomes), default=failed)


def _without_steps(words: Iterable[str]) -> tuple[list[str], dict[str, set[str]]]:
    """Return the words that name jobs, and the named steps of jobs."""
    listed = list(words)
    if not any("." in word for word in listed):
        return listed, {}
    from fgsched.cli.steps import split

    steps = [word for word in listed if _STEP.fullmatch(word)]
    return [word for word in listed if word not in steps], split(steps)[1]


def _report_unsignalled(step: UnsignalledStep) -> int:
    """Report a step that was not signalled; return the exit status."""
    warn("fgcancel", f"Kill job error on job step id {step.name}: {step.why}")
    return step.code


def _has_filters(options: CancelOptions) -> bool:
    """Tell whether there are filters. Raises BadUsage for an empty one, which would select every job."""
    filters = {
        "--state": options.states,
        "--name": options.name,
        "--user": options.user,
        "--partition": options.partition,
        "--account": options.account,
        "--qos": options.qos,
    }
    for option, texts in filters.items():
        if any(not choices.words([text]) for text in texts):
            raise BadUsage(
                f"{option} is empty", "Give a value, or omit the option. Is a shell variable unset?"
            )
    return options.me or any(filters.values())


def _listed(words: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, with the lines of standard input in place of '-'."""
    for word in words:
        if word != "-":
            yield word
        elif sys.stdin is not None:
            yield from (listed for line in sys.stdin for listed in line.split())


def _chosen(client: Client, only: Sequence[Name] | None, options: CancelOptions) -> list[Name]:
    """Return the open jobs that references and filters select, after confirmation if requested."""
    users = choices.users(options.user)
    _may(client, users)
    if options.me:
        users = [choices.me()] if not users or choices.me() in users else [""]
    where = protocol.Where(
        name=choices.words(options.name) or None,
        partition=choices.words(options.partition) or None,
        account=choices.words(options.account) or None,
        qos=choices.words(options.qos) or None,
        user=users or None,
        state=list(choices.states(options.states)) if options.states else None,
    )
    is_filtered = where != protocol.Where()
    where = replace(where, id=only)
    jobs = client.call(protocol.ListQueue(fields=_FIELDS, where=where)).jobs
    if not jobs and said_by("fgcancel") == "fgcancel" and (wrong := choices.unknown_here(client.call, where)):
        raise wrong
    if not jobs and is_filtered and options.verbose:
        click.echo(f"{said_by('fgcancel')}: no active jobs match", err=True)
    here = {job.id for job in jobs} | {job.array for job in jobs}
    absent = [] if is_filtered or only is None else [name for name in only if not _is_among(name, here)]
    return [*absent, *(_within(job, only) for job in jobs if _agreed(job, options))]


def _is_among(name: Name, here: Set[int | None]) -> bool:
    return (name if isinstance(name, int) else int(name.partition("_")[0])) in here


def _within(job: protocol.JobInfo, names: Sequence[Name] | None) -> Name:
    """Return the name of a job; of pending tasks, only the tasks that were named."""
    if job.tasks is None or names is None or job.array in names:
        return choices.exactly(job)
    mine = [name for name in names if isinstance(name, str) and name.startswith(f"{job.array}_")]
    wanted = 0
    for task_name in mine:
        wanted |= parse_tasks(task_name.partition("_")[2].strip("[]"))
    still = parse_tasks(job.tasks.partition("%")[0]) & wanted
    return f"{job.array}_[{format_array(still)}]" if still else choices.exactly(job)


def _may(client: Client, users: Iterable[str]) -> None:
    others = [user for user in users if user != choices.me()]
    if others and not client.call(protocol.Ping()).operator:
        raise NotPermitted(
            f"the jobs of {clean(others[0])} are not yours", "Only an operator may cancel them."
        )


def _agreed(job: protocol.JobInfo, options: CancelOptions) -> bool:
    """Tell whether to cancel a job: not in a dry run, and only after a yes with --interactive."""
    about = f"job_id={view.label(job)} name={clean(job.name)} partition={job.partition}"
    if options.dry_run:
        write(f"Would cancel {about} user={clean(job.user)} state={job.state.value}\n")
        return False
    if not options.interactive:
        return True
    click.echo(f"Cancel {about} [y/n]? ", nl=False, err=True)
    return bool(sys.stdin) and sys.stdin.readline().strip().lower() in {"y", "yes"}


def _act(
    client: Client, ids: Sequence[Name], *, number: int | None, target: Target, reason: str
) -> Iterator[Outcome]:
    """Yield the outcome for every job. TERM and KILL to a whole job cancel it; KILL does not wait.

    A cancellation is stored, and a signal is not: on a full disk, KILL still ends a job that fills it.
    """
    ends = number in (None, _TERM, _KILL) and target == "all"
    for start in range(0, len(ids), _AT_ONCE):
        some = list(ids[start : start + _AT_ONCE])
        is_cancelled = False
        if ends:
            try:
                yield from client.call(protocol.Cancel(ids=some, reason=reason)).jobs
                is_cancelled = True
            except StorageError as error:
                if number != _KILL:
                    raise
                warn("fgcancel", f"the cancellation is not stored, the jobs are killed: {error.cause}")
        if number is not None and (not ends or number == _KILL):
            answer = client.call(protocol.Signal(ids=some, signal=number, target=target))
            yield from () if is_cancelled else answer.jobs


def _report(outcome: Outcome, number: int | None, options: CancelOptions) -> int:
    """Print the outcome of one job if necessary; return its exit status."""
    what = "Kill job error" if number in (None, _TERM, _KILL) else "Signal job error"
    if (
        outcome.error is not None
        and outcome.error.exit == Exit.NO_SUCH_JOB
        and said_by("fgcancel") == "scancel"
    ):
        return Exit.DONE  # of a job that ended long ago scancel says nothing
    if error := outcome.error:
        cause = error.cause.partition(":")[0] if error.exit == Exit.NO_SUCH_JOB else error.cause
        warn("fgcancel", f"{what} on job id {outcome.id}: {cause}")
        return error.exit
    if outcome.outcome == "over":
        message = f"job {outcome.id} already {outcome.state}"
        if options.strict:
            warn("fgcancel", message)
        elif options.verbose:
            click.echo(f"{said_by('fgcancel')}: {message}", err=True)
        return Exit.NO_SUCH_JOB if options.strict else Exit.DONE
    if options.verbose:
        click.echo(_done(outcome, number), err=True)
    return Exit.DONE


def _done(outcome: Outcome, number: int | None) -> str:
    """Return what was done, in the words of Slurm if the command was called by its name."""
    name, signalled = said_by("fgcancel"), number and outcome.outcome != "cancelled"
    if name == "scancel":
        return (
            f"scancel: Signal {number} to job {outcome.id}"
            if signalled
            else f"scancel: Terminating job {outcome.id}"
        )
    return (
        f"{name}: job {outcome.id} {f'signal {signal_name(number or 0)} sent' if signalled else 'cancelled'}"
    )


def main() -> None:
    run(fgcancel)


if __name__ == "__main__":
    main()
