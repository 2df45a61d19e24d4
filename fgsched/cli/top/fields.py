"""The columns of the list of jobs in fgtop, and the text about one job."""

from collections.abc import Callable

from fgsched.cli.top.snapshot import RecentUse, kinds
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.times import format_runtime, format_time
from fgsched.domain.units import GIBIBYTE, format_indices, format_share
from fgsched.gpus import vendors
from fgsched.protocol import JobInfo
from fgsched.views import job as view
from fgsched.views.display import cut, pad
from fgsched.views.listing import Format, TableColumn, marked

_DASH = "–"
_WIDE = 100  # terminal columns from which most columns are shown
_VERY_WIDE = 160  # terminal columns from which all columns are shown
_IDLE = 0.01  # SM share up to which a job is idle


def gibibytes(used: float | None, total: int | None, *, decimals: int = 0) -> str:
    """Return bytes as '18/80G'."""
    text = _DASH if used is None else f"{used / GIBIBYTE:.{decimals}f}"
    return f"{text}/{total / GIBIBYTE:.0f}G" if total else text if used is None else f"{text}G"


def percent(part: float | None) -> str:
    """Return a part as '44%'."""
    return _DASH if part is None else f"{100 * part:.0f}%"


def short_model(model: str) -> str:
    """Return the name of a model without the words that all models have."""
    return vendors.shortest_model(clean(model))


def _sm(job: JobInfo, now: RecentUse) -> str:
    if not job.state.holds:
        return ""
    if now.sm is None or (now.kind == "reserved-empty" and now.sm == 0):
        return _DASH
    return (
        "idle"
        if now.sm <= _IDLE and now.kind == "held-idle"
        else percent(now.sm / max(1, len(job.allocated)))
    )


def _memory(decimals: int) -> Callable[[JobInfo, RecentUse], str]:
    def show(job: JobInfo, now: RecentUse) -> str:
        if not job.gpus:
            return ""
        if not job.state.holds:
            return "" if job.memory is None else f"{job.memory / GIBIBYTE:.0f}G"
        used = None if now.memory is None else now.memory / max(1, len(job.allocated))
        return gibibytes(used, job.memory, decimals=decimals)

    return show


def _share(job: JobInfo, now: RecentUse) -> str:
    return _DASH if job.share is None else format_share(job.share)


def _time(job: JobInfo, now: RecentUse) -> str:
    """Return the run time, or the time that a pending job has waited."""
    if job.state is JobState.PENDING:
        return "" if now.waited is None else format_runtime(now.waited)
    return format_runtime(job.elapsed) if job.elapsed else ""


def _left(job: JobInfo, now: RecentUse) -> str:
    if job.state is JobState.PENDING:
        return ""
    seconds = view.time_left(job)
    return _DASH if seconds is None else format_runtime(seconds)


def _id(job: JobInfo, now: RecentUse) -> str:
    return f"{job.array}_[" if job.array is not None and job.task is None else view.label(job)


def format_for(width: int) -> Format:
    """Return the format of the rows, (job, use), of a screen of so many terminal columns."""
    is_wide, is_very_wide = width >= _WIDE, width >= _VERY_WIDE
    accounts = [_of_job("ACCOUNT", "account", 10), _of_job("PARTITION", "partition", 10)]
    chosen = [
        _column("JOBID", 7 if is_wide else 6, _id),
        _of_job("USER", "user", 8),
        *(accounts if is_very_wide else []),
        _of_job("NAME", "name", 40 if is_very_wide else 22 if is_wide else 15),
        _column("ST", 3 if is_wide else 2, lambda job, now: job.state.code, left=True),
        _column("GPU", 4 if is_wide else 3, lambda job, now: format_indices(job.indices)),
        _column("SHARE", 5, _share),
        _column("SM", 4, _sm),
        _column("MEMORY", 12 if is_wide else 8, _memory(1 if is_wide else 0)),
        *([_column("TIME", 10, _time)] if is_wide else []),
        _column("LEFT", 10, _left),
    ]
    return marked(((column, None) for column in chosen), mark="…")


