"""One job that runs, waits or has ended: what it does, what can be done with it, its output and request."""

import os
from collections.abc import Sequence
from urllib.parse import urlencode

from msgspec import Struct

from fgsched.cli.top.snapshot import Point
from fgsched.domain.states import JobState
from fgsched.domain.text import word_list
from fgsched.domain.times import HOUR, format_limit
from fgsched.domain.units import format_indices
from fgsched.protocol import JobInfo
from fgsched.reports import numbers
from fgsched.reports.model import DASH
from fgsched.views import choices
from fgsched.views import job as view
from fgsched.web.output import FileTail
from fgsched.web.pages import ended, pending, words
from fgsched.web.pages.ended import EndedPart
from fgsched.web.pages.gpubars import UseBar, polyline, use_bar
from fgsched.web.pages.pending import PendingPart
from fgsched.web.pages.words import StateWord
from fgsched.web.reading import JobData
from fgsched.web.visit import Viewer, Visit

_HELD = word_list("user admin")
_MOST_SCRIPT = 64 << 10  # characters that are shown


class JobAction(Struct, frozen=True, kw_only=True):
    """A button that changes a job."""

    verb: str  # the last part of the path of its form
    label: str
    style: str = ""  # "stop": it ends something
    asks: str = ""  # question before it; "": none
    fields: tuple[tuple[str, str], ...] = ()  # of its form, beside the job


class Plot(Struct, frozen=True, kw_only=True):
    """The course of an amount, up to now."""

    title: str
    lines: Sequence[str]  # points of polylines
    since: str
    until: str
    scale: str  # such as "0–24 GiB"
    description: str


class Row(Struct, frozen=True):
    """A name and a value. Texts of users are marked in the template."""

    name: str
    text: str
    is_given: bool = False  # a user gave it


class JobEvent(Struct, frozen=True):
    """One change of the job's state."""

    at: str
    text: str


class JobPage(Struct, frozen=True, kw_only=True):
    """The context of the page."""

    id: str  # as it is shown
    ref: str  # in paths
    job: JobInfo
    array: str  # id of its array; "": none
    state: StateWord
    code: str  # of the state, in the title
    lede: str  # after the state
    actions: Sequence[JobAction]
    again: str = ""  # address of the form that has this job's request; "": it cannot be submitted again
    uses: Sequence[UseBar] = ()
    plots: Sequence[Plot] = ()
    hint: str = ""  # about the use of earlier runs
    pending: PendingPart | None = None
    ended: EndedPart | None = None
    tail: FileTail | None = None
    file: str = "output"
    has_errors: bool = False  # the errors have a file of their own
    output_name: str = ""
    rows: tuple[Sequence[Row], Sequence[Row]] = ((), ())
    changes: Sequence[JobEvent] = ()
    script: str = ""
    is_hidden: bool = False  # request and output are not shown to the reader


def context(data: JobData, visit: Visit) -> JobPage:
    """Return the context of the page."""
    job, ref = data.job, str(choices.exactly(data.job))
    is_running = job.state.holds
    may_act = not visit.viewer.read_only and (job.uid == visit.viewer.uid or data.look.about.operator)
    files = None if job.is_private else view.files(job)
    return JobPage(
        id=view.label(job),
        ref=ref,
        job=job,
        state=words.state(job),
        code=words.title_code(job),
        lede=_lede(data, visit),
        array="" if job.array is None else str(job.array),
        actions=list(_actions(job, data.look.about.operator)) if may_act else (),
        again=_again(data, visit),
        uses=_uses(data) if is_running else (),
        plots=_plots(data, visit) if is_running and job.gpus else (),
        hint=data.hint,
        pending=pending.part(data.explanation, data.job, data.look, may_act=may_act)
        if data.explanation
        else None,
        ended=ended.part(data) if job.state.is_final else None,
        tail=data.tail,
        file=visit.file,
        has_errors=files is not None and files.stderr != files.stdout,
        output_name=os.path.basename(data.tail.path) if data.tail else "",
        rows=(_request(job, visit), _place(job)),
        changes=[_change(change, visit) for change in job.steps],
        script=data.script[:_MOST_SCRIPT],
        is_hidden=job.is_private,
    )


# -- sentences -------------------------------------------------------------------------------------------


