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
from fgsched.cli.command import Command, OptionsCommand, leave, run, said_by, write
from fgsched.client import Client, find_places
from fgsched.domain.errors import BadUsage, FgschedError, Refused
from fgsched.domain.text import quoted
from fgsched.domain.units import SubmitContext
from fgsched.protocol import Flags, LineRead, Ping, Test
from fgsched.submission.checks import Process
from fgsched.submission.options import AnySetting, given, read
from fgsched.submission.prepare import Prepared, SubmissionPreparer
from fgsched.submission.request import NO_GPU, explained, parts, says_no_gpu, submitted, wants_hint, warnings
from fgsched.submission.table import ASKS_FOR_HELP
from fgsched.system.unanswered import new_key

_STATUSES = {str(number) for number in range(1, 256)}  # that an error may have


class FgsubCommand(Command, OptionsCommand):
    """The error messages of fgsub: Slurm's wording for refused jobs, and FG_EXIT_ERROR."""

    shortens = False  # its own reader does that, up to the name of the script

    def fail(self, cause: str, remedy: str, code: int) -> NoReturn:
        if code == Refused.exit_code:
            cause = f"Batch job submission failed: {cause}"
        asked = os.environ.get("FG_EXIT_ERROR", "")
        super().fail(cause, remedy, int(asked) if asked in _STATUSES else code)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave the line to the controller, unless it may ask for help or a shell asks for completions."""
        if ctx.resilient_parsing or any(map(_may_ask_for_help, args)):
            super().parse_args(ctx, args)
        ctx.params = {"line": args}
        return []


def _may_ask_for_help(word: str) -> bool:
    is_long = word.startswith("--")
    return word[2:] in ASKS_FOR_HELP if is_long else word[:1] == "-" and not {"h", "V"}.isdisjoint(word)


@click.command(
    cls=FgsubCommand,
    epilog="fgsub --gpus=0.5 --time=2h train.sh",
    options_metavar="[OPTION]... [SCRIPT | COMMAND] [ARGUMENT]...",
)
def fgsub(line: Sequence[str]) -> int:
    """Submit a batch script and print the job's id."""
    process = Process(os.environ, directory(), _stdin())
    sent = sentline.line_of(line, process)
    places = find_places()
    with sentline.kept_key(places, sent) as key, Client(places, names_variables=False) as client:
        is_list = any(word.startswith("--ba") for word in line) and given(read(line)[0], "batch") is not None
        answer = None if is_list or sentline.is_long(sent) else sentline.read(client, sent, key, process)
        if answer is None:
            return _read_here(client, key, line, process)
        click.echo(answer.err, err=True, nl=False)
        if answer.refusal is not None:
            raise answer.refusal.error()
        if answer.flags.explain:
            write(answer.out)
            return 0
        if answer.flags.test:
            assert answer.read is not None
            return _test(client, answer.read)
        ids = range(answer.first, answer.first + 1)
        if answer.read is not None:
            ids = _submit(client, key, answer.read)
        return _finish(client, ids, answer.flags, answer.hint)


def _read_here(client: Client, key: sentline.SubmissionKey, line: Sequence[str], process: Process) -> int:
    """Read a list of submissions, or a line that would take the controller too long, and submit the jobs."""
    settings, words = read(line)
    site = client.call(Ping()).site
    batch = given(settings, "batch")
    name = said_by("fgsub")
    if batch is None:
        jobs = [SubmissionPreparer(process, site=site, name=name).prepare(settings, words)]
    else:
        jobs = _list(batch, settings, words, process, site)
    click.echo(warnings(jobs, name), err=True, nl=False)
    flags, is_for_person = jobs[0].flags, batch is None and sentline.is_for_person()
    if is_for_person and says_no_gpu(jobs[0]):
        click.echo(f"{name}: note: {NO_GPU}", err=True)
    if flags.explain:
        write("".join(map(explained, jobs)))
        return 0
    with _placed(jobs):
        line_read = LineRead(**parts(jobs))
        if flags.test:
            return _test(client, line_read)
        ids = _submit(client, key, line_read)
    hint = is_for_person and site.hints and wants_hint(jobs[0], os.environ)
    return _finish(client, ids, flags, jobs[0].submission.request.name if hint else "")


def _submit(client: Client, key: sentline.SubmissionKey, found: LineRead) -> range:
    """Submit what was read, and return the ids of the jobs."""
    answer = key.submit(client, protocol.Submit(**structs.asdict(found), key=new_key(time.time())))
    click.echo(warnings((), said_by("fgsub"), answer.warnings), err=True, nl=False)
    return range(answer.first, answer.first + answer.count)


def _finish(client: Client, ids: range, flags: Flags, hint: str) -> int:
    """Print the ids, and wait for the jobs if asked to; `hint`: the job of whose last runs to tell."""
    with _interruptible(ids, waits=flags.wait):
        _print(client, ids, flags)
        if hint:
            from fgsched.cli.hint import tell  # for persons only: it asks the controller

            tell(client, ids[0], hint)
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


def _test(client: Client, found: LineRead) -> int:
    """Print on standard error, as sbatch does, when and where each job would start."""
    from fgsched.cli.prospects import tested

    name = said_by("fgsub")
    answer = client.call(Test(**structs.asdict(found), key=new_key(time.time())), patience=60)
    for job in answer.jobs:
        first, *others = tested(job)
        click.echo("\n".join([f"{name}: {first}", *others]), err=True)
    if answer.left_out:
        click.echo(f"{name}: … and {answer.left_out} more, which would be taken too", err=True)
    return 0


def _list(
    batch: str,
    settings: Sequence[AnySetting],
    words: Sequence[str],
    process: Process,
    site: SubmitContext,
) -> list[Prepared]:
    from fgsched.cli.batch import parse_batch, read_lines

    if words:
        raise BadUsage(f"--batch reads the scripts from the list; remove {quoted(words[0])}")
    name, lines = read_lines(batch, _stdin())
    jobs = parse_batch(lines, name, settings, environ=os.environ, cwd=process.cwd, site=site)
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
    from fgsched.cli.fgwait import exit_code, wait_for

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


def main() -> None:
    run(fgsub)


if __name__ == "__main__":
    main()
