"""Submit the command line of a program without a parser of its own (`fgshim/front`)."""

from collections.abc import Callable
from typing import Any

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.domain.units import SubmitContext
from fgsched.protocol import LineSubmitted
from fgsched.submission.reported import Elsewhere, Reported, prepared
from fgsched.submission.request import NO_GPU, parts, says_no_gpu, submitted, wants_hint, warnings

Submit = Callable[[Caller, protocol.Submit, float], protocol.Submitted]


class LineHandlers:
    """The handler of command lines."""

    def __init__(
        self, submit: Submit, site: Callable[[Caller], SubmitContext], is_filtered: Callable[[], bool] = bool
    ) -> None:
        """`is_filtered`: whether the site has a submit filter. Then the Python command reads all lines."""
        self._submit, self._site, self._is_filtered = submit, site, is_filtered
        self.calls: dict[type[protocol.Call[Any]], Callable[[Caller, Any, float], Any]] = {
            protocol.SubmitLine: self.submit_line
        }

    def submit_line(self, caller: Caller, call: protocol.SubmitLine, now: float) -> LineSubmitted:
        """Queue the jobs of a line, or say that paths must be checked first, or that it is read elsewhere.

        Raises: BadUsage or Refused for a line that the command refuses as well.
        """
        if self._is_filtered():
            return LineSubmitted(elsewhere=True)
        try:
            return self._submitted(caller, call, now)
        except Elsewhere:
            return LineSubmitted(elsewhere=True)

    def _submitted(self, caller: Caller, call: protocol.SubmitLine, now: float) -> LineSubmitted:
        here = Reported(call)
        site = self._site(caller)
        job = prepared(call, here, site)
        if call.terminal and site.hints and wants_hint(job, here.environ):
            raise Elsewhere
        if here.checks and not call.checked:
            return LineSubmitted(checks=list(dict.fromkeys(here.checks)))
        answer = self._submit(caller, protocol.Submit(**parts([job]) | {"key": call.key}), now)
        first = answer.first
        notes = f"{call.name}: note: {NO_GPU}\n" if call.terminal and says_no_gpu(job) else ""
        out = "" if job.flags.quiet else submitted(job.flags, first)
        return LineSubmitted(first=first, out=out, err=warnings([job], call.name, answer.warnings) + notes)
