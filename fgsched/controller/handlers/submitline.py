"""Read the command line of fgsub, and submit its job."""

from collections.abc import Callable

from msgspec.structs import replace

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.registration import writes
from fgsched.domain.errors import FgschedError
from fgsched.domain.units import SubmitContext
from fgsched.protocol import LineRead, LineSubmitted, Problem, SubmitLine
from fgsched.submission.options import HelpAsked, given, read
from fgsched.submission.prepare import Prepared, SubmissionPreparer
from fgsched.submission.questions import Asking, Unknown
from fgsched.submission.request import (
    NO_GPU,
    explained,
    parts,
    says_no_gpu,
    submitted,
    wants_hint,
    warnings,
)

_ELSEWHERE = LineSubmitted(elsewhere=True)
_PREFIXES = ("FGSUB_", "SBATCH_")  # of variables that are options
_LONGEST = 4096  # characters of one, as of a word: a line is read between two turns
Submit = Callable[[Caller, protocol.Submit, float], protocol.Submitted]


class LineHandlers:
    """The handler of command lines."""

    def __init__(
        self, submit: Submit, site: Callable[[Caller], SubmitContext], is_filtered: Callable[[], bool] = bool
    ) -> None:
        """`is_filtered`: whether the site has a submit filter. Then the client gets what was read."""
        self._submit, self._site, self._is_filtered = submit, site, is_filtered

    @writes(SubmitLine)
    def submit_line(self, caller: Caller, call: SubmitLine, now: float) -> LineSubmitted:
        """Queue the job of a line, or ask its sender about it.

        Raises: BadUsage or Refused for a wrong line; NotPermitted for a uid without an account.
        """
        caller.must_have_account()
        here, site = Asking(call), self._site(caller)
        try:
            job = _prepared(call, here, site)
        except (HelpAsked, _ForWorker):
            return _ELSEWHERE
        except (Unknown, FgschedError):
            if not here.open:
                raise
            return _asked(call, here)
        hint = _hint(call, job, here, site)
        if here.open:
            return _asked(call, here)
        if not call.asks and (self._is_filtered() or hint or _is_for_client(job.flags)):
            return _ELSEWHERE
        return self._answered(caller, call, job, hint, now)

    def _answered(
        self, caller: Caller, call: SubmitLine, job: Prepared, hint: str, now: float
    ) -> LineSubmitted:
        notes = f"{call.name}: note: {NO_GPU}\n" if call.terminal and says_no_gpu(job) else ""
        answer = LineSubmitted(err=warnings([job], call.name) + notes, flags=job.flags, hint=hint)
        if job.flags.explain:
            return replace(answer, out=explained(job))
        if job.flags.test or self._is_filtered():
            return replace(answer, read=LineRead(**parts([job])))
        try:
            made = self._submit(caller, protocol.Submit(**parts([job]), key=call.key), now)
        except FgschedError as error:
            if not call.asks:
                raise
            return replace(answer, refusal=Problem.of(error))
        return replace(
            answer,
            first=made.first,
            out="" if job.flags.quiet or job.flags.json else submitted(job.flags, made.first),
            err=warnings([job], call.name, made.warnings) + notes,
        )


class _ForWorker(Exception):
    """Raised for a line that takes too long to be read here: a list of submissions, or a long option."""


def _prepared(call: SubmitLine, here: Asking, site: SubmitContext) -> Prepared:
    """Return the submission of a line. Raises Unknown, _ForWorker, HelpAsked, or the refusal of the line."""
    if any(len(variable) > _LONGEST for variable in call.environ if variable.startswith(_PREFIXES)):
        raise _ForWorker
    settings, words = read(call.words)
    if given(settings, "batch") is not None:
        raise _ForWorker
    return SubmissionPreparer(here, site=site, name=call.name).prepare(settings, words)


def _asked(call: SubmitLine, here: Asking) -> LineSubmitted:
    """Return the open questions, or the checks that take their place for a native sender."""
    if call.asks:
        return LineSubmitted(questions=list(dict.fromkeys(here.open)))
    return LineSubmitted(checks=list(dict.fromkeys(here.checks))) if here.are_checks_enough else _ELSEWHERE


def _hint(call: SubmitLine, job: Prepared, here: Asking, site: SubmitContext) -> str:
    """Return the name of a job whose last runs are compared with its request; "" for a program."""
    is_wanted = call.terminal and site.hints and wants_hint(job, here.environ)
    return job.submission.request.name if is_wanted else ""


def _is_for_client(flags: protocol.Flags) -> bool:
    """Tell whether the sender has more to do than to print the answer."""
    return flags.json or flags.wait or flags.test
