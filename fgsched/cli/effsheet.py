"""Write the efficiency of jobs as text of 78 columns, and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import GIBIBYTE, format_share
from fgsched.protocol import JobInfo
from fgsched.reports.efficiency import (
    JobRun,
    Proposal,
    RunGroup,
    charge_sentences,
    groups,
    hours,
    proposal_of,
)
from fgsched.reports.numbers import brief_hours
from fgsched.views import display, documents
from fgsched.views import job as view
from fgsched.views.display import WIDTH, ascii_only, cut, eighths, pad, paragraph, shown_time

_DASH = "–"
_LABEL, _BAR, _AMOUNT, _PART = 14, 20, 26, 9  # columns
_LINES = 5  # header lines below a table of job names, at most


class Sheet(Struct, frozen=True):
    """Write with or without characters outside of ASCII; `host` stands in the head."""

    host: str
    ascii: bool = False

    def jobs(self, runs: Sequence[JobRun], last: int) -> str:
        """Return a sheet for each job; the tasks of an array share a table of the `last` ones."""
        tables = [
            run_group
            for run_group in groups(runs, last)
            if len(run_group.runs) > 1 and all(run.job.array for run in run_group.runs)
        ]
        listed = {run.job.array for group in tables for run in group.runs}
        singles = [self.job(run) for run in runs if run.job.array not in listed or not run.job.array]
        return "\n".join([*singles, *map(self.group, tables)])

    def compared(self, runs: Sequence[JobRun], last: int) -> str:
        """Return a table of the `last` runs of each name."""
        return "\n".join(map(self.group, groups(runs, last)))

    def summary(self, runs: Sequence[JobRun], last: int) -> str:
        """Return a table of the names, each with its `last` runs."""
        return self.names(groups(runs, last)) if runs else ""

    def job(self, run: JobRun) -> str:
        """Return the sheet of one job."""
        return self._text([*_head(run, self.host), *self._used(run), *_next([run]), *_where(run)])

    def group(self, group: RunGroup) -> str:
        """Return the table of the runs of one name, and the options for the next run."""
        return self._text([*_group_head(group, self.host), *_table(group), *_next(group.runs)])

    def names(self, run_groups: Sequence[RunGroup]) -> str:
        """Return the table of job names, and the options that would return the most GPU-hours."""
        return self._text([*_names(run_groups), *_lines_to_paste(run_groups)])

    def _text(self, lines: Sequence[str]) -> str:
        text = "".join(f"{line.rstrip()}\n" for line in lines)
        return ascii_only(text) if self.ascii else text

    def _used(self, run: JobRun) -> Iterator[str]:
        yield "Used, of the request"
        yield "─" * WIDTH
        for row in _rows(run):
            drawn = f"  {pad(row.label, _LABEL)}{self._bar(row.part)}"
            yield f"{drawn}{row.amount:>{_AMOUNT}}{_percent(row.part):>{_PART}}"
        yield "─" * WIDTH

    def _bar(self, part: float | None) -> str:
        """Draw a part; one that is not known has no bar."""
        if part is None:
            return " " * _BAR
        if self.ascii:
            full = round(max(0.0, min(1.0, part)) * _BAR) or int(part > 0)
            return ("#" * full).ljust(_BAR, ".")
        return pad(eighths(part, _BAR), _BAR).replace(" ", "·")


class _Row(Struct, frozen=True):
    label: str
    part: float | None
    amount: str


def _rows(run: JobRun) -> Iterator[_Row]:
    job = run.job
    if job.allocated:
        peak, memory = view.gpu_peak(job), view.gpu_memory(job)
        yield _Row("GPU memory", view.memory_part(job), _of(_gib(peak), _gib(memory), " GiB"))
        yield _Row("SM share", view.sm_part(job), f"mean of {format_share(view.allocated_share(job))} GPU")
        yield _Row("GPU idle", view.idle_part(job), _idle(job))
    yield _Row("CPUs", view.cpu_part(job), _of(_one(view.busy_cpus(job)), str(job.cpus)))
    rss, memory = view.host_peak(job), job.host_memory or None
    yield _Row("Host memory", view.host_part(job), _of(_gib(rss), _gib(memory), " GiB"))
    time_limit = format_elapsed(job.time_limit) if job.time_limit > 0 else "UNLIMITED"
    yield _Row("Time", view.time_part(job), _of(format_elapsed(job.elapsed), time_limit))


def _of(used: str, requested: str, unit: str = "") -> str:
    return f"{used} of {requested}{unit}" if requested != _DASH else f"{used}{unit if used != _DASH else ''}"


def _idle(job: JobInfo) -> str:
    idle = view.gpu_hours_idle(job)
    if job.usage is None or idle is None:
        return _DASH
    return f"{idle:.1f} of {hours(job.usage.charged):.1f} GPU-hours"


def _gib(size: int | None) -> str:
    return _DASH if size is None else f"{size / GIBIBYTE:.1f}"


def _one(value: float | None) -> str:
    return _DASH if value is None else f"{value:.1f}"


def _percent(part: float | None) -> str:
    return _DASH if part is None else f"{100 * part:,.0f} %"


# -- one job -------------------------------------------------------------------------------------------


def _head(run: JobRun, host: str) -> Iterator[str]:
    job = run.job
    fixed = f"{job.state.word}   job {view.label(job)}   "
    owner = f"   {clean(job.user)}   {host}"
    yield fixed + cut(clean(job.name), max(8, WIDTH - len(fixed) - len(owner))) + owner
    if job.started_at is None:
        yield "It never started." if job.state.is_final else "It has not started."
    elif job.state.is_final:
        ended = f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}"
        if job.state is JobState.OUT_OF_MEMORY and job.signal == 125:  # no signal: 0:125 as in Slurm
            ended = "a process was killed for host memory"
        yield f"Ran {format_elapsed(job.elapsed)}, {ended}."
        if job.warning:
            yield from paragraph(f"Warning: {clean(job.warning)}.")
    else:
        yield f"Running for {format_elapsed(job.elapsed)}. The figures will change until it ends."
    yield ""


def _next(runs: Sequence[JobRun]) -> Iterator[str]:
    proposal = proposal_of(runs)
    if proposal is None:
        return
    yield ""
    yield "For the next run"
    charge = charge_sentences(proposal, sum(view.charged_seconds(run.job) for run in runs), len(runs))
    yield from paragraph(" ".join([*proposal.reasons, *charge]), "  ")
    yield ""
    yield from _pasted(proposal)


def _pasted(proposal: Proposal) -> Iterator[str]:
    """Yield the header line alone on its line; one that is too long becomes several."""
    line = proposal.mark
    for token in proposal.tokens:
        if len(line) + len(token) + 7 > WIDTH:
            yield f"      {line}"
            line = proposal.mark
        line += f" {token}"
    yield f"      {line}"


def _where(run: JobRun) -> Iterator[str]:
    job, usage = run.job, run.job.usage
    if job.started_at is None:
        return
    rows = [("GPU", _gpus(job))] if job.allocated else []
    if job.eligible_at is not None:
        rows.append(("Waited", format_elapsed(job.started_at - job.eligible_at)))
    rows.append(("Started", shown_time(job.started_at)))
    if job.state.is_final:
        rows.append(("Ended", shown_time(job.ended_at)))
    if job.allocated:
        used = "" if usage is None or usage.used is None else f", {hours(usage.used):.1f} used"
        idle = "" if usage is None else f", {view.gpu_hours_idle(job) or 0.0:.1f} idle"
        rows.append(("Charged", f"{hours(view.charged_seconds(job)):.1f} GPU-hours{used}{idle}"))
    if usage is not None and usage.longest_idle >= 60:
        rows.append(("Idle", f"longest without a computing process: {format_elapsed(usage.longest_idle)}"))
    yield ""
    yield "Where and when"
    for name, text in rows:
        yield f"  {name:<9}{cut(text, WIDTH - 11)}"
    if job.allocated and usage is None:
        yield ""
        yield from paragraph("No samples of its GPUs are known: SM share and idle time cannot be shown.")


def _gpus(job: JobInfo) -> str:
    models = ", ".join(dict.fromkeys(clean(allocation.model) for allocation in job.allocated))
    where = f"{view.gpu_list(job)} ({models})"
    if job.usage is None:
        return where
    shared = sorted(job.usage.neighbours, key=lambda neighbour: -neighbour[1])
    jobs = ", ".join(f"{job} ({format_elapsed(seconds)})" for job, seconds in shared)
    return f"{where}, with jobs {jobs}" if shared else f"{where}, no other job on it"


# -- several jobs --------------------------------------------------------------------------------------

_RUN = "  {:<10} {:<3} {:>10} {:>6} {:>9} {:>5} {:>5} {:>5} {:>9} {:>5}"
_NAME = "  {} {:>4} {:>7} {:>5} {:>9} {:>5} {:>5} {:>10}"


def _group_head(group: RunGroup, host: str) -> Iterator[str]:
    count = len(group.runs)
    owner = f"   {clean(group.user)}   {count} {'run' if count == 1 else 'runs'}   {host}"
    yield cut(clean(group.name), WIDTH - len(owner)) + owner
    yield ""


def _table(group: RunGroup) -> Iterator[str]:
    yield _RUN.format("Job", "ST", "Time", "GPU-h", "GPU mem", "SM", "Idle", "CPU", "Memory", "Limit")
    yield "─" * WIDTH
    for job in (run.job for run in group.runs):
        yield _RUN.format(
            cut(view.label(job), 10),
            job.state.code,
            format_elapsed(job.elapsed),
            f"{hours(view.charged_seconds(job)):.1f}" if job.allocated else _DASH,
            _pair(view.gpu_peak(job), view.gpu_memory(job)),
            *(_short(part) for part in (view.sm_part(job), view.idle_part(job), view.cpu_part(job))),
            _pair(view.host_peak(job), job.host_memory or None),
            _short(view.time_part(job)),
        )
    yield "─" * WIDTH
    yield _RUN.format(
        *(
            "most, mean",
            "",
            format_elapsed(group.longest),
            f"{hours(group.charged):.1f}",
            _pair(group.peak, None),
        ),
        *(_short(part) for part in (group.sm, group.idle_part, group.cpu_part)),
        *(_pair(group.rss, None), ""),
    )


def _pair(used: int | None, requested: int | None) -> str:
    """Return '6.1/80G', in GiB."""
    if used is None and requested is None:
        return _DASH
    used_text = _DASH if used is None else f"{used / GIBIBYTE:.1f}"
    return f"{used_text}/{requested / GIBIBYTE:.0f}G" if requested else f"{used_text}G"


def _short(part: float | None) -> str:
    return _DASH if part is None else f"{100 * part:.0f}%"


def _names(run_groups: Sequence[RunGroup]) -> Iterator[str]:
    yield _NAME.format(pad("Name", 20), "Runs", "GPU-h", "Idle", "GPU mem", "SM", "CPU", "Time")
    yield "─" * WIDTH
    for group in run_groups:
        last = group.runs[-1]
        yield _NAME.format(
            pad(cut(clean(group.name), 20), 20),
            len(group.runs),
            f"{hours(group.charged):.1f}",
            _short(group.idle_part),
            _pair(group.peak, view.gpu_memory(last.job)),
            *(_short(part) for part in (group.sm, group.cpu_part)),
            format_elapsed(group.longest),
        )
    yield "─" * WIDTH


def _lines_to_paste(all_groups: Sequence[RunGroup]) -> Iterator[str]:
    proposals = [
        (run_group, proposal) for run_group in all_groups if (proposal := run_group.proposal) is not None
    ]
    proposals.sort(key=lambda pair: (-pair[0].returned, pair[0].name))
    if not proposals:
        return
    yield ""
    yield "For the next runs"
    for group, proposal in proposals[:_LINES]:
        gain = (
            f", would have returned {brief_hours(group.returned)} GPU-hours" if group.returned >= 360 else ""
        )
        yield f"  {cut(clean(group.name), WIDTH - 2 - len(gain))}{gain}"
        yield from _pasted(proposal)


# -- JSON ----------------------------------------------------------------------------------------------


def document(runs: Sequence[JobRun]) -> str:
    """Return {"meta": …, "jobs": [ … ]} in base units; a value that was not measured is null."""
    return display.document(jobs=[_document(run) for run in runs])


def _document(run: JobRun) -> dict[str, Any]:
    proposal = proposal_of([run])
    job = documents.record(documents.keys_of("fgeff"), run.job)
    return job | {"next_run": None if proposal is None else proposal.line}
