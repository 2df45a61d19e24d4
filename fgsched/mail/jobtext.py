"""Write the subject and the facts of a mail about a job. Times are in epoch seconds, sizes in bytes."""

import time
from collections.abc import Sequence

from fgsched.domain.job import WHOLE, JobUsage, OomReport
from fgsched.domain.text import clean
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import GIBIBYTE
from fgsched.lifecycle.mail import PARTS
from fgsched.mail.letters import JobMail
from fgsched.protocol import JobInfo
from fgsched.reports.efficiency import (
    JobRun,
    MeasuredNeeds,
    charge_sentences,
    for_slurm,
    needs_of,
    propose,
)
from fgsched.reports.mail import Notice, ResourceUse
from fgsched.reports.numbers import brief_hours, duration_text
from fgsched.views import job as view

_LEAST_RUN = 60.0  # seconds: a shorter run shows little of what a job needs
_UNKNOWN = "–"
_CHANGED = "The file was changed after the end of the job, so its lines are not shown."
_SHOWN = 5  # other jobs on the same GPU
_VERBS = {
    **{"BEGIN": "Began", "END": "Ended", "FAIL": "Failed", "REQUEUE": "Requeued"},
    **{"INVALID_DEPEND": "Invalid dependency", "TIME_LIMIT": "Reached time limit"},
    **{kind: f"Reached {part}% of time limit" for kind, part in PARTS.items()},
}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def advised(mail: JobMail, usage: JobUsage | None) -> tuple[list[str], list[str]]:
    """Return sentences about the next run and the words of its header line; nothing if the request fits.

    Only a completed run shows what a job needs. After GPU memory ran out, the line asks for enough memory.
    """
    ran = mail.run_seconds
    if mail.is_summary or mail.ended_at is None or ran is None:
        return [], []
    needs = _refused(mail) if mail.state == "OUT_OF_MEMORY" else None
    if needs is None and mail.state == "COMPLETED" and ran >= _LEAST_RUN:
        needs = needs_of([JobRun(job=mail.info(usage), total=mail.total or None)])
    proposal = propose(needs) if needs is not None else None
    if proposal is None:
        return [], []
    proposal = for_slurm(proposal) if mail.slurm_env else proposal
    charge = charge_sentences(proposal, usage.charged if usage is not None else 0.0)
    return [" ".join([*proposal.reasons, *charge])], [proposal.mark, *proposal.tokens]


def _refused(mail: JobMail) -> MeasuredNeeds | None:
    """Return the bytes that a job without enough GPU memory needed; None if no allocation was refused."""
    oom = mail.post_mortem
    if oom is None or not oom.asked:
        return None
    return MeasuredNeeds(
        gpus=len(mail.gpus),
        share=mail.share,
        memory=None,
        refused=oom.held + oom.asked,
    )


def subject(mail: JobMail) -> str:
    """Return the subject, in the form of Slurm's."""
    return ", ".join(
        [f"fgsched {_of_job(mail)} Name={clean(mail.name)} {_VERBS[mail.event]}", *_result(mail)]
    )


def _of_job(mail: JobMail) -> str:
    if mail.is_summary:
        return f"Array Summary Job_id={mail.array}_* ({mail.array})"
    if mail.task is not None:
        return f"Array Task Job_id={mail.array}_{mail.task} ({mail.job})"
    return f"Job_id={mail.job}"


def _result(mail: JobMail) -> list[str]:
    """Return the parts of a subject after the event."""
    if mail.is_summary:
        return _of_summary(mail)
    result = []
    if mail.event == "BEGIN":
        result.append(f"Queued time {_waited(mail)}")
    elif (ran := mail.run_seconds) is not None:
        result.append(f"Run time {format_elapsed(ran)}")
    if mail.event in ("END", "FAIL", "TIME_LIMIT"):
        result += [mail.state, f"ExitCode {mail.exit_code}"]
    return result


def _of_summary(mail: JobMail) -> list[str]:
    if mail.event not in ("END", "FAIL"):
        return []
    state = "COMPLETED" if mail.completed == mail.tasks else "Mixed" if mail.completed else mail.state
    return [state, f"ExitCode [{mail.exits[0]}-{mail.exits[1]}]"]


