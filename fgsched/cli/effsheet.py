"""Write the efficiency of jobs as text of 78 columns, and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.times import format_elapsed
from fgsched.domain.units import format_indices, format_share
from fgsched.reports.efficiency import JobRun, RunGroup, charge_sentences, groups, hours, proposal_of
from fgsched.reports.layout import WIDTH, ascii_only, cut, eighths, pad, paragraph
from fgsched.reports.numbers import brief_hours
from fgsched.reports.proposal import GIB, Proposal
from fgsched.views import display
from fgsched.views.choices import name_of
from fgsched.views.display import shown_time

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
            one for one in groups(runs, last) if len(one.runs) > 1 and all(run.job.array for run in one.runs)
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

    def names(self, found: Sequence[RunGroup]) -> str:
        """Return the table of job names, and the options that would return the most GPU-hours."""
        return self._text([*_names(found), *_lines_to_paste(found)])

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
    demand = run.job.request.demand
    if run.gpus:
        yield _Row("GPU memory", run.memory_part, _of(_gib(run.peak), _gib(run.memory), " GiB"))
        yield _Row("SM share", run.sm, f"mean of {format_share(run.share * run.gpus)} GPU")
        yield _Row("GPU idle", run.idle_part, _idle(run))
    yield _Row("CPUs", run.cpu_part, _of(_one(run.cpu), str(demand.cpus)))
    yield _Row("Host memory", run.host_part, _of(_gib(run.rss), _gib(demand.host_memory or None), " GiB"))
    limit = run.job.request.time_limit
    asked = format_elapsed(limit) if limit > 0 else "UNLIMITED"
    yield _Row("Time", run.time_part, _of(format_elapsed(run.job.elapsed), asked))


def _of(used: str, asked: str, unit: str = "") -> str:
    return f"{used} of {asked}{unit}" if asked != _DASH else f"{used}{unit if used != _DASH else ''}"


def _idle(run: JobRun) -> str:
    if run.usage is None or run.idle is None:
        return _DASH
    return f"{hours(run.idle):.1f} of {hours(run.usage.charged):.1f} GPU-hours"


def _gib(size: int | None) -> str:
    return _DASH if size is None else f"{size / GIB:.1f}"


def _one(value: float | None) -> str:
    return _DASH if value is None else f"{value:.1f}"


def _percent(part: float | None) -> str:
    return _DASH if part is None else f"{100 * part:,.0f} %"


# -- one job -------------------------------------------------------------------------------------------


def _head(run: JobRun, host: str) -> Iterator[str]:
    job = run.job
    fixed = f"{job.state.word}   job {name_of(job)}   "
    rest = f"   {clean(job.user)}   {host}"
    yield fixed + cut(clean(job.request.name), max(8, WIDTH - len(fixed) - len(rest))) + rest
    if job.started_at is None:
        yield "It never started." if run.is_over else "It has not started."
    elif run.is_over:
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
    found = proposal_of(runs)
    if found is None:
        return
    yield ""
    yield "For the next run"
    charge = charge_sentences(found, sum(one.charged for one in runs), len(runs))
    yield from paragraph(" ".join([*found.reasons, *charge]), "  ")
    yield ""
    yield from _pasted(found)


def _pasted(found: Proposal) -> Iterator[str]:
    """Yield the header line alone on its line; one that is too long becomes several."""
    line = found.mark
    for token in found.tokens:
        if len(line) + len(token) + 7 > WIDTH:
            yield f"      {line}"
            line = found.mark
        line += f" {token}"
    yield f"      {line}"


def _where(run: JobRun) -> Iterator[str]:
    job, usage = run.job, run.usage
    if job.started_at is None:
        return
    rows = [("GPU", _gpus(run))] if run.gpus else []
    if job.eligible_at is not None:
        rows.append(("Waited", format_elapsed(job.started_at - job.eligible_at)))
    rows.append(("Started", shown_time(job.started_at)))
    if run.is_over:
        rows.append(("Ended", shown_time(job.ended_at)))
    if run.gpus:
        used = "" if usage is None or usage.used is None else f", {hours(usage.used):.1f} used"
        idle = "" if usage is None else f", {hours(run.idle or 0.0):.1f} idle"
        rows.append(("Charged", f"{hours(run.charged):.1f} GPU-hours{used}{idle}"))
    if usage is not None and usage.longest_idle >= 60:
        rows.append(("Idle", f"longest without a computing process: {format_elapsed(usage.longest_idle)}"))
    yield ""
    yield "Where and when"
    for name, text in rows:
        yield f"  {name:<9}{cut(text, WIDTH - 11)}"
    if run.gpus and usage is None:
        yield ""
        yield from paragraph("No samples of its GPUs are known: SM share and idle time cannot be shown.")


def _gpus(run: JobRun) -> str:
    models = ", ".join(dict.fromkeys(clean(one.model) for one in run.job.allocated))
    where = f"{format_indices(one.gpu for one in run.job.allocated)} ({models})"
    if run.usage is None:
        return where
    shared = sorted(run.usage.neighbours, key=lambda one: -one[1])
    jobs = ", ".join(f"{job} ({format_elapsed(seconds)})" for job, seconds in shared)
    return f"{where}, with jobs {jobs}" if shared else f"{where}, no other job on it"


# -- several jobs --------------------------------------------------------------------------------------

_RUN = "  {:<10} {:<3} {:>10} {:>6} {:>9} {:>5} {:>5} {:>5} {:>9} {:>5}"
_NAME = "  {} {:>4} {:>7} {:>5} {:>9} {:>5} {:>5} {:>10}"


def _group_head(group: RunGroup, host: str) -> Iterator[str]:
    count = len(group.runs)
    rest = f"   {clean(group.user)}   {count} {'run' if count == 1 else 'runs'}   {host}"
    yield cut(clean(group.name), WIDTH - len(rest)) + rest
    yield ""


def _table(group: RunGroup) -> Iterator[str]:
    yield _RUN.format("Job", "ST", "Time", "GPU-h", "GPU mem", "SM", "Idle", "CPU", "Memory", "Limit")
    yield "─" * WIDTH
    for run in group.runs:
        yield _RUN.format(
            cut(name_of(run.job), 10),
            run.job.state.code,
            format_elapsed(run.job.elapsed),
            f"{hours(run.charged):.1f}" if run.gpus else _DASH,
            _pair(run.peak, run.memory),
            *(_short(part) for part in (run.sm, run.idle_part, run.cpu_part)),
            _pair(run.rss, run.job.request.demand.host_memory or None),
            _short(run.time_part),
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


def _pair(used: int | None, asked: int | None) -> str:
    """Return '6.1/80G', in GiB."""
    if used is None and asked is None:
        return _DASH
    used_text = _DASH if used is None else f"{used / GIB:.1f}"
    return f"{used_text}/{asked / GIB:.0f}G" if asked else f"{used_text}G"


def _short(part: float | None) -> str:
    return _DASH if part is None else f"{100 * part:.0f}%"


def _names(found: Sequence[RunGroup]) -> Iterator[str]:
    yield _NAME.format(pad("Name", 20), "Runs", "GPU-h", "Idle", "GPU mem", "SM", "CPU", "Time")
    yield "─" * WIDTH
    for group in found:
        last = group.runs[-1]
        yield _NAME.format(
            pad(cut(clean(group.name), 20), 20),
            len(group.runs),
            f"{hours(group.charged):.1f}",
            _short(group.idle_part),
            _pair(group.peak, last.memory),
            *(_short(part) for part in (group.sm, group.cpu_part)),
            format_elapsed(group.longest),
        )
    yield "─" * WIDTH


def _lines_to_paste(all_groups: Sequence[RunGroup]) -> Iterator[str]:
    found = [(one, made) for one in all_groups if (made := one.proposal) is not None]
    found.sort(key=lambda pair: (-pair[0].returned, pair[0].name))
    if not found:
        return
    yield ""
    yield "For the next runs"
    for group, made in found[:_LINES]:
        gain = (
            f", would have returned {brief_hours(group.returned)} GPU-hours" if group.returned >= 360 else ""
        )
        yield f"  {cut(clean(group.name), WIDTH - 2 - len(gain))}{gain}"
        yield from _pasted(made)


# -- JSON ----------------------------------------------------------------------------------------------


def document(runs: Sequence[JobRun]) -> str:
    """Return {"meta": …, "jobs": [ … ]} in base units; a value that was not measured is null."""
    return display.document(jobs=[_document(run) for run in runs])


def _document(run: JobRun) -> dict[str, Any]:
    job, demand, found = run.job, run.job.request.demand, proposal_of([run])
    return {
        "job_id": job.id,
        "name": job.request.name,
        "user": job.user,
        "uid": job.uid,
        "partition": job.partition,
        "state": job.state.value,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "elapsed": job.elapsed,
        "time_limit": job.request.time_limit or None,
        **display.time_fields(submit=job.submitted_at, start=job.started_at, end=job.ended_at),
        "gpu_count": run.gpus,
        "gpus": display.gpu_number(run.share * run.gpus),
        "gpu_mem": run.memory,
        "max_gpu_mem": run.peak,
        "gpu_hours": hours(run.charged) if run.gpus else 0.0,
        "sm_share": run.sm,
        "idle_part": run.idle_part,
        "req_cpus": demand.cpus,
        "cpu_seconds": run.cpu_seconds,
        "busy_cpus": run.cpu,
        "req_mem": demand.host_memory or None,
        "max_rss": run.rss,
        "warning": job.warning or None,
        "usage": to_builtins(run.usage),
        "next_run": None if found is None else found.line,
    }
