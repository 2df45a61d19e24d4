"""Write the subject and the plain text of a mail about a job. Times are in epoch seconds, sizes in bytes."""

import time
from collections.abc import Sequence

from fgsched.accounting.reports.layout import WIDTH, cut, eighths, paragraph, safe
from fgsched.domain.job import WHOLE
from fgsched.domain.times import format_elapsed
from fgsched.jobs.mail import PARTS
from fgsched.mail.letters import JobMail

_RULE = "─" * WIDTH
_BAR = 20  # columns
_GIB = 1 << 30
_VERBS = {
    **{"BEGIN": "Began", "END": "Ended", "FAIL": "Failed", "REQUEUE": "Requeued"},
    **{"INVALID_DEPEND": "Invalid dependency", "TIME_LIMIT": "Reached time limit"},
    **{kind: f"Reached {part}% of time limit" for kind, part in PARTS.items()},
}
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def subject(mail: JobMail) -> str:
    """Return the subject, in the form of Slurm's."""
    return ", ".join([f"fgsched {_of_job(mail)} Name={safe(mail.name)} {_VERBS[mail.event]}", *_result(mail)])


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
    found = []
    if mail.event == "BEGIN":
        found.append(f"Queued time {format_elapsed(_waited(mail))}")
    elif (ran := run_seconds(mail)) is not None:
        found.append(f"Run time {format_elapsed(ran)}")
    if mail.event in ("END", "FAIL", "TIME_LIMIT"):
        found += [mail.state, f"ExitCode {mail.exit_code}"]
    return found


def _of_summary(mail: JobMail) -> list[str]:
    if mail.event not in ("END", "FAIL"):
        return []
    state = "COMPLETED" if mail.completed == mail.tasks else "Mixed" if mail.completed else mail.state
    return [state, f"ExitCode [{mail.exits[0]}-{mail.exits[1]}]"]


def run_seconds(mail: JobMail) -> float | None:
    """Return how long the job has run, in seconds; None: it was not started."""
    if mail.started_at is None:
        return None
    end = mail.at if mail.ended_at is None else mail.ended_at
    return max(0.0, end - mail.started_at - mail.suspended)


def _waited(mail: JobMail) -> float:
    return max(0.0, (mail.started_at or mail.at) - (mail.eligible_at or mail.submitted_at))


# -- the text ----------------------------------------------------------------------------------------


def body(mail: JobMail, tail: Sequence[str], host: str) -> str:
    """Return the text. `tail` has the last lines of the output, none if there are none to show."""
    parts = [_head(mail, host), _used(mail), _happened(mail), _where(mail), _last_lines(tail)]
    lines = [line for part in parts if part for line in (*part, "")]
    return "\n".join([*lines[:-1], _RULE, _why(mail, host), ""])


def _head(mail: JobMail, host: str) -> list[str]:
    number = f"array {mail.array}" if mail.is_summary else f"job {_number(mail)}"
    first = "   ".join([mail.state, number, cut(safe(mail.name), 30), safe(mail.user), host])
    return [cut(first, WIDTH), *paragraph(_sentence(mail))]


def _number(mail: JobMail) -> str:
    return str(mail.job) if mail.task is None else f"{mail.array}_{mail.task}"


def _sentence(mail: JobMail) -> str:
    """Return what happened, in one sentence."""
    ran = run_seconds(mail)
    if mail.is_summary and mail.event in ("END", "FAIL"):
        return f"{mail.completed} of {mail.tasks} tasks completed."
    if mail.event == "BEGIN":
        return f"Started after waiting {format_elapsed(_waited(mail))}."
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


def _used(mail: JobMail) -> list[str]:
    """Return the amounts that were used, of those that were asked for, with bars."""
    if mail.is_summary or mail.ended_at is None or mail.started_at is None:
        return []
    rows = [row for row in (_gpu(mail), _host(mail), _cpus(mail), _time(mail)) if row]
    return ["Used, of what was asked", _RULE, *rows, _RULE]