def _lede(data: JobData, visit: Visit) -> str:
    """Return what follows the state in the first sentence."""
    job, now = data.job, visit.now
    if job.state is JobState.PENDING:
        when = data.explanation.start if data.explanation else None
        starts = f" It starts {words.starts(when, now)}." if when and words.starts(when, now) else ""
        return f"for {words.waits(job, now)}.{starts}"
    if job.state.is_final:
        return _ending(job)
    where = words.gpus_phrase(job)
    on = f"on {where} " if where else ""
    seconds_left = view.time_left(job)
    ends = (
        f"; it ends by {words.moment(now + seconds_left, now)}"
        if seconds_left and job.state is JobState.RUNNING
        else ""
    )
    memory = view.memory_now(job)
    used = (
        f" It uses {words.used_of(memory, job.memory)} of GPU memory."
        if memory is not None and job.memory
        else ""
    )
    return f"{on}for {words.span(job.elapsed)}{ends}.{used}"


def _ending(job: JobInfo) -> str:
    if job.started_at is None:
        return "before it started." + (f" {words.capital(job.note)}." if job.note else "")
    report = job.post_mortem
    if report is not None and report.asked:
        return (
            f"after {words.span(job.elapsed)}: it held {words.gib(report.held)} of its"
            f" {words.gib(report.limit)} and asked for {words.gib(report.asked)} more."
        )
    how = f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}"
    return f"after {words.span(job.elapsed)}, {how}."


# -- actions -----------------------------------------------------------------------------------------------


def _actions(job: JobInfo, is_operator: bool) -> Sequence[JobAction]:
    """Return what the reader may do with the job."""
    actions = [] if job.state.is_final else [_cancel(job)]
    if job.state is JobState.PENDING:
        may_release = job.held == "user" or is_operator
        held = JobAction(verb="release", label="Release")
        return [
            *actions,
            *([held] * may_release if job.held in _HELD else [JobAction(verb="hold", label="Hold")]),
        ]
    if job.state is JobState.RUNNING and is_operator:
        if job.time_limit > 0:
            limit = format_limit(job.time_limit + HOUR)
            actions.append(JobAction(verb="update", label="Give 1 h more", fields=(("timelimit", limit),)))
        actions.append(JobAction(verb="suspend", label="Suspend"))
    if job.state is JobState.SUSPENDED and is_operator:
        actions.append(JobAction(verb="resume", label="Resume"))
    if job.state in (JobState.RUNNING, JobState.SUSPENDED) and job.adopted is None:
        asks = f"Requeue job {view.label(job)}? It ends, and starts again from its beginning."
        actions.append(JobAction(verb="requeue", label="Requeue", asks=asks))
    return actions


def _again(data: JobData, visit: Visit) -> str:
    """Return the address of the form with the request of the reader's own job; "": it has no script."""
    is_own = data.job.uid == visit.viewer.uid and not visit.viewer.read_only
    if not is_own or not data.script or data.job.adopted is not None:
        return ""
    return f"/submit?{urlencode({'again': choices.exactly(data.job)})}"


def _cancel(job: JobInfo) -> JobAction:
    return JobAction(verb="cancel", label="Cancel", style="stop", asks=f"Cancel job {view.label(job)}?")


def may_change(job: JobInfo, viewer: Viewer, is_operator: bool) -> bool:
    """Tell whether a reader may cancel, hold or release a job."""
    return not viewer.read_only and not job.state.is_final and (job.uid == viewer.uid or is_operator)


# -- a running job -----------------------------------------------------------------------------------------


def _uses(data: JobData) -> list[UseBar]:
    job, use = data.job, data.use
    bars = []
    if job.gpus:
        memory, limit = view.memory_now(job), view.present_memory_limit(job)
        part = memory / limit if memory is not None and limit else None
        bars.append(use_bar("GPU memory", words.used_of(memory, limit), part))
        busy, share = view.busy_now(job), view.gpu_share(job)
        mine = None if busy is None or not share else 100 * busy / share
        text = DASH if mine is None else f"{100 * mine:.0f} % of its share"
        bars.append(use_bar("GPU time", text, mine))
    if use is not None:
        cpus = use.cpu_seconds / job.elapsed if job.elapsed > 0 else 0.0
        bars.append(use_bar("CPUs, mean", f"{cpus:.1f} of {job.cpus}", cpus / job.cpus))
        part = use.rss / job.host_memory if job.host_memory else None
        bars.append(use_bar("Host memory", words.used_of(use.rss, job.host_memory), part))
    bars.append(use_bar("Time", words.time_of(job), view.time_part(job)))
    return bars