def _waited(mail: JobMail) -> str:
    waited = view.waited(mail.info())
    return "" if waited is None else format_elapsed(waited)


# -- the notice ----------------------------------------------------------------------------------------


def notice(
    mail: JobMail, usage: JobUsage | None, tail: Sequence[str], host: str, *, is_changed: bool = False
) -> Notice:
    """Return the contents of a mail about a job, without its form.

    Args:
        mail: the event.
        usage: samples of the job; None: there are none.
        tail: the last lines of the output; empty if they are not shown.
        host: short name.
        is_changed: the output was changed after the end of the job, and is not shown.
    """
    advice, line = advised(mail, usage)
    return Notice(
        subject=subject(mail),
        host=host,
        job=f"{mail.array}_*" if mail.is_summary else view.label(mail.info()),
        name=mail.name,
        user=mail.user,
        state=mail.state,
        sentence=_sentence(mail),
        has_failed=mail.event in ("FAIL", "TIME_LIMIT", "INVALID_DEPEND"),
        used=tuple(_used(mail, usage)),
        happened=tuple(_happened(mail)),
        advice=tuple(advice),
        line=tuple(line),
        where=tuple((label, text) for label, text in _where(mail, usage) if text),
        tail=tuple(tail),
        missing=_CHANGED if is_changed else "",
        why=f"Sent because the job has --mail-type={mail.types}. fgsched on {host}.",
    )


def _sentence(mail: JobMail) -> str:
    """Return one sentence about the event."""
    ran = mail.run_seconds
    if mail.is_summary and mail.event in ("END", "FAIL"):
        return f"{mail.completed} of {mail.tasks} tasks completed."
    if mail.event == "BEGIN":
        return f"Started after waiting {_waited(mail)}."
    if mail.event == "INVALID_DEPEND":
        return "The dependency of the job can never be met, so the job will not start."
    if mail.event == "REQUEUE":
        return "The job is in the queue again" + (
            f" after {format_elapsed(ran)}." if ran is not None else "."
        )
    if mail.event in PARTS:
        return f"The job has used {PARTS[mail.event]} % of its time limit."
    if ran is None:
        return "The job ended before it was started."
    return f"Ran {format_elapsed(ran)}, {_exit(mail)}."


def _exit(mail: JobMail) -> str:
    return f"ended by signal {mail.signal}" if mail.signal else f"exit code {mail.exit_code}"


def _used(mail: JobMail, usage: JobUsage | None) -> list[ResourceUse]:
    """Return the amounts that an ended job used, each with the requested amount."""
    job = mail.info(usage)
    if mail.is_summary or mail.ended_at is None or not job.elapsed:
        return []
    memory = _of_memory("Host memory", view.host_peak(job), job.host_memory)
    cpus = mail.cpu_seconds / job.elapsed
    processors = ResourceUse(label="CPUs", text=f"{cpus:.1f} of {job.cpus}", part=cpus / job.cpus)
    text = format_elapsed(job.elapsed)
    text += f" of {format_elapsed(job.time_limit)}" if job.time_limit else ""
    return [
        *_of_gpus(job),
        memory,
        processors,
        ResourceUse(label="Time", text=text, part=view.time_part(job)),
    ]


def _of_gpus(job: JobInfo) -> list[ResourceUse]:
    if not job.allocated:
        return []
    uses = [_of_memory("GPU memory", view.gpu_peak(job), view.gpu_memory(job) or 0)]
    mean, count = view.mean_sm(job), len(job.allocated)
    if mean is not None:
        text = f"mean of {count} GPU{'s' if count > 1 else ''}"
        uses.append(ResourceUse(label="SM share", text=text, part=mean))
    return uses


def _of_memory(label: str, used: int | None, requested: int) -> ResourceUse:
    """Return the amount of memory used, of the request; both in bytes. `used` None: not measured."""
    text = _UNKNOWN if used is None else f"{used / GIBIBYTE:.1f}"
    if not requested:
        return ResourceUse(label=label, text=text if used is None else f"{text} GiB")
    part = None if used is None else used / requested
    return ResourceUse(label=label, text=f"{text} of {requested / GIBIBYTE:.1f} GiB", part=part)


