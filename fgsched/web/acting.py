"""What forms change: requests of the user, as the commands send them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fgsched import protocol
from fgsched.cli.changes import read_changes, words_by_key
from fgsched.domain.errors import BadUsage
from fgsched.protocol import Call, Outcome, Reference
from fgsched.views import choices
from fgsched.web.frame import FormNotice
from fgsched.web.reading import HostReader

MOST_JOBS = 100  # of one form: the rows of a page
OWN_FIELDS = ("token", "job", "back", "sure")  # of every form
Ids = Sequence[Reference]

_CALLS: dict[str, Callable[[Ids], Call[Any]]] = {
    "cancel": lambda ids: protocol.Cancel(ids=ids),
    "hold": lambda ids: protocol.UserHold(ids=ids),
    "release": lambda ids: protocol.Release(ids=ids),
    "requeue": lambda ids: protocol.Requeue(ids=ids),
    "suspend": lambda ids: protocol.Suspend(ids=ids),
    "resume": lambda ids: protocol.ResumeJobs(ids=ids),
}
VERBS = (*_CALLS, "update")
_DONE = {
    "cancel": "cancelled",
    "hold": "held",
    "release": "released",
    "requeue": "requeued",
    "suspend": "suspended",
    "resume": "resumed",
    "update": "changed",
}
ASKS = {  # verbs that ask first: the question, and the label of the button
    "cancel": ("Cancel", "Cancelled jobs end; what they have written stays."),
    "requeue": ("Requeue", "Requeued jobs end, and start again from their beginning."),
}


def jobs_of(form: Sequence[tuple[str, str]]) -> list[Reference]:
    """Return the jobs that a form names. Raises BadUsage for none, or too many."""
    texts = [value for name, value in form if name == "job"]
    if not texts:
        raise BadUsage("no job is selected", "Select some rows, then press the button again.")
    if len(texts) > MOST_JOBS:
        raise BadUsage(f"more than {MOST_JOBS} jobs are selected", "Select fewer.")
    return choices.ids(texts, MOST_JOBS * 1000)


def back_of(form: Mapping[str, str]) -> str:
    """Return the page to which a form returns: one of ours, or the first."""
    text = form.get("back", "")
    is_ours = text[:1] == "/" and text[1:2] not in ("/", "\\") and text.isascii() and text.isprintable()
    return text if is_ours and len(text) < 2000 else "/"


def change(reader: HostReader, verb: str, form: Sequence[tuple[str, str]]) -> FormNotice:
    """Carry out a form and return what came of it. Raises FgschedError."""
    ids = jobs_of(form)
    try:
        outcomes = [_update(reader, ids[0], form)] if verb == "update" else reader.ask(_CALLS[verb](ids)).jobs
    finally:
        reader.is_changed()
    return notice(verb, outcomes)


def _update(reader: HostReader, job: Reference, form: Sequence[tuple[str, str]]) -> Outcome:
    words = [f"{name}={value}" for name, value in form if name not in OWN_FIELDS]
    site = reader.ask(protocol.Ping()).site
    changes = read_changes(words_by_key(words), site)
    outcome: Outcome = reader.ask(protocol.Update(id=job, changes=changes))
    return outcome


def change_gpu(reader: HostReader, verb: str, form: Mapping[str, str]) -> FormNotice:
    """Drain or resume a GPU, and return what came of it.

    Raises:
        BadUsage: the form names no GPU.
        FgschedError: the controller refuses, or does not answer.
    """
    text = form.get("gpu", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise BadUsage("the form names no GPU", "Load the page again.")
    gpu = int(text)
    try:
        if verb == "drain":
            reader.ask(protocol.DrainGpu(gpu=gpu, reason=form.get("reason", "")))
            return FormNotice(f"GPU {gpu} is drained: its jobs continue, no new ones start.")
        reader.ask(protocol.ResumeGpu(gpu=gpu))
        return FormNotice(f"GPU {gpu} takes jobs again.")
    finally:
        reader.is_changed()


def notice(verb: str, outcomes: Sequence[Outcome]) -> FormNotice:
    """Return one text about the outcomes: the refusals, or what was done."""
    errors = [outcome for outcome in outcomes if outcome.error is not None]
    if errors:
        texts = [
            " ".join([f"Job {outcome.id}: {outcome.error.cause}.", outcome.error.remedy]).strip()
            for outcome in errors[:3]
            if outcome.error is not None
        ]
        more = f" And {len(errors) - 3} more." if len(errors) > 3 else ""
        return FormNotice(" ".join(texts) + more, has_failed=True)
    over = [outcome for outcome in outcomes if outcome.outcome == "over"]
    done = len(outcomes) - len(over)
    warnings = [text for outcome in outcomes for text in outcome.warnings]
    if not done and over:
        return FormNotice(f"Job {over[0].id} had already ended: {over[0].state}.")
    what = f"Job {outcomes[0].id} is" if done == 1 and len(outcomes) == 1 else f"{done} jobs are"
    return FormNotice(" ".join([f"{what} {_DONE[verb]}.", *warnings]))
