"""The form that makes a command: its fields, the command, when its job would start, refusals at their fields.

The fields are options of fgsub, so whatever the form does, the command does as well.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.domain.units import GIBIBYTE, format_indices, format_share
from fgsched.domain.waiting import Advice, Trial
from fgsched.protocol import JobInfo
from fgsched.reports.efficiency import ROOM_MEMORY, gibibytes_up
from fgsched.submission.checks import STDIN
from fgsched.submission.options import AnySetting, read
from fgsched.submission.table import BY_NAME
from fgsched.views import job as view
from fgsched.views import wording
from fgsched.web.pages import words
from fgsched.web.visit import Visit

_MOST_RUNS = 5  # earlier runs that hints are about
_OPTION = re.compile(r"--([a-z][a-z-]+)")
_TEXTS = ("script", "arguments", "text", "more")  # fields that are no option


class FormField(Struct, frozen=True):
    """A field of the form that is an option of fgsub."""

    name: str  # of the option
    label: str
    example: str = ""


OPTIONS = (
    FormField("gpus", "GPUs", "a fraction such as 0.5, or 1, 2, …"),
    FormField("gpu-mem", "Memory of each GPU", "follows the share"),
    FormField("time", "Time limit", "2h"),
    FormField("cpus-per-task", "CPUs", "1"),
    FormField("mem", "Host memory", "32G"),
    FormField("job-name", "Name", "that of the script"),
    FormField("partition", "Partition", "that of the site"),
    FormField("array", "Array", "0-15%4"),
    FormField("gpu-type", "GPU type", "any"),
    FormField("dependency", "After", "afterok:JOB"),
    FormField("begin", "Not before", "22:00"),
    FormField("output", "Output file", "fg-JOB.out"),
    FormField("chdir", "Directory", "that of the script"),
)
NAMES = (*_TEXTS, *(field.name for field in OPTIONS))
_WORDS = {  # of a refusal without an option -> its field
    "partition": "partition",
    "time limit": "time",
    "dependency": "dependency",
    "array": "array",
    "GPU memory": "gpu-mem",
    "CPU": "cpus-per-task",
    "host memory": "mem",
    STDIN: "text",
    "script": "script",
}


class SubmissionWish(Struct, frozen=True, kw_only=True):
    """What a form asks for."""

    fields: Mapping[str, str] = {}
    home: str = "/"

    def of(self, name: str) -> str:
        """Return the text of a field."""
        text = self.fields.get(name, "")
        return text if name == "text" else text.strip()

    @property
    def script(self) -> str:
        """The path of the script; a relative one begins at the home directory. "": none is named."""
        path = self.of("script")
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        return os.path.join(self.home, path) if path else ""

    @property
    def directory(self) -> str:
        """The directory from which the command is sent."""
        return os.path.dirname(self.script) or self.home

    @property
    def text(self) -> bytes:
        """The script that was pasted; browsers send lines with a carriage return."""
        return self.of("text").replace("\r\n", "\n").encode(errors="surrogateescape")

    def words(self, *, hold: bool = False) -> list[str]:
        """Return the words of the command after fgsub. Raises BadUsage."""
        if self.script and self.of("text").strip():
            raise BadUsage("script: a path and a text are given", "Clear one of them.")
        if not self.script and not self.of("text").strip():
            raise BadUsage("script: none is named, and no text is given", "Name a script on this host.")
        if self.of("arguments") and not self.script:
            raise BadUsage("arguments: a script that is pasted takes none", "Write them into its text.")
        options = [f"--{field.name}={text}" for field in OPTIONS if (text := self.of(field.name))]
        more = _split("other options", self.of("more"))
        options += [*more, *(["--hold"] if hold else [])]
        return [*options, *([self.script, *_split("arguments", self.of("arguments"))] if self.script else [])]

    def line(self) -> str:
        """Return the equivalent command. Raises BadUsage."""
        command = shlex.join(["fgsub", *self.words()])
        pasted = "" if self.script else " < SCRIPT"
        return f"cd {shlex.quote(self.directory)} && {command}{pasted}"


def _split(what: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise BadUsage(f"{what}: a quotation mark is not closed", "Close it.") from None


def filled(job: JobInfo, script: str, *, line: str = "") -> dict[str, str]:
    """Return the fields with which a job is submitted again.

    Args:
        script: its text, for a job that was submitted without a path.
        line: header line for the next run, whose options replace those of the job.
    """
    options, words = _read(_split_or_none(job.request.submit_line)[1:])
    options += _read(_split_or_none(line)[1:])[0]
    fields: dict[str, str] = {"chdir": "", "more": ""}
    others: dict[str, str] = {}
    for setting in options:
        name = setting.option.name
        if name in NAMES:
            fields[name] = setting.text
        elif name not in ("hold", "parsable", "quiet", "wait", "test-only", "json", "ignored"):
            others[name] = f"--{name}" if setting.option.is_flag else f"--{name}={setting.text}"
    fields["more"] = shlex.join(others.values())
    if not words:
        return fields | {"text": script, "chdir": fields["chdir"] or job.request.chdir}
    path = os.path.join(job.request.submit_dir, words[0])
    arguments = {"arguments": shlex.join(words[1:])}
    if os.path.dirname(path) != job.request.submit_dir and not fields["chdir"]:
        fields["chdir"] = job.request.chdir
    return fields | {"script": path} | arguments


def _split_or_none(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a long line is kept in part
        return []


def _read(options: Sequence[str]) -> tuple[list[AnySetting], list[str]]:
    try:
        return read(options)
    except BadUsage:  # it was read by another release
        return [], []


# -- the page ----------------------------------------------------------------------------------------------


class FieldRow(Struct, frozen=True, kw_only=True):
    """A field with what stands below it."""

    name: str
    label: str
    text: str
    example: str
    hint: str = ""
    offer: str = ""  # value that the hint proposes
    error: str = ""


class OfferRow(Struct, frozen=True):
    """A change of one field with which the job would start now."""

    text: str
    label: str  # of the button
    set: str  # NAME=VALUE


class ForecastPart(Struct, frozen=True, kw_only=True):
    """When the job would start."""

    sentence: str = ""
    lines: Sequence[str] = ()
    offers: Sequence[OfferRow] = ()
    warnings: Sequence[str] = ()
    headers: str = ""  # options that the script itself names
    error: str = ""  # a refusal that belongs to no field
    command: str = ""


class SubmitPage(Struct, frozen=True, kw_only=True):
    """The context of the page."""

    script: str
    arguments: str
    text: str
    more: str
    key: str  # of the form: sent twice, it submits one job
    errors: Mapping[str, str]
    rows: Sequence[FieldRow]
    forecast: ForecastPart
    again: str = ""  # the job that is submitted again


class FormAnswer(Struct, frozen=True, kw_only=True):
    """A form with what the scheduler answered to it."""

    wish: SubmissionWish
    key: str = ""
    trial: Trial | None = None  # None: nothing was asked, or it was refused
    refusal: FgschedError | None = None
    headers: Sequence[str] = ()  # options of the script's own lines
    warnings: Sequence[str] = ()
    runs: Sequence[JobInfo] = ()  # earlier jobs of this name, the last first
    time_limit: int = 0  # seconds; 0: none
    models: Mapping[int, str] = {}  # GPU -> model
    again: str = ""


def context(submission: FormAnswer, visit: Visit) -> SubmitPage:
    """Return the context of the page."""
    wish, errors = submission.wish, _errors(submission.refusal)
    hints = _hints(submission.runs)
    rows = []
    for field in OPTIONS:
        hint, offer = hints.get(field.name, ("", ""))
        rows.append(
            FieldRow(
                name=field.name,
                label=field.label,
                text=wish.of(field.name),
                example=field.example,
                hint=hint,
                offer="" if offer == wish.of(field.name) else offer,
                error=errors.get(field.name, ""),
            )
        )
    return SubmitPage(
        script=wish.of("script"),
        arguments=wish.of("arguments"),
        text=wish.of("text"),
        more=wish.of("more"),
        key=submission.key,
        errors=errors,
        rows=rows,
        forecast=_forecast(submission, errors.get("", ""), visit.now),
        again=submission.again,
    )


def _errors(refusal: FgschedError | None) -> dict[str, str]:
    """Return the refusal by the field that it names; "": it names none."""
    if refusal is None:
        return {}
    text = f"{words.capital(refusal.cause.replace(STDIN, 'the pasted script'))}."
    return {field_of(refusal.cause): f"{text} {refusal.remedy}".strip()}


def field_of(cause: str) -> str:
    """Return the field that a refusal is about; "": none."""
    begin = cause.partition(":")[0]
    if begin in ("script", "arguments"):
        return begin
    for name in _OPTION.findall(cause):
        option = BY_NAME.get(name)
        for field in OPTIONS if option else ():
            if option and BY_NAME[field.name].slot == option.slot:
                return field.name
    if begin == "other options" or _OPTION.search(cause):
        return "more"
    return next((field for word, field in _WORDS.items() if word in cause), "")


def _hints(runs: Sequence[JobInfo]) -> dict[str, tuple[str, str]]:
    """Return what earlier runs used, by field, with the value that it proposes."""
    complete = [run for run in runs if run.state.is_final and run.started_at is not None][:_MOST_RUNS]
    hints = {}
    peak = max((view.gpu_peak(run) or 0 for run in complete), default=0)
    if peak:
        text = f"the last {len(complete)} runs of this name used at most {peak / GIBIBYTE:.1f} GiB"
        hints["gpu-mem"] = (text, f"{gibibytes_up(peak * ROOM_MEMORY)}G")
    longest = max((run.elapsed for run in complete), default=0.0)
    if longest:
        hints["time"] = (f"the last {len(complete)} runs took at most {words.span(longest)}", "")
    return hints


def _forecast(submission: FormAnswer, error: str, now: float) -> ForecastPart:
    command = ""
    if submission.wish.script or submission.wish.of("text").strip():
        try:
            command = submission.wish.line()
        except BadUsage:
            command = ""
    trial = submission.trial
    if trial is None:
        return ForecastPart(error=error, command=command, sentence="" if submission.refusal else _ASKS)
    return ForecastPart(
        sentence=_sentence(trial, submission, now),
        lines=_lines(trial),
        offers=[_offer(advice) for advice in trial.advice] if trial.blockers else (),
        warnings=submission.warnings,
        headers=" ".join(submission.headers),
        command=command,
    )


_ASKS = "Name a script: the scheduler is asked when its job would start. Nothing is reserved by that."


def _sentence(trial: Trial, submission: FormAnswer, now: float) -> str:
    """Return when and where a job would start."""
    if not trial.blockers:
        ends = ""
        if submission.time_limit > 0:
            ends = f"; it ends by {words.moment(now + submission.time_limit, now)}"
        return f"At once{_place(trial, submission.models)}{ends}."
    when = words.starts(trial.start, now) if trial.start else ""
    if when:
        return f"{words.capital(when)}."
    unknown = wording.unknown_start(trial.blockers, is_behind_too_many=False)
    return f"It would wait; {unknown}."


def _place(trial: Trial, models: Mapping[int, str]) -> str:
    if not trial.holds:
        return ", without a GPU"
    share = trial.holds[0].share
    gpus = [hold.gpu for hold in trial.holds]
    part = "" if share in (0, 10_000) else "half of " if share == 5000 else f"{format_share(share)} of "
    model = ", ".join(dict.fromkeys(models[gpu] for gpu in gpus if gpu in models))
    return f", on {part}{'GPU' if len(gpus) == 1 else 'GPUs'} {format_indices(gpus)} {model}".rstrip()


def _lines(trial: Trial) -> list[str]:
    """Return why a job would wait, and when that ends."""
    lines = []
    for blocker in trial.blockers:
        why = wording.why(blocker.cause) or blocker.cause.reason.word
        lift = wording.remedy(blocker, trial.id)
        lines.append(f"{why}; lifted {lift}" if lift else why)
    return [*lines, *(wording.note(note) for note in trial.notes)]


def _offer(advice: Advice) -> OfferRow:
    if advice.option == "gpu-type":
        return OfferRow(wording.advised(advice), "Use any type", "gpu-type=")
    after = wording.requested(advice)[0]
    return OfferRow(wording.advised(advice), f"Use {after}", f"{advice.option}={after}")