def _plots(data: JobData, visit: Visit) -> list[Plot]:
    """Return the course of GPU time and GPU memory since the page's process has looked at the job."""
    points = list(data.look.history.jobs.get(data.job.id, ()))
    if len(points) < 2:
        return []
    share = view.allocated_share(data.job) / 10_000 or 1.0
    memory = sum(part.memory for part in data.job.allocated)
    scale = f"0–{words.gib(memory)}"
    plots = [
        _plot("GPU time", points, [_part(point.sm, share) for point in points], "0–100 % of its share"),
        _plot("GPU memory", points, [_part(point.memory, memory) for point in points], scale),
    ]
    return [plot for plot in plots if plot.lines]


def _part(value: float | None, whole: float) -> float | None:
    return None if value is None or not whole else value / whole


def _plot(title: str, points: Sequence[Point], values: Sequence[float | None], scale: str) -> Plot:
    begin, end = points[0].at, points[-1].at
    drawn = [
        ((point.at - begin) / ((end - begin) or 1.0), value)
        for point, value in zip(points, values, strict=True)
    ]
    measured = [value for value in values if value is not None]
    mean = f"mean {100 * sum(measured) / len(measured):.0f} % of {scale}" if measured else ""
    return Plot(
        title=f"{title}, last {words.span(end - begin)}",
        lines=polyline(drawn),
        since=words.clock(begin),
        until=words.clock(end),
        scale=scale,
        description=f"{title}: {mean}",
    )


# -- request and place -------------------------------------------------------------------------------------


def _request(job: JobInfo, visit: Visit) -> list[Row]:
    now = visit.now
    rows = [Row("User", job.user, is_given=True), Row("Submitted", words.moment(job.submitted_at, now))]
    if not job.is_private:
        rows.append(Row("In", job.request.submit_dir, is_given=True))
        rows.append(Row("By", job.request.submit_line or DASH, is_given=bool(job.request.submit_line)))
    waited = view.waited(job)
    rows.append(Row("Waited", DASH if waited is None else words.span(waited)))
    account = f"{job.partition}, {job.account}" if job.account else job.partition
    rows.append(Row("Partition, account", account or DASH, is_given=True))
    if job.unmet or job.dependency:
        rows.append(Row("After", job.unmet or job.dependency, is_given=True))
    if job.comment:
        rows.append(Row("Comment", job.comment, is_given=True))
    return rows


def _place(job: JobInfo) -> list[Row]:
    gpu_request = f"{words.gpus(job)} GPU, {words.gib(job.memory)} each" if job.gpus else "no GPU"
    rows = [Row("Asked", f"{gpu_request}, {numbers.counted(job.cpus, 'CPU')}")]
    rows.append(Row("Time limit", words.span(job.time_limit) if job.time_limit > 0 else "none"))
    if job.allocated:
        models = ", ".join(dict.fromkeys(part.model for part in job.allocated))
        rows.append(
            Row("GPU", f"{format_indices(part.gpu for part in job.allocated)} {models}", is_given=True)
        )
        rows.append(Row("Enforcement", job.tier or DASH))
    if (energy := view.energy(job)) is not None:
        rows.append(Row("Energy", f"{energy / 3.6e6:.2f} kWh"))
    if job.priority is not None:
        rows.append(Row("Priority", f"{job.priority:,.0f}"))
    if job.restarts:
        rows.append(Row("Restarts", str(job.restarts)))
    for name, text in (("Warning", view.visible_warning(job)), ("Detail", job.detail), ("Note", job.note)):
        if text:
            rows.append(Row(name, text, is_given=True))
    return rows


def _change(change: object, visit: Visit) -> JobEvent:
    at, after = getattr(change, "at", 0.0), getattr(change, "after", "")
    reason = getattr(change, "reason", "")
    why = f" ({reason})" if reason not in ("", "None") else ""
    return JobEvent(f"{words.moment(at, visit.now)}", f"{str(after).lower().replace('_', ' ')}{why}")
