"""The report on waste: who was charged more than needed, and the header line that prevents it.

A line is proposed only if it would have been charged less than three quarters, and returns an hour or more.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import WHOLE
from fgsched.domain.times import HOUR
from fgsched.domain.units import GIB, format_share
from fgsched.reports import frame, numbers
from fgsched.reports.efficiency import ROOM_MEMORY, ROOM_TIME, WORTH, gibibytes_up, hours_up, share_for
from fgsched.reports.ended import Repeated
from fgsched.reports.facts import Example, Facts, WarnedJobs
from fgsched.reports.model import (
    Bar,
    Cell,
    Column,
    Given,
    Headline,
    Line,
    Mark,
    Number,
    Paragraphs,
    Part,
    Piece,
    Report,
    Section,
    Table,
    UseBars,
    UseRow,
    WasteItem,
    Wastes,
    Words,
)
from fgsched.reports.registry import Wish
from fgsched.reports.wording import dash, long_time, model_name, number_word, quantile, sentence, type_word

_LEAST = HOUR  # GPU seconds that a proposal must return
NONE = "No header line would have returned 1 GPU-hour or more."
_CANDIDATES = 60  # groups whose jobs are looked at
_IDLE = 0.2  # of the charged hours: the least idle part of a row
_LEAST_IDLE = 360.0  # GPU seconds
_LEAST_MEMORY = 10 * GIB * HOUR  # byte-seconds: the least unused memory of a row


class WasteFinding(Struct, frozen=True, kw_only=True):
    """Jobs of one name, why they were charged too much, and the line that would have prevented it."""

    jobs: Repeated
    evidence: str
    line: Line
    returned: float  # GPU seconds


class MedianUse(Struct, frozen=True, kw_only=True):
    """The medians of the example jobs of a group. Times in seconds."""

    jobs: Repeated
    total: int  # bytes of the smallest GPU that they ran on
    charge: float  # of each GPU, from 0 to 1
    unused_gpus: int  # of each job, without any process
    first: float | None  # until the first GPU process
    busy: float | None  # part of the time after that
    sm: float  # mean SM share of a GPU, from 0 to 1
    cpu: float | None  # part of the CPUs, from 0 to 1
    cpus: int

    @property
    def time(self) -> tuple[str, ...]:
        """Return the option of a shorter time limit, if there is one."""
        hours = shorter_limit(self.jobs)
        return (f"--time={hours}h",) if hours else ()


# -- the groups ----------------------------------------------------------------------------------------


def shorter_limit(jobs: Repeated) -> int | None:
    """Return a limit in hours for the longest complete run, if it is below three quarters of the present.

    An earlier end of a job that failed says nothing about the time that it needs.
    """
    hours = hours_up(jobs.completed * ROOM_TIME)
    is_shorter = not jobs.time_limit or hours * HOUR < WORTH * jobs.time_limit
    return hours if jobs.completed and is_shorter else None


def findings(facts: Facts, most: int) -> list[WasteFinding]:
    """Return the `most` findings that would have returned the most GPU-hours, the largest first.

    A finding returns at most the unused charge of its group. So groups are examined in descending order of
    their unused charge, until the next group cannot be among the largest.
    """
    totals = {gpu.model: gpu.total for gpu in facts.gpus}
    largest: list[WasteFinding] = []
    for group in _by_unused(merged(facts.repeated)):
        unused = group.charged - (group.used or 0.0)
        if unused < _LEAST or (len(largest) >= most and largest[most - 1].returned >= unused):
            break
        use = use_of(group, facts.examples(group), totals)
        finding = _judged(use) if use else None
        if finding and finding.returned >= _LEAST:
            largest.append(finding)
            largest.sort(key=lambda finding: (-finding.returned, finding.jobs.user, finding.jobs.name))
    return largest[:most]


def _by_unused(groups: Iterable[Repeated]) -> list[Repeated]:
    measured = [group for group in groups if group.used is not None and group.elapsed > 0]
    measured.sort(key=lambda group: (-(group.charged - (group.used or 0.0)), group.user, group.name))
    return measured[:_CANDIDATES]


def merged(groups: Iterable[Repeated]) -> list[Repeated]:
    """Join groups of a user that differ in account or model only."""
    joined: dict[tuple[str, str, int, int], Repeated] = {}
    for group in groups:
        key = (group.user, group.name, group.gpus, group.share)
        other = joined.get(key)
        joined[key] = _joined(other, group) if other else group
    return list(joined.values())


def _joined(group: Repeated, other: Repeated) -> Repeated:
    return replace(
        group if group.last > other.last else other,
        model=min(group.model, other.model),
        memory=max(group.memory, other.memory),
        jobs=group.jobs + other.jobs,
        charged=group.charged + other.charged,
        used=_sum(group.used, other.used),
        idle=_sum(group.idle, other.idle),
        completed=max(group.completed, other.completed),
        peak=max(group.peak, other.peak),
        longest=max(group.longest, other.longest),
        elapsed=group.elapsed + other.elapsed,
        time_limit=max(group.time_limit, other.time_limit),
    )


def _sum(*parts: float | None) -> float | None:
    """Return the sum of what was measured; None: nothing was."""
    measured = [part for part in parts if part is not None]
    return sum(measured) if measured else None


def use_of(group: Repeated, examples: Sequence[Example], totals: dict[str, int]) -> MedianUse | None:
    """Summarize the examples of a group; None if none was measured. `totals` maps models to bytes."""
    measured = [job for job in examples if job.used is not None and job.elapsed > 0]
    if not measured or group.model not in totals:
        return None
    total = totals[group.model]
    charge = min(1.0, max(group.share / WHOLE, group.memory / total))
    busy = [job.busy / job.with_process for job in measured if job.busy is not None and job.with_process]
    firsts = [job.first_process for job in measured if job.first_process is not None]
    cpus = [job.cpu_seconds / job.elapsed / job.cpus for job in measured if job.cpu_seconds and job.cpus]
    return MedianUse(
        jobs=group,
        total=total,
        charge=charge,
        unused_gpus=min(group.gpus - 1, int(_unused(measured, charge, group.gpus) + 0.15)),
        first=median(firsts) if firsts else None,
        busy=median(busy) if busy else None,
        sm=sum(job.used or 0.0 for job in measured) / max(1.0, _sampled(measured)) / group.gpus,
        cpu=median(cpus) if cpus else None,
        cpus=max((job.cpus or 1 for job in measured), default=1),
    )


def _sampled(examples: Sequence[Example]) -> float:
    return sum(example.sampled or 0.0 for example in examples)


def _unused(examples: Sequence[Example], charge: float, gpus: int) -> float:
    """Return the mean number of GPUs without a process while another one of the job had one."""
    with_process = sum(example.with_process or 0.0 for example in examples)
    before = charge * gpus * (_sampled(examples) - with_process)  # GPU seconds without any process of the job
    empty = sum(example.empty or 0.0 for example in examples) - before
    return empty / charge / with_process if with_process else 0.0


# -- the judgement -------------------------------------------------------------------------------------


def _judged(use: MedianUse) -> WasteFinding | None:
    """Return the first proposal that is worth it."""
    for judge in (_unused_gpus, _late_start, _too_large):
        finding = judge(use)
        if finding:
            return finding
    return None


def _unused_gpus(use: MedianUse) -> WasteFinding | None:
    gpus, unused = use.jobs.gpus, use.unused_gpus
    if unused < 1:
        return None
    return WasteFinding(
        jobs=use.jobs,
        evidence=f"Asks for {gpus} GPUs and starts no process on {number_word(unused)} of them.",
        line=Line(("#FG", f"--gpus={gpus - unused}", *use.time)),
        returned=use.jobs.charged * unused / gpus,
    )


def _late_start(use: MedianUse) -> WasteFinding | None:
    mean = use.jobs.elapsed / use.jobs.jobs
    if use.first is None or use.first < HOUR or use.first < 0.25 * mean:
        return None
    run = hours_up((use.jobs.longest - use.first) * ROOM_TIME)
    waited = numbers.duration_text(use.first)
    several = ", a median of the latest jobs" if use.jobs.jobs > 1 else ""
    return WasteFinding(
        jobs=use.jobs,
        evidence=f"Holds its share for {waited} before its first GPU process{several}: the preparation needs"
        " no GPU.",
        line=Line(
            ("#FG", _gpus(use), *_memory_option(use), f"--time={run}h", "--dependency=afterok:PREP_JOB")
        ),
        returned=min(use.first / mean * use.jobs.charged, use.jobs.charged - (use.jobs.used or 0.0)),
    )


def _gpus(use: MedianUse) -> str:
    return f"--gpus={format_share(use.jobs.share * use.jobs.gpus)}"


def _memory_option(use: MedianUse) -> tuple[str, ...]:
    """Return the memory option of the request, if the memory exceeds the share of the GPU."""
    of_share = use.jobs.share / WHOLE * use.total
    return (f"--gpu-mem={gibibytes_up(use.jobs.memory)}G",) if use.jobs.memory > of_share * 1.01 else ()


def _too_large(use: MedianUse) -> WasteFinding | None:
    if not use.jobs.peak:  # not measured
        return None
    needed = gibibytes_up(use.jobs.peak * ROOM_MEMORY) * GIB
    share = share_for(use.sm)
    charge = max(share / WHOLE, needed / use.total)
    if charge >= WORTH * use.charge or use.jobs.gpus > 1:
        return None
    is_bound = use.cpu is not None and use.cpu >= 0.9 and use.sm < 0.5 * use.charge
    cpus = (f"--cpus-per-task={3 * use.cpus}",) if is_bound else ()
    size = f"--gpu-mem={needed // GIB}G"
    return WasteFinding(
        jobs=use.jobs,
        evidence=_evidence(use, is_bound=is_bound),
        line=Line(("#FG", f"--gpus={format_share(share)}", size, *cpus, *use.time)),
        returned=use.jobs.charged * (1 - charge / use.charge),
    )


def _evidence(use: MedianUse, *, is_bound: bool) -> str:
    peak, requested = numbers.plain_gibibytes(use.jobs.peak), numbers.plain_gibibytes(use.jobs.memory)
    memory, mean = f"peak memory {peak} GiB of {requested}", f"mean SM share {numbers.rate(use.sm, 1.0).text}"
    if is_bound:
        return f"Is limited by its CPUs: {mean}, {memory}."
    if use.jobs.share == WHOLE:
        return f"Takes a whole card; {memory}, {mean}."
    if use.busy is not None and use.busy < 0.7:
        return f"Computes {numbers.rate(use.busy, 1.0).text} of the time with a process; {memory}."
    return f"{memory[0].upper()}{memory[1:]}, {mean}."


# -- the section ---------------------------------------------------------------------------------------


def asked(jobs: Repeated) -> str:
    """Return the request of the jobs of a group: 'asked 0.5 GPU'."""
    share = jobs.share * jobs.gpus
    return f"asked {format_share(share)} {'GPUs' if share > WHOLE else 'GPU'}"


def item(rank: int, finding: WasteFinding, warned: str = "") -> WasteItem:
    """Return the entry of a finding."""
    return WasteItem(
        rank=rank,
        user=Given(finding.jobs.user),
        job=Given(finding.jobs.name),
        jobs=Number(finding.jobs.jobs, "jobs", numbers.counted(finding.jobs.jobs, "job")),
        asked=asked(finding.jobs),
        evidence=finding.evidence,
        line=finding.line,
        returned=_hour_count(finding.returned),
        charged=_hour_count(finding.jobs.charged),
        warned=warned,
    )


def _hour_count(seconds: float) -> Number:
    hours = numbers.hours(seconds)
    return Number(hours.value, hours.unit, f"{hours.text} h")


def wastes(facts: Facts, proposals: Sequence[WasteFinding]) -> Section:
    """Return the section of an overview: the five largest."""
    title = "Largest wastes"
    if not proposals:
        return Section("wastes", title, "", (Paragraphs((sentence(NONE),)),))
    returned = sum(proposal.returned for proposal in proposals)
    part = numbers.rate(returned, sum(jobs.charged for jobs in facts.jobs)).text
    say = (
        "Each waste has a header line for the job script, and the GPU-hours that the line would have"
        f" returned. Together {numbers.brief_hours(returned)} GPU-hours, {part} of those charged to the jobs"
        " that ended."
    )
    items = tuple(item(rank, proposal) for rank, proposal in enumerate(proposals, 1))
    return Section("wastes", title, say, (Wastes(items),))


def waste(facts: Facts, wish: Wish) -> Report:
    """Return the report on waste, with the header lines that would have prevented it."""
    proposals, groups = findings(facts, max(wish.number, 20)), merged(facts.repeated)
    lines = {(proposal.jobs.user, proposal.jobs.name): proposal.line for proposal in proposals}
    sections = (
        _proposals(facts, proposals, wish.number),
        Section("idle", "Idle reservations", _IDLE_SAY, (_idle(facts, groups, lines, wish.number),)),
        Section("memory", "Memory asked and not used", "", (_memory(facts, groups, wish.number),)),
        Section("limits", "Time limits", "", (_limits(facts, groups, wish.number),)),
        Section("models", "Larger card than needed", _models_say(facts), (_models(facts, wish.number),)),
        Section("empty", "Jobs without a GPU process", "", (_without_process(facts, wish.number),)),
    )
    body = frame.Body(
        kind="waste",
        title="GPU waste report",
        lede=_lede(facts, proposals),
        figures=_figures(facts, proposals[: wish.number]),
        sections=sections,
        terms=("charged", "idle", "unused", "longest", "returned", "whole"),
        main="wastes",
        quiet=not proposals and facts.idle < HOUR,
    )
    return frame.framed(facts, body, wish.now)


def _lede(facts: Facts, proposals: Sequence[WasteFinding]) -> tuple[str, ...]:
    if nothing := frame.nothing_ran(facts):
        return tuple(nothing)
    if not facts.charged:
        return (f"Nothing was charged in this {facts.period.noun}.",)
    part = numbers.share(facts.idle, facts.charged).text
    text = [
        f"{numbers.brief_hours(facts.idle)} GPU-hours were charged and idle, {part} of all hours charged."
    ]
    if proposals:
        text.append("Each proposal is the header line that would have prevented the waste.")
    return tuple(text)


def _figures(facts: Facts, proposals: Sequence[WasteFinding]) -> tuple[Headline, ...]:
    held, empty = (numbers.brief_hours(facts.classes[at]) for at in (1, 2))
    returned = sum(proposal.returned for proposal in proposals)
    unused = facts.all_unused
    tebi = unused / GIB / HOUR / 1024
    warned = sum(jobs.warnings for jobs in facts.warned.values())
    people = len({jobs.user for jobs in facts.warned.values()})
    return (
        _hours("idle", "Idle", facts.idle, f"{held} held-idle, {empty} reserved-empty"),
        _hours("returned", "Would be returned", returned, f"by {numbers.counted(len(proposals), 'line')}"),
        Headline(
            "unused",
            "Memory not used",
            Number(unused / GIB / HOUR, "GiB-hours", f"{numbers.grouped(tebi, 1)} TiB-h"),
            "asked, and above the peak",
        ),
        Headline(
            "warnings", "Warnings", numbers.count(warned, "warnings"), f"to {numbers.counted(people, 'user')}"
        ),
    )


def _hours(key: str, label: str, seconds: float, note: str) -> Headline:
    text = f"{numbers.grouped(seconds / HOUR, 1 if seconds < 99.95 * HOUR else 0)} GPU-h"
    return Headline(key, label, Number(seconds / HOUR, "GPU-hours", text), note)


def _proposals(facts: Facts, proposals: Sequence[WasteFinding], most: int) -> Section:
    items = tuple(
        item(rank, proposal, _warned(facts, proposal.jobs.user, proposal.jobs.name))
        for rank, proposal in enumerate(proposals[:most], 1)
    )
    say = "GPU-hours that each line would have returned, and charged GPU-hours." if items else ""
    part = Wastes(items, empty=NONE)
    return Section("wastes", "Proposed lines", say, (part,))


def _warned(facts: Facts, user: str, name: str) -> str:
    """Return how often and when the idle policy warned, as of the end of the period."""
    jobs: WarnedJobs | None = facts.warned.get((user, name))
    if jobs is None:
        return ""
    times = {1: "once", 2: "twice"}.get(jobs.warnings, f"{jobs.warnings} times")
    return f"warned {times}, last {long_time(jobs.last)}"


# -- idle reservations ---------------------------------------------------------------------------------

_IDLE_SAY = (
    "Jobs with a fifth or more of their charged hours idle: hours in which no process had an SM share"
    " above 1 %."
)


def _idle(facts: Facts, groups: Sequence[Repeated], lines: dict[tuple[str, str], Line], most: int) -> Part:
    idle = [group for group in groups if _is_idle(group)]
    idle.sort(key=lambda group: (-(group.idle or 0.0), group.user, group.name))
    largest = max((group.idle or 0.0 for group in idle), default=0.0)
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("idle", "Idle h", right=True, unit="GPU-hours"),
        Column("bar", "Idle hours", minor=True, in_text=False),
        Column("part", "Of charged", right=True, unit="%"),
        Column("longest", "Longest", right=True, unit="seconds"),
        Column("line", "Proposed line"),
        Column("warned", "Warnings", in_text=False),
    )
    rows = tuple(_idle_row(facts, group, largest, lines) for group in idle[:most])
    return Table(
        "idle",
        columns,
        rows,
        empty="No jobs of one name were idle for 0.1 GPU-hours and a fifth of their charge.",
    )


def _is_idle(group: Repeated) -> bool:
    return group.idle is not None and group.idle >= max(_LEAST_IDLE, _IDLE * group.charged)


def _idle_row(
    facts: Facts, group: Repeated, largest: float, lines: dict[tuple[str, str], Line]
) -> tuple[Cell, ...]:
    idle = group.idle or 0.0
    stretches = [job.longest_idle for job in facts.examples(group) if job.longest_idle is not None]
    line: Cell = lines.get((group.user, group.name)) or dash()
    return (
        Given(group.user),
        Given(group.name),
        numbers.count(group.jobs),
        numbers.hours(idle),
        Bar((Piece("count", idle / largest),)),
        numbers.rate(idle, group.charged),
        numbers.duration(max(stretches, default=None)),
        line,
        Words(_warned(facts, group.user, group.name) or "not warned"),
    )


# -- memory and time -----------------------------------------------------------------------------------


def _memory(facts: Facts, groups: Sequence[Repeated], most: int) -> Part:
    proposals = []
    for group in groups:
        proposed = gibibytes_up(group.peak * ROOM_MEMORY)
        cost = (group.memory - group.peak) * group.elapsed * group.gpus
        if group.peak > 0 and proposed * GIB < WORTH * group.memory and cost >= _LEAST_MEMORY:
            proposals.append((cost, group, Line(("#FG", f"--gpu-mem={proposed}G"))))
    proposals.sort(key=lambda row: (-row[0], row[1].user, row[1].name))
    largest = max((group.memory for _, group, _ in proposals[:most]), default=1)
    scale, ticks = _scale(largest / GIB)
    rows = tuple(
        UseRow(
            user=Given(group.user),
            job=Given(group.name),
            jobs=Number(group.jobs, "jobs", numbers.counted(group.jobs, "job")),
            cost=numbers.memory_hours(cost),
            full=group.peak / GIB / scale,
            pale=None,
            outline=group.memory / GIB / scale,
            used=numbers.gibibytes(group.peak),
            asked=numbers.gibibytes(group.memory, 0),
            line=line,
        )
        for cost, group, line in proposals[:most]
    )
    return UseBars(
        "memory",
        rows,
        ticks,
        ("GiB-h", "Peak", "", "asked"),
        caption="Outline: asked. Bar: highest peak of all its jobs. The proposal is that peak and 15 %.",
        empty="No smaller request of GPU memory is proposed.",
    )


def _scale(largest: float) -> tuple[float, tuple[Mark, ...]]:
    """Return the end of an axis in GiB and its ticks, at round values."""
    step = next((width for width in (1, 2, 5, 10, 20, 50, 100) if largest <= 5 * width), 200)
    end = step * -(-largest // step)
    return end, tuple(Mark(at * step / end, str(at * step)) for at in range(int(end // step) + 1))


def _runs(facts: Facts, of: Repeated) -> tuple[float | None, float | None]:
    """Return the median and the 90 % of the run times of the latest jobs that completed, in seconds."""
    ordered = sorted(job.elapsed for job in facts.examples(of) if job.state == "COMPLETED")
    return quantile(ordered, 50), quantile(ordered, 90)


def _limits(facts: Facts, groups: Sequence[Repeated], most: int) -> Part:
    proposals = []
    for group in groups:
        hours = shorter_limit(group)
        if group.time_limit and hours:
            proposals.append((group.time_limit - group.completed, group, Line(("#FG", f"--time={hours}h"))))
    proposals.sort(key=lambda row: (-row[0] * row[1].jobs, row[1].user, row[1].name))
    rows = tuple(
        UseRow(
            user=Given(group.user),
            job=Given(group.name),
            jobs=Number(group.jobs, "jobs", numbers.counted(group.jobs, "job")),
            cost=numbers.unknown(""),
            full=min(1.0, (median or 0.0) / group.time_limit),
            pale=min(1.0, (ninety or 0.0) / group.time_limit),
            outline=1.0,
            used=numbers.duration(median),
            asked=numbers.duration(group.time_limit),
            line=line,
            most=numbers.duration(group.completed),
        )
        for _, group, line in proposals[:most]
        for median, ninety in (_runs(facts, group),)
    )
    ticks = tuple(Mark(at / 100, str(at)) for at in (0, 50, 100))
    return UseBars(
        "limits",
        rows,
        ticks,
        ("", "Median", "Longest", "limit"),
        caption="A shorter limit lets a job start in a gap before a reservation. Bar: median run of the"
        " latest completed jobs; outline: the limit. The proposal is the longest of their runs and 20 %.",
        empty="No shorter time limit is proposed.",
    )


# -- larger GPUs, and jobs without a process ----------------------------------------------------------


def _smaller(facts: Facts) -> tuple[str, int] | None:
    """Return the model with the least memory and its bytes, if there are several sizes."""
    sizes = sorted({(gpu.total, model_name(gpu.model)) for gpu in facts.gpus})
    return (sizes[0][1], sizes[0][0]) if sizes and sizes[0][0] < sizes[-1][0] else None


def _models_say(facts: Facts) -> str:
    if not facts.gpus:
        return "No GPU was seen."
    smaller = _smaller(facts)
    if smaller is None:
        return "All cards have the same memory."
    size = numbers.gibibytes(smaller[1], 0).text
    return f"Jobs on larger cards whose peak would fit the {smaller[0]} ({size})."


def _fitting(facts: Facts, size: int) -> list[Repeated]:
    """Return the jobs on larger GPUs whose peak would fit a GPU of `size` bytes, by charge."""
    totals = {gpu.model: gpu.total for gpu in facts.gpus}
    fitting = [
        group
        for group in merged(group for group in facts.repeated if totals.get(group.model, 0) > size)
        if 0 < group.peak * ROOM_MEMORY <= size * group.share / WHOLE and group.charged >= HOUR
    ]
    return sorted(fitting, key=lambda group: (-group.charged, group.user, group.name))


def _models(facts: Facts, most: int) -> Part:
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("share", "Share", right=True),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("peak", "Peak", right=True, unit="bytes"),
        Column("line", "Proposed line"),
    )
    smaller = _smaller(facts)
    fitting = _fitting(facts, smaller[1]) if smaller else []
    models = {model_name(gpu.model) for gpu in facts.gpus}
    word = type_word(smaller[0], models - {smaller[0]}) if smaller else ""
    rows = tuple(
        (
            Given(group.user),
            Given(group.name),
            numbers.count(group.jobs),
            Words(format_share(group.share * group.gpus)),
            numbers.hours(group.charged),
            numbers.gibibytes(group.peak),
            Line(("#FG", f"--gpu-type={word}")),
        )
        for group in fitting[:most]
    )
    return Table("models", columns, rows, empty="No job is proposed for a smaller card.")


def _without_process(facts: Facts, most: int) -> Part:
    columns = (
        Column("user", "User"),
        Column("job", "Job"),
        Column("jobs", "Jobs", right=True, unit="jobs"),
        Column("charged", "GPU-hours", right=True, unit="GPU-hours"),
        Column("line", "Proposed line"),
    )
    rows = tuple(
        (
            Given(jobs.user),
            Given(jobs.name),
            numbers.count(jobs.jobs),
            numbers.hours(jobs.charged),
            Line(("#FG", "--gpus=0")),
        )
        for jobs in facts.without_process(most)
    )
    return Table(
        "empty", columns, rows, empty="No sampled job of 10 GPU-minutes or more was without a GPU process."
    )