def _happened(mail: JobMail) -> list[str]:
    """Return the known reasons of a failure, as sentences."""
    sentences = []
    oom = mail.post_mortem
    if oom is not None:
        held, limit, refused = (size / GIBIBYTE for size in (oom.held, oom.limit, oom.asked))
        sentences.append(
            f"GPU out of memory on GPU {oom.gpu}: the job held {held:.1f} GiB of its limit of"
            f" {limit:.1f} GiB" + (f", and {refused:.1f} GiB were refused." if refused else ".")
        )
        sentences.append(_others(oom))
    sentences += [text for text in (mail.detail, mail.warning) if text]
    if (
        not sentences
        and mail.reason not in ("None", "")
        and mail.event in ("FAIL", "INVALID_DEPEND", "REQUEUE")
    ):
        sentences.append(f"Reason: {mail.reason}.")
    return sentences


def _others(oom: OomReport) -> str:
    """Return the GPU memory of other processes on the GPU of a job that ran out of GPU memory."""
    held = [f"job {job} held {size / GIBIBYTE:.1f} GiB" for job, size in oom.jobs[:_SHOWN]]
    held += [f"processes outside of jobs held {oom.strangers / GIBIBYTE:.1f} GiB"] if oom.strangers else []
    return f"Beside it, {', '.join(held)}." if held else "No other job was on the GPU."


def _where(mail: JobMail, usage: JobUsage | None) -> list[tuple[str, str]]:
    is_over = mail.ended_at is not None and mail.event in ("END", "FAIL", "TIME_LIMIT")
    rows = [
        ("GPU", _gpus(mail, usage)),
        ("Waited", _waited(mail)),
    ]
    rows += [("Started", _moment(mail.started_at)), ("Ended", _moment(mail.ended_at))]
    if usage is not None and mail.ended_at is not None:
        rows += [("Charged", _charge(usage)), ("Neighbours", _neighbours(usage))]
    if not mail.is_summary:
        errors = mail.errors if mail.errors != mail.output else ""
        rows += [("Restarts", str(mail.restarts or "")), ("Output", mail.output), ("Errors", errors)]
    if is_over:
        rows += [("Details", f"fgacct -j {mail.array if mail.is_summary else view.label(mail.info())}")]
        rows += [("Run again", mail.resubmission)]
    return rows


def _charge(usage: JobUsage) -> str:
    used = "" if usage.used is None else f", {brief_hours(usage.used)} used"
    return f"{brief_hours(usage.charged)} GPU-hours{used}, {brief_hours(usage.held + usage.empty)} idle"


def _neighbours(usage: JobUsage) -> str:
    """Return the jobs that shared its GPUs for the longest times."""
    longest = sorted(usage.neighbours, key=lambda neighbour: (-neighbour[1], neighbour[0]))
    shown = [f"job {job} for {duration_text(seconds)}" for job, seconds in longest[:_SHOWN]]
    more = [f"{len(longest) - _SHOWN} more"] if len(longest) > _SHOWN else []
    return ", ".join([*shown, *more])


def _gpus(mail: JobMail, usage: JobUsage | None) -> str:
    if not mail.gpus:
        return ""
    part = "" if mail.share >= WHOLE else f", {mail.share / WHOLE:g} of each"
    is_alone = usage is not None and usage.sampled and not usage.neighbours and mail.ended_at is not None
    alone = ", no other job on it" if is_alone and mail.share < WHOLE else ""
    listed = ", ".join(map(str, mail.gpus))
    return f"{listed} ({mail.model}){part}{alone}" if mail.model else f"{listed}{part}{alone}"


def _moment(at: float | None) -> str:
    if at is None:
        return ""
    day = time.localtime(at)
    date = f"{_WEEKDAYS[day.tm_wday]} {day.tm_mday:02d} {_MONTHS[day.tm_mon - 1]} {day.tm_year}"
    return f"{date} {day.tm_hour:02d}:{day.tm_min:02d}"
