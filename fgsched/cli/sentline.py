"""Send the command line of fgsub to the controller, which reads it, and answer what it asks.

The key of a submission without an answer is kept: a repeated command uses it again. The native program passes
on the key of a line that it has sent without an answer.
"""

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from msgspec import structs

from fgsched import protocol
from fgsched.cli.command import said_by
from fgsched.client import UNCHANGED, Client
from fgsched.codec import encode
from fgsched.domain.errors import FgschedError, OurFault, Unreachable
from fgsched.protocol import MAX_LINE_SCRIPT, Answer, LineFact, LineQuestion, LineSubmitted, SubmitLine
from fgsched.submission import questions
from fgsched.submission.checks import Process
from fgsched.system.paths import Paths
from fgsched.system.unanswered import VALID, Unanswered, new_key

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

    def __init__(self, places: Paths, line: SubmitLine) -> None:
        """Keep the key with which the native program has sent `line`, if it has."""
        self._places = places
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
        directory = self._places.own_run(os.environ, os.geteuid()) / "unanswered"
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
def kept_key(places: Paths, line: SubmitLine) -> Iterator[SubmissionKey]:
    """Yield the key of a submission; an error says that the job may be queued, if there is no answer."""
    key = SubmissionKey(places, line)
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


def is_for_person() -> bool:
    """Tell whether a person reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_long(line: SubmitLine) -> bool:
    """Tell whether the controller would refuse to read a line, because other users would have to wait."""
    return (
        len(line.words) > _MOST_WORDS
        or any(len(word) > _LONGEST_WORD for word in line.words)
        or len(line.environ) > _MOST_VARIABLES
        or sum(map(len, line.environ)) > _MOST_TEXT
    )


def read(client: Client, line: SubmitLine, key: SubmissionKey, process: Process) -> LineSubmitted | None:
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
