"""fgsub: submit a script or a list of submissions, and print the ids.

The command line is sent to the controller, which reads it and asks for what only this process knows. The key
of a submission without an answer is kept: a repeated command uses it again. The native program passes on the
key of a line that it has sent without an answer.
"""

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click
from msgspec import structs

from fgsched import protocol
from fgsched.cli.command import Command, OptionsCommand, is_for_person, leave, run, said_by, write
from fgsched.client import UNCHANGED, Client, find_paths
from fgsched.codec import encode
from fgsched.domain.errors import BadUsage, FgschedError, OurFault, Refused, Unreachable
from fgsched.domain.text import quoted
from fgsched.domain.units import SubmitContext
from fgsched.protocol import (
    MAX_LINE_SCRIPT,
    Answer,
    Flags,
    LineFact,
    LineQuestion,
    LineSubmitted,
    ParsedLine,
    Ping,
    SubmitLine,
    Test,
)
from fgsched.submission import questions
from fgsched.submission.checks import Process
from fgsched.submission.options import AnySetting, HelpAsked, given, read
from fgsched.submission.request import NO_GPU, explained, parts, says_no_gpu, submitted, wants_hint, warnings
from fgsched.submission.table import ASKS_FOR_HELP
from fgsched.system.paths import Paths
from fgsched.system.unanswered import VALID, Unanswered, new_key

if TYPE_CHECKING:  # the controller reads most lines
    from fgsched.submission.prepare import Prepared

_STATUSES = {str(number) for number in range(1, 256)}  # that an error may have


_KEPT = (
    f"It may have been queued all the same. Repeat the same command within {VALID / 60:.0f} minutes: "
    "it is queued only once."
)
_LOOK = "It may have been queued all the same: look with fgq before you repeat the command."
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by the native program, while there is no answer
_MOST_SCRIPTS = 8  # words that are looked at, as in fgshim/front/submit.c: only one is the script
_MOST_WORDS, _LONGEST_WORD, _MOST_VARIABLES = 1024, 4096, 16_384  # of a line, as `SubmitLine` has them
_MOST_TEXT = 2 << 20  # characters of all variables
_ROUNDS = 16  # in which the controller may ask
sent_key = ""  # with which the native program has sent the line; "": it has sent nothing


class SubmissionKey:
    """The key of the submission of this command, kept on disk while it has no answer."""

    def __init__(self, paths: Paths, line: SubmitLine) -> None:
        """Keep the key with which the native program has sent `line`, if it has."""
        self._paths = paths
        self._sent = sent_key  # with which an equal request was sent; it is not exchanged for another one
        self._kept: Unanswered | None = None  # of a request without an answer
        if self._sent:
            self._keep(line)

    @property
    def remedy(self) -> str:
        """What to do about a request without an answer; "" if there is none."""
        return "" if self._kept is None else _KEPT if self._kept.is_kept else _LOOK

    def submit(self, client: Client, call: protocol.Call[Answer]) -> Answer:
        """Send a submission with the key, and return its answer. Raises the errors of the client."""
        client.open()  # it may make the directory of the keys
        key = self._keep(call)
        try:
            answer = client.call(structs.replace(call, key=key.value), patience=60, unanswered=self.remedy)
        except Unreachable:
            raise
        except FgschedError:
            self._answered()
            raise
        self._answered()
        return answer

    def _keep(self, call: protocol.Call[Any]) -> Unanswered:
        """Keep a key for a request, or take over that of an equal one without an answer."""
        before, content = self._kept, encode(_repeated(call))
        directory = self._paths.own_run(os.environ, os.geteuid()) / "unanswered"
        self._kept = key = Unanswered(directory, content, time.time(), self._sent)
        if before and key.is_kept and before.name != key.name:
            before.answered()
        if key.is_taken_over:
            self._sent = key.value
        return key

    def _answered(self) -> None:
        assert self._kept is not None
        self._kept.answered()
        self._kept = None