def _gpu(mail: JobMail) -> str:
    if not mail.gpus:
        return ""
    return _row("GPU memory", mail.gpu_peak, mail.memory, _sizes(mail.gpu_peak, mail.memory))


def _host(mail: JobMail) -> str:
    if mail.host_memory:
        return _row("Host memory", mail.max_rss, mail.host_memory, _sizes(mail.max_rss, mail.host_memory))
    return f"  {'Host memory':<14}{'':{_BAR}}{mail.max_rss / _GIB:>20.1f} GiB"


def _cpus(mail: JobMail) -> str:
    ran = run_seconds(mail) or 0.0
    mean = mail.cpu_seconds / ran if ran else 0.0
    return _row("CPUs", mean, mail.cpus, f"{mean:.1f} of {mail.cpus}")


def _time(mail: JobMail) -> str:
    ran = run_seconds(mail) or 0.0
    if not mail.time_limit:
        return f"  {'Time':<14}{'':{_BAR}}{format_elapsed(ran):>24}"
    text = f"{format_elapsed(ran)} of {format_elapsed(mail.time_limit)}"
    return _row("Time", ran, mail.time_limit, text)


def _sizes(used: float, asked: float) -> str:
    return f"{used / _GIB:.1f} of {asked / _GIB:.1f} GiB"


def _row(label: str, used: float, asked: float, text: str) -> str:
    part = used / asked if asked else 0.0
    return f"  {label:<14}{eighths(part, _BAR):·<{_BAR}}{text:>28}{100 * part:>8.0f} %"


def _happened(mail: JobMail) -> list[str]:
    """Return why a job failed, as far as it is known."""
    said = []
    if mail.oom is not None:
        held, limit, asked = (size / _GIB for size in (mail.oom.held, mail.oom.limit, mail.oom.asked))
        said.append(
            f"GPU out of memory on GPU {mail.oom.gpu}: the job held {held:.1f} GiB of its limit of"
            f" {limit:.1f} GiB" + (f", and {asked:.1f} GiB were refused." if asked else ".")
        )
    said += [safe(one) for one in (mail.detail, mail.warning) if one]
    if not said and mail.reason not in ("None", "") and mail.event in ("FAIL", "INVALID_DEPEND", "REQUEUE"):
        said.append(f"Reason: {mail.reason}.")
    lines = [line for one in said for line in paragraph(one, "  ")]
    return ["What happened", *lines] if lines else []


def _where(mail: JobMail) -> list[str]:
    rows = [("GPU", _cards(mail)), ("Waited", format_elapsed(_waited(mail)) if mail.started_at else "")]
    rows += [(label, _moment(at)) for label, at in (("Started", mail.started_at), ("Ended", mail.ended_at))]
    rows += [("Output", "" if mail.is_summary else safe(mail.output))]
    if mail.ended_at is not None and mail.event in ("END", "FAIL", "TIME_LIMIT"):
        rows += [("Details", f"fgacct -j {mail.array if mail.is_summary else _number(mail)}")]
    return ["Where and when", *(f"  {label:<11}{text}" for label, text in rows if text)]


def _cards(mail: JobMail) -> str:
    if not mail.gpus:
        return ""
    part = "" if mail.share >= WHOLE else f", {mail.share / WHOLE:g} of each"
    listed = ", ".join(map(str, mail.gpus))
    return f"{listed} ({safe(mail.model)}){part}" if mail.model else f"{listed}{part}"


def _moment(at: float | None) -> str:
    if at is None:
        return ""
    day = time.localtime(at)
    date = f"{_WEEKDAYS[day.tm_wday]} {day.tm_mday:02d} {_MONTHS[day.tm_mon - 1]} {day.tm_year}"
    return f"{date} {day.tm_hour:02d}:{day.tm_min:02d}"


def _last_lines(tail: Sequence[str]) -> list[str]:
    if not tail:
        return []
    return ["Last lines of the output", _RULE, *(cut(f"  {safe(line.expandtabs())}", WIDTH) for line in tail)]


def _why(mail: JobMail, host: str) -> str:
    return f"Sent because the job has --mail-type={mail.types}. fgsched on {host}."
