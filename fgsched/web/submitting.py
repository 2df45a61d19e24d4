"""What the form of a submission asks: read as fgsub reads its line, in the place of the user's shell."""

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from msgspec import structs

from fgsched import protocol
from fgsched.domain.errors import BadUsage, Exit, FgschedError
from fgsched.domain.text import shown
from fgsched.lifecycle.jobscript import accept
from fgsched.protocol import JobInfo
from fgsched.submission.checks import STDIN, Process, Source, account
from fgsched.submission.options import given, read
from fgsched.submission.prepare import Prepared, SubmissionPreparer
from fgsched.submission.request import NO_GPU, parts, says_no_gpu
from fgsched.system.unanswered import new_key
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.web.frame import FormNotice
from fgsched.web.pages import ended
from fgsched.web.pages.submit import NAMES, FormAnswer, SubmissionWish, filled
from fgsched.web.reading import HostReader, job
from fgsched.web.visit import Visit

_BACK = 500  # ids before the new job: a bounded look at the history
_FIELDS = view.attributes("id name state started_at elapsed", view.gpu_peak)
_NOT_HERE = ("batch", "wait", "test-only", "explain-options", "json", "parsable")  # they are about a terminal


class FormProcess(Process):
    """The process of the page in the place of a shell in the user's directory; standard input is the text."""

    def __init__(self, wish: SubmissionWish, umask: int) -> None:
        super().__init__(os.environ, wish.directory)
        self.umask, self._text = umask, wish.text

    def script(self, word: str | None, directory: str) -> Source:
        """Return the script that `word` names, or the text. Raises BadUsage."""
        if word is not None:
            return super().script(word, directory)
        accept(STDIN, self._text)
        return Source(STDIN, self._text)


def wish_of(form: Mapping[str, str]) -> SubmissionWish:
    """Return what a form asks for; a button may set one of its fields."""
    fields = {name: form[name] for name in NAMES if name in form}
    name, _, value = form.get("set", "").partition("=")
    if name in NAMES:
        fields[name] = value
    return SubmissionWish(fields=fields, home=account(os.environ)[1])


def opened(reader: HostReader, visit: Visit) -> FormAnswer:
    """Return the form of the page, empty or with the fields of a job.

    Raises:
        BadUsage: the job is not the reader's, or its script cannot be shown.
        FgschedError: the controller refuses, or does not answer.
    """
    key, again = new_key(visit.now), visit.query.get("again", "")
    if not again:
        return FormAnswer(wish=wish_of(visit.query), key=key)
    data = job(reader, structs.replace(visit, params={"job": again}))
    if data.job.uid != visit.viewer.uid:
        raise BadUsage(f"job {shown(again)} is not yours", "Its owner can submit it again.")
    part = ended.part(data) if visit.query.get("next") and data.job.state.is_final else None
    fields = filled(data.job, data.script, line=part.line if part else "")
    if not all(char.isprintable() or char in "\n\t" for char in fields.get("text", "")):
        raise BadUsage(
            f"the script of job {shown(again)} has characters that a page cannot show",
            "Submit it in a terminal: fgctl write batch_script writes it to a file.",
        )
    wish = SubmissionWish(fields=fields, home=account(os.environ)[1])
    return structs.replace(tested(reader, wish, key), again=view.label(data.job))


def tested(reader: HostReader, wish: SubmissionWish, key: str) -> FormAnswer:
    """Ask when the job of a form would start; a refusal is part of the answer.

    Raises: FgschedError, if the controller does not answer.
    """
    submission = FormAnswer(wish=wish, key=key)
    try:
        prepared = _prepared(reader, wish)
        call = protocol.Test(**parts([prepared]), key=new_key(time.time()))
        trial = reader.ask(call).jobs[0]
    except FgschedError as error:
        if error.exit_code in (Exit.UNREACHABLE, Exit.STORAGE):
            raise
        return structs.replace(submission, refusal=error)
    request = prepared.submission.request
    return structs.replace(
        submission,
        trial=trial,
        headers=[f"--{one.option.name}={one.text}" for one in prepared.settings.values() if one.line],
        warnings=_warnings(prepared),
        runs=_runs(reader, request.name, trial.id),
        time_limit=request.time_limit,
        models={info.gpu.index: info.gpu.model for info in reader.look().frame.gpus},
    )


def _prepared(reader: HostReader, wish: SubmissionWish, *, hold: bool = False) -> Prepared:
    """Read a form as fgsub reads its line. Raises FgschedError."""
    settings, words = read(wish.words(hold=hold))
    for name in _NOT_HERE:
        if given(settings, name) is not None:
            raise BadUsage(f"other options: --{name} has no meaning on a page", "Leave it out.")
    process = FormProcess(wish, reader.umask)
    return SubmissionPreparer(process, site=reader.ask(protocol.Ping()).site).prepare(settings, words)


def _warnings(prepared: Prepared) -> list[str]:
    note = [f"{NO_GPU[:1].upper()}{NO_GPU[1:]}"] if says_no_gpu(prepared) else []
    return [*prepared.warnings, *note]


def _runs(reader: HostReader, name: str, job: int) -> list[JobInfo]:
    """Return the earlier jobs of the user with this name, the last first; hints are no reason to fail."""
    with suppress(FgschedError):
        call = protocol.ListHistory(fields=_FIELDS, after=max(0, job - 1 - _BACK), uid=os.geteuid())
        return [run for run in reversed(reader.ask(call).jobs) if run.name == name]
    return []


def submit(reader: HostReader, wish: SubmissionWish, key: str, *, hold: bool) -> tuple[str, FormNotice]:
    """Submit the job of a form; return the address of its page, and a text. Raises FgschedError.

    A form that is sent twice, as by a double click, submits one job.
    """
    prepared = _prepared(reader, wish, hold=hold)
    call = protocol.Submit(**parts([prepared]), key=_key(wish, key, hold=hold))
    try:
        answer = reader.ask(call)
    finally:
        reader.is_changed()
    warnings = dict.fromkeys((*prepared.warnings, *answer.warnings))
    is_array = bool(prepared.submission.request.array)
    what = f"{'Array' if is_array else 'Job'} {answer.first} is submitted"
    text = " ".join([f"{what}{', and held' if hold else ''}.", *(f"{line}." for line in warnings)])
    return f"/{'array' if is_array else 'job'}/{choices.ids([str(answer.first)], 1)[0]}", FormNotice(text)


def _key(wish: SubmissionWish, key: str, *, hold: bool) -> str:
    """Return the key of a submission: of one form with one content."""
    content = repr((key, sorted(wish.fields.items()), hold))
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