def _column(
    heading: str, width: int, text: Callable[[JobInfo, RecentUse], str], *, left: bool = False
) -> TableColumn:
    """Return a column of rows (job, use)."""
    return TableColumn(heading, lambda row: text(*row), width=width, left=left)


def _of_job(heading: str, attribute: str, width: int) -> TableColumn:
    """Return a column with an attribute of the job."""
    return TableColumn(heading, lambda row: getattr(row[0], attribute), width=width, left=True)


def head(form: Format) -> str:
    """Return the line above the jobs."""
    last = "STATE OF SHARE / REASON" if sum(piece.width for piece in form.pieces) > 80 else ""
    return f"{form.header()}  {last}"


def row(form: Format, job: JobInfo, now: RecentUse, width: int) -> tuple[str, str, str]:
    """Return the cells of a job, its state of share or reason, and the style of that."""
    if job.state is JobState.PENDING and width < _WIDE:
        form = form.without_last()  # the reason needs the room of the time that is left
    room = max(0, width - sum(piece.width for piece in form.pieces) - len(form.pieces) - 2)
    word, kind = _last(job, now, is_wide=width >= _WIDE)
    return form.formatter()((job, now)), f"  {pad(cut(word, room), room)}", kind


def _last(job: JobInfo, now: RecentUse, *, is_wide: bool) -> tuple[str, str]:
    if job.state is JobState.PENDING:
        return job.reason.word, "soft"
    if job.state is not JobState.RUNNING:
        return job.state.word.lower(), "soft"
    if not job.gpus:
        return "no GPU", "soft"
    empty = _without_process(job)
    if empty:
        word = f"reserved-empty on GPU {format_indices(empty)}" if is_wide else "empty"
        return word, "reserved-empty-label"
    if is_wide:
        return now.kind, f"{now.kind}-label"
    return {"held-idle": "idle", "reserved-empty": "empty"}.get(now.kind, now.kind), f"{now.kind}-label"


def _without_process(job: JobInfo) -> list[int]:
    """Return the GPUs of a job of several GPUs on which it has no process; none if it has none anywhere."""
    gpus = [gpu for gpu, kind in kinds(job).items() if kind == "reserved-empty"]
    return gpus if len(gpus) < len(job.allocated) else []


def about(job: JobInfo) -> list[str]:
    """Return the request, the GPUs and the times of a job, as lines."""
    share = _DASH if job.share is None else format_share(job.share)
    where = f" on {format_indices(job.indices)}" if job.indices else ""
    parts = [clean(job.user), f"{share} GPU{where}" if job.gpus else "no GPU"]
    parts.append(f"submitted {format_time(job.submitted_at, '%a %H:%M')}")
    if job.started_at is not None:
        parts.append(f"started {format_time(job.started_at, '%a %H:%M')}")
        waited = view.waited(job)
        parts[-1] += "" if waited is None else f", waited {format_runtime(waited)}"
    else:
        parts.append(f"waits: {job.reason.word}")
    parts.append(f"partition {clean(job.partition)}")
    return ["  ".join(parts)]


def findings(job: JobInfo, now: RecentUse) -> list[str]:
    """Return remarks about the use of GPUs by a running job, as lines."""
    usage = job.usage
    if not job.gpus:
        return []
    if usage is None:
        return ["No samples of this job are known: its SM share and its memory cannot be shown."]
    if usage.with_process == 0 and usage.sampled >= 60:
        return [f"No process of this job has used a GPU since its start, {format_runtime(job.elapsed)}."]
    if now.kind == "held-idle":
        return [
            f"Its processes hold memory without computing; longest: {format_runtime(usage.longest_idle)}."
        ]
    if empty := _without_process(job):
        noun = "GPU" if len(empty) == 1 else "GPUs"
        return [f"No process of this job is on {noun} {format_indices(empty)}."]
    return []
