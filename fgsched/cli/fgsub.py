"""fgsub: submit a script or a list of submissions, and print the ids."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click
from msgspec import structs

from fgsched import protocol
from fgsched.cli import sentline
from fgsched.cli.clickoptions import OptionsCommand
from fgsched.cli.command import Command, leave, run, said_by, write
from fgsched.client import Client, find_places
from fgsched.codec import encode
from fgsched.domain.errors import BadUsage, FgschedError, Refused, Unreachable
from fgsched.domain.text import quoted
from fgsched.domain.units import SubmitContext
from fgsched.protocol import Ping, Test
from fgsched.submission.checks import Process
from fgsched.submission.options import Setting, given
from fgsched.submission.prepare import Flags, Prepared, Submitter
from fgsched.submission.request import NO_GPU, parts, says_no_gpu, submitted, wants_hint, warnings
from fgsched.system.unanswered import Unanswered

_STATUSES = {str(number) for number in range(1, 256)}  # that an error may have


class FgsubCommand(Command, OptionsCommand):
    """The error messages of fgsub: Slurm's wording for refused jobs, and FG_EXIT_ERROR."""

    shortens = False  # its own reader does that, up to the name of the script

    def fail(self, cause: str, remedy: str, code: int) -> NoReturn:
        if code == Refused.exit_code:
            cause = f"Batch job submission failed: {cause}"
        asked = os.environ.get("FG_EXIT_ERROR", "")
        super().fail(cause, remedy, int(asked) if asked in _STATUSES else code)


@click.command(
    cls=FgsubCommand,
    epilog="fgsub --gpus=0.5 --time=2h train.sh",
    options_metavar="[OPTION]... [SCRIPT | COMMAND] [ARGUMENT]...",
)
def fgsub(settings: Sequence[Setting], words: Sequence[str]) -> int:
    """Submit a batch script and print the job's id."""
    name = said_by("fgsub")
    with sentline.told(name), Client(find_places(), names_variables=False) as client:
        site = client.call(Ping()).site
        batch = given(settings, "batch")
        jobs = [_single(settings, words, site)] if batch is None else _list(batch, settings, words, site)
        click.echo(warnings(jobs, name), err=True, nl=False)
        flags = jobs[0].flags
        if batch is None and _is_for_person() and says_no_gpu(jobs[0]):
            click.echo(f"{name}: note: {NO_GPU}", err=True)
        if flags.explain:
            _explain(jobs)
            return 0
        with _placed(jobs):
            if flags.test:
                return _test(client, jobs)
            ids = _submit(client, protocol.Submit(**parts(jobs)))
        with _interruptible(ids, waits=flags.wait):
            _print(client, ids, flags)
            if batch is None and site.hints and _is_for_person() and wants_hint(jobs[0], os.environ):
                from fgsched.cli.hint import tell  # for persons only: it asks the controller

                tell(client, ids[0], jobs[0].submission.request.name)
            return _wait(client, ids) if flags.wait else 0


@contextmanager
def _placed(jobs: Sequence[Prepared]) -> Iterator[None]:
    """Add the line of the list to an error about one of its submissions."""
    try:
        yield
    except FgschedError as error:
        place = jobs[error.job].place if error.job is not None and error.job < len(jobs) else ""
        if place:
            raise type(error)(f"{place}: {error.cause}", error.remedy) from None
        raise