@contextmanager
def kept_key(paths: Paths, line: SubmitLine) -> Iterator[SubmissionKey]:
    """Yield the key of a submission; an error says that the job may be queued, if there is no answer."""
    key = SubmissionKey(paths, line)
    try:
        if sent_key:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
        yield key
    except FgschedError as error:
        if key.remedy not in error.remedy:
            error.remedy = f"{error.remedy.replace(UNCHANGED, '').strip()}\n{key.remedy}".lstrip()
        raise
    except KeyboardInterrupt:
        if key.remedy:
            click.echo(f"{said_by('fgsub')}: interrupted. {key.remedy}", err=True)
        raise


def _repeated(call: protocol.Call[Any]) -> protocol.Call[Any]:
    """Return the part of a request that is equal when a command is repeated; times may count from now."""
    if isinstance(call, SubmitLine):
        facts = [fact for fact in call.facts if fact.question.kind != "moment"]
        return structs.replace(call, key="", facts=facts, terminal=False)
    if isinstance(call, protocol.Submit):
        requests = [structs.replace(request, begin=0, deadline=0) for request in call.requests]
        return structs.replace(call, key="", requests=requests)
    return call


def line_of(words: Sequence[str], process: Process) -> SubmitLine:
    """Return the line of this process."""
    return SubmitLine(
        key=new_key(time.time()),
        words=words,
        cwd=process.cwd,
        environ=[f"{name}={value}" for name, value in process.environ.items()],
        umask=process.umask,
        rlimits=process.rlimits,
        files=_scripts(words),
        terminal=is_for_person(),
        name="sbatch" if said_by("fgsub") == "sbatch" else "fgsub",
        asks=True,
        facts=[_fact(LineQuestion(kind="writable", words=(process.cwd,)), process)],  # mostly it is asked
    )


def _fact(question: LineQuestion, process: Process) -> LineFact:
    return LineFact(question=question, words=questions.answer(question, process))


def is_long(line: SubmitLine) -> bool:
    """Tell whether the controller would refuse to read a line, because other users would have to wait."""
    return (
        len(line.words) > _MOST_WORDS
        or any(len(word) > _LONGEST_WORD for word in line.words)
        or len(line.environ) > _MOST_VARIABLES
        or sum(map(len, line.environ)) > _MOST_TEXT
    )


def ask_controller(
    client: Client, line: SubmitLine, key: SubmissionKey, process: Process
) -> LineSubmitted | None:
    """Let the controller read and submit a line; None: this command has to read it.

    Raises: the refusal, or the error of a check of this process; OurFault, if the questions do not end.
    """
    facts = list(line.facts)
    for _ in range(_ROUNDS):
        answer = key.submit(client, structs.replace(line, facts=facts))
        if answer.elsewhere or not answer.questions:
            return None if answer.elsewhere else answer
        for question in answer.questions:
            facts.append(_fact(question, process))
            if any(len(word) > MAX_LINE_SCRIPT for word in facts[-1].words):
                return None  # a long script
    raise OurFault("the controller does not stop asking about the line")


def _scripts(words: Sequence[str]) -> dict[str, str]:
    """Return the texts of words that name small scripts."""
    scripts: dict[str, str] = {}
    for word in words:
        text = _script(word) if len(scripts) < _MOST_SCRIPTS else b""
        if text:
            scripts[word] = text.decode("utf-8", "surrogateescape")
    return scripts


def _script(word: str) -> bytes:
    """Return the text of a small script; b"": the word names none."""
    if word.startswith(("-", "/dev/", "/proc/")):
        return b""
    try:
        descriptor = os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        text = os.read(descriptor, MAX_LINE_SCRIPT + 1) if is_file else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return text if len(text) <= MAX_LINE_SCRIPT and text.startswith(b"#!") and b"\0" not in text else b""


class FgsubCommand(Command, OptionsCommand):
    """The error messages of fgsub: Slurm's wording for refused jobs, and FG_EXIT_ERROR."""

    shortens = False  # its own reader does that, up to the name of the script

    def fail(self, cause: str, remedy: str, code: int) -> NoReturn:
        if code == Refused.exit_code:
            cause = f"Batch job submission failed: {cause}"
        status = os.environ.get("FG_EXIT_ERROR", "")
        super().fail(cause, remedy, int(status) if status in _STATUSES else code)

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
    try:
        return _sent(line)
    except Unreachable:
        with suppress(HelpAsked):
            read(line)  # a wrong option is an error that needs no controller
        raise