def _is_for_person() -> bool:
    """Tell whether a person reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def _submit(client: Client, call: protocol.Submit) -> range:
    """Submit the jobs and return the answer. A repeated command without an answer reuses its key."""
    directory = sentline.directory_of(client.places)
    key = Unanswered(directory, encode(_repeated(call)), time.time(), sentline.key())
    sentline.replaced_by(key)
    remedy = sentline.remedy(key)
    try:
        answer = client.call(structs.replace(call, key=key.value), patience=60, unanswered=remedy)
    except Unreachable:
        raise
    except KeyboardInterrupt:
        click.echo(f"{said_by('fgsub')}: interrupted. {remedy}", err=True)
        raise
    except FgschedError:
        key.answered()
        raise
    key.answered()
    click.echo(warnings((), said_by("fgsub"), answer.warnings), err=True, nl=False)
    return range(answer.first, answer.first + answer.count)


def _repeated(call: protocol.Submit) -> protocol.Submit:
    """Return the part of a request that is equal when a command is repeated; times may count from now."""
    requests = [structs.replace(request, begin=0, deadline=0) for request in call.requests]
    return structs.replace(call, key="", requests=requests)


def _test(client: Client, jobs: Sequence[Prepared]) -> int:
    """Print on standard error, as sbatch does, when and where each job would start."""
    from fgsched.cli.prospects import tested

    name = said_by("fgsub")
    answer = client.call(Test(**parts(jobs)), patience=60)
    for job in answer.jobs:
        first, *others = tested(job)
        click.echo("\n".join([f"{name}: {first}", *others]), err=True)
    if answer.left_out:
        click.echo(f"{name}: … and {answer.left_out} more, which would be taken too", err=True)
    return 0


def _single(settings: Sequence[Setting], words: Sequence[str], site: SubmitContext) -> Prepared:
    here = Process(os.environ, directory(), _stdin())
    return Submitter(here, site=site, name=said_by("fgsub")).prepare(settings, words)


def _list(
    batch: str, settings: Sequence[Setting], words: Sequence[str], site: SubmitContext
) -> list[Prepared]:
    from fgsched.cli.batch import parse_batch, read_lines

    if words:
        raise BadUsage(f"--batch reads the scripts from the list; remove {quoted(words[0])}")
    name, lines = read_lines(batch, _stdin())
    jobs = parse_batch(lines, name, settings, environ=os.environ, cwd=directory(), site=site)
    if not jobs:
        raise BadUsage(f"{name} holds no submission")
    return jobs


def directory() -> str:
    """Return the current directory. Raises BadUsage if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise BadUsage("the current directory no longer exists", "cd to one that does.") from None


def _stdin() -> Any:
    return None if sys.stdin is None else sys.stdin.buffer


def _print(client: Client, ids: range, flags: Flags) -> None:
    """Print the ids in the requested form; to standard error if standard output cannot be written."""
    try:
        if flags.json:
            _print_json(client, ids)
        elif not flags.quiet:
            write("".join(submitted(flags, job) for job in ids))
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        span = str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
        name = said_by("fgsub")
        click.echo(f"{name}: error: submitted batch job {span}, and {error.strerror} on stdout", err=True)
        leave(6)


def _print_json(client: Client, ids: range) -> None:
    import json

    from fgsched.domain.units import format_share

    shown = []
    for job_id in ids:
        job = client.call(protocol.ShowJobs(id=job_id)).jobs[0]
        demand = job.request.demand
        share = demand.share * demand.gpus
        shown.append(
            {
                "job_id": job_id,
                "array": job.request.array or None,
                "state": job.state.value,
                "reason": job.reason.value,
                "gpus": float(format_share(share)),
                "gpumem": demand.memory or None,
            }
        )
    write(json.dumps(shown[0] if len(shown) == 1 else {"jobs": shown}) + "\n")


def _wait(client: Client, ids: range) -> int:
    from fgsched.cli.waiting import exit_code, wait_for

    as_slurm = said_by("fgsub") == "sbatch" or os.environ.get("FG_WAIT_COMPAT") == "1"
    return exit_code(wait_for(client, ids), compatible=as_slurm)


@contextmanager
def _interruptible(ids: range, *, waits: bool) -> Iterator[None]:
    """Say at Ctrl-C that the jobs continue, if the command `waits` for them."""
    try:
        yield
    except KeyboardInterrupt:
        span = str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
        jobs, verb = ("job", "continues") if len(ids) == 1 else ("jobs", "continue")
        if waits:
            click.echo(
                f"{said_by('fgsub')}: interrupted; {jobs} {span} {verb}."
                f" fgwait {span} waits, fgcancel {span} cancels",
                err=True,
            )
        raise


def _explain(jobs: Sequence[Prepared]) -> None:
    for job in jobs:
        rows = job.explained()
        width = max(len(option) for option, _, _ in rows)
        for option, value, origin in rows:
            click.echo(f"{option:<{width}}  {value}  ({origin})")


def main() -> None:
    run(fgsub)


if __name__ == "__main__":
    main()