def _sent(line: Sequence[str]) -> int:
    process = Process(os.environ, directory(), _stdin())
    sent = line_of(line, process)
    paths = find_paths()
    with kept_key(paths, sent) as key, Client(paths, names_variables=False) as client:
        is_list = any(word.startswith("--ba") for word in line) and given(read(line)[0], "batch") is not None
        answer = None if is_list or is_long(sent) else ask_controller(client, sent, key, process)
        if answer is None:
            return _read_here(client, key, line, process)
        click.echo(answer.err, err=True, nl=False)
        if answer.refusal is not None:
            raise answer.refusal.error()
        if answer.flags.explain:
            write(answer.out)
            return 0
        if answer.flags.test:
            assert answer.parsed is not None
            return _test(client, answer.parsed)
        ids = range(answer.first, answer.first + 1)
        if answer.parsed is not None:
            ids = _submit(client, key, answer.parsed)
        return _finish(client, ids, answer.flags, answer.hint)


def _read_here(client: Client, key: SubmissionKey, line: Sequence[str], process: Process) -> int:
    """Read a list of submissions, or a line that would take the controller too long, and submit the jobs."""
    from fgsched.submission.prepare import SubmissionPreparer

    settings, words = read(line)
    site = client.call(Ping()).site
    batch = given(settings, "batch")
    name = said_by("fgsub")
    if batch is None:
        jobs = [SubmissionPreparer(process, site=site, name=name).prepare(settings, words)]
    else:
        jobs = _list(batch, settings, words, process, site)
    click.echo(warnings(jobs, name, is_for_person=is_for_person()), err=True, nl=False)
    flags, is_single_for_person = jobs[0].flags, batch is None and is_for_person()
    if is_single_for_person and says_no_gpu(jobs[0]):
        click.echo(f"{name}: note: {NO_GPU}", err=True)
    if flags.explain:
        write("".join(map(explained, jobs)))
        return 0
    with _placed(jobs):
        parsed_line = ParsedLine(**parts(jobs))
        if flags.test:
            return _test(client, parsed_line)
        ids = _submit(client, key, parsed_line)
    hint = is_single_for_person and site.hints and wants_hint(jobs[0], os.environ)
    return _finish(client, ids, flags, jobs[0].submission.request.name if hint else "")


def _submit(client: Client, key: SubmissionKey, parsed_line: ParsedLine) -> range:
    """Submit what was read, and return the ids of the jobs."""
    answer = key.submit(client, protocol.Submit(**structs.asdict(parsed_line), key=new_key(time.time())))
    text = warnings((), said_by("fgsub"), answer.warnings, is_for_person=is_for_person())
    click.echo(text, err=True, nl=False)
    return range(answer.first, answer.first + answer.count)


def _finish(client: Client, ids: range, flags: Flags, hint: str) -> int:
    """Print the ids, and wait for the jobs if asked to; `hint`: the job of whose last runs to tell."""
    with _interruptible(ids, waits=flags.wait):
        _print(client, ids, flags)
        if hint:
            from fgsched.cli.hint import print_hint  # for persons only: it asks the controller

            print_hint(client, ids[0], hint)
        return _wait(client, ids) if flags.wait else 0


@contextmanager
def _placed(jobs: "Sequence[Prepared]") -> Iterator[None]:
    """Add the line of the list to an error about one of its submissions."""
    try:
        yield
    except FgschedError as error:
        place = jobs[error.job].place if error.job is not None and error.job < len(jobs) else ""
        if place:
            raise type(error)(f"{place}: {error.cause}", error.remedy) from None
        raise


def _test(client: Client, parsed_line: ParsedLine) -> int:
    """Print on standard error, as sbatch does, when and where each job would start."""
    from fgsched.cli.prospects import tested

    name = said_by("fgsub")
    answer = client.call(Test(**structs.asdict(parsed_line), key=new_key(time.time())), patience=60)
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
) -> "list[Prepared]":
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
